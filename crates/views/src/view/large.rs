//! Documents with more changes than a transaction holds: the work beside changing their rows.
//!
//! First the parts of new values are staged, a few per transaction. They are invisible until a row has their id, which
//! is derived from their contents. Then the rows are changed over several transactions, while readers see the old state
//! ([`super::undo`]). Parts that are staged, or whose row is removed while readers still see it, have a mark until a
//! row refers to them, or they are cleared together with their mark.
//!
//! A process that takes over in the middle continues from the current state towards the document's state at that time.

use std::collections::{BTreeMap, HashSet};

use flatbed_databases::limits::Limit;
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::{ViewKeys, ViewPart};
use flatbed_store::proto::{self, ViewProgress};
use flatbed_store::transaction::{Quiet, Transaction};
use prost::Message;

use crate::view::documents::{LargeReadGate, Plan, read_stored_rows};
use crate::view::parts;
use crate::view::prepare::PreparedDocument;

const STAGED_PARTS: u64 = 4;

/// The marks that a transaction clears, each with its parts, which are one range.
const MARKS_MAX: Limit<usize> = Limit::new(100, 3);

/// The most marks of a document: each stands for parts of more than 20 kB.
const MARKS_OF_DOCUMENT_MAX: usize = 20_000;

/// Returns the partly changed document of a group, if any. No other document may be entered before it is complete.
pub fn under_way(progress: &ViewProgress) -> Option<&str> {
    progress.large.as_ref().map(|large| large.document.as_str())
}

pub fn may_enter(progress: &ViewProgress, documents: &[PreparedDocument]) -> bool {
    let first = documents.first().map(PreparedDocument::id);
    under_way(progress).is_none_or(|document| first == Some(document))
}

/// Notes in the progress that a transaction changes a part of a document, or stages parts of it.
pub(super) fn goes_on<'p>(progress: &'p mut ViewProgress, document: &str) -> &'p mut proto::ViewLarge {
    let large = progress.large.get_or_insert_with(proto::ViewLarge::default);
    large.document = document.to_owned();
    // Other processes see that this one makes progress.
    large.steps += 1;
    progress.untidy = true;
    large
}

/// Stages some parts of a document's new rows. Returns their number; 0: all are staged.
pub(super) async fn stage(trx: &Transaction, keys: &ViewKeys, plan: &mut Plan<'_>) -> Result<u64> {
    let id = plan.document.id();
    let mut large = plan.large_rows().peekable();
    if large.peek().is_none() {
        return Ok(0);
    }
    let range = keys.staged_of(id);
    // With a conflict: two processes may work on a first build.
    let found = trx.range(&range, false).first(MARKS_OF_DOCUMENT_MAX).await?;
    let mark = |row: &foundationdb::future::FdbKeyValue| match keys.split(row.key())? {
        ViewPart::Staged(_, blob_id) => Ok((blob_id, proto::ViewStaged::decode(row.value())?.parts)),
        _ => Err(Error::Corrupt("a mark of parts is invalid".to_owned())),
    };
    let marks = found.iter().map(mark).collect::<Result<BTreeMap<_, _>>>()?;
    let mut left = STAGED_PARTS;
    for (blob_id, row) in large {
        let (there, all) = (marks.get(&blob_id).copied().unwrap_or_default(), parts::count(row.bytes()));
        if there >= all {
            continue;
        }
        if left == 0 {
            break;
        }
        let until = all.min(there + left);
        parts::write(trx, keys, id, (&blob_id, row), there..until)?;
        trx.set(&keys.staged(id, &blob_id), &proto::ViewStaged { parts: until }.encode_to_vec());
        left -= until - there;
    }
    plan.is_staged = left == STAGED_PARTS;
    Ok(STAGED_PARTS - left)
}

pub(super) fn mark(trx: &Transaction, keys: &ViewKeys, id: &str, old: &proto::ViewRowOf) -> Result<()> {
    let parts = parts::count(usize::try_from(old.bytes).unwrap_or(usize::MAX));
    Quiet(trx).set(&keys.staged(id, &old.blob_id), &proto::ViewStaged { parts }.encode_to_vec())
}

/// Clears some marks, and the parts that no row refers to, if no document is partly changed.
pub async fn tidy(
    trx: &Transaction,
    keys: &ViewKeys,
    progress: &mut ViewProgress,
    large_reads: &LargeReadGate,
) -> Result<()> {
    if !progress.untidy || progress.large.is_some() {
        return Ok(());
    }
    let range = keys.all_staged();
    let page = trx.range(&range, true).page(MARKS_MAX.get()).await?;
    let mut marks = Vec::with_capacity(page.len());
    for row in &page {
        if let ViewPart::Staged(id, blob_id) = keys.split(row.key())? {
            marks.push((id, blob_id));
        }
    }
    let Some((first, _)) = marks.first() else {
        progress.untidy = false;
        return Ok(());
    };
    let had = read_stored_rows(trx, keys, std::iter::once(first.as_str()), true, Some(large_reads)).await?;
    if had.is_empty() {
        return Ok(());
    }
    let known: HashSet<&[u8]> = had.iter().flat_map(|had| had.rows()).map(|row| row.blob_id.as_slice()).collect();
    for (id, blob_id) in marks.iter().take_while(|(id, _)| id == first) {
        if !known.contains(blob_id.as_slice()) {
            Quiet(trx).clear_range(&keys.parts(id, blob_id))?;
        }
        Quiet(trx).clear(&keys.staged(id, blob_id))?;
    }
    Ok(())
}
