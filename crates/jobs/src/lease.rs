//! Leases: something that one process at a time may do, and that another takes over when that one is gone.
//!
//! No clock is compared with another's. An owner changes its record from time to time; whoever has seen a record
//! unchanged for the time agreed on, by its own clock, may take it over, and does so only if it still is unchanged. An
//! owner that could not change its record for less than that time knows that it may be superseded, and stops.

use std::time::Duration;

use tokio::time::Instant;

/// Identifies one process, made anew whenever it starts.
pub type Owner = [u8; 16];

/// The longest state of a lease: it is written together with others.
pub const LEASE_STATE_BYTES_MAX: usize = 50_000;

/// A lease as it stands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lease {
    /// Empty where nobody has it.
    pub owner: Vec<u8>,
    /// Another number whenever anything was done with it.
    pub beats: u64,
    /// What its last owner wrote.
    pub state: Vec<u8>,
}

impl Lease {
    /// Whether nothing was done with it between two looks at it: its state is what it was, too.
    pub fn is_still(&self, other: &Lease) -> bool {
        self.owner == other.owner && self.beats == other.beats
    }

    /// Whether somebody else than `owner` has it.
    pub fn is_of_another(&self, owner: &Owner) -> bool {
        !self.owner.is_empty() && self.owner != owner
    }
}

/// Until when the owner of a lease may act on it whose last successful [`Leases::take`] or [`Leases::hold`] began at `begun`:
/// others wait for `silence_max`, and a third of that is left for clocks that run apart and for what stops late.
pub fn valid_until(begun: Instant, silence_max: Duration) -> Instant {
    begun + silence_max * 2 / 3
}

/// A lease as one process has seen it, and since when it is so, by that process' clock. Its state is not kept: whenever that
/// changes, another beat is counted.
#[derive(Debug, Clone)]
pub struct Sighting {
    lease: Lease,
    since: Instant,
}

impl Sighting {
    /// Seen by a read that ended at `now`.
    pub fn new(lease: Lease, now: Instant) -> Sighting {
        let lease = Lease { state: Vec::new(), ..lease };
        Sighting { lease, since: now }
    }

    /// Seen again.
    pub fn update(&mut self, lease: Lease, now: Instant) {
        if !self.lease.is_still(&lease) {
            *self = Sighting::new(lease, now);
        }
    }

    /// The lease, for [`Leases::take`], if nothing was heard of its owner for `silence_max`.
    pub fn stale(&self, now: Instant, silence_max: Duration) -> Option<&Lease> {
        (now.saturating_duration_since(self.since) >= silence_max).then_some(&self.lease)
    }
}

/// What became of an attempt to take a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TakenLease {
    /// It is ours; the state is what the last owner wrote.
    Ours(Lease),
    /// Another has it.
    Others(Lease),
}

/// Why a lease could not be asked for or held.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// What it belongs to is gone, and the lease with it.
    #[error("what the lease belongs to is gone")]
    Gone,
    /// The storage says so; it may be tried again.
    #[error(transparent)]
    Storage(Box<dyn std::error::Error + Send + Sync>),
}

/// Where leases lie. Each call is one transaction.
pub trait Leases: Send + Sync + 'static {
    /// Takes a lease that nobody has, that is `owner`'s already, or that still is as it was in `stale`, seen so for longer
    /// than its owner may be silent.
    fn take(
        &self,
        id: &str,
        owner: &Owner,
        stale: Option<&Lease>,
    ) -> impl Future<Output = Result<TakenLease, LeaseError>> + Send;

    /// Says that `owner` is still there, and what it has to tell (at most [`LEASE_STATE_BYTES_MAX`] bytes). False: the lease
    /// is no longer its. With `release` the lease is given up, and its state stays.
    fn hold(
        &self,
        id: &str,
        owner: &Owner,
        state: &[u8],
        release: bool,
    ) -> impl Future<Output = Result<bool, LeaseError>> + Send;

    /// When a lease that is ours at `now` is held next, where that is to be done every so often: then at the latest.
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
