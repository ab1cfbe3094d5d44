//! The encoding of a lease.

use flatbed_jobs::Lease;

use crate::error::{Error, Result};
use crate::values::bytes_of::{Reader, Writer};

pub(crate) struct LeaseValue;

impl LeaseValue {
    pub(crate) fn encode(lease: &Lease) -> Vec<u8> {
        let mut out = Writer::new();
        out.u64(lease.beats).byte(lease.owner.len() as u8).bytes(&lease.owner).bytes(&lease.state);
        out.finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Lease> {
        let mut from = Reader::new(bytes, "a lease")?;
        let (beats, len) = (from.u64()?, from.byte()?);
        let owner = from.some(usize::from(len))?.to_vec();
        let state = bytes.get(10 + owner.len()..).ok_or(Error::Corrupt("a lease"))?.to_vec();
        Ok(Lease { owner, beats, state })
    }
}
