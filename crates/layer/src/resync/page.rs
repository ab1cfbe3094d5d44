//! Pages of documents for a resync, read with their bodies and the revisions below them by one range.
//!
//! The range has all keys of the documents in it. A document that is all in a page, has one leaf and no blobs needs no
//! further read. Others are read one by one: those with conflicts, with bodies in blobs, with an expiry, or with more
//! bytes than are worth reading in vain.

use std::sync::Arc;

use flatbed_databases::document::body::Rows;
use flatbed_databases::document::tree::Leaves;
use flatbed_databases::document::verdict::Verdict;
use flatbed_databases::instance::Instance;
use flatbed_databases::limits::Limit;
use flatbed_databases::server::Inner;
use flatbed_revtree::RevId;
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::{DocumentKeys, DocumentPart, KeyRange, Subspace, take_int, take_rev};
use flatbed_store::proto;
use flatbed_store::records::{BodyPlace, Info, RevisionRecord, decode_ancestry};
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use foundationdb::future::{FdbKeyValue, FdbValues};
use futures_util::future::try_join_all;

use crate::resync::ranges::same;
use crate::resync::state::state_of;

/// The bytes after which a page ends.
const PAGE_BYTES: Limit<usize> = Limit::new(250_000, 3_000);

/// The documents after which a page ends.
const PAGE_DOCUMENTS: usize = 500;

/// The bytes of a document beyond which its other keys are skipped, and its revisions read one by one.
const WHOLE_BYTES_MAX: Limit<usize> = Limit::new(64_000, 1_500);

const RECORDS_AT_ONCE: usize = 100;

/// A document as it is judged.
pub(super) struct ScannedDocument {
    pub(super) id: String,
    pub(super) info: Info,
    /// Its leaves, as (deleted, revision), their records, and the verdicts in them.
    pub(super) leaves: Vec<(bool, RevId)>,
    pub(super) records: Vec<RevisionRecord>,
    pub(super) said: Vec<Verdict>,
    /// `None`: the bodies are to be read.
    pub(super) whole: Option<WholeDocument>,
}

/// The bodies of a document with one leaf.
pub(super) struct WholeDocument {
    pub(super) body: Rows,
    pub(super) parent: Option<RevId>,
    /// The parent's body, and whether it is deleted; `None`: it is not stored.
    pub(super) old: Option<(bool, Rows)>,
}

/// Consecutive documents of a range.
pub(super) struct DocumentPage {
    pub(super) instance: Arc<Instance>,
    pub(super) documents: Vec<ScannedDocument>,
    /// True if no document of the range follows.
    pub(super) is_last: bool,
}

/// Reads a page. `None`: the resync was stopped, has ended, or has begun anew.
pub(super) struct ReadPage<'a> {
    pub(super) inner: &'a Inner,
    pub(super) instance: &'a Instance,
    pub(super) number: u64,
    pub(super) first: &'a str,
    pub(super) range: &'a proto::ResyncRange,
}

impl Operation for ReadPage<'_> {
    type Output = Option<DocumentPage>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = same(self.inner, trx, self.instance).await?;
        let keys = &instance.keys;
        let range = KeyRange {
            begin: match (self.range.done_until.as_str(), self.first) {
                ("", "") => keys.subspace(Subspace::Documents).begin,
                ("", first) => keys.document(first).whole().begin,
                (done, _) => keys.document(done).whole().end,
            },
            end: keys.document(&self.range.until).whole().begin,
        };
        let first = (range.begin < range.end).then(|| trx.range(&range, true).begin(None));
        let state = state_of(trx, &instance, true).await?;
        let is_current = |state: &proto::Resync| state.run == self.range.run && !state.stopped;
        if !state.as_ref().is_some_and(is_current) || instance.channels() != self.number {
            return Ok(None);
        }
        let mut scan = Scan { instance: &instance, documents: Vec::new(), pending: None, bytes: 0 };
        let is_last = match first {
            Some(first) => scan.rows(trx, first.finish(trx).await?.into_parts()).await?,
            None => true,
        };
        let documents = scan.documents.into_iter().map(|scanned| whole_or_read(trx, &instance, scanned));
        let documents = try_join_all(documents).await?;
        Ok(Some(DocumentPage { documents, is_last, instance: Arc::clone(&instance) }))
    }
}

async fn whole_or_read(trx: &Transaction, instance: &Instance, scanned: PageDocument) -> Result<ScannedDocument> {
    match scanned {
        PageDocument::Whole(document) => Ok(*document),
        PageDocument::Partly(id, info) => with_leaves(trx, instance, id, *info).await,
    }
}

/// Reads the leaves of a document, with their records.
async fn with_leaves(trx: &Transaction, instance: &Instance, id: String, info: Info) -> Result<ScannedDocument> {
    let keys = instance.keys.document(&id);
    let leaves: Vec<(bool, RevId)> = match info.leaf_count {
        1 => vec![(info.deleted, info.winner.clone())],
        _ => Leaves::read(trx, &keys).await?.0.into_iter().map(|leaf| (leaf.deleted, leaf.rev)).collect(),
    };
    let mut records = Vec::with_capacity(leaves.len());
    for some in leaves.chunks(RECORDS_AT_ONCE) {
        let found = try_join_all(some.iter().map(|(_, rev)| trx.get(&keys.revision(rev), true))).await?;
        for ((_, rev), record) in some.iter().zip(found) {
            let record = record.ok_or_else(|| Error::Corrupt(format!("leaf {rev} has no record")))?;
            records.push(RevisionRecord::decode(&record)?);
        }
    }
    let said = records.iter().map(|record| Verdict::decode(record.verdict.clone())).collect();
    Ok(ScannedDocument { id, info, leaves, records, said, whole: None })
}

/// A document of a page: all that its judgement needs, or what further reads begin with.
enum PageDocument {
    Whole(Box<ScannedDocument>),
    Partly(String, Box<Info>),
}

/// A row: its page, its place there, and the part of its document that it belongs to.
type Row = (Arc<FdbValues>, usize, DocumentPart);

/// The rows of a document so far.
struct Pending {
    id: String,
    rows: Vec<Row>,
    bytes: usize,
}

struct Scan<'a> {
    instance: &'a Instance,
    documents: Vec<PageDocument>,
    /// The last document, which may have further rows.
    pending: Option<Pending>,
    bytes: usize,
}

impl Scan<'_> {
    /// Reads replies until they are a page. Returns whether the range is through.
    async fn rows(&mut self, trx: &Transaction, first: (FdbValues, Option<KeyRange>)) -> Result<bool> {
        let (mut page, mut rest) = first;
        loop {
            self.reply(page)?;
            let Some(behind) = rest.take() else {
                self.end(true)?;
                return Ok(true);
            };
            let mut next = behind;
            if self.pending.as_ref().is_some_and(|pending| pending.bytes > WHOLE_BYTES_MAX.get())
                && let Some(id) = self.end(false)?
            {
                next.begin = next.begin.max(self.instance.keys.document(&id).whole().end);
                if next.begin >= next.end {
                    return Ok(true);
                }
            }
            if self.bytes >= PAGE_BYTES.get() || self.documents.len() >= PAGE_DOCUMENTS {
                if self.documents.is_empty() {
                    self.end(false)?;
                }
                return Ok(false);
            }
            (page, rest) = trx.range(&next, true).reply().await?.into_parts();
        }
    }

    fn reply(&mut self, page: FdbValues) -> Result<()> {
        let page = Arc::new(page);
        for (at, row) in page.iter().enumerate() {
            let (id, part, _) = self.instance.keys.split_document(row.key())?;
            let bytes = row.key().len() + row.value().len();
            self.bytes += bytes;
            if self.pending.as_ref().is_some_and(|pending| pending.id != id) {
                self.end(true)?;
            }
            let pending = self.pending.get_or_insert_with(|| Pending { id, rows: Vec::new(), bytes: 0 });
            pending.rows.push((page.clone(), at, part));
            pending.bytes += bytes;
        }
        Ok(())
    }

    /// Ends the last document, and returns its id. `is_whole`: all its rows were read.
    fn end(&mut self, is_whole: bool) -> Result<Option<String>> {
        let Some(pending) = self.pending.take() else { return Ok(None) };
        let id = pending.id.clone();
        self.documents.push(scanned(self.instance, pending, is_whole)?);
        Ok(Some(id))
    }
}

fn row_at((page, at, _): &Row) -> Option<&FdbKeyValue> {
    page.get(*at)
}

fn scanned(instance: &Instance, pending: Pending, is_whole: bool) -> Result<PageDocument> {
    let Pending { id, rows, .. } = pending;
    let keys = instance.keys.document(&id);
    let first = rows.first().filter(|(.., part)| *part == DocumentPart::Info).and_then(row_at);
    let first = first.ok_or_else(|| Error::Corrupt(format!("document {id:?} has no info")))?;
    let info = Info::decode(first.value())?;
    let whole = if is_whole { whole(instance, &keys, &info, &rows)? } else { None };
    Ok(match whole {
        Some((record, whole)) => {
            let said = Verdict::decode(record.verdict.clone());
            let leaves = vec![(info.deleted, info.winner.clone())];
            let (records, said, whole) = (vec![record], vec![said], Some(whole));
            PageDocument::Whole(Box::new(ScannedDocument { id, info, leaves, records, said, whole }))
        }
        None => PageDocument::Partly(id, Box::new(info)),
    })
}

/// Returns the record of a document's only leaf, and the bodies. `None`: they need further reads.
fn whole(
    instance: &Instance,
    keys: &DocumentKeys,
    info: &Info,
    rows: &[Row],
) -> Result<Option<(RevisionRecord, WholeDocument)>> {
    let is_plain = |place: &BodyPlace| *place == BodyPlace::Rows;
    if info.leaf_count != 1 || !is_plain(&info.place) || info.routed.expires_at_ms.is_some() {
        return Ok(None);
    }
    let of = |wanted: DocumentPart| rows.iter().filter(move |(.., part)| *part == wanted);
    let leaves_at = keys.leaves().begin.len();
    let Some(leaf) = of(DocumentPart::Leaf).next().and_then(row_at) else { return Ok(None) };
    let (_, rest) = take_int(leaf.key().get(leaves_at..).unwrap_or_default())?;
    let (rev, _) = take_rev(rest)?;
    if rev != info.winner {
        return Ok(None);
    }
    let ancestry = decode_ancestry(&rev, leaf.value())?;
    let record_of = |rev: &RevId| {
        let key = keys.revision(rev);
        let record = of(DocumentPart::Revision).filter_map(row_at).find(|row| row.key() == key);
        record.map(|row| RevisionRecord::decode(row.value())).transpose()
    };
    let expires = |record: &RevisionRecord| record.verdict.as_ref().is_some_and(|verdict| verdict.expires_at_ms > 0);
    let Some(record) = record_of(&rev)?.filter(|record| !expires(record)) else { return Ok(None) };
    let has_ancestors = instance.revs_limit() > 1;
    if has_ancestors && ancestry.recent.is_empty() && ancestry.sealed_count > 0 {
        return Ok(None);
    }
    let parent = ancestry.recent.into_iter().next().filter(|_| has_ancestors);
    let mut old = None;
    if let Some(parent) = &parent
        && let Some(record) = record_of(parent)?.filter(|record| !record.body_dropped)
    {
        if !is_plain(&record.place) || expires(&record) {
            return Ok(None);
        }
        let range = keys.revision_body_rows(parent);
        let is_in = |row: &FdbKeyValue| *range.begin <= *row.key() && *row.key() < *range.end;
        let rows = of(DocumentPart::RevisionBody).filter(|at| row_at(at).is_some_and(is_in));
        old = Some((record.deleted, rows_of(rows, range.begin.len())));
    }
    let body = rows_of(of(DocumentPart::Body), keys.body().len());
    Ok(Some((record, WholeDocument { body, parent, old })))
}

fn rows_of<'r>(rows: impl Iterator<Item = &'r Row>, prefix_bytes: usize) -> Rows {
    let mut found = Rows::new(Vec::new(), prefix_bytes);
    let mut run: Option<(&Arc<FdbValues>, std::ops::Range<usize>)> = None;
    for (page, at, _) in rows {
        match &mut run {
            Some((last, rows)) if Arc::ptr_eq(last, page) && rows.end == *at => rows.end += 1,
            run => {
                if let Some((page, rows)) = run.replace((page, *at..at + 1)) {
                    found.push(page, rows);
                }
            }
        }
    }
    if let Some((page, rows)) = run {
        found.push(page, rows);
    }
    found
}
