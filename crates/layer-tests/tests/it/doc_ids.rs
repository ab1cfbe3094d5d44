//! Feeds of a list of documents: the same rows as a scan of by-seq, whichever way they are read.

use std::collections::HashSet;
use std::sync::Arc;

use crate::support::{Layer, Store, all_changes, create, delete, put};
use flatbed_layer::{
    ChangeRow, Changes, ChangesQuery, CreateOptions, Database, Edit, Extras, GetOptions, RevId, Scope, Since, json,
};

fn name(n: usize) -> String {
    format!("d{n:05}")
}

async fn fill(db: &Database, numbers: std::ops::Range<usize>) {
    for chunk in numbers.collect::<Vec<_>>().chunks(500) {
        let edit = |n: &usize| Edit {
            expiry: None,
            id: name(*n).into(),
            parent: None,
            history: None,
            deleted: false,
            attachments: Vec::new(),
            body: json::parse(b"{\"n\":1}", &json::Limits::default()).expect("JSON"),
        };
        let edits: Vec<_> = chunk.iter().map(edit).collect();
        assert!(db.bulk_update(&edits).await.expect("written").iter().all(Result::is_ok));
    }
}

fn list(ids: impl IntoIterator<Item = String>) -> Scope {
    Scope::Ids(Arc::new(ids.into_iter().collect()))
}

async fn rows(changes: &mut Changes) -> Vec<ChangeRow> {
    let mut rows = Vec::new();
    loop {
        let page = changes.next_page().await.expect("a page");
        rows.extend(page.rows);
        if page.at_end {
            return rows;
        }
    }
}

fn by_seq_rows(layer: &Layer) -> u64 {
    flatbed_metrics::total(&layer.metrics(), "flatbed_by_seq_rows")
}

#[tokio::test]
async fn lists_give_what_a_walk_gives() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    fill(&db, 0..4_600).await;
    // Some documents move, some are deleted, some have conflicts.
    for n in (0..4_600).step_by(97) {
        let rev = current(&db, &name(n)).await;
        match n % 3 {
            0 => drop(put(&db, &name(n), Some(&rev), "{\"n\":2}").await.unwrap()),
            1 => drop(delete(&db, &name(n), &rev).await.unwrap()),
            _ => put_conflict(&db, &name(n)).await,
        }
    }
    let all = all_changes(&db).await;
    let newest = db.update_seq().await.unwrap();
    let few: Vec<String> = (0..60).map(|n| name(n * 76)).chain(["missing".into(), "x".repeat(5_000)]).collect();
    let many: Vec<String> = (0..4_600).filter(|n| n % 3 != 0).map(name).collect();
    for ids in [few, many] {
        let asked: HashSet<String> = ids.iter().cloned().collect();
        let ids = list(ids);
        for (since, after) in [(Since::Beginning, 0), (Since::after(all[70].seq), 71), (Since::after(newest), 4_600)] {
            for all_leaves in [false, true] {
                for limit in [None, Some(1), Some(40), Some(2_100)] {
                    for descending in [false, true] {
                        let wanted = |row: &&ChangeRow| asked.contains(&row.id);
                        let mut expected: Vec<_> = all[after..].iter().filter(wanted).collect();
                        if descending {
                            expected.reverse();
                        }
                        let is_cut = limit.is_some_and(|limit| limit <= expected.len());
                        expected.truncate(limit.unwrap_or(usize::MAX));
                        let limit = limit.map(|limit| limit as u64);
                        let scope = ids.clone();
                        let extras = if all_leaves { Extras::LEAVES } else { Extras::default() };
                        let query = ChangesQuery { since, descending, limit, scope, extras, ..ChangesQuery::default() };
                        let mut changes = db.changes(query.clone());
                        let found = rows(&mut changes).await;
                        let told = |row: &ChangeRow| (row.seq, row.id.clone(), row.rev.clone(), row.deleted);
                        let expected: Vec<_> = expected.into_iter().map(told).collect();
                        assert!(
                            found.iter().map(told).collect::<Vec<_>>() == expected,
                            "{since:?} {limit:?} {descending}"
                        );
                        for row in &found {
                            let leaves = if all_leaves { row.leaf_count } else { 1 };
                            assert_eq!((row.leaves.len(), &row.leaves[0]), (leaves, &row.rev));
                        }
                        let end = match expected.last() {
                            Some((last, ..)) if is_cut => Some(*last),
                            _ if descending => continue,
                            _ => Some(newest),
                        };
                        assert_eq!(changes.last_seq().map(|place| place.seq()), end);
                    }
                }
            }
        }
    }
}

/// Writes another first revision beside the existing one.
async fn put_conflict(db: &Database, id: &str) {
    let edit = Edit {
        expiry: None,
        id: id.into(),
        parent: None,
        history: Some(vec![RevId::new(1, [7; 16])]),
        deleted: false,
        attachments: Vec::new(),
        body: json::parse(b"{}", &json::Limits::default()).expect("JSON"),
    };
    db.update(&edit).await.expect("written");
}

async fn current(db: &Database, id: &str) -> RevId {
    let read = db.get(id, &GetOptions::default()).await;
    read.expect("there").rev
}

#[tokio::test]
async fn a_short_list_walks_nothing() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    fill(&db, 0..3_000).await;
    let before = by_seq_rows(&layer);
    let query = ChangesQuery { scope: list((0..100).map(|n| name(n * 30))), ..Default::default() };
    assert_eq!(rows(&mut db.changes(query)).await.len(), 100);
    assert_eq!(by_seq_rows(&layer), before);
    // A longer list reads a page of by-seq first.
    let query = ChangesQuery { scope: list((0..1_000).map(|n| name(n * 3))), ..Default::default() };
    assert_eq!(rows(&mut db.changes(query)).await.len(), 1_000);
    assert!((1..=2_000).contains(&(by_seq_rows(&layer) - before)));
    // Near the end that page is enough.
    let since = Since::after(all_changes(&db).await[2_990].seq);
    let before = by_seq_rows(&layer);
    let query = ChangesQuery { since, scope: list((0..1_000).map(|n| name(n * 3))), ..Default::default() };
    assert_eq!(rows(&mut db.changes(query)).await.len(), 3);
    assert_eq!(by_seq_rows(&layer) - before, 9);
}

#[tokio::test]
async fn what_changes_between_pages_comes_once() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    fill(&db, 0..3_000).await;
    let ids: Vec<String> = (0..3_000).filter(|n| n % 2 == 0).map(name).collect();
    let query = ChangesQuery { extras: Extras::DOCUMENTS, scope: list(ids.clone()), ..Default::default() };
    let mut changes = db.changes(query);
    // A page of by-seq, then the first one of the list.
    let mut found = changes.next_page().await.unwrap().rows;
    let page = changes.next_page().await.unwrap();
    assert!(!page.at_end && page.rows.len() == 500);
    found.extend(page.rows);
    let shown = found.len();
    let later: Vec<&String> = ids.iter().filter(|id| !found.iter().any(|row| row.id == **id)).collect();
    for (at, id) in later.iter().enumerate().take(30) {
        let rev = current(&db, id).await;
        match at % 3 {
            0 => drop(put(&db, id, Some(&rev), "{\"n\":2}").await.unwrap()),
            1 => drop(delete(&db, id, &rev).await.unwrap()),
            _ => drop(db.purge(id, &[rev]).await.unwrap()),
        }
    }
    // A document that was shown comes again after a change, and one outside of the list does not come.
    let again = found[5].clone();
    put(&db, &again.id, Some(&again.rev), "{\"n\":3}").await.unwrap();
    put(&db, &name(1), Some(&current(&db, &name(1)).await), "{}").await.unwrap();
    found.extend(rows(&mut changes).await);
    // The list is answered as of its first read; later changes follow.
    found.extend(rows(&mut changes).await);
    assert!(found.is_sorted_by(|a, b| a.seq < b.seq));
    assert_eq!(found.len(), 1_500 - 10 + 1);
    let last: Vec<_> = found.iter().rev().take(21).map(|row| row.id.clone()).collect();
    assert_eq!(last[0], again.id);
    assert!(found[shown..found.len() - 21].iter().all(|row| row.rev.generation() == 1));
    assert!(found[found.len() - 21..].iter().all(|row| row.rev.generation() == 2));
    for row in &found {
        let document = row.doc.as_ref().expect("with its document");
        assert_eq!((document.rev == row.rev, document.deleted), (true, row.deleted));
    }
}

#[tokio::test]
async fn a_database_made_anew_is_told_from_the_beginning() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    fill(&db, 0..2_000).await;
    let ids = list((0..2_000).step_by(2).map(name));
    let query = ChangesQuery { extras: Extras::DOCUMENTS, scope: ids, ..Default::default() };
    let mut changes = db.changes(query);
    for _ in 0..2 {
        assert!(!changes.next_page().await.unwrap().at_end);
    }
    layer.delete_database("db").await.unwrap();
    layer.create_database("db", &CreateOptions::default()).await.unwrap();
    fill(&db, 0..4).await;
    let found = rows(&mut changes).await;
    assert_eq!(found.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), [name(0), name(2)]);
    assert_eq!(changes.last_seq(), Some(db.update_seq().await.unwrap().into()));
}
