//! Keys of background work that all processes of a root share.

use crate::error::Result;
use crate::keys::tuple::{TUPLE_STRING, bad_key, behind, put_int, put_text, take_int, take_text, with_int};
use crate::keys::{KeyRange, RootKeys};

// Under the root.
const ROOT_LEASES: u64 = 16;
const DUE: u64 = 17;

/// The parts of a key of [`RootKeys::due_until`]: the time, slice, kind and database of due work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueKey {
    pub at_ms: u64,
    pub slice: u8,
    pub kind: u64,
    pub name: String,
}

impl RootKeys {
    /// Returns the key of the lease of some work.
    pub fn lease(&self, id: &str) -> Vec<u8> {
        let mut key = with_int(&self.prefix, ROOT_LEASES);
        put_text(&mut key, TUPLE_STRING, id.as_bytes());
        key
    }

    pub fn leases(&self) -> KeyRange {
        KeyRange { begin: with_int(&self.prefix, ROOT_LEASES), end: with_int(&self.prefix, ROOT_LEASES + 1) }
    }

    pub fn lease_id(&self, key: &[u8]) -> Result<String> {
        take_text(behind(key, &with_int(&self.prefix, ROOT_LEASES)))
    }

    /// Returns the key of an entry of due work.
    pub fn due(&self, due: &DueKey) -> Vec<u8> {
        let mut key = with_int(&self.prefix, DUE);
        for part in [due.at_ms, u64::from(due.slice), due.kind] {
            put_int(&mut key, part);
        }
        put_text(&mut key, TUPLE_STRING, due.name.as_bytes());
        key
    }

    /// Returns the range of the work due at or before a time. The work due at once (time 0) begins with the
    /// slice `from`.
    pub fn due_until(&self, at_ms: u64, from: u8) -> KeyRange {
        let (mut begin, mut end) = (with_int(&self.prefix, DUE), with_int(&self.prefix, DUE));
        put_int(&mut begin, 0);
        put_int(&mut begin, u64::from(from));
        put_int(&mut end, at_ms.saturating_add(1));
        KeyRange { begin, end }
    }

    /// Returns the range of all due work, now or later.
    pub fn due_all(&self) -> KeyRange {
        KeyRange { begin: with_int(&self.prefix, DUE), end: with_int(&self.prefix, DUE + 1) }
    }

    pub fn split_due(&self, key: &[u8]) -> Result<DueKey> {
        let (at_ms, rest) = take_int(behind(key, &with_int(&self.prefix, DUE)))?;
        let (slice, rest) = take_int(rest)?;
        let (kind, rest) = take_int(rest)?;
        let slice = u8::try_from(slice).map_err(|_| bad_key())?;
        Ok(DueKey { at_ms, slice, kind, name: take_text(rest)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foundationdb::tuple::{Bytes, pack};

    #[test]
    fn keys_of_work_are_tuples_and_sort_by_time() {
        let (keys, root) = (RootKeys::new(b"r"), Bytes::from(b"r".to_vec()));
        let due = |at_ms, slice| DueKey { at_ms, slice, kind: 3, name: "a/b".to_owned() };
        let at = 1_763_800_000_000_u64;
        assert_eq!(keys.due(&due(at, 255)), pack(&(root.clone(), 17, at, 255, 3, "a/b")));
        assert_eq!(keys.lease("7"), pack(&(root, 16, "7")));
        let all = [due(0, 0), due(0, 200), due(at - 1, 9), due(at, 255), due(at + 1, 0)];
        assert!(all.iter().map(|due| keys.due(due)).is_sorted());
        let is_in = |range: &KeyRange, due: &DueKey| {
            let key = keys.due(due);
            range.begin <= key && key < range.end && keys.split_due(&key).unwrap() == *due
        };
        assert_eq!(all.each_ref().map(|due| is_in(&keys.due_until(at, 0), due)), [true, true, true, true, false]);
        assert_eq!(all.each_ref().map(|due| is_in(&keys.due_until(at, 1), due)), [false, true, true, true, false]);
        assert!(all.iter().all(|due| is_in(&keys.due_all(), due)));
    }
}
