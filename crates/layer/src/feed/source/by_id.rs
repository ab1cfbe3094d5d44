//! A feed of few documents, answered from what the documents say of themselves.
//!
//! Each document's record has the sequence of its newest change. All of them are read at one read version and sorted, so
//! that the rows are those that a walk of by-seq at that version passes. What does not fit a page comes with the next
//! ones: there each record is read again, since a document that has changed meanwhile stands elsewhere now. Its row is left
//! out, and comes where it stands, behind everything that was there at the first read.

use std::sync::Arc;

use crate::document::edit::check_document_id;
use crate::error::Result;
use crate::feed::changes::Changes;
use crate::feed::query::{Scope, Since};
use crate::feed::row::{ChangeRow, ChangesPage};
use crate::feed::source::by_seq::{PAGE_DOCUMENTS_MAX, PAGE_ROWS_MAX, Page};
use crate::instance::Instance;
use crate::read::get::last_seq;
use crate::store::records::Info;
use crate::store::seq::Seq;
use crate::store::transaction::{Attempt, Operation, Transaction};

/// Longer lists are answered by a walk of by-seq: so many records are read well within FoundationDB's 5 s.
const IDS_MAX: usize = 10_000;

/// Longer lists only where one page of by-seq did not do: close to the end there may be less to read than they are long.
const IDS_AT_ONCE_MAX: usize = 100;

/// Records that are being read at once.
const READS_AT_ONCE: usize = 256;

/// What is left of the documents that were found.
#[derive(Clone)]
pub(in crate::feed) struct Left {
    incarnation: u64,
    /// The newest sequence when they were.
    until: Seq,
    /// In the feed's order.
    documents: Vec<(Seq, String)>,
}

impl Left {
    fn first(&self, most: usize) -> &[(Seq, String)] {
        self.documents.get(..most).unwrap_or(&self.documents)
    }
}

impl Changes {
    /// The next page, if the list of documents is short and far back; else `None`.
    pub(in crate::feed) async fn next_by_ids(&mut self) -> Result<Option<(Arc<Instance>, ChangesPage)>> {
        let Scope::Ids(ids) = &self.query.scope else { return Ok(None) };
        let ids = ids.clone();
        let is_far_back = ids.len() <= IDS_AT_ONCE_MAX || self.is_behind;
        let is_now = self.cursor.is_none() && self.query.since == Since::Now;
        let begins = ids.len() <= IDS_MAX && is_far_back && !is_now;
        if self.left.is_none() && !(begins && self.limit > 0) {
            return Ok(None);
        }
        let mut all: Vec<&str> = Vec::new();
        if self.left.is_none() {
            all.extend(ids.iter().map(String::as_str).filter(|id| check_document_id(id).is_ok()));
            // Close to one another in the store, too.
            all.sort_unstable();
        }
        let mut by_ids = ByIds { page: self.page(), ids: &all, left: self.left.as_ref() };
        let Some((instance, page, found)) = self.database.read(&mut by_ids).await? else {
            // The database is another one now.
            self.left = None;
            return Ok(None);
        };
        let descending = self.query.descending;
        self.left = found.or(self.left.take()).filter(|_| !page.at_end);
        if let Some(left) = &mut self.left {
            let passed = |seq: Seq| if descending { seq >= page.last_seq } else { seq <= page.last_seq };
            let count = left.documents.partition_point(|(seq, _)| passed(*seq));
            left.documents.drain(..count);
        }
        Ok(Some((instance, page)))
    }
}

struct ByIds<'a> {
    page: Page<'a>,
    /// Looked for where nothing is left of an earlier look.
    ids: &'a [&'a str],
    left: Option<&'a Left>,
}

impl Operation for ByIds<'_> {
    /// The page, and what was found where it was looked for; `None`: by-seq tells what has become of the database.
    type Output = Option<(Arc<Instance>, ChangesPage, Option<Left>)>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.page.inner.resolve(trx, self.page.name).await?;
        let query = self.page.query;
        let most = if query.extras.has_documents() { PAGE_DOCUMENTS_MAX } else { PAGE_ROWS_MAX };
        let looked;
        let (mut rows, left, found) = match self.left {
            Some(left) if left.incarnation != instance.incarnation() => return Ok(None),
            Some(left) => (unchanged(trx, &instance, left.first(most)).await?, left, false),
            None => {
                let Some((mut rows, found)) = self.look(trx, &instance).await? else { return Ok(None) };
                rows.truncate(most);
                looked = found;
                (rows, &looked, true)
            }
        };
        let considered = left.first(most);
        let limit = usize::try_from(self.page.limit).unwrap_or(usize::MAX);
        let is_full = rows.len() >= limit;
        rows.truncate(limit);
        let is_last = considered.len() == left.documents.len();
        let passed = considered.last().map(|(seq, _)| *seq);
        let stands = match (is_full, rows.last()) {
            (true, Some(last)) => last.seq,
            // At the end the feed stands at the newest sequence, whatever was not asked for.
            _ if is_last && !query.descending => left.until,
            _ => passed.or(self.page.cursor).unwrap_or(left.until),
        };
        let (instance, page) = self.page.with_documents(trx, &instance, rows, is_last || is_full, stands).await?;
        Ok(Some((instance, page, found.then(|| left.clone()))))
    }
}

impl ByIds<'_> {
    /// All documents of the list that the feed is to show, in its order.
    async fn look(&self, trx: &Transaction, instance: &Instance) -> Result<Option<(Vec<ChangeRow>, Left)>> {
        let incarnation = instance.incarnation();
        let descending = self.page.query.descending;
        let cursor = self.page.cursor;
        if descending && cursor.is_some_and(|cursor| cursor.incarnation() != incarnation) {
            // By-seq tells of it.
            return Ok(None);
        }
        let until = last_seq(trx, instance).await?;
        let of_this = |seq: Seq| if seq.incarnation() == incarnation { seq } else { Seq::zero(incarnation) };
        let since = match self.page.query.since {
            Since::Beginning => Seq::zero(incarnation),
            Since::Now => until,
            Since::After(seq) => of_this(seq),
        };
        let after = if descending { since } else { cursor.map_or(since, of_this) };
        let mut rows = infos(trx, instance, self.ids.iter().copied()).await?;
        rows.retain(|row| row.seq > after && (!descending || cursor.is_none_or(|cursor| row.seq < cursor)));
        rows.sort_unstable_by_key(|row| row.seq);
        if descending {
            rows.reverse();
        }
        let documents = rows.iter().map(|row| (row.seq, row.id.clone())).collect();
        Ok(Some((rows, Left { incarnation, until, documents })))
    }
}

/// Rows of those that have not changed since they were found.
async fn unchanged(trx: &Transaction, instance: &Instance, part: &[(Seq, String)]) -> Result<Vec<ChangeRow>> {
    let found = infos(trx, instance, part.iter().map(|(_, id)| id.as_str())).await?;
    let mut found = found.into_iter().peekable();
    let mut rows = Vec::with_capacity(part.len());
    for (seq, id) in part {
        // A document that was purged has no record.
        rows.extend(found.next_if(|row| row.id == *id).filter(|row| row.seq == *seq));
    }
    Ok(rows)
}

/// Rows of those documents that there are, in the order given.
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
            let leaf_count = usize::try_from(info.leaf_count).unwrap_or(usize::MAX);
            let (rev, leaves) = (info.winner.clone(), vec![info.winner]);
            rows.push(ChangeRow {
                seq,
                id: (*id).to_owned(),
                rev,
                leaves,
                leaf_count,
                deleted: info.deleted,
                doc: None,
            });
        }
    }
    Ok(rows)
}
