//! FoundationDB's tuple encoding, as far as keys of this layer use it.

use flatbed_kit::tuple;
pub(super) use flatbed_kit::tuple::{BYTES as TUPLE_BYTES, STRING as TUPLE_STRING, put_int, put_text};
use flatbed_revtree::RevId;

use crate::error::{Error, Result};
use crate::keys::KeyRange;
use crate::seq::{STAMP_BYTES, Stamp, VERSIONSTAMP_OFFSET, begin_of, epoch_of, own_stamp};

pub(super) const TUPLE_VERSIONSTAMP: u8 = 0x33;

/// Takes the revision from the bytes behind LEAVES/{not deleted}, REVISIONS or REVISION_BODIES. Returns it and the
/// rest.
pub fn take_rev(key: &[u8]) -> Result<(RevId, &[u8])> {
    let (generation, rest) = take_int(key)?;
    let (&kind, _) = rest.split_first().ok_or_else(bad_key)?;
    if kind == TUPLE_BYTES {
        let (md5, rest) = take_bytes_at(rest, TUPLE_BYTES)?;
        let md5 = md5.try_into().map_err(|_| bad_key())?;
        return Ok((RevId::new(generation, md5), rest));
    }
    let (hash, rest) = take_text_at(rest)?;
    let rev = RevId::from_parts(generation, &hash).map_err(|_| bad_key())?;
    Ok((rev, rest))
}

/// Takes a tuple integer. Returns it and the rest.
pub fn take_int(key: &[u8]) -> Result<(u64, &[u8])> {
    tuple::take_int(key).ok_or_else(bad_key)
}

// A hash of 16 bytes is a tuple byte string, any other hash a tuple string, and byte strings sort before strings. So
// keys of both kinds with equal generations are not in the order of `RevId`s, which decides the winner.
pub(super) fn put_rev(key: &mut Vec<u8>, rev: &RevId) {
    put_int(key, rev.generation());
    match rev.hash() {
        flatbed_revtree::Hash::Md5(md5) => put_text(key, TUPLE_BYTES, md5),
        flatbed_revtree::Hash::Text(text) => put_text(key, TUPLE_STRING, text.as_bytes()),
    }
}

pub(super) fn under(prefix: &[u8]) -> KeyRange {
    KeyRange::under(prefix.to_vec())
}

pub(super) fn with_int(prefix: &[u8], value: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(prefix.len() + 64);
    key.extend_from_slice(prefix);
    put_int(&mut key, value);
    key
}

/// Appends a stamp: its epoch as an integer, and the versionstamp.
pub(super) fn put_stamp(key: &mut Vec<u8>, stamp: &Stamp) {
    put_int(key, epoch_of(stamp).into());
    key.push(TUPLE_VERSIONSTAMP);
    key.extend_from_slice(stamp.get(VERSIONSTAMP_OFFSET as usize..).unwrap_or_default());
}

/// Takes the stamp that ends a key.
pub(super) fn take_stamp(key: &[u8]) -> Result<Stamp> {
    let (epoch, rest) = take_int(key)?;
    let mut stamp = begin_of(u32::try_from(epoch).map_err(|_| bad_key())?);
    let place = stamp.get_mut(VERSIONSTAMP_OFFSET as usize..).unwrap_or_default();
    match rest.split_first() {
        Some((&TUPLE_VERSIONSTAMP, versionstamp)) if versionstamp.len() == place.len() => {
            place.copy_from_slice(versionstamp);
            Ok(stamp)
        }
        _ => Err(bad_key()),
    }
}

/// Returns a key for SET_VERSIONSTAMPED_KEY: a prefix, the epoch, the placeholder of the versionstamp, and its offset
/// (4 bytes little-endian).
pub(super) fn stamped(mut key: Vec<u8>, epoch: u32, user_version: u16) -> Vec<u8> {
    put_stamp(&mut key, &own_stamp(epoch, user_version));
    let offset = (key.len() - (STAMP_BYTES - VERSIONSTAMP_OFFSET as usize)) as u32;
    key.extend_from_slice(&offset.to_le_bytes());
    key
}

pub(super) fn behind<'k>(key: &'k [u8], prefix: &[u8]) -> &'k [u8] {
    key.get(prefix.len()..).unwrap_or_default()
}

/// Takes a tuple byte string, or with another `code` the bytes of a tuple string. Returns them and the rest.
pub(super) fn take_bytes_at(key: &[u8], code: u8) -> Result<(Vec<u8>, &[u8])> {
    tuple::take_bytes(key, code).ok_or_else(bad_key)
}

/// Takes a tuple string. Returns it and the rest.
pub(super) fn take_text_at(key: &[u8]) -> Result<(String, &[u8])> {
    let (bytes, rest) = take_bytes_at(key, TUPLE_STRING)?;
    Ok((String::from_utf8(bytes).map_err(|_| bad_key())?, rest))
}

/// Takes a tuple string that ends the key.
pub(super) fn take_text(key: &[u8]) -> Result<String> {
    let (text, rest) = take_text_at(key)?;
    if rest.is_empty() { Ok(text) } else { Err(bad_key()) }
}

pub(super) fn bad_key() -> Error {
    Error::Corrupt("a key is not of this layer's form".into())
}
