//! Documents that are entered in several transactions, with concurrent readers, and by processes that die.
#![cfg(test)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use flatbed_testkit::{Mortal, WaitLoop, until};
use flatbed_views::view::large::under_way;
use flatbed_views::view_updates::views;
use tokio::sync::Semaphore;

use super::functions::Texts;
use super::{compare, define, mapped, put, standing, violations};
use crate::check::check_database;
use crate::handle::{Database, Reader};
use crate::tests::fenced::layer;
use crate::{Layer, LayerOptions, ReduceQuery, ViewBounds, ViewQuery, ViewUpdate};

/// Returns the large document's rows and the view's total in a query of all rows, and the sum of all.
async fn seen(reader: &Reader) -> (u64, BTreeSet<String>, u64, u64) {
    let view = reader.view("_design/v", "n", ViewUpdate::False).await.unwrap();
    let (mut rows, mut pages) = (view.rows(ViewQuery::default()), Vec::new());
    while let Some(page) = rows.next_page().await.unwrap() {
        pages.push(page);
    }
    let total = pages[0].total_rows;
    let rows: Vec<_> = pages.into_iter().flat_map(|page| page.rows).collect();
    assert_eq!(rows.len() as u64, total, "all pages are of one state");
    let large = rows.into_iter().filter(|row| row.id == "large");
    let values: Vec<String> = large.map(|row| String::from_utf8(row.value).unwrap()).collect();
    let page = view.reduce(ReduceQuery::default()).next_page().await.unwrap().unwrap();
    let sum = page.rows.first().map_or("0".to_owned(), |row| String::from_utf8(row.value.clone().unwrap()).unwrap());
    (values.len() as u64, values.into_iter().collect(), total, sum.parse().unwrap())
}

fn body(many: u64, n: u64) -> String {
    format!(r#"{{"n":{n},"many":{many}}}"#)
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_see_a_large_document_whole_or_not_at_all() {
    let (db, _storage) = mapped().await;
    for n in 0..40 {
        put(&db, &format!("small{n}"), Some(r#"{"n":1}"#)).await;
    }
    let edits: [(u64, u64); 6] = [(100, 1_000), (400, 2_000), (0, 3_000), (300, 4_000), (310, 5_000), (290, 6_000)];
    put(&db, "large", Some(&body(edits[0].0, edits[0].1))).await;
    define(&db, "_design/v", &[("n", "n|_sum")]).await;
    compare(&db, "_design/v", "n", "n").await;
    let (is_over, hidden) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let sums: [Arc<AtomicU64>; 2] = Default::default();
    let readers = sums.clone().map(|seen_sums| {
        let (reader, is_over, hidden) = (db.reader().clone(), Arc::clone(&is_over), Arc::clone(&hidden));
        tokio::spawn(async move {
            let mut sums = BTreeSet::new();
            while !is_over.load(Ordering::Relaxed) {
                let progress = standing(&reader).await.progress.unwrap();
                hidden.fetch_add(u64::from(under_way(&progress).is_some()), Ordering::Relaxed);
                let (rows, values, _, sum) = seen(&reader).await;
                let n = values.first().map_or(3_000, |n| n.parse().unwrap());
                assert!(values.len() <= 1 && edits.contains(&(rows, n)), "{rows} rows, {values:?}");
                assert!(edits.iter().any(|(many, n)| sum == 40 + many * n), "{sum}");
                sums.insert(sum);
                seen_sums.store(sums.len() as u64, Ordering::Relaxed);
            }
        })
    });
    // Until both have seen several states, and one has read in the middle of an edit.
    let mut waiting = WaitLoop::begin();
    loop {
        for (many, n) in &edits[1..] {
            put(&db, "large", Some(&body(*many, *n))).await;
            for small in 0..3 {
                put(&db, &format!("none{small}"), Some(r#"{"n":0}"#)).await;
            }
            compare(&db, "_design/v", "n", "n").await;
        }
        let have_seen = sums.iter().all(|sums| sums.load(Ordering::Relaxed) > 1);
        if have_seen && hidden.load(Ordering::Relaxed) > 0 || readers.iter().any(|reader| reader.is_finished()) {
            break;
        }
        waiting.pause("no query read in the middle").await;
    }
    is_over.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.await.unwrap();
    }
    assert_eq!(violations(&db).await, Vec::<String>::new());
}

fn edit_and_die(fdb: Arc<foundationdb::Database>, root: Vec<u8>, body: String) {
    let mortal = Mortal::start_blocking(1, async {
        let options = LayerOptions { root, ..LayerOptions::default() };
        let (layer, authority) = Layer::open(fdb, options, None).await.unwrap();
        views(&layer.inner).steps.forget_permits(Semaphore::MAX_PERMITS);
        layer.run_views_by(Arc::new(Texts::default()));
        let db = layer.database("db", authority.for_job("test"));
        put(&db, "large", Some(&body)).await;
        // It makes one step at a time, and stops in the middle.
        let steps = &views(&layer.inner).steps;
        until("it is in the middle", async || {
            if steps.available_permits() == 0 {
                steps.add_permits(1);
            }
            let progress = standing(&db).await.progress;
            progress.and_then(|progress| progress.large).is_some_and(|large| large.steps >= 2)
        })
        .await;
    });
    mortal.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_takes_over_ends_what_was_begun() {
    let (layer, authority, _storage) = layer().await;
    let (fdb, root) = (db_of(&layer.database("db", authority.for_job("test"))), layer.inner.options.root.clone());
    let db = layer.database("db", authority.for_job("test"));
    put(&db, "small", Some(r#"{"n":1}"#)).await;
    put(&db, "large", Some(&body(70, 1))).await;
    define(&db, "_design/v", &[("n", "n|_sum")]).await;
    // The successor has followed the group before, and released it.
    let functions = Arc::new(Texts::default());
    layer.run_views_by(functions);
    compare(&db, "_design/v", "n", "n").await;
    layer.shutdown();
    for (round, then) in ["nothing", "smaller", "deleted", "purged"].into_iter().enumerate() {
        let (before, n) = (if round == 0 { 70 } else { 80 }, 10 + round as u64);
        let (other, others) =
            Layer::open(fdb.clone(), LayerOptions { root: root.clone(), ..LayerOptions::default() }, None)
                .await
                .unwrap();
        other.run_views_by(Arc::new(Texts::default()));
        let theirs = other.database("db", others.for_job("test"));
        let (dies_with, at) = (fdb.clone(), root.clone());
        tokio::task::spawn_blocking(move || edit_and_die(dies_with, at, body(1_200, n))).await.unwrap();
        let progress = standing(&theirs).await.progress.unwrap();
        assert_eq!(under_way(&progress), Some("large"), "{then}");
        assert_eq!(violations(&theirs).await, Vec::<String>::new());
        match then {
            "smaller" => put(&theirs, "large", Some(&body(3, n))).await,
            "deleted" => put(&theirs, "large", None).await,
            "purged" => {
                let rev = theirs.get("large", &Default::default()).await.unwrap().rev;
                theirs.purge("large", &[rev]).await.unwrap();
            }
            _ => {}
        }
        let (rows, _, total, _) = seen(&theirs).await;
        assert_eq!((rows, total), (before, before + 1), "{then}: it is as it was");
        compare(&theirs, "_design/v", "n", "n").await;
        assert_eq!(violations(&theirs).await, Vec::<String>::new(), "{then}");
        assert_eq!(under_way(&standing(&theirs).await.progress.unwrap()), None);
        put(&theirs, "large", Some(&body(80, 1))).await;
        compare(&theirs, "_design/v", "n", "n").await;
        other.shutdown();
        until("its tasks have ended", async || other.inner.metrics.view_updates_running.get() == 0).await;
    }
}

fn db_of(db: &Database) -> Arc<foundationdb::Database> {
    db.inner.db.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_document_has_is_bounded_as_set_and_counted_where_it_is_more() {
    let (first, _, _storage) = layer().await;
    let view_bounds = ViewBounds { rows: 10, row_bytes: 100, ..ViewBounds::default() };
    let options = LayerOptions { view_bounds, root: first.inner.options.root.clone(), ..LayerOptions::default() };
    let (layer, authority) = Layer::open(first.inner.db.clone(), options, None).await.unwrap();
    layer.run_views_by(Arc::new(Texts::default()));
    let db = layer.database("db", authority.for_job("test"));
    define(&db, "_design/v", &[("n", "n|_sum")]).await;
    let rows = async || super::rows(&db, "_design/v", "n", ViewUpdate::True).await.unwrap().len();
    put(&db, "fits", Some(&body(10, 1))).await;
    put(&db, "large", Some(&body(11, 1))).await;
    assert_eq!(rows().await, 10);
    assert_eq!(db.view_info("_design/v").await.unwrap().documents_refused, 1);
    put(&db, "long", Some(&format!(r#"{{"n":"{}"}}"#, "a".repeat(100)))).await;
    put(&db, "large", Some(&body(9, 1))).await;
    assert_eq!(rows().await, 19);
    assert_eq!(
        db.view_info("_design/v").await.unwrap().documents_refused,
        1,
        "one that has less by now is not counted"
    );
    put(&db, "long", None).await;
    put(&db, "fits", Some(&body(12, 1))).await;
    put(&db, "fits", Some(&body(13, 1))).await;
    assert_eq!(rows().await, 9);
    assert_eq!(db.view_info("_design/v").await.unwrap().documents_refused, 1);
    assert_eq!(check_database(&db, |_| {}).await.unwrap().violations, [""; 0]);
    put(&db, "fits", None).await;
    assert_eq!(rows().await, 9);
    assert_eq!(db.view_info("_design/v").await.unwrap().documents_refused, 0);
    assert_eq!(check_database(&db, |_| {}).await.unwrap().violations, [""; 0]);
    assert!(db.inner.metrics.view_documents_refused.get() >= 2);
}
