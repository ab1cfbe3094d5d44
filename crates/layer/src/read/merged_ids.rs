//! Merges the documents of several channels in the order of their ids, each once.

use std::collections::BTreeMap;

use flatbed_store::error::Result;
use flatbed_store::keys::{KeyRange, Keys};
use flatbed_store::records::ById;
use flatbed_store::transaction::Transaction;
use futures_util::future::try_join_all;

use crate::limits::Limit;

/// Ranges that are read at once.
pub(super) const RANGES_AT_ONCE: usize = 256;

/// Rounds of reads before a page ends.
const ROUNDS_MAX: usize = 8;

/// Approximate rows that a page reads from all ranges together.
const ROWS_READ_MAX: usize = 20_000;

/// The fewest rows to read from a range beyond its share.
const ROWS_BEYOND: Limit<usize> = Limit::new(16, 1);

#[derive(Debug, Default, PartialEq)]
pub(crate) struct MergedPage {
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
pub(crate) async fn merged_page(
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use flatbed_revtree::RevId;
    use flatbed_store::proto;
    use flatbed_store::records::revision_message;
    use flatbed_store::transaction::{self, Attempt, Operation};
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;
    use prost::Message;

    use super::*;
    use crate::fenced::database;
    use crate::instance::Instance;

    /// Ids and channels of which some are prefixes of others or contain bytes that keys escape.
    const IDS: [&str; 12] =
        ["a", "a\0", "a\0b", "a\u{1}", "aa", "ab", "b", "c", "d", "\u{e9}", "\u{ffff}", "\u{10000}"];
    const CHANNELS: [&str; 5] = ["A", "A\0", "AB", "!", "\u{ff}"];

    struct Put<'a>(&'a Instance, &'a [(usize, usize)]);

    impl Operation for Put<'_> {
        type Output = ();

        async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<()> {
            let keys = &self.0.keys;
            let all = keys.channel_documents_all();
            trx.clear_range(&all.begin, &all.end);
            for (channel, id) in self.1 {
                let winner = Some(revision_message(&RevId::new(1, [*id as u8; 16])));
                trx.set(
                    &keys.channel_document(CHANNELS[*channel], IDS[*id]),
                    &proto::AllDocsEntry { winner, ..Default::default() }.encode_to_vec(),
                );
            }
            Ok(())
        }
    }

    /// Reads all pages of a range of ids in one transaction.
    struct Walk<'a> {
        instance: &'a Instance,
        held: &'a [usize],
        range: KeyRange,
        descending: bool,
        limit: usize,
    }

    impl Operation for Walk<'_> {
        type Output = Vec<(String, RevId)>;

        async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
            let keys = &self.instance.keys;
            let (mut all, mut rest) = (Vec::new(), self.range.clone());
            loop {
                let held = self.held.iter().map(|at| CHANNELS[*at]);
                let page = merged_page(trx, keys, held, &rest, self.descending, self.limit).await?;
                assert!(page.rows.len() <= self.limit && !(page.more && page.rows.is_empty()), "{page:?}");
                let Some((last, _)) = page.rows.last() else { return Ok(all) };
                let last = keys.all_docs_entry(last);
                match self.descending {
                    true => rest.end = last,
                    false => rest.begin = [&last[..], &[0]].concat(),
                }
                all.extend(page.rows.into_iter().map(|(id, row)| (id, row.winner)));
                if !page.more {
                    return Ok(all);
                }
            }
        }
    }

    /// Each document comes once, in order, and none of other channels.
    #[tokio::test]
    async fn ranges_of_channels_are_put_together() {
        let (db, _storage) = database().await;
        db.exists().await.unwrap();
        let inner = &*db.inner;
        let instance = crate::write::batch::instance_of(&db.inner, "db").await.unwrap();
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let some = (
            proptest::collection::vec((0..CHANNELS.len(), 0..IDS.len()), 0..40),
            proptest::collection::vec(0..CHANNELS.len(), 0..4),
            proptest::option::of(0..IDS.len()),
            proptest::option::of(0..IDS.len()),
            any::<bool>(),
            1..6_usize,
        );
        for _ in 0..200 {
            let (rows, mut held, from, to, descending, limit) = some.new_tree(&mut runner).unwrap().current();
            held.sort_unstable();
            held.dedup();
            transaction::write(&inner.db, &inner.metrics, &mut Put(&instance, &rows)).await.unwrap();
            let mut range = instance.keys.all_docs();
            if let Some(from) = from {
                range.begin = instance.keys.all_docs_entry(IDS[from]);
            }
            if let Some(to) = to {
                range.end = instance.keys.all_docs_entry(IDS[to]);
            }
            let (low, high) = (from.map(|at| IDS[at]), to.map(|at| IDS[at]));
            let expected: BTreeSet<usize> =
                rows.iter().filter(|(channel, _)| held.contains(channel)).map(|(_, id)| *id).collect();
            let mut expected: Vec<(String, RevId)> = expected
                .into_iter()
                .filter(|id| low.is_none_or(|low| IDS[*id] >= low) && high.is_none_or(|high| IDS[*id] < high))
                .map(|id| (IDS[id].to_owned(), RevId::new(1, [id as u8; 16])))
                .collect();
            expected.sort();
            if descending {
                expected.reverse();
            }
            let mut walk = Walk { instance: &instance, held: &held, range, descending, limit };
            let found = transaction::read(&inner.db, &inner.metrics, &mut walk).await.unwrap();
            assert_eq!(found, expected, "{rows:?} {held:?} {from:?} {to:?} {descending} {limit}");
        }
    }
}
