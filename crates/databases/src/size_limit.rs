//! The bound of the size of one database:
//! [`LayerOptions::database_bytes_max`](crate::server::LayerOptions::database_bytes_max).
//!
//! The size is FoundationDB's estimate of all keys of the database, or the counted bytes of bodies if that is larger. A
//! process reads it at most every five seconds per database, in a snapshot transaction of its own, so most writes read
//! nothing for the check. A database can exceed its bound by what all processes write in that time, by requests in
//! progress, and by the error of the estimate.

use std::sync::Arc;
use std::time::Duration;

use flatbed_store::error::{Refusal, Result};
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};

use crate::server::Inner;

/// The maximum age of a size that is not read again.
const FIGURE_KEPT: Duration = Duration::from_secs(5);

/// [`Growth::Reserve`] may exceed the bound by the bound divided by this.
const RESERVE: u64 = 4;

/// The kind of a write that makes a database larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Growth {
    Documents,
    /// Writes that a full database accepts until the reserve is used: deletions, local documents, rows of views.
    Reserve,
}

/// Refuses a write that makes a full database larger.
///
/// # Errors
/// [`Refusal::DatabaseFull`]; storage errors, if the size must be read.
pub async fn check(inner: &Inner, name: &str, growth: Growth) -> Result<()> {
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

/// Returns the size of a database, at most [`FIGURE_KEPT`] old. While one task reads the size, other tasks use the
/// previous one.
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

struct Measure<'a> {
    inner: &'a Inner,
    name: &'a str,
}

impl Operation for Measure<'_> {
    type Output = u64;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<u64> {
        let instance = self.inner.resolve(trx, self.name).await?;
        let all = instance.keys.all();
        let meta = instance.buckets.begin_meta(trx, instance.epoch_begin());
        let size = trx.get_estimated_range_size_bytes(&all.begin, &all.end);
        let (_, [_, _, _, active_bytes, _, _]) = meta.await?;
        let bytes = size.await?.max(active_bytes).max(0) as u64;
        instance.size.enter(self.inner.clock.now(), bytes);
        Ok(bytes)
    }
}
