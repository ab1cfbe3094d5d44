//! A feed of few documents, answered from their records.
//!
//! Each document's record has the sequence of its newest change. All of them are read at one read version and sorted,
//! so the rows equal those of a scan of by-seq at that version. Documents beyond the first page come with the next
//! ones, which read each record again: a document that has changed meanwhile is skipped, and comes at its new sequence,
//! behind all documents of the first read.

use std::collections::HashSet;
use std::sync::Arc;

use flatbed_databases::document::edit::check_document_id;
use flatbed_databases::instance::{Instance, InstanceId};
use flatbed_databases::server::Inner;
use flatbed_store::error::Result;
use flatbed_store::records::Info;
use flatbed_store::seq::Seq;
use flatbed_store::transaction::Transaction;
use futures_util::future::try_join;

use crate::feed::query::Since;
use crate::feed::row::{ChangeRow, ChangesPage};
use crate::feed::source::by_seq::BySeq;
use crate::feed::source::{FeedPage, PendingCount, RowVerdict, Source, known_seq};
use crate::feed::tail::TailRow;

/// Length limit of a list: its records are read well within FoundationDB's 5 s. A longer list is answered by a scan of
/// by-seq.
const IDS_MAX: usize = 10_000;

/// Length limit of a list that is looked up at once. A longer one is looked up only if one page of by-seq did not reach
/// the end: near the end by-seq may be shorter than the list.
const IDS_AT_ONCE_MAX: usize = 100;

const READS_AT_ONCE: usize = 256;

/// The documents that further pages have to show.
#[derive(Clone)]
struct RemainingDocuments {
    instance: InstanceId,
    /// The newest sequence at the lookup.
    until: Seq,
    /// All of them, in the feed's order.
    documents: Arc<[(Seq, String)]>,
    passed: usize,
}

impl RemainingDocuments {
    fn rest(&self) -> &[(Seq, String)] {
        self.documents.get(self.passed..).unwrap_or_default()
    }

    fn first(&self, most: usize) -> &[(Seq, String)] {
        let rest = self.rest();
        rest.get(..most).unwrap_or(rest)
    }

    /// Passes the documents up to the feed's position.
    fn pass(&mut self, last_seq: Seq, descending: bool) {
        let is_passed = |seq: Seq| if descending { seq >= last_seq } else { seq <= last_seq };
        self.passed += self.rest().partition_point(|(seq, _)| is_passed(*seq));
    }
}

/// Changes of some documents: looked up if they are few and the feed is far behind, else filtered from a scan of
/// by-seq.
pub struct ByIds {
    ids: Arc<HashSet<String>>,
    walk: BySeq,
    left: Option<RemainingDocuments>,
    /// True if the last page did not reach the end.
    is_behind: bool,
}

impl ByIds {
    /// `walk`: the scan for the same documents.
    pub(super) fn new(ids: Arc<HashSet<String>>, walk: BySeq) -> ByIds {
        ByIds { ids, walk, left: None, is_behind: false }
    }

    fn should_look_up(&self, page: &FeedPage<'_>) -> bool {
        let is_far_back = self.ids.len() <= IDS_AT_ONCE_MAX || self.is_behind;
        let is_now = page.cursor.is_none() && page.since == Since::Now;
        self.ids.len() <= IDS_MAX && is_far_back && !is_now && page.limit > 0
    }

    /// Returns the first documents that have not changed since the lookup, and all that are left; `None` if by-seq
    /// answers.
    async fn remaining(
        &self,
        trx: &Transaction,
        instance: &Instance,
        page: &FeedPage<'_>,
    ) -> Result<Option<(Vec<ChangeRow>, RemainingDocuments)>> {
        match &self.left {
            // The database was replaced by another one.
            Some(left) if left.instance != instance.id() => Ok(None),
            Some(left) => {
                let rows = unchanged_rows(trx, instance, left.first(page.rows_max())).await?;
                Ok(Some((rows, left.clone())))
            }
            None if self.should_look_up(page) => {
                let mut found = self.look_up(trx, instance, page).await?;
                if let Some((rows, _)) = &mut found {
                    rows.truncate(page.rows_max());
                }
                Ok(found)
            }
            None => Ok(None),
        }
    }

    /// Returns all documents of the list that the feed shows, in its order.
    async fn look_up(
        &self,
        trx: &Transaction,
        instance: &Instance,
        page: &FeedPage<'_>,
    ) -> Result<Option<(Vec<ChangeRow>, RemainingDocuments)>> {
        let (descending, cursor) = (page.descending, page.cursor());
        if descending && cursor.is_some_and(|cursor| !instance.has_seq(&cursor)) {
            // By-seq has the row.
            return Ok(None);
        }
        // Requested with the records, of the same read version.
        let until = instance.buckets.begin_last_seq(trx, instance.epoch_begin());
        let begin = cursor.filter(|_| !descending).map(|cursor| known_seq(instance, cursor));
        let Some(after) = begin.or(page.since(instance)) else { return Ok(None) };
        let mut ids: Vec<&str> =
            self.ids.iter().map(String::as_str).filter(|id| check_document_id(id).is_ok()).collect();
        // Neighbouring keys are read together.
        ids.sort_unstable();
        let (mut rows, until) = try_join(infos(trx, instance, ids.into_iter()), until).await?;
        rows.retain(|row| row.seq > after && (!descending || cursor.is_none_or(|cursor| row.seq < cursor)));
        rows.sort_unstable_by_key(|row| row.seq);
        if descending {
            rows.reverse();
        }
        let documents = rows.iter().map(|row| (row.seq, row.id.clone())).collect();
        Ok(Some((rows, RemainingDocuments { instance: instance.id(), until, documents, passed: 0 })))
    }
}

impl Source for ByIds {
    async fn read(&mut self, trx: &Transaction, instance: &Arc<Instance>, page: &FeedPage<'_>) -> Result<ChangesPage> {
        let Some((mut rows, mut left)) = self.remaining(trx, instance, page).await? else {
            let read = self.walk.read(trx, instance, page).await?;
            (self.left, self.is_behind) = (None, !read.at_end);
            return Ok(read);
        };
        let considered = left.first(page.rows_max());
        let limit = usize::try_from(page.limit).unwrap_or(usize::MAX);
        let is_full = rows.len() >= limit;
        rows.truncate(limit);
        let is_last = considered.len() == left.rest().len();
        let passed = considered.last().map(|(seq, _)| *seq);
        let stands = match (is_full, rows.last()) {
            (true, Some(last)) => last.seq,
            // At the end the feed is at the newest sequence, also if the list does not have its row.
            _ if is_last && !page.descending => left.until,
            _ => passed.or(page.cursor()).unwrap_or(left.until),
        };
        let read = page.complete(trx, instance, rows, is_last || is_full, stands).await?;
        left.pass(read.last_seq.seq(), page.descending);
        (self.left, self.is_behind) = ((!read.at_end).then_some(left), !read.at_end);
        Ok(read)
    }

    fn sees(&self, row: &TailRow) -> RowVerdict {
        self.walk.sees(row)
    }

    async fn pending(
        &self,
        trx: &Transaction,
        inner: &Inner,
        instance: &Instance,
        behind: &mut PendingCount,
    ) -> Result<Option<u64>> {
        self.walk.pending(trx, inner, instance, behind).await
    }
}

/// Reads the rows of documents that have not changed since the lookup.
async fn unchanged_rows(trx: &Transaction, instance: &Instance, part: &[(Seq, String)]) -> Result<Vec<ChangeRow>> {
    let found = infos(trx, instance, part.iter().map(|(_, id)| id.as_str())).await?;
    let mut found = found.into_iter().peekable();
    let mut rows = Vec::with_capacity(part.len());
    for (seq, id) in part {
        // A purged document has no record.
        rows.extend(found.next_if(|row| row.id == *id).filter(|row| row.seq == *seq));
    }
    Ok(rows)
}

/// Reads the rows of the documents that exist, in the order given.
async fn infos<'i>(
    trx: &Transaction,
    instance: &Instance,
    ids: impl Iterator<Item = &'i str> + Send,
) -> Result<Vec<ChangeRow>> {
    let mut rows = Vec::new();
    let ids: Vec<&str> = ids.collect();
    for some in ids.chunks(READS_AT_ONCE) {
        let reads: Vec<_> = some.iter().map(|id| trx.get(&instance.keys.document(id).info(), true)).collect();
        for (id, read) in some.iter().zip(reads) {
            let Some(bytes) = read.await? else { continue };
            let info = Info::decode(&bytes)?;
            let seq = Seq::new(instance.incarnation(), info.stamp);
            let (leaf_count, ends_at_ms) = (usize::try_from(info.leaf_count).unwrap_or(usize::MAX), info.ends_at_ms());
            let (rev, leaves) = (info.winner.clone(), vec![info.winner]);
            let (id, deleted) = ((*id).to_owned(), info.deleted);
            let row = ChangeRow { deleted, leaf_count, ..ChangeRow::changed(seq, id, rev, leaves) };
            rows.push(row.ending(ends_at_ms, trx.clock()));
        }
    }
    Ok(rows)
}
