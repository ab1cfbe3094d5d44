//! Folding: moving the edits of committed batches to the collection's records.
//!
//! Readers do not notice it, since an overlay's edit already is the visible record. A later write has removed the edit
//! ([`crate::edit`]), so folding overwrites nothing newer, and a page that was folded is empty when it is folded again.

use futures_util::future::try_join;

use crate::edit::{note_earliest, put_row};
use crate::error::{Error, Result};
use crate::keys::{Due, KeyRange, SortKey, UserKeys};
use crate::layers::{LayeredRows, Layers, PayloadAt};
use crate::names::{CollectionName, RecordId, Uid};
use crate::store::Inner;
use crate::timestamp::Timestamp;
use crate::transaction::Trx;
use crate::values::{Collection, Overlay, Payload, Row, StagedPayload, StagedRow};
use crate::write::state;

/// The edits and payload bytes that one transaction folds.
pub(crate) const FOLD_ROWS_MAX: usize = 200;
const FOLD_BYTES_MAX: u64 = 500_000;

/// The delay after which the sweepers fold batches that their committing process has not folded.
const LEFT_AFTER_SECONDS: u32 = 10;

/// The outcome of one folding transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FoldOutcome {
    /// The collection has no overlay.
    Nothing,
    /// The oldest overlay is folded up to this id.
    Until(RecordId),
    /// Nothing follows the id; edits before it may be left.
    Again,
    /// An overlay is folded completely; this many remain.
    Overlay(usize),
}

/// Returns when the sweepers must fold a committed batch.
pub(crate) fn due_at(overlay: &Overlay) -> Timestamp {
    overlay.modified.after_seconds(LEFT_AFTER_SECONDS)
}

impl Inner {
    /// Folds until at most `left` overlays remain.
    pub(crate) async fn fold_until(&self, user: &UserKeys, name: &CollectionName, left: usize) -> Result<()> {
        let mut after = None;
        loop {
            match self.fold_page(user, name, after.as_ref(), FOLD_ROWS_MAX).await? {
                FoldOutcome::Nothing => return Ok(()),
                FoldOutcome::Until(id) => after = Some(id),
                FoldOutcome::Overlay(remain) if remain <= left => return Ok(()),
                FoldOutcome::Again | FoldOutcome::Overlay(_) => after = None,
            }
        }
    }

    /// Folds a page, behind an id up to which everything is known to be folded.
    pub(crate) async fn fold_page(
        &self,
        user: &UserKeys,
        name: &CollectionName,
        after: Option<&RecordId>,
        rows_max: usize,
    ) -> Result<FoldOutcome> {
        let (folded, records) =
            self.runner.write(move |trx, _| async move { fold_in(&trx, user, name, after, rows_max).await }).await?;
        self.metrics.sync_records_folded.add(records);
        if let FoldOutcome::Overlay(_) = folded {
            self.metrics.sync_folds.add(1);
        }
        Ok(folded)
    }

    /// Folds all overlays of a collection.
    pub(crate) async fn fold_all(&self, uid: Uid, name: &CollectionName) -> Result<()> {
        self.fold_until(&self.keys.user(uid), name, 0).await
    }
}

async fn fold_in(
    trx: &Trx,
    user: &UserKeys,
    name: &CollectionName,
    after: Option<&RecordId>,
    rows_max: usize,
) -> Result<(FoldOutcome, u64)> {
    let keys = user.collection(name);
    // Read with conflict: every writer of the collection writes its state.
    let Some(mut state) = state(trx, &keys, false).await? else { return Ok((FoldOutcome::Nothing, 0)) };
    let Some(overlay) = state.overlays.first().copied() else { return Ok((FoldOutcome::Nothing, 0)) };
    let batch = user.batch(overlay.batch);
    let mut range = batch.staged();
    if let Some(after) = after {
        range = range.behind(&batch.staged_record(after));
    }
    let page = trx.page(&range, rows_max, false).await?;
    let mut bytes = 0;
    let mut edits = Vec::new();
    for (key, value) in &page.rows {
        let staged = StagedRow::decode(value)?;
        if let Some(StagedPayload::Beside { len }) = staged.payload {
            bytes += u64::from(len);
        }
        if bytes > FOLD_BYTES_MAX && !edits.is_empty() {
            break;
        }
        edits.push((batch.take_staged(key)?, staged));
    }
    if edits.is_empty() {
        if after.is_some() {
            return Ok((FoldOutcome::Again, 0));
        }
        take_off(trx, user, name, &mut state)?;
        trx.set(keys.state(), &state.encode());
        return Ok((FoldOutcome::Overlay(state.overlays.len()), 0));
    }
    let ids: Vec<&RecordId> = edits.iter().map(|(id, _)| id).collect();
    let is_beside = |staged: &StagedRow| matches!(staged.payload, Some(StagedPayload::Beside { .. }));
    let wanted = edits.iter().filter(|(_, staged)| is_beside(staged)).map(|(id, _)| batch.payload(id));
    let rows = trx.get_near(ids.iter().map(|id| keys.record(id)).collect());
    let (rows, beside) = try_join(rows, trx.get_near(wanted.collect())).await?;
    let rows = rows.iter().map(|row| row.as_ref().map(Row::decode).transpose()).collect::<Result<Vec<_>>>()?;
    let mut beside = beside.into_iter();
    let oldest = Collection { overlays: vec![overlay], ..Collection::default() };
    let layers = Layers::new(user, keys, &oldest);
    let earliest = state.earliest;
    for ((id, staged), base) in edits.iter().zip(rows) {
        let beside = if is_beside(staged) { beside.next().flatten() } else { None };
        let found = LayeredRows { base, staged: vec![(0, staged.clone())] };
        let view = layers.view(&found).ok_or(Error::Corrupt("an overlay"))?;
        let payload = match view.payload {
            PayloadAt::Here(payload) => payload,
            PayloadAt::Beside(_) => Payload::Inline(beside.ok_or(Error::Corrupt("a staged payload is missing"))?),
        };
        let row = Row { modified: view.modified, sortindex: view.sortindex, expires: view.expires, payload };
        for blob in found.blobs().filter(|blob| Some(*blob) != row.payload.blob()) {
            trx.clear_range_quietly(&layers.keys.blob(blob))?;
        }
        put_row(trx, &layers.keys, id, found.base.as_ref(), &row)?;
        trx.clear_quietly(&batch.sortindex(SortKey::of(staged.final_sortindex()), id))?;
        state.earliest = row.expires.map_or(state.earliest, |expires| expires.min(state.earliest));
    }
    let (Some((first, _)), Some((last, _))) = (edits.first(), edits.last()) else {
        return Ok((FoldOutcome::Nothing, 0));
    };
    let until = |mut end: Vec<u8>| {
        end.push(0);
        end
    };
    let records = KeyRange { begin: batch.staged_record(first), end: until(batch.staged_record(last)) };
    let payloads = KeyRange { begin: batch.payload(first), end: until(batch.payload(last)) };
    trx.clear_range_quietly(&records)?;
    trx.clear_range_quietly(&payloads)?;
    // True if the page had all edits of a small overlay.
    let is_over = after.is_none() && page.rest.is_none() && edits.len() == page.rows.len();
    if is_over {
        take_off(trx, user, name, &mut state)?;
    }
    note_earliest(trx, user, name, earliest, state.earliest)?;
    if is_over || state.earliest != earliest {
        trx.set(layers.keys.state(), &state.encode());
    } else {
        trx.touch(layers.keys.state())?;
    }
    let folded = if is_over { FoldOutcome::Overlay(state.overlays.len()) } else { FoldOutcome::Until(last.clone()) };
    Ok((folded, edits.len() as u64))
}

/// Removes the oldest overlay, which is empty, from its collection.
fn take_off(trx: &Trx, user: &UserKeys, name: &CollectionName, state: &mut Collection) -> Result<()> {
    if state.overlays.is_empty() {
        return Ok(());
    }
    let overlay = state.overlays.remove(0);
    trx.clear_range_quietly(&user.batch(overlay.batch).data())?;
    trx.clear_quietly(&user.due(due_at(&overlay), &Due::Fold(name.clone())))
}
