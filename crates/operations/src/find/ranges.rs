//! The key ranges that a plan reads.

use std::ops::Bound;

use flatbed_collate::{Boundary, cut_to_level};
use flatbed_databases::document::edit::DOCUMENT_ID_BYTES_MAX;
use flatbed_flatten::json::Value;
use flatbed_mango::{Bookmark, IdRange, KeyEdge, Source};
use flatbed_store::error::Result;
use flatbed_store::keys::{KeyRange, Keys};
use flatbed_store::transaction::Transaction;
use futures_util::stream::{FuturesOrdered, StreamExt};

use crate::index::json::definition::collation;
use crate::index::json::key::DocumentKey;
use crate::index::json::place::EntrySearch;

const RANGES_AT_ONCE: usize = 16;

pub async fn of_keys(among: EntrySearch<'_>, ranges: &[flatbed_mango::KeyRange]) -> Result<Vec<KeyRange>> {
    let mut all = Vec::with_capacity(ranges.len());
    for range in ranges {
        let (begin, end) = (edge(among, &range.start).await?, edge(among, &range.end).await?);
        if begin < end {
            all.push(KeyRange { begin, end });
        }
    }
    Ok(all)
}

/// Returns the key before or behind all keys that begin with an edge's values.
async fn edge(among: EntrySearch<'_>, edge: &KeyEdge) -> Result<Vec<u8>> {
    let collation = collation()?;
    let items = collation.items_key(&edge.values);
    let place = if items.is_cut() {
        let values = Value::Array(edge.values.clone());
        // Keys with the edge's values never compare as equal: they are all behind or before the edge.
        let compare = |other: &Value<'_>| {
            let equal = if edge.behind { std::cmp::Ordering::Greater } else { std::cmp::Ordering::Less };
            collation.compare(&values, &cut_to_level(other, edge.values.len())).then(equal)
        };
        Some(Box::pin(among.search(&items, compare)).await?)
    } else {
        None
    };
    Ok(among.at(&Boundary::of_items(&items, place.as_ref(), edge.behind)))
}

/// Returns the key of a bookmark's entry, or of its position, and whether the entry is behind that position.
async fn entry_of(among: EntrySearch<'_>, bookmark: &Bookmark) -> Result<Vec<u8>> {
    // A client may name a document of another partition.
    let entry = |element: &[u8]| {
        let place = among.places.before_document(element, cut_id(&bookmark.id));
        among.within.instance.keys.index_place(among.number, &place)
    };
    let values = match &bookmark.key {
        Value::Array(values) => values.clone(),
        other => vec![other.clone()],
    };
    let key = DocumentKey::new(values)?;
    if !key.sort_key.is_cut() {
        return Ok(entry(key.sort_key.bytes()));
    }
    let collation = collation()?;
    let place = Box::pin(among.search(&key.sort_key, |other| collation.compare(&key.values, other))).await?;
    Ok(match &place {
        flatbed_collate::LabelPlace::Label(label) => entry(&[key.sort_key.bytes(), label].concat()),
        gap => among.at(&Boundary::of(&key.sort_key, Some(gap), false)),
    })
}

fn is_id(text: &str) -> bool {
    text.len() <= DOCUMENT_ID_BYTES_MAX
}

/// Returns the greatest possible id that is not greater than a text of any length, if the text is longer than an id.
fn cut_id(text: &str) -> &str {
    let end = (0..=DOCUMENT_ID_BYTES_MAX.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or_default()).unwrap_or_default()
}

pub fn of_ids(keys: &Keys, ranges: &[IdRange]) -> Vec<KeyRange> {
    let all = keys.all_docs();
    let after = |id: &str| [keys.all_docs_entry(id).as_slice(), &[0]].concat();
    let range = |range: &IdRange| {
        let begin = match &range.start {
            Bound::Unbounded => all.begin.clone(),
            Bound::Included(id) if is_id(id) => keys.all_docs_entry(id),
            Bound::Included(id) | Bound::Excluded(id) => after(cut_id(id)),
        };
        let end = match &range.end {
            Bound::Unbounded => all.end.clone(),
            Bound::Excluded(id) if is_id(id) => keys.all_docs_entry(id),
            Bound::Included(id) | Bound::Excluded(id) => after(cut_id(id)),
        };
        KeyRange { begin, end }
    };
    ranges.iter().map(range).filter(|range| range.begin < range.end).collect()
}

/// Returns all ranges that a query reads, in key order, behind its bookmark. `among`: its json index.
pub async fn of_source(
    keys: &Keys,
    among: Option<EntrySearch<'_>>,
    (source, after, reverse): (&Source, Option<&Bookmark>, bool),
) -> Result<Vec<KeyRange>> {
    let (mut ranges, after) = match (source, among) {
        (Source::Keys(ranges), Some(among)) => {
            let after = match after {
                Some(after) => Some(entry_of(among, after).await?),
                None => None,
            };
            (of_keys(among, ranges).await?, after)
        }
        (Source::Ids(ranges), _) => (of_ids(keys, ranges), after.map(|after| keys.all_docs_entry(cut_id(&after.id)))),
        _ => (Vec::new(), None),
    };
    if let Some(after) = after {
        ranges = behind(ranges, &after, reverse);
    }
    Ok(ranges)
}

pub fn behind(ranges: Vec<KeyRange>, key: &[u8], reverse: bool) -> Vec<KeyRange> {
    let next = [key, &[0]].concat();
    let clipped = ranges.into_iter().map(|mut range| {
        if reverse {
            range.end = range.end.min(key.to_vec());
        } else {
            range.begin = range.begin.max(next.clone());
        }
        range
    });
    clipped.filter(|range| range.begin < range.end).collect()
}

pub struct RowPage {
    pub rows: Vec<(Vec<u8>, Vec<u8>)>,
    /// True if more rows may follow.
    pub more: bool,
}

/// Reads the first rows of ranges: at most `rows_max`, and at least one if any exist.
pub async fn read(trx: &Transaction, ranges: &[KeyRange], rows_max: usize, reverse: bool) -> Result<RowPage> {
    let mut left: Box<dyn Iterator<Item = &KeyRange> + Send> = match reverse {
        true => Box::new(ranges.iter().rev()),
        false => Box::new(ranges.iter()),
    };
    let (mut read, mut under_way) = (RowPage { rows: Vec::new(), more: false }, FuturesOrdered::new());
    loop {
        while under_way.len() < RANGES_AT_ONCE
            && let Some(range) = left.next()
        {
            under_way.push_back(trx.range(range, true).reverse(reverse).page(rows_max));
        }
        let Some(page) = under_way.next().await else { return Ok(read) };
        let page = page?;
        for row in &page {
            if read.rows.len() == rows_max {
                read.more = true;
                return Ok(read);
            }
            read.rows.push((row.key().to_vec(), row.value().to_vec()));
        }
        if !page.is_all() || read.rows.len() == rows_max {
            read.more = true;
            return Ok(read);
        }
    }
}
