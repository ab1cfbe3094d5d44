//! Starts following groups: after writes of this process, and when background work is due.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_databases::handles::{ReadHandle, WriteHandle};
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_operations::index::groups::{DropUnnamed, UNNAMED_KEPT_FOR_MS, groups_of};
use flatbed_operations::view_runtime::view_functions;
use flatbed_revtree::DocumentId;
use flatbed_store::due;
use flatbed_store::error::{Error, Result};
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::group::steps::ReadStanding;
use crate::group::updater::{ensure, ids_of};
use crate::view_updates::views;

/// The shortest interval between two starts of a group's task by one check, from the third start on.
const STARTS_APART: Duration = Duration::from_millis(100);

pub fn wake<'a>(database: &WriteHandle, ids: impl IntoIterator<Item = &'a str>) {
    let ReadHandle { inner, name, .. } = database.reader();
    if view_functions(inner).is_none() {
        return;
    }
    if ids.into_iter().any(|id| DocumentId::of(id).is_design()) {
        // The cached instance may be outdated.
        let reader = database.reader().clone();
        tokio::spawn(async move { wake_all(&reader).await.map(drop) });
        return;
    }
    if let Some(instance) = inner.cached(name) {
        ids_of(&instance).into_iter().for_each(|id| ensure(database.reader(), id));
    }
}

/// Wakes followers after a purge by this process, which leaves no entry in by-seq.
pub fn wake_purged(database: &WriteHandle, id: &str) {
    wake(database, [id]);
    let inner = &database.inner;
    if let Some(instance) = inner.cached(&database.name) {
        let known = ids_of(&instance).into_iter().filter_map(|id| views(inner).known(id));
        known.for_each(|group| group.wake.notify_one());
    }
}

/// Makes this process follow all groups in a database's current record.
async fn wake_all(reader: &ReadHandle) -> Result<Arc<Instance>> {
    let ReadHandle { inner, name, .. } = reader;
    let instance = reader.read(&mut Resolve { inner, name }).await?;
    ids_of(&instance).into_iter().for_each(|id| ensure(reader, id));
    Ok(instance)
}

#[derive(Debug, PartialEq)]
pub enum AttendOutcome {
    Through,
    /// All have followed, and an unnamed group is to be removed at this time, in milliseconds of Unix time.
    Until(u64),
    Unfinished,
    Elsewhere,
}

/// Starts following the groups of a database, and waits up to `turn`. Followers continue afterwards.
#[boxed]
pub async fn take_up(reader: &ReadHandle, turn: Duration) -> Result<()> {
    if view_functions(&reader.inner).is_some() {
        let instance = wake_all(reader).await?;
        are_through(reader, &instance, reader.inner.clock.now() + turn, || ()).await?;
    }
    Ok(())
}

/// Makes this process follow the groups of a database, unless another one does, waits up to `turn` until they have
/// followed, and drops those that have been unnamed for a day. `begin_wait` is called before the first wait.
pub fn attend<'a>(
    reader: &'a ReadHandle,
    turn: Duration,
    begin_wait: impl FnOnce() + Send + 'a,
) -> BoxFuture<'a, Result<AttendOutcome>> {
    Box::pin(attend_at(reader, turn, reader.inner.clock.unix_ms(), begin_wait))
}

pub async fn attend_at(
    reader: &ReadHandle,
    turn: Duration,
    now_ms: u64,
    begin_wait: impl FnOnce() + Send,
) -> Result<AttendOutcome> {
    let ReadHandle { inner, name, .. } = reader;
    if view_functions(inner).is_none() {
        return Ok(AttendOutcome::Elsewhere);
    }
    let until = inner.clock.now() + turn;
    let until_ms = now_ms.saturating_sub(UNNAMED_KEPT_FOR_MS);
    drop_unnamed(inner, name, until_ms).await?;
    let instance = wake_all(reader).await?;
    if !are_through(reader, &instance, until, begin_wait).await? {
        return Ok(AttendOutcome::Unfinished);
    }
    let unnamed = groups_of(&instance.record).map(|group| group.unnamed_since_ms).filter(|since| *since > 0).min();
    Ok(match unnamed {
        Some(since) => AttendOutcome::Until(due::rounded_ms(since + UNNAMED_KEPT_FOR_MS)),
        None => AttendOutcome::Through,
    })
}

/// Waits until all groups have followed, failed or lost their names. A group's task reports each of its steps, also if
/// another process follows the group, so that nothing is polled here. Returns false after `until`.
async fn are_through(
    reader: &ReadHandle,
    instance: &Instance,
    until: Instant,
    begin_wait: impl FnOnce() + Send,
) -> Result<bool> {
    let ReadHandle { inner, name, .. } = reader;
    let (mut begin_wait, mut closing) = (Some(begin_wait), inner.closing.subscribe());
    for id in ids_of(instance) {
        let (state, mut next) = (views(inner).group(id), inner.clock.now());
        loop {
            // Steps after the read end the wait.
            let mut moved = state.moved.subscribe();
            let Some(standing) = reader.read(&mut ReadStanding { inner, name, id }).await? else { break };
            if standing.is_through() || standing.group.named_by.is_empty() || state.failure().is_some() {
                break;
            }
            if inner.is_closing() || inner.clock.now() >= until {
                return Ok(false);
            }
            let is_running = state.is_running.load(Ordering::Acquire);
            if !is_running {
                ensure(reader, id);
            }
            if let Some(begin_wait) = begin_wait.take() {
                begin_wait();
            }
            tokio::select! {
                _ = moved.changed() => {}
                () = inner.clock.sleep_until(until) => {}
                _ = closing.wait_for(|closing| *closing) => {}
            }
            // Steps of a running task are as slow as its transactions. A task that ends at once is not started anew
            // all the time.
            if !is_running {
                inner.clock.sleep_until(next.min(until)).await;
                next = inner.clock.now() + STARTS_APART;
            }
        }
    }
    Ok(true)
}

/// Drops failed groups that are no longer named or whose database is gone from memory, so that they do not count as
/// behind.
#[boxed]
pub async fn forget_gone(inner: &Arc<Inner>) -> Result<()> {
    for (name, failing) in views(inner).failing() {
        let named = match ReadHandle::new(Arc::clone(inner), &name).read(&mut Resolve { inner, name: &name }).await {
            Ok(instance) => ids_of(&instance),
            Err(Error::DatabaseNotFound) => Vec::new(),
            Err(error) => return Err(error),
        };
        failing.iter().filter(|id| !named.contains(id)).for_each(|id| views(inner).forget(*id));
    }
    Ok(())
}

async fn drop_unnamed(inner: &Inner, name: &str, until_ms: u64) -> Result<()> {
    let gone = transaction::write(&inner.db, &inner.metrics, &mut DropUnnamed { inner, name, until_ms }).await?;
    if let (Some(instance), false) = (inner.cached(name), gone.is_empty()) {
        gone.into_iter().for_each(|number| views(inner).forget((instance.record.namespace, number)));
    }
    Ok(())
}

/// Performs `Database::view_cleanup` of the layer.
#[boxed]
pub async fn view_cleanup(database: &WriteHandle) -> Result<()> {
    flatbed_databases::admission::ask(&database.inner, &database.name, database.actor()).await?;
    drop_unnamed(&database.inner, &database.name, u64::MAX).await
}

struct Resolve<'a> {
    inner: &'a Inner,
    name: &'a str,
}

impl Operation for Resolve<'_> {
    type Output = Arc<Instance>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        self.inner.resolve(trx, self.name).await
    }
}
