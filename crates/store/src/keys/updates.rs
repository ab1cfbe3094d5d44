//! Keys of `_db_updates`. They lie directly under the root, since they belong to all databases.

use crate::error::Result;
use crate::keys::SHARDS_MAX;
use crate::keys::tuple::{
    TUPLE_STRING, bad_key, behind, put_int, put_stamp, put_text, stamped, take_int, take_stamp, take_text, under,
    with_int,
};
use crate::keys::{KeyRange, RootKeys};
use crate::seq::Stamp;

// Under the root.
const DATABASE_EVENTS: u64 = 4;
const DATABASES_UPDATED: u64 = 10;
const NEWEST_UPDATES: u64 = 11;

impl RootKeys {
    /// Returns the range of all creations and deletions.
    pub fn database_events(&self) -> KeyRange {
        KeyRange { begin: with_int(&self.prefix, DATABASE_EVENTS), end: with_int(&self.prefix, DATABASE_EVENTS + 1) }
    }

    /// Returns the range of those after one stamp, up to and including another.
    pub fn database_events_between(&self, after: &Stamp, until: &Stamp) -> KeyRange {
        let behind = |stamp: &Stamp| {
            let mut key = with_int(&self.prefix, DATABASE_EVENTS);
            put_stamp(&mut key, stamp);
            key.push(0);
            key
        };
        KeyRange { begin: behind(after), end: behind(until) }
    }

    /// Returns the key for SET_VERSIONSTAMPED_KEY.
    pub fn database_event_stamped(&self, epoch: u32) -> Vec<u8> {
        stamped(with_int(&self.prefix, DATABASE_EVENTS), epoch, 0)
    }

    pub fn database_event_stamp(&self, key: &[u8]) -> Result<Stamp> {
        take_stamp(behind(key, &with_int(&self.prefix, DATABASE_EVENTS)))
    }

    /// Returns the key of the stamp of the last change of a database, or of one of its shards.
    pub fn database_updated(&self, name: &str, shard: u32) -> Vec<u8> {
        let mut key = self.bucket(DATABASES_UPDATED, bucket_of(name, shard));
        put_text(&mut key, TUPLE_STRING, name.as_bytes());
        key
    }

    /// Returns the range of these keys from one bucket to another, inclusive.
    pub fn databases_updated(&self, first: u8, last: u8) -> KeyRange {
        let begin = self.bucket(DATABASES_UPDATED, first);
        KeyRange { begin, end: under(&self.bucket(DATABASES_UPDATED, last)).end }
    }

    /// Parses a key of [`RootKeys::databases_updated`] into its name and shard.
    pub fn database_updated_parse(&self, key: &[u8]) -> Result<(String, u32)> {
        let (bucket, rest) = take_int(behind(key, &with_int(&self.prefix, DATABASES_UPDATED)))?;
        let name = take_text(rest)?;
        let bucket = u8::try_from(bucket).map_err(|_| bad_key())?;
        let shard = u32::from(bucket.wrapping_sub(bucket_of(&name, 0)).wrapping_mul(SHARD_STEP_INVERSE));
        if shard < SHARDS_MAX { Ok((name, shard)) } else { Err(bad_key()) }
    }

    /// Returns the key of the newest stamp of all databases whose names are in a bucket. Followers of `_db_updates`
    /// watch these keys.
    pub fn newest_update(&self, bucket: u8) -> Vec<u8> {
        self.bucket(NEWEST_UPDATES, bucket)
    }

    /// Returns the range of the newest stamps of all buckets.
    pub fn newest_updates(&self) -> KeyRange {
        KeyRange { begin: with_int(&self.prefix, NEWEST_UPDATES), end: with_int(&self.prefix, NEWEST_UPDATES + 1) }
    }

    pub fn newest_update_bucket(&self, key: &[u8]) -> Result<u8> {
        match take_int(behind(key, &with_int(&self.prefix, NEWEST_UPDATES)))? {
            (bucket, []) => u8::try_from(bucket).map_err(|_| bad_key()),
            _ => Err(bad_key()),
        }
    }

    /// Returns the prefix of a bucket's keys in a subspace of the root.
    pub(super) fn bucket(&self, subspace: u64, bucket: u8) -> Vec<u8> {
        let mut key = with_int(&self.prefix, subspace);
        put_int(&mut key, u64::from(bucket));
        key
    }
}

/// The number of keys that the commits of all databases share, each database by the hash of its name.
pub const BUCKETS: usize = 256;

/// The distance between the buckets of a database's shards. Odd, so that no two shards share a bucket; large, so that
/// buckets of one database are not neighbours.
const SHARD_STEP: u8 = 37;

/// The multiplicative inverse of the step, in 8 bits.
const SHARD_STEP_INVERSE: u8 = 173;

/// Returns the bucket of a database's shard; a database without shards has shard 0. It is the bucket of the name, plus
/// the steps of the shard.
pub fn bucket_of(name: &str, shard: u32) -> u8 {
    bucket_of_bytes(name.as_bytes()).wrapping_add(SHARD_STEP.wrapping_mul(shard as u8))
}

/// Returns the bucket of a byte string: the bytes of its hash combined by XOR.
pub(super) fn bucket_of_bytes(bytes: &[u8]) -> u8 {
    hash_of(bytes).to_be_bytes().into_iter().fold(0, |bucket, byte| bucket ^ byte)
}

/// Returns the 32-bit FNV-1a hash of a byte string.
pub(super) fn hash_of(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;
    use foundationdb::tuple::{Bytes, pack};

    #[test]
    fn keys_of_buckets_are_tuples() {
        let keys = RootKeys::new(b"r");
        let root = Bytes::from(b"r".to_vec());
        // Never to be changed: names would be looked up in other buckets than they were written to.
        assert_eq!(["", "a", "db", "_replicator"].map(|name| bucket_of(name, 0)), [197, 237, 78, 25]);
        assert_eq!([1, 2, 63].map(|shard| bucket_of("db", shard)), [115, 152, 105]);
        let bucket = bucket_of("db", 0);
        assert_eq!(keys.database_updated("db", 0), pack(&(root.clone(), 10, i32::from(bucket), "db")));
        assert_eq!(keys.database_updated("db", 2), pack(&(root.clone(), 10, 152, "db")));
        assert_eq!(keys.newest_update(0), pack(&(root.clone(), 11, 0)));
        assert_eq!(keys.newest_update(200), pack(&(root, 11, 200)));
        let (mut shards, mut strays) = (Vec::new(), 0);
        for bucket in 0..=255 {
            let mut key = keys.bucket(DATABASES_UPDATED, bucket);
            put_text(&mut key, TUPLE_STRING, b"db");
            match keys.database_updated_parse(&key) {
                Ok((name, shard)) => {
                    assert_eq!((&*name, keys.database_updated("db", shard)), ("db", key));
                    shards.push(shard);
                }
                Err(_) => strays += 1,
            }
        }
        shards.sort_unstable();
        assert_eq!((shards, strays), ((0..SHARDS_MAX).collect(), 256 - SHARDS_MAX), "each shard has one");
        for bucket in 0..=255 {
            assert_eq!(keys.newest_update_bucket(&keys.newest_update(bucket)).unwrap(), bucket);
        }
        assert!(keys.newest_update_bucket(&[keys.newest_update(0), vec![0]].concat()).is_err());
        let all = keys.databases_updated(0, 255);
        let some = keys.databases_updated(bucket, bucket);
        for range in [all, some] {
            let key = keys.database_updated("db", 0);
            assert!(range.begin <= key && key < range.end);
        }
    }

    #[test]
    fn names_are_spread_over_the_buckets() {
        let mut counts = [0; BUCKETS];
        (0..25_600).for_each(|n| counts[usize::from(bucket_of(&format!("db-{n}"), 0))] += 1);
        assert!(counts.iter().all(|count| (50..200).contains(count)), "{counts:?}");
    }

    /// The marks of one moment must not lie beside one another: storage servers divide keys by ranges.
    #[test]
    fn marks_of_one_moment_are_spread_over_the_buckets() {
        let (keys, at_ms) = (RootKeys::new(b"r"), 1_700_000_000_000);
        let ranges: Vec<KeyRange> = keys.marks_until(at_ms + 1).collect();
        let mut counts = [0; BUCKETS - 1];
        for number in 0..25_600_u64 {
            let mut token = [7; 16];
            token[..8].copy_from_slice(&number.to_be_bytes().map(|byte| byte.max(1)));
            token[8..].copy_from_slice(&(number * 0x9e37_79b9 + 1).to_be_bytes().map(|byte| byte.max(1)));
            let mark = keys.mark(at_ms, &token);
            let at = ranges.iter().position(|range| range.begin <= mark && mark < range.end).expect("a bucket");
            counts[at] += 1;
            assert_eq!(keys.mark_time(&mark).unwrap(), at_ms);
            assert!(keys.marks().begin <= mark && mark < keys.marks().end);
            assert!(
                !keys.marks_until(at_ms).any(|range| range.begin <= mark && mark < range.end),
                "a mark of its time"
            );
        }
        assert!(counts.iter().all(|count| (40..250).contains(count)), "{counts:?}");
        assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].begin) && ranges[0].begin > keys.marks_removed());
    }
}
