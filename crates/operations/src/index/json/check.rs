//! Checks a json index: each document has the entry that follows from its body, and no other.

use flatbed_collate::{SortKey, split};
use flatbed_databases::document::body;
use flatbed_databases::document::latest::begin_latest;
use flatbed_flatten::json::Value;
use flatbed_store::error::Result;
use flatbed_store::keys::{IndexPart, KeyRange, RowPlaces, SortPlace};
use flatbed_store::proto;
use flatbed_store::records::{BodyPlace, Info};

use crate::index::json::definition::{collation, compiled};
use crate::index::json::entry;
use crate::index::json::key::{Body, DocumentKey, catch_up, key_of, lacks_names};
use crate::index::json::pivots::{LEVELS, label};
use crate::index::json::place::EntrySearch;
use crate::index::maintainers::IndexContext;

/// See [`crate::index::kinds::Kind::check_document`].
pub async fn check_document(
    within: &IndexContext<'_>,
    index: &proto::Index,
    id: &str,
    info: &Info,
    is_built: bool,
) -> Result<Option<String>> {
    let IndexContext { trx, instance, .. } = *within;
    let (keys, number) = (&instance.keys, index.number);
    let range = match &info.place {
        BodyPlace::Rows => keys.document(id).body_rows(),
        BodyPlace::Blob(blob_id) => keys.blob_rows(blob_id),
    };
    let key = expected(within, index, id, info, body::read_rows(trx, range)).await?;
    let label = trx.get(&keys.index_of_document(number, id), true).await?;
    let is_cut = key.as_ref().is_some_and(|key| key.sort_key.is_cut());
    // The builder enters cut keys last.
    let is_built = is_built && (index.readable || !is_cut);
    if label.is_some() != is_cut && (is_built || label.is_some()) {
        return Ok(Some(format!("in index {number} it has a label: {}, it should: {is_cut}", label.is_some())));
    }
    let Some(key) = key else { return Ok(None) };
    let Some(element) = key.sort_key.with_label(label.as_deref()) else { return Ok(None) };
    let places = RowPlaces::of(compiled(index)?.is_partitioned(), id);
    Ok(match trx.get(&keys.index_entry(number, places, &element, id), true).await?.as_deref() {
        None if is_built || label.is_some() => Some(format!("its entry in index {number} is missing")),
        Some(value) if !entry::is_same(value, &key.entry_value()) => {
            Some(format!("its entry in index {number} has another key"))
        }
        _ => None,
    })
}

async fn expected(
    within: &IndexContext<'_>,
    index: &proto::Index,
    id: &str,
    info: &Info,
    rows: impl Future<Output = Result<body::Rows>> + Send,
) -> Result<Option<DocumentKey>> {
    let IndexContext { trx, instance, .. } = *within;
    if info.deleted {
        return Ok(None);
    }
    let compiled = compiled(index)?;
    if lacks_names(instance, &compiled) {
        catch_up(within, trx.get(&instance.keys.next_field_id(), true).await?.as_deref()).await?;
    }
    let rows = rows.await?;
    let key = key_of(within, &compiled, (id, &info.winner), Body::Read(&rows)).await?;
    Ok(key.map(|key| key.of(info)))
}

/// See [`crate::index::kinds::Kind::check_entry`].
pub async fn check_entry(
    within: &IndexContext<'_>,
    index: &proto::Index,
    part: IndexPart,
    value: &[u8],
) -> Result<Option<String>> {
    let IndexContext { trx, instance, .. } = *within;
    let (id, element) = match part {
        IndexPart::Progress | IndexPart::Later(_) => return Ok(None),
        // A pivot is a hint, and may be wrong.
        IndexPart::Node(level, from) => {
            let is_one = (1..=LEVELS).contains(&level) && label(&from).is_some();
            return Ok((!is_one).then(|| "it is no label of an entry".to_owned()));
        }
        IndexPart::Change(_) => return Ok(Some("it has no entries in the order of commits".to_owned())),
        IndexPart::OfDocument(id) => (id, None),
        IndexPart::Entry(SortPlace { partition, element, id }) => {
            if RowPlaces::of(compiled(index)?.is_partitioned(), &id).0 != partition.as_deref() {
                return Ok(Some(format!("it is outside of the partition of {id:?}")));
            }
            (id, Some(element))
        }
    };
    let found = begin_latest(trx, instance, &id).finish(trx, instance).await?;
    let Some((info, rows)) = found else { return Ok(Some(format!("its document {id:?} does not exist"))) };
    let Some(key) = expected(within, index, &id, &info, std::future::ready(Ok(rows))).await? else {
        return Ok(Some(format!("document {id:?} is not in it")));
    };
    let Some(element) = element else {
        return Ok((!key.sort_key.is_cut()).then(|| format!("document {id:?} has no label")));
    };
    let (form, label) = split(&element);
    let is_own = form == key.sort_key.bytes() && label.is_empty() != key.sort_key.is_cut();
    if !is_own || !entry::is_same(value, &key.entry_value()) {
        return Ok(Some(format!("document {id:?} has another")));
    }
    if label.is_empty() {
        return Ok(None);
    }
    let own = trx.get(&instance.keys.index_of_document(index.number, &id), true).await?;
    if own.as_deref() != Some(label) {
        return Ok(Some(format!("document {id:?} does not know its label")));
    }
    is_in_order(within, index, &key.sort_key, (&element, &id), &key.values).await
}

/// Checks that an entry with a label sorts behind the entry before it.
async fn is_in_order(
    within: &IndexContext<'_>,
    index: &proto::Index,
    key: &SortKey,
    (element, id): (&[u8], &str),
    values: &Value<'_>,
) -> Result<Option<String>> {
    let IndexContext { trx, instance, .. } = *within;
    let (keys, compiled) = (&instance.keys, compiled(index)?);
    let places = RowPlaces::of(compiled.is_partitioned(), id);
    let begin = keys.index_beginning(index.number, places, key.bytes()).begin;
    let before = KeyRange { begin, end: keys.index_entry(index.number, places, element, id) };
    let last = trx.range(&before, true).reverse(true).first(1).await?;
    let Some(row) = last.first() else { return Ok(None) };
    let (_, IndexPart::Entry(SortPlace { element: other, id: other_id, .. })) = keys.split_index(row.key())? else {
        return Ok(None);
    };
    let among = EntrySearch { within, number: index.number, index: &compiled, places, snapshot: true, written: None };
    let order = collation()?.compare(&Value::Array(among.key(&other_id, row.value()).await?), values);
    let is_right = if split(&other).1 == split(element).1 { order.is_eq() } else { order.is_lt() };
    Ok((!is_right).then(|| format!("document {id:?} is not at the position of its key")))
}
