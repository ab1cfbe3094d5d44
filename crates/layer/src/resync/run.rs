//! A process's part in a resync: it takes ranges, and works on several at once.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_jobs::Owner;
use flatbed_operations::index::prepare::Preparations;
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::Counter;
use flatbed_store::once::random_id;
use flatbed_store::proto;
use flatbed_store::sync_function::draw_run;
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use flatbed_store::waits;
use futures_util::future::try_join_all;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::handle::Reader;
use crate::resync::judge::judge;
use crate::resync::page::{DocumentPage, ReadPage};
use crate::resync::ranges::{BeginAnew, Finish, HeldRange, Keep, SILENCE_MAX, TakeRanges, divide};
use crate::resync::state::{ReadResync, StoredResync};
use crate::resync::step::{Step, StepOutcome, is_written};
use crate::resyncs::{ResyncTask, Resyncs, RunningResync};

/// The ranges that a process works on at once.
const RANGES_AT_ONCE: usize = 8;

/// The calls of the function at once: requests need it, too.
const CALLS_AT_ONCE: usize = 4;

/// The interval at which a process that could take a range reads them all, and one that could not.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_RARELY: Duration = Duration::from_secs(5);

/// The interval of beats while a page is judged.
const BEAT_EVERY: Duration = Duration::from_secs(3);

/// Retry limit for a conflicted document under continuous edits.
const ASKED_ANEW_MAX: usize = 20;

/// Takes part in a database's resync for up to `time`. Returns whether it has finished or was stopped; `None`: this
/// process already takes part in it.
///
/// # Errors
/// Those of the storage; of a function that cannot be run. Earlier progress stays.
pub(crate) async fn resync(database: &Reader, time: Duration) -> Result<Option<bool>> {
    let (inner, name) = (&*database.handle.inner, &*database.handle.name);
    let until = inner.clock.now() + time;
    let Some(found) = transaction::read(&inner.db, &inner.metrics, &mut ReadResync { inner, name }).await? else {
        return Ok(Some(true));
    };
    if found.state.stopped {
        return Ok(Some(true));
    }
    let mut begin = Begin { name, found: &found };
    let task = transaction::read(&inner.db, &inner.metrics, &mut begin).await?;
    let Some(running) = inner.state::<Resyncs>().begin(found.instance.record.namespace, task) else { return Ok(None) };
    let _running = inner.metrics.resyncs_running.hold();
    let owner = random_id()?;
    let (seen, workers, at_work, failed) = Default::default();
    let calls = Arc::new(Semaphore::new(CALLS_AT_ONCE));
    let mut part = Part { database, running: &running, owner, until, calls, seen, workers, at_work, failed };
    let mut found = Some(found);
    loop {
        if let Some(is_over) = part.turn(found.take()).await? {
            return Ok(Some(is_over));
        }
    }
}

struct Begin<'a> {
    name: &'a str,
    found: &'a StoredResync,
}

impl Operation for Begin<'_> {
    type Output = ResyncTask;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<ResyncTask> {
        let StoredResync { instance, state, .. } = self.found;
        let counts = [Counter::Documents, Counter::DeletedDocuments];
        let counts = counts.map(|counter| instance.buckets.begin_count(trx, counter));
        let total: i64 = try_join_all(counts).await?.into_iter().sum();
        let [documents, changed, refused] = self.found.sums();
        let (database, total, started_at_ms) = (self.name.to_owned(), total.max(0) as u64, state.begun_at_ms);
        let updated_at_ms = trx.clock().unix_ms();
        Ok(ResyncTask { database, documents, total, changed, refused, started_at_ms, updated_at_ms })
    }
}

/// The running part of this process.
struct Part<'a> {
    database: &'a Reader,
    running: &'a RunningResync,
    owner: Owner,
    until: Instant,
    calls: Arc<Semaphore>,
    /// Ranges of other processes, and since when they are unchanged.
    seen: HashMap<String, (proto::ResyncRange, Instant)>,
    /// They end with this. Each returns the first id of its range.
    workers: JoinSet<(String, Result<()>)>,
    at_work: HashSet<String>,
    /// Ranges whose work has failed, and the last error.
    failed: (HashSet<String>, Option<Error>),
}

impl Part<'_> {
    /// Looks at the resync, takes ranges, and waits. Returns whether the resync has finished, if this process's part
    /// ends.
    async fn turn(&mut self, found: Option<StoredResync>) -> Result<Option<bool>> {
        let (inner, name) = (&*self.database.handle.inner, &*self.database.handle.name);
        let found = match found {
            Some(found) => Some(found),
            None => transaction::read(&inner.db, &inner.metrics, &mut ReadResync { inner, name }).await?,
        };
        let Some(found) = found.filter(|found| !found.state.stopped) else {
            // The workers notice at their next page.
            while self.workers.join_next().await.is_some() {}
            return Ok(Some(true));
        };
        let [documents, changed, refused] = found.sums();
        self.running.update(|task| {
            (task.documents, task.changed, task.refused) = (documents, changed, refused);
            task.updated_at_ms = inner.clock.unix_ms();
        });
        let (instance, state) = (&found.instance, &found.state);
        let is_over = inner.is_closing() || inner.clock.now() >= self.until;
        if is_over && self.workers.is_empty() {
            return Ok(Some(false));
        }
        if instance.channels() != state.number {
            let mut anew = BeginAnew { inner, name, state, run: draw_run()? };
            transaction::write(&inner.db, &inner.metrics, &mut anew).await?;
            return Ok(None);
        }
        if !state.divided {
            divide(inner, instance, state.run).await?;
            return Ok(None);
        }
        if found.is_through() {
            let mut finish = Finish { inner, name, run: state.run };
            transaction::write(&inner.db, &inner.metrics, &mut finish).await?;
            return Ok(None);
        }
        let free = self.free(&found);
        let room = RANGES_AT_ONCE.saturating_sub(self.workers.len());
        let wanted = free.get(..free.len().min(room)).unwrap_or_default();
        if !is_over && !wanted.is_empty() {
            let (run, owner) = (state.run, &self.owner);
            let mut take = TakeRanges { inner, name, run, owner, wanted };
            let taken = transaction::write(&inner.db, &inner.metrics, &mut take).await?;
            for (first, range) in taken {
                self.begin(first, range, instance, state.number);
            }
        }
        if self.workers.is_empty()
            && free.is_empty()
            && let Some(error) = self.failed.1.take()
        {
            return Err(error);
        }
        let pause = if room > 0 { LOOK_EVERY } else { LOOK_RARELY };
        let ended = tokio::select! {
            Some(ended) = self.workers.join_next() => ended,
            () = inner.clock.sleep(pause) => return Ok(None),
        };
        match ended {
            Ok((first, result)) => {
                self.at_work.remove(&first);
                if let Err(error) = result {
                    self.failed.0.insert(first);
                    self.failed.1 = Some(error);
                }
            }
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => {}
        }
        Ok(None)
    }

    /// Returns the ranges that this process may take, from a place of its own on.
    fn free(&mut self, found: &StoredResync) -> Vec<(String, proto::ResyncRange)> {
        let now = self.database.handle.inner.clock.now();
        let mut free = Vec::new();
        for (first, range) in &found.ranges {
            if range.done || self.at_work.contains(first) || self.failed.0.contains(first) {
                continue;
            }
            let (before, since) = self.seen.entry(first.clone()).or_insert_with(|| (range.clone(), now));
            if before != range {
                (*before, *since) = (range.clone(), now);
            }
            if range.owner.is_empty() || now.saturating_duration_since(*since) >= SILENCE_MAX {
                free.push((first.clone(), range.clone()));
            }
        }
        // Processes that begin together take different ones.
        let at = usize::from(self.owner[0]) * free.len() / 256;
        free.rotate_left(at);
        free
    }

    fn begin(&mut self, first: String, range: proto::ResyncRange, instance: &Arc<Instance>, number: u64) {
        self.at_work.insert(first.clone());
        let (database, instance) = (self.database.clone(), Arc::clone(instance));
        let worker = RangeWorker { database, instance, number, until: self.until, calls: Arc::clone(&self.calls) };
        let work = async move {
            let worked = worker.range(first.clone(), range).await;
            (first, worked)
        };
        self.workers.spawn(waits::carry(waits::OperationCounters::current(), work));
    }
}

/// Works on a range.
struct RangeWorker {
    database: Reader,
    instance: Arc<Instance>,
    number: u64,
    until: Instant,
    calls: Arc<Semaphore>,
}

impl RangeWorker {
    fn inner(&self) -> &Inner {
        &self.database.handle.inner
    }

    /// Works on a range to its end, up to the time limit, until the resync is stopped, or while the range is this
    /// process's.
    async fn range(&self, first: String, range: proto::ResyncRange) -> Result<()> {
        let mut held = HeldRange::new(self.inner(), &self.database.handle.name, first, range);
        let worked = self.pages(&mut held).await;
        // Other processes need not wait for the silence. A range of another process stays as it is.
        let noted = held.note(*worked.as_ref().unwrap_or(&Keep::Released)).await;
        worked?;
        noted.map(drop)
    }

    /// Returns how to store the range at the end.
    async fn pages(&self, held: &mut HeldRange<'_>) -> Result<Keep> {
        let (inner, mut anew) = (self.inner(), 0);
        loop {
            if inner.is_closing() || inner.clock.now() >= self.until {
                return Ok(Keep::Released);
            }
            let (instance, number) = (&self.instance, self.number);
            let mut read = ReadPage { inner, instance, number, first: &held.first, range: &held.range };
            let Some(page) = transaction::read(&inner.db, &inner.metrics, &mut read).await? else {
                return Ok(Keep::Released);
            };
            match self.page(held, &page, anew >= ASKED_ANEW_MAX).await? {
                PageOutcome::Through if page.is_last => return Ok(Keep::Done),
                PageOutcome::Through => anew = 0,
                PageOutcome::Edited => anew += 1,
                PageOutcome::Lost => return Ok(Keep::Released),
            }
            if held.is_note_due() && !held.note(Keep::Held).await? {
                return Ok(Keep::Released);
            }
        }
    }

    async fn page(&self, held: &mut HeldRange<'_>, page: &DocumentPage, mut gives_up: bool) -> Result<PageOutcome> {
        let (inner, name) = (self.inner(), &*self.database.handle.name);
        let DocumentPage { instance, documents, .. } = page;
        let judged = beating(held, judge(&self.database, instance, documents, &self.calls)).await?;
        let Some(answers) = judged else { return Ok(PageOutcome::Lost) };
        let (mut documents, mut answers) = (documents.as_slice(), answers.as_slice());
        while documents.iter().zip(answers).any(|(document, answers)| is_written(document, answers)) {
            let (number, first, next) = (self.number, &*held.first, held.next());
            let (stored, preparations) = (held.stored(), Preparations::default());
            let mut step =
                Step { inner, name, number, first, stored, next, documents, answers, preparations, gives_up };
            match transaction::write(&inner.db, &inner.metrics, &mut step).await? {
                StepOutcome::On(range) => {
                    let passed = documents.partition_point(|document| document.id <= range.done_until);
                    documents = documents.get(passed..).unwrap_or_default();
                    answers = answers.get(passed..).unwrap_or_default();
                    held.has_stored(range);
                    gives_up = false;
                }
                StepOutcome::Edited => return Ok(PageOutcome::Edited),
                StepOutcome::Elsewhere => return Ok(PageOutcome::Lost),
            }
        }
        // The rest stays as it is.
        if let Some(last) = documents.last() {
            held.range.documents += documents.len() as u64;
            held.range.refused += answers.iter().map(|answers| answers.refused).sum::<u64>();
            held.range.done_until.clone_from(&last.id);
        }
        Ok(PageOutcome::Through)
    }
}

enum PageOutcome {
    /// All documents of the page are processed.
    Through,
    /// A document with conflicts was edited meanwhile: the page is to be read again from there.
    Edited,
    /// The range belongs to another process, or the resync was stopped or has begun anew.
    Lost,
}

/// Waits for a judgement, and stores the range meanwhile, so that no other process takes it over. `None`: one has.
async fn beating<T>(held: &mut HeldRange<'_>, judgement: impl Future<Output = Result<T>>) -> Result<Option<T>> {
    let clock = held.clock().clone();
    let mut judgement = pin!(judgement);
    loop {
        tokio::select! {
            biased;
            judged = &mut judgement => return judged.map(Some),
            () = clock.sleep(BEAT_EVERY) => {}
        }
        if !held.note(Keep::Held).await? {
            return Ok(None);
        }
    }
}
