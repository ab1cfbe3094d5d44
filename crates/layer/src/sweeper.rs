//! Removes what no operation needs: broken uploads, marks of operations, old events.

use std::time::Duration;

use crate::actor::ServerActor;
use crate::document::staging;
use crate::error::Result;
use crate::feed::updates;
use crate::layer::{Inner, Layer};
use crate::store::once::now_ms;
use crate::store::root::epoch_for_write;
use crate::store::transaction::{self, Attempt, Operation, Transaction, page_of};

/// For how long what a later event supersedes, and the mark of an operation, is kept: followers see each event until then,
/// and no operation is tried for nearly as long.
const KEPT_FOR: Duration = Duration::from_secs(60 * 60);

impl Layer {
    /// Removes large bodies that were begun longer ago than `broken_after` and that no document took. [`crate::Background`]
    /// does so from time to time; returns how many there were.
    pub async fn sweep_broken_uploads(&self, _: &ServerActor, broken_after: Duration) -> Result<u64> {
        staging::sweep(&self.inner, broken_after).await
    }

    /// Forgets creations and deletions older than `kept_for` that later ones of the same name supersede.
    /// [`crate::Background`] does so from time to time; returns how many there were.
    ///
    /// # Errors
    /// [`Storage`](crate::Error::Storage), [`Corrupt`](crate::Error::Corrupt).
    pub async fn sweep_database_updates(&self, _: &ServerActor, kept_for: Duration) -> Result<u64> {
        updates::sweep(&self.inner, kept_for).await
    }
}

/// One sweep of everything. What goes wrong is logged, and the rest is swept all the same.
pub(crate) async fn sweep(layer: &Layer, actor: &ServerActor) {
    if let Err(error) = layer.sweep_broken_uploads(actor, layer.inner.options.uploads_broken_after).await {
        tracing::warn!(%error, "broken uploads could not be swept");
    }
    if let Err(error) = sweep_marks(&layer.inner, KEPT_FOR).await {
        tracing::warn!(%error, "marks of operations could not be swept");
    }
    if let Err(error) = layer.sweep_database_updates(actor, KEPT_FOR).await {
        tracing::warn!(%error, "creations and deletions of databases could not be swept");
    }
}

/// Removes marks that are older than any operation is tried for. Returns whether there were any.
pub(crate) async fn sweep_marks(inner: &Inner, kept_for: Duration) -> Result<bool> {
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
