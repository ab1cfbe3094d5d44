//! Checks a selector index: exactly the documents that its selector matches have an entry, at their own sequences. The
//! by-seq entry names the index if a write entered the document.

use flatbed_databases::document::latest::begin_latest;
use flatbed_store::error::Result;
use flatbed_store::keys::IndexPart;
use flatbed_store::proto;
use flatbed_store::records::Info;
use flatbed_store::seq::Seq;
use prost::Message;

use crate::index::json::key::Body;
use crate::index::maintainers::IndexContext;
use crate::index::selector::selecting::{SelectorUpdates, entry_of_document};

async fn is_taken(
    within: &IndexContext<'_>,
    index: &proto::Index,
    id: &str,
    body: Body<'_>,
    info: &Info,
) -> Result<bool> {
    let mut selecting = SelectorUpdates::of_one(index);
    selecting.begin(within);
    Ok(!selecting.taking(within, id, info, body).await?.is_empty())
}

/// See [`crate::index::kinds::Kind::check_document`].
pub async fn check_document(
    within: &IndexContext<'_>,
    index: &proto::Index,
    id: &str,
    info: &Info,
    is_built: bool,
) -> Result<Option<String>> {
    let IndexContext { trx, instance, .. } = *within;
    let number = index.number;
    // The builder enters tombstones last, and its progress among them is not read.
    let may_be_built = is_built || info.deleted;
    let is_built = index.readable || is_built && !info.deleted;
    let seq = Seq::new(instance.incarnation(), info.stamp);
    let Some((_, rows)) = begin_latest(trx, instance, id).finish(trx, instance).await? else { return Ok(None) };
    let is_taken = is_taken(within, index, id, Body::Read(&rows), info).await?;
    let entry = trx.get(&instance.keys.index_change(number, &seq), true).await?;
    if entry.is_some() != is_taken && (is_built || entry.is_some()) {
        return Ok(Some(format!("in index {number} it has an entry: {}, it should: {is_taken}", entry.is_some())));
    }
    if entry.as_deref().is_some_and(|entry| *entry != *entry_of_document(id, info)) {
        return Ok(Some(format!("its entry in index {number} is not its own")));
    }
    let by_seq = match instance.buckets.of(info.bucket) {
        Some(bucket) => trx.get(&bucket.by_seq(&seq), true).await?,
        None => None,
    };
    let by_seq = by_seq.map(|entry| proto::SequenceEntry::decode(&*entry)).transpose()?.unwrap_or_default();
    let is_named = by_seq.selected.contains(&number);
    if is_named && !is_taken || entry.is_some() && !may_be_built && !is_named {
        return Ok(Some(format!("by-seq says that index {number} takes it: {is_named}, it should: {is_taken}")));
    }
    Ok(None)
}

/// See [`crate::index::kinds::Kind::check_entry`].
pub async fn check_entry(
    within: &IndexContext<'_>,
    index: &proto::Index,
    part: IndexPart,
    value: &[u8],
) -> Result<Option<String>> {
    let IndexContext { trx, instance, .. } = *within;
    let IndexPart::Change(seq) = part else {
        return Ok(Some("it has entries in the order of commits alone".to_owned()));
    };
    let Ok(entry) = proto::SequenceEntry::decode(value) else { return Ok(Some("cannot be read".to_owned())) };
    let id = entry.document_id;
    let Some((info, rows)) = begin_latest(trx, instance, &id).finish(trx, instance).await? else {
        return Ok(Some(format!("its document {id:?} does not exist")));
    };
    if seq != Seq::new(instance.incarnation(), info.stamp) || *value != *entry_of_document(&id, &info) {
        return Ok(Some(format!("document {id:?} has another")));
    }
    let is_taken = is_taken(within, index, &id, Body::Read(&rows), &info).await?;
    Ok((!is_taken).then(|| format!("document {id:?} is not in it")))
}
