//! Large documents: readers see the old rows or the new ones, whichever process completes the change.
#![cfg(test)]

use flatbed_collate::reduce::Reducer;
use flatbed_store::keys::{KeyRange, ViewPart};
use flatbed_store::proto;
use flatbed_store::transaction::Transaction;
use flatbed_store::view_bounds::ViewBounds;
use flatbed_testkit::number;
use flatbed_views::view::apply::ApplyResult;
use flatbed_views::view::build::FOLLOWED;
use flatbed_views::view::group::{Bounds, Reduction, ViewGroup, ViewTree};
use flatbed_views::view::large::under_way;
use proptest::prelude::*;
use prost::Message;

use crate::handle::Database;
use crate::tests::fenced::database;
use crate::tests::view::read_tests::{RecordedQuery, asked, compare};
use crate::tests::view::{
    Model, NUMBER, ViewWork, assert_is, batch, build, group, keys_of, prepared, rows, set, sized_step, step, violations,
};

/// Generates documents with a few dozens of rows each, of all kinds.
fn large() -> impl Strategy<Value = Vec<Vec<(String, String)>>> {
    prop_oneof![4 => rows(50), 1 => Just(vec![Vec::new(); 3])]
}

/// Enters the first of some documents in a transaction, and returns their number and whether one is partly changed.
async fn enter(db: &Database, group: &ViewGroup, documents: &Model, from: usize) -> (ApplyResult, bool) {
    let documents = prepared(group, documents);
    let (applied, progress) = step(db, group, ViewWork::Apply(&documents[from..])).await;
    assert!(!applied.is_full);
    (applied, under_way(&progress).is_some())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2, failure_persistence: None, max_shrink_iters: 0, ..ProptestConfig::default() })]

    /// `edits`: the new rows of the document, and the number of transactions after which the process dies. The next
    /// edit is entered then.
    #[test]
    fn readers_see_what_was_before_or_all_of_it(
        others in batch(), first in large(), edits in prop::collection::vec((large(), 1..6_usize), 1..5),
        beside in batch(), asked in prop::collection::vec(asked((0..60_u32).prop_map(|n| format!("d{n}"))), 6..7)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (db, _storage) = database().await;
            let group = group();
            let mut model = others;
            model.insert("d7".to_owned(), first);
            build(&db, &group, &model).await;
            let last = edits.len() - 1;
            for (at, (rows, dies_after)) in edits.into_iter().enumerate() {
                // Small documents follow it, as in a feed.
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
                    // Later transactions clear the leftovers.
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
            while step(&db, &group, ViewWork::Apply(&[])).await.1.untidy {}
            assert_is(&db, &group, &Model::new()).await;
            assert_eq!(keys_of(&db).await, 1, "its progress alone");
        });
    }
}

async fn sees(db: &Database, model: &Model, asked: &[RecordedQuery]) {
    for asked in asked {
        compare(db, &group(), model, None, asked.clone()).await;
    }
}

/// Returns the limit of rows of a document in these tests. A server's is 50,000, which only `make torture` uses: each
/// transaction compares all rows of the document, so the time grows with their square. From some thousands on, the size
/// of a transaction does not depend on it.
fn rows_max() -> u32 {
    number("FLATBED_TEST_ROWS").unwrap_or(10_000)
}

/// Returns the bounds of a server, except [`rows_max`].
fn as_served(group: ViewGroup) -> ViewGroup {
    let document = ViewBounds { rows: rows_max() as usize, ..ViewBounds::default() };
    group.bounded(Bounds { document, rows: 1_500, rows_bytes: 400_000, ..Bounds::default() })
}

fn spaces(bytes: usize) -> String {
    " ".repeat(bytes)
}

type Rows = Vec<(String, String)>;

/// Enters one document and returns the number of transactions. The size of each is checked ([`sized_step`]).
async fn transactions_of(db: &Database, group: &ViewGroup, todo: ViewWork<'_>) -> usize {
    let (mut most, mut count) = (0, 0);
    loop {
        let (applied, _, bytes) = sized_step(db, group, todo).await;
        (most, count) = (bytes.max(most), count + 1);
        if applied.documents == 1 {
            println!("{most} bytes at most, {count} transactions");
            return count;
        }
    }
}

/// Enters the rows of a document by a first build, then other rows, then none, by following. Returns the numbers of
/// transactions.
async fn enter_in_small_transactions(rows: impl Fn(u32) -> Rows) -> [usize; 3] {
    let (db, _storage) = database().await;
    let group = as_served(group());
    let of = |n: u32| {
        let one = vec![("7".to_owned(), n.to_string())];
        Model::from([("large".to_owned(), vec![one.clone(), rows(n), one])])
    };
    let none = Model::from([("large".to_owned(), vec![Vec::new(); 3])]);
    let built = transactions_of(&db, &group, ViewWork::Write(&prepared(&group, &of(1)))).await;
    while step(&db, &group, ViewWork::Build).await.1.phase != FOLLOWED {}
    let changed = transactions_of(&db, &group, ViewWork::Apply(&prepared(&group, &of(2)))).await;
    let gone = transactions_of(&db, &group, ViewWork::Apply(&prepared(&group, &none))).await;
    while step(&db, &group, ViewWork::Apply(&[])).await.1.untidy {}
    assert_is(&db, &group, &Model::new()).await;
    assert_eq!(keys_of(&db).await, 1, "its progress alone");
    [built, changed, gone]
}

#[tokio::test]
async fn no_transaction_of_many_rows_is_large() {
    let row = |n: u32, add: u32| (format!("[{},{n}]", n % 10), (n + add).to_string());
    let rows = |add: u32| -> Rows { (0..rows_max() - 2).map(|n| row(n, add)).collect() };
    let transactions = enter_in_small_transactions(rows).await;
    assert!(transactions.iter().all(|count| *count > 6), "{transactions:?}");
}

#[tokio::test]
async fn no_transaction_of_a_huge_row_is_large() {
    let rows = |n: u32| -> Rows { vec![("1".to_owned(), format!("{n}{}", spaces(8_000_000)))] };
    enter_in_small_transactions(rows).await;
}

#[tokio::test]
async fn no_transaction_of_large_rows_is_large() {
    let row = |at: u32, n: u32| (at.to_string(), format!("{n}{}", spaces(100_000)));
    let rows = |n: u32| -> Rows { (0..60).map(|at| row(at, n)).collect() };
    enter_in_small_transactions(rows).await;
}

#[tokio::test]
async fn no_transaction_of_full_rows_is_large() {
    let row = |at: u32, n: u32| (at.to_string(), format!("{n}{}", spaces(15_000)));
    let rows = |n: u32| -> Rows { (0..500).map(|at| row(at, n)).collect() };
    enter_in_small_transactions(rows).await;
}

#[tokio::test]
async fn no_transaction_of_long_keys_is_large() {
    let row = |at: u32, n: u32| (format!("[\"{}\",{at}]", "a".repeat(5_000)), n.to_string());
    let rows = |n: u32| -> Rows { (0..150).map(|at| row(at, n)).collect() };
    enter_in_small_transactions(rows).await;
}

#[tokio::test]
async fn no_transaction_with_nodes_is_large() {
    let (db, _storage) = database().await;
    let reduces = (1..=8).map(|many| Reduction::BuiltIn(Reducer::Top(many))).collect();
    let trees = vec![ViewTree { raw_collation: false, reduces }];
    let group = as_served(ViewGroup::new(NUMBER, false, trees).unwrap());
    // The first items decide the order.
    let value = |n: u32| format!("[{n},\"{}\"]", "v".repeat(10_000));
    let row = |n: u32| (format!("d{n:03}"), vec![vec![(n.to_string(), value(n))]]);
    let model: Model = (0..24).map(row).collect();
    let documents = prepared(&group, &model);
    let mut rest = &documents[..];
    while !rest.is_empty() {
        let (applied, ..) = sized_step(&db, &group, ViewWork::Write(rest)).await;
        rest = &rest[applied.documents..];
    }
    let mut most = 0;
    loop {
        let (_, progress, bytes) = sized_step(&db, &group, ViewWork::Build).await;
        most = most.max(bytes);
        if progress.phase == FOLLOWED {
            break;
        }
    }
    println!("{most} bytes at most");
    assert!(most > 400_000);
    assert_is(&db, &group, &model).await;
}

/// The checker finds broken undos, and forgotten marks.
#[tokio::test]
async fn the_checker_looks_through_undos() {
    let (db, _storage) = database().await;
    let group = group();
    let rows = |count: u32, value: u32| {
        let row = |n: u32| (format!("[{},{n}]", n % 7), value.to_string());
        let staged = vec![("1".to_owned(), format!("{value}{}", " ".repeat(400_000)))];
        Model::from([("large".to_owned(), vec![(0..count).map(row).collect(), staged, Vec::new()])])
    };
    build(&db, &group, &rows(300, 1)).await;
    let view = flatbed_operations::write::batch::resolved(&db.inner, &db.name).await.unwrap().keys.view(NUMBER);
    let all = async |range: KeyRange| -> Vec<(Vec<u8>, Vec<u8>)> {
        let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
        trx.range(&range, true).all(1_000).await.unwrap().to_vec()
    };
    let changed = rows(200, 2);
    while all(view.undos()).await.is_empty() {
        assert!(enter(&db, &group, &changed, 0).await.1);
    }
    assert_eq!(violations(&db, &group).await, Vec::<String>::new());
    let undos = all(view.undos()).await;
    let is_row = |key: &[u8]| match view.split(key).unwrap() {
        ViewPart::Undo(undone) => matches!(*undone, ViewPart::Row(..)),
        _ => panic!("no undo"),
    };
    let other = proto::ViewUndo { absent: true, value: Vec::new() }.encode_to_vec();
    for of_rows in [true, false] {
        let (key, undo) = undos.iter().find(|(key, undo)| is_row(key) == of_rows && **undo != other).unwrap();
        // Readers would see the new state, or nothing.
        for broken in [None, Some(other.as_slice())] {
            set(&db, key, broken).await;
            assert!(!violations(&db, &group).await.is_empty(), "rows: {of_rows}");
            set(&db, key, Some(undo)).await;
        }
    }
    assert_eq!(violations(&db, &group).await, Vec::<String>::new());
    let (mark, parts) = all(view.all_staged()).await.into_iter().next().unwrap();
    while enter(&db, &group, &changed, 0).await.0.documents == 0 {}
    while step(&db, &group, ViewWork::Apply(&[])).await.1.untidy {}
    assert!(all(view.all_staged()).await.is_empty() && all(view.undos()).await.is_empty());
    for (key, value) in [(&mark, &parts), (&undos[0].0, &undos[0].1)] {
        set(&db, key, Some(value)).await;
        assert!(!violations(&db, &group).await.is_empty(), "it is left behind");
        set(&db, key, None).await;
    }
    assert_is(&db, &group, &changed).await;
}
