//! Batches during their upload: the staged edits, and the records below them.

use futures_util::future::{try_join, try_join4};

use crate::edit::PreparedChange;
use crate::error::{Error, Result};
use crate::keys::{BatchKeys, CollectionKeys, SortKey, UserKeys};
use crate::layers::{LayeredRows, Layers, base_rows};
use crate::model::{Change, Precondition, StageResult};
use crate::names::{BatchId, CollectionName, RecordId, Uid};
use crate::store::Inner;
use crate::timestamp::Timestamp;
use crate::transaction::{Attempt, Trx};
use crate::values::{BaseRecord, Batch, Payload, StagedPayload, StagedPayloads, StagedRow};
use crate::write::{batches, seen};

/// The payload bytes that one transaction stages, without the keys around them.
const STAGED_BYTES_MAX: usize = 700_000;

/// Changes for a batch, added in one transaction.
pub(crate) struct Append<'a> {
    pub user: &'a UserKeys,
    pub name: &'a CollectionName,
    pub batch: BatchId,
    /// True if the changes begin the batch.
    pub begins: bool,
    pub changes: &'a [PreparedChange],
    pub condition: Precondition,
    /// Large payloads written ahead, to which no edit points after this transaction.
    pub ahead: Option<StagedPayloads>,
}

impl Inner {
    /// Adds changes to a batch, or begins it with them. They may take several transactions, since readers do not see
    /// them.
    pub(crate) async fn stage(
        &self,
        uid: Uid,
        name: &CollectionName,
        batch: BatchId,
        begins: bool,
        changes: Vec<Change>,
        condition: Precondition,
    ) -> Result<StageResult> {
        let user = &self.keys.user(uid);
        let (next, changes) = &mut self.prepare_batch(changes, batch)?;
        let mut append = Append { user, name, batch, begins, changes: &[], condition, ahead: None };
        let bytes = bytes_ahead(changes);
        if bytes == 0 {
            return self.append_all(append, changes).await;
        }
        let ahead = StagedPayloads { next: *next, bytes };
        append.ahead = Some(ahead);
        self.append(&append).await?;
        append.begins = false;
        let staged = async {
            self.write_ahead(user, name, batch, ahead, changes).await?;
            self.append_all(append, changes).await
        };
        let staged = staged.await;
        if matches!(&staged, Err(error) if !matches!(error, Error::Storage(_))) {
            // If this fails, or the append's result is unknown, the payloads are removed with the batch or by its
            // commit.
            let _ = self.forget_ahead(user, name, batch, ahead).await;
        }
        staged
    }

    /// Adds changes whose large payloads are written already, in as many transactions as they need.
    async fn append_all(&self, mut append: Append<'_>, mut rest: &[PreparedChange]) -> Result<StageResult> {
        let mut staged = None;
        while !rest.is_empty() || staged.is_none() {
            let mut bytes = 0;
            let fits = rest.iter().take_while(|change| {
                bytes += change.payload.as_ref().map_or(0, |payload| match payload {
                    Payload::Inline(payload) => payload.len(),
                    Payload::Blob { .. } => 0,
                });
                bytes <= STAGED_BYTES_MAX
            });
            let (chunk, behind) = rest.split_at_checked(fits.count()).unwrap_or((rest, &[]));
            if let Some(ahead) = &mut append.ahead {
                *ahead = StagedPayloads { next: ahead.next + chunk.len() as u64, bytes: bytes_ahead(behind) };
            }
            staged = Some(self.append(&Append { changes: chunk, ..append }).await?);
            (append.begins, rest) = (false, behind);
        }
        staged.ok_or(Error::BatchNotFound)
    }

    /// Adds changes in one transaction.
    pub(crate) async fn append(&self, append: &Append<'_>) -> Result<StageResult> {
        self.runner.write(move |trx, attempt| async move { self.append_in(&trx, attempt, append).await }).await
    }

    async fn append_in(&self, trx: &Trx, attempt: Attempt, append: &Append<'_>) -> Result<StageResult> {
        let Append { user, name, batch, begins, changes, condition, ahead } = *append;
        let (keys, batch_keys) = (user.collection(name), user.batch(batch));
        let ids: Vec<&RecordId> = changes.iter().map(|change| &change.id).collect();
        // A batch begun with these changes is empty, unless an earlier attempt began it.
        let is_new = begins && !attempt.maybe_committed;
        let staged = async {
            match is_new {
                true => Ok(vec![None; ids.len()]),
                false => trx.get_all(ids.iter().map(|id| batch_keys.staged_record(id))).await,
            }
        };
        // Concurrent staging is not seen: the bound limits space and need not be exact.
        let record = try_join(trx.get(batch_keys.record(), false), batches(trx, user, true));
        let (seen, (record, open), rows, staged) =
            try_join4(seen(trx, user, &keys), record, base_rows(trx, &keys, &ids), staged).await?;
        let (head, state) = (seen.0, seen.1.unwrap_or_default());
        let clock = self.now();
        let now = head.now(clock);
        condition.judge(state.modified, now)?;
        let mut record = match record {
            Some(record) => still_open(Batch::decode(&record)?, name, clock)?,
            None if begins => {
                let record = Batch::new(name.clone(), clock);
                self.open_batch(trx, user, batch, &record, &open)?;
                record
            }
            None => return Err(Error::BatchNotFound),
        };
        let is_seen = record.records == 0 || record.seen == Some(state.state);
        record.seen = is_seen.then_some(state.state);
        record.appends = record.appends.wrapping_add(1);
        let layers = Layers::new(user, keys, &state);
        let found = layers.found(trx, &ids, rows).await?;
        for ((change, found), staged) in changes.iter().zip(&found).zip(staged) {
            let staged = staged.map(|staged| StagedRow::decode(&staged)).transpose()?;
            let row = merged(staged.as_ref(), change, beneath(&layers, found, now));
            put_staged(trx, &layers.keys, &batch_keys, change, staged.as_ref(), &row)?;
            count(&mut record, staged.as_ref(), &row);
        }
        if record.records > self.limits.max_total_records || record.bytes > u64::from(self.limits.max_total_bytes) {
            return Err(Error::BatchTooLarge);
        }
        if let Some(ahead) = ahead {
            record.note_ahead(ahead)?;
        }
        self.check_staged_bytes(batch, &record, &open)?;
        trx.set(batch_keys.record(), &record.encode());
        Ok(StageResult { batch, modified: state.modified, now })
    }
}

fn bytes_ahead(changes: &[PreparedChange]) -> u32 {
    let of = |change: &PreparedChange| match change.payload {
        Some(Payload::Blob { len, .. }) => len,
        _ => 0,
    };
    changes.iter().map(of).fold(0, u32::saturating_add)
}

/// Returns a batch if it is usable in a collection and has not expired.
pub(crate) fn still_open(record: Batch, name: &CollectionName, clock: Timestamp) -> Result<Batch> {
    if record.collection != *name || record.deadline <= clock { Err(Error::BatchNotFound) } else { Ok(record) }
}

/// Returns the state below an edit of a batch.
pub(crate) fn beneath(layers: &Layers, found: &LayeredRows, now: Timestamp) -> BaseRecord {
    let Some(view) = layers.view(found) else { return BaseRecord::default() };
    BaseRecord {
        exists: true,
        is_live: view.expires.is_none_or(|expires| expires > now),
        len: view.len as u32,
        sortindex: view.sortindex,
        expires: view.expires,
    }
}

/// Merges an edit with an earlier one of the same batch. Members that the edit omits stay.
fn merged(before: Option<&StagedRow>, change: &PreparedChange, beneath: BaseRecord) -> StagedRow {
    let given = change.payload.as_ref().map(|payload| match payload {
        Payload::Inline(bytes) => StagedPayload::Beside { len: bytes.len() as u32 },
        Payload::Blob { id, len } => StagedPayload::Blob { id: *id, len: *len },
    });
    StagedRow {
        payload: given.or(before.and_then(|before| before.payload)),
        sortindex: change.sortindex.or(before.and_then(|before| before.sortindex)),
        ttl: change.ttl.or(before.and_then(|before| before.ttl)),
        beneath,
    }
}

fn put_staged(
    trx: &Trx,
    collection: &CollectionKeys,
    keys: &BatchKeys,
    change: &PreparedChange,
    before: Option<&StagedRow>,
    row: &StagedRow,
) -> Result<()> {
    let id = &change.id;
    if let Some(before) = before
        && change.payload.is_some()
    {
        match before.payload {
            // An earlier attempt may have staged this same payload.
            Some(StagedPayload::Blob { id, .. }) if before.payload != row.payload => {
                trx.clear_range_quietly(&collection.blob(id))?;
            }
            Some(StagedPayload::Beside { .. }) => trx.clear_quietly(&keys.payload(id))?,
            _ => {}
        }
    }
    if let Some(Payload::Inline(payload)) = &change.payload {
        trx.set_quietly(&keys.payload(id), payload)?;
    }
    put_entries(trx, keys, id, before, row)
}

/// Writes an edit and its entry by sortindex.
pub(crate) fn put_entries(
    trx: &Trx,
    keys: &BatchKeys,
    id: &RecordId,
    before: Option<&StagedRow>,
    row: &StagedRow,
) -> Result<()> {
    let sort = SortKey::of(row.final_sortindex());
    if let Some(before) = before.map(|before| SortKey::of(before.final_sortindex())).filter(|before| *before != sort) {
        trx.clear_quietly(&keys.sortindex(before, id))?;
    }
    trx.set_quietly(&keys.staged_record(id), &row.encode())?;
    trx.set_quietly(&keys.sortindex(sort, id), &row.encode_expires())
}

/// Adds an edit to its batch's counts, in place of an earlier one.
fn count(record: &mut Batch, before: Option<&StagedRow>, row: &StagedRow) {
    let given = |row: &StagedRow| row.payload.map_or(0, StagedPayload::len);
    record.records += u32::from(before.is_none());
    record.bytes = (record.bytes + given(row)).saturating_sub(before.map_or(0, given));
    count_deltas(record, before, row);
    record.ttl_min = record.ttl_min.into_iter().chain(row.ttl).min();
    record.kept_earliest = row.kept_expires().map_or(record.kept_earliest, |at| at.min(record.kept_earliest));
}

/// Adds the change of the collection's counts that an edit's commit makes.
pub(crate) fn count_deltas(record: &mut Batch, before: Option<&StagedRow>, row: &StagedRow) {
    let (count, bytes) = row.deltas();
    let (old_count, old_bytes) = before.map_or((0, 0), StagedRow::deltas);
    record.count_delta += count - old_count;
    record.bytes_delta += bytes - old_bytes;
}
