//! The transaction that the layer works with: FoundationDB's, which counts what it is asked for.

mod ranges;

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use flatbed_clock::Clock;
use foundationdb::future::{FdbSlice, FdbValues};
use foundationdb::options::{ConflictRangeType, MutationType, TransactionOption};
use foundationdb::{Database, FdbError, FdbResult, KeySelector};
use tokio::time::Instant;

use crate::store::apart::Apart;
pub(crate) use crate::store::counted::ranges::{BoxedPageRead, Page, PageRead};
use crate::store::instruments::Instruments;
use crate::store::keys::METADATA_VERSION;
use crate::store::waits::{Operation, Path};

/// What is written to change it: the key, and the operand of `SetVersionstampedValue`.
const METADATA_VERSION_BYTES: u64 = METADATA_VERSION.len() as u64 + 14;

/// A transaction of FoundationDB's whose reads and writes are counted: for the process in [`Instruments`], for the operation
/// that it belongs to in [`crate::waits`]. Its methods are those of [`foundationdb::Transaction`]; one that is missing
/// is added here, so that nothing goes uncounted. Ranges are read by [`Transaction::range`].
pub(crate) struct Transaction {
    trx: foundationdb::Transaction,
    tally: Arc<Tally>,
    began: Instant,
}

/// What a transaction was asked for. Reads hold it until they are answered; the last one out adds it to the process's.
struct Tally {
    instruments: Arc<Instruments>,
    reads: AtomicU64,
    range_reads: AtomicU64,
    keys_read: AtomicU64,
    bytes_read: AtomicU64,
    keys_written: AtomicU64,
    bytes_written: AtomicU64,
    /// Whether it was given its read version.
    is_pinned: AtomicBool,
    /// Whether there is something to commit.
    is_written: AtomicBool,
    operation: Option<InOperation>,
    apart: Apart,
}

/// A transaction's place in an operation.
struct InOperation {
    operation: Arc<Operation>,
    /// How deep the answer of the read version lies that this attempt asked for; `None`: not yet.
    read_version: Mutex<Option<Path>>,
}

impl InOperation {
    fn read_version(&self) -> std::sync::MutexGuard<'_, Option<Path>> {
        self.read_version.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the next call's answer lies, less the call itself; `needs_version`: it asks for the read version, if
    /// nothing did before.
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

/// What a call asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    ReadVersion,
    Point,
    Range,
    Size,
}

impl Tally {
    /// A call is made; its answer will be given through what this returns.
    fn call(self: &Arc<Self>, kind: Kind) -> Call {
        match kind {
            Kind::Point => add(&self.reads, 1),
            Kind::Range => add(&self.range_reads, 1),
            Kind::ReadVersion | Kind::Size => {}
        }
        let path = self.operation.as_ref().map(|part| {
            let operation = &part.operation;
            match kind {
                Kind::Point => add(&operation.point_reads, 1),
                Kind::Range => add(&operation.range_reads, 1),
                Kind::Size => add(&operation.size_reads, 1),
                Kind::ReadVersion => {
                    part.before(true);
                    return part.read_version().unwrap_or_default();
                }
            }
            let before = part.before(kind != Kind::Size);
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

    /// The same transaction begins anew.
    fn again(&self) {
        self.is_written.store(false, Ordering::Relaxed);
        if let Some(part) = &self.operation {
            add(&part.operation.transactions, 1);
            *part.read_version() = None;
        }
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        let totals = [
            (&mut self.reads, &self.instruments.reads),
            (&mut self.range_reads, &self.instruments.range_reads),
            (&mut self.keys_read, &self.instruments.keys_read),
            (&mut self.bytes_read, &self.instruments.bytes_read),
            (&mut self.keys_written, &self.instruments.keys_written),
            (&mut self.bytes_written, &self.instruments.bytes_written),
        ];
        for (counted, total) in totals {
            let counted = *counted.get_mut();
            if counted > 0 {
                total.add(counted);
            }
        }
    }
}

/// A call whose answer is to be given.
struct Call {
    tally: Arc<Tally>,
    /// Where its answer lies in the operation, if that is counted.
    path: Option<Path>,
}

impl Call {
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

/// What the answer of a call holds.
trait Answer {
    /// Keys in it, and bytes of these and their values.
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

impl Answer for i64 {
    fn size(&self) -> (u64, u64) {
        (0, 0)
    }
}

/// An answer under way, which counts when it is given. One that is not awaited to its end is not given.
struct Given<F> {
    answer: F,
    call: Call,
}

impl<T: Answer, F: Future<Output = FdbResult<T>> + Unpin> Future for Given<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.answer).poll(cx));
        let (keys, bytes) = answer.as_ref().map_or((0, 0), Answer::size);
        self.call.give(keys, bytes);
        Poll::Ready(answer)
    }
}

/// A commit that failed, with its transaction.
pub(crate) struct CommitError {
    failed: foundationdb::TransactionCommitError,
    tally: Arc<Tally>,
}

impl CommitError {
    /// FoundationDB's code.
    pub(crate) fn code(&self) -> i32 {
        self.failed.code()
    }

    /// The transaction for another attempt, if FoundationDB says that there may be one.
    pub(crate) async fn on_error(self) -> FdbResult<Transaction> {
        let trx = self.failed.on_error().await?;
        self.tally.again();
        let began = self.tally.instruments.clock().now();
        Ok(Transaction { trx, tally: self.tally, began })
    }
}

impl std::fmt::Debug for CommitError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CommitError").field(&self.code()).finish()
    }
}

impl Transaction {
    /// Begins one. It counts with the operation of the running task, if that is counted.
    pub(crate) fn begin(db: &Database, instruments: &Arc<Instruments>) -> FdbResult<Transaction> {
        let began = instruments.clock().now();
        let trx = db.create_trx()?;
        let operation = Operation::current().map(|operation| {
            add(&operation.transactions, 1);
            InOperation { operation, read_version: Mutex::new(None) }
        });
        let tally = Tally {
            instruments: Arc::clone(instruments),
            reads: AtomicU64::new(0),
            range_reads: AtomicU64::new(0),
            keys_read: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            keys_written: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
            is_pinned: AtomicBool::new(false),
            is_written: AtomicBool::new(false),
            operation,
            apart: Apart::default(),
        };
        Ok(Transaction { trx, tally: Arc::new(tally), began })
    }

    /// What is made for it between its attempts.
    pub(crate) fn apart(&self) -> &Apart {
        &self.tally.apart
    }

    /// The layer's clock.
    pub(crate) fn clock(&self) -> &Clock {
        self.tally.instruments.clock()
    }

    fn given<F>(&self, kind: Kind, answer: F) -> Given<F> {
        Given { answer, call: self.tally.call(kind) }
    }

    /// `\xff/metadataVersion` comes with the read version, and is no read of its own.
    pub(crate) fn get(
        &self,
        key: &[u8],
        snapshot: bool,
    ) -> impl Future<Output = FdbResult<Option<FdbSlice>>> + Send + Sync + Unpin + use<> {
        let kind = if key == METADATA_VERSION { Kind::ReadVersion } else { Kind::Point };
        self.given(kind, self.trx.get(key, snapshot))
    }

    pub(crate) fn get_key(
        &self,
        selector: &KeySelector<'_>,
        snapshot: bool,
    ) -> impl Future<Output = FdbResult<FdbSlice>> + Send + Sync + Unpin + use<> {
        self.given(Kind::Range, self.trx.get_key(selector, snapshot))
    }

    pub(crate) fn get_estimated_range_size_bytes(
        &self,
        begin: &[u8],
        end: &[u8],
    ) -> impl Future<Output = FdbResult<i64>> + Send + Sync + Unpin + use<> {
        self.given(Kind::Size, self.trx.get_estimated_range_size_bytes(begin, end))
    }

    pub(crate) fn get_read_version(&self) -> impl Future<Output = FdbResult<i64>> + Send + Sync + Unpin + use<> {
        self.given(Kind::ReadVersion, self.trx.get_read_version())
    }

    /// The transaction reads as of a version that another one had, some seconds ago at most: none is asked for.
    pub(crate) fn set_read_version(&self, version: i64) {
        if let Some(part) = &self.tally.operation {
            *part.read_version() = Some(part.operation.given());
        }
        self.tally.is_pinned.store(true, Ordering::Relaxed);
        self.trx.set_read_version(version);
    }

    /// Whether it may read what others know to be over: caches learn nothing from it.
    pub(crate) fn is_pinned(&self) -> bool {
        self.tally.is_pinned.load(Ordering::Relaxed)
    }

    /// A moment before this attempt's read version is asked for: what was acknowledged before it is seen, unless the transaction
    /// is [pinned](Transaction::is_pinned).
    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    /// Nothing is waited for: the client knows it.
    pub(crate) fn get_approximate_size(&self) -> impl Future<Output = FdbResult<i64>> + Send + Sync + Unpin + use<> {
        self.trx.get_approximate_size()
    }

    pub(crate) fn watch(&self, key: &[u8]) -> impl Future<Output = FdbResult<()>> + Send + Sync + Unpin + use<> {
        if let Some(part) = &self.tally.operation {
            add(&part.operation.watches, 1);
        }
        self.trx.watch(key)
    }

    pub(crate) fn set(&self, key: &[u8], value: &[u8]) {
        self.tally.write((key.len() + value.len()) as u64);
        self.trx.set(key, value);
    }

    pub(crate) fn clear(&self, key: &[u8]) {
        self.tally.write(key.len() as u64);
        self.trx.clear(key);
    }

    pub(crate) fn clear_range(&self, begin: &[u8], end: &[u8]) {
        self.tally.write((begin.len() + end.len()) as u64);
        self.trx.clear_range(begin, end);
    }

    pub(crate) fn atomic_op(&self, key: &[u8], operand: &[u8], kind: MutationType) {
        self.tally.write((key.len() + operand.len()) as u64);
        self.trx.atomic_op(key, operand, kind);
    }

    pub(crate) fn update_metadata_version(&self) {
        self.tally.write(METADATA_VERSION_BYTES);
        self.trx.update_metadata_version();
    }

    pub(crate) fn set_option(&self, option: TransactionOption) -> FdbResult<()> {
        self.trx.set_option(option)
    }

    pub(crate) fn add_conflict_range(&self, begin: &[u8], end: &[u8], kind: ConflictRangeType) -> FdbResult<()> {
        if matches!(kind, ConflictRangeType::Write) {
            self.tally.is_written.store(true, Ordering::Relaxed);
        }
        self.trx.add_conflict_range(begin, end, kind)
    }

    /// Commits; asked for with the call, like all the others. Without anything written nothing is waited for.
    pub(crate) fn commit(self) -> impl Future<Output = Result<(), CommitError>> + Send {
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
                Ok(_) => Ok(()),
                Err(failed) => Err(CommitError { failed, tally }),
            }
        }
    }

    /// The transaction for another attempt, if FoundationDB says that there may be one.
    pub(crate) async fn on_error(self, error: FdbError) -> FdbResult<Transaction> {
        let trx = self.trx.on_error(error).await?;
        self.tally.again();
        let began = self.tally.instruments.clock().now();
        Ok(Transaction { trx, tally: self.tally, began })
    }
}
