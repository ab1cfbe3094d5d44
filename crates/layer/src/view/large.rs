//! Documents with more changes than a transaction holds: what is done beside changing their rows.
//!
//! First the parts of new values are staged, a few in a transaction: nobody sees them before a row has their id, which follows from what they
//! are. Then rows are changed, a part of them in each transaction, while readers see what was before ([`super::undo`]). Parts that are
//! staged, or whose row has gone behind a reader's back, are marked until they have a row, or are cleared with their mark.
//!
//! Who takes over in the middle changes the document on from where it is, to what it is by then.

use std::collections::{BTreeMap, HashSet};

use prost::Message;

use crate::error::{Error, Result};
use crate::store::keys::{ViewKeys, ViewPart};
use crate::store::proto::{self, ViewProgress};
use crate::store::transaction::{Quiet, Transaction};
use crate::view::documents::{LargeReadGate, Plan, read_stored_rows};
use crate::view::parts;
use crate::view::prepare::PreparedDocument;

/// Parts that a transaction stages.
const STAGED_PARTS: u64 = 4;

/// Marks that a transaction clears, each with its parts, which are one range.
const MARKS_MAX: usize = if cfg!(test) { 3 } else { 100 };

/// Of a document there are no more: each is of parts of more than 20 kB.
const MARKS_OF_DOCUMENT_MAX: usize = 20_000;

/// The document that a group's holder has changed in part, if any: no other one may be entered before it is through.
pub(crate) fn under_way(progress: &ViewProgress) -> Option<&str> {
    progress.large.as_ref().map(|large| large.document.as_str())
}

/// Whether these documents may be entered now.
pub(crate) fn may_enter(progress: &ViewProgress, documents: &[PreparedDocument]) -> bool {
    let first = documents.first().map(PreparedDocument::id);
    under_way(progress).is_none_or(|document| first == Some(document))
}

/// A transaction changes a part of a document, or stages parts of it.
pub(super) fn goes_on<'p>(progress: &'p mut ViewProgress, document: &str) -> &'p mut proto::ViewLarge {
    let large = progress.large.get_or_insert_with(proto::ViewLarge::default);
    large.document = document.to_owned();
    // Whoever looks whether this process is still at it sees that it is.
    large.steps += 1;
    progress.untidy = true;
    large
}

/// Stages some parts of the values of a document's new rows; how many. 0: they are all there.
pub(super) async fn stage(trx: &Transaction, keys: &ViewKeys, plan: &mut Plan<'_>) -> Result<u64> {
    let id = plan.document.id();
    let mut large = plan.large_rows().peekable();
    if large.peek().is_none() {
        return Ok(0);
    }
    let range = keys.staged_of(id);
    // With conflict: in a first build two processes may be at it.
    let found = trx.range(&range, false).first(MARKS_OF_DOCUMENT_MAX).await?;
    let mark = |row: &foundationdb::future::FdbKeyValue| match keys.split(row.key())? {
        ViewPart::Staged(_, blob_id) => Ok((blob_id, proto::ViewStaged::decode(row.value())?.parts)),
        _ => Err(Error::Corrupt("a mark of parts is none".to_owned())),
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

/// Marks parts whose row goes while readers still see it: all of them are there.
pub(super) fn mark(trx: &Transaction, keys: &ViewKeys, id: &str, old: &proto::ViewRowOf) -> Result<()> {
    let parts = parts::count(usize::try_from(old.bytes).unwrap_or(usize::MAX));
    Quiet(trx).set(&keys.staged(id, &old.blob_id), &proto::ViewStaged { parts }.encode_to_vec())
}

/// Clears some marks, and the parts of those that no row has, where no document is under way.
pub(crate) async fn tidy(
    trx: &Transaction,
    keys: &ViewKeys,
    progress: &mut ViewProgress,
    large_reads: &LargeReadGate,
) -> Result<()> {
    if !progress.untidy || progress.large.is_some() {
        return Ok(());
    }
    let range = keys.all_staged();
    let page = trx.range(&range, true).page(MARKS_MAX).await?;
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
