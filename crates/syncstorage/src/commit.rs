//! Commits of batches: a refresh of the state below the edits where that has changed, and then one small transaction.

use std::time::Duration;

use futures_util::future::try_join3;

use crate::batch::{beneath, count_deltas, put_entries, still_open};
use crate::edit::Edit;
use crate::error::{Error, Result};
use crate::fold::due_at;
use crate::keys::{Due, UserKeys};
use crate::layers::{Layers, base_rows};
use crate::model::{Change, Precondition, WriteResult};
use crate::names::{BatchId, CollectionName, RecordId, Uid};
use crate::once::UserWrite;
use crate::store::Inner;
use crate::timestamp::Timestamp;
use crate::transaction::{Attempt, Trx};
use crate::upload::clear_ahead;
use crate::values::{Batch, Hold, Overlay, StagedRow};
use crate::write::{head, seen, state};

/// The most overlays of a collection. The next commit folds one first.
pub(crate) const OVERLAYS_MAX: usize = 4;

/// The edits that one transaction refreshes.
const LOOK_ROWS_MAX: usize = 250;

/// The time for which a commit is tried while others write to the collection.
const COMMIT_FOR: Duration = Duration::from_secs(30);

/// The try from which other writers wait, and the longest wait in seconds.
const HOLD_FROM: u32 = 2;
const HOLD_SECONDS: u32 = 10;

#[derive(Debug, Clone, Copy)]
enum CommitTry {
    Committed(WriteResult),
    /// The collection has as many overlays as it may have.
    FoldFirst,
    /// The state below the edits has changed.
    Refresh,
}

enum RefreshedPage {
    /// The page ended here, and further edits may follow.
    Until(RecordId),
    /// All edits are refreshed.
    Through,
    /// The collection or the batch has changed meanwhile.
    Changed,
}

/// A refresh of all edits of a batch.
#[derive(Debug, Clone, Copy)]
struct Refresh {
    state: u64,
    appends: u32,
    /// The value at the last page.
    kept_earliest: Timestamp,
}

impl Inner {
    pub(crate) async fn commit(
        &self,
        uid: Uid,
        name: &CollectionName,
        batch: BatchId,
        changes: Vec<Change>,
        condition: Precondition,
    ) -> Result<WriteResult> {
        if !changes.is_empty() {
            self.stage(uid, name, batch, false, changes, condition).await?;
        }
        let (user, once) = (&self.keys.user(uid), &UserWrite::new()?);
        let (started, mut tries) = (self.clock.now(), 0);
        while self.clock.since(started) < COMMIT_FOR {
            let tried = self
                .runner
                .write(move |trx, attempt| async move {
                    self.try_commit(&trx, attempt, user, name, batch, condition, once).await
                })
                .await?;
            match tried {
                CommitTry::Committed(written) => {
                    self.metrics.sync_batches_committed.add(1);
                    self.note_fold(uid, name);
                    return Ok(written);
                }
                CommitTry::FoldFirst => self.fold_until(user, name, OVERLAYS_MAX - 1).await?,
                CommitTry::Refresh => {
                    tries += 1;
                    if tries >= HOLD_FROM {
                        self.hold(user, name, batch).await?;
                    }
                    self.look_again(user, name, batch).await?;
                }
            }
        }
        Err(Error::Busy)
    }

    #[allow(clippy::too_many_arguments, reason = "what is the same in all attempts")]
    async fn try_commit(
        &self,
        trx: &Trx,
        attempt: Attempt,
        user: &UserKeys,
        name: &CollectionName,
        batch: BatchId,
        condition: Precondition,
        once: &UserWrite<WriteResult>,
    ) -> Result<CommitTry> {
        let (keys, batch_keys) = (user.collection(name), user.batch(batch));
        let record = trx.get(batch_keys.record(), false);
        let (head, state, record) = try_join3(head(trx, user, false), state(trx, &keys, false), record).await?;
        if let Some(written) = once.answered(attempt, &head)? {
            return Ok(CommitTry::Committed(written));
        }
        let (clock, at) = self.times(user, &head);
        let record = still_open(Batch::decode(&record.ok_or(Error::BatchNotFound)?)?, name, clock)?;
        let mut edit = Edit::new(trx, user, name, state);
        edit.wait_for_hold(Some(batch), head.now(clock))?;
        condition.judge(edit.state.modified, head.now(clock))?;
        if record.records > 0 {
            if record.seen != Some(edit.state.state) || record.kept_earliest <= at {
                return Ok(CommitTry::Refresh);
            }
            if edit.state.overlays.len() >= OVERLAYS_MAX {
                return Ok(CommitTry::FoldFirst);
            }
            let by_ttl = record.ttl_min.map_or(Timestamp::MAX, |ttl| at.after_seconds(ttl));
            let overlay = Overlay { batch, modified: at, earliest: by_ttl.min(record.kept_earliest) };
            edit.state.count = edit.state.count.saturating_add_signed(record.count_delta);
            edit.state.bytes = edit.state.bytes.saturating_add_signed(record.bytes_delta);
            self.check_quota(trx, user, head.now(clock), record.bytes_delta).await?;
            trx.set_quietly(&user.due(due_at(&overlay), &Due::Fold(name.clone())), &[])?;
            edit.state.overlays.push(overlay);
        }
        for ahead in &record.ahead {
            // Payloads written ahead by servers that died, and by appends that come too late.
            clear_ahead(trx, edit.keys(), batch, *ahead)?;
        }
        trx.clear(batch_keys.record());
        trx.clear_quietly(&user.due(record.deadline, &Due::Batch(batch)))?;
        edit.finish(head, once.number, at)?;
        Ok(CommitTry::Committed(once.answer(at, WriteResult { modified: at })))
    }

    /// Makes other writers wait until the batch is committed, or for some seconds.
    pub(crate) async fn hold(&self, user: &UserKeys, name: &CollectionName, batch: BatchId) -> Result<()> {
        self.runner
            .write(move |trx, _| async move {
                let keys = user.collection(name);
                // A missing collection has no state to hold.
                let Some(mut state) = state(&trx, &keys, false).await? else { return Ok(()) };
                let now = head(&trx, user, true).await?.now(self.now());
                if state.hold.is_some_and(|hold| hold.until > now) {
                    return Ok(());
                }
                state.hold = Some(Hold { batch, until: now.after_seconds(HOLD_SECONDS) });
                trx.set(keys.state(), &state.encode());
                Ok(())
            })
            .await
    }

    /// Refreshes all edits of a batch against the current collection. The next try to commit detects a change
    /// meanwhile.
    async fn look_again(&self, user: &UserKeys, name: &CollectionName, batch: BatchId) -> Result<()> {
        let (mut look, mut after) = (None, None);
        loop {
            let (earlier, from) = (look, after.as_ref());
            let (looked, so_far) = self
                .runner
                .write(move |trx, _| async move { self.look_in(&trx, user, name, batch, earlier, from).await })
                .await?;
            match looked {
                RefreshedPage::Until(id) => (look, after) = (Some(so_far), Some(id)),
                RefreshedPage::Through | RefreshedPage::Changed => return Ok(()),
            }
        }
    }

    async fn look_in(
        &self,
        trx: &Trx,
        user: &UserKeys,
        name: &CollectionName,
        batch: BatchId,
        earlier: Option<Refresh>,
        after: Option<&RecordId>,
    ) -> Result<(RefreshedPage, Refresh)> {
        let (keys, batch_keys) = (user.collection(name), user.batch(batch));
        let mut range = batch_keys.staged();
        if let Some(after) = after {
            range = range.behind(&batch_keys.staged_record(after));
        }
        let record = trx.get(batch_keys.record(), false);
        let page = trx.page(&range, LOOK_ROWS_MAX, false);
        let (seen, record, page) = try_join3(seen(trx, user, &keys), record, page).await?;
        let (head, state) = (seen.0, seen.1.unwrap_or_default());
        let clock = self.now();
        let mut record = still_open(Batch::decode(&record.ok_or(Error::BatchNotFound)?)?, name, clock)?;
        let mut look =
            earlier.unwrap_or(Refresh { state: state.state, appends: record.appends, kept_earliest: Timestamp::MAX });
        if look.state != state.state || look.appends != record.appends {
            return Ok((RefreshedPage::Changed, look));
        }
        let mut edits = Vec::with_capacity(page.rows.len());
        for (key, value) in &page.rows {
            edits.push((batch_keys.take_staged(key)?, StagedRow::decode(value)?));
        }
        let ids: Vec<&RecordId> = edits.iter().map(|(id, _)| id).collect();
        let rows = base_rows(trx, &keys, &ids).await?;
        let layers = Layers::new(user, keys, &state);
        let found = layers.found(trx, &ids, rows).await?;
        for ((id, before), found) in edits.iter().zip(&found) {
            // The time is that of a commit, so that a part of a record that expires just then is not kept.
            let row = StagedRow { beneath: beneath(&layers, found, head.next(clock)), ..before.clone() };
            if row != *before {
                put_entries(trx, &batch_keys, id, Some(before), &row)?;
                count_deltas(&mut record, Some(before), &row);
            }
            look.kept_earliest = row.kept_expires().map_or(look.kept_earliest, |at| at.min(look.kept_earliest));
        }
        self.metrics.sync_records_resolved.add(edits.len() as u64);
        let last = edits.pop().map(|(id, _)| id).filter(|_| page.rest.is_some());
        if last.is_none() {
            (record.seen, record.kept_earliest) = (Some(look.state), look.kept_earliest);
        }
        trx.set(batch_keys.record(), &record.encode());
        Ok((last.map_or(RefreshedPage::Through, RefreshedPage::Until), look))
    }
}
