//! Long keys in the worst order: each sorts between the last two.
#![cfg(test)]

use std::time::Duration;

use flatbed_collate::reduce::Reducer;
use flatbed_views::view::group::{Bounds, Reduction, ViewGroup, ViewTree};

use crate::tests::fenced::database;
use crate::tests::view::{Model, NUMBER, assert_is, begin, counted, follow};

fn group(searching: Duration) -> ViewGroup {
    let trees = vec![ViewTree { raw_collation: true, reduces: vec![Reduction::BuiltIn(Reducer::Count)] }];
    let bounds = Bounds { searching, rows_bytes: 400_000, ..Bounds::default() };
    ViewGroup::new(NUMBER, false, trees).unwrap().bounded(bounds)
}

/// Returns the `n`th key. Its prefix is longer than the part of a key that a row stores.
pub(super) fn key(n: usize) -> String {
    format!("\"{}{}{}\"", "x".repeat(4_200), "01".repeat(n / 2), "1".repeat(n % 2))
}

fn documents(numbers: impl Iterator<Item = usize>) -> Model {
    numbers.map(|n| (format!("{n:06}"), vec![vec![(key(n), n.to_string())]])).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn long_keys_in_the_worst_order_cost_few_reads() {
    let (db, _storage) = database().await;
    // No time cuts a batch: how many transactions it takes does not depend on the machine.
    let group = group(Duration::MAX);
    begin(&db, &group).await;
    let (count, mut model) = (400, Model::new());
    for from in (0..count).step_by(50) {
        let some = documents(from..from + 50);
        let (applied, waits) = counted(&db, &group, &some).await;
        println!(
            "{from}: {} transactions, {} range reads, {} waits",
            applied.len(),
            waits.range_reads,
            waits.path.depth()
        );
        assert!(applied.len() < 8, "{} transactions", applied.len());
        // Includes the cost of the rows and nodes.
        assert!(waits.range_reads < 800, "{from}: {waits:?}");
        model.extend(some);
    }
    // A single one, behind them and among them.
    for n in [count, count + 1] {
        let one = documents(n..n + 1);
        let (_, waits) = counted(&db, &group, &one).await;
        println!("{n}: {} range reads, {} waits", waits.range_reads, waits.path.depth());
        assert!(waits.path.depth() < 60, "{waits:?}");
        model.extend(one);
    }
    let between = Model::from([(
        "between".to_owned(),
        vec![vec![(format!("{}0\"", &key(200)[..key(200).len() - 1]), "0".to_owned())]],
    )]);
    let (_, waits) = counted(&db, &group, &between).await;
    assert!(waits.path.depth() < 60, "{waits:?}");
    model.extend(between);
    assert_is(&db, &group, &model).await;
}

/// A slow batch is entered in several transactions, each with at least one document.
#[tokio::test]
async fn a_batch_with_long_keys_is_cut_by_time() {
    let (db, _storage) = database().await;
    let group = group(Duration::ZERO);
    begin(&db, &group).await;
    let model = documents(0..7);
    let applied = follow(&db, &group, &model).await;
    assert_eq!(applied.iter().map(|applied| applied.documents).collect::<Vec<_>>(), [1; 7]);
    assert_is(&db, &group, &model).await;
}
