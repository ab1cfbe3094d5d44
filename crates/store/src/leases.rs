//! The records of leases.

use flatbed_jobs::Lease;
use flatbed_kit::LeaseRecords;
use prost::Message;

use crate::error::Result;
use crate::instruments::Instruments;
use crate::proto;

pub fn decode(bytes: &[u8]) -> Result<Lease> {
    let proto::Lease { owner, beats, state } = proto::Lease::decode(bytes)?;
    Ok(Lease { owner, beats, state })
}

impl LeaseRecords for Instruments {
    fn encode_lease(lease: &Lease) -> Vec<u8> {
        let Lease { owner, beats, state } = lease.clone();
        proto::Lease { owner, beats, state }.encode_to_vec()
    }

    fn decode_lease(bytes: &[u8]) -> Result<Lease> {
        decode(bytes)
    }
}
