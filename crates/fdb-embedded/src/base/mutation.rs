//! The mutations of a commit.

use crate::base::atomic::AtomicOp;
use crate::base::key_space::KeyRange;

/// One mutation of a commit, in the order of the transaction.
#[derive(Clone, Debug)]
pub(crate) enum Mutation {
    Set(Vec<u8>, Vec<u8>),
    /// `[begin, end)`.
    Clear(KeyRange),
    Atomic(AtomicOp, Vec<u8>, Vec<u8>),
    /// Key with a versionstamp, and value.
    StampKey(Vec<u8>, Vec<u8>),
    /// Key, and value with a versionstamp.
    StampValue(Vec<u8>, Vec<u8>),
}

impl Mutation {
    /// Returns whether the mutation may change this key, which holds no versionstamp.
    pub(crate) fn touches(&self, key: &[u8]) -> bool {
        match self {
            Mutation::Clear((begin, end)) => begin.as_slice() <= key && key < end.as_slice(),
            Mutation::Set(at, _) | Mutation::Atomic(_, at, _) | Mutation::StampValue(at, _) => at == key,
            Mutation::StampKey(..) => false,
        }
    }

    /// The size of its parameters in bytes, as FoundationDB counts it towards a transaction's size.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Mutation::Clear((a, b)) => a.len() + b.len(),
            Mutation::Set(a, b) | Mutation::Atomic(_, a, b) | Mutation::StampKey(a, b) | Mutation::StampValue(a, b) => {
                a.len() + b.len()
            }
        }
    }
}

/// Writes the stamp at the offset in the last four bytes (little-endian), and removes those bytes.
pub(crate) fn place_versionstamp(mut bytes: Vec<u8>, stamp: [u8; 10]) -> Vec<u8> {
    let Some(place) = bytes.last_chunk::<4>().map(|place| u32::from_le_bytes(*place) as usize) else { return bytes };
    bytes.truncate(bytes.len() - 4);
    if let Some(hole) = bytes.get_mut(place..).and_then(|rest| rest.get_mut(..10)) {
        hole.copy_from_slice(&stamp);
    }
    bytes
}
