//! The first build of a group: the rows of all documents by concurrent ranges of ids, then the steps of its holder: long
//! keys, and the nodes above the sections ([`crate::group::sections`]) or all nodes.
//!
//! A process maps the ids of its leases ([`crate::group::leases`]), one or two at a time. It records each second up to
//! where each is built, so that a successor of a dead builder maps little twice.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use flatbed_databases::document::edit::{Conflicts, GetOptions};
use flatbed_databases::limits::Limit;
use flatbed_operations::read::all_docs::{AllDocs, AllDocsQuery, AllDocsRow};
use flatbed_operations::read::get;
use flatbed_operations::read::get::GetOutcome;
use flatbed_store::error::{Error, Result};
use flatbed_store::proto::ViewProgress;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::at_once::BatchPacer;
use crate::group::job::Job;
use crate::group::later;
use crate::group::leases::{
    Beat, EndLease, EndLeaseOutcome, Lease, LeaseProgress, LeaseToken, OtherLeases, TakeLease, TakeLeaseOutcome,
    WriteOutcome, WriteRows, new_token,
};
use crate::group::mapper::{DocumentToMap, map};
use crate::group::steps::{NODES_FOR, Nodes, Step};
use crate::view::build::NodesPace;
use crate::view::prepare::PreparedDocument;
use crate::view::sections::SectionRule;

/// The bytes of the bodies in a range (one body may exceed it).
const RANGE_BYTES_MAX: usize = 400_000;

/// The interval at which a process renews its leases.
pub(super) const BEATS: Limit<Duration> = Limit::new(Duration::from_secs(1), Duration::from_millis(100));

/// The time after which a lease is no longer renewed, if none of its ranges has ended and none waited for a shared
/// resource: another process may succeed.
pub(super) const STALLED_MAX: Limit<Duration> = Limit::new(Duration::from_secs(60), Duration::from_millis(500));

/// The polling interval while other processes build the rest.
pub(super) const LOOKS: Limit<Duration> = Limit::new(Duration::from_millis(500), Duration::from_millis(50));

/// The timeout for returning leases. Afterwards other processes notice by themselves.
pub(super) const LEAVES_IN: Duration = Duration::from_secs(5);

pub(super) enum Outcome {
    /// The group can be followed, and read once it is current.
    Built,
    Elsewhere,
    /// A row's label does not fit: the group must be rebuilt.
    Anew,
}

/// Returns the number of concurrent ranges: one per processor, and some that wait for the storage.
pub(super) fn ranges_at_once() -> usize {
    std::thread::available_parallelism().map_or(2, std::num::NonZero::get) + 2
}

pub(super) async fn build_rows(job: &Arc<Job>, progress: &ViewProgress) -> Result<Outcome> {
    let mut total = AllDocs::new(job.reader.clone(), AllDocsQuery::default());
    let total = total.total_rows().await?.unwrap_or(0);
    job.state.show(|| job.task(true, total));
    job.state.set_done(progress.documents);
    let mut building = BuildState::new(job);
    let outcome = building.run().await;
    if !matches!(outcome, Ok(Outcome::Built)) {
        let _ = job.clock().timeout(LEAVES_IN, building.leave()).await;
    }
    outcome
}

pub(super) async fn build_nodes(job: &Job) -> Result<Outcome> {
    if let Some(outcome) = later::enter(job).await? {
        return Ok(outcome);
    }
    let mut pace = NodesPace::default();
    loop {
        if job.is_closing() {
            return Ok(Outcome::Elsewhere);
        }
        let (began, mut waited) = (job.clock().now(), Duration::ZERO);
        let stepped = Step::run(job, Nodes { pace: &mut pace, began: None, waited: &mut waited }).await?;
        if job.clock().since(began).saturating_sub(waited) > NODES_FOR {
            pace.halve();
        }
        match stepped {
            None => return Ok(Outcome::Elsewhere),
            Some(true) => return Ok(Outcome::Built),
            Some(false) => job.state.add_done(0),
        }
    }
}

/// Takes the next range from a page, at most `most` documents. `None`: the page is empty.
fn next_range(page: &mut VecDeque<AllDocsRow>, most: usize) -> Option<Vec<AllDocsRow>> {
    let (mut range, mut bytes) = (Vec::new(), 0);
    while let Some(row) = page.front() {
        let more = row.doc.as_ref().map_or(0, |document| document.body.len());
        if !range.is_empty() && (range.len() >= most || bytes + more > RANGE_BYTES_MAX) {
            break;
        }
        bytes += more;
        range.extend(page.pop_front());
    }
    (!range.is_empty()).then_some(range)
}

enum ReaderMessage {
    Lease(Lease),
    /// Documents of the lease that begins at `of`, behind `from` and up to `until`.
    Range {
        of: (String, LeaseToken),
        sections: Arc<SectionRule>,
        rows: Vec<AllDocsRow>,
        from: String,
        until: String,
    },
    End(String, LeaseToken),
    Over,
    Gone,
}

/// Takes leases and reads their documents, until all are built or the receiver is gone.
async fn read_leases(job: Arc<Job>, others: Arc<OtherLeases>, sender: mpsc::Sender<Result<ReaderMessage>>) {
    loop {
        let read = read_lease(&job, &others, &sender).await;
        let ends = !matches!(read, Ok(None));
        if let Some(read) = read.transpose()
            && sender.send(read).await.is_err()
        {
            return;
        }
        if ends || sender.is_closed() {
            return;
        }
    }
}

/// Takes a lease and reads its documents. Returns the message that ends the build, if any.
async fn read_lease(
    job: &Arc<Job>,
    others: &OtherLeases,
    sender: &mpsc::Sender<Result<ReaderMessage>>,
) -> Result<Option<ReaderMessage>> {
    let token = new_token()?;
    let lease = match Step::run(job, TakeLease { others, token }).await? {
        None => return Ok(Some(ReaderMessage::Gone)),
        Some(TakeLeaseOutcome::Over) => return Ok(Some(ReaderMessage::Over)),
        Some(TakeLeaseOutcome::Nothing) => {
            job.clock().sleep(LOOKS.get()).await;
            return Ok(None);
        }
        Some(TakeLeaseOutcome::Lease(lease)) => lease,
    };
    others.is_own(token);
    let mut begun = lease.built_until.clone();
    let query = AllDocsQuery {
        // Behind `begun`, which belongs to the previous lease.
        start: Some(format!("{begun}\0")),
        end: lease.until.clone(),
        include_docs: true,
        conflicts: Conflicts::All,
        ..AllDocsQuery::default()
    };
    let (of, sections) = (lease.from.clone(), Arc::clone(&lease.sections));
    if sender.send(Ok(ReaderMessage::Lease(lease))).await.is_err() {
        return Ok(None);
    }
    let mut walk = AllDocs::new(job.reader.clone(), query);
    while let Some(page) = walk.next_page().await? {
        let mut page = VecDeque::from(page);
        while let Some(rows) = next_range(&mut page, job.state.range.documents()) {
            let until = rows.last().map(|row| row.id.clone()).unwrap_or_default();
            let (of, sections) = ((of.clone(), token), Arc::clone(&sections));
            let range = ReaderMessage::Range { of, sections, rows, from: begun, until: until.clone() };
            if sender.send(Ok(range)).await.is_err() {
                return Ok(None);
            }
            begun = until;
        }
    }
    let _ = sender.send(Ok(ReaderMessage::End(of, token))).await;
    Ok(None)
}

enum CompletedTask {
    /// A range of the lease that begins at `from`. If `failed` is set, the range is built only up to `until`. `wrote`
    /// is `None`: the group is gone.
    Range {
        of: (String, LeaseToken),
        from: String,
        until: String,
        documents: u64,
        wrote: Option<WriteOutcome>,
        failed: Option<Box<Error>>,
    },
    /// A lease. `None`: the group is gone.
    Lease(String, Option<EndLeaseOutcome>),
    /// A renewal of the leases: the lost ones, and the number of documents of those that ended.
    Beat(Option<(Vec<String>, u64)>),
}

struct Part {
    token: LeaseToken,
    /// All documents up to here are built.
    until: String,
    /// Ranges built behind a gap: the last id before each, and its last.
    built: BTreeMap<String, String>,
    documents: u64,
    under_way: usize,
    /// True if all of its ranges have begun.
    is_read: bool,
    /// The last time when a part was built, or a range waited for a shared resource.
    moved_at: Instant,
}

struct BuildState<'a> {
    job: &'a Arc<Job>,
    work: JoinSet<Result<CompletedTask>>,
    parts: HashMap<String, Part>,
    beats: u64,
    is_beating: bool,
}

impl<'a> BuildState<'a> {
    fn new(job: &'a Arc<Job>) -> BuildState<'a> {
        let (work, parts) = (JoinSet::new(), HashMap::new());
        BuildState { job, work, parts, beats: 0, is_beating: false }
    }

    async fn run(&mut self) -> Result<Outcome> {
        let (sender, mut read) = mpsc::channel(1);
        // Ends with this future.
        let mut source = JoinSet::new();
        source.spawn(read_leases(Arc::clone(self.job), Arc::default(), sender));
        let clock = self.job.clock().clone();
        let mut next_beat = clock.now();
        let at_once = ranges_at_once();
        loop {
            if self.job.is_closing() {
                return Ok(Outcome::Elsewhere);
            }
            let outcome = tokio::select! {
                read = read.recv(), if self.work.len() < at_once => match read {
                    Some(read) => self.take(read?),
                    None => return Err(Error::ShuttingDown),
                },
                Some(done) = self.work.join_next() => self.ended(done.map_err(Error::of_task)??)?,
                () = clock.sleep_until(next_beat) => {
                    next_beat = clock.now() + BEATS.get();
                    self.beat();
                    None
                }
            };
            if let Some(outcome) = outcome {
                return Ok(outcome);
            }
        }
    }

    fn take(&mut self, read: ReaderMessage) -> Option<Outcome> {
        match read {
            ReaderMessage::Over => return Some(Outcome::Built),
            ReaderMessage::Gone => return Some(Outcome::Elsewhere),
            ReaderMessage::Lease(lease) => {
                let Lease { token, from, built_until, documents, .. } = lease;
                let (built, under_way, is_read, moved_at) = (BTreeMap::new(), 0, false, self.job.clock().now());
                let part = Part { token, until: built_until, built, documents, under_way, is_read, moved_at };
                self.parts.insert(from, part);
            }
            ReaderMessage::Range { of, sections, rows, from, until } => {
                if let Some(part) = self.part(&of.0, &of.1) {
                    part.under_way += 1;
                    self.work.spawn(write(Arc::clone(self.job), of, sections, rows, (from, until)));
                }
            }
            ReaderMessage::End(from, token) => {
                if let Some(part) = self.part(&from, &token) {
                    part.is_read = true;
                    self.end(&from);
                }
            }
        }
        None
    }

    fn part(&mut self, from: &str, token: &LeaseToken) -> Option<&mut Part> {
        self.parts.get_mut(from).filter(|part| part.token == *token)
    }

    /// Handles a completed task.
    ///
    /// # Errors
    /// The error that kept a range from being built to its end.
    fn ended(&mut self, done: CompletedTask) -> Result<Option<Outcome>> {
        match done {
            CompletedTask::Range { wrote: None, .. } | CompletedTask::Lease(_, None) => {
                return Ok(Some(Outcome::Elsewhere));
            }
            CompletedTask::Range { wrote: Some(WriteOutcome::Full), .. } => return Ok(Some(Outcome::Anew)),
            CompletedTask::Range { of: (of, token), wrote: Some(WriteOutcome::Lost), .. } => {
                self.parts.retain(|from, part| *from != of || part.token != token);
            }
            CompletedTask::Range {
                of: (of, token),
                from,
                until,
                documents,
                wrote: Some(WriteOutcome::Documents(_)),
                failed,
            } => {
                self.job.state.add_done(documents);
                let now = self.job.clock().now();
                if let Some(part) = self.part(&of, &token) {
                    part.moved_at = now;
                    part.under_way -= 1;
                    part.documents += documents;
                    part.built.insert(from, until);
                    while let Some(until) = part.built.remove(&part.until) {
                        part.until = until;
                    }
                }
                if let Some(error) = failed {
                    return Err(*error);
                }
                if self.part(&of, &token).is_some() {
                    self.end(&of);
                }
            }
            CompletedTask::Lease(_, Some(EndLeaseOutcome::Rows)) => return Ok(Some(Outcome::Built)),
            CompletedTask::Lease(from, Some(EndLeaseOutcome::Lease | EndLeaseOutcome::Lost)) => {
                self.parts.remove(&from);
            }
            CompletedTask::Beat(said) => {
                self.is_beating = false;
                let (lost, documents) = said.unwrap_or_default();
                self.parts.retain(|from, _| !lost.contains(from));
                let own: u64 = self.parts.values().map(|part| part.documents).sum();
                self.job.state.set_done(documents + own);
            }
        }
        Ok(None)
    }

    fn held(&self) -> Vec<LeaseProgress> {
        let held = |(from, part): (&String, &Part)| LeaseProgress {
            from: from.clone(),
            token: part.token,
            built_until: part.until.clone(),
            documents: part.documents,
        };
        self.parts.iter().map(held).collect()
    }

    fn end(&mut self, from: &str) {
        if self.parts.get(from).is_none_or(|part| !part.is_read || part.under_way > 0) {
            return;
        }
        let held = self.held().into_iter().find(|held| held.from == from);
        let job = Arc::clone(self.job);
        self.work.spawn(async move {
            let Some(held) = held else { return Ok(CompletedTask::Beat(None)) };
            let ended = Step::run(&job, EndLease { held: &held }).await?;
            Ok(CompletedTask::Lease(held.from, ended))
        });
    }

    fn beat(&mut self) {
        let clock = self.job.clock();
        if self.job.is_waiting() {
            // Another process would have to wait as well, and would map the documents again.
            let now = clock.now();
            self.parts.values_mut().for_each(|part| part.moved_at = now);
        }
        let stalled = |held: &LeaseProgress| {
            self.parts.get(&held.from).is_none_or(|part| clock.since(part.moved_at) >= STALLED_MAX.get())
        };
        let held: Vec<LeaseProgress> = self.held().into_iter().filter(|held| !stalled(held)).collect();
        if held.is_empty() || self.is_beating {
            return;
        }
        self.is_beating = true;
        self.beats += 1;
        let (job, beats) = (Arc::clone(self.job), self.beats);
        self.work.spawn(async move {
            let said = Step::run(&job, Beat { held: &held, beats, leaves: false }).await?;
            Ok(CompletedTask::Beat(said))
        });
    }

    async fn leave(&mut self) {
        self.work.shutdown().await;
        let held = self.held();
        if !held.is_empty()
            && let Err(error) = Step::run(self.job, Beat { held: &held, beats: self.beats, leaves: true }).await
        {
            // Other processes notice by themselves.
            tracing::debug!(database = &*self.job.reader.name, %error, "leases of a first build could not be returned");
        }
    }
}

/// Maps the documents of a range and writes their rows. If a later document fails, the range is built up to that
/// document.
async fn write(
    job: Arc<Job>,
    of: (String, LeaseToken),
    sections: Arc<SectionRule>,
    rows: Vec<AllDocsRow>,
    (from, until): (String, String),
) -> Result<CompletedTask> {
    let (count, began) = (rows.len(), job.clock().now());
    let mut to_map: Vec<DocumentToMap> =
        rows.into_iter().map(|row| DocumentToMap { id: row.id, document: row.doc }).collect();
    if job.definition().options.local_seq {
        to_map = with_local_seq(&job, to_map).await?;
    }
    let (mut wrote, mut waited) = (Some(WriteOutcome::Documents(0)), Duration::ZERO);
    let (mut documents, mut built_until) = (0, None);
    while !to_map.is_empty() && matches!(wrote, Some(WriteOutcome::Documents(_))) {
        let part = match map(&job, to_map).await {
            Ok(part) => part,
            Err(error) => {
                let Some(until) = built_until else { return Err(error) };
                return Ok(CompletedTask::Range { of, from, until, documents, wrote, failed: Some(Box::new(error)) });
            }
        };
        to_map = part.rest;
        waited += part.waited;
        documents += part.documents.len() as u64;
        built_until = part.documents.last().map(|document| document.id().to_owned());
        wrote = write_part(&job, (&of.0, of.1), &sections, part.documents, &mut waited).await?;
        drop(part.permit);
    }
    job.state.range.took(count, job.clock().since(began).saturating_sub(waited));
    Ok(CompletedTask::Range { of, from, until, documents, wrote, failed: None })
}

/// Writes the rows of mapped documents of a lease. Documents with long keys are noted and entered later. Adds to
/// `waited` the time spent waiting for shared resources. `None`: the group is gone.
async fn write_part(
    job: &Job,
    lease: (&str, LeaseToken),
    sections: &SectionRule,
    documents: Vec<PreparedDocument>,
    waited: &mut Duration,
) -> Result<Option<WriteOutcome>> {
    let (long, prepared): (Vec<_>, Vec<_>) = documents.into_iter().partition(PreparedDocument::has_long_keys);
    let long: Vec<String> = long.into_iter().map(|document| document.id().to_owned()).collect();
    for ids in long.chunks(later::NOTED_AT_ONCE) {
        let wrote = Step::run(job, later::Note { lease, ids }).await?;
        if !matches!(wrote, Some(WriteOutcome::Documents(_))) {
            return Ok(wrote);
        }
    }
    let mut rest = prepared.as_slice();
    while !rest.is_empty() {
        let mut pace = BatchPacer::new(&job.state.entered);
        let wrote = Step::run(job, WriteRows { lease, sections, documents: rest, pace: &mut pace }).await?;
        *waited += pace.end();
        match wrote {
            Some(WriteOutcome::Documents(count)) => rest = rest.get(count..).unwrap_or_default(),
            wrote => return Ok(wrote),
        }
    }
    Ok(Some(WriteOutcome::Documents(0)))
}

/// Reads documents with their local sequences, which a walk does not return.
async fn with_local_seq(job: &Job, documents: Vec<DocumentToMap>) -> Result<Vec<DocumentToMap>> {
    let ids: Vec<String> = documents.into_iter().map(|document| document.id).collect();
    let (mut read, mut from): (Vec<DocumentToMap>, usize) = (Vec::with_capacity(ids.len()), 0);
    while let Some(rest) = ids.get(from..).filter(|rest| !rest.is_empty()) {
        let found = read_with_local_seq(job, rest).await?;
        from += found.len().max(1);
        read.extend(found);
    }
    Ok(read)
}

/// Reads a prefix of the documents with their local sequences: as many as one call of `get_many` returns.
pub async fn read_with_local_seq(job: &Job, ids: &[String]) -> Result<Vec<DocumentToMap>> {
    let options = GetOptions { local_seq: true, conflicts: true, deleted_conflicts: true, ..GetOptions::default() };
    let requests: Vec<_> = ids.iter().map(|id| (id.clone(), options.clone())).collect();
    let found = get::documents(&job.reader, &requests).await?;
    let read = ids.iter().zip(found).map(|(id, found)| {
        let document = if let GetOutcome::Document(document) = found { Some(*document) } else { None };
        DocumentToMap { id: id.clone(), document }
    });
    Ok(read.collect())
}
