//! The place of a database's by-seq, `last_seq` and counters: one place, or the buckets of a sharded database.
//!
//! A process writes to one bucket of a database for its whole life, and reads all of them. Every key of a bucket is
//! written without being read, so neither processes nor transactions conflict in it, whichever buckets they choose.

use std::sync::Arc;

use foundationdb::options::MutationType;

use crate::error::Result;
use crate::keys::{BucketKeys, Counter, Keys};
use crate::proto;
use crate::records::decode_counter;
use crate::seq::Seq;
use crate::transaction::{Quiet, Transaction};

pub use crate::keys::SHARDS_MAX;

/// The keys of a bucket's `last_seq` and counters.
const META_KEYS_MAX: usize = 1 + Counter::ALL.len();

/// The choice of the buckets that a process writes to.
#[derive(Debug, Clone, Copy)]
pub enum Writer {
    /// The bucket of this number, modulo the number of buckets, in each database.
    Fixed(u32),
    /// A different bucket in each database, so that processes that share a bucket in one database do not share one in
    /// all.
    Drawn(u64),
}

impl Writer {
    /// Creates the choice. `shard`: see `shard` of the layer's options.
    pub fn new(shard: Option<u32>, random: [u8; 16]) -> Writer {
        let drawn = random.iter().fold(0_u64, |drawn, byte| drawn.rotate_left(8) ^ u64::from(*byte));
        shard.map_or(Writer::Drawn(drawn), Writer::Fixed)
    }

    fn bucket(self, namespace: u64, buckets: u32) -> u32 {
        let number = match self {
            Writer::Fixed(number) => number,
            // The multiplication carries differences of low bits into the high bits.
            Writer::Drawn(drawn) => ((drawn ^ namespace).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32,
        };
        number % buckets.max(1)
    }
}

#[derive(Debug, Clone)]
pub struct Buckets {
    all: Arc<[BucketKeys]>,
    own: BucketKeys,
    own_number: u32,
}

impl Buckets {
    pub fn of_record(keys: &Keys, record: &proto::DatabaseRecord, writer: Writer) -> Buckets {
        let (shards, count) = (record.shards, record.shards.max(1));
        let own_number = writer.bucket(record.namespace, count);
        let all = (0..count).map(|number| keys.bucket(shards, number)).collect();
        Buckets { all, own: keys.bucket(shards, own_number), own_number }
    }

    /// Returns all buckets, by number. A database without shards has one.
    pub fn all(&self) -> &Arc<[BucketKeys]> {
        &self.all
    }

    /// Returns the bucket that this process writes to.
    pub fn own(&self) -> &BucketKeys {
        &self.own
    }

    /// Returns the number of that bucket, as documents' records store it.
    pub fn own_number(&self) -> u32 {
        self.own_number
    }

    /// Returns the bucket of a number in a document's record; `None`: there is none.
    pub fn of(&self, number: u32) -> Option<&BucketKeys> {
        self.all.get(usize::try_from(number).ok()?)
    }

    /// Begins to read the newest sequence. `begin`: the least, which precedes all changes of the epoch.
    pub fn begin_last_seq(&self, trx: &Transaction, begin: Seq) -> impl Future<Output = Result<Seq>> + Send + use<> {
        let reads: Vec<_> = self.all.iter().map(|bucket| trx.get(&bucket.last_seq(), true)).collect();
        async move {
            let mut newest = begin;
            for read in reads {
                if let Some(stamp) = read.await? {
                    newest = newest.max(Seq::from_slice(begin.incarnation(), &stamp)?);
                }
            }
            Ok(newest)
        }
    }

    /// Begins to read a counter's sum over all buckets.
    pub fn begin_count(&self, trx: &Transaction, counter: Counter) -> impl Future<Output = Result<i64>> + Send + use<> {
        let buckets = if is_rare(counter) { self.all.get(..1).unwrap_or_default() } else { &self.all };
        let reads: Vec<_> = buckets.iter().map(|bucket| trx.get(&bucket.counter(counter), true)).collect();
        async move {
            let mut sum = 0_i64;
            for read in reads {
                sum = sum.wrapping_add(decode_counter(read.await?.as_deref())?);
            }
            Ok(sum)
        }
    }

    /// Begins to read the newest sequence and the sums of all counters, in the order of [`Counter::ALL`]: one range of
    /// each bucket.
    pub fn begin_meta<'t>(
        &self,
        trx: &'t Transaction,
        begin: Seq,
    ) -> impl Future<Output = Result<(Seq, [i64; Counter::ALL.len()])>> + Send + use<'t> {
        let buckets = self.all.clone();
        let read = |bucket: &BucketKeys| trx.range(&bucket.meta(), true).all(META_KEYS_MAX);
        let reads: Vec<_> = buckets.iter().map(read).collect();
        async move {
            let (mut newest, mut sums) = (begin, [0_i64; Counter::ALL.len()]);
            for (bucket, read) in buckets.iter().zip(reads) {
                for row in read.await?.iter() {
                    match bucket.meta_parse(row.key())? {
                        None => newest = newest.max(Seq::from_slice(begin.incarnation(), row.value())?),
                        Some(counter) => {
                            let sum = Counter::ALL.iter().position(|other| *other == counter);
                            if let Some(sum) = sum.and_then(|at| sums.get_mut(at)) {
                                *sum = sum.wrapping_add(decode_counter(Some(row.value()))?);
                            }
                        }
                    }
                }
            }
            Ok((newest, sums))
        }
    }

    /// Begins to read the sums of a partition's counters: one range of each bucket.
    pub fn begin_partition<'t>(
        &self,
        trx: &'t Transaction,
        partition: &str,
    ) -> impl Future<Output = Result<Vec<(Counter, i64)>>> + Send + use<'t> {
        let buckets = self.all.clone();
        let read = |bucket: &BucketKeys| trx.range(&bucket.partition(partition), true).all(Counter::ALL.len());
        let reads: Vec<_> = buckets.iter().map(read).collect();
        async move {
            let mut found = Vec::new();
            for (bucket, read) in buckets.iter().zip(reads) {
                for row in read.await?.iter() {
                    found.push((bucket.partition_parse(row.key())?.1, decode_counter(Some(row.value()))?));
                }
            }
            Ok(found)
        }
    }

    /// Begins to count the documents in the partitions whose ids precede those of this one. `None`: these partitions
    /// have more counters in a bucket than the bound on this read.
    pub fn begin_partitions_before<'t>(
        &self,
        trx: &'t Transaction,
        partition: &str,
        counters_max: usize,
    ) -> impl Future<Output = Result<Option<u64>>> + Send + use<'t> {
        let (buckets, own) = (self.all.clone(), format!("{partition}:"));
        let read = |range| trx.range(&range, true).first(counters_max);
        let reads: Vec<_> = buckets.iter().map(|bucket| bucket.partitions_around(partition).map(read)).collect();
        async move {
            let mut sum = 0_i64;
            for (bucket, reads) in buckets.iter().zip(reads) {
                for read in reads {
                    let rows = read.await?;
                    if rows.len() == counters_max {
                        return Ok(None);
                    }
                    for row in rows.iter() {
                        let (other, counter) = bucket.partition_parse(row.key())?;
                        if counter == Counter::Documents && format!("{other}:") < own {
                            sum = sum.wrapping_add(decode_counter(Some(row.value()))?);
                        }
                    }
                }
            }
            Ok(Some(sum.max(0) as u64))
        }
    }

    /// Adds to a counter of a partition, as [`Buckets::add`] does. A counter that becomes 0 leaves no key.
    pub fn add_of_partition(&self, trx: &Transaction, partition: &str, counter: Counter, delta: i64) -> Result<()> {
        let key = self.own.of_partition(partition, counter);
        Quiet(trx).atomic(&key, &delta.to_le_bytes(), MutationType::Add)?;
        Quiet(trx).atomic(&key, &0_i64.to_le_bytes(), MutationType::CompareAndClear)
    }

    /// Adds to a counter, without a read and without a write conflict range.
    pub fn add(&self, trx: &Transaction, counter: Counter, delta: i64) -> Result<()> {
        let bucket = if is_rare(counter) { self.all.first().unwrap_or(&self.own) } else { &self.own };
        Quiet(trx).atomic(&bucket.counter(counter), &delta.to_le_bytes(), MutationType::Add)
    }
}

/// Returns whether a counter is kept in the first bucket alone. Purges are rare, and each page of a feed reads their
/// number.
fn is_rare(counter: Counter) -> bool {
    matches!(counter, Counter::Purges)
}
