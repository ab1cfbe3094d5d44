//! The key space of FoundationDB's client: its bounds, length limits and ranges.

/// The end of the user keys, exclusive.
pub(crate) const USER_END: &[u8] = b"\xff";
/// The end of the system keys, exclusive.
pub(crate) const SYSTEM_END: &[u8] = b"\xff\xff";
/// A key that every transaction may read, and may set to a versionstamp. Layers use it to detect changes of their
/// metadata.
pub const METADATA_VERSION_KEY: &[u8] = b"\xff/metadataVersion";
/// The longest user key, in bytes.
pub(crate) const KEY_BYTES_MAX: usize = 10_000;
/// The longest system key, in bytes.
const SYSTEM_KEY_BYTES_MAX: usize = 30_000;
/// Bytes of a tenant's prefix, which FoundationDB adds to the length limits.
pub(crate) const TENANT_PREFIX_BYTES: usize = 8;

/// Returns the length past which a read, a clear or a conflict range no longer tells keys apart.
pub(crate) fn read_key_bytes_max(key: &[u8]) -> usize {
    if key.starts_with(USER_END) { SYSTEM_KEY_BYTES_MAX } else { KEY_BYTES_MAX + TENANT_PREFIX_BYTES }
}

/// Truncates the ends of a range that exceed the largest key. The result covers the same keys.
pub(crate) fn cut_range<'k>(begin: &'k [u8], end: &'k [u8]) -> (&'k [u8], &'k [u8]) {
    let cut = |key: &'k [u8]| key.get(..read_key_bytes_max(key) + 1).unwrap_or(key);
    (cut(begin), cut(end))
}

/// The key of the database lock, as `fdbcli`'s `lock` writes it.
pub(crate) const DATABASE_LOCKED_KEY: &[u8] = b"\xff/dbLocked";

/// The first key after `key`.
pub(crate) fn key_after(key: &[u8]) -> Vec<u8> {
    let mut after = Vec::with_capacity(key.len() + 1);
    after.extend_from_slice(key);
    after.push(0);
    after
}

/// A half-open range of keys.
pub(crate) type KeyRange = (Vec<u8>, Vec<u8>);

/// Returns whether the range holds exactly one key.
pub(crate) fn is_single_key((begin, end): &KeyRange) -> bool {
    is_key_after(begin, end)
}

/// Returns whether `after` is the first key after `key`.
pub(crate) fn is_key_after(key: &[u8], after: &[u8]) -> bool {
    after.len() == key.len() + 1 && after.last() == Some(&0) && after.starts_with(key)
}
