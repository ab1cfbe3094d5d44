//! Chooses which databases have watches on their `last_seq` (one for each shard) and which are polled.
//!
//! FoundationDB allows 10,000 watches for each connection. If more databases are followed, those with the latest
//! changes have watches, and the others share a poll, whose transactions read hundreds of them each. A database that
//! the poll finds changed takes the watches of the one that has been quiet for the longest time.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use flatbed_clock::Clock;
use flatbed_databases::server::Inner;
use flatbed_databases::slots::State;
use flatbed_store::error::{Error, Result};
use flatbed_store::transaction::{self, Attempt, Operation, Transaction, bounded, note};
use foundationdb::{FdbError, FdbResult};
use futures_util::future::BoxFuture;

use crate::feed::hub::{Hub, SAFETY_REREAD};

const POLL_EVERY: Duration = Duration::from_secs(1);

/// Keys that one transaction of the poll reads: one for each shard.
const POLLED_AT_ONCE: usize = 500;

/// The watches of a process; see the module.
#[derive(Debug)]
pub struct Watches {
    max: usize,
    places: Mutex<WatchPlaces>,
}

#[derive(Debug, Default)]
struct WatchPlaces {
    /// The number of the last change of each watched database, from a count of all changes.
    watched: HashMap<u64, u64>,
    /// The reverse map, the quietest database first, each with the number of its watches.
    quietest: BTreeMap<u64, (u64, Weak<Hub>, usize)>,
    set: usize,
    changes: u64,
    polled: HashMap<u64, Weak<Hub>>,
    is_polling: bool,
}

impl State<Inner> for Watches {
    fn new_of(inner: &Inner) -> Watches {
        Watches::new(inner.options.watches_max)
    }
}

impl Watches {
    /// Creates a set of at most `max` watches.
    pub fn new(max: usize) -> Watches {
        Watches { max, places: Mutex::default() }
    }

    /// Returns whether a hub may watch. `has_changed`: its database has changed since the last call.
    pub fn may_watch(&self, inner: &Arc<Inner>, hub: &Arc<Hub>, has_changed: bool) -> bool {
        let mut places = self.lock();
        let place = places.watched.get(&hub.namespace).copied();
        if place.is_some() && !has_changed {
            return true;
        }
        let watches = hub.buckets.all().len();
        while place.is_none() && places.set + watches > self.max {
            let may_take = has_changed && watches <= self.max;
            let Some((_, (namespace, quietest, freed))) = may_take.then(|| places.quietest.pop_first()).flatten()
            else {
                places.poll(inner, hub);
                return false;
            };
            places.watched.remove(&namespace);
            places.set -= freed;
            // Its next read finds that it has no watch any more, and it is polled.
            quietest.upgrade().inspect(|hub| hub.look());
        }
        if let Some(place) = place {
            places.forget(place);
        }
        places.changes += 1;
        let place = places.changes;
        places.watched.insert(hub.namespace, place);
        places.quietest.insert(place, (hub.namespace, Arc::downgrade(hub), watches));
        places.set += watches;
        places.polled.remove(&hub.namespace);
        true
    }

    pub fn leave(&self, hub: &Hub) {
        let mut places = self.lock();
        if let Some(place) = places.watched.remove(&hub.namespace) {
            places.forget(place);
        }
        places.polled.remove(&hub.namespace);
    }

    fn lock(&self) -> MutexGuard<'_, WatchPlaces> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the polled hubs; `None` if there are none, and the poll ends.
    fn polled(&self) -> Option<Vec<Arc<Hub>>> {
        let mut places = self.lock();
        places.polled.retain(|_, hub| hub.strong_count() > 0);
        places.is_polling = !places.polled.is_empty();
        places.is_polling.then(|| places.polled.values().filter_map(Weak::upgrade).collect())
    }
}

impl WatchPlaces {
    /// Removes the watches of the database at a place of `quietest`.
    fn forget(&mut self, place: u64) {
        if let Some((.., watches)) = self.quietest.remove(&place) {
            self.set -= watches;
        }
    }

    fn poll(&mut self, inner: &Arc<Inner>, hub: &Arc<Hub>) {
        self.polled.insert(hub.namespace, Arc::downgrade(hub));
        if !self.is_polling {
            self.is_polling = true;
            tokio::spawn(poll(Arc::downgrade(inner), inner.clock.clone()));
        }
    }
}

async fn poll(inner: Weak<Inner>, clock: Clock) {
    loop {
        clock.sleep(POLL_EVERY).await;
        let Some(inner) = inner.upgrade().filter(|inner| !inner.is_closing()) else { return };
        let Some(hubs) = inner.state::<Watches>().polled() else { return };
        let mut left = hubs.as_slice();
        while !left.is_empty() {
            let mut keys = 0;
            let fits = |hub: &&Arc<Hub>| {
                keys += hub.buckets.all().len();
                keys <= POLLED_AT_ONCE
            };
            let count = left.iter().take_while(fits).count().max(1);
            let (hubs, rest) = left.split_at(count.min(left.len()));
            left = rest;
            let mut look = PollHubs { hubs };
            match transaction::read(&inner.db, &inner.metrics, &mut look).await {
                Ok(changed) => changed.into_iter().for_each(|hub| hub.look()),
                Err(error) => tracing::debug!(%error, "the poll of databases without a watch failed"),
            }
        }
        inner.metrics.polls.add(1);
    }
}

struct PollHubs<'a> {
    hubs: &'a [Arc<Hub>],
}

impl<'a> Operation for PollHubs<'a> {
    type Output = Vec<&'a Arc<Hub>>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let reads: Vec<_> = self.hubs.iter().map(|hub| hub.begin_last_seq(trx)).collect();
        let mut changed = Vec::new();
        for (hub, read) in self.hubs.iter().zip(reads) {
            if !hub.is_drained_to(read.await?) {
                changed.push(hub);
            }
        }
        Ok(changed)
    }
}

/// Waits until a database exists, on a watch, or until the server stops.
pub async fn wait_until_there(inner: &Inner, name: &str) -> Result<()> {
    let key = inner.keys.database(name);
    let mut closing = inner.closing.subscribe();
    loop {
        let (value, fired) = bounded(arm(inner, &key)).await?;
        if !value.is_empty() || inner.is_closing() {
            return Ok(());
        }
        tokio::select! {
            fired = fired => fired?,
            () = inner.clock.sleep(SAFETY_REREAD) => inner.metrics.safety_rereads.add(1),
            _ = closing.wait_for(|closing| *closing) => return Ok(()),
        }
    }
}

/// Fires when its key has another value than at the read version of the transaction that set it.
pub type Watch = BoxFuture<'static, FdbResult<()>>;

/// Reads a key, and sets a watch on it in the same transaction. An absent key reads as empty.
pub async fn arm(inner: &Inner, key: &[u8]) -> Result<(Vec<u8>, Watch)> {
    let (value, watches) = set_watches(inner, &[key], &mut ReadValue { key }).await?;
    let watch = watches.into_iter().next().unwrap_or_else(|| Box::pin(std::future::pending()));
    Ok((value, watch))
}

struct ReadValue<'a> {
    key: &'a [u8],
}

impl Operation for ReadValue<'_> {
    type Output = Vec<u8>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Vec<u8>> {
        Ok(trx.get(self.key, true).await?.as_deref().map(<[u8]>::to_vec).unwrap_or_default())
    }
}

/// Reads an operation's output, and sets a watch on each key in the same transaction.
pub async fn set_watches<O: Operation>(inner: &Inner, keys: &[&[u8]], read: &mut O) -> Result<(O::Output, Vec<Watch>)> {
    let mut trx = Transaction::begin(&inner.db, &inner.metrics)?;
    loop {
        inner.metrics.storage().transactions.add(1);
        let error = match read.attempt(&trx, Attempt::default()).await {
            Ok(value) => {
                let watches: Vec<Watch> = keys.iter().map(|key| Box::pin(trx.watch(key)) as Watch).collect();
                match trx.commit().await {
                    Ok(_) => {
                        inner.metrics.watches_set.add(watches.len() as u64);
                        return Ok((value, watches));
                    }
                    Err(failed) => {
                        note(inner.metrics.storage(), FdbError::from_code(failed.code()));
                        trx = failed.on_error().await?;
                        continue;
                    }
                }
            }
            Err(Error::Storage(error)) => error,
            Err(error) => return Err(error),
        };
        note(inner.metrics.storage(), error);
        trx = trx.on_error(error).await?;
    }
}
