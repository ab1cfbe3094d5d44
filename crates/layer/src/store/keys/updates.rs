//! Keys of what `_db_updates` tells: directly under the root, since it is of all databases.

use crate::error::Result;
use crate::store::keys::tuple::{TUPLE_STRING, TUPLE_VERSIONSTAMP, bad_key, behind, put_text, take_text, with_int};
use crate::store::keys::{KeyRange, RootKeys};
use crate::store::seq::STAMP_BYTES;

// Under the root.
const DATABASE_EVENTS: u64 = 4;
const DATABASES_UPDATED: u64 = 5;
const NEWEST_UPDATE: u64 = 6;

impl RootKeys {
    /// All creations and deletions.
    pub(crate) fn database_events(&self) -> KeyRange {
        KeyRange { begin: with_int(&self.prefix, DATABASE_EVENTS), end: with_int(&self.prefix, DATABASE_EVENTS + 1) }
    }

    /// Those after one stamp, up to another one that is among them.
    pub(crate) fn database_events_between(&self, after: &[u8; STAMP_BYTES], until: &[u8; STAMP_BYTES]) -> KeyRange {
        let behind = |stamp: &[u8]| {
            let mut key = with_int(&self.prefix, DATABASE_EVENTS);
            key.push(TUPLE_VERSIONSTAMP);
            key.extend_from_slice(stamp);
            key.push(0);
            key
        };
        KeyRange { begin: behind(after), end: behind(until) }
    }

    /// For SET_VERSIONSTAMPED_KEY: the stamp's place, then its offset (4 bytes little-endian).
    pub(crate) fn database_event_stamped(&self, user_version: u16) -> Vec<u8> {
        let mut key = with_int(&self.prefix, DATABASE_EVENTS);
        key.push(TUPLE_VERSIONSTAMP);
        let offset = key.len() as u32;
        key.extend_from_slice(&[0xff; STAMP_BYTES - 2]);
        key.extend_from_slice(&user_version.to_be_bytes());
        key.extend_from_slice(&offset.to_le_bytes());
        key
    }

    /// The stamp in a key of [`RootKeys::database_events`].
    pub(crate) fn database_event_stamp(&self, key: &[u8]) -> Result<[u8; STAMP_BYTES]> {
        let rest = behind(key, &with_int(&self.prefix, DATABASE_EVENTS));
        match rest.split_first() {
            Some((&TUPLE_VERSIONSTAMP, stamp)) => stamp.try_into().map_err(|_| bad_key()),
            _ => Err(bad_key()),
        }
    }

    /// Holds the stamp of a database's newest change.
    pub(crate) fn database_updated(&self, name: &str) -> Vec<u8> {
        let mut key = with_int(&self.prefix, DATABASES_UPDATED);
        put_text(&mut key, TUPLE_STRING, name.as_bytes());
        key
    }

    pub(crate) fn databases_updated(&self) -> KeyRange {
        KeyRange {
            begin: with_int(&self.prefix, DATABASES_UPDATED),
            end: with_int(&self.prefix, DATABASES_UPDATED + 1),
        }
    }

    /// The name in a key of [`RootKeys::databases_updated`].
    pub(crate) fn database_updated_name(&self, key: &[u8]) -> Result<String> {
        take_text(behind(key, &with_int(&self.prefix, DATABASES_UPDATED)))
    }

    /// Holds the stamp of the newest of all: what followers of `_db_updates` watch.
    pub(crate) fn newest_update(&self) -> Vec<u8> {
        with_int(&self.prefix, NEWEST_UPDATE)
    }
}
