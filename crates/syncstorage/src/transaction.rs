//! Running something in a FoundationDB transaction, again where FoundationDB says so.

mod ranges;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flatbed_clock::Clock;
use foundationdb::options::{ConflictRangeType, TransactionOption};
use foundationdb::{FdbError, FdbResult};
use futures_util::future::try_join_all;
use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::keys::KeyRange;
use crate::metrics::Metrics;
pub(crate) use crate::transaction::ranges::Page;

/// How long an operation is tried again before its last error is given to the client.
pub(crate) const RETRY_MAX: Duration = Duration::from_secs(30);

/// An attempt's reads take no longer: FoundationDB's client waits for ever for a cluster that does not answer.
const ATTEMPT_MAX: Duration = Duration::from_secs(10);

/// A commit is waited for no longer. It may still land afterwards, so its result is unknown, and it is not tried again.
const COMMIT_MAX: Duration = Duration::from_secs(30);

/// Pauses behind conflicts grow to this: those who conflict are a few devices of one user, and it is not the cluster that is
/// to be spared, as with FoundationDB's own pauses of up to a second.
const CONFLICT_PAUSE_MAX: Duration = Duration::from_millis(64);

/// Keys that lie near each other and are read as one range.
const NEAR_ROWS: usize = 25;

const NOT_COMMITTED: i32 = 1020;
const TIMED_OUT: i32 = 1031;
const COMMIT_UNKNOWN_RESULT: i32 = 1021;

/// What an attempt knows of those before it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Attempt {
    /// An earlier attempt's commit may have happened.
    pub maybe_committed: bool,
}

/// A transaction of FoundationDB's. Whoever attempts something in it gives its clones back: the runner commits.
#[derive(Clone)]
pub(crate) struct Trx {
    trx: Arc<foundationdb::Transaction>,
    metrics: Arc<Metrics>,
}

impl Trx {
    /// A key's value. Without `is_snapshot` the commit fails if another writes it first.
    pub(crate) fn get(
        &self,
        key: &[u8],
        is_snapshot: bool,
    ) -> impl Future<Output = Result<Option<Bytes>>> + Send + use<> {
        self.metrics.sync_reads.add(1);
        let read = self.trx.get(key, is_snapshot);
        async move { Ok(read.await?.map(|value| Bytes::copy_from_slice(&value))) }
    }

    /// The values of keys, read all at once, as a snapshot.
    pub(crate) async fn get_all(&self, keys: impl IntoIterator<Item = Vec<u8>>) -> Result<Vec<Option<Bytes>>> {
        try_join_all(keys.into_iter().map(|key| self.get(&key, true))).await
    }

    /// The same of keys between which there is little else where they are in order, or in the opposite one, as those of one
    /// batch are: in ranges then, which cost a server less than as many reads. Some of what lies between is read too, at
    /// most as much again.
    pub(crate) async fn get_near(&self, keys: Vec<Vec<u8>>) -> Result<Vec<Option<Bytes>>> {
        let is_up = keys.is_sorted_by(|one, other| one < other);
        if keys.len() < NEAR_ROWS || !(is_up || keys.is_sorted_by(|one, other| one > other)) {
            return self.get_all(keys).await;
        }
        Ok(try_join_all(keys.chunks(NEAR_ROWS).map(|run| self.get_run(run, is_up))).await?.concat())
    }

    /// The values of some of these, by one page of a range, and those behind it one by one.
    async fn get_run(&self, run: &[Vec<u8>], is_up: bool) -> Result<Vec<Option<Bytes>>> {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { return Ok(Vec::new()) };
        let (first, last) = if is_up { (first, last) } else { (last, first) };
        let range = KeyRange { begin: first.clone(), end: [last.as_slice(), &[0]].concat() };
        let page = self.page(&range, 2 * run.len(), false).await?;
        let until = page.rows.last().map_or_else(Vec::new, |(key, _)| key.clone());
        let mut found: HashMap<Vec<u8>, Bytes> = page.rows.into_iter().collect();
        let is_behind = |key: &Vec<u8>| page.rest.is_some() && *key > until;
        let mut behind = self.get_all(run.iter().filter(|key| is_behind(key)).cloned()).await?.into_iter();
        let value = |key| if is_behind(key) { behind.next().flatten() } else { found.remove(key) };
        Ok(run.iter().map(value).collect())
    }

    /// Writes, and another one's read of it conflicts.
    pub(crate) fn set(&self, key: &[u8], value: &[u8]) {
        self.metrics.sync_keys_written.add(1);
        self.trx.set(key, value);
    }

    /// Clears, and another one's read of it conflicts.
    pub(crate) fn clear(&self, key: &[u8]) {
        self.metrics.sync_keys_written.add(1);
        self.trx.clear(key);
    }

    /// Clears a range, and another one's read of anything in it conflicts.
    pub(crate) fn clear_range(&self, range: &KeyRange) {
        self.metrics.sync_keys_written.add(1);
        self.trx.clear_range(&range.begin, &range.end);
    }

    /// Writes what only those write who conflict on another key anyway.
    pub(crate) fn set_quietly(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.be_quiet()?;
        self.metrics.sync_keys_written.add(1);
        self.trx.set(key, value);
        Ok(())
    }

    /// Clears what only those write who conflict on another key anyway.
    pub(crate) fn clear_quietly(&self, key: &[u8]) -> Result<()> {
        self.be_quiet()?;
        self.metrics.sync_keys_written.add(1);
        self.trx.clear(key);
        Ok(())
    }

    /// Clears a range that only those write who conflict on another key anyway.
    pub(crate) fn clear_range_quietly(&self, range: &KeyRange) -> Result<()> {
        self.be_quiet()?;
        self.metrics.sync_keys_written.add(1);
        self.trx.clear_range(&range.begin, &range.end);
        Ok(())
    }

    fn be_quiet(&self) -> Result<()> {
        Ok(self.trx.set_option(TransactionOption::NextWriteNoWriteConflictRange)?)
    }

    /// Another one that has read the key, and commits later, fails; without anything being written.
    pub(crate) fn touch(&self, key: &[u8]) -> Result<()> {
        let mut end = key.to_vec();
        end.push(0);
        Ok(self.trx.add_conflict_range(key, &end, ConflictRangeType::Write)?)
    }

    /// Reads as of a version that an earlier transaction had.
    pub(crate) fn pin(&self, version: i64) {
        self.trx.set_read_version(version);
    }

    /// The version that it reads as of.
    pub(crate) async fn version(&self) -> Result<i64> {
        Ok(self.trx.get_read_version().await?)
    }
}

/// What runs transactions.
#[derive(Clone)]
pub(crate) struct Runner {
    db: Arc<foundationdb::Database>,
    metrics: Arc<Metrics>,
    clock: Clock,
}

impl Runner {
    pub(crate) fn new(db: Arc<foundationdb::Database>, metrics: Arc<Metrics>, clock: Clock) -> Runner {
        Runner { db, metrics, clock }
    }

    /// Attempts something that writes, and commits it. It may be attempted many times: what must stay the same is made before.
    pub(crate) async fn write<T, F>(&self, mut attempt: impl FnMut(Trx, Attempt) -> F + Send) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
        T: Send,
    {
        let (started, mut conflicts) = (self.clock.now(), 0);
        let mut state = Attempt::default();
        let mut trx = Arc::new(self.db.create_trx()?);
        loop {
            let handle = Trx { trx: trx.clone(), metrics: self.metrics.clone() };
            let done = self.bounded(Box::pin(attempt(handle, state))).await;
            let owned = Arc::try_unwrap(trx).map_err(|_| Error::Corrupt("a transaction is held"))?;
            let (error, next) = match done {
                Ok(output) => {
                    let Ok(committed) = self.clock.timeout(COMMIT_MAX, owned.commit()).await else {
                        let error = FdbError::from_code(COMMIT_UNKNOWN_RESULT);
                        self.metrics.sync_retries.count(error.code());
                        return Err(Error::Storage(error));
                    };
                    match committed {
                        Ok(_) => {
                            self.metrics.sync_commits.add(1);
                            return Ok(output);
                        }
                        Err(failed) => {
                            let error = FdbError::from_code(failed.code());
                            state.maybe_committed |= error.is_maybe_committed();
                            if error.code() == NOT_COMMITTED {
                                conflicts += 1;
                                pause(conflict_pause(conflicts)).await;
                                (error, self.db.create_trx())
                            } else {
                                (error, failed.on_error().await)
                            }
                        }
                    }
                }
                Err(Error::Storage(error)) => (error, owned.on_error(error).await),
                Err(other) => return Err(other),
            };
            trx = Arc::new(self.again(error, next, started, state)?);
        }
    }

    /// Attempts something that only reads.
    pub(crate) async fn read<T, F>(&self, mut attempt: impl FnMut(Trx) -> F + Send) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
        T: Send,
    {
        let started = self.clock.now();
        let mut trx = Arc::new(self.db.create_trx()?);
        loop {
            let handle = Trx { trx: trx.clone(), metrics: self.metrics.clone() };
            let done = self.bounded(Box::pin(attempt(handle))).await;
            let Err(Error::Storage(error)) = done else { return done };
            let owned = Arc::try_unwrap(trx).map_err(|_| Error::Corrupt("a transaction is held"))?;
            let next = owned.on_error(error).await;
            trx = Arc::new(self.again(error, next, started, Attempt::default())?);
        }
    }

    /// Attempts something that only reads, once.
    pub(crate) async fn read_once<T, F>(&self, attempt: impl FnOnce(Trx) -> F + Send) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
        T: Send,
    {
        let trx = Arc::new(self.db.create_trx()?);
        self.bounded(Box::pin(attempt(Trx { trx, metrics: self.metrics.clone() }))).await
    }

    /// The transaction for another attempt, or the error to end with.
    fn again(
        &self,
        error: FdbError,
        next: FdbResult<foundationdb::Transaction>,
        started: Instant,
        state: Attempt,
    ) -> Result<foundationdb::Transaction> {
        self.metrics.sync_retries.count(error.code());
        let unknown = || Error::Storage(FdbError::from_code(COMMIT_UNKNOWN_RESULT));
        match next {
            Ok(trx) if self.clock.since(started) < RETRY_MAX => Ok(trx),
            // Whatever this attempt said, an earlier one may have been committed.
            _ if state.maybe_committed => Err(unknown()),
            Ok(_) => Err(Error::Storage(error)),
            Err(error) => Err(Error::Storage(error)),
        }
    }

    /// The future's result, or after [`ATTEMPT_MAX`] FoundationDB's error for that.
    async fn bounded<T>(&self, attempt: impl Future<Output = Result<T>> + Send) -> Result<T> {
        match self.clock.timeout(ATTEMPT_MAX, attempt).await {
            Ok(done) => done,
            Err(_) => Err(Error::Storage(FdbError::from_code(TIMED_OUT))),
        }
    }
}

/// Pauses before another look at what other processes change. Such a pause passes in real time, as those of FoundationDB's
/// client do; how often there is one is limited by the clock of the process.
pub(crate) async fn pause(time: Duration) {
    Clock::system().sleep(time).await;
}

/// By lot, up to twice as long with each conflict.
fn conflict_pause(conflicts: u32) -> Duration {
    let most = Duration::from_millis(1 << conflicts.min(6)).min(CONFLICT_PAUSE_MAX);
    let lot = RandomState::new().hash_one(0).to_le_bytes()[0];
    most.mul_f64(f64::from(lot) / 255.0)
}
