//! Compaction: the bodies of revisions that are no leaves go, in the background, in transactions of bounded size.
//!
//! Leaves always stay, losing ones too. A database is compacted when somebody asks, and by itself when its superseded
//! bodies take more than a share of it.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use flatbed_revtree::{RevId, Tree};
use foundationdb::options::ConflictRangeType;
use prost::Message;

use crate::compactions::Running;
use crate::document::attachments;
use crate::document::body::begin_read;
use crate::document::release;
use crate::document::tree::{Dropped, Leaves, WholeTree, decode_records, drop_revision, info};
use crate::error::{Error, Result};
use crate::handle::Reader;
use crate::instance::Instance;
use crate::layer::{Inner, NameRange};
use crate::store::keys::{Counter, KeyRange};
use crate::store::proto;
use crate::store::records::revision;
use crate::store::room::Room;
use crate::store::seq::STAMP_BYTES;
use crate::store::transaction::page_of;
use crate::store::transaction::{self, Attempt, Operation, Quiet, Transaction};
use crate::store::waits;

/// Rows of by-seq that are looked through at once.
const PAGE_ROWS: usize = 2_000;

/// Documents of one transaction.
const DOCUMENTS_AT_ONCE: usize = 25;

/// A transaction takes no further revision beyond this, in bytes of what it writes.
const COMPACTION_BYTES_MAX: u64 = 500_000;

/// What a transaction reads of a document's records, about.
const RECORDS_BYTES_MAX: u64 = 1_000_000;

/// A compaction of which so many documents have failed ends: it is not they that are at fault.
const FAILURES_MAX: u32 = 100;

/// Superseded bodies take at most this part of all bodies, in percent, before a compaction begins by itself.
pub const SUPERSEDED_PERCENT_MAX: u64 = 50;

/// Below this nothing is compacted by itself, in bytes.
const SUPERSEDED_BYTES_MIN: u64 = 16_000_000;

/// Begins a compaction, unless one is under way.
pub(crate) fn start(inner: &Arc<Inner>, instance: Arc<Instance>) {
    // Here and not in its task: whoever asked for it can see that it has not ended.
    let Some(running) = inner.compactions.begin(instance.record.namespace, &instance.name) else { return };
    let inner = Arc::clone(inner);
    let operation = waits::Operation::current();
    tokio::spawn(waits::carry(operation, async move {
        running.expect(total(&inner, &instance).await.unwrap_or(0));
        inner.metrics.compactions.add(1);
        let _running = inner.metrics.compactions_running.hold();
        tracing::info!(database = instance.name, "compaction begins");
        match run(&inner, &instance, &running).await {
            Ok(freed) => tracing::info!(database = instance.name, freed_bytes = freed, "compaction has ended"),
            Err(Error::DatabaseNotFound) => {}
            Err(error) => tracing::warn!(database = instance.name, %error, "a compaction broke off"),
        }
    }));
}

async fn total(inner: &Inner, instance: &Instance) -> Result<u64> {
    struct Total<'a>(&'a Instance);
    impl Operation for Total<'_> {
        type Output = u64;
        async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<u64> {
            let mut sum = 0;
            for counter in [Counter::Documents, Counter::DeletedDocuments] {
                sum += self.0.buckets.begin_count(trx, counter).await?.max(0) as u64;
            }
            Ok(sum)
        }
    }
    transaction::read(&inner.db, &inner.metrics, &mut Total(instance)).await
}

async fn run(inner: &Inner, instance: &Instance, running: &Running) -> Result<u64> {
    // A document that is edited meanwhile may move to a bucket that has been walked: it is looked at with the next compaction.
    let mut left: VecDeque<_> = instance.buckets.all().iter().map(|bucket| bucket.by_seq_any()).collect();
    let (mut freed, mut failures) = (0, 0);
    while let Some(range) = left.pop_front() {
        let mut page = Candidates { inner, instance, range };
        let (ids, looked_at, next) = transaction::read(&inner.db, &inner.metrics, &mut page).await?;
        let mut ids = ids.as_slice();
        let mut from = None;
        // Of documents that failed together each is tried alone.
        let mut alone = 0_usize;
        while let Some(id) = ids.first() {
            if inner.is_closing() {
                return Ok(freed);
            }
            let some = ids.get(..if alone > 0 { 1 } else { DOCUMENTS_AT_ONCE }).unwrap_or(ids);
            let mut compact = Compact::new(inner, instance, some, from.take());
            let documents = match transaction::write(&inner.db, &inner.metrics, &mut compact).await {
                Ok(compacted) => {
                    freed += compacted.freed_bytes;
                    from = compacted.from;
                    compacted.documents
                }
                Err(Error::DatabaseNotFound) => return Err(Error::DatabaseNotFound),
                Err(_) if some.len() > 1 => {
                    alone = some.len();
                    continue;
                }
                Err(error) => {
                    inner.metrics.compaction_failures.add(1);
                    failures += 1;
                    if failures == FAILURES_MAX {
                        return Err(error);
                    }
                    tracing::warn!(database = instance.name, document = id, %error, "a document could not be compacted");
                    1
                }
            };
            alone = alone.saturating_sub(documents);
            ids = ids.get(documents..).unwrap_or_default();
            running.get_on(0);
        }
        running.get_on(looked_at);
        next.into_iter().for_each(|next| left.push_front(next));
    }
    Ok(freed + release::drain(inner, instance, None).await?)
}

/// Documents that may have superseded bodies: all but those whose only leaf is their first revision.
struct Candidates<'a> {
    inner: &'a Inner,
    instance: &'a Instance,
    range: KeyRange,
}

impl Operation for Candidates<'_> {
    type Output = (Vec<String>, u64, Option<KeyRange>);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        same(self.inner, self.instance, trx).await?;
        let page = trx.get_range(&page_of(&self.range, PAGE_ROWS, false), 1, true).await?;
        let mut ids = Vec::new();
        for row in &page {
            let entry = proto::SequenceEntry::decode(row.value())?;
            if entry.leaf_count > 1 || revision(entry.winner.as_ref())?.generation() > 1 {
                ids.push(entry.document_id);
            }
        }
        let is_more = page.more() || page.len() == PAGE_ROWS;
        let last = page.last().filter(|_| is_more);
        let next = last.map(|last| KeyRange { begin: [last.key(), &[0]].concat(), end: self.range.end.clone() });
        Ok((ids, page.len() as u64, next))
    }
}

async fn same(inner: &Inner, instance: &Instance, trx: &Transaction) -> Result<()> {
    match inner.resolve(trx, &instance.name).await?.id() == instance.id() {
        true => Ok(()),
        false => Err(Error::DatabaseNotFound),
    }
}

/// Drops what is superseded of some documents, and what lies beyond the limit of revisions, as far as a transaction goes.
pub(crate) struct Compact<'a> {
    inner: &'a Inner,
    instance: &'a Instance,
    ids: &'a [String],
    /// Where in the first document to go on.
    from: Option<From>,
}

/// Where in a document's records a compaction goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct From {
    /// When the document was last edited as the compaction began with it: what lies before `key` is looked at again if it
    /// has been edited since.
    stamp: [u8; STAMP_BYTES],
    /// The limit that they were looked at with: of them more may be beyond a lower one.
    revs_limit: u64,
    /// The first that has not been looked at.
    key: Vec<u8>,
}

impl<'a> Compact<'a> {
    pub(crate) fn new(inner: &'a Inner, instance: &'a Instance, ids: &'a [String], from: Option<From>) -> Compact<'a> {
        Compact { inner, instance, ids, from }
    }
}

/// What one transaction of a compaction did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Compacted {
    pub freed_bytes: u64,
    /// How many of the documents are done.
    pub documents: usize,
    /// Where in the next one to go on, if that is half done.
    pub from: Option<From>,
}

impl Operation for Compact<'_> {
    type Output = Compacted;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Compacted> {
        let found = self.inner.resolve_for_write(trx, &self.instance.name).await?;
        if found.id() != self.instance.id() {
            return Err(Error::DatabaseNotFound);
        }
        let room = Room::new(COMPACTION_BYTES_MAX);
        let (mut dropped, mut documents, mut from) = (Dropped::default(), 0, self.from.clone());
        for id in self.ids {
            if room.is_empty() {
                break;
            }
            from = self.document(trx, &found, id, from, &room, &mut dropped).await?;
            if from.is_some() {
                break;
            }
            documents += 1;
        }
        let (bodies, attached) = (dropped.body_bytes, dropped.attachment_bytes);
        for (counter, delta) in [(Counter::StoredBytes, -bodies - attached), (Counter::SupersededBytes, -bodies)] {
            if delta != 0 {
                self.instance.buckets.add(trx, counter, delta)?;
            }
        }
        Ok(Compacted { freed_bytes: (bodies + attached).max(0) as u64, documents, from })
    }
}

impl Compact<'_> {
    /// Drops one revision at least where there is one to drop. Returns where to go on, if there is more.
    async fn document(
        &self,
        trx: &Transaction,
        instance: &Instance,
        id: &str,
        from: Option<From>,
        room: &Room,
        dropped: &mut Dropped,
    ) -> Result<Option<From>> {
        let keys = self.instance.keys.document(id);
        // With conflict: an edit that commits meanwhile makes this begin anew.
        let Some(info) = info(trx, &keys, false).await? else { return Ok(None) };
        let (stamp, revs_limit) = (info.stamp, instance.revs_limit());
        let from = from.filter(|from| from.stamp == stamp && from.revs_limit == revs_limit);
        let leaves = Leaves::read(trx, &keys).await?;
        let is_long = leaves.0.iter().any(|leaf| leaf.ancestry.len() >= revs_limit);
        let whole = match is_long {
            // Of a tree that is too large to be read the bodies go, and nothing else.
            true => WholeTree::read_if_small(trx, &keys, leaves.clone()).await?,
            false => None,
        };
        let kept = whole.as_ref().map(|whole| {
            let mut kept = whole.tree.clone();
            kept.stem(usize::try_from(revs_limit).unwrap_or(usize::MAX));
            kept
        });
        let kept = kept.as_ref().map(Tree::revisions);
        let leaves: HashSet<RevId> = leaves.0.into_iter().map(|leaf| leaf.rev).collect();
        let mut range = keys.revisions();
        if let Some(from) = from {
            range.begin = from.key;
        }
        let go_on = |key: Vec<u8>| Ok(Some(From { stamp, revs_limit, key }));
        let (pages, is_whole) = begin_read(trx, range.clone()).up_to(trx, RECORDS_BYTES_MAX).await?;
        let (mut listed, mut is_changed, mut next) = (Vec::new(), false, None);
        for (rev, mut record) in decode_records(&keys, &pages)? {
            let is_beyond = kept.as_ref().is_some_and(|kept| !kept.contains(&rev));
            if leaves.contains(&rev) || record.body_dropped && !is_beyond {
                continue;
            }
            if room.is_empty() {
                next = Some(keys.revision(&rev));
                break;
            }
            drop_revision(trx, self.instance, &keys, &rev, &record, room, &mut listed, dropped).await?;
            is_changed = true;
            if is_beyond {
                Quiet(trx).clear(&keys.revision(&rev))?;
            } else {
                record.body_dropped = true;
                Quiet(trx).set(&keys.revision(&rev), &record.encode())?;
            }
        }
        dropped.attachment_bytes += attachments::drop_lists(trx, self.instance, &keys, id, &listed, room).await?;
        if next.is_none() && !is_whole {
            let last = pages.iter().rev().find_map(|page| page.last());
            next = last.map(|last| [last.key(), &[0]].concat());
        }
        // All records have been looked at, and the document was not edited since the first of them: what is beyond the
        // limit has none left.
        if let (None, Some(whole)) = (&next, &whole)
            && !whole.clear_unreachable(trx, &keys, revs_limit, room)?
        {
            next = Some(range.end);
        }
        if is_changed {
            // What went is taken off the counters. Another server's compaction, or an edit that trims the same
            // revisions, has read them as they were and must begin anew, or they are taken off twice.
            let info_key = keys.info();
            let end = [&info_key[..], &[0]].concat();
            trx.add_conflict_range(&info_key, &end, ConflictRangeType::Write)?;
        }
        match next {
            Some(key) => go_on(key),
            None => Ok(None),
        }
    }
}

/// Begins the compactions that are due.
pub(crate) async fn look(inner: &Arc<Inner>) -> Result<()> {
    let layer = crate::layer::Layer { inner: Arc::clone(inner) };
    for name in layer.all_databases(&NameRange::default()).await? {
        match look_at(&layer.reader(&name)).await {
            Ok(()) | Err(Error::DatabaseNotFound) => {}
            // It must not keep those behind it from being looked at.
            Err(error) => tracing::warn!(database = name, %error, "it could not be found out whether to compact"),
        }
    }
    Ok(())
}

async fn look_at(database: &Reader) -> Result<()> {
    let info = database.info().await?;
    let is_much = info.superseded_size_bytes >= SUPERSEDED_BYTES_MIN;
    match is_much && info.superseded_size_bytes * 100 > info.active_size_bytes * SUPERSEDED_PERCENT_MAX {
        true => database.begin_compaction().await,
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fenced::database;
    use crate::{Database, Edit};
    use flatbed_flatten::json::{Limits, parse};

    async fn write_line(db: &Database, id: &str, generations: std::ops::RangeInclusive<u64>) {
        for generation in generations {
            let history = (1..=generation).rev().map(|at| format!("{at}-a").parse().unwrap()).collect();
            let body = parse(br#"{"a":1}"#, &Limits::default()).unwrap();
            let (history, attachments) = (Some(history), Vec::new());
            let edit = Edit { id: id.into(), parent: None, history, deleted: false, attachments, body };
            db.update(&edit).await.unwrap();
        }
    }

    async fn compact_from(db: &Database, ids: &[String], mut from: Option<From>) {
        loop {
            let instance = crate::write::batch::instance_of(&db.inner, &db.name).await.unwrap();
            let mut compact = Compact::new(&db.inner, &instance, ids, from);
            let done = transaction::write(&db.inner.db, &db.inner.metrics, &mut compact).await.unwrap();
            from = done.from;
            if from.is_none() {
                return;
            }
        }
    }

    #[tokio::test]
    async fn a_limit_that_is_lowered_in_the_middle_of_a_document_leaves_no_record_without_its_place() {
        let (db, _directory) = database().await;
        let ids = ["d".to_owned()];
        write_line(&db, "d", 1..=150).await;
        compact_from(&db, &ids, None).await;
        // What a transaction leaves that has come as far as there, with the limit of that time.
        let keys = crate::write::batch::instance_of(&db.inner, "db").await.unwrap().keys.document("d");
        let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
        let stamp = info(&trx, &keys, true).await.unwrap().expect("a document").stamp;
        let key = keys.revision(&"120-a".parse().unwrap());
        db.set_revs_limit(3).await.unwrap();
        compact_from(&db, &ids, Some(From { stamp, revs_limit: crate::REVS_LIMIT, key })).await;
        let report = crate::check::check_database(&db, |_| {}).await.unwrap();
        assert!(report.is_clean(), "{report:#?}");
    }
}
