//! The storage of leases: a database's leases lie in the database, the leases of work for all databases under the root.
//! The crate `jobs` defines leases.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use flatbed_databases::document::tree;
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_jobs::{
    HOLDS_BYTES_MAX, HOLDS_MAX, LEASE_STATE_BYTES_MAX, Lease, LeaseError, LeaseRenewal, Leases, Owner, TakenLease,
};
use flatbed_kit::{HoldLease, Release, TakeLease};
use flatbed_store::error::{Error, Refusal, Result};
use flatbed_store::keys::KeyRange;
use flatbed_store::leases::decode;
use flatbed_store::once::Once;
use flatbed_store::proto;
use flatbed_store::root::epoch_for_write;
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use futures_util::future::{BoxFuture, try_join_all};
use prost::Message;

use crate::handle::{Database, Reader};

const PAGE_LEASES_MAX: usize = 200;

impl Leases for Database {
    async fn take(
        &self,
        id: &str,
        owner: &Owner,
        stale: Option<&Lease>,
    ) -> std::result::Result<TakenLease, LeaseError> {
        self.take_lease(id, owner, stale).await.map_err(not_asked)
    }

    async fn hold(
        &self,
        id: &str,
        owner: &Owner,
        state: &[u8],
        release: bool,
    ) -> std::result::Result<bool, LeaseError> {
        self.hold_lease(id, owner, state, release).await.map_err(not_asked)
    }
}

/// The leases of work that the processes of a root share. A released lease is removed, so work that no process does has
/// no key.
pub(crate) struct RootLeases(pub Arc<Inner>);

impl Leases for RootLeases {
    async fn take(
        &self,
        id: &str,
        owner: &Owner,
        stale: Option<&Lease>,
    ) -> std::result::Result<TakenLease, LeaseError> {
        take(&self.0, LeaseScope::Root, id, owner, stale).await.map_err(not_asked)
    }

    async fn hold(
        &self,
        id: &str,
        owner: &Owner,
        state: &[u8],
        release: bool,
    ) -> std::result::Result<bool, LeaseError> {
        hold(&self.0, LeaseScope::Root, id, (owner, &|_| true), state, release).await.map_err(not_asked)
    }
}

impl RootLeases {
    #[cfg(test)]
    pub(crate) async fn look(&self, id: &str) -> Result<Option<Lease>> {
        struct Look<'a>(&'a Inner, &'a str);
        impl Operation for Look<'_> {
            type Output = Option<Lease>;
            async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Option<Lease>> {
                let found = trx.get(&self.0.keys.lease(self.1), true).await?;
                found.map(|bytes| decode(&bytes)).transpose()
            }
        }
        transaction::read(&self.0.db, &self.0.metrics, &mut Look(&self.0, id)).await
    }
}

/// Returns whether a lease's stored state may be replaced. It runs in a transaction, once for each attempt.
pub type MayFollow<'a> = &'a (dyn Fn(&[u8]) -> bool + Send + Sync);

/// As [`MayFollow`], for one of several leases: the arguments are the stored state and the new one.
pub type MayFollowOne<'a> = &'a (dyn Fn(&[u8], &[u8]) -> bool + Send + Sync);

/// The object that a lease belongs to. It decides where the lease lies.
#[derive(Clone, Copy)]
enum LeaseScope<'a> {
    /// The database of this name.
    Database(&'a str),
    /// The document of this database whose id is the lease's.
    Document(&'a str),
    Root,
}

impl LeaseScope<'_> {
    /// Returns the key of a lease, in a transaction that writes it. `None`: the object is gone.
    async fn key(self, trx: &Transaction, inner: &Inner, id: &str) -> Result<Option<Vec<u8>>> {
        match self {
            LeaseScope::Database(name) => Ok(Some(inner.resolve_for_write(trx, name).await?.keys.lease(id))),
            LeaseScope::Document(name) => {
                let instance = inner.resolve_for_write(trx, name).await?;
                Ok(is_there(trx, &instance, id).await?.then(|| instance.keys.lease(id)))
            }
            LeaseScope::Root => epoch_for_write(trx, &inner.keys).await.map(|_| Some(inner.keys.lease(id))),
        }
    }
}

/// Takes a lease. `None`: it belongs to a document that does not exist.
async fn try_take(
    inner: &Inner,
    place: LeaseScope<'_>,
    id: &str,
    owner: &Owner,
    stale: Option<&Lease>,
) -> Result<Option<TakenLease>> {
    let mut take = Take { inner, place, id, lease: TakeLease::new(owner, stale)? };
    transaction::write(&inner.db, &inner.metrics, &mut take).await
}

async fn take(
    inner: &Inner,
    place: LeaseScope<'_>,
    id: &str,
    owner: &Owner,
    stale: Option<&Lease>,
) -> Result<TakenLease> {
    try_take(inner, place, id, owner, stale).await?.ok_or(Error::DatabaseNotFound)
}

/// Returns whether the document exists. It then exists until the commit: a transaction that deletes it conflicts.
async fn is_there(trx: &Transaction, instance: &Instance, id: &str) -> Result<bool> {
    Ok(tree::info(trx, &instance.keys.document(id), false).await?.is_some_and(|info| !info.deleted))
}

async fn hold(
    inner: &Inner,
    place: LeaseScope<'_>,
    id: &str,
    (owner, may_follow): (&Owner, MayFollow<'_>),
    state: &[u8],
    release: bool,
) -> Result<bool> {
    if state.len() > LEASE_STATE_BYTES_MAX {
        return Err(Refusal::InvalidSetting(format!("a lease's state is at most {LEASE_STATE_BYTES_MAX} bytes")).into());
    }
    let left = if matches!(place, LeaseScope::Root) { Release::Nothing } else { Release::Record };
    let lease = HoldLease::new(owner, state, release.then_some(left));
    let mut hold = Hold { inner, place, id, may_follow, lease };
    transaction::write(&inner.db, &inner.metrics, &mut hold).await
}

fn not_asked(error: Error) -> LeaseError {
    match error {
        Error::DatabaseNotFound => LeaseError::Gone,
        error => LeaseError::Storage(error.into()),
    }
}

impl Database {
    /// Takes a lease that is free, that is `owner`'s already, or that is unchanged since `stale` was seen, longer ago
    /// than its owner may be silent.
    #[boxed]
    pub async fn take_lease(&self, id: &str, owner: &Owner, stale: Option<&Lease>) -> Result<TakenLease> {
        take(&self.handle.inner, LeaseScope::Database(&self.handle.name), id, owner, stale).await
    }

    /// As [`Database::take_lease`], for the lease of the document with this id. `None`: the document does not exist,
    /// and no lease is created, since none would be removed with the document.
    #[boxed]
    pub async fn take_document_lease(
        &self,
        id: &str,
        owner: &Owner,
        stale: Option<&Lease>,
    ) -> Result<Option<TakenLease>> {
        try_take(&self.handle.inner, LeaseScope::Document(&self.handle.name), id, owner, stale).await
    }

    /// Renews `owner`'s lease with a new state of at most [`LEASE_STATE_BYTES_MAX`] bytes. False: the lease is no
    /// longer the owner's. With `release` the lease becomes free and keeps its state.
    ///
    /// # Errors
    /// [`Refusal::InvalidSetting`] for a longer state.
    #[boxed]
    pub async fn hold_lease(&self, id: &str, owner: &Owner, state: &[u8], release: bool) -> Result<bool> {
        self.hold_lease_after(id, owner, state, release, &|_| true).await
    }

    /// As [`Database::hold_lease`], if `may_follow` allows the new state to replace the stored one. A request that a
    /// network delayed is refused as if the lease were another owner's.
    ///
    /// # Errors
    /// [`Refusal::InvalidSetting`] for a longer state.
    pub fn hold_lease_after<'a>(
        &'a self,
        id: &'a str,
        owner: &'a Owner,
        state: &'a [u8],
        release: bool,
        may_follow: MayFollow<'a>,
    ) -> BoxFuture<'a, Result<bool>> {
        Box::pin(hold(
            &self.handle.inner,
            LeaseScope::Database(&self.handle.name),
            id,
            (owner, may_follow),
            state,
            release,
        ))
    }

    /// As [`Database::hold_lease_after`], for several distinct leases of one owner in one transaction. Returns for
    /// each, in order, whether it is still the owner's. An unreadable lease counts as lost and does not affect the
    /// others.
    ///
    /// # Errors
    /// [`Refusal::InvalidSetting`] for more than [`HOLDS_MAX`], for states that are longer than [`HOLDS_BYTES_MAX`]
    /// together, and for one that is longer than [`LEASE_STATE_BYTES_MAX`].
    pub fn hold_leases_after<'a>(
        &'a self,
        owner: &'a Owner,
        holds: &'a [LeaseRenewal],
        may_follow: MayFollowOne<'a>,
    ) -> BoxFuture<'a, Result<Vec<bool>>> {
        Box::pin(self.hold_all(owner, holds, may_follow))
    }

    async fn hold_all(&self, owner: &Owner, holds: &[LeaseRenewal], may_follow: MayFollowOne<'_>) -> Result<Vec<bool>> {
        let bytes: usize = holds.iter().map(LeaseRenewal::bytes).sum();
        let is_long = holds.iter().any(|hold| hold.state.len() > LEASE_STATE_BYTES_MAX);
        if is_long || holds.len() > HOLDS_MAX || holds.len() > 1 && bytes > HOLDS_BYTES_MAX {
            let reason = format!(
                "at most {HOLDS_MAX} leases are held at once, with states of {LEASE_STATE_BYTES_MAX} bytes and {HOLDS_BYTES_MAX} together"
            );
            return Err(Refusal::InvalidSetting(reason).into());
        }
        let mut hold = HoldSome { inner: &self.handle.inner, name: &self.handle.name, owner, holds, may_follow };
        transaction::write(&self.handle.inner.db, &self.handle.inner.metrics, &mut hold).await
    }

    /// Removes a lease with its state, even another process's. The owner notices at its next renewal.
    #[boxed]
    pub async fn drop_lease(&self, id: &str) -> Result<()> {
        let mut drop = Remove::new(&self.handle.inner, &self.handle.name, id)?;
        transaction::write(&self.handle.inner.db, &self.handle.inner.metrics, &mut drop).await.map(|_| ())
    }

    /// As [`Database::drop_lease`], if the document with this id is gone. False: the document exists, perhaps again,
    /// and its lease stays.
    #[boxed]
    pub async fn drop_document_lease(&self, id: &str) -> Result<bool> {
        let mut drop = Remove { is_document: true, ..Remove::new(&self.handle.inner, &self.handle.name, id)? };
        transaction::write(&self.handle.inner.db, &self.handle.inner.metrics, &mut drop).await
    }
}

impl Reader {
    /// Returns a page of the leases behind `after`, in the order of their ids. An empty page is the end.
    #[boxed]
    pub async fn leases(&self, after: Option<&str>) -> Result<Vec<(String, Lease)>> {
        self.handle.read(&mut List { inner: &self.handle.inner, name: &self.handle.name, after }).await
    }
}

struct Take<'a> {
    inner: &'a Inner,
    place: LeaseScope<'a>,
    id: &'a str,
    lease: TakeLease<'a>,
}

impl Operation for Take<'_> {
    type Output = Option<TakenLease>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Option<TakenLease>> {
        let Some(key) = self.place.key(trx, self.inner, self.id).await? else { return Ok(None) };
        Ok(Some(self.lease.attempt(trx, &key).await?))
    }
}

struct Hold<'a> {
    inner: &'a Inner,
    place: LeaseScope<'a>,
    id: &'a str,
    may_follow: MayFollow<'a>,
    lease: HoldLease<'a>,
}

impl Operation for Hold<'_> {
    type Output = bool;

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<bool> {
        let Some(key) = self.place.key(trx, self.inner, self.id).await? else { return Ok(false) };
        self.lease.attempt(trx, attempt, &key, self.may_follow).await
    }
}

struct HoldSome<'a> {
    inner: &'a Inner,
    name: &'a str,
    owner: &'a Owner,
    holds: &'a [LeaseRenewal],
    may_follow: MayFollowOne<'a>,
}

impl Operation for HoldSome<'_> {
    type Output = Vec<bool>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Vec<bool>> {
        let instance = self.inner.resolve_for_write(trx, self.name).await?;
        let keys: Vec<Vec<u8>> = self.holds.iter().map(|hold| instance.keys.lease(&hold.id)).collect();
        let found = try_join_all(keys.iter().map(|key| trx.get(key, false))).await?;
        let each = self.holds.iter().zip(&keys).zip(found).map(|((hold, key), found)| {
            let found = found.and_then(|bytes| decode(&bytes).ok()).unwrap_or_default();
            if found.owner != self.owner || !(self.may_follow)(&found.state, &hold.state) {
                return false;
            }
            let (owner, beats) = (self.owner.to_vec(), found.beats.wrapping_add(1));
            trx.set(key, &proto::Lease { owner, beats, state: hold.state.clone() }.encode_to_vec());
            true
        });
        Ok(each.collect())
    }
}

pub(crate) struct Remove<'a> {
    inner: &'a Inner,
    name: &'a str,
    id: &'a str,
    /// True if the lease may be removed only when no document has its id.
    is_document: bool,
    once: Once,
}

impl<'a> Remove<'a> {
    pub(crate) fn new(inner: &'a Inner, name: &'a str, id: &'a str) -> Result<Remove<'a>> {
        Ok(Remove { inner, name, id, is_document: false, once: inner.once()? })
    }
}

impl Operation for Remove<'_> {
    /// True if the lease is gone.
    type Output = bool;

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<bool> {
        let instance = self.inner.resolve_for_write(trx, self.name).await?;
        // Another process may have taken it since.
        if self.once.happened(trx, attempt).await?.is_some() {
            return Ok(true);
        }
        if self.is_document && is_there(trx, &instance, self.id).await? {
            return Ok(false);
        }
        self.once.mark(trx);
        trx.clear(&instance.keys.lease(self.id));
        Ok(true)
    }
}

struct List<'a> {
    inner: &'a Inner,
    name: &'a str,
    after: Option<&'a str>,
}

impl Operation for List<'_> {
    type Output = Vec<(String, Lease)>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.inner.resolve(trx, self.name).await?;
        let KeyRange { mut begin, end } = instance.keys.leases();
        if let Some(after) = self.after {
            begin = instance.keys.lease(after);
            begin.push(0);
        }
        let range = KeyRange { begin, end };
        let rows = trx.range(&range, true).page(PAGE_LEASES_MAX).await?;
        rows.iter().map(|row| Ok((instance.keys.lease_id(row.key())?, decode(row.value())?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fenced::database;

    fn edit(parent: Option<crate::RevId>) -> crate::Edit<'static> {
        let (deleted, body) = (parent.is_some(), flatbed_flatten::json::Value::Object(Vec::new()));
        crate::Edit { expiry: None, id: "a".into(), parent, history: None, deleted, attachments: Vec::new(), body }
    }

    /// A lease is taken or removed only if the document is still as read at the commit.
    #[tokio::test]
    async fn a_document_that_goes_or_comes_meanwhile_is_noticed() {
        let (db, _storage) = database().await;
        let (inner, owner, begin) =
            (&db.inner, [1; 16], || Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap());
        let mut remove = Remove { is_document: true, ..Remove::new(inner, &db.name, "a").unwrap() };
        let trx = begin();
        assert!(remove.attempt(&trx, Attempt::default()).await.unwrap());
        let rev = db.update(&edit(None)).await.unwrap().rev;
        assert!(trx.commit().await.is_err(), "the lease of a document that was made again is removed");
        let place = LeaseScope::Document(&db.name);
        let mut take = Take { inner, place, id: "a", lease: TakeLease::new(&owner, None).unwrap() };
        let trx = begin();
        assert!(matches!(take.attempt(&trx, Attempt::default()).await.unwrap(), Some(TakenLease::Ours(_))));
        db.update(&edit(Some(rev))).await.unwrap();
        assert!(trx.commit().await.is_err(), "the lease of a document that is gone is taken");
    }

    #[tokio::test]
    async fn what_nobody_does_for_the_root_has_no_key() {
        let (db, _storage) = database().await;
        let leases = RootLeases(db.inner.clone());
        let (one, two): (Owner, Owner) = ([1; 16], [2; 16]);
        assert!(matches!(leases.take("a", &one, None).await.unwrap(), TakenLease::Ours(_)));
        let TakenLease::Others(seen) = leases.take("a", &two, None).await.unwrap() else { panic!("two have it") };
        // Silent since, so it is taken over. The former owner notices, and releases nothing.
        assert!(matches!(leases.take("a", &two, Some(&seen)).await.unwrap(), TakenLease::Ours(_)));
        assert!(!leases.hold("a", &one, b"", true).await.unwrap());
        assert!(leases.hold("a", &two, b"", true).await.unwrap());
        let range = db.inner.keys.leases();
        let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
        assert!(!trx.range(&range, true).any().await.unwrap());
        // A lease that was taken anew differs from the one seen before.
        assert!(matches!(leases.take("a", &two, None).await.unwrap(), TakenLease::Ours(_)));
        assert!(matches!(leases.take("a", &one, Some(&seen)).await.unwrap(), TakenLease::Others(_)));
    }
}
