//! Keys of the log of changed database records. They lie directly under the root, since they belong to all databases.

use crate::error::Result;
use crate::keys::tuple::{TUPLE_STRING, TUPLE_VERSIONSTAMP, bad_key, behind, put_text, take_text, with_int};
use crate::keys::{KeyRange, RootKeys};

// Under the root.
const RECORD_CHANGES: u64 = 23;

/// Length of a value of `\xff/metadataVersion`: the versionstamp of the transaction that changed it, without a user
/// version.
const METADATA_VERSION_BYTES: usize = 10;

/// Length of an entry's versionstamp with its user version. It has no epoch, as the value of `\xff/metadataVersion` has
/// none.
const VERSIONSTAMP_BYTES: usize = METADATA_VERSION_BYTES + 2;

impl RootKeys {
    /// Returns the range of the whole log.
    pub fn record_changes(&self) -> KeyRange {
        KeyRange { begin: with_int(&self.prefix, RECORD_CHANGES), end: with_int(&self.prefix, RECORD_CHANGES + 1) }
    }

    /// Returns the key of a database's entry for SET_VERSIONSTAMPED_KEY, with the stamp's offset (4 bytes
    /// little-endian).
    pub fn record_change_stamped(&self, name: &str) -> Vec<u8> {
        let mut key = with_int(&self.prefix, RECORD_CHANGES);
        key.push(TUPLE_VERSIONSTAMP);
        let offset = key.len() as u32;
        key.extend_from_slice(&[0xff; METADATA_VERSION_BYTES]);
        key.extend_from_slice(&[0; VERSIONSTAMP_BYTES - METADATA_VERSION_BYTES]);
        put_text(&mut key, TUPLE_STRING, name.as_bytes());
        key.extend_from_slice(&offset.to_le_bytes());
        key
    }

    /// Returns the range of the entries of commit versions below one.
    pub fn record_changes_before(&self, version: u64) -> KeyRange {
        let mut end = with_int(&self.prefix, RECORD_CHANGES);
        end.push(TUPLE_VERSIONSTAMP);
        end.extend_from_slice(&version.to_be_bytes());
        KeyRange { begin: self.record_changes().begin, end }
    }

    /// Returns the range of the entries behind a value of `\xff/metadataVersion`.
    pub fn record_changes_after(&self, value: &[u8; METADATA_VERSION_BYTES]) -> KeyRange {
        let mut begin = with_int(&self.prefix, RECORD_CHANGES);
        begin.push(TUPLE_VERSIONSTAMP);
        begin.extend_from_slice(value);
        // Behind each user version and what follows it.
        begin.extend_from_slice(&[0xff; VERSIONSTAMP_BYTES - METADATA_VERSION_BYTES + 1]);
        KeyRange { begin, end: self.record_changes().end }
    }

    /// Returns the key of an entry without a name, behind an entry and all others of its stamp: entries up to it are
    /// gone.
    pub fn record_changes_gone(&self, last: &[u8]) -> Result<Vec<u8>> {
        let stamp_begin = with_int(&self.prefix, RECORD_CHANGES).len() + 1;
        let mut key = last.get(..stamp_begin + METADATA_VERSION_BYTES).ok_or_else(bad_key)?.to_vec();
        key.extend_from_slice(&[0xff; VERSIONSTAMP_BYTES - METADATA_VERSION_BYTES]);
        put_text(&mut key, TUPLE_STRING, b"");
        Ok(key)
    }

    /// Parses a key of the log into its database's name, which is empty for [`RootKeys::record_changes_gone`].
    pub fn record_change_name(&self, key: &[u8]) -> Result<String> {
        match behind(key, &with_int(&self.prefix, RECORD_CHANGES)).split_first() {
            Some((&TUPLE_VERSIONSTAMP, rest)) => take_text(rest.get(VERSIONSTAMP_BYTES..).ok_or_else(bad_key)?),
            _ => Err(bad_key()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foundationdb::tuple::{Bytes, Versionstamp, pack};

    fn entry(version: u64, order: u16, name: &str) -> Vec<u8> {
        let mut stamp = [0; METADATA_VERSION_BYTES];
        stamp[..8].copy_from_slice(&version.to_be_bytes());
        stamp[8..].copy_from_slice(&order.to_be_bytes());
        pack(&(Bytes::from(b"r".to_vec()), 23, Versionstamp::complete(stamp, 0), name))
    }

    fn value(version: u64, order: u16) -> [u8; METADATA_VERSION_BYTES] {
        let mut value = [0; METADATA_VERSION_BYTES];
        value[..8].copy_from_slice(&version.to_be_bytes());
        value[8..].copy_from_slice(&order.to_be_bytes());
        value
    }

    fn is_in(range: &KeyRange, key: &[u8]) -> bool {
        *range.begin <= *key && *key < *range.end
    }

    #[test]
    fn entries_are_tuples_behind_earlier_values() {
        let keys = RootKeys::new(b"r");
        let stamped = keys.record_change_stamped("a/b");
        let (key, offset) = stamped.split_at(stamped.len() - 4);
        let at = u32::from_le_bytes(offset.try_into().unwrap()) as usize;
        let mut key = key.to_vec();
        key[at..at + METADATA_VERSION_BYTES].copy_from_slice(&value(7, 1));
        assert_eq!(key, entry(7, 1, "a/b"));
        assert_eq!(keys.record_change_name(&key).unwrap(), "a/b");
        assert!(is_in(&keys.record_changes(), &key));
        let (after, before) = (keys.record_changes_after(&value(7, 1)), keys.record_changes_before(7));
        let names = [(7, 0, false), (7, 1, false), (7, 2, true), (8, u16::MAX, true), (9, 0, true), (6, 9, false)];
        for (version, order, is_after) in names {
            let key = entry(version, order, "\u{10ffff}");
            assert_eq!((is_in(&after, &key), is_in(&before, &key)), (is_after, version < 7), "{version} {order}");
        }
    }

    #[test]
    fn what_is_gone_lies_behind_what_it_replaces() {
        let keys = RootKeys::new(b"r");
        let gone = keys.record_changes_gone(&entry(7, 3, "some")).unwrap();
        assert_eq!(keys.record_change_name(&gone).unwrap(), "");
        assert!(entry(7, 3, "z") < gone && gone < entry(7, 4, ""));
        // A reader that stands before it finds it, and one that stands at it or behind it does not.
        let finds = |after: [u8; METADATA_VERSION_BYTES]| is_in(&keys.record_changes_after(&after), &gone);
        assert!(finds(value(6, 9)) && finds(value(7, 2)) && !finds(value(7, 3)) && !finds(value(8, 0)));
        assert!(keys.record_change_name(&keys.record_changes().begin).is_err());
    }
}
