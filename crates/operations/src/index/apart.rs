//! Runs slow selectors of indexes outside of transactions: they are compiled or matched in a turn, for which no
//! transaction waits.

use std::sync::Arc;
use std::time::Duration;

use flatbed_databases::instance::Instance;
use flatbed_databases::slots::State;
use flatbed_kit::Digest;
use flatbed_store::error::Result;
use sha2::{Digest as _, Sha256};
use tokio::sync::Mutex;

use crate::index::maintainers::IndexContext;

/// Filters are matched within an attempt up to this age if a turn is free: each takes some tenths of a second.
pub const ASKED_WITHIN: Duration = Duration::from_secs(1);

/// Begins the digest of a database's results. `what`: the kind of result.
pub fn digest_in(instance: &Instance, what: &str) -> Sha256 {
    let mut digest = Sha256::new();
    add(&mut digest, what.as_bytes());
    digest.update(instance.record.namespace.to_be_bytes());
    digest.update(instance.record.incarnation.to_be_bytes());
    digest
}

pub fn add(digest: &mut Sha256, bytes: &[u8]) {
    digest.update((bytes.len() as u64).to_be_bytes());
    digest.update(bytes);
}

/// Returns the result of `work`, run in the database's turn on its own thread: within the attempt if a turn is free and
/// the attempt is younger than `within_max`. Otherwise the attempt ends, and the next one finds the result. `of`: all
/// inputs of the result.
///
/// # Errors
/// The error of an attempt that begins again; [`Error::BrokenOff`](flatbed_store::error::Error::BrokenOff).
pub async fn run_in_turn<T: Clone + Send + Sync + 'static>(
    within: &IndexContext<'_>,
    of: Sha256,
    within_max: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let mut work = Some(work);
    run_in_slices(within, of, within_max, move |_| work.take().map(|work| work())).await
}

/// Like [`run_in_turn`], for work in slices, each of which has a turn: see
/// [`Turn::run_slice`](flatbed_databases::turns::Turn::run_slice). Only the first slice may run within the attempt.
///
/// # Errors
/// As there.
pub async fn run_in_slices<T: Clone + Send + Sync + 'static>(
    within: &IndexContext<'_>,
    of: Sha256,
    within_max: Duration,
    mut work: impl FnMut(&dyn Fn() -> bool) -> Option<T> + Send + 'static,
) -> Result<T> {
    let IndexContext { inner, trx, instance } = *within;
    let (of, apart): (Digest, _) = (of.finalize().into(), trx.apart());
    if let Some(made) = apart.get(&of) {
        return Ok(made);
    }
    if trx.clock().since(trx.began()) < within_max
        && let Some(turn) = inner.turns.free_turn(selector_lock(instance))
    {
        let (made, rest) = turn.run_slice(work).await?;
        if let Some(made) = made {
            apart.put(of, T::clone(&made));
            return Ok(made);
        }
        work = rest;
    }
    Err(apart.lack(of, inner.turns.select_in_slices(selector_lock(instance), work)))
}

/// Held while this process runs slow selectors of a database's indexes.
#[derive(Default)]
struct SelectorLock(Arc<Mutex<()>>);

impl State<Instance> for SelectorLock {
    fn new_of(_: &Instance) -> SelectorLock {
        SelectorLock::default()
    }

    fn is_used(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// Returns the lock of a database's slow selectors. Databases of one name share it: selectors go on behind a deletion.
pub fn selector_lock(instance: &Instance) -> &Arc<Mutex<()>> {
    &instance.of_name.get::<SelectorLock>(instance).0
}
