//! Follows changes: maps and enters runs of them, and advances the group's position.

use std::collections::HashMap;
use std::time::Duration;

use flatbed_databases::document::edit::Document;
use flatbed_feeds::feed::changes::{Changes, FollowOutcome};
use flatbed_feeds::feed::query::{ChangesQuery, Documents, Extras, Since};
use flatbed_feeds::feed::tail::TailDocument;
use flatbed_store::error::Result;
use flatbed_store::proto::ViewProgress;
use flatbed_store::seq::Seq;
use futures_util::FutureExt;

use crate::at_once::BatchPacer;
use crate::group::job::Job;
use crate::group::large::{LargeOutcome, finish};
use crate::group::mapper::{DocumentToMap, MappedPart, map};
use crate::group::purges;
use crate::group::steps::{Enter, EnterOutcome, ReleaseGroup, Step, drained, place_of, purges_of};
use crate::view::prepare::PreparedDocument;
use crate::view_updates::RUN_DOCUMENTS_MAX;
use crate::view_updates::memory::MemoryPermit;

/// The idle time after which the group is released.
const LINGER: Duration = Duration::from_secs(60);

/// The bytes of the bodies in a run (one body may exceed it).
const RUN_BYTES_MAX: usize = 400_000;

/// The contents of a feed row that maps need.
const EXTRAS: Extras = Extras { leaves: false, documents: Documents::WithAllLeaves };

pub(super) enum Outcome {
    Idle,
    /// The group is gone, another process follows it, or this one stops.
    Elsewhere,
    /// The group must be rebuilt.
    Anew,
}

#[derive(Default)]
struct ChangeRun {
    documents: Vec<(Seq, DocumentToMap)>,
    bytes: usize,
    /// True if more changes already exist, so that nothing needs to be awaited.
    is_cut: bool,
}

impl ChangeRun {
    fn add(&mut self, seq: Seq, id: String, document: Option<Document>) {
        self.bytes += document.as_ref().map_or(0, |document| document.body.len());
        let document = document.filter(|document| !document.deleted).map(|mut document| {
            document.local_seq = Some(seq);
            document
        });
        self.documents.push((seq, DocumentToMap { id, document }));
    }

    fn is_full(&self) -> bool {
        self.documents.len() >= RUN_DOCUMENTS_MAX || self.bytes >= RUN_BYTES_MAX
    }

    fn newest(self) -> (Vec<Seq>, Vec<DocumentToMap>) {
        let last: HashMap<String, usize> =
            self.documents.iter().enumerate().map(|(at, (_, document))| (document.id.clone(), at)).collect();
        let is_last = |(at, (_, document)): &(usize, (Seq, DocumentToMap))| last.get(&document.id) == Some(at);
        self.documents.into_iter().enumerate().filter(is_last).map(|(_, document)| document).unzip()
    }
}

struct ReadRun {
    /// Each document once, in the order of `seqs`.
    documents: Vec<DocumentToMap>,
    /// The sequence of each document's last change, ascending.
    seqs: Vec<Seq>,
    last_seq: Option<Seq>,
    ended_as_of: Option<i64>,
}

struct MappedRun {
    documents: Vec<PreparedDocument>,
    seqs: Vec<Seq>,
    /// The group's position once all documents are entered. `None`: the position does not change.
    last_seq: Option<Seq>,
    ended_as_of: Option<i64>,
    permit: MemoryPermit,
}

enum EnteredRun {
    All,
    /// Newer purges must be entered before the rest of the run is read again. `ended_as_of`: the run has no rest, and
    /// with the purges the group is complete up to this read version.
    Purged {
        progress: Box<ViewProgress>,
        ended_as_of: Option<i64>,
    },
    Elsewhere,
    Anew,
}

pub(super) async fn follow(job: &Job, progress: ViewProgress) -> Result<Outcome> {
    let mut progress = match finish(job, progress).await? {
        LargeOutcome::Stands(progress) => progress,
        LargeOutcome::Elsewhere => return Ok(Outcome::Elsewhere),
        LargeOutcome::Anew => return Ok(Outcome::Anew),
    };
    loop {
        let (mut place, purges) = (place_of(&progress)?, purges_of(&progress));
        let query = ChangesQuery { since: Since::after(place), extras: EXTRAS, ..ChangesQuery::default() };
        let changes = Changes::new(job.reader.clone(), query).asking_version();
        let mut feed = Feed { changes, is_at_end: false, rest: None };
        let mut ahead = None;
        let (purged, ended_as_of) = loop {
            if job.is_closing() {
                return Ok(Outcome::Elsewhere);
            }
            let run = match ahead.take() {
                Some(run) => run,
                None => match feed.next(job).await? {
                    Some(run) => run,
                    None if job.is_closing() => return Ok(Outcome::Elsewhere),
                    None => {
                        let _ = Step::run(job, ReleaseGroup { stamp: place.stamp().to_vec() }).await?;
                        return Ok(Outcome::Idle);
                    }
                },
            };
            // The next run is mapped while this one is entered. It may wait for the memory that this one returns.
            let (entered, next) = tokio::join!(enter(job, &mut place, purges, run), feed.ahead(job));
            match entered? {
                EnteredRun::All => ahead = next?,
                EnteredRun::Purged { progress, ended_as_of } => break (progress, ended_as_of),
                EnteredRun::Elsewhere => return Ok(Outcome::Elsewhere),
                EnteredRun::Anew => return Ok(Outcome::Anew),
            }
        };
        job.state.is_behind();
        // The unmapped rest may contain purged documents, so it is read again.
        match purges::enter(job, *purged, ended_as_of).await? {
            purges::Outcome::Entered(entered) => {
                job.state.moved_to(drained(&entered));
                progress = entered;
            }
            purges::Outcome::Elsewhere => return Ok(Outcome::Elsewhere),
            purges::Outcome::Anew => return Ok(Outcome::Anew),
        }
    }
}

/// Enters a run, in several transactions if needed. `purges`: the group's count of purges before the run was read.
async fn enter(job: &Job, place: &mut Seq, purges: i64, run: MappedRun) -> Result<EnteredRun> {
    let MappedRun { documents, seqs, last_seq, ended_as_of, permit: _permit } = run;
    let (mut documents, mut seqs) = (documents.as_slice(), seqs.as_slice());
    let last_seq = last_seq.unwrap_or(*place);
    loop {
        let stamp = place.stamp().to_vec();
        let mut pace = BatchPacer::new(&job.state.entered);
        let work = Enter { stamp: &stamp, purges, documents, seqs, last_seq, ended_as_of, pace: &mut pace };
        let entered = Step::run(job, work).await?;
        pace.end();
        match entered {
            None => return Ok(EnteredRun::Elsewhere),
            Some(EnterOutcome::Full) => return Ok(EnteredRun::Anew),
            Some(EnterOutcome::Purged(progress)) => return Ok(EnteredRun::Purged { progress, ended_as_of: None }),
            Some(EnterOutcome::Documents { count, place: stands, drained, is_through, is_tidy, purged }) => {
                *place = stands;
                job.state.add_done(count as u64);
                documents = documents.get(count..).unwrap_or_default();
                seqs = seqs.get(count..).unwrap_or_default();
                // Leftovers of a large document are cleared at once, although no query waits for that.
                if documents.is_empty() && is_tidy {
                    if is_through {
                        job.state.is_through();
                    }
                    job.state.moved_to(drained);
                    return Ok(match purged {
                        Some(progress) => EnteredRun::Purged { progress, ended_as_of },
                        None => EnteredRun::All,
                    });
                }
            }
        }
    }
}

struct Feed {
    changes: Changes,
    /// True if by-seq was read to its end, so that the shared feed continues behind it.
    is_at_end: bool,
    rest: Option<ReadRun>,
}

impl Feed {
    /// Waits for changes and maps them. `None`: the group is idle, or the process stops.
    async fn next(&mut self, job: &Job) -> Result<Option<MappedRun>> {
        let run = match self.rest.take() {
            Some(rest) => rest,
            None => {
                let mut run = ChangeRun::default();
                if self.is_at_end && !self.share(job, &mut run).await? {
                    return Ok(None);
                }
                self.read(job, run).await?
            }
        };
        self.map(job, run).await.map(Some)
    }

    /// Maps changes that have already arrived, without waiting for any. `None`: there are none.
    async fn ahead(&mut self, job: &Job) -> Result<Option<MappedRun>> {
        let run = match self.rest.take() {
            Some(rest) => rest,
            None => {
                let mut run = ChangeRun::default();
                if self.is_at_end {
                    let Some(followed) = self.changes.follow_place().now_or_never() else { return Ok(None) };
                    if !self.take(followed, &mut run) {
                        return Ok(None);
                    }
                }
                self.read(job, run).await?
            }
        };
        self.map(job, run).await.map(Some)
    }

    /// Completes a run from by-seq where the shared feed does not have all of it.
    async fn read(&mut self, job: &Job, mut run: ChangeRun) -> Result<ReadRun> {
        if !self.is_at_end || run.is_cut {
            self.page(job, &mut run).await?;
        }
        let (last_seq, ended_as_of) = (self.changes.last_seq().map(|place| place.seq()), self.changes.ended_as_of());
        if !run.documents.is_empty() {
            job.state.is_behind();
        }
        let (seqs, documents) = run.newest();
        Ok(ReadRun { documents, seqs, last_seq, ended_as_of })
    }

    async fn map(&mut self, job: &Job, run: ReadRun) -> Result<MappedRun> {
        let ReadRun { documents, mut seqs, last_seq, ended_as_of } = run;
        let MappedPart { documents, rest, permit, .. } = map(job, documents).await?;
        if rest.is_empty() {
            return Ok(MappedRun { documents, seqs, last_seq, ended_as_of, permit });
        }
        let behind = seqs.split_off(documents.len());
        self.rest = Some(ReadRun { documents: rest, seqs: behind, last_seq, ended_as_of });
        let stands = seqs.last().copied();
        Ok(MappedRun { documents, seqs, last_seq: stands, ended_as_of: None, permit })
    }

    /// Takes changes from the shared feed, as many as exist and a run holds. Returns false after a while without any.
    async fn share(&mut self, job: &Job, run: &mut ChangeRun) -> Result<bool> {
        let followed = tokio::select! {
            followed = self.changes.follow_place() => followed,
            () = job.state.wake.notified() => return Ok(true),
            () = job.clock().sleep(LINGER) => return Ok(false),
        };
        Ok(self.take(followed, run))
    }

    /// Takes a change and those that follow it. Returns false if the process stops.
    fn take(&mut self, mut followed: Option<FollowOutcome>, run: &mut ChangeRun) -> bool {
        loop {
            match followed {
                // The group is already past it.
                None => return true,
                Some(FollowOutcome::Shutdown) => return false,
                Some(FollowOutcome::ReadOn) => {
                    run.is_cut = true;
                    return true;
                }
                Some(FollowOutcome::Rows(rows)) => {
                    for row in rows {
                        let document = match &row.document {
                            TailDocument::Read { document, .. } => Some(Document::clone(document)),
                            TailDocument::NotRead => None,
                        };
                        run.add(row.row.seq, row.row.id.clone(), document);
                    }
                }
            }
            if run.is_full() {
                return true;
            }
            match self.changes.follow_place().now_or_never() {
                Some(next) => followed = next,
                None => return true,
            }
        }
    }

    async fn page(&mut self, job: &Job, run: &mut ChangeRun) -> Result<()> {
        let page = self.changes.next_page().await?;
        for row in page.rows {
            run.add(row.seq, row.id, row.doc);
        }
        if !page.at_end {
            let left = self.changes.pending().await?;
            job.state.show(|| job.task(false, left.saturating_add(run.documents.len() as u64)));
        }
        self.is_at_end = page.at_end;
        Ok(())
    }
}
