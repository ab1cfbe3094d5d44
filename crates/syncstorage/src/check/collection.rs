//! The check of one collection and its overlays.

use bytes::Bytes;

use crate::check::{PAGE_ROWS, UserCheck, UserState};
use crate::error::{Error, Result};
use crate::keys::{BatchKeys, BlobId, CollectionKeys, SortKey};
use crate::layers::{LayeredRows, Layers};
use crate::names::{CollectionName, RecordId};
use crate::store::Inner;
use crate::timestamp::Timestamp;
use crate::transaction::Page;
use crate::values::{Collection, Row, StagedPayload, StagedRow};

/// The counts of a collection, as its records are read.
#[derive(Default)]
struct Sums {
    /// Visible records.
    count: u64,
    bytes: u64,
    /// Rows of the collection itself, and those of them that expire.
    rows: u64,
    expiring: u64,
    /// Large payloads with a pointer.
    blobs: u64,
}

impl Inner {
    pub(super) async fn check_collection(
        &self,
        known: &UserState,
        name: &CollectionName,
        state: &Collection,
        look: &mut UserCheck,
    ) -> Result<()> {
        let user = &known.user;
        let what = format!("user {}, {name}", user.uid());
        let layers = Layers::new(user, user.collection(name), state);
        let keys = &layers.keys;
        if state.modified > known.head.last {
            look.note(format!("{what}: its time is later than the clock"));
        }
        if state.overlays.len() > crate::commit::OVERLAYS_MAX {
            look.note(format!("{what}: more lies over it than may"));
        }
        let mut sums = Sums::default();
        self.check_rows(&what, &layers, state, &mut sums, look).await?;
        for layer in 0..layers.overlays.len() {
            self.check_overlay(&what, &layers, layer, &mut sums, look).await?;
        }
        look.records += sums.count;
        look.same(format_args!("{what}: records"), state.count, sums.count);
        look.same(format_args!("{what}: bytes"), state.bytes, sums.bytes);
        let entries = [
            ("entries by time", keys.by_modified(Timestamp::ZERO, Timestamp::MAX), sums.rows),
            ("entries by sortindex", keys.by_sortindex(), sums.rows),
            ("entries by expiry", keys.by_expiry(), sums.expiring),
        ];
        for (which, range, rows) in entries {
            let mut count = 0;
            self.walk(range, |_, _| {
                count += 1;
                Ok(())
            })
            .await?;
            look.same(format_args!("{what}: {which}"), count, rows);
        }
        // Each payload with a pointer exists, so none is left over if there are as many.
        let (mut blobs, mut last) = (0, None);
        self.walk(keys.blobs(), |key, _| {
            let (blob, _) = keys.take_blob(key)?;
            let is_ahead = known.batches.iter().any(|(batch, _)| batch.0 == blob.writer);
            if last.replace(blob) != Some(blob) && !is_ahead {
                blobs += 1;
            }
            Ok(())
        })
        .await?;
        look.same(format_args!("{what}: large payloads"), blobs, sums.blobs);
        Ok(())
    }

    async fn check_rows(
        &self,
        what: &str,
        layers: &Layers,
        state: &Collection,
        sums: &mut Sums,
        look: &mut UserCheck,
    ) -> Result<()> {
        let keys = &layers.keys;
        let mut range = keys.records();
        loop {
            let Page { rows, rest } = self.one_page(&range, PAGE_ROWS).await?;
            let mut records: Vec<(RecordId, Row)> = Vec::with_capacity(rows.len());
            for (key, value) in &rows {
                records.push((keys.take_record(key)?, Row::decode(value)?));
            }
            let covered = self.covered(layers, 0, records.iter().map(|(id, _)| id)).await?;
            let entries: Vec<_> = records
                .iter()
                .flat_map(|(id, row)| {
                    let expiry = keys.expiry(row.expires.unwrap_or_default(), id);
                    [keys.modified(row.modified, id), keys.sortindex(SortKey::of(row.sortindex), id), expiry]
                })
                .collect();
            let entries = self.values(&entries).await?;
            for (((id, row), is_covered), entries) in records.iter().zip(covered).zip(entries.chunks(3)) {
                if !is_covered {
                    sums.count += 1;
                    sums.bytes += row.payload.len();
                }
                sums.rows += 1;
                sums.expiring += u64::from(row.expires.is_some());
                if row.expires.is_some_and(|expires| expires < state.earliest) {
                    look.note(format!("{what}, {id}: expires before the first one does"));
                }
                let expires = row.expires.map(|expires| expires.hundredths().to_be_bytes().to_vec());
                let by_sort = [row.modified.hundredths().to_be_bytes().to_vec(), expires.clone().unwrap_or_default()];
                let by_expiry = row.expires.map(|_| (row.payload.len() as u32).to_be_bytes().to_vec());
                let wanted = [Some(expires.unwrap_or_default()), Some(by_sort.concat()), by_expiry];
                for (wanted, found) in wanted.into_iter().zip(entries) {
                    look.same(
                        format_args!("{what}, {id}: an entry"),
                        found.as_ref().map(|bytes| bytes.to_vec()),
                        wanted,
                    );
                }
                if let Some(blob) = row.payload.blob() {
                    sums.blobs += 1;
                    self.check_blob(what, keys, id, blob, row.payload.len(), look).await?;
                }
            }
            match rest {
                Some(rest) => range = rest,
                None => return Ok(()),
            }
        }
    }

    async fn check_overlay(
        &self,
        what: &str,
        layers: &Layers,
        layer: usize,
        sums: &mut Sums,
        look: &mut UserCheck,
    ) -> Result<()> {
        let Some((overlay, batch)) = layers.overlays.get(layer) else { return Ok(()) };
        let (mut range, mut rows_of, mut beside) = (batch.staged(), 0, 0);
        loop {
            let Page { rows, rest } = self.one_page(&range, PAGE_ROWS).await?;
            let edits = staged(batch, &rows)?;
            let covered = self.covered(layers, layer + 1, edits.iter().map(|(id, _)| id)).await?;
            let beneath = self.beneath(layers, layer, &edits).await?;
            for (((id, edit), is_covered), beneath) in edits.iter().zip(covered).zip(beneath) {
                rows_of += 1;
                if !is_covered {
                    sums.count += 1;
                    sums.bytes += edit.final_len();
                }
                if edit.final_expires(overlay.modified).is_some_and(|expires| expires < overlay.earliest) {
                    look.note(format!("{what}, {id}: expires before the first one of its batch does"));
                }
                // The state below it when it was counted, of which it keeps a part.
                let stored = (edit.beneath.exists, u64::from(edit.beneath.len));
                look.same(format_args!("{what}, {id}: what it lies upon"), stored, beneath);
                match edit.payload {
                    Some(StagedPayload::Beside { .. }) => beside += 1,
                    Some(StagedPayload::Blob { id: blob, len }) => {
                        sums.blobs += 1;
                        self.check_blob(what, &layers.keys, id, blob, u64::from(len), look).await?;
                    }
                    None => {}
                }
            }
            self.check_staged(what, batch, &edits, look).await?;
            match rest {
                Some(rest) => range = rest,
                None => break,
            }
        }
        let (mut entries, mut payloads) = (0, 0);
        self.walk(batch.by_sortindex(), |key, _| {
            entries += 1;
            batch.take_sortindex(key).map(drop)
        })
        .await?;
        self.walk(batch.payloads(), |key, _| {
            payloads += 1;
            batch.take_payload(key).map(drop)
        })
        .await?;
        look.same(format_args!("{what}, a committed batch: entries by sortindex"), entries, rows_of);
        look.same(format_args!("{what}, a committed batch: payloads"), payloads, beside);
        Ok(())
    }

    pub(super) async fn check_staged(
        &self,
        what: &str,
        batch: &BatchKeys,
        edits: &[(RecordId, StagedRow)],
        look: &mut UserCheck,
    ) -> Result<()> {
        let keys: Vec<_> = edits
            .iter()
            .flat_map(|(id, edit)| [batch.sortindex(SortKey::of(edit.final_sortindex()), id), batch.payload(id)])
            .collect();
        let values = self.values(&keys).await?;
        for ((id, edit), values) in edits.iter().zip(values.chunks(2)) {
            let [by_sort, payload] = values else { continue };
            let found = by_sort.as_ref().map(|bytes| bytes.to_vec());
            look.same(format_args!("{what}, {id}: a staged entry"), found, Some(edit.encode_expires()));
            let wanted = match edit.payload {
                Some(StagedPayload::Beside { len }) => Some(len as usize),
                _ => None,
            };
            look.same(format_args!("{what}, {id}: a staged payload"), payload.as_ref().map(Bytes::len), wanted);
        }
        Ok(())
    }

    /// Returns whether records exist at ids below a layer, and the bytes of their payloads.
    async fn beneath(
        &self,
        layers: &Layers,
        layer: usize,
        edits: &[(RecordId, StagedRow)],
    ) -> Result<Vec<(bool, u64)>> {
        self.runner
            .read(move |trx| async move {
                let ids: Vec<&RecordId> = edits.iter().map(|(id, _)| id).collect();
                let rows = crate::layers::base_rows(&trx, &layers.keys, &ids).await?;
                let found = layers.found(&trx, &ids, rows).await?;
                let beneath = found.into_iter().map(|mut found| {
                    found.staged.retain(|(of, _)| *of < layer);
                    layers.view(&found).map_or((false, 0), |view| (true, view.len))
                });
                Ok(beneath.collect())
            })
            .await
    }

    /// Returns the rows of the collection itself and of all overlays at ids.
    pub(super) async fn found_at(&self, layers: &Layers, ids: &[&RecordId]) -> Result<Vec<LayeredRows>> {
        self.runner
            .read(move |trx| async move {
                let rows = crate::layers::base_rows(&trx, &layers.keys, ids).await?;
                layers.found(&trx, ids, rows).await
            })
            .await
    }

    async fn covered<'a>(
        &self,
        layers: &Layers,
        layer: usize,
        ids: impl Iterator<Item = &'a RecordId>,
    ) -> Result<Vec<bool>> {
        let ids: &Vec<RecordId> = &ids.cloned().collect();
        self.runner.read(move |trx| async move { layers.are_covered(&trx, layer, ids).await }).await
    }

    pub(super) async fn check_blob(
        &self,
        what: &str,
        keys: &CollectionKeys,
        id: &RecordId,
        blob: BlobId,
        len: u64,
        look: &mut UserCheck,
    ) -> Result<()> {
        let (mut bytes, mut parts) = (0, 0);
        self.walk(keys.blob(blob), |key, part| {
            if keys.take_blob(key)? != (blob, parts) {
                return Err(Error::Corrupt("a part of a large payload is missing"));
            }
            parts += 1;
            bytes += part.len() as u64;
            Ok(())
        })
        .await?;
        look.same(format_args!("{what}, {id}: bytes of a large payload"), len, bytes);
        Ok(())
    }
}

pub(super) fn staged(batch: &BatchKeys, rows: &[(Vec<u8>, Bytes)]) -> Result<Vec<(RecordId, StagedRow)>> {
    rows.iter().map(|(key, value)| Ok((batch.take_staged(key)?, StagedRow::decode(value)?))).collect()
}
