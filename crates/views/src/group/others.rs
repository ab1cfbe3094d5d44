//! Watches groups that another process follows until this process has work to do.
//!
//! While queries wait here, a single watch on the group's progress serves all of them. A watch may be lost, and does
//! not report a stopped process, so the progress is also polled slowly.

use std::sync::atomic::Ordering;
use std::time::Duration;

use flatbed_databases::handles::ReadHandle;
use flatbed_databases::limits::Limit;
use flatbed_feeds::feed::watches::{Watch, set_watches};
use flatbed_operations::index::groups::groups_of;
use flatbed_store::error::{Error, Result};
use flatbed_store::proto::ViewProgress;
use flatbed_store::transaction::bounded;
use tokio::time::Instant;

use crate::group::steps::{GroupStanding, ReadStanding, drained};
use crate::view_updates::{GroupId, GroupState, views};

/// The time without progress after which this process takes over.
pub(super) const SILENCE_MAX: Limit<Duration> = Limit::new(Duration::from_secs(5), Duration::from_secs(1));

/// The polling interval with a watch, or without waiting queries.
const LOOKS: Limit<Duration> = Limit::new(Duration::from_secs(1), Duration::from_secs(2));

/// The polling interval while a query waits and the limit of watches is reached.
const LOOKS_UNWATCHED: Duration = Duration::from_millis(100);

/// The shortest interval between two polls, however often the watch fires.
const LOOKS_APART: Duration = Duration::from_millis(10);

/// Waits while another process follows a group. `None`: nothing is left to do, or the group is gone.
pub(super) async fn wait_for_holder(
    reader: &ReadHandle,
    id: GroupId,
    state: &GroupState,
) -> Result<Option<GroupStanding>> {
    let ReadHandle { inner, name, .. } = reader;
    let mut seen: Option<(ViewProgress, Instant)> = None;
    let mut room = None;
    let mut watch: Option<Watch> = None;
    loop {
        let is_waited_for = state.waiting.load(Ordering::Relaxed) > 0;
        room = if is_waited_for { room.or_else(|| views(inner).may_watch()) } else { None };
        let mut look = ReadStanding { inner, name, id };
        let standing = if room.is_some() && watch.is_none() && seen.is_some() {
            let key = inner.keys.namespace(id.0).index_progress(id.1);
            let (standing, watches) = bounded(set_watches(inner, &[&key], &mut look)).await?;
            watch = watches.into_iter().next();
            standing
        } else {
            reader.read(&mut look).await?
        };
        let Some(standing) = standing else {
            views(inner).forget(id);
            return Ok(None);
        };
        if groups_of(&standing.instance.record).all(|group| group.number != id.1 || group.named_by.is_empty()) {
            return Ok(None);
        }
        let others = |progress: &&ViewProgress| !progress.holder.is_empty() && progress.holder != views(inner).owner;
        let Some(progress) = standing.progress.as_ref().filter(others) else { return Ok(Some(standing)) };
        state.moved_to(drained(progress));
        if standing.is_through() {
            state.is_through();
            if !is_waited_for {
                return Ok(None);
            }
        }
        let is_first = seen.is_none();
        match &seen {
            Some((before, since)) if before == progress => {
                if inner.clock.since(*since) >= SILENCE_MAX.get() && !standing.is_through() {
                    return Ok(Some(standing));
                }
            }
            _ => seen = Some((progress.clone(), inner.clock.now())),
        }
        if inner.is_closing() {
            return Err(Error::ShuttingDown);
        }
        if !is_waited_for {
            // Without waiting queries no watch is needed.
            watch = None;
        } else if is_first {
            // Read again, now with a watch.
            continue;
        }
        pause(reader, state, &mut watch, is_waited_for).await;
    }
}

async fn pause(reader: &ReadHandle, state: &GroupState, watch: &mut Option<Watch>, is_waited_for: bool) {
    let (mut closing, clock) = (reader.inner.closing.subscribe(), &reader.inner.clock);
    let looks = if is_waited_for && watch.is_none() { LOOKS_UNWATCHED } else { LOOKS.get() };
    let looked_at = clock.now();
    let fired = async {
        match watch {
            Some(watch) => watch.await,
            None => std::future::pending().await,
        }
    };
    let apart = tokio::select! {
        // A watch that failed may fail again.
        fired = fired => Some(if fired.is_ok() { LOOKS_APART } else { LOOKS_UNWATCHED }),
        () = clock.sleep(looks) => None,
        () = state.waited_for.notified(), if !is_waited_for => None,
        _ = closing.wait_for(|closing| *closing) => None,
    };
    if let Some(apart) = apart {
        *watch = None;
        clock.sleep_until(looked_at + apart).await;
    }
}
