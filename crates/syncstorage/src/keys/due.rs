//! Keys of due work that was put off after a failure, and of the leases of its slices.

use crate::error::Result;
use crate::keys::tuple::{BYTES, TEXT, bad_key, put_int, put_text, take_int, take_text};
use crate::keys::{DUE, KeyRange, LEASES, RootKeys, take_time, with};
use crate::timestamp::Timestamp;

/// The kind of an entry that was put off. It contains the original entry.
const DEFERRED: u64 = 5;

/// An entry that was put off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeferredEntry {
    /// The time of the next attempt.
    pub again: Timestamp,
    /// The key of the original entry.
    pub original: Vec<u8>,
}

impl RootKeys {
    /// Returns the key of an entry of a slice, put off to a time. `original`: the entry's key; one of another slice
    /// stays as it is.
    pub(crate) fn deferred(&self, shard: u64, again: Timestamp, original: &[u8]) -> Vec<u8> {
        let slice = with(&self.part(DUE), shard);
        let mut key = with(&slice, again.hundredths() as u64);
        put_int(&mut key, DEFERRED);
        put_text(&mut key, BYTES, original.strip_prefix(slice.as_slice()).unwrap_or(original));
        key
    }

    /// Parses a key of [`RootKeys::deferred`]. `None`: another entry, which may be unreadable.
    pub(crate) fn take_deferred(&self, key: &[u8]) -> Option<DeferredEntry> {
        let all = self.part(DUE);
        let (shard, rest) = take_int(key.strip_prefix(all.as_slice())?).ok()?;
        let (again, rest) = take_time(rest).ok()?;
        let (DEFERRED, rest) = take_int(rest).ok()? else { return None };
        let (entry, []) = take_text(rest, BYTES).ok()? else { return None };
        Some(DeferredEntry { again, original: [with(&all, shard), entry].concat() })
    }

    /// Returns the range of all entries of a slice.
    pub(crate) fn due_of(&self, shard: u64) -> KeyRange {
        KeyRange { begin: with(&self.part(DUE), shard), end: with(&self.part(DUE), shard + 1) }
    }

    /// Returns the range of all leases.
    pub(crate) fn leases(&self) -> KeyRange {
        KeyRange { begin: self.part(LEASES), end: self.part(LEASES + 1) }
    }

    /// Parses the key of a slice's lease into the slice.
    pub(crate) fn take_lease(&self, key: &[u8]) -> Result<u64> {
        let rest = key.strip_prefix(self.part(LEASES).as_slice()).ok_or_else(bad_key)?;
        match take_text(rest, TEXT)? {
            (id, []) => std::str::from_utf8(&id).ok().and_then(|id| id.parse().ok()).ok_or_else(bad_key),
            _ => Err(bad_key()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{Due, shard_of};
    use crate::names::{BatchId, Uid};

    #[test]
    fn what_is_put_off_keeps_its_entry() {
        let (keys, uid) = (RootKeys::new(b"r\0oot"), Uid(256));
        let (at, again) = (Timestamp::from_hundredths(255), Timestamp::from_hundredths(512));
        let shard = shard_of(uid);
        for due in [Due::Batch(BatchId(0)), Due::Purge] {
            let original = keys.user(uid).due(at, &due);
            let key = keys.deferred(shard, again, &original);
            assert_eq!(keys.take_deferred(&key), Some(DeferredEntry { again, original: original.clone() }));
            assert_eq!(keys.take_deferred(&original), None);
            assert!(keys.take_due(&key).is_err());
            let (due, later) = (keys.due_until(shard, again), keys.due_until(shard, at));
            assert!(due.begin <= key && key < due.end && later.end <= key);
            let of = keys.due_of(shard);
            assert!(of.begin <= key && key < of.end);
        }
        // An unreadable one, too.
        let original = [&keys.due_of(3).begin[..], b"\0x"].concat();
        let key = keys.deferred(3, again, &original);
        assert_eq!(keys.take_deferred(&key).map(|deferred| deferred.original), Some(original));
    }

    #[test]
    fn leases_are_those_of_slices() {
        let keys = RootKeys::new(b"r");
        assert_eq!(keys.take_lease(&keys.lease("17")).unwrap(), 17);
        assert!(keys.take_lease(&keys.lease("sweep")).is_err() && keys.take_lease(&keys.format()).is_err());
        assert!(keys.leases().begin < keys.lease("0") && keys.lease("63") < keys.leases().end);
    }
}
