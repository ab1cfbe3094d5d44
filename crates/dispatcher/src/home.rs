//! The home of this process's jobs: the storage that it has open, or a server that it calls over HTTP. Both use the
//! same leases with the same epochs.

use std::time::Duration;

use flatbed_jobs::{HoldMany, Lease, LeaseError, LeaseRenewal, Leases, Owner, TakenLease};
use flatbed_layer::{Database, Layer, ServerActor, WORKER};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::leases;
use crate::store::{Store, StoreError};

/// The seconds by which an epoch may be ahead of the clock. An epoch without this limit could leave none to its
/// successors.
const AHEAD_MAX: u64 = 86_400;

#[derive(Clone)]
pub(crate) enum Home {
    /// In this process's storage.
    Here { layer: Layer, actor: ServerActor },
    /// At a server, which `Store` calls.
    There {
        store: Store,
        /// The timeout of a call. A later answer is useless.
        time_max: Duration,
    },
}

/// The state that a new owner of a lease receives, for [`flatbed_jobs::Job::restore`].
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Takeover {
    /// The epoch of the new owner: above all epochs in the lease, by the clock of the home.
    pub(crate) epoch: u64,
    /// The state that the previous owner stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) told: Option<Value>,
}

/// Returns the epoch in a lease's state; 0 if it has none.
pub(crate) fn epoch_of(state: &[u8]) -> u64 {
    #[derive(Deserialize)]
    struct Epoch {
        epoch: u64,
    }
    serde_json::from_slice::<Epoch>(state).map_or(0, |told| told.epoch)
}

impl Takeover {
    /// Makes the state for the new owner of a lease at a time, in seconds of Unix time.
    pub(crate) fn of(state: &[u8], now: u64) -> Takeover {
        // The time exceeds the epochs of a lease that was deleted with its job.
        let epoch = epoch_of(state).saturating_add(1).max(now);
        Takeover { epoch, told: serde_json::from_slice(state).ok() }
    }
}

/// Returns whether a new state may replace the stored one: not with an older epoch, which arrived late, and not with an
/// epoch beyond [`AHEAD_MAX`].
fn may_follow(found: &[u8], told: &[u8], now: u64) -> bool {
    let (found, told) = (epoch_of(found), epoch_of(told));
    found <= told && told <= found.saturating_add(1).max(now.saturating_add(AHEAD_MAX))
}

impl Home {
    fn database(layer: &Layer, actor: &ServerActor) -> Database {
        layer.database(WORKER, actor.clone())
    }

    /// Returns a page of leases after `after`, in the order of their ids; empty at the end. [`Home::There`] omits their
    /// states.
    pub(crate) async fn page(&self, after: Option<&str>) -> Result<Vec<(String, Lease)>, LeaseError> {
        match self {
            Home::Here { layer, .. } => match layer.reader(WORKER).leases(after).await {
                Err(flatbed_layer::Error::DatabaseNotFound) => Ok(Vec::new()),
                page => page.map_err(|error| LeaseError::Storage(error.into())),
            },
            Home::There { store, time_max } => leases::page(store, after, *time_max).await.map_err(not_asked),
        }
    }

    /// Removes the lease of a deleted job. False: the job exists again, and its lease may have an owner.
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

/// Takes a lease and checks in the same transaction that the job exists, since nothing would remove a lease without a
/// job.
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
                    let state = serde_json::to_vec(&Takeover::of(&lease.state, layer.clock().unix_seconds()));
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
    async fn hold_many(&self, owner: &Owner, holds: &[LeaseRenewal]) -> Result<Vec<bool>, LeaseError> {
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
        let given = Takeover::of(br#"{"epoch":7,"node":"x"}"#, NOW);
        assert!(given.epoch == NOW && given.told.unwrap()["node"] == "x");
        let ahead = NOW + 1_000;
        assert_eq!(Takeover::of(format!("{{\"epoch\":{ahead}}}").as_bytes(), NOW).epoch, ahead + 1);
        assert!(Takeover::of(b"\xff", NOW).told.is_none() && Takeover::of(b"", NOW).epoch == NOW);
        let told = |epoch: u64| format!("{{\"epoch\":{epoch}}}").into_bytes();
        for (found, comes, may) in [
            (told(7), told(7), true),
            (told(7), told(8), true),
            // Sent under an older epoch, it arrives late.
            (told(8), told(7), false),
            (told(8), b"{}".to_vec(), false),
            (Vec::new(), told(NOW), true),
            // It would be the last epoch.
            (told(7), told(u64::MAX), false),
            (told(u64::MAX - 1), told(u64::MAX), true),
        ] {
            assert_eq!(may_follow(&found, &comes, NOW), may, "{found:?} {comes:?}");
        }
    }
}
