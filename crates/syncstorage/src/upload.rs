//! Data written ahead of the transaction that makes it visible: batches, and large payloads of single writes.

use bytes::Bytes;
use futures_util::future::{try_join, try_join_all};

use crate::edit::PreparedChange;
use crate::error::{Error, Result};
use crate::keys::{BlobId, CollectionKeys, Due, UserKeys};
use crate::layers::PART_BYTES;
use crate::limits::Limits;
use crate::names::{BatchId, CollectionName};
use crate::store::Inner;
use crate::timestamp::Timestamp;
use crate::transaction::Trx;
use crate::values::{Batch, StagedPayloads};
use crate::write::batches;

/// The lifetime of a batch or upload that is not committed, in seconds. Then it is removed.
pub(crate) const BATCH_SECONDS: u32 = 2 * 60 * 60;

/// The parts of one transaction, some 720 kB, and the transactions at once.
const PARTS_MAX: usize = 8;
const AT_ONCE: usize = 4;

impl Batch {
    /// Creates an empty batch.
    pub(crate) fn new(collection: CollectionName, now: Timestamp) -> Batch {
        Batch {
            collection,
            deadline: now.after_seconds(BATCH_SECONDS),
            records: 0,
            bytes: 0,
            seen: None,
            appends: 0,
            count_delta: 0,
            bytes_delta: 0,
            ttl_min: None,
            kept_earliest: Timestamp::MAX,
            ahead: Vec::new(),
        }
    }
}

impl Inner {
    /// Writes large payloads ahead, as parts of an upload with the write's number.
    pub(crate) async fn upload(
        &self,
        user: &UserKeys,
        name: &CollectionName,
        number: u64,
        changes: &mut [PreparedChange],
    ) -> Result<BatchId> {
        let batch = BatchId(number);
        let bytes = changes.iter().filter_map(|change| change.parts.as_ref()).map(Bytes::len).sum::<usize>();
        let ahead = StagedPayloads { next: 0, bytes: u32::try_from(bytes).unwrap_or(u32::MAX) };
        self.runner
            .write(move |trx, _| async move {
                let record = trx.get(user.batch(batch).record(), false);
                let (found, open) = try_join(record, batches(&trx, user, true)).await?;
                if found.is_some() {
                    // An earlier attempt wrote it.
                    return Ok(());
                }
                let mut record = Batch::new(name.clone(), self.now());
                record.note_ahead(ahead)?;
                self.check_staged_bytes(batch, &record, &open)?;
                self.open_batch(&trx, user, batch, &record, &open)
            })
            .await?;
        self.write_ahead(user, name, batch, ahead, changes).await?;
        Ok(batch)
    }

    /// Writes the record of a new batch, unless the user has the most open ones.
    pub(crate) fn open_batch(
        &self,
        trx: &Trx,
        user: &UserKeys,
        batch: BatchId,
        record: &Batch,
        open: &[(BatchId, Batch)],
    ) -> Result<()> {
        if open.len() >= Limits::OPEN_BATCHES_MAX {
            return Err(Error::TooMany("open batches"));
        }
        trx.set(user.batch(batch).record(), &record.encode());
        trx.set_quietly(&user.due(record.deadline, &Due::Batch(batch)), &[])
    }

    /// Checks that a batch with this record does not exceed the limit together with the other open ones.
    pub(crate) fn check_staged_bytes(&self, batch: BatchId, record: &Batch, open: &[(BatchId, Batch)]) -> Result<()> {
        let others = open.iter().filter(|(other, _)| *other != batch).map(|(_, other)| other.staged_bytes());
        let is_over = record.bytes > self.limits.quota_bytes.unwrap_or(u64::MAX);
        if is_over || others.fold(record.staged_bytes(), u64::saturating_add) > self.limits.staged_bytes_max() {
            return Err(Error::OverQuota);
        }
        Ok(())
    }

    /// Writes the parts of large payloads, while the batch exists and notes them.
    pub(crate) async fn write_ahead(
        &self,
        user: &UserKeys,
        name: &CollectionName,
        batch: BatchId,
        ahead: StagedPayloads,
        changes: &mut [PreparedChange],
    ) -> Result<()> {
        let mut parts: Vec<(BlobId, u64, Bytes)> = Vec::new();
        for change in changes {
            let blob = change.payload.as_ref().and_then(|payload| payload.blob());
            if let (Some(blob), Some(payload)) = (blob, change.parts.take()) {
                let starts = (0..payload.len()).step_by(PART_BYTES);
                let part = |start: usize| payload.slice(start..payload.len().min(start + PART_BYTES));
                parts.extend((0..).zip(starts).map(|(number, start)| (blob, number, part(start))));
            }
        }
        let keys: &CollectionKeys = &user.collection(name);
        let chunks: Vec<_> = parts.chunks(PARTS_MAX).collect();
        for chunks in chunks.chunks(AT_ONCE) {
            let written = chunks.iter().map(|parts| {
                let parts = *parts;
                self.runner.write(move |trx, _| async move {
                    // Read with conflict: a transaction that removes the batch, or its note, removes the parts that it
                    // finds.
                    let record = trx.get(user.batch(batch).record(), false).await?.ok_or(Error::BatchNotFound)?;
                    if !Batch::decode(&record)?.ahead.iter().any(|noted| noted.is_of(ahead.next)) {
                        return Err(Error::BatchNotFound);
                    }
                    for (blob, number, part) in parts {
                        trx.set_quietly(&keys.blob_part(*blob, *number), part)?;
                    }
                    Ok(())
                })
            });
            try_join_all(written).await?;
        }
        Ok(())
    }

    /// Removes large payloads that no edit will point at, and the batch's note of them.
    pub(crate) async fn forget_ahead(
        &self,
        user: &UserKeys,
        name: &CollectionName,
        batch: BatchId,
        ahead: StagedPayloads,
    ) -> Result<()> {
        self.runner
            .write(move |trx, _| async move {
                let keys = user.batch(batch);
                let Some(record) = trx.get(keys.record(), false).await? else { return Ok(()) };
                let mut record = Batch::decode(&record)?;
                let Some(noted) = record.ahead.iter().copied().find(|noted| noted.is_of(ahead.next)) else {
                    return Ok(());
                };
                clear_ahead(&trx, &user.collection(name), batch, noted)?;
                record.note_ahead(StagedPayloads { bytes: 0, ..noted })?;
                trx.set(keys.record(), &record.encode());
                Ok(())
            })
            .await
    }

    /// Removes a batch or an upload that is not committed. Returns whether it existed.
    pub(crate) async fn drop_batch(&self, user: &UserKeys, batch: BatchId) -> Result<bool> {
        self.runner
            .write(move |trx, _| async move {
                let keys = user.batch(batch);
                let Some(record) = trx.get(keys.record(), false).await? else { return Ok(false) };
                let record = Batch::decode(&record)?;
                trx.clear(keys.record());
                trx.clear_quietly(&user.due(record.deadline, &Due::Batch(batch)))?;
                trx.clear_range_quietly(&keys.data())?;
                trx.clear_range_quietly(&user.collection(&record.collection).blobs_of(batch.0))?;
                Ok(true)
            })
            .await
    }
}

/// Clears large payloads that no edit points at.
pub(crate) fn clear_ahead(trx: &Trx, keys: &CollectionKeys, batch: BatchId, ahead: StagedPayloads) -> Result<()> {
    let first = BlobId { writer: batch.0, number: ahead.next };
    trx.clear_range_quietly(&keys.blobs_between(first, ahead.last()))
}
