//! The keys that every write of documents changes: by-seq, `last_seq` and counters.
//!
//! They lie directly under {NS}, or, in a database with shards, in that many buckets below it: the same keys with a
//! longer prefix. A database thus has one hot end of a key range for each bucket, and the by-seq of each bucket keeps
//! these ends apart.

use crate::error::Result;
use crate::keys::tuple::{
    TUPLE_STRING, bad_key, behind, put_int, put_stamp, put_text, stamped, take_int, take_stamp, take_text_at, under,
    with_int,
};
use crate::keys::{BY_SEQ, Counter, KeyRange, Keys, LAST_SEQ, META, PARTITIONS, SHARDED, Subspace};
use crate::seq::Seq;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketKeys {
    prefix: Vec<u8>,
}

impl Keys {
    /// Returns the keys of a bucket of a database with this many shards. A database without shards (0 or 1) has one
    /// bucket, {NS} itself.
    pub fn bucket(&self, shards: u32, number: u32) -> BucketKeys {
        let prefix = if shards < 2 { self.prefix.clone() } else { self.two(SHARDED, number.into()) };
        BucketKeys { prefix }
    }

    /// Returns the number of the bucket that a key lies in, and its subspace there: [`Subspace::Meta`],
    /// [`Subspace::BySeq`] or [`Subspace::Partitions`].
    pub fn split_bucket(&self, key: &[u8]) -> Result<(u64, Subspace)> {
        let (number, rest) = take_int(behind(key, &self.one(SHARDED)))?;
        let bucket = BucketKeys { prefix: self.two(SHARDED, number) };
        match take_int(rest)? {
            (META, rest) => take_meta(rest).map(|_| (number, Subspace::Meta)),
            (BY_SEQ, _) => bucket.by_seq_parse(key).map(|_| (number, Subspace::BySeq)),
            (PARTITIONS, _) => bucket.partition_parse(key).map(|_| (number, Subspace::Partitions)),
            _ => Err(bad_key()),
        }
    }
}

/// Parses the rest of a key behind META: a counter, or `last_seq` (`None`).
pub(super) fn take_meta(rest: &[u8]) -> Result<Option<Counter>> {
    match take_int(rest)? {
        (LAST_SEQ, []) => Ok(None),
        (number, []) => {
            let counter = Counter::ALL.into_iter().find(|counter| *counter as u64 == number);
            counter.map(Some).ok_or_else(bad_key)
        }
        _ => Err(bad_key()),
    }
}

impl BucketKeys {
    pub fn all(&self) -> KeyRange {
        under(&self.prefix)
    }

    pub fn last_seq(&self) -> Vec<u8> {
        self.two(META, LAST_SEQ)
    }

    pub fn counter(&self, counter: Counter) -> Vec<u8> {
        self.two(META, counter as u64)
    }

    /// Returns the range of `last_seq` and all counters.
    pub fn meta(&self) -> KeyRange {
        KeyRange { begin: with_int(&self.prefix, META), end: with_int(&self.prefix, META + 1) }
    }

    /// Returns the counter of a key of that range; `None`: `last_seq`.
    pub fn meta_parse(&self, key: &[u8]) -> Result<Option<Counter>> {
        take_meta(behind(key, &with_int(&self.prefix, META)))
    }

    pub fn of_partition(&self, partition: &str, counter: Counter) -> Vec<u8> {
        let mut key = self.partition_prefix(partition);
        put_int(&mut key, counter as u64);
        key
    }

    pub fn partition(&self, partition: &str) -> KeyRange {
        under(&self.partition_prefix(partition))
    }

    /// Returns the counters of partitions in two ranges that include every partition whose ids precede those of this
    /// one. Partitions are sorted by name, and the ids of a partition whose name begins with this one's may precede
    /// this one's ids.
    pub fn partitions_around(&self, partition: &str) -> [KeyRange; 2] {
        let KeyRange { begin, end } = self.partition(partition);
        let mut colon = with_int(&self.prefix, PARTITIONS);
        put_text(&mut colon, TUPLE_STRING, format!("{partition}:").as_bytes());
        [KeyRange { begin: self.partitions().begin, end: begin }, KeyRange { begin: end, end: colon }]
    }

    pub fn partitions(&self) -> KeyRange {
        KeyRange { begin: with_int(&self.prefix, PARTITIONS), end: with_int(&self.prefix, PARTITIONS + 1) }
    }

    pub fn partition_parse(&self, key: &[u8]) -> Result<(String, Counter)> {
        let (partition, rest) = take_text_at(behind(key, &with_int(&self.prefix, PARTITIONS)))?;
        Ok((partition, take_meta(rest)?.ok_or_else(bad_key)?))
    }

    fn partition_prefix(&self, partition: &str) -> Vec<u8> {
        let mut key = with_int(&self.prefix, PARTITIONS);
        put_text(&mut key, TUPLE_STRING, partition.as_bytes());
        key
    }

    pub fn by_seq_all(&self, incarnation: u64) -> KeyRange {
        under(&self.two(BY_SEQ, incarnation))
    }

    /// Returns the range of the entries of every incarnation.
    pub fn by_seq_any(&self) -> KeyRange {
        KeyRange { begin: with_int(&self.prefix, BY_SEQ), end: with_int(&self.prefix, BY_SEQ + 1) }
    }

    pub fn by_seq(&self, seq: &Seq) -> Vec<u8> {
        let mut key = self.two(BY_SEQ, seq.incarnation());
        put_stamp(&mut key, seq.stamp());
        key
    }

    pub fn by_seq_after(&self, seq: &Seq) -> KeyRange {
        let mut begin = self.by_seq(seq);
        begin.push(0);
        KeyRange { begin, end: self.by_seq_all(seq.incarnation()).end }
    }

    /// Returns the key for SET_VERSIONSTAMPED_KEY.
    pub fn by_seq_stamped(&self, incarnation: u64, epoch: u32, user_version: u16) -> Vec<u8> {
        stamped(self.two(BY_SEQ, incarnation), epoch, user_version)
    }

    pub fn by_seq_parse(&self, key: &[u8]) -> Result<Seq> {
        let (incarnation, rest) = take_int(behind(key, &with_int(&self.prefix, BY_SEQ)))?;
        Ok(Seq::new(incarnation, take_stamp(rest)?))
    }

    fn two(&self, subspace: u64, second: u64) -> Vec<u8> {
        let mut key = with_int(&self.prefix, subspace);
        put_int(&mut key, second);
        key
    }
}
