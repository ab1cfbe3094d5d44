//! What a restored copy must go through before it is served.
//!
//! The copy's changes go on from an older state than the one that followers have seen, so a sequence of theirs must not
//! mean anything in it. Every database gets another incarnation: its by-seq entries move there, and a feed that is given a
//! sequence of the old one begins at the beginning.

use std::sync::Arc;

use foundationdb::Database as Fdb;
use prost::Message;

use crate::error::{Error, Result};
use crate::keys::{KeyRange, Keys, RootKeys};
use crate::layer::random_id;
use crate::metrics::Metrics;
use crate::proto;
use crate::read::page_of;
use crate::records::check_format;
use crate::seq::Seq;
use crate::transaction::{self, Attempt, Operation, Quiet, Transaction};

/// Entries moved in one transaction are at most this many, and this many bytes of keys and values together (one entry may
/// pass it by its own size of a few kilobytes): well below FoundationDB's bounds.
const PAGE_ENTRIES: usize = 2_000;
const PAGE_BYTES_MAX: usize = 400_000;

/// Bits of an incarnation that tell two restores of one backup apart.
const TAG_BITS: u32 = 24;

/// What [`begin_incarnations`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Renewed {
    /// Databases with a new incarnation.
    pub databases: u64,
    /// By-seq entries that were moved.
    pub entries: u64,
}

/// The roots of all layers in a store, in bytewise order.
///
/// Reads one key a root, and one for each key of others' that begins like a root.
///
/// # Errors
/// [`Error::FormatTooNew`] for a root that this program does not know, [`Error::Storage`].
pub async fn roots(db: &Fdb) -> Result<Vec<Vec<u8>>> {
    let metrics = Arc::new(Metrics::default());
    let mut roots = Vec::new();
    let mut rest = RootKeys::every_root();
    while let Some((key, instance)) = transaction::read(db, &metrics, &mut FirstRoot { range: &rest }).await? {
        rest.begin = match instance {
            // Behind all keys under this root. What follows may be the root that has this one as its beginning.
            Some((root, is_ours)) => {
                let next = RootKeys::new(&root).end();
                roots.extend(is_ours.then_some(root));
                next
            }
            None => [key.as_slice(), &[0]].concat(),
        };
    }
    Ok(roots)
}

/// Gives every database under a root another incarnation. To be called on a restored copy before it is served: until a
/// database is done its feeds lack what has been moved.
///
/// In transactions of bounded size; after a failure it may be called again, and no entry is lost. `progress` is called with
/// the number of entries moved so far.
///
/// # Errors
/// [`Error::FormatTooNew`], [`Error::Corrupt`] for a record that cannot be read, [`Error::Storage`].
pub async fn begin_incarnations(db: &Fdb, root: &[u8], mut progress: impl FnMut(u64) + Send) -> Result<Renewed> {
    let metrics = Arc::new(Metrics::default());
    let keys = RootKeys::new(root);
    let mut renewed = Renewed::default();
    let mut records = keys.databases();
    while let Some((key, record)) = transaction::read(db, &metrics, &mut FirstRecord { range: &records }).await? {
        let incarnation = next_incarnation(&record, tag()?);
        let namespace = keys.namespace(record.namespace);
        for mut range in around(&namespace, incarnation) {
            loop {
                let mut page = MovePage { keys: &namespace, incarnation, range: &range, attempted: None };
                let Some((moved, last)) = transaction::write(db, &metrics, &mut page).await? else { break };
                renewed.entries += moved;
                progress(renewed.entries);
                range.begin = [last.as_slice(), &[0]].concat();
            }
        }
        let mut settle = Settle { key: &key, before: &record, incarnation };
        transaction::write(db, &metrics, &mut settle).await?;
        renewed.databases += 1;
        records.begin = [key.as_slice(), &[0]].concat();
    }
    transaction::write(db, &metrics, &mut RenewUpdates { keys: &keys, incarnation: tag()? }).await?;
    Ok(renewed)
}

/// By-seq entries of all incarnations but one.
fn around(keys: &Keys, incarnation: u64) -> [KeyRange; 2] {
    let (all, own) = (keys.by_seq_any(), keys.by_seq_all(incarnation));
    [KeyRange { begin: all.begin, end: own.begin }, KeyRange { begin: own.end, end: all.end }]
}

/// The namespace stands where it always does, and below it the restores are counted, so that no incarnation is that of
/// another instance, or the one before. Above it stands a tag: a backup can be restored twice, and the histories that follow
/// are two.
fn next_incarnation(record: &proto::DatabaseRecord, tag: u64) -> u64 {
    let restores = (record.incarnation & 0xffff) % 0xffff + 1;
    let instance = record.namespace << 16;
    let free_bits = instance.leading_zeros().min(TAG_BITS);
    let tag = tag.checked_shl(u64::BITS - free_bits).unwrap_or(0);
    tag | instance | restores
}

fn tag() -> Result<u64> {
    let random = random_id()?;
    Ok(random.iter().fold(0, |tag, byte| tag << 8 | u64::from(*byte)))
}

struct FirstRoot<'a> {
    range: &'a KeyRange,
}

impl Operation for FirstRoot<'_> {
    /// A key, and the root that it lies under if it has that form; whether that is a layer's.
    type Output = Option<(Vec<u8>, Option<(Vec<u8>, bool)>)>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let page = trx.get_range(&page_of(self.range, 1, false), 1, true).await?;
        let Some(key) = page.first().map(|row| row.key().to_vec()) else { return Ok(None) };
        let Ok(root) = RootKeys::root_of(&key) else { return Ok(Some((key, None))) };
        let bytes = trx.get(&RootKeys::new(&root).instance(), true).await?;
        let record = bytes.and_then(|bytes| proto::Instance::decode(&*bytes).ok());
        // Anything may stand under a key of this form in a store that is shared.
        let record = record.filter(|record| record.uuid.len() == 16 && record.format_version > 0);
        if let Some(record) = &record {
            check_format("the store", record.format_version)?;
        }
        Ok(Some((key, Some((root, record.is_some())))))
    }
}

struct FirstRecord<'a> {
    range: &'a KeyRange,
}

impl Operation for FirstRecord<'_> {
    type Output = Option<(Vec<u8>, proto::DatabaseRecord)>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let page = trx.get_range(&page_of(self.range, 1, false), 1, true).await?;
        let Some(row) = page.first() else { return Ok(None) };
        let record = proto::DatabaseRecord::decode(row.value())?;
        check_format("the database", record.format_version)?;
        Ok(Some((row.key().to_vec(), record)))
    }
}

/// Sequences of `_db_updates` must mean nothing in the copy either.
struct RenewUpdates<'a> {
    keys: &'a RootKeys,
    incarnation: u64,
}

impl Operation for RenewUpdates<'_> {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<()> {
        let key = self.keys.instance();
        let Some(bytes) = trx.get(&key, false).await? else { return Ok(()) };
        let record = proto::Instance { incarnation: self.incarnation, ..proto::Instance::decode(&*bytes)? };
        trx.set(&key, &record.encode_to_vec());
        Ok(())
    }
}

struct MovePage<'a> {
    keys: &'a Keys,
    incarnation: u64,
    range: &'a KeyRange,
    /// What the last attempt would have moved.
    attempted: Option<MovedPage>,
}

struct MovedPage {
    /// The first key that was to go.
    first: Vec<u8>,
    moved: u64,
    last: Vec<u8>,
}

impl Operation for MovePage<'_> {
    /// Entries moved, and the last key looked at; `None`: there was none.
    type Output = Option<(u64, Vec<u8>)>;

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<Self::Output> {
        // An attempt that was committed after all has moved its page: it counts, and is not looked for again.
        if let Some(MovedPage { first, moved, last }) = &self.attempted
            && attempt.maybe_committed
            && trx.get(first, false).await?.is_none()
        {
            return Ok(Some((*moved, last.clone())));
        }
        let page = trx.get_range(&page_of(self.range, PAGE_ENTRIES, false), 1, false).await?;
        let quiet = Quiet(trx);
        let mut bytes = 0;
        let (mut moved, mut first, mut last) = (0, None, None);
        for row in &page {
            // What is no entry stays, for the checker to tell of.
            if let Ok(seq) = self.keys.by_seq_parse(row.key()) {
                let key = self.keys.by_seq(&Seq::new(self.incarnation, *seq.stamp()));
                quiet.set(&key, row.value())?;
                quiet.clear(row.key())?;
                bytes += 2 * key.len() + row.value().len();
                moved += 1;
                first = first.or(Some(row.key()));
            }
            last = Some(row.key());
            if bytes > PAGE_BYTES_MAX {
                break;
            }
        }
        self.attempted =
            first.zip(last).map(|(first, last)| MovedPage { first: first.to_vec(), moved, last: last.to_vec() });
        Ok(last.map(|last| (moved, last.to_vec())))
    }
}

struct Settle<'a> {
    key: &'a [u8],
    before: &'a proto::DatabaseRecord,
    incarnation: u64,
}

impl Operation for Settle<'_> {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<()> {
        let bytes = trx.get(self.key, false).await?.ok_or(Error::DatabaseNotFound)?;
        let mut record = proto::DatabaseRecord::decode(&*bytes)?;
        if attempt.maybe_committed && record.incarnation == self.incarnation {
            return Ok(());
        }
        if record != *self.before {
            return Err(Error::Corrupt("a database was changed while it was being restored".into()));
        }
        record.incarnation = self.incarnation;
        trx.set(self.key, &record.encode_to_vec());
        trx.update_metadata_version();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(namespace: u64, incarnation: u64) -> proto::DatabaseRecord {
        proto::DatabaseRecord { namespace, incarnation, ..proto::DatabaseRecord::default() }
    }

    proptest! {
        #[test]
        fn incarnations_differ(
            namespace in 1..1_u64 << 40, other in 1..1_u64 << 24, restores in 0..0x1_0000_u64, tags: [u64; 3]
        ) {
            let first = namespace << 16 | restores;
            let second = next_incarnation(&record(namespace, first), tags[0]);
            let third = next_incarnation(&record(namespace, second), tags[1]);
            prop_assert!(first != second && second != third);
            let twice = next_incarnation(&record(namespace, first), tags[0] ^ 1);
            prop_assert!(twice != second, "two restores of one backup");
            // A database that was deleted and created again.
            let namespace = namespace & 0xff_ffff;
            prop_assume!(namespace != other);
            let here = next_incarnation(&record(namespace, first), tags[0]);
            let there = next_incarnation(&record(other, other << 16), tags[2]);
            prop_assert!(here != there && here != other << 16);
        }
    }
}
