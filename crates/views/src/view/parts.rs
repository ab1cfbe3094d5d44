//! Keys and values of rows that are too large to be stored in the row: in parts, under an id of their own.

use std::ops::Range;

use flatbed_databases::document::body::{BODY_BYTES_MAX, begin_read};
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::{KeyRange, ViewKeys};
use flatbed_store::proto;
use flatbed_store::transaction::{Quiet, Transaction};
use futures_util::future::BoxFuture;
use prost::Message;

use crate::view::prepare::PreparedRow;

/// The most bytes of key and value that are stored in a row. A reader of a node's rows reads this much of each.
pub const INLINE_BYTES_MAX: usize = 20_000;

pub(super) const PART_BYTES: usize = 90_000;

pub type Texts = (Vec<u8>, Vec<u8>);

pub(super) fn count(bytes: usize) -> u64 {
    bytes.div_ceil(PART_BYTES) as u64
}

pub(super) fn write(
    trx: &Transaction,
    keys: &ViewKeys,
    id: &str,
    (blob_id, row): (&[u8], &PreparedRow),
    parts: Range<u64>,
) -> Result<()> {
    let (key, value) = (row.key.as_bytes(), row.value.as_bytes());
    let cut = |text: &[u8], from: usize, until: usize| -> Vec<u8> {
        text.get(from.min(text.len())..until.min(text.len())).unwrap_or_default().to_vec()
    };
    for at in parts {
        let from = at as usize * PART_BYTES;
        let until = from + PART_BYTES;
        let of_value = cut(value, from.saturating_sub(key.len()), until.saturating_sub(key.len()));
        Quiet(trx).set(&keys.part(id, blob_id, at), &[cut(key, from, until), of_value].concat())?;
    }
    Ok(())
}

/// Begins to read key and value of a row, inline or in parts.
pub fn begin_texts<'t>(
    trx: &'t Transaction,
    keys: &ViewKeys,
    id: &str,
    row: proto::ViewRow,
) -> BoxFuture<'t, Result<Texts>> {
    if row.blob_id.is_empty() {
        return Box::pin(std::future::ready(Ok((row.key, row.value))));
    }
    let read = begin_read(trx, keys.parts(id, &row.blob_id));
    Box::pin(async move {
        let mut text = Vec::new();
        for page in read.finish(trx, BODY_BYTES_MAX).await? {
            page.iter().for_each(|part| text.extend_from_slice(part.value()));
        }
        if text.len() as u64 != row.key_bytes + row.value_bytes {
            return Err(Error::Corrupt("a row of a view lacks parts of its value".to_owned()));
        }
        let value = text.split_off(usize::try_from(row.key_bytes).unwrap_or(text.len()).min(text.len()));
        Ok((text, value))
    })
}

/// Begins to read the key of a row: only those parts that contain it.
pub fn begin_key<'t>(
    trx: &'t Transaction,
    keys: &ViewKeys,
    id: &str,
    row: proto::ViewRow,
) -> BoxFuture<'t, Result<Vec<u8>>> {
    if row.blob_id.is_empty() {
        return Box::pin(std::future::ready(Ok(row.key)));
    }
    let bytes = usize::try_from(row.key_bytes).unwrap_or(usize::MAX);
    let (begin, end) = (keys.part(id, &row.blob_id, 0), keys.part(id, &row.blob_id, count(bytes)));
    let read = begin_read(trx, KeyRange { begin, end });
    Box::pin(async move {
        let mut text = Vec::new();
        for page in read.finish(trx, BODY_BYTES_MAX).await? {
            page.iter().for_each(|part| text.extend_from_slice(part.value()));
        }
        if text.len() < bytes {
            return Err(Error::Corrupt("a row of a view lacks parts of its key".to_owned()));
        }
        text.truncate(bytes);
        text.shrink_to_fit();
        Ok(text)
    })
}

pub fn key_parts_bytes(row: &proto::ViewRow) -> u64 {
    if row.blob_id.is_empty() {
        return 0;
    }
    let bytes = usize::try_from(row.key_bytes).unwrap_or(usize::MAX);
    count(bytes).saturating_mul(PART_BYTES as u64).min(texts_bytes(row))
}

pub fn texts_bytes(row: &proto::ViewRow) -> u64 {
    if row.blob_id.is_empty() { (row.key.len() + row.value.len()) as u64 } else { row.key_bytes + row.value_bytes }
}

pub fn decode(value: &[u8]) -> Result<proto::ViewRow> {
    Ok(proto::ViewRow::decode(value)?)
}
