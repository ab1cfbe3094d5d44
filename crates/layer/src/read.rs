//! Reading single documents.

use flatbed_revtree::RevId;
use foundationdb::{RangeOption, Transaction};

use crate::body::{self, BODY_BYTES_MAX, RangeRead, Rows};
use crate::document::{Document, GetOptions};
use crate::error::{Error, NotFound, Result};
use crate::instance::Instance;
use crate::keys::{DocumentKeys, take_int, take_rev};
use crate::layer::{Inner, REVS_LIMIT};
use crate::records::{BodyPlace, Info, RevisionRecord, decode_ancestry, decode_segment};
use crate::seq::Seq;
use crate::transaction::{Attempt, Operation};

/// Documents whose reads are issued before the first is awaited.
pub(crate) const READ_AHEAD: usize = 16;

/// Bodies that are read at once take about this much at most (one more document may pass it).
pub(crate) const READ_BYTES_MAX: usize = 1_000_000;

/// The read of a document's info and latest body, under way.
pub(crate) struct LatestRead<F> {
    keys: DocumentKeys,
    read: RangeRead<F>,
}

/// Begins to read a document's latest revision: one range.
pub(crate) fn begin_latest(
    trx: &Transaction,
    instance: &Instance,
    id: &str,
) -> LatestRead<impl Future<Output = foundationdb::FdbResult<foundationdb::future::FdbValues>> + Send + use<>> {
    let keys = instance.keys.document(id);
    let read = body::begin_read(trx, keys.latest());
    LatestRead { keys, read }
}

impl<F> LatestRead<F>
where
    F: Future<Output = foundationdb::FdbResult<foundationdb::future::FdbValues>> + Send,
{
    /// The info record and the body's rows; `None`: no such document.
    pub(crate) async fn finish(self, trx: &Transaction, instance: &Instance) -> Result<Option<(Info, Rows)>> {
        let prefix_bytes = self.keys.body().len();
        let pages = self.read.finish(trx, BODY_BYTES_MAX).await?;
        let Some((info, rows)) = body::split_latest(pages, &self.keys.info(), prefix_bytes) else { return Ok(None) };
        let info = Info::decode(&info)?;
        let rows = match &info.place {
            BodyPlace::Rows => rows,
            BodyPlace::Blob(blob_id) => body::read_rows(trx, instance.keys.blob_rows(blob_id)).await?,
        };
        Ok(Some((info, rows)))
    }

    /// The document as it stands; `None`: no such document.
    pub(crate) async fn document(
        self,
        trx: &Transaction,
        inner: &Inner,
        instance: &Instance,
        id: &str,
    ) -> Result<Option<Document>> {
        let Some((info, rows)) = self.finish(trx, instance).await? else { return Ok(None) };
        inner.metrics.documents_read.add(1);
        let body = body::to_json(inner, instance, &rows).await?;
        Ok(Some(plain(id, info.winner, info.deleted, body)))
    }
}

/// A row of a walk or a feed that can show its document.
pub(crate) trait ShowsDocument {
    fn id(&self) -> &str;
    fn show(&mut self, document: Option<Document>);
}

/// Reads the rows' documents as far as [`READ_BYTES_MAX`] goes; drops the rows behind and says whether there were any.
pub(crate) async fn show_documents<R: ShowsDocument>(
    trx: &Transaction,
    inner: &Inner,
    instance: &Instance,
    rows: &mut Vec<R>,
) -> Result<bool> {
    let (mut bytes, mut at) = (0, 0);
    while at < rows.len() {
        let end = (at + READ_AHEAD).min(rows.len());
        let reads: Vec<_> = rows[at..end].iter().map(|row| begin_latest(trx, instance, row.id())).collect();
        for read in reads {
            let document = read.document(trx, inner, instance, rows[at].id()).await?;
            bytes += document.as_ref().map_or(0, |document| document.body.len());
            rows[at].show(document);
            at += 1;
            if bytes > READ_BYTES_MAX && at < rows.len() {
                rows.truncate(at);
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Reads documents in one transaction, as far as [`READ_BYTES_MAX`] goes.
pub(crate) struct GetMany<'a> {
    pub inner: &'a Inner,
    pub name: &'a str,
    pub requests: &'a [(String, GetOptions)],
}

impl Operation for GetMany<'_> {
    type Output = Vec<Result<Document>>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.inner.resolve(trx, self.name).await?;
        let mut documents = Vec::with_capacity(self.requests.len());
        let mut bytes = 0;
        for requests in self.requests.chunks(READ_AHEAD) {
            let reads: Vec<_> = requests.iter().map(|(id, _)| begin_latest(trx, &instance, id)).collect();
            for ((id, options), read) in requests.iter().zip(reads) {
                if bytes > READ_BYTES_MAX {
                    return Ok(documents);
                }
                let found = read.finish(trx, &instance).await?;
                let get = Get { inner: self.inner, instance: &instance, trx, id, options };
                documents.push(match get.answer(found).await {
                    Err(error @ (Error::DocumentNotFound(_) | Error::InvalidRevision)) => Err(error),
                    answer => Ok(answer?),
                });
                bytes += documents.last().and_then(|last| last.as_ref().ok()).map_or(0, |document| document.body.len());
            }
        }
        Ok(documents)
    }
}

/// Reads one document.
pub(crate) struct GetOne<'a> {
    pub inner: &'a Inner,
    pub name: &'a str,
    pub id: &'a str,
    pub options: &'a GetOptions,
}

impl Operation for GetOne<'_> {
    type Output = Document;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Document> {
        let instance = self.inner.resolve(trx, self.name).await?;
        let found = begin_latest(trx, &instance, self.id).finish(trx, &instance).await?;
        Get { inner: self.inner, instance: &instance, trx, id: self.id, options: self.options }.answer(found).await
    }
}

struct Get<'a> {
    inner: &'a Inner,
    instance: &'a Instance,
    trx: &'a Transaction,
    id: &'a str,
    options: &'a GetOptions,
}

impl Get<'_> {
    async fn answer(&self, found: Option<(Info, Rows)>) -> Result<Document> {
        let Some((info, rows)) = found else { return Err(Error::DocumentNotFound(NotFound::Missing)) };
        self.inner.metrics.documents_read.add(1);
        let keys = self.instance.keys.document(self.id);
        let (rev, deleted, rows) = match &self.options.rev {
            None if info.deleted && !self.options.tombstone => return Err(Error::DocumentNotFound(NotFound::Deleted)),
            Some(rev)
                if *rev != info.winner && !(self.options.latest && self.line(&keys, &info).await?.contains(rev)) =>
            {
                let (record, rows) = self.superseded(&keys, rev).await?;
                (rev.clone(), record.deleted, rows)
            }
            _ => (info.winner.clone(), info.deleted, rows),
        };
        let body =
            if self.options.no_body { Vec::new() } else { body::to_json(self.inner, self.instance, &rows).await? };
        let mut document = plain(self.id, rev, deleted, body);
        if self.options.revs || self.options.revs_info {
            let line = self.line(&keys, &info).await?;
            // An older revision's own line begins with itself.
            let line: Vec<RevId> = line.into_iter().skip_while(|rev| *rev != document.rev).collect();
            if self.options.revs_info {
                document.revs_info = Some(self.availability(&keys, &info, &line).await?);
            }
            document.revisions = self.options.revs.then_some(line);
        }
        if self.options.local_seq {
            document.local_seq = Some(Seq::new(self.instance.incarnation(), info.stamp));
        }
        Ok(document)
    }

    async fn superseded(&self, keys: &DocumentKeys, rev: &RevId) -> Result<(RevisionRecord, Rows)> {
        let missing = || Error::DocumentNotFound(NotFound::Missing);
        let record = self.trx.get(&keys.revision(rev), true);
        let rows = body::begin_read(self.trx, keys.revision_body_rows(rev));
        let record = RevisionRecord::decode(&record.await?.ok_or_else(missing)?)?;
        if record.body_dropped {
            return Err(missing());
        }
        let rows = match &record.place {
            BodyPlace::Rows => Rows::new(rows.finish(self.trx, BODY_BYTES_MAX).await?, keys.revision_body(rev).len()),
            BodyPlace::Blob(blob_id) => body::read_rows(self.trx, self.instance.keys.blob_rows(blob_id)).await?,
        };
        Ok((record, rows))
    }

    /// The winner and its ancestors, newest first, as far as the limit goes.
    async fn line(&self, keys: &DocumentKeys, info: &Info) -> Result<Vec<RevId>> {
        let leaf = self.trx.get(&keys.leaf(info.deleted, &info.winner), true).await?;
        let leaf = leaf.ok_or_else(|| Error::Corrupt("a document's winner is not among its leaves".into()))?;
        let ancestry = decode_ancestry(&info.winner, &leaf)?;
        let mut line = vec![info.winner.clone()];
        line.extend(ancestry.recent);
        if ancestry.sealed_count > 0 {
            let prefix_bytes = keys.ancestor_segments().begin.len();
            let segments =
                body::begin_read(self.trx, keys.ancestor_segments()).finish(self.trx, BODY_BYTES_MAX).await?;
            let mut older = Vec::new();
            for row in segments.iter().flat_map(|page| page.iter()) {
                let (generation, _) = take_int(row.key().get(prefix_bytes..).unwrap_or_default())?;
                older.push(decode_segment(generation, row.value())?);
            }
            line.extend(older.into_iter().rev().flatten());
        }
        line.truncate(REVS_LIMIT as usize);
        Ok(line)
    }

    async fn availability(&self, keys: &DocumentKeys, info: &Info, line: &[RevId]) -> Result<Vec<(RevId, bool)>> {
        let range = keys.revisions();
        let prefix_bytes = range.begin.len();
        let mut available = std::collections::HashSet::new();
        for page in body::begin_read(self.trx, range).finish(self.trx, BODY_BYTES_MAX).await? {
            for row in &page {
                if !RevisionRecord::decode(row.value())?.body_dropped {
                    available.insert(take_rev(row.key().get(prefix_bytes..).unwrap_or_default())?.0);
                }
            }
        }
        Ok(line.iter().map(|rev| (rev.clone(), *rev == info.winner || available.contains(rev))).collect())
    }
}

/// Reads the info of a document only.
pub(crate) async fn info(trx: &Transaction, keys: &DocumentKeys, snapshot: bool) -> Result<Option<Info>> {
    trx.get(&keys.info(), snapshot).await?.map(|bytes| Info::decode(&bytes)).transpose()
}

/// The database's newest sequence.
pub(crate) async fn last_seq(trx: &Transaction, instance: &Instance) -> Result<Seq> {
    match trx.get(&instance.keys.last_seq(), true).await? {
        None => Ok(Seq::zero(instance.incarnation())),
        Some(stamp) => Seq::from_slice(instance.incarnation(), &stamp),
    }
}

/// A range option for one page of rows.
pub(crate) fn page_of(range: &crate::keys::KeyRange, limit: usize, reverse: bool) -> RangeOption<'_> {
    RangeOption {
        mode: foundationdb::options::StreamingMode::WantAll,
        limit: Some(limit),
        reverse,
        ..RangeOption::from((range.begin.as_slice(), range.end.as_slice()))
    }
}

fn plain(id: &str, rev: RevId, deleted: bool, body: Vec<u8>) -> Document {
    Document { id: id.to_owned(), rev, deleted, body, revisions: None, revs_info: None, local_seq: None }
}
