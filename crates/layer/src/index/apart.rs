//! Selectors of indexes that take long, for transactions: compiled or asked when there is a turn, which no transaction waits for.

use std::time::Duration;

use flatbed_kit::Digest;
use sha2::{Digest as _, Sha256};

use crate::error::Result;
use crate::index::maintainers::Within;
use crate::instance::Instance;

/// Filters are asked within an attempt that is no older, where a turn is free: some tenths of a second each.
pub(crate) const ASKED_WITHIN: Duration = Duration::from_secs(1);

/// Begins the digest of what is found for a database; `what`: its kind.
pub(crate) fn digest_in(instance: &Instance, what: &str) -> Sha256 {
    let mut digest = Sha256::new();
    add(&mut digest, what.as_bytes());
    digest.update(instance.record.namespace.to_be_bytes());
    digest.update(instance.record.incarnation.to_be_bytes());
    digest
}

/// Adds bytes to a digest, with their length.
pub(crate) fn add(digest: &mut Sha256, bytes: &[u8]) {
    digest.update((bytes.len() as u64).to_be_bytes());
    digest.update(bytes);
}

/// What `work` answers, done in the database's turn on a thread of its own: within the attempt where a turn is free and the attempt is
/// younger than `within_max`; else the attempt ends, and the next one finds the answer. `of`: all that the answer depends on.
///
/// # Errors
/// That of an attempt that begins anew; [`Error::BrokenOff`](crate::Error::BrokenOff).
pub(crate) async fn in_turn<T: Clone + Send + Sync + 'static>(
    within: &Within<'_>,
    of: Sha256,
    within_max: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let mut work = Some(work);
    in_slices(within, of, within_max, move |_| work.take().map(|work| work())).await
}

/// As [`in_turn`], for work in slices, each of which has a turn: see [`Turn::run_slice`](crate::turns::Turn::run_slice). The first one
/// alone may be within the attempt.
///
/// # Errors
/// As there.
pub(crate) async fn in_slices<T: Clone + Send + Sync + 'static>(
    within: &Within<'_>,
    of: Sha256,
    within_max: Duration,
    mut work: impl FnMut(&dyn Fn() -> bool) -> Option<T> + Send + 'static,
) -> Result<T> {
    let Within { inner, trx, instance } = *within;
    let (of, apart): (Digest, _) = (of.finalize().into(), trx.apart());
    if let Some(made) = apart.get(&of) {
        return Ok(made);
    }
    if trx.clock().since(trx.began()) < within_max
        && let Some(turn) = inner.turns.free_turn(&instance.selecting)
    {
        let (made, rest) = turn.run_slice(work).await?;
        if let Some(made) = made {
            apart.put(of, T::clone(&made));
            return Ok(made);
        }
        work = rest;
    }
    Err(apart.lack(of, inner.turns.select_in_slices(&instance.selecting, work)))
}
