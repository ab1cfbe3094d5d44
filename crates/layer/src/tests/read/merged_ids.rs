//! Tests of `read::merged_ids` with a whole layer.
#![cfg(test)]

use std::collections::BTreeSet;

use flatbed_databases::instance::Instance;
use flatbed_operations::read::merged_ids::*;
use flatbed_revtree::RevId;
use flatbed_store::error::Result;
use flatbed_store::keys::KeyRange;
use flatbed_store::records::revision_message;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use flatbed_store::{proto, transaction};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use prost::Message;

use crate::tests::fenced::database;

/// Ids and channels of which some are prefixes of others or contain bytes that keys escape.
const IDS: [&str; 12] = ["a", "a\0", "a\0b", "a\u{1}", "aa", "ab", "b", "c", "d", "\u{e9}", "\u{ffff}", "\u{10000}"];
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
    let instance = flatbed_operations::write::batch::instance_of(&db.inner, "db").await.unwrap();
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
