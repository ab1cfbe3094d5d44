//! The read limits of a page of a view, and the completeness of all pages together.
#![cfg(test)]

use flatbed_collate::reduce::Reducer;
use flatbed_flatten::json::{Limits, parse};
use flatbed_store::waits;
use flatbed_views::view::group::{Reduction, ViewGroup, ViewTree};
use flatbed_views::view::read::{Select, ViewRange};
use flatbed_views::view::reduced::{Grouping, ReduceQuery};
use flatbed_views::view::rows::ViewQuery;

use crate::Edit;
use crate::handle::Database;
use crate::tests::fenced::database;
use crate::tests::view::read_tests::{Row, in_order, view_of};
use crate::tests::view::{Model, NUMBER, build, group, model_rows, value};

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

fn of_rows(rows: Vec<(String, String)>) -> Vec<Vec<(String, String)>> {
    vec![Vec::new(), rows, Vec::new()]
}

fn keys(keys: &[&str]) -> Select {
    let keys = keys.iter().map(|key| value(key)).collect();
    Select::Keys { keys, start_docid: None, end_docid: None, exclusive_end: false }
}

/// Pages of rows, each with the bytes read for it, and all rows.
async fn pages(db: &Database, query: ViewQuery) -> (Vec<(Vec<Row>, u64)>, Vec<Row>) {
    let (mut reading, mut pages) = (view_of(db, group(), 1).rows(query), Vec::new());
    loop {
        let (page, waits) = waits::count(reading.next_page()).await;
        let Some(page) = page.unwrap() else { break };
        let rows = page.rows.into_iter().map(|row| (text(row.key), row.id, text(row.value)));
        pages.push((rows.collect(), waits.bytes_read));
    }
    let all = pages.iter().flat_map(|(rows, _): &(Vec<Row>, u64)| rows.clone()).collect();
    (pages, all)
}

/// Many rows of one document and one key, joined to a document of which a page holds a few: each row appears once, with
/// it.
#[tokio::test]
async fn rows_of_one_key_with_documents_are_there_once() {
    let (db, _storage) = database().await;
    let body = format!("{{\"text\":\"{}\"}}", "a".repeat(60_000));
    let body = parse(body.as_bytes(), &Limits::default()).unwrap();
    let big = Edit {
        expiry: None,
        id: "big".into(),
        parent: None,
        history: None,
        deleted: false,
        attachments: Vec::new(),
        body,
    };
    assert!(db.bulk_update(&[big]).await.unwrap().iter().all(Result::is_ok));
    let joined = |n: u32| ("1".to_owned(), format!("{{\"_id\":\"big\",\"n\":{n}}}"));
    let mut model = Model::from([("many".to_owned(), of_rows((0..60).map(joined).collect()))]);
    model.extend(
        (0..45).map(|n| (format!("m{n:02}"), of_rows(vec![(if n < 5 { "0" } else { "2" }.into(), "7".into())]))),
    );
    build(&db, &group(), &model).await;
    let all = model_rows(&group(), 1, &model);
    let one = || ViewRange { start: Some(value("1")), end: Some(value("1")), ..ViewRange::default() };
    for (select, descending, skip, limit) in [
        (Select::default(), true, 0, None),
        (Select::default(), false, 0, None),
        (Select::Range(one()), true, 0, None),
        (Select::Range(one()), true, 3, Some(50)),
        (Select::Range(one()), true, 25, None),
        (Select::default(), true, 50, Some(48)),
        (keys(&["1", "2", "1"]), true, 4, None),
        (keys(&["1", "2", "1"]), false, 0, Some(80)),
    ] {
        let of = |key: &str| -> Vec<Row> {
            let rows = all.iter().filter(|row| row.0 == key).cloned().collect();
            in_order(rows, descending)
        };
        let expected = match &select {
            Select::Keys { .. } => [of("1"), of("2"), of("1")].concat(),
            Select::Range(range) if range.start.is_some() => of("1"),
            Select::Range(_) => in_order(all.clone(), descending),
        };
        let expected: Vec<Row> = expected.into_iter().skip(skip).take(limit.unwrap_or(usize::MAX)).collect();
        let (skip, limit) = (skip as u64, limit.map(|limit| limit as u64));
        let name = format!("{select:?} {descending} {skip} {limit:?}");
        let query = ViewQuery { select, descending, skip, limit, include_docs: true, ..ViewQuery::default() };
        let (mut reading, mut found) = (view_of(&db, group(), 1).rows(query), Vec::new());
        while let Some(page) = reading.next_page().await.unwrap() {
            for row in page.rows {
                assert_eq!(row.doc.is_some(), row.id == "many");
                found.push((text(row.key), row.id, text(row.value)));
            }
        }
        assert!(found == expected, "{} rows, {} expected: {name}", found.len(), expected.len());
    }
}

#[tokio::test]
async fn pages_of_keys_are_bounded_in_bytes() {
    let (db, _storage) = database().await;
    let large = |bytes: usize| format!("7{}", " ".repeat(bytes));
    let mut model = Model::from([
        ("a-large".to_owned(), of_rows(vec![("1".into(), large(1_500_000))])),
        ("many".to_owned(), of_rows((0..200).map(|_| ("3".into(), large(15_000))).collect())),
    ]);
    model.extend((0..20).map(|n| (format!("s{n:02}"), of_rows(vec![("2".into(), n.to_string())]))));
    build(&db, &group(), &model).await;
    let all = model_rows(&group(), 1, &model);
    for (asked, descending) in
        [(vec!["1"; 40], false), (vec!["2", "1", "2", "2", "1", "9"], true), (vec!["3"; 8], false)]
    {
        let of = |key: &&str| -> Vec<Row> {
            in_order(all.iter().filter(|row| row.0 == *key).cloned().collect(), descending)
        };
        let expected: Vec<Row> = asked.iter().flat_map(of).collect();
        let query = ViewQuery { select: keys(&asked), descending, ..ViewQuery::default() };
        let (pages, found) = pages(&db, query).await;
        assert!(found == expected, "{} rows, {} expected: {asked:?}", found.len(), expected.len());
        let most = pages.iter().map(|(_, bytes)| *bytes).max();
        let read: u64 = pages.iter().map(|(_, bytes)| bytes).sum();
        let answered: usize = found.iter().map(|row| row.2.len()).sum();
        println!("{asked:.20?}: {} pages, {most:?} bytes at most, {read} read, {answered} answered", pages.len());
        assert!(most < Some(3_500_000), "{most:?}");
        assert!(read < 4 * answered as u64 + 100_000, "{read} for {answered}");
    }
}

/// Rows of one key and document keep their order, even if a page holds only some of them.
#[tokio::test]
async fn pages_that_are_read_backwards_are_bounded_in_bytes() {
    let (db, _storage) = database().await;
    let large = |n: usize| format!("{n}{}", " ".repeat(15_000));
    let apart = |n: usize| format!("{n}{}", " ".repeat(300_000));
    let mut model = Model::from([
        ("apart".to_owned(), of_rows((0..12).map(|n| ("2".into(), apart(n))).collect())),
        ("many".to_owned(), of_rows((0..200).map(|n| ("3".into(), large(n))).collect())),
    ]);
    model.extend((0..20).map(|n| (format!("s{n:02}"), of_rows(vec![("3".into(), n.to_string())]))));
    build(&db, &group(), &model).await;
    let all = in_order(model_rows(&group(), 1, &model), true);
    let backwards = |skip, limit| ViewQuery { descending: true, skip, limit, ..ViewQuery::default() };
    let (of_all, found) = pages(&db, backwards(0, None)).await;
    assert!(found == all, "{} rows, {} expected", found.len(), all.len());
    let most = of_all.iter().map(|(_, bytes)| *bytes).max();
    assert!(most < Some(5_000_000), "{most:?}");
    for (skip, limit, bytes_max) in
        [(20, 1, 150_000), (25, 2, 400_000), (150, 3, 400_000), (220, 1, 700_000), (226, 1, 700_000)]
    {
        let (of_some, found) = pages(&db, backwards(skip, Some(limit))).await;
        let skip = skip as usize;
        assert!(found == all[skip..skip + limit as usize], "{skip} {limit}: {} rows", found.len());
        let read: u64 = of_some.iter().map(|(_, bytes)| bytes).sum();
        println!("{skip} {limit}: {read} bytes read");
        assert!(read < bytes_max, "{skip} {limit}: {read}");
    }
}

#[tokio::test]
async fn keys_of_groups_are_read_without_values() {
    let (db, _storage) = database().await;
    let large = format!("1{}", " ".repeat(600_000));
    let long = "k".repeat(100_000);
    let row = |n: u32| {
        if n == 3 { (format!("[{n},\"{long}\"]"), large.clone()) } else { (format!("[{n},0]"), large.clone()) }
    };
    let model: Model = (0..25).map(|n| (format!("d{n:02}"), vec![vec![row(n)], Vec::new(), Vec::new()])).collect();
    build(&db, &group(), &model).await;
    let all: Select = Select::default();
    let some = keys(&["[1,0]", "[5,0]", "[99]", "[24,0]", "[1,0]", "[2,0]"]);
    for (select, grouping, descending, groups) in [
        (all.clone(), Grouping::Exact, false, 25),
        (all.clone(), Grouping::Exact, true, 25),
        (all, Grouping::Level(1), true, 25),
        (some, Grouping::Exact, false, 5),
    ] {
        let view = view_of(&db, group(), 0);
        let query = ReduceQuery { select, grouping, descending, ..ReduceQuery::default() };
        let read = async {
            let (mut rows, mut found) = (view.reduce(query), Vec::new());
            while let Some(page) = rows.next_page().await.unwrap() {
                found.extend(page.rows.into_iter().map(|row| (row.key.map(text).unwrap(), text(row.value.unwrap()))));
            }
            found
        };
        let (found, waits) = waits::count(read).await;
        assert_eq!(found.len(), groups);
        println!("{grouping:?} {descending}: {} bytes read", waits.bytes_read);
        if groups == 25 {
            let at = |n: u32| if descending { 24 - n } else { n };
            let key = |n| if grouping == Grouping::Exact { row(at(n)).0 } else { format!("[{}]", at(n)) };
            assert!(found.iter().zip(0..).all(|((found, sum), n)| *found == key(n) && sum == "1"));
        }
        assert!(waits.bytes_read < 200_000 * groups as u64, "{waits:?}");
    }
}

#[tokio::test]
async fn pages_of_groups_are_bounded_in_bytes() {
    let (db, _storage) = database().await;
    let built_in = |reducer| Reduction::BuiltIn(reducer);
    let reduces = vec![built_in(Reducer::First), built_in(Reducer::Last)];
    let group = ViewGroup::new(NUMBER, false, vec![ViewTree { raw_collation: false, reduces }]).unwrap();
    let row = |n: u32, of: u32| (n.to_string(), format!("\"{of}{}\"", "a".repeat(1_000_000)));
    let document = |of: u32| (format!("d{of}"), vec![(0..6).map(|n| row(n, of)).collect()]);
    let model: Model = (0..2).map(document).collect();
    build(&db, &group, &model).await;
    for (reduce, descending, is_by_key) in [(0, false, false), (1, true, false), (1, false, true)] {
        let asked: Vec<String> = (0..6).map(|n: u32| n.to_string()).collect();
        let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
        let select = if is_by_key { keys(&asked) } else { Select::default() };
        let query =
            ReduceQuery { select, reduce, grouping: Grouping::Exact, descending, skip: 1, ..ReduceQuery::default() };
        let (mut rows, mut found) = (view_of(&db, group.clone(), 0).reduce(query), Vec::new());
        loop {
            let (page, waits) = waits::count(rows.next_page()).await;
            let Some(page) = page.unwrap() else { break };
            assert!(waits.bytes_read < 4_000_000, "{waits:?}");
            found.extend(page.rows.into_iter().map(|row| (text(row.key.unwrap()), text(row.value.unwrap()))));
        }
        let order: Vec<u32> = if descending { (0..5).rev().collect() } else { (1..6).collect() };
        assert!(found == order.into_iter().map(|n| row(n, reduce as u32)).collect::<Vec<_>>(), "{}", found.len());
    }
}
