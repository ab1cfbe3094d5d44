//! Compaction removes the bodies of revisions that are not leaves, in the background and in transactions of bounded
//! size.
//!
//! All leaves stay, including losing ones. A database is compacted on request, and by itself when superseded bodies
//! exceed a share of its bytes.
//!
//! An edit moves its document to the end of by-seq, so a compaction need not repeat the part that an earlier one has
//! finished. A record keeps the position, and the next compaction resumes there after a crash, after its time limit, or
//! after a complete run.

pub mod transaction;

use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_databases::document::release;
use flatbed_databases::handles::WriteHandle;
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_store::by_seq::{self, BySeqPage};
use flatbed_store::due::{self, DueKind};
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::Counter;
use flatbed_store::merge::Shares;
use flatbed_store::proto;
use flatbed_store::records::revision;
use flatbed_store::seq::{STAMP_BYTES, Seq};
use flatbed_store::transaction::{self as store, Attempt, Operation, Transaction};
use futures_util::stream::{FuturesUnordered, StreamExt};
use prost::Message;

use crate::compactions::{Compactions, RunningCompaction};
use crate::write::batch::resolved;

pub use transaction::Compact;

const PAGE_ROWS: usize = 2_000;

const DOCUMENTS_AT_ONCE: usize = 25;

/// Transactions that run at once.
const TRANSACTIONS_AT_ONCE: usize = 16;

/// Failed documents after which a compaction ends, since their number shows that the cause lies elsewhere.
const FAILURES_MAX: usize = 100;

/// Share of superseded bodies, in percent of all bodies, above which a compaction begins by itself.
pub const SUPERSEDED_PERCENT_MAX: u64 = 50;

/// Superseded bytes below which no compaction begins by itself.
const SUPERSEDED_BYTES_MIN: u64 = 16_000_000;

/// Returns whether to compact a database with bodies of these sizes.
pub fn is_wanted(active_bytes: u64, superseded_bytes: u64) -> bool {
    superseded_bytes >= SUPERSEDED_BYTES_MIN && superseded_bytes * 100 > active_bytes * SUPERSEDED_PERCENT_MAX
}

/// Returns whether to compact a database, by its counters.
pub async fn is_due(inner: &Inner, name: &str) -> Result<bool> {
    struct Sizes<'a>(&'a Inner, &'a str);
    impl Operation for Sizes<'_> {
        type Output = [u64; 2];
        async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<[u64; 2]> {
            let instance = self.0.resolve(trx, self.1).await?;
            let counters = [Counter::StoredBytes, Counter::SupersededBytes];
            let reads = counters.map(|counter| instance.buckets.begin_count(trx, counter));
            let mut sizes = [0; 2];
            for (size, read) in sizes.iter_mut().zip(reads) {
                *size = read.await?.max(0) as u64;
            }
            Ok(sizes)
        }
    }
    let [active, superseded] = store::read(&inner.db, &inner.metrics, &mut Sizes(inner, name)).await?;
    Ok(is_wanted(active, superseded))
}

/// Requests a compaction by any process that has time for it.
#[boxed]
pub async fn ask(database: &WriteHandle) -> Result<()> {
    struct Ask<'a>(&'a WriteHandle);
    impl Operation for Ask<'_> {
        type Output = ();
        async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<()> {
            let (inner, name) = (&*self.0.inner, &*self.0.name);
            let (instance, writer) = inner.resolve_for(trx, name, self.0.actor()).await?;
            writer.admitted(trx, &instance).await?;
            due::mark(trx, &inner.keys, DueKind::Compaction, name, 0)
        }
    }
    let inner = &database.inner;
    store::write(&inner.db, &inner.metrics, &mut Ask(database)).await?;
    inner.due.wake.notify_one();
    Ok(())
}

/// Starts or resumes the compaction of a database, for about `time`. Returns whether it has finished; `None` if this
/// process is already compacting it.
#[boxed]
pub async fn compact(inner: &Arc<Inner>, name: &str, time: Duration) -> Result<Option<bool>> {
    let until = inner.clock.now() + time;
    let instance = resolved(inner, name).await?;
    // One compaction of a database at a time in each process.
    let Some(running) = inner.state::<Compactions>().begin(instance.record.namespace, name) else { return Ok(None) };
    let _running = inner.metrics.compactions_running.hold();
    let mut begin = ReadStart { inner, instance: &instance };
    let CompactionStart { mut progress, failed, total, mut page } =
        store::read(&inner.db, &inner.metrics, &mut begin).await?;
    if progress.changes_done == 0 {
        inner.metrics.compactions.add(1);
        tracing::debug!(database = name, "a compaction begins");
    }
    running.expect(total);
    running.get_on(progress.changes_done);
    let mut compaction = Compaction { inner, instance: &instance, running: &running, freed: 0 };
    // Earlier failures are tried again in the first page.
    progress.failed.clear();
    if !compaction.compact_documents(&failed, &mut progress).await? {
        return Ok(Some(false));
    }
    loop {
        if !compaction.compact_documents(&page.documents, &mut progress).await? {
            return Ok(Some(false));
        }
        progress.changes_done = if page.is_last { 0 } else { progress.changes_done + page.rows };
        let changed = page.rows > 0 || !failed.is_empty();
        progress.stamp = page.last.stamp().to_vec();
        let mut note = NoteProgress { inner, instance: &instance, progress: &progress };
        let note = async { if changed { store::write(&inner.db, &inner.metrics, &mut note).await } else { Ok(()) } };
        if page.is_last || inner.is_closing() || inner.clock.now() >= until {
            note.await?;
            running.get_on(page.rows);
            if !page.is_last {
                return Ok(Some(false));
            }
            break;
        }
        let mut candidates = Candidates { inner, instance: &instance, after: page.last, shares: &page.shares };
        let ((), next) = futures_util::try_join!(note, store::read(&inner.db, &inner.metrics, &mut candidates))?;
        running.get_on(page.rows);
        page = next;
    }
    let (freed, is_through) = release::drain_until(inner, &instance, None, Some(until)).await?;
    if !is_through {
        return Ok(Some(false));
    }
    let freed = compaction.freed + freed;
    tracing::info!(database = name, freed_bytes = freed, "a compaction has ended");
    Ok(Some(true))
}

/// A running compaction of this process.
struct Compaction<'a> {
    inner: &'a Inner,
    instance: &'a Instance,
    running: &'a RunningCompaction,
    freed: u64,
}

impl Compaction<'_> {
    /// Compacts documents, in several transactions at once. False: the process is stopping, and some are left.
    async fn compact_documents(&mut self, documents: &[Candidate], progress: &mut proto::Compacted) -> Result<bool> {
        let (inner, instance, running) = (self.inner, self.instance, self.running);
        let mut rest = documents.chunks(DOCUMENTS_AT_ONCE);
        let mut under_way = FuturesUnordered::new();
        loop {
            while under_way.len() < TRANSACTIONS_AT_ONCE
                && let Some(some) = rest.next()
            {
                under_way.push(some_documents(inner, instance, running, some));
            }
            let Some(done) = under_way.next().await else { return Ok(true) };
            let Some(done) = done? else { return Ok(false) };
            self.freed += done.freed;
            progress.failed.extend(done.failed);
            if let Some(error) = done.error.filter(|_| progress.failed.len() >= FAILURES_MAX) {
                return Err(error);
            }
            // If the limit was raised meanwhile, they were compacted with a higher limit than the others.
            progress.revs_limit = progress.revs_limit.max(done.revs_limit);
        }
    }
}

struct CompactResult {
    freed: u64,
    /// Stamps of the documents that failed, and the last error.
    failed: Vec<Vec<u8>>,
    error: Option<Error>,
    revs_limit: u64,
}

/// Compacts some documents in one or more transactions. `None`: the process is stopping.
async fn some_documents(
    inner: &Inner,
    instance: &Instance,
    running: &RunningCompaction,
    documents: &[Candidate],
) -> Result<Option<CompactResult>> {
    let ids: Vec<String> = documents.iter().map(|document| document.id.clone()).collect();
    let mut done = CompactResult { freed: 0, failed: Vec::new(), error: None, revs_limit: 0 };
    let (mut at, mut from) = (0, None);
    // Documents that failed together are tried one by one.
    let mut alone = 0_usize;
    while let Some(rest) = ids.get(at..).filter(|rest| !rest.is_empty()) {
        if inner.is_closing() {
            return Ok(None);
        }
        let some = if alone > 0 { rest.get(..1).unwrap_or(rest) } else { rest };
        let mut compact = Compact::new(inner, instance, some, from.take());
        let count = match store::write(&inner.db, &inner.metrics, &mut compact).await {
            Ok(compacted) => {
                done.freed += compacted.freed_bytes;
                done.revs_limit = done.revs_limit.max(compacted.revs_limit);
                from = compacted.from;
                compacted.documents
            }
            Err(error @ Error::DatabaseNotFound) => return Err(error),
            Err(_) if some.len() > 1 => {
                alone = some.len();
                continue;
            }
            Err(error) => {
                inner.metrics.compaction_failures.add(1);
                let document = some.first().map_or("", String::as_str);
                tracing::warn!(database = instance.name, document, %error, "a document could not be compacted");
                done.failed.extend(documents.get(at).map(|document| document.stamp.to_vec()));
                done.error = Some(error);
                1
            }
        };
        alone = alone.saturating_sub(count);
        at += count;
        running.get_on(0);
    }
    Ok(Some(done))
}

/// A document that may have superseded bodies, with the stamp of its last edit.
struct Candidate {
    stamp: [u8; STAMP_BYTES],
    id: String,
}

/// A page of by-seq, over all buckets in order.
struct CandidatePage {
    documents: Vec<Candidate>,
    rows: u64,
    /// The sequence of the last row, or the start of an empty page.
    last: Seq,
    /// True if no row is left behind it.
    is_last: bool,
    shares: Shares,
}

/// Reads the position to resume at, and the first page.
struct ReadStart<'a> {
    inner: &'a Inner,
    instance: &'a Instance,
}

struct CompactionStart {
    progress: proto::Compacted,
    /// Documents that failed before and have not been edited since.
    failed: Vec<Candidate>,
    /// Approximate upper bound of the number of changes.
    total: u64,
    page: CandidatePage,
}

impl Operation for ReadStart<'_> {
    type Output = CompactionStart;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<CompactionStart> {
        let instance = same(self.inner, self.instance, trx).await?;
        let keys = &instance.keys;
        let counters = [Counter::Documents, Counter::DeletedDocuments];
        let counters = counters.map(|counter| instance.buckets.begin_count(trx, counter));
        let record = trx.get(&keys.compacted(), true).await?;
        let mut total = 0;
        for counter in counters {
            total += counter.await?.max(0) as u64;
        }
        let record = record.map(|bytes| proto::Compacted::decode(&*bytes)).transpose()?;
        // A record of an incarnation before a restore, or with a higher limit of revisions, does not apply.
        let holds = |record: &proto::Compacted| {
            record.incarnation == instance.incarnation() && record.revs_limit <= instance.revs_limit()
        };
        let progress = record.filter(holds).unwrap_or_else(|| proto::Compacted {
            incarnation: instance.incarnation(),
            revs_limit: instance.revs_limit(),
            ..proto::Compacted::default()
        });
        let after = match progress.stamp.as_slice() {
            [] => Seq::zero(progress.incarnation),
            stamp => Seq::from_slice(progress.incarnation, stamp)?,
        };
        let page = candidates(trx, self.inner, &instance, after, &Shares::default());
        let failed = some_failed(trx, &instance, &progress).await?;
        Ok(CompactionStart { failed, total, page: page.await?, progress })
    }
}

/// Reads the documents that failed before and have not been edited since; each may be in any bucket.
async fn some_failed(trx: &Transaction, instance: &Instance, progress: &proto::Compacted) -> Result<Vec<Candidate>> {
    let mut reads = Vec::new();
    for stamp in &progress.failed {
        let seq = Seq::from_slice(progress.incarnation, stamp)?;
        reads.extend(instance.buckets.all().iter().map(|bucket| (seq, trx.get(&bucket.by_seq(&seq), true))));
    }
    let mut failed = Vec::new();
    for (seq, read) in reads {
        if let Some(entry) = read.await? {
            let id = proto::SequenceEntry::decode(&*entry)?.document_id;
            failed.push(Candidate { stamp: *seq.stamp(), id });
        }
    }
    Ok(failed)
}

/// Reads a further page.
struct Candidates<'a> {
    inner: &'a Inner,
    instance: &'a Instance,
    after: Seq,
    shares: &'a Shares,
}

impl Operation for Candidates<'_> {
    type Output = CandidatePage;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<CandidatePage> {
        let instance = same(self.inner, self.instance, trx).await?;
        candidates(trx, self.inner, &instance, self.after, self.shares).await
    }
}

/// Requests documents that may have superseded bodies: all but those whose only leaf is their first revision.
fn candidates<'t>(
    trx: &'t Transaction,
    inner: &Inner,
    instance: &Instance,
    after: Seq,
    shares: &Shares,
) -> impl Future<Output = Result<CandidatePage>> + Send + use<'t> {
    let ranges: Vec<_> = instance.buckets.all().iter().map(|bucket| bucket.by_seq_after(&after)).collect();
    let decode = |seq: Seq, value: &[u8]| {
        let entry = proto::SequenceEntry::decode(value)?;
        let is_candidate = entry.leaf_count > 1 || revision(entry.winner.as_ref())?.generation() > 1;
        Ok((seq, is_candidate.then_some(Candidate { stamp: *seq.stamp(), id: entry.document_id })))
    };
    let page = by_seq::begin(trx, &inner.metrics, &instance.buckets, &ranges, (PAGE_ROWS, false), shares, decode);
    async move {
        let BySeqPage { rows, is_all, shares } = page.await?;
        let last = rows.last().map_or(after, |(seq, _)| *seq);
        let count = rows.len() as u64;
        let documents = rows.into_iter().filter_map(|(_, candidate)| candidate).collect();
        Ok(CandidatePage { documents, rows: count, last, is_last: is_all, shares })
    }
}

async fn same(inner: &Inner, instance: &Instance, trx: &Transaction) -> Result<Arc<Instance>> {
    let found = inner.resolve(trx, &instance.name).await?;
    if found.id() == instance.id() { Ok(found) } else { Err(Error::DatabaseNotFound) }
}

/// Stores the position of a compaction.
struct NoteProgress<'a> {
    inner: &'a Inner,
    instance: &'a Instance,
    progress: &'a proto::Compacted,
}

impl Operation for NoteProgress<'_> {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<()> {
        let found = self.inner.resolve_for_write(trx, &self.instance.name).await?;
        if found.id() != self.instance.id() {
            return Err(Error::DatabaseNotFound);
        }
        trx.set(&found.keys.compacted(), &self.progress.encode_to_vec());
        Ok(())
    }
}
