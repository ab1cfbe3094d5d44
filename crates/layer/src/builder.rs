//! Builds indexes in the background, each under a lease.
//!
//! It is a job for whoever puts the program together to run, in every process: leases part the indexes between them. That one
//! process builds an index is for speed alone: two that do so at once leave it as right (`index::build`).

use std::collections::HashMap;
use std::time::Duration;

use flatbed_jobs::{Lease, Owner, Sighting, TakenLease};
use tokio::time::Instant;

use crate::actor::ServerActor;
use crate::error::{Error, Result};
use crate::handle::Database;
use crate::index::build::{Step, Stepped, unbuilt};
use crate::index::kinds::KINDS;
use crate::index::prepare::Preparations;
use crate::layer::{Layer, NameRange};
use crate::store::transaction;

/// The builder of one process.
pub struct IndexBuilder {
    layer: Layer,
    actor: ServerActor,
    owner: Owner,
    silence_max: Duration,
    /// The leases that others have, by database and index.
    seen: HashMap<(String, u64), Sighting>,
}

/// The id of an index's lease. No document's id has it, so it is no replication's.
fn lease_id(number: u64) -> String {
    format!("_index/{number}")
}

impl IndexBuilder {
    /// `silence_max`: who was not heard of for so long has lost its leases; see [`Sighting`].
    pub fn new(layer: Layer, actor: ServerActor, owner: Owner, silence_max: Duration) -> IndexBuilder {
        IndexBuilder { layer, actor, owner, silence_max, seen: HashMap::new() }
    }

    /// Builds what there is to build in all databases and nobody else is building; returns how many indexes may be read now
    /// that could not be before.
    ///
    /// # Errors
    /// [`Error::Storage`], [`Error::Renewing`]: the next round goes on where this one ended.
    pub async fn round(&mut self) -> Result<u64> {
        let mut built = 0;
        if KINDS.is_empty() {
            return Ok(built);
        }
        let mut unfinished = Vec::new();
        for name in self.layer.all_databases(&NameRange::default()).await? {
            let database = self.layer.database(&name, self.actor.clone());
            let instance = match crate::write::batch::resolved(&self.layer.inner, &name).await {
                Err(Error::DatabaseNotFound) => continue,
                found => found?,
            };
            for number in unbuilt(&instance.record) {
                match self.build(&database, number).await {
                    Ok(true) => built += 1,
                    Ok(false) => unfinished.push((name.clone(), number)),
                    Err(Error::DatabaseNotFound) => break,
                    Err(error) => return Err(error),
                }
            }
        }
        self.seen.retain(|index, _| unfinished.contains(index));
        Ok(built)
    }

    /// Builds one index to its end; false: another process has its lease, or has taken it meanwhile.
    async fn build(&mut self, database: &Database, number: u64) -> Result<bool> {
        let (id, index) = (lease_id(number), (database.name.to_string(), number));
        let mut begun = Instant::now();
        let stale: Option<Lease> = self.seen.get(&index).and_then(|seen| seen.stale(begun, self.silence_max)).cloned();
        if let TakenLease::Others(lease) = database.take_lease(&id, &self.owner, stale.as_ref()).await? {
            let now = Instant::now();
            let seen = self.seen.entry(index).or_insert_with(|| Sighting::new(lease.clone(), now));
            seen.update(lease, now);
            return Ok(false);
        }
        self.seen.remove(&index);
        loop {
            if begun.elapsed() >= self.silence_max / 3 {
                begun = Instant::now();
                if !database.hold_lease(&id, &self.owner, b"", false).await? {
                    return Ok(false);
                }
            }
            let inner = &self.layer.inner;
            let mut step =
                Step { inner, name: &database.name, number, attempts: 0, preparations: Preparations::default() };
            match transaction::write(&inner.db, &inner.metrics, &mut step).await? {
                Stepped::On => {}
                done => {
                    database.drop_lease(&id).await?;
                    return Ok(done == Stepped::Built);
                }
            }
        }
    }
}
