//! The operations of the store.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use flatbed_clock::Clock;

use crate::error::{Error, Result};
use crate::keys::RootKeys;
use crate::limits::Limits;
use crate::list::List;
use crate::maintenance::Folds;
use crate::metrics::{Metrics, transaction_families};
use crate::model::{Change, DeleteResult, GetResult, Info, ListQuery, Precondition, Quota, StageResult, WriteResult};
use crate::names::{BatchId, CollectionName, RecordId, Uid};
use crate::once::drawn;
use crate::read::Size;
use crate::timestamp::Timestamp;
use crate::transaction::{Runner, pause};
use crate::values::FORMAT;
use crate::write::ConditionTarget;

/// The time for which a write waits for a held batch, and the pause between two checks.
const WAIT_MAX: Duration = Duration::from_secs(15);
const WAIT_STEP: Duration = Duration::from_millis(25);

/// The options of a store.
#[derive(Debug, Clone)]
pub struct Options {
    /// The prefix of all keys: the setting `root`.
    pub root: Vec<u8>,
    /// The limits of clients' requests.
    pub limits: Limits,
    /// The clock of the process.
    pub clock: Clock,
}

impl Default for Options {
    fn default() -> Self {
        Options { root: b"fb".to_vec(), limits: Limits::default(), clock: Clock::system() }
    }
}

/// Firefox Sync's storage under one root. Cheap to clone.
///
/// Each operation documents the object of its condition. Any operation may fail with [`Storage`](Error::Storage),
/// [`Corrupt`](Error::Corrupt) and [`Format`](Error::Format); a write also with [`Busy`](Error::Busy) and
/// [`Unknown`](Error::Unknown); one with a condition also with [`NotModified`](Error::NotModified) and
/// [`Modified`](Error::Modified).
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Arc<Inner>,
}

/// The state that the clones of a store share.
pub(crate) struct Inner {
    pub(crate) runner: Runner,
    pub(crate) keys: RootKeys,
    pub(crate) limits: Limits,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    pub(crate) folds: Folds,
    /// The minute of the last warning about a wrong clock.
    pub(crate) warned_in_minute: AtomicI64,
}

impl Inner {
    /// Returns the time by this process's clock.
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::now(&self.clock)
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the store. The first open writes the format.
    ///
    /// # Errors
    /// [`Error::Format`] if a newer program has changed the format.
    pub async fn open(db: Arc<foundationdb::Database>, options: Options) -> Result<Store> {
        let Options { root, limits, clock } = options;
        let metrics = Metrics::default();
        let runner = Runner::new(db, clock.clone());
        let (keys, limits) = (RootKeys::new(&root), limits.bounded());
        let key = &keys.format();
        runner
            .write(move |trx, _| async move {
                match trx.get(key, false).await?.as_deref() {
                    None => trx.set(key, &[FORMAT]),
                    Some([FORMAT]) => {}
                    Some(other) => return Err(Error::Format(other.first().copied().unwrap_or_default())),
                }
                Ok(())
            })
            .await?;
        let (folds, warned_in_minute) = Default::default();
        Ok(Store { inner: Arc::new(Inner { runner, keys, limits, clock, metrics, folds, warned_in_minute }) })
    }

    /// Returns the limits of clients' requests.
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// Returns the time by this process's clock. A user's own time may be ahead: each answer has it as `now`.
    pub fn now(&self) -> Timestamp {
        self.inner.now()
    }

    /// Returns the store's metrics.
    pub fn metrics(&self) -> Vec<flatbed_metrics::Family> {
        let mut families = transaction_families(self.inner.runner.counters());
        families.extend(self.inner.metrics.families());
        families
    }

    /// Checks that FoundationDB answers.
    pub async fn ping(&self) -> Result<()> {
        let key = &self.inner.keys.format();
        self.inner.runner.read(move |trx| async move { trx.get(key, true).await.map(drop) }).await
    }

    /// Answers `GET info/collections`: the time of each collection. The condition is on the store.
    pub async fn info_collections(&self, uid: Uid, condition: Precondition) -> Result<Info<Timestamp>> {
        self.inner.times_of(uid, condition).await
    }

    /// Answers `GET info/collection_counts`: the number of records of each collection. Empty ones are left out. The
    /// condition is on the store.
    pub async fn collection_counts(&self, uid: Uid, condition: Precondition) -> Result<Info<u64>> {
        Ok(each(self.inner.sizes_of(uid, condition).await?, |size| size.count))
    }

    /// Answers `GET info/collection_usage`: the bytes of the payloads of each collection. Empty ones are left out. The
    /// condition is on the store.
    pub async fn collection_usage(&self, uid: Uid, condition: Precondition) -> Result<Info<u64>> {
        Ok(each(self.inner.sizes_of(uid, condition).await?, |size| size.bytes))
    }

    /// Answers `GET info/quota`. The condition is on the store.
    pub async fn quota(&self, uid: Uid, condition: Precondition) -> Result<Quota> {
        self.inner.quota_of(uid, condition).await
    }

    /// Answers `GET storage/{collection}`. The condition is on the collection.
    ///
    /// # Errors
    /// [`OutOfBounds`](Error::OutOfBounds) for more ids than [`ListQuery::IDS_MAX`], [`BadOffset`](Error::BadOffset).
    pub async fn list(
        &self,
        uid: Uid,
        collection: &CollectionName,
        query: &ListQuery,
        condition: Precondition,
    ) -> Result<List> {
        self.inner.list(uid, collection, query, condition).await
    }

    /// Answers `GET storage/{collection}/{id}`. The condition is on the record.
    ///
    /// # Errors
    /// [`NotFound`](Error::NotFound).
    pub async fn get(
        &self,
        uid: Uid,
        collection: &CollectionName,
        id: &RecordId,
        condition: Precondition,
    ) -> Result<GetResult> {
        let got = self.inner.get_one(uid, collection, id, condition, u64::MAX).await?;
        got.ok_or(Error::Corrupt("a payload's length"))
    }

    /// Answers as [`Store::get`]. `None`: the payload exceeds the limit in bytes, and no part of it is read.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub async fn get_if_small(
        &self,
        uid: Uid,
        collection: &CollectionName,
        id: &RecordId,
        condition: Precondition,
        bytes_max: usize,
    ) -> Result<Option<GetResult>> {
        self.inner.get_one(uid, collection, id, condition, bytes_max as u64).await
    }

    /// Executes `PUT storage/{collection}/{id}`. The condition is on the record.
    ///
    /// # Errors
    /// [`OutOfBounds`](Error::OutOfBounds), [`OverQuota`](Error::OverQuota), [`TooMany`](Error::TooMany) collections or
    /// open batches.
    pub async fn put(
        &self,
        uid: Uid,
        collection: &CollectionName,
        change: Change,
        condition: Precondition,
    ) -> Result<WriteResult> {
        let change = &change;
        self.patiently(move || async move {
            self.inner.write(uid, collection, vec![change.clone()], condition, ConditionTarget::Record).await
        })
        .await
    }

    /// Executes `POST storage/{collection}`: all changes in one transaction, with one time. The condition is on the
    /// collection. Ids must differ.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub async fn post(
        &self,
        uid: Uid,
        collection: &CollectionName,
        changes: Vec<Change>,
        condition: Precondition,
    ) -> Result<WriteResult> {
        let changes = &changes;
        self.patiently(move || async move {
            self.inner.write(uid, collection, changes.clone(), condition, ConditionTarget::Collection).await
        })
        .await
    }

    /// Executes `POST storage/{collection}?batch=true`: begins a batch with these changes. The condition is on the
    /// collection.
    ///
    /// # Errors
    /// As [`Store::append_batch`], and [`TooMany`](Error::TooMany) open batches.
    pub async fn begin_batch(
        &self,
        uid: Uid,
        collection: &CollectionName,
        changes: Vec<Change>,
        condition: Precondition,
    ) -> Result<StageResult> {
        let batch = BatchId(drawn()?);
        let staged = self.inner.stage(uid, collection, batch, true, changes, condition).await?;
        self.inner.metrics.sync_batches_begun.add(1);
        Ok(staged)
    }

    /// Executes `POST storage/{collection}?batch={batch}`: adds changes to the batch. The condition is on the
    /// collection.
    ///
    /// # Errors
    /// [`BatchNotFound`](Error::BatchNotFound), [`BatchTooLarge`](Error::BatchTooLarge),
    /// [`OutOfBounds`](Error::OutOfBounds); [`OverQuota`](Error::OverQuota) if all open batches together would exceed
    /// [`Limits::staged_bytes_max`].
    pub async fn append_batch(
        &self,
        uid: Uid,
        collection: &CollectionName,
        batch: BatchId,
        changes: Vec<Change>,
        condition: Precondition,
    ) -> Result<StageResult> {
        self.inner.stage(uid, collection, batch, false, changes, condition).await
    }

    /// Executes `POST storage/{collection}?batch={batch}&commit=true`: adds the last changes and makes the batch
    /// visible at once, with one time. The condition is on the collection.
    ///
    /// # Errors
    /// As [`Store::append_batch`] and [`Store::put`].
    pub async fn commit_batch(
        &self,
        uid: Uid,
        collection: &CollectionName,
        batch: BatchId,
        changes: Vec<Change>,
        condition: Precondition,
    ) -> Result<WriteResult> {
        let changes = &changes;
        self.patiently(
            move || async move { self.inner.commit(uid, collection, batch, changes.clone(), condition).await },
        )
        .await
    }

    /// Executes `DELETE storage/{collection}/{id}`. The condition is on the record.
    ///
    /// # Errors
    /// [`NotFound`](Error::NotFound).
    pub async fn delete_record(
        &self,
        uid: Uid,
        collection: &CollectionName,
        id: &RecordId,
        condition: Precondition,
    ) -> Result<DeleteResult> {
        self.patiently(move || async move { self.inner.delete_one(uid, collection, id, condition).await }).await
    }

    /// Executes `DELETE storage/{collection}?ids=...`: at most [`ListQuery::IDS_MAX`] ids, which need not exist. The
    /// collection exists afterwards. The condition is on the collection.
    ///
    /// # Errors
    /// [`OutOfBounds`](Error::OutOfBounds), [`TooMany`](Error::TooMany) collections.
    pub async fn delete_records(
        &self,
        uid: Uid,
        collection: &CollectionName,
        ids: &[RecordId],
        condition: Precondition,
    ) -> Result<WriteResult> {
        self.patiently(move || async move { self.inner.delete_ids(uid, collection, ids, condition).await }).await
    }

    /// Executes `DELETE storage/{collection}`. Open batches in it stay. The condition is on the collection.
    pub async fn delete_collection(
        &self,
        uid: Uid,
        collection: &CollectionName,
        condition: Precondition,
    ) -> Result<DeleteResult> {
        self.patiently(move || async move { self.inner.delete_whole(uid, collection, condition).await }).await
    }

    /// Executes `DELETE storage`, also of the user's root: removes everything, including open batches. Later times
    /// still follow the earlier ones. The condition is on the store.
    pub async fn delete_all(&self, uid: Uid, condition: Precondition) -> Result<DeleteResult> {
        self.inner.delete_everything(uid, condition).await
    }

    /// Schedules the removal of all data of a user, including the clock, at a time. For users that were replaced.
    pub async fn purge_user_at(&self, uid: Uid, at: Timestamp) -> Result<()> {
        self.inner.purge_at(uid, at).await
    }

    /// Retries while writers must wait for a batch that is being committed.
    async fn patiently<T, F: Future<Output = Result<T>>>(&self, attempt: impl Fn() -> F) -> Result<T> {
        let clock = &self.inner.clock;
        let started = clock.now();
        loop {
            match Box::pin(attempt()).await {
                Err(Error::Busy) if clock.since(started) < WAIT_MAX => pause(WAIT_STEP).await,
                done => return done,
            }
        }
    }
}

fn each(info: Info<Size>, of: impl Fn(Size) -> u64) -> Info<u64> {
    let Info { modified, now, collections } = info;
    Info { modified, now, collections: collections.into_iter().map(|(name, size)| (name, of(size))).collect() }
}
