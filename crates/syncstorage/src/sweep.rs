//! The due work: expired records, abandoned batches, unfolded overlays.
//!
//! Each user's work lies in one of [`SHARDS`] slices. Several users of a slice are worked for at once. An entry whose
//! work fails is put off, so that it holds up no other user's: it moves to a later time of its slice.

use std::collections::{BTreeSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use flatbed_jobs::{Backoff, Lease};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, try_join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::edit::Edit;
use crate::error::{Error, Result};
use crate::keys::{Due, DueEntry, KeyRange, SHARDS};
use crate::layers::{LayeredRows, base_rows};
use crate::names::{CollectionName, RecordId, Uid};
use crate::once::drawn;
use crate::store::Inner;
use crate::timestamp::Timestamp;
use crate::transaction::Trx;
use crate::values::LeaseValue;
use crate::write::{head, state};

/// The entries of due work that are read at once, of a slice.
const PAGE_DUE: usize = 50;

/// The groups of entries that are worked on at once, in a slice: one user's entries, or the expiries of a page.
const GROUPS_AT_ONCE: usize = 8;

/// The records that one transaction removes. It is short, for the sake of waiting writers.
const SWEEP_ROWS_MAX: usize = 200;

/// The delay before expired records are removed, in seconds: clocks of other processes may be late.
const SWEEP_AFTER_SECONDS: u32 = 10;

/// The pauses before an entry that failed is tried again.
const AGAIN: Backoff = Backoff { first: Duration::from_secs(60), max: Duration::from_secs(3_600) };

/// The slices with due work, and the leases of slices.
#[derive(Debug, Default)]
pub(crate) struct DueSlices {
    pub due: Vec<u64>,
    /// Empty if nothing is due.
    pub leases: Vec<(u64, Lease)>,
}

/// The outcome of work in a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SliceOutcome {
    /// The number of tasks done.
    pub done: u64,
    /// True if the time was over before all due entries were read.
    pub is_left: bool,
}

/// A stored entry of due work.
#[derive(Debug, Clone)]
struct DueTask {
    slice: u64,
    /// The key of the entry.
    key: Vec<u8>,
    /// The key of the entry before it was put off; the same key if it was not.
    original: Vec<u8>,
    /// `None`: the entry is unreadable.
    entry: Option<DueEntry>,
    /// The failed attempts so far.
    failures: u32,
}

impl DueTask {
    fn is_deferred(&self) -> bool {
        self.key != self.original
    }

    /// Returns the user and collection of an expiry that has not failed before.
    fn fresh_expiry(&self) -> Option<(Timestamp, Uid, CollectionName)> {
        match &self.entry {
            Some(DueEntry { at, uid, due: Due::Expiry(name) }) if !self.is_deferred() => {
                Some((*at, *uid, name.clone()))
            }
            _ => None,
        }
    }
}

/// Entries that are worked on in sequence.
enum TaskGroup {
    /// Expiries of several users, which share transactions.
    Expiries(Vec<DueTask>),
    /// Entries of one user.
    OfUser(Vec<DueTask>),
}

#[derive(Debug, Default)]
struct SweepOutcome {
    records: u64,
    /// Entries that were no longer true, or that now have a later time.
    notes: u64,
    /// Collections with overlays.
    to_fold: Vec<(Uid, CollectionName)>,
    /// True if records are left to sweep.
    is_left: bool,
}

impl Inner {
    /// Does the due work of all slices, each once and to its end, without leases. Returns the number of tasks. Tasks
    /// that fail are put off.
    pub(crate) async fn do_due(&self) -> Result<u64> {
        let mut done = 0;
        for slice in self.look_at_due().await?.due {
            done += self.do_slice(slice, Duration::MAX).await?.done;
        }
        Ok(done)
    }

    /// Returns the slices with due work, and if there are some, the leases. One transaction, whose cost does not depend
    /// on the number of users.
    pub(crate) async fn look_at_due(&self) -> Result<DueSlices> {
        let now = self.now();
        self.runner
            .read(move |trx| async move {
                let looks = (0..SHARDS).map(|shard| trx.is_any(&self.keys.due_until(shard, now)));
                let looks = try_join_all(looks).await?;
                let due: Vec<u64> = (0..).zip(looks).filter(|(_, is_any)| *is_any).map(|(slice, _)| slice).collect();
                let mut leases = Vec::new();
                let mut rest = (!due.is_empty()).then(|| self.keys.leases());
                while let Some(range) = rest {
                    let page = trx.page(&range, SHARDS as usize, false).await?;
                    for (key, value) in &page.rows {
                        match (self.keys.take_lease(key), LeaseValue::decode(value)) {
                            (Ok(slice), Ok(lease)) => leases.push((slice, lease)),
                            // Its slice cannot be taken. The others can.
                            (Err(error), _) | (_, Err(error)) => {
                                tracing::warn!(%error, "a lease of Firefox Sync's due work is unreadable");
                            }
                        }
                    }
                    rest = page.rest;
                }
                Ok(DueSlices { due, leases })
            })
            .await
    }

    /// Does the due work of a slice. After the time `turn` no further entries are read.
    ///
    /// # Errors
    /// An entry that failed could not be put off, or the entries could not be read.
    pub(crate) async fn do_slice(&self, slice: u64, turn: Duration) -> Result<SliceOutcome> {
        let begun = self.clock.now();
        let mut range = Some(self.keys.due_until(slice, self.now()));
        let (mut done, mut waiting, mut running) = (0, VecDeque::new(), FuturesUnordered::new());
        loop {
            while running.len() < GROUPS_AT_ONCE
                && let Some(group) = waiting.pop_front()
            {
                running.push(self.do_group(group));
            }
            let has_room = running.len() < GROUPS_AT_ONCE && self.clock.since(begun) < turn;
            if has_room && let Some(next) = range.take() {
                let (tasks, rest) = self.due(slice, &next).await?;
                waiting.extend(self.grouped(tasks));
                range = rest;
                continue;
            }
            match running.next().await {
                Some(tasks) => done += tasks?,
                None => return Ok(SliceOutcome { done, is_left: range.is_some() }),
            }
        }
    }

    /// Returns a page of a slice's due work, and the rest of the range.
    async fn due(&self, slice: u64, range: &KeyRange) -> Result<(Vec<DueTask>, Option<KeyRange>)> {
        let page = self.runner.read(move |trx| async move { trx.page(range, PAGE_DUE, false).await }).await?;
        let tasks = page.rows.into_iter().map(|(key, value)| {
            let deferred = self.keys.take_deferred(&key);
            let original = deferred.map_or_else(|| key.clone(), |deferred| deferred.original);
            let entry = self.keys.take_due(&original).ok();
            DueTask { slice, key, original, entry, failures: failures_of(&value) }
        });
        Ok((tasks.collect(), page.rest))
    }

    /// Divides a page of tasks. Records that expired a moment ago are left.
    fn grouped(&self, tasks: Vec<DueTask>) -> Vec<TaskGroup> {
        let swept_at = self.swept_at();
        let (mut expiries, mut groups): (_, Vec<Vec<DueTask>>) = (Vec::new(), Vec::new());
        for task in tasks {
            let uid = task.entry.as_ref().map(|entry| entry.uid);
            match task.fresh_expiry() {
                Some((at, ..)) if at > swept_at => {}
                Some(_) => expiries.push(task),
                None => {
                    let of = |group: &&mut Vec<DueTask>| {
                        let first = group.first().and_then(|first| first.entry.as_ref());
                        uid.is_some() && first.map(|entry| entry.uid) == uid
                    };
                    match groups.iter_mut().find(of) {
                        Some(group) => group.push(task),
                        None => groups.push(vec![task]),
                    }
                }
            }
        }
        let expiries = (!expiries.is_empty()).then_some(TaskGroup::Expiries(expiries));
        expiries.into_iter().chain(groups.into_iter().map(TaskGroup::OfUser)).collect()
    }

    /// Works on a group of entries. Returns the number of tasks done.
    fn do_group(&self, group: TaskGroup) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            let tasks = match group {
                TaskGroup::OfUser(tasks) => tasks,
                TaskGroup::Expiries(tasks) => {
                    let expired: Vec<_> = tasks.iter().filter_map(DueTask::fresh_expiry).collect();
                    match shielded(self.sweep_all(&expired, self.swept_at())).await {
                        Ok(done) => return Ok(done),
                        // One by one, so that an error at one user holds up no other.
                        Err(error) => tracing::debug!(%error, "users of Firefox Sync are swept one by one"),
                    }
                    tasks
                }
            };
            let mut done = 0;
            for task in tasks {
                done += self.do_alone(&task).await?;
            }
            Ok(done)
        })
    }

    /// Does one task, or puts it off if it fails. Returns the number of tasks done.
    async fn do_alone(&self, task: &DueTask) -> Result<u64> {
        match shielded(self.attempt_task(task)).await {
            Ok(done) if task.is_deferred() => {
                let key = &task.key;
                self.runner.write(move |trx, _| async move { trx.clear_quietly(key) }).await?;
                Ok(done)
            }
            Ok(done) => Ok(done),
            Err(error) => {
                self.put_off(task, &error).await?;
                Ok(0)
            }
        }
    }

    async fn attempt_task(&self, task: &DueTask) -> Result<u64> {
        let entry = task.entry.as_ref().ok_or(Error::Corrupt("an entry of due work"))?;
        if task.is_deferred() {
            // The work expects the entry at its own time.
            let original = &task.original;
            self.runner.write(move |trx, _| async move { trx.set_quietly(original, &[]) }).await?;
        }
        match &entry.due {
            Due::Expiry(name) => self.sweep_all(&[(entry.at, entry.uid, name.clone())], self.swept_at()).await,
            due => {
                self.do_one(entry.at, entry.uid, due.clone()).await?;
                Ok(1)
            }
        }
    }

    /// Moves the entry of a task that failed to a later time of its slice. An entry that is gone stays gone: its work
    /// was done or revoked meanwhile.
    async fn put_off(&self, task: &DueTask, error: &Error) -> Result<()> {
        let failures = task.failures.saturating_add(1);
        self.metrics.sync_sweep_failures.add(1);
        let uid = task.entry.as_ref().map(|entry| entry.uid.0);
        if failures == 1 {
            tracing::warn!(uid, due = ?task.entry, %error, "due work of Firefox Sync failed and is put off");
        } else {
            tracing::debug!(uid, failures, %error, "due work of Firefox Sync failed again");
        }
        let pause = u32::try_from(AGAIN.pause(failures).as_secs()).unwrap_or(u32::MAX);
        let key = &self.keys.deferred(task.slice, self.now().after_seconds(pause), &task.original);
        self.runner
            .write(move |trx, _| async move {
                let original = trx.get(&task.original, false);
                let stored = trx.get(&task.key, false);
                if original.await?.is_none() && stored.await?.is_none() {
                    return Ok(());
                }
                trx.clear(&task.original);
                trx.clear(&task.key);
                trx.set_quietly(key, &failures.to_be_bytes())
            })
            .await?;
        self.metrics.sync_due_deferred.add(1);
        Ok(())
    }

    /// Returns the time up to which expired records are removed.
    fn swept_at(&self) -> Timestamp {
        self.now().before_seconds(SWEEP_AFTER_SECONDS)
    }

    async fn do_one(&self, at: Timestamp, uid: Uid, due: Due) -> Result<()> {
        match &due {
            Due::Fold(name) => self.fold_all(uid, name).await?,
            Due::Batch(batch) => {
                if self.drop_batch(&self.keys.user(uid), *batch).await? {
                    self.metrics.sync_batches_abandoned.add(1);
                }
            }
            Due::Purge => return self.purge(uid, at).await,
            Due::Expiry(_) => return Ok(()),
        }
        // The entry went with the data. If the data was gone before, the entry was left.
        self.forget(uid, at, due).await
    }

    async fn sweep_all(&self, expired: &[(Timestamp, Uid, CollectionName)], at: Timestamp) -> Result<u64> {
        let mut done = 0;
        while !expired.is_empty() {
            let number = drawn()?;
            let swept =
                self.runner.write(move |trx, _| async move { self.sweep_in(&trx, expired, at, number).await }).await?;
            self.metrics.sync_records_expired.add(swept.records);
            done += swept.records + swept.notes;
            let to_fold = !swept.to_fold.is_empty();
            for (uid, name) in swept.to_fold {
                self.fold_all(uid, &name).await?;
            }
            if !swept.is_left && !to_fold {
                return Ok(done);
            }
            // Lets other tasks run.
            tokio::task::yield_now().await;
        }
        Ok(done)
    }

    async fn sweep_in(
        &self,
        trx: &Trx,
        expired: &[(Timestamp, Uid, CollectionName)],
        at: Timestamp,
        number: u64,
    ) -> Result<SweepOutcome> {
        let (mut swept, mut rows_left, mut seen) = (SweepOutcome::default(), SWEEP_ROWS_MAX, BTreeSet::new());
        for (noted, uid, name) in expired {
            let user = self.keys.user(*uid);
            if rows_left == 0 {
                swept.is_left = true;
                break;
            }
            let keys = user.collection(name);
            let before = state(trx, &keys, false).await?;
            let is_noted = before.as_ref().is_some_and(|before| before.earliest == *noted);
            if !is_noted {
                // The state has another entry, or none.
                trx.clear_quietly(&user.due(*noted, &Due::Expiry(name.clone())))?;
                swept.notes += 1;
            }
            let Some(before) = before.filter(|before| before.earliest <= at) else { continue };
            if !seen.insert((*uid, name)) {
                continue;
            }
            if !before.overlays.is_empty() {
                swept.to_fold.push((*uid, name.clone()));
                continue;
            }
            let now = head(trx, &user, true).await?.now(self.now());
            if before.hold.is_some_and(|hold| hold.until > now) {
                continue;
            }
            let page = trx.page(&keys.expired(at), rows_left, false).await?;
            let mut ids = Vec::with_capacity(page.rows.len());
            for (key, _) in &page.rows {
                ids.push(keys.take_expiry(key)?.1);
            }
            let ids: Vec<&RecordId> = ids.iter().collect();
            let rows = base_rows(trx, &keys, &ids).await?;
            let mut edit = Edit::new(trx, &user, name, Some(before));
            for (id, base) in ids.iter().zip(rows) {
                let base = base.ok_or(Error::Corrupt("an entry by expiry has no record"))?;
                edit.remove(id, &LayeredRows { base: Some(base), staged: Vec::new() })?;
            }
            // The first record that is left.
            let mut rest = keys.by_expiry();
            if let Some((last, _)) = page.rows.last() {
                rest = rest.behind(last);
            }
            let next = trx.page(&rest, 1, false).await?;
            let next = next.rows.first().map(|(key, _)| keys.take_expiry(key)).transpose()?;
            edit.state.earliest = next.map_or(Timestamp::MAX, |(expires, _)| expires);
            let edit_earliest = edit.state.earliest;
            swept.is_left |= edit_earliest <= at;
            if !ids.is_empty() {
                edit.state.state = number;
            }
            edit.save()?;
            swept.records += ids.len() as u64;
            swept.notes += u64::from(edit_earliest > at);
            rows_left = rows_left.saturating_sub(ids.len());
        }
        Ok(swept)
    }

    /// Clears an entry of due work.
    async fn forget(&self, uid: Uid, at: Timestamp, due: Due) -> Result<()> {
        let key = &self.keys.user(uid).due(at, &due);
        self.runner.write(move |trx, _| async move { trx.clear_quietly(key) }).await
    }
}

/// Returns the failed attempts that the value of an entry counts. An entry that was not put off has no value.
fn failures_of(value: &[u8]) -> u32 {
    value.try_into().map_or(0, u32::from_be_bytes)
}

/// Makes a panic an error of its work.
async fn shielded<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    // Work that panicked is not polled again, and shares only storage.
    let caught = AssertUnwindSafe(work).catch_unwind().await;
    caught.unwrap_or(Err(Error::Corrupt("the program panicked at this data")))
}
