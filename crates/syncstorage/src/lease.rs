//! The lease of the work that one process does for all.

use flatbed_jobs::{LEASE_STATE_BYTES_MAX, Lease, LeaseError, Leases, Owner, TakenLease};

use crate::error::{Error, Result};
use crate::once::drawn;
use crate::store::Inner;
use crate::values::LeaseValue;

impl Leases for Inner {
    async fn take(&self, id: &str, owner: &Owner, stale: Option<&Lease>) -> Result<TakenLease, LeaseError> {
        let key = &self.keys.lease(id);
        // One that was dropped and taken again is another one.
        let first_beat = drawn().map_err(not_asked)?;
        self.runner
            .write(move |trx, _| async move {
                let found = trx.get(key, false).await?;
                let found = match found {
                    Some(bytes) => LeaseValue::decode(&bytes)?,
                    None => Lease { beats: first_beat, ..Lease::default() },
                };
                // An own earlier attempt's commit is seen as ours.
                let is_free = !found.is_of_another(owner) || stale.is_some_and(|stale| stale.is_still(&found));
                if !is_free {
                    return Ok(TakenLease::Others(found));
                }
                let taken =
                    Lease { owner: owner.to_vec(), beats: found.beats.wrapping_add(1), state: found.state.clone() };
                trx.set(key, &LeaseValue::encode(&taken));
                Ok(TakenLease::Ours(found))
            })
            .await
            .map_err(not_asked)
    }

    async fn hold(&self, id: &str, owner: &Owner, state: &[u8], release: bool) -> Result<bool, LeaseError> {
        if state.len() > LEASE_STATE_BYTES_MAX {
            return Err(not_asked(Error::OutOfBounds("a lease's state")));
        }
        let key = &self.keys.lease(id);
        self.runner
            .write(move |trx, attempt| async move {
                let found = trx.get(key, false).await?;
                let Some(found) = found.map(|bytes| LeaseValue::decode(&bytes)).transpose()? else {
                    return Ok(attempt.maybe_committed && release);
                };
                if found.owner != owner {
                    return Ok(false);
                }
                if release {
                    trx.clear(key);
                } else {
                    let held =
                        Lease { owner: owner.to_vec(), beats: found.beats.wrapping_add(1), state: state.to_vec() };
                    trx.set(key, &LeaseValue::encode(&held));
                }
                Ok(true)
            })
            .await
            .map_err(not_asked)
    }
}

impl Inner {
    /// A lease as it stands.
    pub(crate) async fn look_at_lease(&self, id: &str) -> Result<Option<Lease>> {
        let key = &self.keys.lease(id);
        self.runner
            .read(move |trx| async move {
                let found = trx.get(key, true).await?;
                found.map(|bytes| LeaseValue::decode(&bytes)).transpose()
            })
            .await
    }
}

fn not_asked(error: Error) -> LeaseError {
    LeaseError::Storage(error.into())
}
