//! Removes old marks of operations.

use std::time::Duration;

use flatbed_databases::server::Inner;
use flatbed_store::error::{Error, Result};
use flatbed_store::once::removed_before;
use flatbed_store::record_log;
use flatbed_store::root::epoch_for_write;
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use futures_util::future::try_join_all;

/// The retention of superseded events and of operations' marks. Followers see each event within that time, and no
/// operation is retried for nearly as long.
pub(crate) const KEPT_FOR: Duration = Duration::from_secs(60 * 60);

/// Removes marks older than the longest retry of an operation, and stores the time before which marks are gone. Returns
/// whether there were any. One transaction reads the newest old mark of each of the 255 buckets, all at once, and clears
/// a range of each bucket that has one.
pub(crate) async fn sweep_marks(inner: &Inner, kept_for: Duration) -> Result<bool> {
    struct Sweep<'a>(&'a Inner, u64);
    impl Operation for Sweep<'_> {
        type Output = bool;
        async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<bool> {
            let keys = &self.0.keys;
            let newest = keys.marks_until(self.1).map(|range| async move {
                let newest = trx.range(&range, true).reverse(true).first(1).await?;
                Ok::<_, Error>(newest.first().map(|row| (range.begin, row.key().to_vec())))
            });
            let newest: Vec<_> = try_join_all(newest).await?.into_iter().flatten().collect();
            if newest.is_empty() {
                return Ok(false);
            }
            epoch_for_write(trx, keys).await?;
            // An operation of a process whose clock is behind must not take a removed mark for one never written. The
            // stored time is that of the newest removed mark, and no later mark is removed, even one written meanwhile:
            // this process's clock may be years ahead, and the stored time never decreases.
            let removed = keys.marks_removed();
            let mut before_ms = removed_before(trx.get(&removed, false).await?.as_deref())?;
            for (begin, newest) in &newest {
                before_ms = before_ms.max(keys.mark_time(newest)?.saturating_add(1));
                trx.clear_range(begin, &[&newest[..], &[0]].concat());
            }
            trx.set(&removed, &before_ms.to_le_bytes());
            Ok(true)
        }
    }
    let until_ms = inner.clock.unix_ms().saturating_sub(kept_for.as_millis() as u64);
    transaction::write(&inner.db, &inner.metrics, &mut Sweep(inner, until_ms)).await
}

/// Removes old entries of the log of changed records. Returns whether there were any.
pub(crate) async fn sweep_record_log(inner: &Inner) -> Result<bool> {
    struct Sweep<'a>(&'a Inner);
    impl Operation for Sweep<'_> {
        type Output = bool;
        async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<bool> {
            epoch_for_write(trx, &self.0.keys).await?;
            record_log::sweep_changes(trx, &self.0.keys).await
        }
    }
    transaction::write(&inner.db, &inner.metrics, &mut Sweep(inner)).await
}

pub(crate) async fn are_marks_left(inner: &Inner) -> Result<bool> {
    struct ReadMarks<'a>(&'a Inner);
    impl Operation for ReadMarks<'_> {
        type Output = bool;
        async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<bool> {
            Ok(trx.range(&self.0.keys.marks(), true).any().await?)
        }
    }
    transaction::read(&inner.db, &inner.metrics, &mut ReadMarks(inner)).await
}
