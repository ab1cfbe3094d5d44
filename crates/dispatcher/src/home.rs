//! Where the jobs of this process lie: in the storage that it has open, or at a server that it asks over HTTP. Both have the same
//! leases in common, with the same epochs.

use std::time::Duration;

use flatbed_jobs::{Hold, HoldMany, Lease, LeaseError, Leases, Owner, TakenLease};
use flatbed_layer::{Database, Layer, ServerActor, WORKER};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::leases;
use crate::store::{Store, StoreError};

/// Epochs this far ahead of the clock, in seconds, are nobody's: whoever writes one would leave none to those that come after.
const AHEAD_MAX: u64 = 86_400;

/// See the module.
#[derive(Clone)]
pub(crate) enum Home {
    /// In this process's storage.
    Here {
        /// The storage.
        layer: Layer,
        /// Takes leases.
        actor: ServerActor,
    },
    /// At a server, which `Store` asks.
    There {
        /// The server.
        store: Store,
        /// No call takes longer: an answer that comes later is worth nothing.
        time_max: Duration,
    },
}

/// What whoever takes a job over is given: its state, for [`flatbed_jobs::Job::restore`].
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Given {
    /// What is done from now on is done under this epoch. It is above all that the lease has seen, by the clock where the lease lies.
    pub(crate) epoch: u64,
    /// What the one before told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) told: Option<Value>,
}

/// The epoch in what a lease tells; 0 where it tells none.
pub(crate) fn epoch_of(state: &[u8]) -> u64 {
    #[derive(Deserialize)]
    struct Epoch {
        epoch: u64,
    }
    serde_json::from_slice::<Epoch>(state).map_or(0, |told| told.epoch)
}

impl Given {
    /// To whoever takes a lease with such a state at a time, in seconds since 1970.
    pub(crate) fn of(state: &[u8], now: u64) -> Given {
        // The time is above what a lease had that is gone with its job.
        let epoch = epoch_of(state).saturating_add(1).max(now);
        Given { epoch, told: serde_json::from_slice(state).ok() }
    }
}

/// Whether a new state may replace the one that was found at a time: not one of an older epoch that comes late, and no epoch out of
/// turn.
fn may_follow(found: &[u8], told: &[u8], now: u64) -> bool {
    let (found, told) = (epoch_of(found), epoch_of(told));
    found <= told && told <= found.saturating_add(1).max(now.saturating_add(AHEAD_MAX))
}

impl Home {
    fn database(layer: &Layer, actor: &ServerActor) -> Database {
        layer.database(WORKER, actor.clone())
    }

    /// Leases behind `after` in the order of their ids, a page of them; an empty one is the end. Their states are left out by
    /// [`Home::There`].
    pub(crate) async fn page(&self, after: Option<&str>) -> Result<Vec<(String, Lease)>, LeaseError> {
        match self {
            Home::Here { layer, .. } => match layer.reader(WORKER).leases(after).await {
                Err(flatbed_layer::Error::DatabaseNotFound) => Ok(Vec::new()),
                page => page.map_err(|error| LeaseError::Storage(error.into())),
            },
            Home::There { store, time_max } => leases::page(store, after, *time_max).await.map_err(not_asked),
        }
    }

    /// Removes a lease of a job that is gone. False: the job is there, as it was made again, and its lease may be somebody's.
    pub(crate) async fn forget(&self, id: &str) -> Result<bool, LeaseError> {
        match self {
            Home::Here { layer, actor } => {
                let dropped = Home::database(layer, actor).drop_document_lease(id).await;
                dropped.map_err(|error| LeaseError::Storage(error.into()))
            }
            Home::There { store, time_max } => leases::forget(store, id, *time_max).await.map_err(not_asked),
        }
    }
}

fn not_asked(error: StoreError) -> LeaseError {
    match error.status() {
        Some(404) => LeaseError::Gone,
        _ => LeaseError::Storage(error.into()),
    }
}

/// In one transaction with the look whether there is such a job: of what is no job there would be leases that nobody removes.
async fn take_here(
    layer: &Layer,
    actor: &ServerActor,
    id: &str,
    owner: &Owner,
    stale: Option<&Lease>,
) -> Result<TakenLease, LeaseError> {
    match Home::database(layer, actor).take_document_lease(id, owner, stale).await {
        Ok(Some(taken)) => Ok(taken),
        Ok(None) | Err(flatbed_layer::Error::DatabaseNotFound) => Err(LeaseError::Gone),
        Err(error) => Err(LeaseError::Storage(error.into())),
    }
}

impl Leases for Home {
    async fn take(&self, id: &str, owner: &Owner, stale: Option<&Lease>) -> Result<TakenLease, LeaseError> {
        match self {
            Home::Here { layer, actor } => match take_here(layer, actor, id, owner, stale).await? {
                TakenLease::Ours(lease) => {
                    let state = serde_json::to_vec(&Given::of(&lease.state, layer.clock().unix_seconds()));
                    let state = state.map_err(|error| LeaseError::Storage(error.into()))?;
                    Ok(TakenLease::Ours(Lease { state, ..lease }))
                }
                others @ TakenLease::Others(_) => Ok(others),
            },
            Home::There { store, time_max } => {
                leases::take(store, id, owner, stale, *time_max).await.map_err(not_asked)
            }
        }
    }

    async fn hold(&self, id: &str, owner: &Owner, state: &[u8], release: bool) -> Result<bool, LeaseError> {
        match self {
            Home::Here { layer, actor } => {
                let database = Home::database(layer, actor);
                let now = layer.clock().unix_seconds();
                let may_follow = |found: &[u8]| may_follow(found, state, now);
                match database.hold_lease_after(id, owner, state, release, &may_follow).await {
                    Err(flatbed_layer::Error::DatabaseNotFound) => Err(LeaseError::Gone),
                    held => held.map_err(|error| LeaseError::Storage(error.into())),
                }
            }
            Home::There { store, time_max } => {
                leases::hold(store, id, owner, state, release, *time_max).await.map_err(not_asked)
            }
        }
    }
}

impl HoldMany for Home {
    async fn hold_many(&self, owner: &Owner, holds: &[Hold]) -> Result<Vec<bool>, LeaseError> {
        match self {
            Home::Here { layer, actor } => {
                let now = layer.clock().unix_seconds();
                let may_follow = |found: &[u8], told: &[u8]| may_follow(found, told, now);
                match Home::database(layer, actor).hold_leases_after(owner, holds, &may_follow).await {
                    Err(flatbed_layer::Error::DatabaseNotFound) => Err(LeaseError::Gone),
                    held => held.map_err(|error| LeaseError::Storage(error.into())),
                }
            }
            Home::There { store, time_max } => {
                leases::hold_many(store, owner, holds, *time_max).await.map_err(not_asked)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_rise() {
        const NOW: u64 = 1_700_000_000;
        let given = Given::of(br#"{"epoch":7,"node":"x"}"#, NOW);
        assert!(given.epoch == NOW && given.told.unwrap()["node"] == "x");
        let ahead = NOW + 1_000;
        assert_eq!(Given::of(format!("{{\"epoch\":{ahead}}}").as_bytes(), NOW).epoch, ahead + 1);
        assert!(Given::of(b"\xff", NOW).told.is_none() && Given::of(b"", NOW).epoch == NOW);
        let told = |epoch: u64| format!("{{\"epoch\":{epoch}}}").into_bytes();
        for (found, comes, may) in [
            (told(7), told(7), true),
            (told(7), told(8), true),
            // What was sent under an older one comes late.
            (told(8), told(7), false),
            (told(8), b"{}".to_vec(), false),
            (Vec::new(), told(NOW), true),
            // It would be the last.
            (told(7), told(u64::MAX), false),
            (told(u64::MAX - 1), told(u64::MAX), true),
        ] {
            assert_eq!(may_follow(&found, &comes, NOW), may, "{found:?} {comes:?}");
        }
    }
}
