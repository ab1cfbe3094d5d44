//! The due work: expired records, abandoned batches, unfolded overlays.

use std::collections::BTreeSet;

use futures_util::future::try_join_all;

use crate::edit::Edit;
use crate::error::{Error, Result};
use crate::keys::{Due, DueEntry, KeyRange, SHARDS};
use crate::layers::{LayeredRows, base_rows};
use crate::names::{CollectionName, RecordId, Uid};
use crate::once::drawn;
use crate::store::Inner;
use crate::timestamp::Timestamp;
use crate::transaction::Trx;
use crate::write::{head, state};

/// The entries of due work that are read at once, of a slice.
const PAGE_DUE: usize = 50;

/// The records that one transaction removes. It is short, for the sake of waiting writers.
const SWEEP_ROWS_MAX: usize = 200;

/// The delay before expired records are removed, in seconds: clocks of other processes may be late.
const SWEEP_AFTER_SECONDS: u32 = 10;

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
    /// Does the due work of all slices, each once and to its end. Returns the number of tasks. Tasks that fail because
    /// of corrupt data are passed over, and stay due.
    pub(crate) async fn do_due(&self) -> Result<u64> {
        let mut done = 0;
        for shard in self.shards_due().await? {
            let mut range = self.keys.due_until(shard, self.now());
            loop {
                let (entries, rest) = self.due(&range).await?;
                done += self.do_entries(entries).await?;
                match rest {
                    Some(rest) => range = rest,
                    None => break,
                }
            }
        }
        Ok(done)
    }

    /// Returns whether any work is due.
    pub(crate) async fn is_due(&self) -> Result<bool> {
        Ok(!self.shards_due().await?.is_empty())
    }

    /// Returns the slices with due work.
    async fn shards_due(&self) -> Result<Vec<u64>> {
        let now = self.now();
        self.runner
            .read(move |trx| async move {
                let looks = (0..SHARDS).map(|shard| trx.is_any(&self.keys.due_until(shard, now)));
                let looks = try_join_all(looks).await?;
                Ok((0..).zip(looks).filter(|(_, is_any)| *is_any).map(|(shard, _)| shard).collect())
            })
            .await
    }

    /// Returns a page of due work, and the rest of the range.
    async fn due(&self, range: &KeyRange) -> Result<(Vec<DueEntry>, Option<KeyRange>)> {
        let page = self.runner.read(move |trx| async move { trx.page(range, PAGE_DUE, false).await }).await?;
        let entries = page.rows.iter().filter_map(|(key, _)| self.passed_over(self.keys.take_due(key)).transpose());
        Ok((entries.collect::<Result<_>>()?, page.rest))
    }

    /// Returns the result of a task; `None` if data is corrupt, which must not prevent other tasks.
    fn passed_over<T>(&self, done: Result<T>) -> Result<Option<T>> {
        match done {
            Ok(done) => Ok(Some(done)),
            Err(error @ (Error::Corrupt(_) | Error::Format(_))) => {
                self.metrics.sync_sweep_failures.add(1);
                tracing::warn!(%error, "a due task of Firefox Sync failed on corrupt data");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn do_entries(&self, entries: Vec<DueEntry>) -> Result<u64> {
        let (mut done, mut expired) = (0, Vec::new());
        let swept_at = self.now().before_seconds(SWEEP_AFTER_SECONDS);
        for DueEntry { at, uid, due } in entries {
            match due {
                Due::Expiry(name) if at <= swept_at => expired.push((at, uid, name)),
                Due::Expiry(_) => {}
                due => done += u64::from(self.passed_over(self.do_one(at, uid, due).await)?.is_some()),
            }
        }
        // All together, or one by one if one of them is corrupt.
        match self.sweep_all(&expired, swept_at).await {
            Err(Error::Corrupt(_) | Error::Format(_)) => {
                for one in &expired {
                    let swept = self.sweep_all(std::slice::from_ref(one), swept_at).await;
                    done += self.passed_over(swept)?.unwrap_or_default();
                }
            }
            swept => done += swept?,
        }
        Ok(done)
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
