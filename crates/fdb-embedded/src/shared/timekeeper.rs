//! The time keeper: system keys that map times to versions.
//!
//! A cluster's controller writes an entry every ten seconds. The engine writes nothing without commits: a commit adds
//! an entry if the last one is ten seconds old, and a transaction that is about to read the entries adds one. Keys and
//! values are the controller's: the key is the prefix and a tuple of one integer (seconds since 1970), the value is
//! the version in the same form.
//!
//! The first entry of a run also writes the key for the begin of the only shard, which the bindings' locality
//! functions read.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::base::lock::lock;
use crate::base::mutation::Mutation;
use crate::base::tuple::push_integer;
use crate::shared::queue::{CommitQueue, CommitRequest};

/// The begin and the end of the entries.
const MAP: (&[u8], &[u8]) = (b"\xff\x02/timeKeeper/map/", b"\xff\x02/timeKeeper/map0");
/// The key for the format of the entries.
const VERSION_KEY: &[u8] = b"\xff\x02/timeKeeper/version";
const VERSION: &[u8] = b"1";
/// The begins of the shards, as keys below this prefix. The only shard begins at the empty key. The value would name
/// its servers, and is empty.
const SHARDS: (&[u8], &[u8]) = (b"\xff/keyServers/", b"\xff/keyServers0");
/// While this key has a value, no entries are written.
pub(crate) const DISABLE_KEY: &[u8] = b"\xff\x02/timeKeeper/disable";
const EVERY: Duration = Duration::from_secs(10);
/// The age at which entries are removed: a controller's number of entries at one every ten seconds.
const AGE_MAX: Duration = Duration::from_secs(10 * 3_600 * 24 * 30 * 6);
/// The longest wait of a reader for its entry; the committer may be busy with a large batch.
const WAIT_MAX: Duration = Duration::from_secs(5);

thread_local! {
    /// True on an engine's commit thread, which cannot wait for itself.
    static IS_COMMITTER: Cell<bool> = const { Cell::new(false) };
}

#[derive(Default)]
pub(crate) struct TimeKeeper {
    /// `None`: this run has written no entry.
    last: Mutex<Option<Instant>>,
}

impl TimeKeeper {
    fn is_due(&self) -> bool {
        lock(&self.last).is_none_or(|last| last.elapsed() >= EVERY)
    }

    fn is_first(&self) -> bool {
        lock(&self.last).is_none()
    }

    /// Returns the mutations that a batch of this version adds, usually none. `is_empty` returns whether a range has
    /// no record.
    pub(crate) fn entry(
        &self,
        version: i64,
        is_disabled: impl FnOnce() -> bool,
        is_empty: impl FnOnce(&[u8], &[u8]) -> bool,
    ) -> Vec<Mutation> {
        if !self.is_due() || is_disabled() {
            return Vec::new();
        }
        let is_first = lock(&self.last).replace(Instant::now()).is_none();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut value = Vec::new();
        push_integer(&mut value, version);
        let mut mutations =
            vec![Mutation::Set(VERSION_KEY.to_vec(), VERSION.to_vec()), Mutation::Set(map_key(now), value)];
        if is_first {
            mutations.push(Mutation::Set(SHARDS.0.to_vec(), Vec::new()));
        }
        let (first, oldest) = (map_key(Duration::ZERO), map_key(now.saturating_sub(AGE_MAX)));
        if first < oldest && !is_empty(&first, &oldest) {
            mutations.push(Mutation::Clear((first, oldest)));
        }
        mutations
    }
}

fn map_key(time: Duration) -> Vec<u8> {
    let mut key = MAP.0.to_vec();
    push_integer(&mut key, i64::try_from(time.as_secs()).unwrap_or(i64::MAX));
    key
}

/// Returns whether a read from `begin` to `end` covers time keeper keys.
pub(crate) fn is_read(begin: &[u8], end: &[u8]) -> bool {
    is_in(MAP, begin, end) || is_in(SHARDS, begin, end)
}

fn is_in(range: (&[u8], &[u8]), begin: &[u8], end: &[u8]) -> bool {
    begin < range.1 && end >= range.0
}

pub(crate) fn mark_committer() {
    IS_COMMITTER.set(true);
}

/// Writes the keys that a transaction without a read version is about to read from `begin` to `end`: an entry of the
/// last ten seconds, and the shard. If that fails, the transaction reads the existing keys.
pub(crate) fn prepare_read(keeper: &TimeKeeper, queue: &CommitQueue, begin: &[u8], end: &[u8]) {
    let is_due = if is_in(MAP, begin, end) { keeper.is_due() } else { keeper.is_first() };
    if !is_due || IS_COMMITTER.get() {
        return;
    }
    let (sender, receiver) = channel();
    queue.push(CommitRequest {
        is_lock_aware: true,
        read: None,
        read_conflicts: Default::default(),
        write_conflicts: Default::default(),
        // Any batch that writes also adds the entry itself.
        mutations: vec![Mutation::Set(VERSION_KEY.to_vec(), VERSION.to_vec())],
        reports_conflicts: false,
        watches: Vec::new(),
        caller: 0,
        complete: Box::new(move |_| sender.send(()).unwrap_or_default()),
    });
    // After a timeout or a failed commit the read continues.
    let _ = receiver.recv_timeout(WAIT_MAX);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_what_a_controller_writes() {
        let keeper = TimeKeeper::default();
        assert!(keeper.entry(1, || true, |_, _| false).is_empty(), "disabled");
        let entry = keeper.entry(0x0102_0304_0506, || false, |_, _| false);
        let [Mutation::Set(..), Mutation::Set(key, value), Mutation::Set(..), Mutation::Clear((begin, end))] =
            entry.as_slice()
        else {
            panic!("{entry:?}");
        };
        assert_eq!(value, b"\x1a\x01\x02\x03\x04\x05\x06");
        assert!(key.starts_with(b"\xff\x02/timeKeeper/map/\x18") && key.len() == MAP.0.len() + 5, "{key:?}");
        assert!(begin < end && end < key && key.as_slice() < MAP.1);
        assert!(keeper.entry(2, || false, |_, _| false).is_empty(), "not again so soon");
    }

    #[test]
    fn which_reads_look_at_the_entries() {
        assert!(is_read(MAP.0, MAP.1) && is_read(SHARDS.0, SHARDS.0) && is_read(b"", b"\xff\xff"));
        assert!(is_read(b"\xff\x02/timeKeeper/map/\x15\x01", b"\xff\x02/timeKeeper/map/\x15\x01\0"));
        assert!(!is_read(b"", b"\xff") && !is_read(MAP.1, b"\xff\x02/v") && !is_read(b"\xff", b"\xff\x02/a"));
    }
}
