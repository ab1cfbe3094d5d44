//! Reads of single documents.

use std::collections::{BTreeSet, VecDeque};

use async_recursion::async_recursion as boxed;
use flatbed_databases::asker::ReadPrincipal;
use flatbed_databases::document::attachments;
use flatbed_databases::document::body::{self, BODY_BYTES_MAX, Rows};
use flatbed_databases::document::edit::{Conflicts, Document, GetOptions};
use flatbed_databases::document::latest::{LatestRead, begin_latest, begin_latest_of, whole_body};
use flatbed_databases::document::tree::Leaves;
use flatbed_databases::handles::ReadHandle;
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_flatten::etf::body_revision;
use flatbed_flatten::json::Value;
use flatbed_revtree::{RevId, Tree};
use flatbed_store::error::{Error, NotFound, Refusal, Result};
use flatbed_store::keys::DocumentKeys;
use flatbed_store::records::{BodyPlace, Info, RevisionRecord};
use flatbed_store::seq::Seq;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use futures_util::FutureExt;

use crate::read::over::{DocumentReads, RequestReads};
use crate::read::revision_records::Records;
use crate::read::seen;
use crate::read::viewer::{Viewer, is_judged};

/// Documents whose reads are issued before the first is awaited.
pub const READ_AHEAD: usize = 16;

/// As [`READ_AHEAD`], for small documents.
const READ_AHEAD_SMALL: usize = 256;

/// Average size up to which documents count as small.
const SMALL_AVERAGE_BYTES: usize = 8_000;

/// Size limit of documents that are kept in memory for all followers.
const SMALL_BYTES_MAX: usize = 64 * 1024;

/// Size limit of a document read with [`GetOptions::small_only`]; one page of a read is rarely larger.
const SMALL_ONLY_BYTES_MAX: usize = 256 * 1024;

/// Approximate size of bodies that one transaction reads; the last document may exceed it.
pub const READ_BYTES_MAX: usize = 1_000_000;

/// The part of [`READ_BYTES_MAX`] that a revision takes beside its body: it is a separate read, and a transaction has 5
/// s.
pub(super) const REVISION_COST_BYTES: usize = 2_000;

/// The part of [`READ_BYTES_MAX`] that each leaf takes of a document with several, because requests for revisions may
/// read all.
pub(super) const LEAF_COST_BYTES: usize = 100;

/// The reads of a [`LatestRead`].
pub trait LatestFuture: Future<Output = foundationdb::FdbResult<foundationdb::future::FdbValues>> + Send {}

impl<F> LatestFuture for F where F: Future<Output = foundationdb::FdbResult<foundationdb::future::FdbValues>> + Send {}

/// As [`LatestRead::finish`], for a small document.
///
/// # Errors
/// [`Refusal::LargeDocument`].
pub(super) async fn finish_small<F: LatestFuture>(
    read: LatestRead<F>,
    trx: &Transaction,
) -> Result<Option<(Info, Rows)>> {
    let found = finish_one_page(read, trx, SMALL_ONLY_BYTES_MAX).await?;
    match found {
        // A document that is stored small may be compressed.
        Some((info, _)) if info.text_bytes() > SMALL_ONLY_BYTES_MAX as u64 => Err(Refusal::LargeDocument.into()),
        found => Ok(found),
    }
}

/// As [`LatestRead::finish`], for a document whose info and rows fit one page of at most `bytes_max`.
///
/// # Errors
/// [`Refusal::LargeDocument`].
async fn finish_one_page<F: LatestFuture>(
    read: LatestRead<F>,
    trx: &Transaction,
    bytes_max: usize,
) -> Result<Option<(Info, Rows)>> {
    let prefix_bytes = read.keys.body().len();
    let page = read.read.only_page(trx, bytes_max).await?.ok_or(Refusal::LargeDocument)?;
    let Some((info, rows)) = body::split_latest(vec![page], &read.keys.info(), prefix_bytes) else {
        return Ok(None);
    };
    let info = Info::decode(&info)?.read_at(trx.clock().unix_ms());
    if info.place == BodyPlace::Rows { Ok(Some((info, rows))) } else { Err(Refusal::LargeDocument.into()) }
}

/// Returns the document in its current state; `None` if there is none.
pub async fn latest_document<F: LatestFuture>(
    read: LatestRead<F>,
    trx: &Transaction,
    inner: &Inner,
    instance: &Instance,
    id: &str,
    conflicts: Conflicts,
) -> Result<Option<Document>> {
    let found = latest_with_info(read, trx, inner, instance, id, conflicts).await?;
    Ok(found.map(|(_, document)| document))
}

/// As `latest_document`, with the info.
pub async fn latest_with_info<F: LatestFuture>(
    read: LatestRead<F>,
    trx: &Transaction,
    inner: &Inner,
    instance: &Instance,
    id: &str,
    conflicts: Conflicts,
) -> Result<Option<(Info, Document)>> {
    let Some(found) = read.finish(trx, instance).await? else { return Ok(None) };
    let document = shown(&found, trx, inner, instance, id, conflicts).await?;
    Ok(Some((found.0, document)))
}

/// As `latest_document`, for at most [`SMALL_BYTES_MAX`] in one page; `None` for any larger document.
pub async fn small_document<F: LatestFuture>(
    read: LatestRead<F>,
    trx: &Transaction,
    inner: &Inner,
    instance: &Instance,
    id: &str,
    conflicts: Conflicts,
) -> Result<Option<Document>> {
    match finish_one_page(read, trx, SMALL_BYTES_MAX).await {
        Ok(Some(found)) => shown(&found, trx, inner, instance, id, conflicts).await.map(Some),
        Ok(None) | Err(Error::Refused(Refusal::LargeDocument)) => Ok(None),
        Err(error) => Err(error),
    }
}

pub async fn shown(
    found: &(Info, Rows),
    trx: &Transaction,
    inner: &Inner,
    instance: &Instance,
    id: &str,
    conflicts: Conflicts,
) -> Result<Document> {
    shown_to(None, found, trx, inner, instance, id, conflicts).await
}

/// As `shown`, for a reader who sees the document and possibly not its other leaves.
pub async fn shown_to(
    viewer: Option<&Viewer>,
    found: &(Info, Rows),
    trx: &Transaction,
    inner: &Inner,
    instance: &Instance,
    id: &str,
    conflicts: Conflicts,
) -> Result<Document> {
    let (live, all) = (conflicts >= Conflicts::Live, conflicts == Conflicts::All);
    let options = GetOptions { tombstone: true, conflicts: live, deleted_conflicts: all, ..GetOptions::default() };
    let once = DocumentReads::of([&options], viewer.is_some());
    Get { inner, instance, trx, id, options: &options, tree: None, once: &once, viewer }.answer(Some(found)).await
}

/// A row of a scan or a feed that can carry its document.
pub trait ShowsDocument {
    fn id(&self) -> &str;
    fn show(&mut self, document: Option<Document>);
}

/// The facts that a scan has of a row's document before it is shown.
#[derive(Default)]
pub enum KnownDocument {
    /// None: the document must be read.
    #[default]
    Unread,
    /// The document does not exist.
    Absent,
    Found(Box<Info>, Rows),
}

/// Reads the rows' documents up to [`READ_BYTES_MAX`], except known ones. Drops the rows behind the limit, and returns
/// whether there were any.
pub async fn show_documents<R: ShowsDocument>(
    trx: &Transaction,
    inner: &Inner,
    instance: &Instance,
    rows: &mut Vec<R>,
    known: Vec<KnownDocument>,
    conflicts: Conflicts,
) -> Result<bool> {
    show_documents_to(None, trx, inner, instance, rows, known, conflicts).await
}

/// As `show_documents`, for a reader who sees the documents and possibly not their other leaves.
pub async fn show_documents_to<R: ShowsDocument>(
    viewer: Option<&Viewer>,
    trx: &Transaction,
    inner: &Inner,
    instance: &Instance,
    rows: &mut Vec<R>,
    mut known: Vec<KnownDocument>,
    conflicts: Conflicts,
) -> Result<bool> {
    known.resize_with(rows.len(), KnownDocument::default);
    let (mut bytes, mut ahead, mut reads) = (0, 0, VecDeque::new());
    for at in 0..rows.len() {
        let document = match known.get_mut(at).map(std::mem::take).unwrap_or_default() {
            KnownDocument::Absent => None,
            KnownDocument::Found(info, rows_of) => {
                let found = whole_body(trx, instance, *info, rows_of).await?;
                Some(shown_to(viewer, &found, trx, inner, instance, rows[at].id(), conflicts).await?)
            }
            KnownDocument::Unread => {
                ahead = ahead.max(at);
                let (width, target_bytes) = read_ahead(bytes, at);
                while reads.len() < width && ahead < rows.len() {
                    if matches!(known.get(ahead), None | Some(KnownDocument::Unread)) {
                        reads.push_back(begin_latest_of(trx, instance, rows[ahead].id(), target_bytes));
                    }
                    ahead += 1;
                }
                match reads.pop_front() {
                    Some(read) => match read.finish(trx, instance).await? {
                        Some(found) => {
                            let id = rows[at].id();
                            Some(shown_to(viewer, &found, trx, inner, instance, id, conflicts).await?)
                        }
                        None => None,
                    },
                    None => None,
                }
            }
        };
        bytes += document.as_ref().map_or(0, |document| document.body.len());
        rows[at].show(document);
        if bytes > READ_BYTES_MAX && at + 1 < rows.len() {
            rows.truncate(at + 1);
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns how many reads to run at once, after documents of these sizes, and the size of their first pages. A cluster
/// takes hundreds at once, but documents beyond the page's end are read in vain.
pub fn read_ahead(bytes: usize, documents: usize) -> (usize, usize) {
    let average = bytes / documents.max(1) + 1;
    if documents < READ_AHEAD || average > SMALL_AVERAGE_BYTES {
        return (READ_AHEAD, 0);
    }
    let left = READ_BYTES_MAX.saturating_sub(bytes) / average;
    (left.clamp(READ_AHEAD, READ_AHEAD_SMALL), 2 * SMALL_AVERAGE_BYTES)
}

/// Reads documents in one transaction: the first requests up to about 1 MB of bodies, at least one.
#[boxed]
pub async fn documents(reader: &ReadHandle, requests: &[(String, GetOptions)]) -> Result<Vec<GetOutcome>> {
    reader.read_judged(&mut GetMany { inner: &reader.inner, name: &reader.name, asker: reader.asker(), requests }).await
}

/// Reads documents in one transaction, up to [`READ_BYTES_MAX`].
pub struct GetMany<'a> {
    pub inner: &'a Inner,
    pub name: &'a str,
    pub asker: &'a ReadPrincipal,
    pub requests: &'a [(String, GetOptions)],
}

/// The outcome of one request of `GetMany`.
#[derive(Debug, Clone, PartialEq)]
pub enum GetOutcome {
    /// The document.
    Document(Box<Document>),
    /// There is no such document.
    Missing(NotFound),
    /// The request means more than one leaf: `Reader::open_revs` reads them.
    Several,
}

impl Operation for GetMany<'_> {
    type Output = Vec<GetOutcome>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.inner.resolve(trx, self.name).await?;
        if is_judged(&instance, self.asker) {
            return seen::get_many(self, trx, &instance).boxed().await;
        }
        let mut documents = Vec::with_capacity(self.requests.len());
        let (mut bytes, mut reads_once) = (0, RequestReads::of(self.requests, false));
        for requests in self.requests.chunks(READ_AHEAD) {
            let reads: Vec<_> = requests.iter().map(|(id, _)| begin_latest(trx, &instance, id)).collect();
            for ((id, options), read) in requests.iter().zip(reads) {
                if bytes > READ_BYTES_MAX || !reads_once.has_room_for(id) {
                    return Ok(documents);
                }
                let found = read.finish(trx, &instance).await?;
                let (inner, instance, once) = (self.inner, &*instance, reads_once.of_document(id));
                let get = Get { inner, instance, trx, id, options, tree: None, once, viewer: None };
                let got = match get.has_one_leaf(found.as_ref()).await? {
                    false => GetOutcome::Several,
                    true => match get.answer(found.as_ref()).await {
                        Err(Error::Refused(Refusal::DocumentNotFound(reason))) => GetOutcome::Missing(reason),
                        answer => GetOutcome::Document(Box::new(answer?)),
                    },
                };
                if let GetOutcome::Document(document) = &got {
                    bytes += document.body.len();
                }
                reads_once.reckon(id);
                let leaf_count = found.map_or(0, |(info, _)| info.leaf_count as usize);
                bytes += if leaf_count > 1 { leaf_count * LEAF_COST_BYTES } else { 0 };
                documents.push(got);
            }
        }
        Ok(documents)
    }
}

/// Reads one document.
///
/// # Errors
/// [`Refusal::DocumentNotFound`].
#[boxed]
pub async fn document(reader: &ReadHandle, id: &str, options: &GetOptions) -> Result<Document> {
    let mut get = GetOne { inner: &reader.inner, name: &reader.name, asker: reader.asker(), id, options };
    let Some(seen) = reader.seen() else { return reader.read_judged(&mut get).await };
    seen.asks(id)?;
    let mut document = reader.read_about(&mut get).await?;
    if !seen.is_whole(id) {
        document.body = seen.part(id, &document.body)?;
        document.attachments = Vec::new();
    }
    Ok(document)
}

/// Reads one document.
pub struct GetOne<'a> {
    pub inner: &'a Inner,
    pub name: &'a str,
    pub asker: &'a ReadPrincipal,
    pub id: &'a str,
    pub options: &'a GetOptions,
}

impl Operation for GetOne<'_> {
    type Output = Document;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Document> {
        let instance = self.inner.resolve(trx, self.name).await?;
        if is_judged(&instance, self.asker) {
            return seen::get_one(self, trx, &instance).boxed().await;
        }
        let read = begin_latest(trx, &instance, self.id);
        let found = match self.options.small_only {
            true => finish_small(read, trx).await?,
            // Boxed like all rare states: each future has room for its largest one.
            false => Box::pin(read.finish(trx, &instance)).await?,
        };
        let (inner, id, options, once) = (self.inner, self.id, self.options, DocumentReads::of([self.options], false));
        let get = Get { inner, instance: &instance, trx, id, options, tree: None, once: &once, viewer: None };
        get.answer(found.as_ref()).await
    }
}

/// The revisions of a document to read together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenRevs {
    /// Every leaf.
    All,
    /// These revisions.
    Some(Vec<RevId>),
}

/// Reads several revisions of a document in one transaction, from number `from` up to [`READ_BYTES_MAX`].
pub struct GetOpenRevs<'a> {
    pub inner: &'a Inner,
    pub name: &'a str,
    pub asker: &'a ReadPrincipal,
    pub id: &'a str,
    pub revs: &'a OpenRevs,
    pub from: usize,
    pub descending: bool,
    pub options: &'a GetOptions,
}

impl Operation for GetOpenRevs<'_> {
    /// The revisions in order, each found or missing, and their total number.
    type Output = (Vec<std::result::Result<Document, RevId>>, usize);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.inner.resolve(trx, self.name).await?;
        if is_judged(&instance, self.asker) {
            return seen::open_revs(self, trx, &instance).boxed().await;
        }
        let keys = instance.keys.document(self.id);
        let tree = Leaves::read(trx, &keys).await?.whole(trx, &keys).await?;
        // A leaf counts once, also if several named revisions are its ancestors.
        let mut wanted: Vec<&RevId> = match self.revs {
            OpenRevs::Some(revs) if self.options.latest => tree.leaves_over(revs).into_iter().collect(),
            OpenRevs::Some(revs) => revs.iter().collect::<BTreeSet<_>>().into_iter().collect(),
            OpenRevs::All => tree.leaves().collect(),
        };
        let found = begin_latest(trx, &instance, self.id).finish(trx, &instance).await?;
        if self.descending {
            wanted.reverse();
        }
        let mut answers = Vec::new();
        let mut bytes = 0;
        let oldest = wanted.iter().min().map(|rev| self.options.of_revision(rev));
        let once = DocumentReads::of(&oldest, false);
        for &rev in wanted.iter().skip(self.from) {
            if bytes > READ_BYTES_MAX {
                break;
            }
            let options = self.options.of_revision(rev);
            let (inner, instance, id) = (self.inner, &*instance, self.id);
            let get = Get { inner, instance, trx, id, options: &options, tree: Some(&tree), once: &once, viewer: None };
            let answer = match get.answer(found.as_ref()).await {
                Err(Error::Refused(Refusal::DocumentNotFound(_))) => Err(rev.clone()),
                answer => Ok(answer?),
            };
            bytes += REVISION_COST_BYTES + answer.as_ref().map_or(0, |document| document.body.len());
            answers.push(answer);
        }
        Ok((answers, wanted.len()))
    }
}

pub(super) struct Get<'a> {
    pub inner: &'a Inner,
    pub instance: &'a Instance,
    pub trx: &'a Transaction,
    pub id: &'a str,
    pub options: &'a GetOptions,
    /// The tree, if it was read already.
    pub tree: Option<&'a Tree>,
    /// Reads that this revision shares with others of the request.
    pub once: &'a DocumentReads,
    /// The reader, who sees the requested revision and possibly no others; `None` if unrestricted.
    pub viewer: Option<&'a Viewer>,
}

impl Get<'_> {
    /// Returns whether at most one leaf is meant, for a request of no revision or of the latest ones.
    async fn has_one_leaf(&self, found: Option<&(Info, Rows)>) -> Result<bool> {
        let Some((info, _)) = found else { return Ok(true) };
        match &self.options.rev {
            None => Ok(info.leaf_count == 1),
            Some(rev) if self.options.latest && *rev != info.winner && info.leaf_count > 1 => {
                let tree = self.tree(&self.instance.keys.document(self.id)).await?;
                Ok(tree.branches_over(rev).count() < 2)
            }
            Some(_) => Ok(true),
        }
    }

    pub(super) async fn answer(&self, found: Option<&(Info, Rows)>) -> Result<Document> {
        // One time for all checks, so that a document that expires meanwhile is shown consistently.
        let now = self.trx.clock().unix_ms();
        let ended;
        let found = match found {
            Some((info, _)) if info.has_ended(now) => {
                ended = (info.clone().read_at(now), Rows::new(Vec::new(), 0));
                Some(&ended)
            }
            found => found,
        };
        let Some((info, rows)) = found else { return Err(Refusal::DocumentNotFound(NotFound::Missing).into()) };
        self.inner.metrics.documents_read.add(1);
        let keys = self.instance.keys.document(self.id);
        let options = self.options;
        let looks_for_latest = options.latest && options.rev.as_ref().is_some_and(|rev| *rev != info.winner);
        let looks_for_conflicts = options.conflicts() && info.leaf_count > 1;
        let looks_for_birth = options.born && (options.rev.is_some() || info.winner.generation() > 1);
        let wants_tree =
            options.revs || options.revs_info || looks_for_latest || looks_for_conflicts || looks_for_birth;
        // For a reader who does not see all leaves.
        let judges_others = self.viewer.is_some() && (looks_for_latest || looks_for_conflicts || options.revs_info);
        let (mut read, mut records) = (None, None);
        match self.tree {
            None if wants_tree && judges_others => {
                let both = futures_util::future::try_join(self.tree(&keys), self.records(&keys));
                let (tree, found) = Box::pin(both).await?;
                (read, records) = (Some(tree), Some(found));
            }
            None if wants_tree => read = Some(Box::pin(self.tree(&keys)).await?),
            _ if judges_others => records = Some(Box::pin(self.records(&keys)).await?),
            _ => {}
        }
        let tree = read.as_ref().or(self.tree.filter(|_| wants_tree));
        let wanted = match (&options.rev, tree) {
            (None, _) if info.deleted && !options.tombstone => {
                return Err(Refusal::DocumentNotFound(NotFound::Deleted).into());
            }
            (None, _) => &info.winner,
            // The best of the leaves above the revision.
            (Some(rev), Some(tree)) if options.latest => {
                let over = tree.branches_over(rev).filter(|branch| self.can_see(&branch.leaf, records));
                let over = over.max_by(|a, b| a.rank().cmp(&b.rank()));
                over.map_or(rev, |branch| &branch.leaf)
            }
            (Some(rev), _) => rev,
        };
        let older;
        let mut is_gone = *wanted == info.winner && info.has_ended(now);
        let (rev, deleted, has_attachments, rows) = if *wanted == info.winner {
            (info.winner.clone(), info.deleted, info.has_attachments, rows)
        } else {
            let is_over = self.once.is_over(self.trx, self.instance, &keys, info, wanted, self.viewer);
            let (is_over, found) = Box::pin(futures_util::future::join(is_over, self.superseded(&keys, wanted))).await;
            if is_over? {
                return Err(Refusal::DocumentNotFound(NotFound::Missing).into());
            }
            older = found?;
            // An expired revision stays expired, whatever was written on top of it or beside it.
            is_gone = older.0.has_ended(now);
            (wanted.clone(), older.0.deleted || is_gone, older.0.has_attachments && !is_gone, &older.1)
        };
        let body = if options.no_body || is_gone {
            Vec::new()
        } else {
            body::to_json(self.inner, self.instance, rows).await?
        };
        let mut document = plain(self.id, rev, deleted, body);
        document.ends_at_ms = info.routed.expires_at_ms;
        if has_attachments && !options.no_body {
            document.attachments = Box::pin(attachments::list(self.trx, &keys, &document.rev)).await?;
        }
        if let Some(tree) = tree {
            Box::pin(self.add_tree_facts(&keys, info, tree, records, &mut document)).await?;
        } else if options.born {
            document.born = Some(document.rev.clone());
        }
        if options.local_seq {
            document.local_seq = Some(Seq::new(self.instance.incarnation(), info.stamp));
        }
        Ok(document)
    }

    /// Returns whether the reader sees a revision; `records`: those of the document, for a restricted reader.
    fn can_see(&self, rev: &RevId, records: Option<&Records>) -> bool {
        self.viewer.is_none() || records.and_then(|records| records.get(rev)).is_some_and(|record| record.is_given)
    }

    async fn add_tree_facts(
        &self,
        keys: &DocumentKeys,
        info: &Info,
        tree: &Tree,
        records: Option<&Records>,
        document: &mut Document,
    ) -> Result<()> {
        let options = self.options;
        let mut line = tree.line(&document.rev).unwrap_or_else(|| vec![document.rev.clone()]);
        line.truncate(usize::try_from(self.instance.revs_limit()).unwrap_or(usize::MAX));
        if options.revs_info || options.born {
            let records = match records {
                Some(records) => records,
                None => self.records(keys).await?,
            };
            let over = self.once.over(self.trx, keys, records).await?;
            let is_there =
                |rev: &RevId| records.get(rev).is_some_and(|record| !record.body_dropped) && !over.holds(rev);
            let told =
                |rev: &RevId| (rev.clone(), (*rev == info.winner || is_there(rev)) && self.can_see(rev, Some(records)));
            document.revs_info = options.revs_info.then(|| line.iter().map(told).collect());
            document.born = if options.born { born(&line, records) } else { None };
        }
        document.revisions = options.revs.then_some(line);
        let others = |deleted: bool| {
            let branches = tree.branches().into_iter().filter(|branch| branch.leaf != document.rev);
            let branches = branches.filter(|branch| self.can_see(&branch.leaf, records));
            branches.filter(|branch| branch.deleted == deleted).map(|branch| branch.leaf.clone()).collect()
        };
        document.conflicts = options.conflicts.then(|| others(false));
        document.deleted_conflicts = options.deleted_conflicts.then(|| others(true));
        Ok(())
    }

    async fn tree(&self, keys: &DocumentKeys) -> Result<Tree> {
        Leaves::read(self.trx, keys).await?.whole(self.trx, keys).await
    }

    async fn superseded(&self, keys: &DocumentKeys, rev: &RevId) -> Result<(RevisionRecord, Rows)> {
        let missing = || Refusal::DocumentNotFound(NotFound::Missing);
        let record = self.trx.get(&keys.revision(rev), true);
        let rows = body::begin_read(self.trx, keys.revision_body_rows(rev));
        let record = RevisionRecord::decode(&record.await?.ok_or_else(missing)?)?;
        if record.body_dropped {
            return Err(missing().into());
        }
        let prefix_bytes = keys.revision_body(rev).len();
        let rows = match &record.place {
            _ if self.options.small_only && record.external_bytes > SMALL_ONLY_BYTES_MAX as u64 => {
                return Err(Refusal::LargeDocument.into());
            }
            BodyPlace::Rows if self.options.small_only => {
                let page = rows.only_page(self.trx, SMALL_ONLY_BYTES_MAX).await?.ok_or(Refusal::LargeDocument)?;
                Rows::new(vec![page], prefix_bytes)
            }
            BodyPlace::Blob(_) if self.options.small_only => return Err(Refusal::LargeDocument.into()),
            BodyPlace::Rows => Rows::new(rows.finish(self.trx, BODY_BYTES_MAX).await?, prefix_bytes),
            BodyPlace::Blob(blob_id) => body::read_rows(self.trx, self.instance.keys.blob_rows(blob_id)).await?,
        };
        Ok((record, rows))
    }

    /// Reads the records of all revisions that were written here.
    async fn records(&self, keys: &DocumentKeys) -> Result<&Records> {
        self.once.records(self.trx, keys, self.viewer).await
    }
}

/// Finds [`Document::born`] of a revision and its ancestors.
fn born(line: &[RevId], records: &Records) -> Option<RevId> {
    let is_tombstone = |at: usize, rev: &RevId| match records.get(rev) {
        Some(record) => record.deleted,
        None => line.get(at + 1).is_some_and(|parent| *rev == deletion_of(parent)),
    };
    let ancestors = line.iter().enumerate().skip(1);
    let lived = ancestors.take_while(|(at, rev)| !is_tombstone(*at, rev)).count();
    line.get(lived).cloned()
}

/// Returns the revision that a deletion without members creates.
fn deletion_of(parent: &RevId) -> RevId {
    let of = Some((parent.generation(), parent.hash_bytes()));
    RevId::new(parent.generation() + 1, body_revision(of, true, &Value::Object(Vec::new())))
}

/// Reads the database's newest sequence.
pub async fn last_seq(trx: &Transaction, instance: &Instance) -> Result<Seq> {
    instance.buckets.begin_last_seq(trx, instance.epoch_begin()).await
}

pub fn plain(id: &str, rev: RevId, deleted: bool, body: Vec<u8>) -> Document {
    Document {
        id: id.to_owned(),
        rev,
        deleted,
        body,
        revisions: None,
        revs_info: None,
        born: None,
        conflicts: None,
        deleted_conflicts: None,
        attachments: Vec::new(),
        local_seq: None,
        ends_at_ms: None,
    }
}
