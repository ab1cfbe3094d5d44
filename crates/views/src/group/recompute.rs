//! Maps documents again for the checker, and compares the result with the rows of a group.
//!
//! Nothing is locked. A document is compared if the group is past the document's position in by-seq, no purge is
//! pending, and the document is unchanged since it was mapped. Other documents are skipped.

use async_recursion::async_recursion as boxed;
use flatbed_databases::handles::ReadHandle;
use flatbed_databases::instance::Instance;
use flatbed_operations::read::all_docs::{AllDocs, AllDocsQuery};
use flatbed_store::error::Result;
use flatbed_store::keys::{KeyRange, ViewPart};
use flatbed_store::proto;
use flatbed_store::records::Info;
use flatbed_store::seq::STAMP_BYTES;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use futures_util::future::{join_all, try_join};

use crate::group::build::read_with_local_seq;
use crate::group::find::load;
use crate::group::job::{JavascriptReduces, Job};
use crate::group::mapper::{DocumentToMap, MappedPart, map};
use crate::group::steps::{begin_standing, purges_of};
use crate::view::build::FOLLOWED;
use crate::view::documents::read_stored_rows;
use crate::view::prepare::PreparedDocument;
use crate::view::written::WrittenReduces;
use crate::view_updates::views;

/// The documents compared in a transaction, and the documents' lists read in one.
const PAGE: usize = 100;

#[derive(Debug, Default)]
pub struct RecomputeReport {
    pub documents: u64,
    /// The number of documents skipped because the group had not reached them, or because they changed meanwhile.
    pub passed_over: u64,
    pub violations: Vec<String>,
}

/// Compares the rows of a group with the output of its maps. A group is not compared if it is not built, no design
/// document defines it, or this process does not run its functions.
///
/// # Errors
/// [`flatbed_store::error::Error::View`] if the functions cannot be run, and the storage's errors.
#[boxed]
pub async fn recompute(reader: &ReadHandle, instance: &Instance, group: &proto::Index) -> Result<RecomputeReport> {
    let mut found = RecomputeReport::default();
    let Some(loaded) = load(reader, instance, group).await? else { return Ok(found) };
    if loaded.functions.is_none() {
        return Ok(found);
    }
    let id = (instance.record.namespace, group.number);
    let design = group.named_by.first().cloned().unwrap_or_default();
    let job = Job::new(reader.clone(), id, design, loaded, views(&reader.inner).group(id))?;
    let mut walk = AllDocs::new(reader.clone(), AllDocsQuery::default());
    while let Some(page) = walk.next_page().await? {
        for rows in page.chunks(PAGE) {
            let ids: Vec<String> = rows.iter().map(|row| row.id.clone()).collect();
            let mut from = 0;
            while let Some(rest) = ids.get(from..).filter(|rest| !rest.is_empty()) {
                let read = read_with_local_seq(&job, rest).await?;
                from += read.len().max(1);
                compare(&job, instance, read, &mut found).await?;
            }
        }
    }
    let mut next = Some(instance.keys.view(group.number).of_documents().begin);
    while let Some(begin) = next {
        let (violations, behind) = reader.read(&mut Orphans { number: group.number, instance, begin }).await?;
        found.violations.extend(violations);
        next = behind;
    }
    Ok(found)
}

async fn compare(
    job: &Job,
    instance: &Instance,
    mut to_map: Vec<DocumentToMap>,
    found: &mut RecomputeReport,
) -> Result<()> {
    let (number, before) = (job.number(), to_map.len());
    let ids = to_map.iter().map(|document| document.id.clone()).collect();
    let are_set_aside = job.reader.read(&mut ReadSetAside { instance, number, ids }).await?;
    let mut are_set_aside = are_set_aside.into_iter();
    // Documents set aside are not mapped: the functions would exceed their bound again.
    to_map.retain(|_| !are_set_aside.next().unwrap_or(false));
    found.passed_over += (before - to_map.len()) as u64;
    while !to_map.is_empty() {
        let mut stamps: Vec<_> = to_map.iter().map(stamp_of).collect();
        let MappedPart { documents, rest, permit: _permit, .. } = map(job, to_map).await?;
        to_map = rest;
        stamps.truncate(documents.len());
        let (mut documents, mut stamps) = (documents.as_slice(), stamps.as_slice());
        while !documents.is_empty() {
            let (compared, count) = job.reader.read(&mut Compare { job, instance, documents, stamps }).await?;
            found.documents += compared.documents;
            found.passed_over += compared.passed_over;
            found.violations.extend(compared.violations);
            documents = documents.get(count..).unwrap_or_default();
            stamps = stamps.get(count..).unwrap_or_default();
        }
    }
    Ok(())
}

/// Returns the JavaScript reduces of a group, if this process runs its functions.
pub async fn written_of(
    reader: &ReadHandle,
    instance: &Instance,
    group: &proto::Index,
) -> Result<Option<impl WrittenReduces + use<>>> {
    let loaded = load(reader, instance, group).await?;
    Ok(loaded.and_then(|loaded| loaded.functions.clone()).map(JavascriptReduces))
}

fn stamp_of(document: &DocumentToMap) -> Option<[u8; STAMP_BYTES]> {
    document.document.as_ref().and_then(|document| document.local_seq.as_ref()).map(|seq| *seq.stamp())
}

/// The position of a group, read together with the compared rows.
struct ReachedPosition {
    stamp: Vec<u8>,
}

impl ReachedPosition {
    /// `None`: nothing can be compared now.
    async fn read(trx: &Transaction, instance: &Instance, number: u64) -> Result<Option<ReachedPosition>> {
        let (progress, _, purges) = begin_standing(trx, instance, number, false).await?;
        let progress = progress.filter(|progress| progress.phase == FOLLOWED && purges_of(progress) == purges);
        Ok(progress.map(|progress| ReachedPosition { stamp: progress.stamp }))
    }

    fn covers(&self, stamp: &[u8; STAMP_BYTES]) -> bool {
        stamp[..] <= self.stamp[..]
    }
}

struct ReadSetAside<'a> {
    instance: &'a Instance,
    number: u64,
    ids: Vec<String>,
}

impl Operation for ReadSetAside<'_> {
    type Output = Vec<bool>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Vec<bool>> {
        let view = self.instance.keys.view(self.number);
        let reads = join_all(self.ids.iter().map(|id| trx.get(&view.set_aside(id), true)));
        reads.await.into_iter().map(|read| Ok(read?.is_some())).collect()
    }
}

/// Compares the stored rows of a prefix of the documents with the expected ones.
struct Compare<'a> {
    job: &'a Job,
    instance: &'a Instance,
    documents: &'a [PreparedDocument],
    /// The sequence of each document when it was mapped.
    stamps: &'a [Option<[u8; STAMP_BYTES]>],
}

impl Operation for Compare<'_> {
    type Output = (RecomputeReport, usize);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let mut found = RecomputeReport::default();
        let (number, keys) = (self.job.number(), &self.instance.keys);
        let view = keys.view(number);
        let ids = || self.documents.iter().map(PreparedDocument::id);
        let infos = join_all(ids().map(|id| trx.get(&keys.document(id).info(), true)));
        let reached = ReachedPosition::read(trx, self.instance, number);
        let (reached, had) = try_join(reached, read_stored_rows(trx, &view, ids(), true, None)).await?;
        let count = had.len().max(1);
        for (((document, stamp), had), info) in self.documents.iter().zip(self.stamps).zip(had).zip(infos.await) {
            let stands = info?.map(|info| Info::decode(&info)).transpose()?.map(|info| info.stamp);
            let covered = |stamp: &[u8; STAMP_BYTES]| reached.as_ref().is_some_and(|reached| reached.covers(stamp));
            if stands != *stamp || !stamp.as_ref().is_some_and(covered) {
                found.passed_over += 1;
                continue;
            }
            if document.is_refused() || document.set_aside().is_some() {
                // The stored rows may be older than the current bounds, and a function may have been slow just now.
                found.passed_over += 1;
                continue;
            }
            found.documents += 1;
            if !document.has_just(&had) {
                let id = document.id();
                found.violations.push(format!("group {number} has other rows of {id:?} than its maps emit"));
            }
        }
        Ok((found, count))
    }
}

struct Orphans<'a> {
    number: u64,
    instance: &'a Instance,
    begin: Vec<u8>,
}

impl Operation for Orphans<'_> {
    type Output = (Vec<String>, Option<Vec<u8>>);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let keys = &self.instance.keys;
        let view = keys.view(self.number);
        let range = KeyRange { begin: self.begin.clone(), ..view.of_documents() };
        let page = trx.range(&range, true).page(PAGE);
        let (reached, page) =
            try_join(ReachedPosition::read(trx, self.instance, self.number), async { Ok(page.await?) }).await?;
        let mut ids = Vec::with_capacity(page.len());
        for row in &page {
            if let ViewPart::OfDocument(id, 0) = view.split(row.key())? {
                ids.push(id);
            }
        }
        let infos = join_all(ids.iter().map(|id| trx.get(&keys.document(id).info(), true))).await;
        let mut violations = Vec::new();
        for (id, info) in ids.iter().zip(infos) {
            let info = info?.map(|info| Info::decode(&info)).transpose()?;
            let is_dead = info.as_ref().is_none_or(|info| info.deleted);
            let covered = reached.as_ref().is_some_and(|reached| info.is_none_or(|info| reached.covers(&info.stamp)));
            if is_dead && covered {
                violations.push(format!("group {} has rows of {id:?}, which does not exist", self.number));
            }
        }
        Ok((violations, page.rest.map(|rest| rest.begin)))
    }
}
