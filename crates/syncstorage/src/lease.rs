//! The leases of the slices of due work: one process works in a slice.

use flatbed_jobs::{LEASE_STATE_BYTES_MAX, Lease, LeaseError, Leases, Owner, TakenLease};
use flatbed_kit::{HoldLease, LeaseRecords, Release, TakeLease};

use crate::error::{Error, Result};
use crate::store::Inner;
use crate::transaction::Context;
use crate::values::LeaseValue;

impl LeaseRecords for Context {
    fn encode_lease(lease: &Lease) -> Vec<u8> {
        LeaseValue::encode(lease)
    }

    fn decode_lease(bytes: &[u8]) -> Result<Lease> {
        LeaseValue::decode(bytes)
    }
}

impl Leases for Inner {
    async fn take(&self, id: &str, owner: &Owner, stale: Option<&Lease>) -> Result<TakenLease, LeaseError> {
        let key = &self.keys.lease(id);
        let lease = &TakeLease::new(owner, stale).map_err(|error| not_asked(error.into()))?;
        let taken = self.runner.write(move |trx, _| async move { lease.attempt(trx.kit(), key).await });
        taken.await.map_err(not_asked)
    }

    async fn hold(&self, id: &str, owner: &Owner, state: &[u8], release: bool) -> Result<bool, LeaseError> {
        if state.len() > LEASE_STATE_BYTES_MAX {
            return Err(not_asked(Error::OutOfBounds("a lease's state")));
        }
        let key = &self.keys.lease(id);
        let lease = &HoldLease::new(owner, state, release.then_some(Release::Nothing));
        let held = self
            .runner
            .write(move |trx, attempt| async move { lease.attempt(trx.kit(), attempt, key, |_| true).await });
        held.await.map_err(not_asked)
    }
}

fn not_asked(error: Error) -> LeaseError {
    LeaseError::Storage(error.into())
}
