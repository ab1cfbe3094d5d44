//! Removes, from time to time, what no operation needs: broken uploads, marks of operations, old events.

use std::sync::Arc;
use std::time::Duration;

use crate::background;
use crate::document::staging::{self, BROKEN_AFTER};
use crate::error::Result;
use crate::feed::updates;
use crate::layer::Inner;
use crate::store::once::now_ms;
use crate::store::root::epoch_for_write;
use crate::store::transaction::{self, Attempt, Operation, Transaction, page_of};

/// Between two sweeps.
const SWEEP_EVERY: Duration = Duration::from_secs(10 * 60);

/// Sweeps from time to time for as long as the layer lives.
pub(crate) fn start_sweeper(inner: &Arc<Inner>) {
    background::start(inner, "sweeper", SWEEP_EVERY, |inner| async move {
        if let Err(error) = staging::sweep(&inner, inner.options.uploads_broken_after).await {
            tracing::warn!(%error, "broken uploads could not be swept");
        }
        if let Err(error) = sweep_marks(&inner, BROKEN_AFTER).await {
            tracing::warn!(%error, "marks of operations could not be swept");
        }
        if let Err(error) = updates::sweep(&inner, BROKEN_AFTER).await {
            tracing::warn!(%error, "creations and deletions of databases could not be swept");
        }
    });
}

/// Removes marks that are older than any operation is tried for. Returns whether there were any.
pub(crate) async fn sweep_marks(inner: &Arc<Inner>, kept_for: Duration) -> Result<bool> {
    struct Sweep<'a>(&'a Inner, u64);
    impl Operation for Sweep<'_> {
        type Output = bool;
        async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<bool> {
            let range = self.0.keys.marks_until(self.1);
            if trx.get_range(&page_of(&range, 1, false), 1, true).await?.is_empty() {
                return Ok(false);
            }
            epoch_for_write(trx, &self.0.keys).await?;
            trx.clear_range(&range.begin, &range.end);
            Ok(true)
        }
    }
    let until_ms = now_ms().saturating_sub(kept_for.as_millis() as u64);
    transaction::write(&inner.db, &inner.metrics, &mut Sweep(inner, until_ms)).await
}
