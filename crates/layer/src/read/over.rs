//! Revisions that documents that have ended came of.
//!
//! A revision that has ended says so by its record, and is shown as a tombstone without a body for as long as it is kept, whatever was
//! written upon it. What it came of was there before, says nothing of an end, and is over with it: that is found out here, for whoever
//! asks for a revision that is not the winner.

use std::collections::HashSet;

use flatbed_revtree::{RevId, Tree};

use crate::document::tree::Leaves;
use crate::error::Result;
use crate::instance::Instance;
use crate::read::get::{Records, read_records};
use crate::store::keys::DocumentKeys;
use crate::store::records::Info;
use crate::store::transaction::Transaction;

/// Whether a revision that is not the winner is over by a moment, in milliseconds of Unix time, since one that came of it has ended.
/// Nothing is read in a database without channels.
pub(crate) async fn is_over(
    trx: &Transaction,
    instance: &Instance,
    keys: &DocumentKeys,
    info: &Info,
    rev: &RevId,
    now_ms: u64,
) -> Result<bool> {
    if instance.channels() == 0 {
        return Ok(false);
    }
    if info.leaf_count < 2 && info.has_ended(now_ms) {
        return Ok(true);
    }
    let records = read_records(trx, keys).await?;
    Ok(over(trx, keys, &records, now_ms).await?.contains(rev))
}

/// All revisions of a document that are over so. The tree is read where any has ended.
pub(crate) async fn over(
    trx: &Transaction,
    keys: &DocumentKeys,
    records: &Records,
    now_ms: u64,
) -> Result<HashSet<RevId>> {
    if !records.values().any(|record| record.has_ended(now_ms)) {
        return Ok(HashSet::new());
    }
    Ok(over_in(&Leaves::read(trx, keys).await?.whole(trx, keys).await?, records, now_ms))
}

/// The same in a tree.
pub(crate) fn over_in(tree: &Tree, records: &Records, now_ms: u64) -> HashSet<RevId> {
    let mut ended: Vec<&RevId> =
        records.iter().filter(|(_, record)| record.has_ended(now_ms)).map(|(rev, _)| rev).collect();
    // Of a line the newest first: what it came of says no more than it does.
    ended.sort_unstable_by_key(|rev| std::cmp::Reverse(rev.generation()));
    let mut over = HashSet::new();
    for rev in ended {
        if !over.contains(rev) {
            over.extend(tree.line(rev).into_iter().flatten().skip(1));
        }
    }
    over
}
