//! Lease records of a store: the reads and writes of an attempt to take or hold a lease. The crate `jobs` defines
//! leases.

use std::sync::atomic::{AtomicBool, Ordering};

use flatbed_jobs::{Lease, Owner, TakenLease};

use crate::context::TransactionContext;
use crate::once::{NoRandomness, random_id};
use crate::runner::Attempt;
use crate::transaction::Transaction;

/// The stored form of a store's leases.
pub trait LeaseRecords: TransactionContext {
    /// Encodes a lease.
    fn encode_lease(lease: &Lease) -> Vec<u8>;

    /// Decodes a lease.
    ///
    /// # Errors
    /// The store's, for a record that the store cannot have written.
    fn decode_lease(bytes: &[u8]) -> Result<Lease, Self::Error>;
}

/// An attempt to take a lease: see [`Leases::take`](flatbed_jobs::Leases::take). It is made before the first attempt of
/// its transaction.
#[derive(Debug)]
pub struct TakeLease<'a> {
    owner: &'a Owner,
    stale: Option<&'a Lease>,
    /// The first beat of a new record. It is random, so that a dropped lease differs from the next one of its owner.
    first_beat: u64,
}

impl<'a> TakeLease<'a> {
    /// Takes a lease that is free, that is `owner`'s already, or that is unchanged since `stale`.
    ///
    /// # Errors
    /// [`NoRandomness`].
    pub fn new(owner: &'a Owner, stale: Option<&'a Lease>) -> Result<TakeLease<'a>, NoRandomness> {
        let [a, b, c, d, e, f, g, h, ..] = random_id()?;
        // The highest bit is set, so that the encoding always has the same length.
        let first_beat = u64::from_le_bytes([a, b, c, d, e, f, g, h]) | 1 << 63;
        Ok(TakeLease { owner, stale, first_beat })
    }

    /// Takes the lease at a key.
    ///
    /// # Errors
    /// FoundationDB's, and [`LeaseRecords::decode_lease`]'s.
    pub async fn attempt<C: LeaseRecords>(&self, trx: &Transaction<C>, key: &[u8]) -> Result<TakenLease, C::Error> {
        let found = match trx.get(key, false).await? {
            Some(bytes) => C::decode_lease(&bytes)?,
            None => Lease { beats: self.first_beat, ..Lease::default() },
        };
        // The lease that an earlier attempt of this operation committed counts as free.
        let is_free = !found.is_of_another(self.owner) || self.stale.is_some_and(|stale| stale.is_still(&found));
        if !is_free {
            return Ok(TakenLease::Others(found));
        }
        let (owner, beats) = (self.owner.to_vec(), found.beats.wrapping_add(1));
        trx.set(key, &C::encode_lease(&Lease { owner, beats, state: found.state.clone() }));
        Ok(TakenLease::Ours(found))
    }
}

/// The part of a lease that a release keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// The record, with its state and without an owner.
    Record,
    /// Nothing.
    Nothing,
}

/// An attempt to hold or release a lease: see [`Leases::hold`](flatbed_jobs::Leases::hold).
#[derive(Debug)]
pub struct HoldLease<'a> {
    owner: &'a Owner,
    state: &'a [u8],
    release: Option<Release>,
    /// True if an attempt released the lease and may have committed.
    released: AtomicBool,
}

impl<'a> HoldLease<'a> {
    /// Holds `owner`'s lease with a new state, or releases it. The caller bounds the state's length.
    pub fn new(owner: &'a Owner, state: &'a [u8], release: Option<Release>) -> HoldLease<'a> {
        HoldLease { owner, state, release, released: AtomicBool::new(false) }
    }

    /// Holds the lease at a key, if `may_follow` allows the new state to replace the stored one. Returns false if the
    /// lease is not the owner's or its state may not be replaced.
    ///
    /// # Errors
    /// FoundationDB's, and [`LeaseRecords::decode_lease`]'s.
    pub async fn attempt<C: LeaseRecords>(
        &self,
        trx: &Transaction<C>,
        attempt: Attempt,
        key: &[u8],
        may_follow: impl Fn(&[u8]) -> bool + Send,
    ) -> Result<bool, C::Error> {
        let found = trx.get(key, false).await?;
        let found = found.map(|bytes| C::decode_lease(&bytes)).transpose()?.unwrap_or_default();
        if found.owner != self.owner {
            return Ok(attempt.maybe_committed && self.released.load(Ordering::Relaxed));
        }
        if !may_follow(&found.state) {
            return Ok(false);
        }
        self.released.fetch_or(self.release.is_some(), Ordering::Relaxed);
        if self.release == Some(Release::Nothing) {
            trx.clear(key);
            return Ok(true);
        }
        let owner = if self.release.is_some() { Vec::new() } else { self.owner.to_vec() };
        let held = Lease { owner, beats: found.beats.wrapping_add(1), state: self.state.to_vec() };
        trx.set(key, &C::encode_lease(&held));
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::testing::{TestContext, TestError, Transaction, store};
    use crate::{Corruption, Operation, write};

    const KEY: &[u8] = b"lease";
    const ONE: Owner = [1; 16];
    const TWO: Owner = [2; 16];

    /// Encodes the owner's length, the beats, the owner, the state.
    impl LeaseRecords for TestContext {
        fn encode_lease(lease: &Lease) -> Vec<u8> {
            [&[lease.owner.len() as u8][..], &lease.beats.to_le_bytes(), &lease.owner, &lease.state].concat()
        }

        fn decode_lease(bytes: &[u8]) -> Result<Lease, TestError> {
            let (&len, rest) = bytes.split_first().ok_or(Corruption::Mark)?;
            let (beats, rest) = rest.split_first_chunk::<8>().ok_or(Corruption::Mark)?;
            let (owner, state) = rest.split_at_checked(len.into()).ok_or(Corruption::Mark)?;
            Ok(Lease { owner: owner.to_vec(), beats: u64::from_le_bytes(*beats), state: state.to_vec() })
        }
    }

    struct Take<'a>(Vec<u8>, TakeLease<'a>);

    impl Operation<TestContext> for Take<'_> {
        type Output = TakenLease;

        async fn attempt(&mut self, trx: &Arc<Transaction>, _: Attempt) -> Result<TakenLease, TestError> {
            self.1.attempt(trx, &self.0).await
        }
    }

    struct Hold<'a>(Vec<u8>, HoldLease<'a>);

    impl Operation<TestContext> for Hold<'_> {
        type Output = bool;

        async fn attempt(&mut self, trx: &Arc<Transaction>, attempt: Attempt) -> Result<bool, TestError> {
            self.1.attempt(trx, attempt, &self.0, |state| state != b"final").await
        }
    }

    #[tokio::test]
    async fn a_lease_has_one_owner_until_it_is_silent_or_released() {
        let (storage, context) = store();
        let key = || [&storage.root[..], KEY].concat();
        let take = async |owner: &Owner, stale: Option<&Lease>| {
            let mut take = Take(key(), TakeLease::new(owner, stale).unwrap());
            write(&storage.fdb, &context, &mut take).await.unwrap()
        };
        let hold = async |owner: &Owner, state: &[u8], release: Option<Release>| {
            let mut hold = Hold(key(), HoldLease::new(owner, state, release));
            write(&storage.fdb, &context, &mut hold).await.unwrap()
        };
        assert!(!hold(&ONE, b"", None).await);
        assert!(matches!(take(&ONE, None).await, TakenLease::Ours(_)));
        let TakenLease::Others(seen) = take(&TWO, None).await else { panic!("two have it") };
        assert!(hold(&ONE, b"a", None).await);
        assert!(matches!(take(&TWO, Some(&seen)).await, TakenLease::Others(_)), "it was held since");
        let TakenLease::Others(seen) = take(&TWO, None).await else { panic!("two have it") };
        let TakenLease::Ours(found) = take(&TWO, Some(&seen)).await else { panic!("it is silent") };
        assert_eq!(found.state, b"a");
        assert!(!hold(&ONE, b"b", Some(Release::Record)).await);
        assert!(hold(&TWO, b"final", Some(Release::Record)).await);
        let TakenLease::Ours(found) = take(&ONE, None).await else { panic!("it is free") };
        assert_eq!(found.state, b"final");
        assert!(!hold(&ONE, b"b", None).await, "this state is not replaced");
    }

    /// An attempt detects that an earlier one may have released the lease.
    #[tokio::test]
    async fn a_release_that_may_have_happened_is_known() {
        let (storage, context) = store();
        let key = [&storage.root[..], KEY].concat();
        let (first, later) = (Attempt::default(), Attempt { maybe_committed: true, after_unknown: true });
        for release in [Release::Record, Release::Nothing] {
            let mut take = Take(key.clone(), TakeLease::new(&ONE, None).unwrap());
            write(&storage.fdb, &context, &mut take).await.unwrap();
            let hold = HoldLease::new(&ONE, b"", Some(release));
            let other = HoldLease::new(&ONE, b"", Some(release));
            let trx = Transaction::begin(&storage.fdb, &context).unwrap();
            assert!(hold.attempt(&trx, first, &key, |_| true).await.unwrap());
            trx.commit().await.unwrap();
            let trx = Transaction::begin(&storage.fdb, &context).unwrap();
            assert!(hold.attempt(&trx, later, &key, |_| true).await.unwrap());
            assert!(!other.attempt(&trx, later, &key, |_| true).await.unwrap());
        }
    }
}
