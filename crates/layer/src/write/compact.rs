//! Compaction: the bodies of revisions that are no leaves go, in the background, in transactions of bounded size.
//!
//! Leaves always stay, losing ones too. A database is compacted when somebody asks, and by itself when its superseded
//! bodies take more than a share of it.
//!
//! An edit moves its document to the end of by-seq. So what a compaction has gone through need not be gone through again:
//! a record says how far it has come, another one goes on there, be it that this one's process has died, that the time was
//! over, or that it was through.

mod transaction;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use prost::Message;
use tokio::time::Instant;

use crate::compactions::Running;
use crate::document::release;
use crate::error::{Error, Result};
use crate::handle::Database;
use crate::instance::Instance;
use crate::layer::Inner;
use crate::store::due::{self, Kind};
use crate::store::keys::{Counter, KeyRange};
use crate::store::proto;
use crate::store::records::revision;
use crate::store::seq::{STAMP_BYTES, Seq};
use crate::store::transaction::{self as store, Attempt, Operation, Transaction, page_of};
use crate::write::batch::resolved;

pub(crate) use transaction::Compact;

/// Rows of by-seq that are looked through at once.
const PAGE_ROWS: usize = 2_000;

/// Documents of one transaction.
const DOCUMENTS_AT_ONCE: usize = 25;

/// Transactions under way at once.
const TRANSACTIONS_AT_ONCE: usize = 16;

/// A compaction of which so many documents have failed ends: it is not they that are at fault.
const FAILURES_MAX: usize = 100;

/// Superseded bodies take at most this part of all bodies, in percent, before a compaction begins by itself.
pub const SUPERSEDED_PERCENT_MAX: u64 = 50;

/// Below this nothing is compacted by itself, in bytes.
const SUPERSEDED_BYTES_MIN: u64 = 16_000_000;

/// Whether a database should be compacted whose bodies take so many bytes, and so many of them the superseded ones.
pub(crate) fn is_wanted(active_bytes: u64, superseded_bytes: u64) -> bool {
    superseded_bytes >= SUPERSEDED_BYTES_MIN && superseded_bytes * 100 > active_bytes * SUPERSEDED_PERCENT_MAX
}

/// Whether a database should be compacted, by its counters.
pub(crate) async fn is_due(inner: &Inner, name: &str) -> Result<bool> {
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

/// Asks for a compaction, which some process with time for it does.
pub(crate) async fn ask(database: &Database) -> Result<()> {
    struct Ask<'a>(&'a Inner, &'a str);
    impl Operation for Ask<'_> {
        type Output = ();
        async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<()> {
            self.0.resolve_for_write(trx, self.1).await?;
            due::mark(trx, &self.0.keys, Kind::Compaction, self.1, 0)
        }
    }
    let inner = &database.inner;
    store::write(&inner.db, &inner.metrics, &mut Ask(inner, &database.name)).await?;
    inner.due.wake.notify_one();
    Ok(())
}

/// Compacts a database, or goes on with that, for some `time`. Returns whether it is through.
pub(crate) async fn compact(inner: &Arc<Inner>, name: &str, time: Duration) -> Result<bool> {
    let until = Instant::now() + time;
    let instance = resolved(inner, name).await?;
    // A process does one at a time of a database.
    let Some(running) = inner.compactions.begin(instance.record.namespace, name) else { return Ok(true) };
    let _running = inner.metrics.compactions_running.hold();
    let mut begin = Begin { inner, instance: &instance };
    let Begun { mut progress, failed, total, page, mut ranges } =
        store::read(&inner.db, &inner.metrics, &mut begin).await?;
    if progress.changes_done == 0 {
        inner.metrics.compactions.add(1);
        tracing::debug!(database = name, "a compaction begins");
    }
    running.expect(total);
    running.get_on(progress.changes_done);
    let mut compaction = Compaction { inner, instance: &instance, running: &running, freed: 0 };
    // What could not be compacted the last time.
    progress.failed.clear();
    if !compaction.documents(&failed, &mut progress).await? {
        return Ok(false);
    }
    let is_kept = instance.buckets.all().len() == 1;
    let mut page = page;
    loop {
        let (last, next) = (page.last.take(), page.next.take().or_else(|| ranges.pop_front()));
        if !compaction.documents(&page.documents, &mut progress).await? {
            return Ok(false);
        }
        let is_through = next.is_none();
        let is_over = inner.is_closing() || is_kept && Instant::now() >= until;
        progress.changes_done = if is_through { 0 } else { progress.changes_done + page.rows };
        running.get_on(page.rows);
        let changed = is_kept && (last.is_some() || !failed.is_empty());
        if let Some(last) = last {
            progress.stamp = last.stamp().to_vec();
        }
        let mut note = Note { inner, instance: &instance, progress: &progress };
        let note = async { if changed { store::write(&inner.db, &inner.metrics, &mut note).await } else { Ok(()) } };
        let Some(range) = next.filter(|_| !is_over) else {
            note.await?;
            if !is_through {
                return Ok(false);
            }
            break;
        };
        let mut candidates = Candidates { inner, instance: &instance, range };
        page = futures_util::try_join!(note, store::read(&inner.db, &inner.metrics, &mut candidates))?.1;
    }
    let freed = compaction.freed + release::drain(inner, &instance, None).await?;
    tracing::info!(database = name, freed_bytes = freed, "a compaction has ended");
    Ok(true)
}

/// A compaction under way in this process.
struct Compaction<'a> {
    inner: &'a Inner,
    instance: &'a Instance,
    running: &'a Running,
    freed: u64,
}

impl Compaction<'_> {
    /// Compacts documents, some transactions at once. False: the process ends, and not all of them are done.
    async fn documents(&mut self, documents: &[Candidate], progress: &mut proto::Compacted) -> Result<bool> {
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
            // With a higher limit than the others they were, if it was raised meanwhile.
            progress.revs_limit = progress.revs_limit.max(done.revs_limit);
        }
    }
}

struct Done {
    freed: u64,
    /// Stamps of documents that could not be compacted, and why the last of them could not.
    failed: Vec<Vec<u8>>,
    error: Option<Error>,
    revs_limit: u64,
}

/// Compacts some documents, in one transaction or as many as it takes. `None`: the process ends.
async fn some_documents(
    inner: &Inner,
    instance: &Instance,
    running: &Running,
    documents: &[Candidate],
) -> Result<Option<Done>> {
    let ids: Vec<String> = documents.iter().map(|document| document.id.clone()).collect();
    let mut done = Done { freed: 0, failed: Vec::new(), error: None, revs_limit: 0 };
    let (mut at, mut from) = (0, None);
    // Of documents that failed together each is tried alone.
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
            Err(error @ (Error::DatabaseNotFound | Error::Renewing)) => return Err(error),
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

/// A document that may have superseded bodies, and when it was last edited.
struct Candidate {
    stamp: [u8; STAMP_BYTES],
    id: String,
}

/// A page of by-seq.
struct CandidatePage {
    documents: Vec<Candidate>,
    /// Rows looked at.
    rows: u64,
    last: Option<Seq>,
    next: Option<KeyRange>,
}

/// Reads where to begin, and the first page.
struct Begin<'a> {
    inner: &'a Inner,
    instance: &'a Instance,
}

struct Begun {
    progress: proto::Compacted,
    /// What could not be compacted, and has not been edited since.
    failed: Vec<Candidate>,
    /// About how many changes there are, at most.
    total: u64,
    page: CandidatePage,
    /// Of further buckets.
    ranges: VecDeque<KeyRange>,
}

impl Operation for Begin<'_> {
    type Output = Begun;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Begun> {
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
        // Of an incarnation from before a restore, or with a higher limit than now, it says nothing.
        let holds = |record: &proto::Compacted| {
            let is_one = instance.buckets.all().len() == 1;
            is_one && record.incarnation == instance.incarnation() && record.revs_limit <= instance.revs_limit()
        };
        let progress = record.filter(holds).unwrap_or_else(|| proto::Compacted {
            incarnation: instance.incarnation(),
            revs_limit: instance.revs_limit(),
            ..proto::Compacted::default()
        });
        let bucket = instance.buckets.own();
        // In buckets a document may move to one that has been walked: nothing is kept of how far they have come.
        let mut ranges: VecDeque<_> = instance.buckets.all().iter().map(|bucket| bucket.by_seq_any()).collect();
        let mut range = ranges.pop_front().unwrap_or_else(|| bucket.by_seq_any());
        let mut failed = Vec::new();
        if !progress.stamp.is_empty() {
            range = bucket.by_seq_after(&Seq::from_slice(progress.incarnation, &progress.stamp)?);
            let reads = progress.failed.iter().map(|stamp| {
                let seq = Seq::from_slice(progress.incarnation, stamp)?;
                Ok((seq, trx.get(&bucket.by_seq(&seq), true)))
            });
            for (seq, read) in reads.collect::<Result<Vec<_>>>()? {
                if let Some(entry) = read.await? {
                    let id = proto::SequenceEntry::decode(&*entry)?.document_id;
                    failed.push(Candidate { stamp: *seq.stamp(), id });
                }
            }
        }
        let page = candidates(trx, &instance, range).await?;
        Ok(Begun { progress, failed, total, page, ranges })
    }
}

/// Reads a further page.
struct Candidates<'a> {
    inner: &'a Inner,
    instance: &'a Instance,
    range: KeyRange,
}

impl Operation for Candidates<'_> {
    type Output = CandidatePage;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<CandidatePage> {
        let instance = same(self.inner, self.instance, trx).await?;
        candidates(trx, &instance, self.range.clone()).await
    }
}

/// Documents that may have superseded bodies: all but those whose only leaf is their first revision.
async fn candidates(trx: &Transaction, instance: &Instance, range: KeyRange) -> Result<CandidatePage> {
    let page = trx.get_range(&page_of(&range, PAGE_ROWS, false), 1, true).await?;
    // Of several buckets places are not kept.
    let bucket = (instance.buckets.all().len() == 1).then(|| instance.buckets.own());
    let place = |key: &[u8]| bucket.map(|bucket| bucket.by_seq_parse(key)).transpose();
    let mut documents = Vec::new();
    for row in &page {
        let entry = proto::SequenceEntry::decode(row.value())?;
        if entry.leaf_count > 1 || revision(entry.winner.as_ref())?.generation() > 1 {
            let stamp = place(row.key())?.map_or([0; STAMP_BYTES], |seq| *seq.stamp());
            documents.push(Candidate { stamp, id: entry.document_id });
        }
    }
    let is_more = page.more() || page.len() == PAGE_ROWS;
    let last = page.last();
    let next = last.filter(|_| is_more);
    let next = next.map(|last| KeyRange { begin: [last.key(), &[0]].concat(), end: range.end.clone() });
    let last = last.map(|last| place(last.key())).transpose()?.flatten();
    Ok(CandidatePage { documents, rows: page.len() as u64, last, next })
}

async fn same(inner: &Inner, instance: &Instance, trx: &Transaction) -> Result<Arc<Instance>> {
    let found = inner.resolve(trx, &instance.name).await?;
    if found.id() == instance.id() { Ok(found) } else { Err(Error::DatabaseNotFound) }
}

/// Notes how far a compaction has come.
struct Note<'a> {
    inner: &'a Inner,
    instance: &'a Instance,
    progress: &'a proto::Compacted,
}

impl Operation for Note<'_> {
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
