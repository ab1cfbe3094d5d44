//! What an older program left is used as it is, once its record says that no older program may write beside.
//!
//! Format 1 (a day of development) had one leaf a document. It named a sealed segment of ancestors by its newest generation,
//! `ANCESTORS/{generation}`, and neither a leaf nor a segment said which segment is the next older one: with one line, the
//! generations tell. Format 2 names segments by revision, since a tree has several lines. And format 1 did not count what
//! superseded bodies take. All else that came since was added beside. So format 1 has nothing that format 2 cannot say: what
//! lies there is read for what it means (`document::tree::Segments`) and stays where it is for as long as it is needed, what is
//! written is of format 2, and the count is made up for before the first write.

use std::sync::Arc;

use flatbed_revtree::RevId;
use foundationdb::Database;
use prost::Message;

use crate::error::{Error, Result};
use crate::store::features::{check_record, own_collation};
use crate::store::instruments::Instruments;
use crate::store::keys::{
    Counter, DocumentPart, FORMAT_VERSION, KeyRange, Keys, RootKeys, Subspace, take_int, take_rev,
};
use crate::store::proto;
use crate::store::records::RevisionRecord;
use crate::store::root::epoch_for_write;
use crate::store::transaction::{self, Attempt, Operation, Transaction};

/// Keys that are looked at in one transaction, at most: a page ends earlier at the client's bound of bytes.
const KEYS_COUNTED_AT_ONCE: usize = 10_000;

/// How often a database is counted that an older program writes to meanwhile.
const COUNTS_MAX: usize = 10;

/// A database of an older format.
#[derive(Clone)]
pub(crate) struct Older {
    pub db: Arc<Database>,
    pub metrics: Arc<Instruments>,
    pub root: RootKeys,
    pub name: String,
    pub keys: Keys,
}

impl Older {
    /// Gives its record the format of what will be written to it. Programs that know less refuse it from there on: each of
    /// their transactions finds that something has changed, and reads the record.
    pub(crate) async fn upgrade(self) -> Result<()> {
        for _ in 0..COUNTS_MAX {
            let Older { db, metrics, root, name, keys } = &self;
            let mut begin = Begin { root, name, keys };
            let Some(last_seq) = transaction::read(db, metrics, &mut begin).await? else { return Ok(()) };
            let mut walk = Walk { range: keys.subspace(Subspace::Documents), keys, leaf: None, sum: 0 };
            while let Some((begin, leaf, sum)) = transaction::read(db, metrics, &mut walk).await? {
                (walk.range.begin, walk.leaf, walk.sum) = (begin, leaf, sum);
            }
            let mut end = End { root, name, keys, last_seq: &last_seq, superseded_bytes: walk.sum };
            if transaction::write(db, metrics, &mut end).await? {
                tracing::info!(database = name, format = FORMAT_VERSION, "a database of an older format is upgraded");
                return Ok(());
            }
        }
        // Who asks again may find it at rest.
        tracing::warn!(
            database = self.name,
            "a database of an older format is still being written by an older program"
        );
        Err(Error::timed_out())
    }
}

fn is_older(record: &proto::DatabaseRecord) -> Result<bool> {
    // Whoever upgraded it meanwhile may have named a feature already.
    check_record(record, own_collation()).map(|()| record.format_version < FORMAT_VERSION)
}

/// Whether a counter is kept in a database of this record: of format 1 one is made up for by the upgrade.
pub(crate) fn is_kept(counter: Counter, record: &proto::DatabaseRecord) -> bool {
    counter != Counter::SupersededBytes || record.format_version >= FORMAT_VERSION
}

/// Where the database stands; `None`: it is deleted, or was upgraded meanwhile.
struct Begin<'a> {
    root: &'a RootKeys,
    name: &'a str,
    keys: &'a Keys,
}

impl Operation for Begin<'_> {
    type Output = Option<Vec<u8>>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let record_key = self.root.database(self.name);
        let last_seq_key = self.keys.bucket(0, 0).last_seq();
        let (record, last_seq) = (trx.get(&record_key, true), trx.get(&last_seq_key, true));
        let Some(record) = record.await? else { return Ok(None) };
        let last_seq = last_seq.await?.map(|bytes| bytes.to_vec()).unwrap_or_default();
        Ok(is_older(&proto::DatabaseRecord::decode(&*record)?)?.then_some(last_seq))
    }
}

/// Adds up what superseded bodies take, a page at a time.
struct Walk<'a> {
    keys: &'a Keys,
    range: KeyRange,
    /// The document that the last page ended in, and its only leaf.
    leaf: Option<(String, RevId)>,
    sum: i64,
}

impl Operation for Walk<'_> {
    /// What is left, and what is known so far; `None`: there is nothing left.
    type Output = Option<(Vec<u8>, Option<(String, RevId)>, i64)>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let page = trx.range(&self.range, true).page(KEYS_COUNTED_AT_ONCE).await?;
        let Some(last) = page.last() else { return Ok(None) };
        let begin = [last.key(), &[0]].concat();
        let (mut leaf, mut sum) = (self.leaf.clone(), self.sum);
        for row in &page {
            match self.keys.split_document(row.key())? {
                (id, DocumentPart::Leaf, rest) => leaf = Some((id, take_rev(take_int(rest)?.1)?.0)),
                (id, DocumentPart::Revision, rest) => {
                    let (rev, _) = take_rev(rest)?;
                    let record = RevisionRecord::decode(row.value())?;
                    let is_leaf = leaf.as_ref().is_some_and(|(document, leaf)| *document == id && *leaf == rev);
                    if !is_leaf && !record.body_dropped {
                        sum += record.stored_bytes as i64;
                    }
                }
                _ => {}
            }
        }
        Ok(Some((begin, leaf, sum)))
    }
}

/// Writes what was found, unless somebody has written since: then false.
struct End<'a> {
    root: &'a RootKeys,
    name: &'a str,
    keys: &'a Keys,
    last_seq: &'a [u8],
    superseded_bytes: i64,
}

impl Operation for End<'_> {
    type Output = bool;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<bool> {
        let key = self.root.database(self.name);
        // Both with conflict: who writes at the same time makes this one begin anew.
        let (bytes, last_seq_key) = (trx.get(&key, false), self.keys.bucket(0, 0).last_seq());
        let last_seq = trx.get(&last_seq_key, false);
        epoch_for_write(trx, self.root).await?;
        // Deleted meanwhile, or upgraded by another process or by an attempt whose result was not known.
        let Some(bytes) = bytes.await? else { return Ok(true) };
        let mut record = proto::DatabaseRecord::decode(&*bytes)?;
        if !is_older(&record)? {
            return Ok(true);
        }
        if last_seq.await?.as_deref().unwrap_or_default() != self.last_seq {
            return Ok(false);
        }
        record.format_version = FORMAT_VERSION;
        trx.set(&key, &record.encode_to_vec());
        trx.set(&self.keys.bucket(0, 0).counter(Counter::SupersededBytes), &self.superseded_bytes.to_le_bytes());
        trx.update_metadata_version();
        Ok(true)
    }
}
