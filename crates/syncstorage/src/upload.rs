//! What is written ahead of the transaction that makes it visible: batches, and large payloads of single writes.

use bytes::Bytes;
use futures_util::future::try_join_all;

use crate::edit::Prepared;
use crate::error::{Error, Result};
use crate::keys::{BlobId, CollectionKeys, Due, UserKeys};
use crate::layers::PART_BYTES;
use crate::limits::Limits;
use crate::names::{BatchId, CollectionName};
use crate::store::Inner;
use crate::timestamp::Timestamp;
use crate::transaction::Trx;
use crate::values::Batch;

/// What is not committed by then is removed.
pub(crate) const BATCH_SECONDS: u32 = 2 * 60 * 60;

/// Parts of one transaction, some 720 kB, and such transactions at once.
const PARTS_MAX: usize = 8;
const AT_ONCE: usize = 4;

impl Batch {
    /// One that nothing is in.
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
        }
    }
}

impl Inner {
    /// Writes large payloads ahead, as parts of an upload that is called like the write.
    pub(crate) async fn upload(
        &self,
        user: &UserKeys,
        name: &CollectionName,
        number: u64,
        changes: &mut [Prepared],
    ) -> Result<BatchId> {
        let batch = BatchId(number);
        self.runner
            .write(move |trx, _| async move {
                let found = trx.get(user.batch(batch).record(), false).await?;
                if found.is_some() {
                    // An earlier attempt's.
                    return Ok(());
                }
                self.open_batch(&trx, user, batch, &Batch::new(name.clone(), self.clock.now())).await
            })
            .await?;
        self.write_ahead(user, name, batch, changes).await?;
        Ok(batch)
    }

    /// Writes the record of a batch that is begun, where the user may have one more.
    pub(crate) async fn open_batch(&self, trx: &Trx, user: &UserKeys, batch: BatchId, record: &Batch) -> Result<()> {
        let open = trx.page(&user.batches(), Limits::OPEN_BATCHES_MAX, false).await?;
        if open.rows.len() >= Limits::OPEN_BATCHES_MAX {
            return Err(Error::TooMany("open batches"));
        }
        trx.set(user.batch(batch).record(), &record.encode());
        trx.set_quietly(&user.due(record.deadline, &Due::Batch(batch)), &[])
    }

    /// Writes the parts of large payloads, as long as the batch is there.
    pub(crate) async fn write_ahead(
        &self,
        user: &UserKeys,
        name: &CollectionName,
        batch: BatchId,
        changes: &mut [Prepared],
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
                    // With conflict: whoever removes the batch removes what it finds.
                    trx.get(user.batch(batch).record(), false).await?.ok_or(Error::BatchNotFound)?;
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

    /// Removes a batch or an upload that is not committed. Returns whether it was there.
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
