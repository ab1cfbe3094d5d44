//! A transaction of FoundationDB's that counts its calls.

mod ranges;

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use flatbed_clock::Clock;
use foundationdb::future::{FdbKeys, FdbSlice, FdbValues};
use foundationdb::options::{ConflictRangeType, MutationType, TransactionOption};
use foundationdb::{Database, FdbError, FdbResult, KeySelector};
use tokio::time::Instant;

use crate::apart::AttemptCache;
use crate::context::TransactionContext;
use crate::keys::METADATA_VERSION;
pub use crate::transaction::ranges::{BoxedPageRead, PageRead, RangePage, RangeQuery, Rows};
use crate::waits::{OperationCounters, Path};

/// The bytes written to change `\xff/metadataVersion`: the key and the operand of `SetVersionstampedValue`.
const METADATA_VERSION_BYTES: u64 = METADATA_VERSION.len() as u64 + 14;

/// A transaction of FoundationDB's whose reads and writes are counted: for the process in
/// [`TransactionCounters`](crate::TransactionCounters), for the operation that it belongs to in [`crate::waits`]. Its
/// methods are those of [`foundationdb::Transaction`]; a missing one is added here, so that nothing goes uncounted.
/// Ranges are read by [`Transaction::range`].
pub struct Transaction<C: TransactionContext> {
    trx: foundationdb::Transaction,
    tally: Arc<Tally<C>>,
    began: Instant,
}

/// The counts of one transaction. Its reads share it; the last one dropped adds it to the process's counters.
struct Tally<C: TransactionContext> {
    context: Arc<C>,
    reads: AtomicU64,
    range_reads: AtomicU64,
    keys_read: AtomicU64,
    bytes_read: AtomicU64,
    keys_written: AtomicU64,
    bytes_written: AtomicU64,
    /// True if the caller set the read version.
    is_pinned: AtomicBool,
    /// True if the transaction has writes to commit.
    is_written: AtomicBool,
    operation: Option<CountedTransaction>,
    apart: AttemptCache<C::Error>,
    /// The actions of this attempt: see [`Transaction::on_commit`].
    on_commit: Mutex<Vec<CommitAction>>,
}

type CommitAction = Box<dyn FnOnce() + Send>;

/// A transaction's part in a counted operation.
struct CountedTransaction {
    operation: Arc<OperationCounters>,
    /// The critical path to this attempt's read version; `None`: not requested yet.
    read_version: Mutex<Option<Path>>,
}

impl CountedTransaction {
    fn read_version(&self) -> std::sync::MutexGuard<'_, Option<Path>> {
        self.read_version.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the critical path before the next call's answer. `needs_version`: the call requests the read version,
    /// unless an earlier call did.
    fn before(&self, needs_version: bool) -> Path {
        let given = self.operation.given();
        if !needs_version {
            return given;
        }
        let asked = Path { read_versions: given.read_versions + 1, ..given };
        let version = *self.read_version().get_or_insert(asked);
        given.deeper(version)
    }
}

fn add(number: &AtomicU64, by: u64) {
    number.fetch_add(by, Ordering::Relaxed);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CallKind {
    ReadVersion,
    Point,
    Range,
    Size,
}

impl<C: TransactionContext> Tally<C> {
    /// Counts a call and returns the handle that its answer is counted through.
    fn call(self: &Arc<Self>, kind: CallKind) -> Call<C> {
        match kind {
            CallKind::Point => add(&self.reads, 1),
            CallKind::Range => add(&self.range_reads, 1),
            CallKind::ReadVersion | CallKind::Size => {}
        }
        let path = self.operation.as_ref().map(|part| {
            let operation = &part.operation;
            match kind {
                CallKind::Point => add(&operation.point_reads, 1),
                CallKind::Range => add(&operation.range_reads, 1),
                CallKind::Size => add(&operation.size_reads, 1),
                CallKind::ReadVersion => {
                    part.before(true);
                    return part.read_version().unwrap_or_default();
                }
            }
            let before = part.before(kind != CallKind::Size);
            Path { reads: before.reads + 1, ..before }
        });
        Call { tally: Arc::clone(self), path }
    }

    fn write(&self, bytes: u64) {
        add(&self.keys_written, 1);
        add(&self.bytes_written, bytes);
        self.is_written.store(true, Ordering::Relaxed);
        if let Some(part) = &self.operation {
            add(&part.operation.keys_written, 1);
            add(&part.operation.bytes_written, bytes);
        }
    }

    fn take_actions(&self) -> Vec<CommitAction> {
        std::mem::take(&mut *self.on_commit.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Resets the counts for a new attempt of the transaction.
    fn again(&self) {
        self.is_written.store(false, Ordering::Relaxed);
        drop(self.take_actions());
        if let Some(part) = &self.operation {
            add(&part.operation.transactions, 1);
            *part.read_version() = None;
        }
    }
}

impl<C: TransactionContext> Drop for Tally<C> {
    fn drop(&mut self) {
        let counters = self.context.counters();
        let totals = [
            (&mut self.reads, &counters.reads),
            (&mut self.range_reads, &counters.range_reads),
            (&mut self.keys_read, &counters.keys_read),
            (&mut self.bytes_read, &counters.bytes_read),
            (&mut self.keys_written, &counters.keys_written),
            (&mut self.bytes_written, &counters.bytes_written),
        ];
        for (counted, total) in totals {
            let counted = *counted.get_mut();
            if counted > 0 {
                total.add(counted);
            }
        }
    }
}

/// A call whose answer is outstanding.
struct Call<C: TransactionContext> {
    tally: Arc<Tally<C>>,
    /// The critical path to its answer, if the operation is counted.
    path: Option<Path>,
}

impl<C: TransactionContext> Call<C> {
    fn give(&self, keys: u64, bytes: u64) {
        if keys > 0 {
            add(&self.tally.keys_read, keys);
            add(&self.tally.bytes_read, bytes);
        }
        if let (Some(part), Some(path)) = (&self.tally.operation, self.path) {
            add(&part.operation.keys_read, keys);
            add(&part.operation.bytes_read, bytes);
            part.operation.give(path);
        }
    }
}

/// The counted size of an answer.
trait Answer {
    /// Returns the number of keys, and the bytes of keys and values.
    fn size(&self) -> (u64, u64);
}

impl Answer for FdbValues {
    fn size(&self) -> (u64, u64) {
        let bytes = self.iter().map(|row| row.key().len() + row.value().len()).sum::<usize>();
        (self.len() as u64, bytes as u64)
    }
}

impl Answer for FdbSlice {
    fn size(&self) -> (u64, u64) {
        (1, self.len() as u64)
    }
}

impl Answer for Option<FdbSlice> {
    fn size(&self) -> (u64, u64) {
        self.as_ref().map_or((0, 0), Answer::size)
    }
}

impl Answer for FdbKeys {
    fn size(&self) -> (u64, u64) {
        (0, 0)
    }
}

impl Answer for i64 {
    fn size(&self) -> (u64, u64) {
        (0, 0)
    }
}

/// The future of a call's answer. It counts the answer when it completes; a future dropped earlier counts nothing.
struct CountedAnswer<F, C: TransactionContext> {
    answer: F,
    call: Call<C>,
}

impl<T: Answer, F: Future<Output = FdbResult<T>> + Unpin, C: TransactionContext> Future for CountedAnswer<F, C> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.answer).poll(cx));
        let (keys, bytes) = answer.as_ref().map_or((0, 0), Answer::size);
        self.call.give(keys, bytes);
        Poll::Ready(answer)
    }
}

/// A failed commit with its transaction.
pub struct CommitError<C: TransactionContext> {
    failed: foundationdb::TransactionCommitError,
    tally: Arc<Tally<C>>,
}

impl<C: TransactionContext> CommitError<C> {
    /// Returns FoundationDB's error code.
    pub fn code(&self) -> i32 {
        self.failed.code()
    }

    /// Returns the transaction for another attempt, after FoundationDB's pause, if FoundationDB allows a retry.
    pub async fn on_error(self) -> FdbResult<Transaction<C>> {
        let trx = self.failed.on_error().await?;
        Ok(Transaction::again(trx, self.tally))
    }

    /// Returns the transaction for an immediate attempt, without FoundationDB's pause.
    pub fn restart(self) -> Transaction<C> {
        Transaction::again(self.failed.reset(), self.tally)
    }
}

impl<C: TransactionContext> std::fmt::Debug for CommitError<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CommitError").field(&self.code()).finish()
    }
}

impl<C: TransactionContext> Transaction<C> {
    /// Begins a transaction. It counts with the operation of the running task, if that is counted.
    pub fn begin(db: &Database, context: &Arc<C>) -> FdbResult<Transaction<C>> {
        let began = context.clock().now();
        let trx = db.create_trx()?;
        let operation = OperationCounters::current().map(|operation| {
            add(&operation.transactions, 1);
            CountedTransaction { operation, read_version: Mutex::new(None) }
        });
        let tally = Tally {
            context: Arc::clone(context),
            reads: AtomicU64::new(0),
            range_reads: AtomicU64::new(0),
            keys_read: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            keys_written: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
            is_pinned: AtomicBool::new(false),
            is_written: AtomicBool::new(false),
            operation,
            apart: AttemptCache::default(),
            on_commit: Mutex::default(),
        };
        Ok(Transaction { trx, tally: Arc::new(tally), began })
    }

    /// Returns the values that are made between the attempts.
    pub fn apart(&self) -> &AttemptCache<C::Error> {
        &self.tally.apart
    }

    /// Returns the store's clock.
    pub fn clock(&self) -> &Clock {
        self.tally.context.clock()
    }

    fn count_answer<F>(&self, kind: CallKind, answer: F) -> CountedAnswer<F, C> {
        CountedAnswer { answer, call: self.tally.call(kind) }
    }

    /// Reads a key's value. `\xff/metadataVersion` comes with the read version and does not count as a read.
    pub fn get(
        &self,
        key: &[u8],
        snapshot: bool,
    ) -> impl Future<Output = FdbResult<Option<FdbSlice>>> + Send + Sync + Unpin + use<C> {
        let kind = if key == METADATA_VERSION { CallKind::ReadVersion } else { CallKind::Point };
        self.count_answer(kind, self.trx.get(key, snapshot))
    }

    /// Resolves a key selector.
    pub fn get_key(
        &self,
        selector: &KeySelector<'_>,
        snapshot: bool,
    ) -> impl Future<Output = FdbResult<FdbSlice>> + Send + Sync + Unpin + use<C> {
        self.count_answer(CallKind::Range, self.trx.get_key(selector, snapshot))
    }

    /// Estimates the bytes of a range.
    pub fn get_estimated_range_size_bytes(
        &self,
        begin: &[u8],
        end: &[u8],
    ) -> impl Future<Output = FdbResult<i64>> + Send + Sync + Unpin + use<C> {
        self.count_answer(CallKind::Size, self.trx.get_estimated_range_size_bytes(begin, end))
    }

    /// Returns keys that divide a range into parts of about `part_bytes`, with both ends of the range. The servers know
    /// them from samples.
    pub fn get_range_split_points(
        &self,
        begin: &[u8],
        end: &[u8],
        part_bytes: i64,
    ) -> impl Future<Output = FdbResult<FdbKeys>> + Send + Sync + Unpin + use<C> {
        self.count_answer(CallKind::Size, self.trx.get_range_split_points(begin, end, part_bytes))
    }

    /// Reads the transaction's read version.
    pub fn get_read_version(&self) -> impl Future<Output = FdbResult<i64>> + Send + Sync + Unpin + use<C> {
        self.count_answer(CallKind::ReadVersion, self.trx.get_read_version())
    }

    /// Sets the read version to that of another transaction, at most some seconds old. The transaction then requests
    /// none.
    pub fn set_read_version(&self, version: i64) {
        if let Some(part) = &self.tally.operation {
            *part.read_version() = Some(part.operation.given());
        }
        self.tally.is_pinned.store(true, Ordering::Relaxed);
        self.trx.set_read_version(version);
    }

    /// Returns whether the read version was set, so that reads may be stale. Caches must not learn from such a
    /// transaction.
    pub fn is_pinned(&self) -> bool {
        self.tally.is_pinned.load(Ordering::Relaxed)
    }

    /// Returns a moment before this attempt requests its read version. Unless the transaction is
    /// [pinned](Transaction::is_pinned), it sees every commit acknowledged before that moment.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Returns the transaction's size so far, in bytes. The client knows it, so the call does not wait for a server.
    pub fn get_approximate_size(&self) -> impl Future<Output = FdbResult<i64>> + Send + Sync + Unpin + use<C> {
        self.trx.get_approximate_size()
    }

    /// Sets a watch on a key.
    pub fn watch(&self, key: &[u8]) -> impl Future<Output = FdbResult<()>> + Send + Sync + Unpin + use<C> {
        if let Some(part) = &self.tally.operation {
            add(&part.operation.watches, 1);
        }
        self.trx.watch(key)
    }

    /// Sets a key.
    pub fn set(&self, key: &[u8], value: &[u8]) {
        self.tally.write((key.len() + value.len()) as u64);
        self.trx.set(key, value);
    }

    /// Clears a key.
    pub fn clear(&self, key: &[u8]) {
        self.tally.write(key.len() as u64);
        self.trx.clear(key);
    }

    /// Clears a range.
    pub fn clear_range(&self, begin: &[u8], end: &[u8]) {
        self.tally.write((begin.len() + end.len()) as u64);
        self.trx.clear_range(begin, end);
    }

    /// Changes a key by an atomic operation.
    pub fn atomic_op(&self, key: &[u8], operand: &[u8], kind: MutationType) {
        self.tally.write((key.len() + operand.len()) as u64);
        self.trx.atomic_op(key, operand, kind);
    }

    /// Changes `\xff/metadataVersion`.
    pub fn update_metadata_version(&self) {
        self.tally.write(METADATA_VERSION_BYTES);
        self.trx.update_metadata_version();
    }

    /// Sets an option.
    pub fn set_option(&self, option: TransactionOption) -> FdbResult<()> {
        self.trx.set_option(option)
    }

    /// Adds a conflict range without reading or writing in it.
    pub fn add_conflict_range(&self, begin: &[u8], end: &[u8], kind: ConflictRangeType) -> FdbResult<()> {
        if matches!(kind, ConflictRangeType::Write) {
            self.tally.is_written.store(true, Ordering::Relaxed);
        }
        self.trx.add_conflict_range(begin, end, kind)
    }

    /// Runs an action once this attempt is known to have committed. It does not run if the commit fails, if its result
    /// is unknown, or if the future of the commit is dropped first. Another attempt adds its own.
    pub fn on_commit(&self, action: impl FnOnce() + Send + 'static) {
        self.tally.on_commit.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(action));
    }

    /// Commits. The commit is issued by the call and not by the first poll. A transaction without writes does not wait
    /// for a server.
    pub fn commit(self) -> impl Future<Output = Result<(), CommitError<C>>> + Send {
        let Transaction { trx, tally, .. } = self;
        let path = tally.operation.as_ref().filter(|_| tally.is_written.load(Ordering::Relaxed)).map(|part| {
            add(&part.operation.commits, 1);
            let before = part.before(true);
            Path { commits: before.commits + 1, ..before }
        });
        let answer = trx.commit();
        async move {
            let answer = answer.await;
            if let (Some(part), Some(path)) = (&tally.operation, path) {
                part.operation.give(path);
            }
            match answer {
                Ok(_) => {
                    tally.take_actions().into_iter().for_each(|action| action());
                    Ok(())
                }
                Err(failed) => Err(CommitError { failed, tally }),
            }
        }
    }

    /// Returns the transaction for another attempt, after FoundationDB's pause, if FoundationDB allows a retry.
    pub async fn on_error(self, error: FdbError) -> FdbResult<Transaction<C>> {
        let trx = self.trx.on_error(error).await?;
        Ok(Transaction::again(trx, self.tally))
    }

    /// Creates the transaction of a new attempt.
    fn again(trx: foundationdb::Transaction, tally: Arc<Tally<C>>) -> Transaction<C> {
        tally.again();
        let began = tally.context.clock().now();
        Transaction { trx, tally, began }
    }
}
