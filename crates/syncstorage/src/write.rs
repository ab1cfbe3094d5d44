//! PUT, POST and DELETE.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures_util::future::{try_join, try_join3, try_join4};

use crate::edit::{Edit, INLINE_BYTES_MAX, PreparedChange, save_head};
use crate::error::{Error, Result};
use crate::keys::{BlobId, Due, UserKeys};
use crate::layers::base_rows;
use crate::model::{Change, DeleteResult, ListQuery, Precondition, SORTINDEX_MAX, TTL_SECONDS_MAX, WriteResult};
use crate::names::{BatchId, CollectionName, RecordId, Uid};
use crate::once::{UserWrite, drawn};
use crate::store::Inner;
use crate::timestamp::Timestamp;
use crate::transaction::{Attempt, Trx};
use crate::values::{APPEND_NUMBERS, Batch, Collection, Head, Payload};

/// The largest transaction, in bytes of payloads and their keys. Beyond it large payloads are written ahead.
const WRITE_BYTES_MAX: usize = 950_000;

/// The most bytes written around a payload: entries with ids of 64 characters, and cleared old ones.
const AROUND_BYTES: usize = 1_000;

/// The largest payload, in bytes, that the last transaction of a write ahead writes itself.
const LEFT_BYTES_MAX: usize = 1_000;

/// The object of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConditionTarget {
    Record,
    Collection,
}

struct Writes<'a> {
    user: UserKeys,
    name: &'a CollectionName,
    changes: Vec<PreparedChange>,
    condition: Precondition,
    on: ConditionTarget,
    /// The upload that holds large payloads written ahead.
    upload: Option<BatchId>,
    once: UserWrite<WriteResult>,
}

impl Inner {
    /// Executes PUT and POST.
    pub(crate) async fn write(
        &self,
        uid: Uid,
        name: &CollectionName,
        changes: Vec<Change>,
        condition: Precondition,
        on: ConditionTarget,
    ) -> Result<WriteResult> {
        self.check_changes(&changes)?;
        let user = self.keys.user(uid);
        let once = UserWrite::new()?;
        let bytes = |change: &Change| change.payload.as_ref().map_or(0, Bytes::len) + AROUND_BYTES;
        let is_large = changes.iter().map(bytes).sum::<usize>() > WRITE_BYTES_MAX;
        let inline_max = if is_large { LEFT_BYTES_MAX } else { INLINE_BYTES_MAX };
        let mut changes = prepare(changes, once.number, 0, inline_max);
        let upload = if is_large { Some(self.upload(&user, name, once.number, &mut changes).await?) } else { None };
        let count = changes.len() as u64;
        let writes = Writes { user, name, changes, condition, on, upload, once };
        let writes = &writes;
        let written =
            self.runner.write(move |trx, attempt| async move { self.attempt(&trx, attempt, writes).await }).await;
        match &written {
            Ok(_) => self.metrics.sync_records_written.add(count),
            // The payloads have no pointer, unless the commit's result is unknown.
            Err(Error::Storage(_) | Error::Unknown) => {}
            Err(_) => {
                if let Some(upload) = upload {
                    // If this fails, the upload is removed after two hours.
                    let _ = self.drop_batch(&writes.user, upload).await;
                }
            }
        }
        written
    }

    async fn attempt(&self, trx: &Trx, attempt: Attempt, writes: &Writes<'_>) -> Result<WriteResult> {
        let Writes { user, name, changes, condition, on, upload, once } = writes;
        let keys = user.collection(name);
        let ids: Vec<&RecordId> = changes.iter().map(|change| &change.id).collect();
        let uploaded = async {
            match upload {
                Some(upload) => Ok(trx.get(user.batch(*upload).record(), false).await?),
                None => Ok(None),
            }
        };
        let reads = try_join4(head(trx, user, false), state(trx, &keys, false), base_rows(trx, &keys, &ids), uploaded);
        let (head, state, rows, uploaded) = reads.await?;
        if let Some(written) = once.answered(attempt, &head)? {
            return Ok(written);
        }
        let (clock, at) = self.times(user, &head);
        let mut edit = Edit::new(trx, user, name, state);
        edit.wait_for_hold(None, head.now(clock))?;
        if *on == ConditionTarget::Collection {
            condition.judge(edit.state.modified, head.now(clock))?;
        }
        let found = edit.layers.found(trx, &ids, rows).await?;
        for (change, found) in changes.iter().zip(&found) {
            if *on == ConditionTarget::Record {
                let view = edit.layers.live_view(found, head.now(clock));
                let modified = view.map_or(Timestamp::ZERO, |view| view.modified);
                condition.judge(modified, head.now(clock))?;
            }
            edit.change(change, found, at).await?;
        }
        if let Some(upload) = upload {
            let record = Batch::decode(&uploaded.ok_or(Error::Busy)?)?;
            trx.clear(user.batch(*upload).record());
            trx.clear_quietly(&user.due(record.deadline, &Due::Batch(*upload)))?;
        }
        self.check_quota(trx, user, head.now(clock), edit.added_bytes()).await?;
        edit.finish(head, once.number, at)?;
        Ok(once.answer(at, WriteResult { modified: at }))
    }

    /// Returns the time by this process's clock, and the time of the write.
    pub(crate) fn times(&self, user: &UserKeys, head: &Head) -> (Timestamp, Timestamp) {
        let clock = self.now();
        if head.last > clock.after_seconds(60) {
            self.metrics.sync_clock_ahead.add(1);
            let seconds = (head.last.hundredths() - clock.hundredths()) / 100;
            // Once a minute: a wrong clock is wrong for all users.
            let minute = clock.hundredths() / 6_000;
            if self.warned_in_minute.swap(minute, Ordering::Relaxed) != minute {
                tracing::warn!(uid = user.uid().0, seconds, "a user's last time in Firefox Sync is ahead of the clock");
            }
        }
        (clock, head.next(clock))
    }

    fn check_changes(&self, changes: &[Change]) -> Result<()> {
        if changes.len() > self.limits.max_post_records as usize {
            return Err(Error::OutOfBounds("records"));
        }
        let mut bytes = 0;
        for change in changes {
            let len = change.payload.as_ref().map_or(0, Bytes::len);
            bytes += len;
            if len > self.limits.max_record_payload_bytes as usize {
                return Err(Error::OutOfBounds("bytes of a payload"));
            }
            if change.sortindex.is_some_and(|sortindex| sortindex.unsigned_abs() > SORTINDEX_MAX.unsigned_abs()) {
                return Err(Error::OutOfBounds("sortindex"));
            }
            if change.ttl.is_some_and(|ttl| ttl > TTL_SECONDS_MAX) {
                return Err(Error::OutOfBounds("ttl"));
            }
        }
        if bytes > self.limits.max_post_bytes.max(self.limits.max_record_payload_bytes) as usize {
            return Err(Error::OutOfBounds("bytes"));
        }
        let mut ids: Vec<_> = changes.iter().map(|change| change.id.as_str()).collect();
        ids.sort_unstable();
        if ids.windows(2).any(|pair| pair.first() == pair.last()) {
            return Err(Error::OutOfBounds("an id twice"));
        }
        Ok(())
    }

    /// Prepares the changes of a batch. Returns the first number of their large payloads, too.
    pub(crate) fn prepare_batch(&self, changes: Vec<Change>, batch: BatchId) -> Result<(u64, Vec<PreparedChange>)> {
        self.check_changes(&changes)?;
        // Each append draws a range of its own from a large space.
        let first = drawn()? / APPEND_NUMBERS * APPEND_NUMBERS;
        Ok((first, prepare(changes, batch.0, first, INLINE_BYTES_MAX)))
    }

    pub(crate) async fn delete_one(
        &self,
        uid: Uid,
        name: &CollectionName,
        id: &RecordId,
        condition: Precondition,
    ) -> Result<DeleteResult> {
        let (user, once) = (self.keys.user(uid), UserWrite::new()?);
        let (user, once) = (&user, &once);
        let deleted = self
            .runner
            .write(move |trx, attempt| async move {
                let keys = user.collection(name);
                let ids = [id];
                let reads = try_join3(head(&trx, user, false), state(&trx, &keys, false), base_rows(&trx, &keys, &ids));
                let (head, state, rows) = reads.await?;
                if let Some(deleted) = once.answered(attempt, &head)? {
                    return Ok(deleted);
                }
                let (clock, at) = self.times(user, &head);
                let now = head.now(clock);
                let mut edit = Edit::new(&trx, user, name, state);
                let found = edit.layers.found(&trx, &[id], rows).await?.pop().unwrap_or_default();
                let view = edit.layers.live_view(&found, now);
                condition.judge(view.as_ref().map_or(Timestamp::ZERO, |view| view.modified), now)?;
                let before = view.ok_or(Error::NotFound { now })?.modified;
                edit.wait_for_hold(None, now)?;
                edit.remove(id, &found)?;
                edit.finish(head, once.number, at)?;
                Ok(once.answer(at, DeleteResult { before, modified: at, now: at }))
            })
            .await?;
        self.metrics.sync_records_deleted.add(1);
        Ok(deleted)
    }

    pub(crate) async fn delete_ids(
        &self,
        uid: Uid,
        name: &CollectionName,
        ids: &[RecordId],
        condition: Precondition,
    ) -> Result<WriteResult> {
        if ids.len() > ListQuery::IDS_MAX {
            return Err(Error::OutOfBounds("ids"));
        }
        let mut ids: Vec<&RecordId> = ids.iter().collect();
        ids.sort_unstable();
        ids.dedup();
        let (user, once) = (self.keys.user(uid), UserWrite::new()?);
        let (user, once, ids) = (&user, &once, &ids);
        let written = self
            .runner
            .write(move |trx, attempt| async move {
                let keys = user.collection(name);
                let reads = try_join3(head(&trx, user, false), state(&trx, &keys, false), base_rows(&trx, &keys, ids));
                let (head, state, rows) = reads.await?;
                if let Some(written) = once.answered(attempt, &head)? {
                    return Ok(written);
                }
                let (clock, at) = self.times(user, &head);
                let mut edit = Edit::new(&trx, user, name, state);
                edit.wait_for_hold(None, head.now(clock))?;
                condition.judge(edit.state.modified, head.now(clock))?;
                let found = edit.layers.found(&trx, ids, rows).await?;
                for (id, found) in ids.iter().zip(&found).filter(|(_, found)| found.exists()) {
                    edit.remove(id, found)?;
                }
                edit.finish(head, once.number, at)?;
                Ok(once.answer(at, WriteResult { modified: at }))
            })
            .await?;
        self.metrics.sync_records_deleted.add(ids.len() as u64);
        Ok(written)
    }

    /// Executes `DELETE` of a collection, whatever its size: clears a few ranges.
    pub(crate) async fn delete_whole(
        &self,
        uid: Uid,
        name: &CollectionName,
        condition: Precondition,
    ) -> Result<DeleteResult> {
        let (user, once) = (self.keys.user(uid), UserWrite::new()?);
        let (user, once) = (&user, &once);
        self.runner
            .write(move |trx, attempt| async move {
                let keys = user.collection(name);
                let reads = try_join3(head(&trx, user, false), state(&trx, &keys, false), batches(&trx, user, false));
                let (mut head, state, batches) = reads.await?;
                if let Some(deleted) = once.answered(attempt, &head)? {
                    return Ok(deleted);
                }
                let (clock, at) = self.times(user, &head);
                let now = head.now(clock);
                let before = state.as_ref().map_or(Timestamp::ZERO, |state| state.modified);
                condition.judge(before, now)?;
                let Some(state) = state else { return Ok(DeleteResult { before, modified: head.shown, now }) };
                Edit::new(&trx, user, name, Some(state.clone())).wait_for_hold(None, now)?;
                clear_collection(&trx, user, name, &state, &batches)?;
                head.collections = head.collections.saturating_sub(1);
                save_head(&trx, user, head, once.number, at);
                Ok(once.answer(at, DeleteResult { before, modified: at, now: at }))
            })
            .await
    }

    /// Executes `DELETE` of all.
    pub(crate) async fn delete_everything(&self, uid: Uid, condition: Precondition) -> Result<DeleteResult> {
        let (user, once) = (self.keys.user(uid), UserWrite::new()?);
        let (user, once) = (&user, &once);
        self.runner
            .write(move |trx, attempt| async move {
                let reads =
                    try_join3(head(&trx, user, false), all_states(&trx, user, false), batches(&trx, user, false));
                let (mut head, states, batches) = reads.await?;
                if let Some(deleted) = once.answered(attempt, &head)? {
                    return Ok(deleted);
                }
                let (clock, at) = self.times(user, &head);
                let (before, now) = (head.shown, head.now(clock));
                condition.judge(before, now)?;
                let deleted = DeleteResult { before, modified: Timestamp::ZERO, now };
                if states.is_empty() && batches.is_empty() && before == Timestamp::ZERO {
                    return Ok(deleted);
                }
                clear_dues(&trx, user, &states, &batches)?;
                trx.clear_range_quietly(&user.all_but_head())?;
                // Transactions that have read one of them conflict on it, since the range above adds no conflict.
                for (name, _) in &states {
                    trx.touch(user.collection(name).state())?;
                }
                for (batch, _) in &batches {
                    trx.touch(user.batch(*batch).record())?;
                }
                head.note(once.number, at);
                (head.shown, head.collections) = (Timestamp::ZERO, 0);
                trx.set(&user.head(), &head.encode());
                Ok(once.answer(at, deleted))
            })
            .await
    }

    /// Schedules the removal of a user's data at a time.
    pub(crate) async fn purge_at(&self, uid: Uid, at: Timestamp) -> Result<()> {
        let user = &self.keys.user(uid);
        self.runner.write(move |trx, _| async move { trx.set_quietly(&user.due(at, &Due::Purge), &[]) }).await
    }

    /// Removes a user's data, including the clock, and the entry of this work.
    pub(crate) async fn purge(&self, uid: Uid, noted: Timestamp) -> Result<()> {
        let user = &self.keys.user(uid);
        self.runner
            .write(move |trx, _| async move {
                let reads =
                    try_join3(head(&trx, user, false), all_states(&trx, user, false), batches(&trx, user, false));
                let (_, states, batches) = reads.await?;
                clear_dues(&trx, user, &states, &batches)?;
                let all = user.all();
                trx.clear_range(&all);
                trx.clear_quietly(&user.due(noted, &Due::Purge))
            })
            .await?;
        self.metrics.sync_users_purged.add(1);
        Ok(())
    }

    /// Fails if this many additional bytes exceed the quota.
    pub(crate) async fn check_quota(&self, trx: &Trx, user: &UserKeys, now: Timestamp, added: i64) -> Result<()> {
        let Some(limit) = self.limits.quota_bytes else { return Ok(()) };
        if added <= 0 {
            return Ok(());
        }
        let used = self.used_bytes(trx, user, &all_states(trx, user, true).await?, now).await?;
        if used.saturating_add_signed(added) > limit { Err(Error::OverQuota) } else { Ok(()) }
    }
}

/// Prepares changes: payloads above `inline_max` bytes get parts.
fn prepare(changes: Vec<Change>, writer: u64, first: u64, inline_max: usize) -> Vec<PreparedChange> {
    let prepared = |(at, change): (u64, Change)| {
        let Change { id, payload, sortindex, ttl } = change;
        let (payload, parts) = match payload {
            Some(payload) if payload.len() > inline_max => {
                let blob = BlobId { writer, number: first + at };
                (Some(Payload::Blob { id: blob, len: payload.len() as u32 }), Some(payload))
            }
            payload => (payload.map(Payload::Inline), None),
        };
        PreparedChange { id, payload, parts, sortindex, ttl }
    };
    (0..).zip(changes).map(prepared).collect()
}

/// Reads the user's clock.
pub(crate) async fn head(trx: &Trx, user: &UserKeys, is_snapshot: bool) -> Result<Head> {
    let found = trx.get(&user.head(), is_snapshot).await?;
    found.map_or_else(|| Ok(Head::default()), |bytes| Head::decode(&bytes))
}

pub(crate) async fn state(
    trx: &Trx,
    keys: &crate::keys::CollectionKeys,
    is_snapshot: bool,
) -> Result<Option<Collection>> {
    let found = trx.get(keys.state(), is_snapshot).await?;
    found.map(|bytes| Collection::decode(&bytes)).transpose()
}

/// Reads the states of all collections, at most [`Limits::COLLECTIONS_MAX`](crate::Limits::COLLECTIONS_MAX), in the
/// order of their keys.
pub(crate) async fn all_states(
    trx: &Trx,
    user: &UserKeys,
    is_snapshot: bool,
) -> Result<Vec<(CollectionName, Collection)>> {
    let (mut range, mut out) = (user.collections(), Vec::new());
    loop {
        let page = trx.page_with(&range, 1_000, false, is_snapshot).await?;
        for (key, value) in &page.rows {
            out.push((user.take_collection(key)?, Collection::decode(value)?));
        }
        match page.rest {
            Some(rest) => range = rest,
            None => return Ok(out),
        }
    }
}

/// Reads the batches and uploads that are not committed. Without a snapshot, a batch that begins meanwhile conflicts.
pub(crate) async fn batches(trx: &Trx, user: &UserKeys, is_snapshot: bool) -> Result<Vec<(BatchId, Batch)>> {
    let (mut range, mut out) = (user.batches(), Vec::new());
    loop {
        let page = trx.page_with(&range, 1_000, false, is_snapshot).await?;
        for (key, value) in &page.rows {
            out.push((user.take_batch(key)?, Batch::decode(value)?));
        }
        match page.rest {
            Some(rest) => range = rest,
            None => return Ok(out),
        }
    }
}

/// Clears a collection. The staged data of open batches stays.
fn clear_collection(
    trx: &Trx,
    user: &UserKeys,
    name: &CollectionName,
    state: &Collection,
    batches: &[(BatchId, Batch)],
) -> Result<()> {
    let keys = user.collection(name);
    let mut rest = keys.data();
    let mut staged: Vec<_> = batches.iter().map(|(batch, _)| keys.blobs_of(batch.0)).collect();
    staged.sort_by(|one, other| one.begin.cmp(&other.begin));
    for keep in staged {
        trx.clear_range_quietly(&rest.clone().before(&keep.begin))?;
        rest.begin = keep.end;
    }
    trx.clear_range_quietly(&rest)?;
    clear_dues_of(trx, user, name, state)?;
    for overlay in &state.overlays {
        trx.clear_range_quietly(&user.batch(overlay.batch).data())?;
    }
    trx.clear(keys.state());
    Ok(())
}

fn clear_dues_of(trx: &Trx, user: &UserKeys, name: &CollectionName, state: &Collection) -> Result<()> {
    if state.earliest < Timestamp::MAX {
        trx.clear_quietly(&user.due(state.earliest, &Due::Expiry(name.clone())))?;
    }
    for overlay in &state.overlays {
        trx.clear_quietly(&user.due(crate::fold::due_at(overlay), &Due::Fold(name.clone())))?;
    }
    Ok(())
}

fn clear_dues(
    trx: &Trx,
    user: &UserKeys,
    states: &[(CollectionName, Collection)],
    batches: &[(BatchId, Batch)],
) -> Result<()> {
    for (name, state) in states {
        clear_dues_of(trx, user, name, state)?;
    }
    for (batch, record) in batches {
        trx.clear_quietly(&user.due(record.deadline, &Due::Batch(*batch)))?;
    }
    Ok(())
}

/// Reads the user's clock and a collection's state as a snapshot.
pub(crate) async fn seen(
    trx: &Trx,
    user: &UserKeys,
    keys: &crate::keys::CollectionKeys,
) -> Result<(Head, Option<Collection>)> {
    try_join(head(trx, user, true), state(trx, keys, true)).await
}
