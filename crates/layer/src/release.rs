//! Lists of attachments that left their document, and whose data is looked at later.
//!
//! Whether a document still has the data of a digest is told by all of its lists together, which may take more than a
//! transaction reads. So a list that a transaction takes away from a document with many is put into a queue, and what it
//! names is freed in steps: the lists that are left are read page by page; then, if the document has not been edited
//! meanwhile, those digests go that none of them names. Lists only become fewer without an edit, so what a walk has not
//! found is nowhere. A process that ends in between leaves the entry to the next one.

use std::collections::HashSet;

use foundationdb::options::MutationType;

use crate::attachments::{decode_list, free, free_bytes};
use crate::error::{Error, Result};
use crate::instance::Instance;
use crate::keys::{Counter, KeyRange};
use crate::layer::{Inner, random_id};
use crate::read::{info, page_of};
use crate::room::Room;
use crate::seq::STAMP_BYTES;
use crate::transaction::{self, Attempt, Operation, Quiet, Transaction};

/// Lists that are read in one transaction, each of up to 90 kB.
const LISTS_AT_ONCE: usize = 8;

/// What freeing takes in one transaction, in bytes of what it writes.
const FREED_BYTES_MAX: u64 = 300_000;

/// How often an entry is begun anew because its document is edited all the time; it is left to a later time then.
const EDITS_MAX: usize = 8;

/// Digests of attachments' data.
type Digests = HashSet<[u8; 32]>;

/// Puts a list into the queue. The transaction takes it away from its document.
pub(crate) fn put(trx: &Transaction, instance: &Instance, id: &str, list: &[u8]) -> Result<()> {
    Quiet(trx).set(&instance.keys.released(id, &random_id()?), list)
}

/// Frees what the queue's lists of a document name, or of all documents, as far as the documents do not have it. Returns
/// the bytes that went.
pub(crate) async fn drain(inner: &Inner, instance: &Instance, id: Option<&str>) -> Result<u64> {
    let mut range = match id {
        Some(id) => instance.keys.released_of(id),
        None => instance.keys.released_all(),
    };
    let mut freed = 0;
    loop {
        let mut next = NextEntry { inner, instance, range: &range };
        let Some((key, list)) = transaction::read(&inner.db, &inner.metrics, &mut next).await? else {
            return Ok(freed);
        };
        if inner.is_closing() {
            return Ok(freed);
        }
        freed += entry(inner, instance, &key, &list).await?;
        range.begin = [key.as_slice(), &[0]].concat();
    }
}

/// Looks at one entry.
async fn entry(inner: &Inner, instance: &Instance, key: &[u8], list: &[u8]) -> Result<u64> {
    let (id, _) = instance.keys.split_released(key)?;
    let all: Digests = decode_list(list)?.iter().map(|attachment| *attachment.digest()).collect();
    let mut freed = 0;
    for _ in 0..EDITS_MAX {
        let mut left = all.clone();
        let mut range = instance.keys.document(&id).attachment_lists();
        let mut stamp = None;
        let is_whole = loop {
            let mut page = ListsPage { inner, instance, id: &id, range: &range };
            let (seen, digests, next) = transaction::read(&inner.db, &inner.metrics, &mut page).await?;
            if *stamp.get_or_insert(seen) != seen {
                break false;
            }
            digests.iter().for_each(|digest| {
                left.remove(digest);
            });
            match next {
                Some(begin) if !left.is_empty() => range.begin = begin,
                _ => break true,
            }
        };
        let Some(stamp) = stamp.filter(|_| is_whole) else { continue };
        let left: Vec<[u8; 32]> = left.into_iter().collect();
        let mut rest = left.as_slice();
        loop {
            let mut step = Free { inner, instance, id: &id, stamp, key, digests: rest };
            let Some((bytes, count)) = transaction::write(&inner.db, &inner.metrics, &mut step).await? else { break };
            freed += bytes;
            rest = rest.get(count..).unwrap_or_default();
            if rest.is_empty() {
                return Ok(freed);
            }
        }
    }
    tracing::debug!(database = instance.name, "attachments of a document that is edited all the time are freed later");
    Ok(freed)
}

async fn same(inner: &Inner, instance: &Instance, trx: &Transaction) -> Result<()> {
    match inner.resolve(trx, &instance.name).await?.id() == instance.id() {
        true => Ok(()),
        false => Err(Error::DatabaseNotFound),
    }
}

/// The first entry of a range.
struct NextEntry<'a> {
    inner: &'a Inner,
    instance: &'a Instance,
    range: &'a KeyRange,
}

impl Operation for NextEntry<'_> {
    type Output = Option<(Vec<u8>, Vec<u8>)>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        same(self.inner, self.instance, trx).await?;
        let page = trx.get_range(&page_of(self.range, 1, false), 1, true).await?;
        Ok(page.first().map(|row| (row.key().to_vec(), row.value().to_vec())))
    }
}

/// When a document was last edited; all zero where there is none.
type Stamp = [u8; STAMP_BYTES];

/// Some of a document's lists.
struct ListsPage<'a> {
    inner: &'a Inner,
    instance: &'a Instance,
    id: &'a str,
    range: &'a KeyRange,
}

impl Operation for ListsPage<'_> {
    /// The document's stamp, what the lists name, and where to go on.
    type Output = (Stamp, Digests, Option<Vec<u8>>);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        same(self.inner, self.instance, trx).await?;
        let stamp = info(trx, &self.instance.keys.document(self.id), true).await?.map_or([0; STAMP_BYTES], |i| i.stamp);
        let page = trx.get_range(&page_of(self.range, LISTS_AT_ONCE, false), 1, true).await?;
        let mut digests = Digests::new();
        for row in &page {
            digests.extend(decode_list(row.value())?.iter().map(|attachment| *attachment.digest()));
        }
        let is_more = page.more() || page.len() == LISTS_AT_ONCE;
        let next = page.last().filter(|_| is_more).map(|last| [last.key(), &[0]].concat());
        Ok((stamp, digests, next))
    }
}

/// Takes digests away from a document that has not been edited since it was found that it does not have them.
struct Free<'a> {
    inner: &'a Inner,
    instance: &'a Instance,
    id: &'a str,
    stamp: Stamp,
    /// The entry, which goes with the last of them.
    key: &'a [u8],
    digests: &'a [[u8; 32]],
}

impl Operation for Free<'_> {
    /// Bytes that went, and how many digests were looked at; `None`: the document has been edited.
    type Output = Option<(u64, usize)>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.inner.resolve_for_write(trx, &self.instance.name).await?;
        if instance.id() != self.instance.id() {
            return Err(Error::DatabaseNotFound);
        }
        let found = info(trx, &instance.keys.document(self.id), false).await?;
        if found.map_or([0; STAMP_BYTES], |info| info.stamp) != self.stamp {
            return Ok(None);
        }
        let room = Room::new(FREED_BYTES_MAX);
        let (mut freed, mut count) = (0, 0);
        for digest in self.digests {
            if room.is_empty() {
                break;
            }
            room.take(free_bytes(self.id));
            freed += free(trx, &instance, self.id, digest).await?;
            count += 1;
        }
        if freed != 0 {
            let delta: i64 = -freed;
            let key = instance.keys.counter(Counter::StoredBytes);
            Quiet(trx).atomic(&key, &delta.to_le_bytes(), MutationType::Add)?;
        }
        if count == self.digests.len() {
            trx.clear(self.key);
        }
        Ok(Some((freed.max(0) as u64, count)))
    }
}
