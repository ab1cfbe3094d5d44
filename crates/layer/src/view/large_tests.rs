//! Large documents: readers see the rows of before or those of after, whoever ends what another began.
#![cfg(test)]

use proptest::prelude::*;

use crate::fenced::database;
use crate::handle::Database;
use crate::view::apply::Applied;
use crate::view::build::FOLLOWED;
use crate::view::group::{Bounds, ViewGroup};
use crate::view::large::under_way;
use crate::view::read_tests::{Asked, asked, compare};
use crate::view::tests::{
    Model, Todo, assert_is, batch, build, group, keys_of, prepared, rows, sized_step, step, violations,
};

/// Documents with a few dozens of rows each, of all kinds.
fn large() -> impl Strategy<Value = Vec<Vec<(String, String)>>> {
    prop_oneof![4 => rows(50), 1 => Just(vec![Vec::new(); 3])]
}

/// A transaction that enters the first of some documents: how many, and whether one is under way behind them.
async fn enter(db: &Database, group: &ViewGroup, documents: &Model, from: usize) -> (Applied, bool) {
    let documents = prepared(group, documents);
    let (applied, progress) = step(db, group, Todo::Apply(&documents[from..])).await;
    assert!(!applied.is_full);
    (applied, under_way(&progress).is_some())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, failure_persistence: None, max_shrink_iters: 0, ..ProptestConfig::default() })]

    /// `edits`: what becomes of the document, and after how many transactions whoever enters that dies: the next one is entered
    /// then.
    #[test]
    fn readers_see_what_was_before_or_all_of_it(
        others in batch(), first in large(), edits in prop::collection::vec((large(), 1..6_usize), 1..5),
        beside in batch(), asked in prop::collection::vec(asked((0..60_u32).prop_map(|n| format!("d{n}"))), 6..7)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (db, _directory) = database().await;
            let group = group();
            let mut model = others;
            model.insert("d7".to_owned(), first);
            build(&db, &group, &model).await;
            let last = edits.len() - 1;
            for (at, (rows, dies_after)) in edits.into_iter().enumerate() {
                // Small documents are behind it, as they are in what is followed.
                let large = Model::from([("d7".to_owned(), rows)]);
                let mut steps = 0;
                let is_under_way = loop {
                    let (applied, is_under_way) = enter(&db, &group, &large, 0).await;
                    if applied.documents > 0 {
                        model.extend(large);
                        break is_under_way;
                    }
                    assert_eq!(violations(&db, &group).await, Vec::<String>::new());
                    sees(&db, &model, &asked).await;
                    steps += 1;
                    if steps >= dies_after && at < last {
                        break is_under_way;
                    }
                };
                assert!(!is_under_way || at < last);
                sees(&db, &model, &asked).await;
                if !is_under_way {
                    assert_is(&db, &group, &model).await;
                    // What was left behind goes in passing.
                    let beside = beside.iter().filter(|(id, _)| *id != "d7").map(|(id, rows)| (id.clone(), rows.clone()));
                    let beside: Model = beside.collect();
                    let mut from = 0;
                    while from < beside.len() {
                        from += enter(&db, &group, &beside, from).await.0.documents;
                        assert_eq!(violations(&db, &group).await, Vec::<String>::new());
                    }
                    model.extend(beside);
                    sees(&db, &model, &asked).await;
                }
            }
            let gone: Model = model.keys().map(|id| (id.clone(), vec![Vec::new(); 3])).collect();
            let mut from = 0;
            while from < gone.len() {
                from += enter(&db, &group, &gone, from).await.0.documents;
            }
            while step(&db, &group, Todo::Apply(&[])).await.1.untidy {}
            assert_is(&db, &group, &Model::new()).await;
            assert_eq!(keys_of(&db).await, 1, "its progress alone");
        });
    }
}

async fn sees(db: &Database, model: &Model, asked: &[Asked]) {
    for asked in asked {
        compare(db, &group(), model, None, asked.clone()).await;
    }
}

/// The bounds of a server.
fn as_served(group: ViewGroup) -> ViewGroup {
    group.bounded(Bounds { rows: 1_500, rows_bytes: 400_000, ..Bounds::default() })
}

/// As many rows as a document may have; rows as large as may be; as many long keys as there is room for; and then they go: by a
/// first build, and by following.
#[tokio::test]
async fn no_transaction_is_large() {
    let spaces = |bytes: usize| " ".repeat(bytes);
    let many = |add: u32| (0..49_998).map(|n| (format!("[{},{n}]", n % 10), (n + add).to_string())).collect::<Vec<_>>();
    let huge = |n: u32| vec![("1".to_owned(), format!("{n}{}", spaces(8_000_000)))];
    let middle = |n: u32| (0..60).map(|at| (at.to_string(), format!("{n}{}", spaces(100_000)))).collect::<Vec<_>>();
    let long =
        |n: u32| (0..150).map(|at| (format!("[\"{}\",{at}]", "a".repeat(5_000)), n.to_string())).collect::<Vec<_>>();
    let full = |n: u32| (0..500).map(|at| (at.to_string(), format!("{n}{}", spaces(15_000)))).collect::<Vec<_>>();
    let rows = |kind: usize, n: u32| match kind {
        0 => many(n),
        1 => huge(n),
        2 => middle(n),
        3 => full(n),
        _ => long(n),
    };
    for (kind, name) in
        ["50,000 rows", "a row of 8 MB", "60 rows of 100 kB", "500 of 15 kB", "150 long keys"].iter().enumerate()
    {
        let (db, _directory) = database().await;
        let group = as_served(group());
        let of = |n: u32| {
            let one = vec![("7".to_owned(), n.to_string())];
            Model::from([("large".to_owned(), vec![one.clone(), rows(kind, n), one])])
        };
        let (mut most, mut steps) = (0, Vec::new());
        let documents = prepared(&group, &of(1));
        let mut count = 0;
        loop {
            let (applied, _, bytes) = sized_step(&db, &group, Todo::Write(&documents)).await;
            (most, count) = (bytes.max(most), count + 1);
            if applied.documents == 1 {
                break;
            }
        }
        steps.push(count);
        while step(&db, &group, Todo::Build).await.1.phase != FOLLOWED {}
        for documents in [of(2), Model::from([("large".to_owned(), vec![Vec::new(); 3])])] {
            let documents = prepared(&group, &documents);
            let mut count = 0;
            loop {
                let (applied, _, bytes) = sized_step(&db, &group, Todo::Apply(&documents)).await;
                (most, count) = (bytes.max(most), count + 1);
                if applied.documents == 1 {
                    break;
                }
            }
            steps.push(count);
        }
        println!("{name}: {most} bytes at most, {steps:?} transactions");
        while step(&db, &group, Todo::Apply(&[])).await.1.untidy {}
        assert_is(&db, &group, &Model::new()).await;
        assert_eq!(keys_of(&db).await, 1, "its progress alone");
    }
}
