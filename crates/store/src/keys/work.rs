//! Keys of background work that all processes of a root share.

use crate::error::Result;
use crate::keys::tuple::{TUPLE_STRING, bad_key, behind, put_int, put_text, take_int, take_text, with_int};
use crate::keys::{KeyRange, RootKeys};

// Under the root.
const ROOT_LEASES: u64 = 16;
const DUE: u64 = 17;

/// The number of parts of the work that is due at a time. Each is ordered by time, so no end of a range takes the new
/// entries of all databases, and one range read for each part finds all due work.
pub const DUE_PARTS: u8 = 16;

/// The parts of a key of an entry of due work: its time (0: at once), and the slice, kind and database of the work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueKey {
    pub at_ms: u64,
    pub slice: u8,
    pub kind: u64,
    pub name: String,
}

impl DueKey {
    /// Returns the part of an entry with a time, 0 to [`DUE_PARTS`] - 1.
    pub fn part(&self) -> u8 {
        self.slice % DUE_PARTS
    }
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

    /// Returns the key of an entry of due work. Work due at once is ordered by kind and slice, other work by its part
    /// and time.
    pub fn due(&self, due: &DueKey) -> Vec<u8> {
        let mut key = with_int(&self.prefix, DUE);
        match due.at_ms {
            0 => [0, due.kind, u64::from(due.slice)].into_iter().for_each(|part| put_int(&mut key, part)),
            at_ms => {
                let parts = [1 + u64::from(due.part()), at_ms, u64::from(due.slice), due.kind];
                parts.into_iter().for_each(|part| put_int(&mut key, part));
            }
        }
        put_text(&mut key, TUPLE_STRING, due.name.as_bytes());
        key
    }

    /// Returns the range of the work due at once, of all kinds.
    pub fn due_at_once(&self) -> KeyRange {
        let [begin, end] = [0, 1].map(|part| self.due_part(part));
        KeyRange { begin, end }
    }

    /// Returns the range of the work of a kind due at once, in the slices from one on and in the slices before it.
    pub fn due_at_once_of(&self, kind: u64, from: u8) -> [KeyRange; 2] {
        let begin = |kind, slice| {
            let mut key = self.due_part(0);
            put_int(&mut key, kind);
            put_int(&mut key, slice);
            key
        };
        let (first, middle, end) = (begin(kind, 0), begin(kind, u64::from(from)), begin(kind.saturating_add(1), 0));
        [KeyRange { begin: middle.clone(), end }, KeyRange { begin: first, end: middle }]
    }

    /// Returns the range of a part's work due at a time or before, 0 to [`DUE_PARTS`] - 1.
    pub fn due_until(&self, part: u8, at_ms: u64) -> KeyRange {
        let begin = self.due_part(1 + u64::from(part));
        let mut end = begin.clone();
        put_int(&mut end, at_ms.saturating_add(1));
        KeyRange { begin, end }
    }

    fn due_part(&self, part: u64) -> Vec<u8> {
        let mut key = with_int(&self.prefix, DUE);
        put_int(&mut key, part);
        key
    }

    /// Returns the range of all due work, now or later.
    pub fn due_all(&self) -> KeyRange {
        KeyRange { begin: with_int(&self.prefix, DUE), end: with_int(&self.prefix, DUE + 1) }
    }

    pub fn split_due(&self, key: &[u8]) -> Result<DueKey> {
        let (part, rest) = take_int(behind(key, &with_int(&self.prefix, DUE)))?;
        let (first, rest) = take_int(rest)?;
        let (second, rest) = take_int(rest)?;
        let (at_ms, kind, slice, rest) = match part {
            0 => (0, first, second, rest),
            _ => {
                let (kind, rest) = take_int(rest)?;
                (first, kind, second, rest)
            }
        };
        let slice = u8::try_from(slice).map_err(|_| bad_key())?;
        let due = DueKey { at_ms, slice, kind, name: take_text(rest)? };
        let expected = if at_ms == 0 { 0 } else { 1 + u64::from(due.part()) };
        if part == expected { Ok(due) } else { Err(bad_key()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foundationdb::tuple::{Bytes, pack};

    #[test]
    fn keys_of_work_are_tuples_of_kinds_and_times() {
        let (keys, root) = (RootKeys::new(b"r"), Bytes::from(b"r".to_vec()));
        let due = |at_ms, slice, kind| DueKey { at_ms, slice, kind, name: "a/b".to_owned() };
        let at = 1_763_800_000_000_u64;
        assert_eq!(keys.due(&due(0, 255, 3)), pack(&(root.clone(), 17, 0, 3, 255, "a/b")));
        assert_eq!(keys.due(&due(at, 255, 3)), pack(&(root.clone(), 17, 16, at, 255, 3, "a/b")));
        assert_eq!(keys.lease("7"), pack(&(root.clone(), 16, "7")));
        let is_in = |range: &KeyRange, due: &DueKey| {
            let key = keys.due(due);
            assert_eq!(keys.split_due(&key).unwrap(), *due);
            range.begin <= key && key < range.end
        };
        let all = [
            due(0, 0, 3),
            due(0, 200, 3),
            due(0, 9, 4),
            due(at, 16, 3),
            due(at, 32, 1),
            due(at + 1, 0, 1),
            due(1, 1, 1),
        ];
        assert!(all.iter().map(|due| keys.due(due)).is_sorted());
        assert!(all.iter().all(|due| is_in(&keys.due_all(), due)));
        let within = |range: KeyRange| all.each_ref().map(|due| is_in(&range, due));
        assert_eq!(within(keys.due_at_once()), [true, true, true, false, false, false, false]);
        let [from, before] = keys.due_at_once_of(3, 9);
        assert_eq!(within(from), [false, true, false, false, false, false, false]);
        assert_eq!(within(before), [true, false, false, false, false, false, false]);
        assert_eq!(within(keys.due_until(0, at)), [false, false, false, true, true, false, false]);
        assert_eq!(within(keys.due_until(1, at)), [false, false, false, false, false, false, true]);
        // A slice in another part is no key.
        assert!(keys.split_due(&pack(&(root, 17, 2, at, 0, 3, "a/b"))).is_err());
    }
}
