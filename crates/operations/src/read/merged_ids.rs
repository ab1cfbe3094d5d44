//! Merges the documents of several channels in the order of their ids, each once.

use std::collections::BTreeMap;

use flatbed_databases::limits::Limit;
use flatbed_store::error::Result;
use flatbed_store::keys::{KeyRange, Keys};
use flatbed_store::records::ById;
use flatbed_store::transaction::Transaction;
use futures_util::future::try_join_all;

/// Ranges that are read at once.
pub(super) const RANGES_AT_ONCE: usize = 256;

/// Rounds of reads before a page ends.
const ROUNDS_MAX: usize = 8;

/// Approximate rows that a page reads from all ranges together.
const ROWS_READ_MAX: usize = 20_000;

/// The fewest rows to read from a range beyond its share.
const ROWS_BEYOND: Limit<usize> = Limit::new(16, 1);

#[derive(Debug, Default, PartialEq)]
pub struct MergedPage {
    /// Ids with winners and expiry times, in order, including expired ones.
    pub rows: Vec<(String, ById)>,
    /// True if there may be more.
    pub more: bool,
}

/// The rest of a channel.
struct Stream {
    range: KeyRange,
    /// The last id that was read; `None` at first.
    last: Option<String>,
    is_through: bool,
}

/// Returns the part of a channel's documents in a range of [`Keys::all_docs`].
fn part_of(keys: &Keys, channel: &str, ids: &KeyRange) -> KeyRange {
    let (whole, all) = (keys.channel_documents(channel), keys.all_docs());
    // Behind both prefixes an id has the same encoding; the empty one takes two bytes.
    let text_at = |entry: Vec<u8>| entry.len() - 2;
    let (ids_at, at) = (text_at(keys.all_docs_entry("")), text_at(keys.channel_document(channel, "")));
    let prefix = keys.channel_document(channel, "");
    let bound = |bound: &[u8]| {
        let text = bound.get(ids_at..).unwrap_or_default();
        [prefix.get(..at).unwrap_or_default(), text].concat()
    };
    KeyRange {
        begin: if ids.begin <= all.begin { whole.begin } else { bound(&ids.begin) },
        end: if ids.end >= all.end { whole.end } else { bound(&ids.end) },
    }
}

/// Returns the first documents of a range of [`Keys::all_docs`] that are in any of these channels: at most `limit`, and
/// at least one if there are any.
pub async fn merged_page(
    trx: &Transaction,
    keys: &Keys,
    channels: impl Iterator<Item = &str>,
    ids: &KeyRange,
    descending: bool,
    limit: usize,
) -> Result<MergedPage> {
    let mut streams: Vec<Stream> = channels
        .map(|channel| Stream { range: part_of(keys, channel, ids), last: None, is_through: false })
        .filter(|stream| stream.range.begin < stream.range.end)
        .collect();
    let part = limit / streams.len().max(1);
    let rows_each = if streams.len() == 1 { limit } else { (part + part / 4 + ROWS_BEYOND.get()).min(limit) }.max(1);
    let mut found: BTreeMap<String, ById> = BTreeMap::new();
    let mut rows_read = 0;
    for round in 0..ROUNDS_MAX {
        let mut asked: Vec<&mut Stream> = streams.iter_mut().filter(|stream| !stream.is_through).collect();
        if round > 0 {
            // The ranges that are behind the others.
            asked.sort_by(|a, b| if descending { b.last.cmp(&a.last) } else { a.last.cmp(&b.last) });
            asked.truncate(RANGES_AT_ONCE);
        }
        for part in asked.chunks_mut(RANGES_AT_ONCE) {
            let reads = part.iter().map(|stream| trx.range(&stream.range, true).reverse(descending).page(rows_each));
            let pages = try_join_all(reads.collect::<Vec<_>>()).await?;
            for (stream, page) in part.iter_mut().zip(pages) {
                rows_read += page.len();
                for row in &page {
                    let id = keys.channel_document_id(row.key())?;
                    stream.last = Some(id.clone());
                    found.insert(id, ById::decode(row.value())?);
                }
                match page.rest {
                    Some(rest) => stream.range = rest,
                    None => stream.is_through = true,
                }
            }
        }
        let rows = complete(&found, &streams, descending);
        let more = streams.iter().any(|stream| !stream.is_through);
        if !more || rows.len() >= limit || rows_read > ROWS_READ_MAX || round + 1 == ROUNDS_MAX {
            let is_cut = rows.len() > limit;
            return Ok(MergedPage { rows: rows.into_iter().take(limit).collect(), more: more || is_cut });
        }
    }
    Ok(MergedPage::default())
}

/// Returns the rows that no unread entry of a channel can precede.
fn complete(found: &BTreeMap<String, ById>, streams: &[Stream], descending: bool) -> Vec<(String, ById)> {
    let open = streams.iter().filter(|stream| !stream.is_through).filter_map(|stream| stream.last.as_ref());
    let owned = |(id, row): (&String, &ById)| (id.clone(), row.clone());
    match descending {
        false => {
            let until = open.min();
            found.iter().take_while(|(id, _)| until.is_none_or(|until| *id <= until)).map(owned).collect()
        }
        true => {
            let until = open.max();
            found.iter().rev().take_while(|(id, _)| until.is_none_or(|until| *id >= until)).map(owned).collect()
        }
    }
}
