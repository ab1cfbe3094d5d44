//! Leases: a right of one process at a time, which another process takes over when its owner is gone.
//!
//! No clock is compared with another process's. An owner changes its record from time to time. A process that has seen
//! a record unchanged for the agreed time, by its own clock, may take the lease over, if the record is still unchanged
//! then. An owner that fails to change its record stops earlier than that, since it may be superseded.

use std::time::Duration;

use tokio::time::Instant;

/// The id of one process, drawn at each start.
pub type Owner = [u8; 16];

/// The longest state of a lease, in bytes. States are written together in one transaction.
pub const LEASE_STATE_BYTES_MAX: usize = 50_000;

/// The record of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lease {
    /// The owner; empty: the lease is free.
    pub owner: Vec<u8>,
    /// A number that changes with each change of the record.
    pub beats: u64,
    /// The state that the last owner wrote.
    pub state: Vec<u8>,
}

impl Lease {
    /// Returns whether the record is unchanged. Its state is then unchanged, too.
    pub fn is_still(&self, other: &Lease) -> bool {
        self.owner == other.owner && self.beats == other.beats
    }

    /// Returns whether a process other than `owner` has it.
    pub fn is_of_another(&self, owner: &Owner) -> bool {
        !self.owner.is_empty() && self.owner != owner
    }
}

/// Returns the time until which an owner may act on its lease. `begun`: the start of its last successful
/// [`Leases::take`] or [`Leases::hold`]. Others wait for `silence_max`; a third of it is the margin for clock drift and
/// late stops.
pub fn valid_until(begun: Instant, silence_max: Duration) -> Instant {
    begun + silence_max * 2 / 3
}

/// A lease as one process has seen it, and since when it is unchanged by that process's clock. The state is not kept,
/// since each change of it changes the beats.
#[derive(Debug, Clone)]
pub struct Sighting {
    lease: Lease,
    since: Instant,
}

impl Sighting {
    /// Creates a sighting of a read that ended at `now`.
    pub fn new(lease: Lease, now: Instant) -> Sighting {
        let lease = Lease { state: Vec::new(), ..lease };
        Sighting { lease, since: now }
    }

    /// Notes that the lease was seen again.
    pub fn update(&mut self, lease: Lease, now: Instant) {
        if !self.lease.is_still(&lease) {
            *self = Sighting::new(lease, now);
        }
    }

    /// Returns the lease, for [`Leases::take`], if its owner was silent for `silence_max`.
    pub fn stale(&self, now: Instant, silence_max: Duration) -> Option<&Lease> {
        (now.saturating_duration_since(self.since) >= silence_max).then_some(&self.lease)
    }
}

/// The result of an attempt to take a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TakenLease {
    /// This process has it. The state is what the last owner wrote.
    Ours(Lease),
    /// Another process has it.
    Others(Lease),
}

/// The reason why a lease could not be taken or held.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The lease's object is gone, and the lease with it.
    #[error("the lease is gone with the object it belongs to")]
    Gone,
    /// A storage error, which may be retried.
    #[error(transparent)]
    Storage(Box<dyn std::error::Error + Send + Sync>),
}

/// The storage of leases. Each call is one transaction.
pub trait Leases: Send + Sync + 'static {
    /// Takes a lease that is free, that is `owner`'s already, or that is unchanged since `stale` was seen, longer ago
    /// than its owner may be silent.
    fn take(
        &self,
        id: &str,
        owner: &Owner,
        stale: Option<&Lease>,
    ) -> impl Future<Output = Result<TakenLease, LeaseError>> + Send;

    /// Renews `owner`'s lease with a new state of at most [`LEASE_STATE_BYTES_MAX`] bytes. False: the lease is no
    /// longer the owner's. With `release` the lease becomes free and keeps its state.
    fn hold(
        &self,
        id: &str,
        owner: &Owner,
        state: &[u8],
        release: bool,
    ) -> impl Future<Output = Result<bool, LeaseError>> + Send;

    /// Returns the time of the next renewal of a lease that is ours at `now`: at most `every` later.
    fn due_at(&self, now: Instant, every: Duration) -> Instant {
        now + every
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE_MAX: Duration = Duration::from_secs(15);

    fn lease(owner: u8, beats: u64) -> Lease {
        Lease { owner: vec![owner; 16], beats, state: b"state".to_vec() }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_counted_from_the_last_beat() {
        let born = Instant::now();
        let after = |seconds| born + Duration::from_secs(seconds);
        let mut seen = Sighting::new(lease(1, 1), born);
        seen.update(Lease { state: Vec::new(), ..lease(1, 1) }, after(10));
        assert!(seen.stale(after(14), SILENCE_MAX).is_none());
        assert!(seen.stale(after(15), SILENCE_MAX).unwrap().is_still(&lease(1, 1)));
        for (other, at) in [(lease(1, 2), 20), (lease(2, 2), 40)] {
            seen.update(other, after(at));
            assert!(seen.stale(after(at + 14), SILENCE_MAX).is_none());
            assert!(seen.stale(after(at + 15), SILENCE_MAX).is_some());
        }
        // Its owner stops well before.
        assert_eq!(valid_until(born, SILENCE_MAX), after(10));
    }

    #[test]
    fn whose_it_is() {
        assert!(lease(1, 1).is_of_another(&[2; 16]) && !lease(1, 1).is_of_another(&[1; 16]));
        assert!(!Lease::default().is_of_another(&[1; 16]));
    }
}
