//! The visible collection: its own rows, and over them the committed batches that are not folded.

use std::collections::HashMap;

use bytes::{Bytes, BytesMut};
use futures_util::future::{try_join, try_join_all};

use crate::error::{Error, Result};
use crate::keys::{BatchKeys, BlobId, CollectionKeys, UserKeys};
use crate::names::RecordId;
use crate::timestamp::Timestamp;
use crate::transaction::Trx;
use crate::values::{Collection, Overlay, Payload, Row, StagedPayload, StagedRow};

/// The keys of a collection and of its overlays.
#[derive(Debug, Clone)]
pub(crate) struct Layers {
    pub keys: CollectionKeys,
    /// Oldest first.
    pub overlays: Vec<(Overlay, BatchKeys)>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct LayeredRows {
    pub base: Option<Row>,
    /// Edits of overlays, with the number of their layer; oldest first.
    pub staged: Vec<(usize, StagedRow)>,
}

/// A visible record, which may have expired.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub modified: Timestamp,
    pub sortindex: Option<i32>,
    pub expires: Option<Timestamp>,
    pub len: u64,
    pub payload: PayloadAt,
}

#[derive(Debug, Clone)]
pub(crate) enum PayloadAt {
    Here(Payload),
    /// Beside an edit of this overlay.
    Beside(usize),
}

const MISSING: Error = Error::Corrupt("a staged payload is missing");

impl Layers {
    pub(crate) fn new(user: &UserKeys, keys: CollectionKeys, state: &Collection) -> Layers {
        let overlays = state.overlays.iter().map(|overlay| (*overlay, user.batch(overlay.batch))).collect();
        Layers { keys, overlays }
    }

    /// Reads the rows at ids in all layers in parallel.
    pub(crate) async fn all_found(&self, trx: &Trx, ids: &[&RecordId]) -> Result<Vec<LayeredRows>> {
        let rows = trx.get_near(ids.iter().map(|id| self.keys.record(id)).collect());
        let over = self.overlays.iter();
        let over = over.map(|(_, keys)| trx.get_near(ids.iter().map(|id| keys.staged_record(id)).collect()));
        let (rows, over) = try_join(rows, try_join_all(over)).await?;
        let rows = rows.iter().map(|row| row.as_ref().map(Row::decode).transpose());
        self.put_together(rows.collect::<Result<_>>()?, over)
    }

    /// Reads the payloads beside edits of these ids. The map's keys are positions in `views`.
    pub(crate) async fn beside(&self, trx: &Trx, views: &[(&RecordId, View)]) -> Result<HashMap<usize, Bytes>> {
        let mut out = HashMap::new();
        for (layer, (_, keys)) in self.overlays.iter().enumerate() {
            let of_layer = views.iter().enumerate().filter(|(_, (_, view))| match view.payload {
                PayloadAt::Beside(of) => of == layer,
                PayloadAt::Here(_) => false,
            });
            let (places, wanted): (Vec<_>, Vec<_>) = of_layer.map(|(at, (id, _))| (at, keys.payload(id))).unzip();
            for (place, found) in places.into_iter().zip(trx.get_near(wanted).await?) {
                out.insert(place, found.ok_or(MISSING)?);
            }
        }
        Ok(out)
    }

    /// Reads the rows of the overlays at ids. `rows` are those of the collection itself.
    pub(crate) async fn found(&self, trx: &Trx, ids: &[&RecordId], rows: Vec<Option<Row>>) -> Result<Vec<LayeredRows>> {
        let layers = self.overlays.iter().map(|(_, keys)| trx.get_all(ids.iter().map(|id| keys.staged_record(id))));
        self.put_together(rows, try_join_all(layers).await?)
    }

    fn put_together(&self, rows: Vec<Option<Row>>, over: Vec<Vec<Option<Bytes>>>) -> Result<Vec<LayeredRows>> {
        let mut found: Vec<LayeredRows> =
            rows.into_iter().map(|base| LayeredRows { base, staged: Vec::new() }).collect();
        for (layer, staged) in over.into_iter().enumerate() {
            for (found, staged) in found.iter_mut().zip(staged) {
                if let Some(staged) = staged {
                    found.staged.push((layer, StagedRow::decode(&staged)?));
                }
            }
        }
        Ok(found)
    }

    /// Returns which ids have an edit in the overlays from number `layer` on.
    pub(crate) async fn are_covered(&self, trx: &Trx, layer: usize, ids: &[RecordId]) -> Result<Vec<bool>> {
        let mut are = vec![false; ids.len()];
        let over = self.overlays.iter().skip(layer);
        let over = over.map(|(_, keys)| trx.get_near(ids.iter().map(|id| keys.staged_record(id)).collect()));
        for layer in try_join_all(over).await? {
            are.iter_mut().zip(layer).for_each(|(is, found)| *is |= found.is_some());
        }
        Ok(are)
    }

    /// Returns the visible record, if any, which may have expired.
    pub(crate) fn view(&self, found: &LayeredRows) -> Option<View> {
        let mut view = found.base.as_ref().map(|row| View {
            modified: row.modified,
            sortindex: row.sortindex,
            expires: row.expires,
            len: row.payload.len(),
            payload: PayloadAt::Here(row.payload.clone()),
        });
        for (layer, staged) in &found.staged {
            let Some((overlay, _)) = self.overlays.get(*layer) else { continue };
            let payload = match staged.payload {
                Some(StagedPayload::Beside { .. }) => PayloadAt::Beside(*layer),
                Some(StagedPayload::Blob { id, len }) => PayloadAt::Here(Payload::Blob { id, len }),
                None => match view {
                    Some(view) if staged.keeps_payload() => view.payload,
                    _ => PayloadAt::Here(Payload::Inline(Bytes::new())),
                },
            };
            view = Some(View {
                modified: overlay.modified,
                sortindex: staged.final_sortindex(),
                expires: staged.final_expires(overlay.modified),
                len: staged.final_len(),
                payload,
            });
        }
        view
    }

    /// Returns the visible record unless it has expired at a time.
    pub(crate) fn live_view(&self, found: &LayeredRows, now: Timestamp) -> Option<View> {
        self.view(found).filter(|view| view.expires.is_none_or(|expires| expires > now))
    }

    /// Returns a payload in the form of the collection's rows.
    pub(crate) async fn payload(&self, trx: &Trx, id: &RecordId, at: PayloadAt) -> Result<Payload> {
        let layer = match at {
            PayloadAt::Here(payload) => return Ok(payload),
            PayloadAt::Beside(layer) => layer,
        };
        let (_, keys) = self.overlays.get(layer).ok_or(Error::Corrupt("an overlay"))?;
        let payload = trx.get(&keys.payload(id), true).await?;
        payload.map(Payload::Inline).ok_or(MISSING)
    }

    pub(crate) async fn bytes(&self, trx: &Trx, id: &RecordId, at: PayloadAt) -> Result<Bytes> {
        match self.payload(trx, id, at).await? {
            Payload::Inline(bytes) => Ok(bytes),
            Payload::Blob { id, len } => read_blob(trx, &self.keys, id, len).await,
        }
    }
}

impl LayeredRows {
    pub(crate) fn exists(&self) -> bool {
        self.base.is_some() || !self.staged.is_empty()
    }

    /// Iterates over all large payloads, including covered ones.
    pub(crate) fn blobs(&self) -> impl Iterator<Item = BlobId> {
        let staged = self.staged.iter().filter_map(|(_, staged)| match staged.payload {
            Some(StagedPayload::Blob { id, .. }) => Some(id),
            _ => None,
        });
        self.base.iter().filter_map(|row| row.payload.blob()).chain(staged)
    }
}

pub(crate) async fn base_rows(trx: &Trx, keys: &CollectionKeys, ids: &[&RecordId]) -> Result<Vec<Option<Row>>> {
    let rows = trx.get_all(ids.iter().map(|id| keys.record(id))).await?;
    rows.iter().map(|row| row.as_ref().map(Row::decode).transpose()).collect()
}

pub(crate) const PART_BYTES: usize = 90_000;

/// Reads all parts in parallel: pages of a range would be sequential round trips.
async fn read_blob(trx: &Trx, keys: &CollectionKeys, id: BlobId, len: u32) -> Result<Bytes> {
    let parts = (len as u64).div_ceil(PART_BYTES as u64);
    let parts = trx.get_all((0..parts).map(|part| keys.blob_part(id, part))).await?;
    let mut out = BytesMut::with_capacity(parts.iter().flatten().map(Bytes::len).sum());
    parts.iter().flatten().for_each(|part| out.extend_from_slice(part));
    if out.len() == len as usize { Ok(out.freeze()) } else { Err(Error::Corrupt("a payload's parts")) }
}
