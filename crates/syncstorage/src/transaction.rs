//! Transactions of Firefox Sync's storage: the kit's, with the store's errors, counters and reads.

mod ranges;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flatbed_clock::Clock;
pub(crate) use flatbed_kit::Attempt;
use flatbed_kit::{Operation, Quiet, RetryPolicy, TransactionContext, TransactionCounters};
use foundationdb::Database;
use foundationdb::options::ConflictRangeType;
use futures_util::future::try_join_all;

use crate::error::{Error, Result};
use crate::keys::KeyRange;
pub(crate) use crate::transaction::ranges::Page;

/// The longest pause after a conflict. Conflicts arise only between the few devices of one user, so FoundationDB's own
/// pauses of up to a second, which spare the cluster, are not needed.
const CONFLICT_PAUSE_MAX: Duration = Duration::from_millis(64);

/// The number of adjacent keys that are read as one range.
const NEAR_ROWS: usize = 25;

/// The counters, clock and retry policy of a store's transactions.
#[derive(Debug)]
pub(crate) struct Context {
    counters: TransactionCounters,
    clock: Clock,
    policy: RetryPolicy,
}

impl TransactionContext for Context {
    type Error = Error;

    fn counters(&self) -> &TransactionCounters {
        &self.counters
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn policy(&self) -> &RetryPolicy {
        &self.policy
    }
}

/// A handle of a transaction. An attempt drops its clones before it ends: the runner commits the transaction.
#[derive(Clone)]
pub(crate) struct Trx(Arc<flatbed_kit::Transaction<Context>>);

impl Trx {
    pub(crate) fn kit(&self) -> &flatbed_kit::Transaction<Context> {
        &self.0
    }

    /// Reads a key's value. Without `is_snapshot` the commit fails if another transaction writes it first.
    pub(crate) fn get(
        &self,
        key: &[u8],
        is_snapshot: bool,
    ) -> impl Future<Output = Result<Option<Bytes>>> + Send + use<> {
        let read = self.0.get(key, is_snapshot);
        async move { Ok(read.await?.map(|value| Bytes::copy_from_slice(&value))) }
    }

    /// Reads the values of keys in parallel, as a snapshot.
    pub(crate) async fn get_all(&self, keys: impl IntoIterator<Item = Vec<u8>>) -> Result<Vec<Option<Bytes>>> {
        try_join_all(keys.into_iter().map(|key| self.get(&key, true))).await
    }

    /// Reads as [`Trx::get_all`] does, for ascending or descending keys with little between them, such as those of one
    /// batch. They are read in ranges, which cost a server less than single reads. Keys between them are read too, at
    /// most as many again.
    pub(crate) async fn get_near(&self, keys: Vec<Vec<u8>>) -> Result<Vec<Option<Bytes>>> {
        let is_up = keys.is_sorted_by(|one, other| one < other);
        if keys.len() < NEAR_ROWS || !(is_up || keys.is_sorted_by(|one, other| one > other)) {
            return self.get_all(keys).await;
        }
        Ok(try_join_all(keys.chunks(NEAR_ROWS).map(|run| self.get_run(run, is_up))).await?.concat())
    }

    /// Reads the values of some of these by one page of a range, and those behind the page one by one.
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

    /// Sets a key. A concurrent reader of it conflicts.
    pub(crate) fn set(&self, key: &[u8], value: &[u8]) {
        self.0.set(key, value);
    }

    /// Clears a key. A concurrent reader of it conflicts.
    pub(crate) fn clear(&self, key: &[u8]) {
        self.0.clear(key);
    }

    /// Clears a range. A concurrent reader of a key in it conflicts.
    pub(crate) fn clear_range(&self, range: &KeyRange) {
        self.0.clear_range(&range.begin, &range.end);
    }

    /// Sets a key without a write conflict range. Its writers must conflict on another key.
    pub(crate) fn set_quietly(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Quiet(self.kit()).set(key, value)
    }

    /// Clears a key without a write conflict range. Its writers must conflict on another key.
    pub(crate) fn clear_quietly(&self, key: &[u8]) -> Result<()> {
        Quiet(self.kit()).clear(key)
    }

    /// Clears a range without a write conflict range. Its writers must conflict on another key.
    pub(crate) fn clear_range_quietly(&self, range: &KeyRange) -> Result<()> {
        Quiet(self.kit()).clear_range(range)
    }

    /// Adds a write conflict range without writing: a transaction that has read the key and commits later aborts.
    pub(crate) fn touch(&self, key: &[u8]) -> Result<()> {
        let mut end = key.to_vec();
        end.push(0);
        Ok(self.0.add_conflict_range(key, &end, ConflictRangeType::Write)?)
    }

    /// Reads at the read version of an earlier transaction.
    pub(crate) fn pin(&self, version: i64) {
        self.0.set_read_version(version);
    }

    pub(crate) async fn version(&self) -> Result<i64> {
        Ok(self.0.get_read_version().await?)
    }
}

/// An operation made of a closure.
struct Attempts<A>(A);

impl<A, T, F> Operation<Context> for Attempts<A>
where
    A: FnMut(Trx, Attempt) -> F + Send,
    F: Future<Output = Result<T>> + Send,
    T: Send,
{
    type Output = T;

    fn attempt(
        &mut self,
        trx: &Arc<flatbed_kit::Transaction<Context>>,
        attempt: Attempt,
    ) -> impl Future<Output = Result<T>> + Send {
        Box::pin((self.0)(Trx(Arc::clone(trx)), attempt))
    }
}

/// Runs transactions.
#[derive(Clone)]
pub(crate) struct Runner {
    db: Arc<Database>,
    context: Arc<Context>,
}

impl Runner {
    pub(crate) fn new(db: Arc<Database>, clock: Clock) -> Runner {
        let policy = RetryPolicy { conflict_pause_max: Some(CONFLICT_PAUSE_MAX), ..RetryPolicy::default() };
        Runner { db, context: Arc::new(Context { counters: TransactionCounters::default(), clock, policy }) }
    }

    pub(crate) fn counters(&self) -> &TransactionCounters {
        self.context.counters()
    }

    /// Runs an attempt that writes, and commits it. It may run many times: values that must stay the same are made
    /// before.
    pub(crate) async fn write<T, F>(&self, attempt: impl FnMut(Trx, Attempt) -> F + Send) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
        T: Send,
    {
        flatbed_kit::write(&self.db, &self.context, &mut Attempts(attempt)).await
    }

    /// Runs an attempt that only reads.
    pub(crate) async fn read<T, F>(&self, mut attempt: impl FnMut(Trx) -> F + Send) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
        T: Send,
    {
        flatbed_kit::read(&self.db, &self.context, &mut Attempts(move |trx: Trx, _: Attempt| attempt(trx))).await
    }

    /// Runs an attempt that only reads, once.
    pub(crate) async fn read_once<T, F>(&self, attempt: impl FnOnce(Trx) -> F + Send) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
        T: Send,
    {
        let trx = Trx(Arc::new(flatbed_kit::Transaction::begin(&self.db, &self.context)?));
        self.context.policy().bounded(Box::pin(attempt(trx))).await
    }
}

/// Pauses before another check of a state that other processes change. The pause passes in real time, as those of
/// FoundationDB's client do; the process's clock limits how many there are.
pub(crate) async fn pause(time: Duration) {
    Clock::system().sleep(time).await;
}
