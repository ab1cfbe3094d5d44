//! The task of a group: builds it and follows changes, while work is left.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use flatbed_clock::Clock;
use flatbed_databases::handles::ReadHandle;
use flatbed_operations::index::groups::groups_of;
use flatbed_operations::view_runtime::view_functions;
use flatbed_store::error::{Error, Result, ViewFailure};
use flatbed_store::proto::ViewProgress;
use flatbed_store::transaction;
use flatbed_store::view_functions::FunctionFailure;

use crate::group::holder::Release;
use crate::group::job::Job;
use crate::group::steps::{Hold, Step, Take, beginning_of};
use crate::group::{build, find, follow, others, sections};
use crate::view::build::{FOLLOWED, NODES, ROWS, SECTIONS};
use crate::view_updates::{GroupId, GroupState, LoggedFailure, views};

/// The first backoff, and the number of retries, while a group's design documents are changing.
const LOOK_FIRST: Duration = Duration::from_millis(20);
const LOOKS_MAX: u32 = 7;

/// The number of builds without room for a long key after which a group fails. Each enters the keys in another order.
const FULL_MAX: u32 = 2;

/// The first backoff after transient failures; it doubles each time.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
pub const PAUSE_MAX: Duration = Duration::from_secs(30);

/// The longest backoff while no thread is free for functions.
pub const PAUSE_BUSY_MAX: Duration = Duration::from_secs(2);

/// The longest backoff while a query waits.
pub const PAUSE_WAITED_FOR: Duration = Duration::from_secs(1);

/// `transaction_too_large`, `key_too_large` and `value_too_large`: a retry fails again.
pub const NEVER_WRITTEN: [i32; 3] = [2101, 2102, 2103];

pub fn ensure(reader: &ReadHandle, id: GroupId) {
    let state = views(&reader.inner).group(id);
    if view_functions(&reader.inner).is_none() {
        state.fail(ViewFailure::Function(FunctionFailure::NotRun));
        return;
    }
    // A group that has just failed would fail again.
    if state.failure().is_some() {
        return;
    }
    state.asked.fetch_add(1, Ordering::AcqRel);
    if !state.is_running.swap(true, Ordering::AcqRel) {
        tokio::spawn(run(reader.clone(), id, state));
    }
}

async fn run(reader: ReadHandle, id: GroupId, state: Arc<GroupState>) {
    let _follows = views(&reader.inner).followers.subscribe();
    let _held = reader.inner.metrics.view_updates_running.hold();
    let (mut pause, clock) = (PAUSE_FIRST, &reader.inner.clock);
    let mut may_hold = false;
    loop {
        let seen = state.asked.load(Ordering::Acquire);
        let began = clock.now();
        let again = match Box::pin(build_and_follow(&reader, id, &state, &mut may_hold)).await {
            Ok(()) => {
                state.is_through();
                None
            }
            Err(error) => {
                if clock.since(began) > PAUSE_MAX {
                    pause = PAUSE_FIRST;
                }
                handle_failure(&reader, id, &state, error)
            }
        };
        if let Some(pause_max) = again {
            pause = pause.min(pause_max);
            let mut closing = reader.inner.closing.subscribe();
            tokio::select! {
                () = pause_after_failure(clock, &state, pause) => {}
                _ = closing.wait_for(|closing| *closing) => {}
            }
            pause = (pause * 2).min(PAUSE_MAX);
            if !reader.inner.is_closing() {
                continue;
            }
        }
        if may_hold && reader.inner.is_closing() {
            // The next process would wait until this one counts as silent. The group's other transactions have ended.
            // An attempt whose result is unknown has read the progress that this one writes, so it commits before this
            // one or fails.
            let (inner, mut release) = (&reader.inner, Release { reader: &reader, id });
            let _ = Box::pin(transaction::write(&inner.db, &inner.metrics, &mut release)).await;
        }
        state.is_running.store(false, Ordering::Release);
        let is_asked = state.asked.load(Ordering::Acquire) != seen && state.failure().is_none();
        if reader.inner.is_closing() || !is_asked || state.is_running.swap(true, Ordering::AcqRel) {
            return;
        }
    }
}

/// Waits after a failure, and shortens the wait for queries.
pub async fn pause_after_failure(clock: &Clock, state: &GroupState, pause: Duration) {
    let began = clock.now();
    let waited_for = async {
        while state.waiting.load(Ordering::Acquire) == 0 {
            state.waited_for.notified().await;
        }
        clock.sleep(PAUSE_WAITED_FOR.saturating_sub(clock.since(began))).await;
    };
    let _ = clock.timeout(pause, waited_for).await;
}

/// Handles a failure. Returns the longest pause before the retry; `None`: no retry.
pub fn handle_failure(reader: &ReadHandle, id: GroupId, state: &GroupState, error: Error) -> Option<Duration> {
    match error {
        Error::DatabaseNotFound | Error::ShuttingDown => {
            state.is_through();
            views(&reader.inner).forget(id);
            return None;
        }
        _ => {}
    }
    reader.inner.metrics.view_update_failures.add(1);
    let (database, group) = (&*reader.name, id.1);
    match error {
        Error::View(ViewFailure::Function(failure @ FunctionFailure::Busy(_))) => {
            tracing::debug!(database, group, %failure, "the functions of a group of views wait for a free thread");
            state.record_retried_failure(database, ViewFailure::Function(failure));
            Some(PAUSE_BUSY_MAX)
        }
        Error::View(failure) => {
            // Each query retries the build, a second after the last attempt.
            if let Some(left_out) = state.lines.line(LoggedFailure::Unbuilt) {
                tracing::info!(database, group, %failure, left_out, "a group of views cannot be built");
            }
            state.give_up(database, failure);
            None
        }
        Error::Storage(ref never) if NEVER_WRITTEN.contains(&never.code()) => {
            tracing::error!(database, group, %error, "a group of views exceeds the size limits of the storage");
            state.give_up(database, ViewFailure::Stuck(error.to_string()));
            None
        }
        error => {
            tracing::warn!(database, group, %error, "a group of views could not be followed, and is retried");
            state.record_retried_failure(database, ViewFailure::Stuck(error.to_string()));
            Some(PAUSE_MAX)
        }
    }
}

/// Builds and follows a group until it is idle. `may_hold`: set once this process may be the group's holder.
async fn build_and_follow(
    reader: &ReadHandle,
    id: GroupId,
    state: &Arc<GroupState>,
    may_hold: &mut bool,
) -> Result<()> {
    let mut job: Option<Arc<Job>> = None;
    let (mut looks, mut full) = (0, 0);
    loop {
        if reader.inner.is_closing() {
            return Err(Error::ShuttingDown);
        }
        let Some(standing) = others::wait_for_holder(reader, id, state).await? else { return Ok(()) };
        *may_hold |= standing.progress.as_ref().is_some_and(|progress| progress.holder == reader.inner.process);
        let Some(design) = standing.group.named_by.first() else { return Ok(()) };
        let at = match &job {
            Some(job) => Arc::clone(job),
            None => {
                let Some(loaded) = find::load(reader, &standing.instance, &standing.group).await? else {
                    if looks == LOOKS_MAX {
                        return Err(ViewFailure::Changed.into());
                    }
                    // The design documents are changing, and the record will follow; or a program with other signatures
                    // wrote them.
                    reader.inner.clock.sleep(LOOK_FIRST * 2_u32.pow(looks)).await;
                    looks += 1;
                    if looks > 1 {
                        name_anew(reader, &standing.group.named_by).await?;
                    }
                    continue;
                };
                let made = Job::new(reader.clone(), id, design.clone(), loaded, Arc::clone(state))?;
                made.functions.check().await?;
                *may_hold = true;
                Arc::clone(job.insert(Arc::new(made)))
            }
        };
        let owner = reader.inner.process;
        let progress = match standing.progress {
            // Its holder is silent. This process becomes the holder before it works: while it maps documents or waits
            // for a turn, no third process takes the group over, and the silent one notices.
            Some(progress) if progress.phase == FOLLOWED && !progress.holder.is_empty() && progress.holder != owner => {
                match Step::run(&at, Hold { silent: Some(&progress) }).await? {
                    Some((_, progress)) => progress,
                    None => continue,
                }
            }
            Some(progress) if progress.phase == FOLLOWED => progress,
            _ => match Step::run(&at, Take { anew: None }).await? {
                Some(progress) => progress,
                None => continue,
            },
        };
        if Box::pin(work(&at, progress, &mut full)).await? {
            return Ok(());
        }
    }
}

async fn name_anew(reader: &ReadHandle, designs: &[String]) -> Result<()> {
    for design in designs {
        match find::look_up(reader, design, |_| true).await {
            // Queries of its views report the error.
            Ok(_) | Err(Error::View(_) | Error::Refused(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Does the work of a group in this state. Returns false if the state must be read again. `full`: the number of builds
/// without room for a long key.
async fn work(job: &Arc<Job>, mut progress: ViewProgress, full: &mut u32) -> Result<bool> {
    let is_build = progress.phase != FOLLOWED;
    let beginning = beginning_of(&progress);
    let is_anew = match progress.phase {
        ROWS => {
            job.state.is_behind();
            let began = job.clock().now();
            let outcome = build::build_rows(job, &progress).await?;
            tracing::debug!(database = &*job.reader.name, group = job.number(), took = ?job.clock().since(began), "rows are built");
            matches!(outcome, build::Outcome::Anew)
        }
        NODES => {
            job.state.is_behind();
            job.state.show(|| job.task(true, progress.documents));
            if progress.building.is_some() {
                job.state.set_done(progress.documents);
            }
            let outcome = build::build_nodes(job).await?;
            if matches!(outcome, build::Outcome::Built) {
                job.reader.inner.metrics.view_groups_built.add(1);
                job.state.is_through();
            }
            matches!(outcome, build::Outcome::Anew)
        }
        SECTIONS => {
            job.state.is_behind();
            // All documents are mapped.
            job.state.show(|| job.task(true, progress.documents));
            job.state.set_done(progress.documents);
            sections::build(job).await?;
            false
        }
        FOLLOWED => {
            progress.building = None;
            match follow::follow(job, progress).await? {
                follow::Outcome::Idle => return Ok(true),
                follow::Outcome::Elsewhere => false,
                follow::Outcome::Anew => true,
            }
        }
        other => return Err(Error::Corrupt(format!("a group is in phase {other}"))),
    };
    if is_anew {
        *full += u32::from(is_build);
        if *full >= FULL_MAX {
            let reason =
                "keys longer than 4 kB that begin alike leave no room for another one, although it was built anew";
            return Err(ViewFailure::Stuck(reason.to_owned()).into());
        }
        let (database, group) = (&*job.reader.name, job.number());
        tracing::info!(database, group, "a group of views is rebuilt");
        let _ = Step::run(job, Take { anew: Some(beginning) }).await?;
    }
    Ok(false)
}

pub(super) fn ids_of(instance: &flatbed_databases::instance::Instance) -> Vec<GroupId> {
    let namespace = instance.record.namespace;
    let named = groups_of(&instance.record).filter(|group| !group.named_by.is_empty());
    named.map(|group| (namespace, group.number)).collect()
}
