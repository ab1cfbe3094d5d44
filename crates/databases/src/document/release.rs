//! Attachment lists that have left their document, whose data is freed later.
//!
//! A document still has the data of a digest if any of its lists names it, and all its lists may exceed one
//! transaction. So when a transaction removes a list from a document with many, it puts the list into a queue, and its
//! data is freed in steps: the remaining lists are read page by page; then, if the document has not been edited
//! meanwhile, the digests that none of them names are freed. Without edits lists only become fewer, so a digest that
//! the scan has not found is unused. If the process dies in between, another one takes over the entry.

use std::collections::HashSet;

use flatbed_kit::CleanupBudget;
use flatbed_store::due::{self, DueKind};
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::{Counter, KeyRange};
use flatbed_store::once::random_id;
use flatbed_store::seq::STAMP_BYTES;
use flatbed_store::transaction::{self, Attempt, Operation, Quiet, Transaction};
use tokio::time::Instant;

use crate::document::attachments::{decode_list, free, free_bytes};
use crate::document::body::begin_read;
use crate::document::tree::info;
use crate::instance::Instance;
use crate::server::Inner;

/// Approximate bytes of a document's lists that one transaction reads: with fewer transactions a scan finishes more
/// often between two edits.
const LISTS_BYTES_MAX: u64 = 1_000_000;

/// Entries of one document that one scan serves, and approximate bytes of the queue that are read for it.
const ENTRIES_AT_ONCE: usize = 40;
const ENTRIES_BYTES_MAX: u64 = 400_000;

/// Bytes of writes with which one transaction frees data.
const FREED_BYTES_MAX: u64 = 300_000;

/// Retries of an entry whose document is edited all the time; later sweeps retry again.
const EDITS_MAX: usize = 8;

/// The process that queues lists frees their data itself; if it fails to, another one does after this time, in
/// milliseconds.
const LEFT_FOR_MS: u64 = 60_000;

/// Digests of attachments' data.
type Digests = HashSet<[u8; 32]>;

/// Puts a list into the queue, in the transaction that removes it from its document.
pub fn put(trx: &Transaction, instance: &Instance, id: &str, list: &[u8]) -> Result<()> {
    let at_ms = due::after_ms(trx.clock(), LEFT_FOR_MS);
    due::mark(trx, &instance.root, DueKind::Uploads, &instance.name, at_ms)?;
    Quiet(trx).set(&instance.keys.released(id, &random_id()?), list)
}

/// Frees the data of the queue's lists of a document, or of all, that the documents no longer have. Returns the freed
/// bytes.
pub async fn drain(inner: &Inner, instance: &Instance, id: Option<&str>) -> Result<u64> {
    drain_until(inner, instance, id, None).await.map(|(freed, _)| freed)
}

/// As [`drain`], until a time limit; also returns whether it has finished.
pub async fn drain_until(
    inner: &Inner,
    instance: &Instance,
    id: Option<&str>,
    until: Option<Instant>,
) -> Result<(u64, bool)> {
    let mut range = match id {
        Some(id) => instance.keys.released_of(id),
        None => instance.keys.released_all(),
    };
    let mut freed = 0;
    loop {
        let mut next = NextEntries { inner, instance, range: &range };
        let Some(entries) = transaction::read(&inner.db, &inner.metrics, &mut next).await? else {
            return Ok((freed, true));
        };
        if inner.is_closing() {
            return Ok((freed, false));
        }
        freed += free_all(inner, instance, &entries).await?;
        range.begin = entries.behind;
        if until.is_some_and(|until| inner.clock.now() >= until) {
            return Ok((freed, false));
        }
    }
}

/// Frees the data of a document's entries.
async fn free_all(inner: &Inner, instance: &Instance, entries: &Entries) -> Result<u64> {
    let Entries { id, keys, digests: all, .. } = entries;
    let mut freed = 0;
    for _ in 0..EDITS_MAX {
        let mut left = all.clone();
        let mut range = instance.keys.document(id).attachment_lists();
        let mut stamp = None;
        let is_whole = loop {
            let mut page = ListsPage { inner, instance, id, range: &range };
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
            let mut step = Free { inner, instance, id, stamp, keys, digests: rest };
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

/// Returns whether the queue has entries.
pub async fn is_any(inner: &Inner, instance: &Instance) -> Result<bool> {
    let mut next = NextEntries { inner, instance, range: &instance.keys.released_all() };
    Ok(transaction::read(&inner.db, &inner.metrics, &mut next).await?.is_some())
}

/// Queue entries of one document.
pub struct Entries {
    id: String,
    pub keys: Vec<Vec<u8>>,
    digests: Digests,
    /// The start of the next read.
    behind: Vec<u8>,
}

/// Reads the first entries of a range, of one document.
pub struct NextEntries<'a> {
    pub inner: &'a Inner,
    pub instance: &'a Instance,
    pub range: &'a KeyRange,
}

impl Operation for NextEntries<'_> {
    type Output = Option<Entries>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        same(self.inner, self.instance, trx).await?;
        let (pages, _) = begin_read(trx, self.range.clone()).read_up_to(trx, ENTRIES_BYTES_MAX).await?;
        let mut found: Option<Entries> = None;
        for row in pages.iter().flat_map(|page| page.iter()).take(ENTRIES_AT_ONCE) {
            let (id, _) = self.instance.keys.split_released(row.key())?;
            let (keys, digests, behind) = (Vec::new(), Digests::new(), Vec::new());
            let entries = found.get_or_insert_with(|| Entries { id: id.clone(), keys, digests, behind });
            if entries.id != id {
                break;
            }
            entries.keys.push(row.key().to_vec());
            entries.digests.extend(decode_list(row.value())?.iter().map(|attachment| *attachment.digest()));
            entries.behind = [row.key(), &[0]].concat();
        }
        Ok(found)
    }
}

/// The stamp of a document's last edit; all zero if the document does not exist.
type Stamp = [u8; STAMP_BYTES];

struct ListsPage<'a> {
    inner: &'a Inner,
    instance: &'a Instance,
    id: &'a str,
    range: &'a KeyRange,
}

impl Operation for ListsPage<'_> {
    /// The document's stamp, the digests of the lists, and the start of the next page.
    type Output = (Stamp, Digests, Option<Vec<u8>>);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        same(self.inner, self.instance, trx).await?;
        let stamp = info(trx, &self.instance.keys.document(self.id), true).await?.map_or([0; STAMP_BYTES], |i| i.stamp);
        let (pages, are_all) = begin_read(trx, self.range.clone()).read_up_to(trx, LISTS_BYTES_MAX).await?;
        let mut digests = Digests::new();
        for row in pages.iter().flat_map(|page| page.iter()) {
            digests.extend(decode_list(row.value())?.iter().map(|attachment| *attachment.digest()));
        }
        let last = pages.iter().rev().find_map(|page| page.last()).filter(|_| !are_all);
        let next = last.map(|last| [last.key(), &[0]].concat());
        Ok((stamp, digests, next))
    }
}

/// Frees digests of a document that has not been edited since the scan.
struct Free<'a> {
    inner: &'a Inner,
    instance: &'a Instance,
    id: &'a str,
    stamp: Stamp,
    /// The entries, which the last transaction removes.
    keys: &'a [Vec<u8>],
    digests: &'a [[u8; 32]],
}

impl Operation for Free<'_> {
    /// The freed bytes and the number of examined digests; `None`: the document was edited.
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
        let room = CleanupBudget::new(FREED_BYTES_MAX);
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
            instance.buckets.add(trx, Counter::StoredBytes, -freed)?;
        }
        if count == self.digests.len() {
            self.keys.iter().for_each(|key| trx.clear(key));
        }
        Ok(Some((freed.max(0) as u64, count)))
    }
}
