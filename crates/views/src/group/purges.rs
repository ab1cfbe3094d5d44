//! Purges of documents in groups. A purged document leaves nothing in by-seq: groups follow the log of purges.
//!
//! A purge keeps the log for groups up to a size in bytes ([`flatbed_operations::write::purge`]). A group that was
//! behind for longer finds that the log lacks records, and compares its rows with the documents ([`reconcile`]); its
//! rows stay readable meanwhile.

use std::collections::BTreeSet;

use flatbed_databases::document::edit::Conflicts;
use flatbed_databases::document::latest::begin_latest;
use flatbed_databases::instance::Instance;
use flatbed_databases::limits::Limit;
use flatbed_operations::read::get::latest_with_info;
use flatbed_store::error::Result;
use flatbed_store::keys::{Counter, KeyRange};
use flatbed_store::proto::{self, ViewProgress};
use flatbed_store::seq::Seq;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use prost::Message;

use crate::at_once::BatchPacer;
use crate::group::job::Job;
use crate::group::large::{LargeOutcome, finish};
use crate::group::mapper::{DocumentToMap, MappedPart, map};
use crate::group::reconcile::reconcile;
use crate::group::steps::{EnterPurged, EnteredPurges, Step, purges_of};
use crate::view::prepare::PreparedDocument;

/// The number of log records, or documents of them, that are read at once.
pub const RECORDS_MAX: Limit<usize> = Limit::new(200, 5);

/// The most pages of records, and bytes of ids, that a transaction reads to find purged documents of a run. Beyond
/// either the run is dropped, and the log is entered first.
const LACKING_PAGES_MAX: usize = 25;
const LACKING_BYTES_MAX: usize = 1_000_000;

/// The length of the part of a stamp that all records of one purge share: epoch and versionstamp.
const COMMIT_BYTES: usize = 14;

pub(super) enum Outcome {
    Entered(Box<ViewProgress>),
    Elsewhere,
    /// A row's label does not fit: the group must be rebuilt.
    Anew,
}

/// Enters the newly purged documents in their current state: most of them are gone. `ended_as_of`: a read version up to
/// which by-seq has been read and entered completely. With the last purge the group is complete up to it.
pub(super) async fn enter(job: &Job, progress: ViewProgress, ended_as_of: Option<i64>) -> Result<Outcome> {
    let mut finished = finish(job, progress).await?;
    loop {
        let stood = match finished {
            LargeOutcome::Stands(progress) => *progress,
            LargeOutcome::Elsewhere => return Ok(Outcome::Elsewhere),
            LargeOutcome::Anew => return Ok(Outcome::Anew),
        };
        if job.is_closing() {
            return Ok(Outcome::Elsewhere);
        }
        let mut read = ReadPurges { job, after: &stood.purge_stamp };
        let PurgePage { documents, commits, last, is_all, purges } = job.reader.read(&mut read).await?;
        let entered = purges_of(&stood).saturating_add(commits);
        if is_all && entered != purges || !is_all && commits == 0 {
            finished = reconcile(job, stood).await?;
            continue;
        }
        let stamp = last.unwrap_or_else(|| stood.purge_stamp.clone());
        let in_log = EnteredPurges { purges: entered, stamp, drained: ended_as_of.filter(|_| is_all) };
        finished = map_and_enter(job, stood, documents, &in_log).await?;
        if is_all && let LargeOutcome::Stands(progress) = finished {
            return Ok(Outcome::Entered(progress));
        }
    }
}

/// Maps documents and enters them in their current state, part by part. The last part records the entered purges.
pub(super) async fn map_and_enter(
    job: &Job,
    mut stood: ViewProgress,
    mut documents: Vec<DocumentToMap>,
    purges: &EnteredPurges,
) -> Result<LargeOutcome> {
    loop {
        let MappedPart { documents: mapped, rest, permit: _permit, .. } = map(job, documents).await?;
        if rest.is_empty() {
            return enter_documents(job, stood, &mapped, purges).await;
        }
        documents = rest;
        let as_before = EnteredPurges::as_before(&stood);
        match enter_documents(job, stood, &mapped, &as_before).await? {
            LargeOutcome::Stands(progress) => stood = *progress,
            finished => return Ok(finished),
        }
    }
}

/// Enters documents in their current state, in several transactions if needed. The last one records the entered purges.
pub async fn enter_documents(
    job: &Job,
    mut stood: ViewProgress,
    documents: &[PreparedDocument],
    purges: &EnteredPurges,
) -> Result<LargeOutcome> {
    let mut rest = documents;
    loop {
        let mut pace = BatchPacer::new(&job.state.entered);
        let enter = EnterPurged { stood: &stood, documents: rest, purges, pace: &mut pace };
        let Some((count, progress)) = Step::run(job, enter).await? else { return Ok(LargeOutcome::Elsewhere) };
        pace.end();
        let Some(count) = count else { return Ok(LargeOutcome::Anew) };
        stood = progress;
        rest = rest.get(count..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(LargeOutcome::Stands(Box::new(stood)));
        }
    }
}

/// Returns the ids of all purged documents that the group lacks. `None`: more than a transaction reads, or missing from
/// the log. Reads further than one step of [`enter`], since it needs only ids: otherwise no run would be entered while
/// purges continue.
pub(super) async fn lacking(
    trx: &Transaction,
    instance: &Instance,
    progress: &ViewProgress,
    purges: i64,
) -> Result<Option<BTreeSet<String>>> {
    let (mut after, mut entered) = (progress.purge_stamp.clone(), purges_of(progress));
    let (mut ids, mut bytes) = (BTreeSet::new(), 0);
    for _ in 0..LACKING_PAGES_MAX {
        let page = LogPage::read(trx, instance, &after).await?;
        entered = entered.saturating_add(page.commits());
        let (is_all, last) = (page.is_all, page.records.last().map(|(stamp, _)| stamp.clone()));
        bytes += page.records.iter().map(|(_, id)| id.len()).sum::<usize>();
        ids.extend(page.ids());
        match last {
            _ if is_all => return Ok((entered == purges).then_some(ids)),
            Some(last) if bytes <= LACKING_BYTES_MAX => after = last,
            // Too many bytes, or one purge has more records than fit into a page.
            _ => return Ok(None),
        }
    }
    Ok(None)
}

struct LogPage {
    records: Vec<(Vec<u8>, String)>,
    is_all: bool,
}

impl LogPage {
    async fn read(trx: &Transaction, instance: &Instance, after: &[u8]) -> Result<LogPage> {
        let KeyRange { mut begin, end } = instance.keys.purges();
        if !after.is_empty() {
            begin = instance.keys.behind_purge(Seq::from_slice(0, after)?.stamp());
        }
        let rows = trx.range(&KeyRange { begin, end }, true).first(RECORDS_MAX.get()).await?;
        // `first` returns a full page if there is one: the records of the last commit are dropped, and of a short page
        // that may be all.
        let is_all = rows.len() < RECORDS_MAX.get();
        let mut records = Vec::with_capacity(rows.len());
        for row in rows.iter() {
            let stamp = instance.keys.purge_stamp(row.key())?.to_vec();
            records.push((stamp, proto::PurgeInfo::decode(row.value())?.document_id));
        }
        if !is_all && let Some(cut) = records.last().map(|(stamp, _)| commit_of(stamp).to_vec()) {
            // The last commit may have more records.
            records.retain(|(stamp, _)| commit_of(stamp) != cut);
        }
        Ok(LogPage { records, is_all })
    }

    fn commits(&self) -> i64 {
        let commits: BTreeSet<&[u8]> = self.records.iter().map(|(stamp, _)| commit_of(stamp)).collect();
        commits.len() as i64
    }

    fn ids(self) -> BTreeSet<String> {
        self.records.into_iter().map(|(_, id)| id).collect()
    }
}

fn commit_of(stamp: &[u8]) -> &[u8] {
    stamp.get(..COMMIT_BYTES).unwrap_or_default()
}

struct PurgePage {
    documents: Vec<DocumentToMap>,
    commits: i64,
    last: Option<Vec<u8>>,
    is_all: bool,
    purges: i64,
}

struct ReadPurges<'a> {
    job: &'a Job,
    after: &'a [u8],
}

impl Operation for ReadPurges<'_> {
    type Output = PurgePage;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<PurgePage> {
        let inner = &self.job.reader.inner;
        let instance = inner.resolve(trx, &self.job.reader.name).await?;
        let purges = instance.buckets.begin_count(trx, Counter::Purges);
        let page = LogPage::read(trx, &instance, self.after).await?;
        let (commits, is_all) = (page.commits(), page.is_all);
        let last = page.records.last().map(|(stamp, _)| stamp.clone());
        let ids = page.ids();
        let reads: Vec<_> = ids.iter().map(|id| begin_latest(trx, &instance, id)).collect();
        let mut documents = Vec::with_capacity(ids.len());
        for (id, read) in ids.iter().zip(reads) {
            let found = latest_with_info(read, trx, inner, &instance, id, Conflicts::All).await?;
            let document = found.map(|(info, mut document)| {
                document.local_seq = Some(Seq::new(instance.incarnation(), info.stamp));
                document
            });
            documents.push(DocumentToMap { id: id.clone(), document });
        }
        Ok(PurgePage { documents, commits, last, is_all, purges: purges.await? })
    }
}
