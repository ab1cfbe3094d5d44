//! The bound on what one database holds: [`LayerOptions::database_bytes_max`](crate::LayerOptions::database_bytes_max).
//!
//! The figure is the storage's estimate of all keys of the database, documents, attachments, uploads, local documents and
//! rows of views alike, or the counted bytes of bodies where that is more. A process reads it at most every five seconds
//! for a database, in a transaction of its own that conflicts with nothing, so that a write mostly reads nothing for it. A database can
//! exceed its bound by what all processes write in that time, by requests under way, and by what the estimate is off.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Refusal, Result};
use crate::layer::Inner;
use crate::store::transaction::{self, Attempt, Operation, Transaction};

/// How old the figure may be.
const FIGURE_KEPT: Duration = Duration::from_secs(5);

/// The part of the bound by which it may be exceeded by what [`Growth::Reserve`] names: a quarter.
const RESERVE: u64 = 4;

/// What makes a database larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Growth {
    /// Documents and attachments.
    Documents,
    /// What goes on in a full database until the reserve is used: deletions, local documents, rows of views.
    Reserve,
}

/// Refuses to let a database grow that holds as much as it may.
///
/// # Errors
/// [`Refusal::DatabaseFull`]; those of the storage where the figure must be read.
pub(crate) async fn check(inner: &Inner, name: &str, growth: Growth) -> Result<()> {
    let bytes_max = inner.options.database_bytes_max;
    if bytes_max == 0 {
        return Ok(());
    }
    let most = match growth {
        Growth::Documents => bytes_max,
        Growth::Reserve => bytes_max.saturating_add(bytes_max / RESERVE),
    };
    if held_bytes(inner, name).await? < most { Ok(()) } else { Err(Refusal::DatabaseFull { bytes_max }.into()) }
}

/// What a database holds, as of some seconds ago at most. While one task reads it, others take an older figure.
async fn held_bytes(inner: &Inner, name: &str) -> Result<u64> {
    let Some(size) = inner.cached(name).map(|instance| Arc::clone(&instance.size)) else {
        return measure(inner, name).await;
    };
    if let Some(bytes) = size.known_within(inner.clock.now(), FIGURE_KEPT) {
        return Ok(bytes);
    }
    let _reading = match size.reading.try_lock() {
        Ok(reading) => reading,
        Err(_) => match size.known_within(inner.clock.now(), Duration::MAX) {
            Some(bytes) => return Ok(bytes),
            None => size.reading.lock().await,
        },
    };
    match size.known_within(inner.clock.now(), FIGURE_KEPT) {
        Some(bytes) => Ok(bytes),
        None => measure(inner, name).await,
    }
}

async fn measure(inner: &Inner, name: &str) -> Result<u64> {
    transaction::read(&inner.db, &inner.metrics, &mut Measure { inner, name }).await
}

/// Reads what a database holds, and remembers it.
struct Measure<'a> {
    inner: &'a Inner,
    name: &'a str,
}

impl Operation for Measure<'_> {
    type Output = u64;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<u64> {
        let instance = self.inner.resolve(trx, self.name).await?;
        let all = instance.keys.all();
        let meta = instance.buckets.begin_meta(trx, instance.incarnation());
        let size = trx.get_estimated_range_size_bytes(&all.begin, &all.end);
        let (_, [_, _, _, active_bytes, _, _]) = meta.await?;
        let bytes = size.await?.max(active_bytes).max(0) as u64;
        instance.size.enter(self.inner.clock.now(), bytes);
        Ok(bytes)
    }
}
