//! Purges while groups are built, follow changes, or are not followed.
#![cfg(test)]

use std::sync::{Arc, Mutex};

use flatbed_store::transaction::Transaction;
use flatbed_store::view_bounds::ViewBounds;
use flatbed_store::view_functions::{
    FunctionFailure, GroupFunctions, GroupSource, MapOutcome, ReduceResults, Reduction, ViewFunctions,
};
use flatbed_testkit::{Random, Storage, engine, pages_are_full, until, until_some};
use flatbed_views::group::purges::RECORDS_MAX;
use futures_util::future::BoxFuture;

use super::functions::Texts;
use super::{compare, define, put, rows, standing, violations};
use crate::ViewUpdate;
use crate::handle::{Database, Reader};
use crate::tests::fenced::{database, layer};

pub(super) async fn purge(db: &Database, id: &str) {
    if let Ok(document) = db.get(id, &Default::default()).await {
        db.purge(id, &[document.rev]).await.unwrap();
    }
}

/// Returns a value that the only group keeps from its first progress on, and that a rebuilt group does not have.
async fn beginning(reader: &Reader) -> u64 {
    standing(reader).await.progress.unwrap().trees[0].secret_0
}

/// Removes all records of purges. Under faults they may stay.
pub(super) async fn forget_log(db: &Database) {
    let Some(instance) = db.inner.cached("db") else { return };
    let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
    let log = instance.keys.purges();
    trx.clear_range(&log.begin, &log.end);
    let _ = trx.commit().await;
}

async fn logged(db: &Database) -> (usize, usize) {
    let log = db.inner.cached("db").unwrap().keys.purges();
    let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
    let records = trx.range(&log, true).all(1_000).await.unwrap().to_vec();
    (records.len(), records.iter().map(|(key, value)| key.len() + value.len()).sum())
}

/// More documents are purged than `_purged_infos_limit` while the group is built, and further ones until its rows are
/// read.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_built_once_however_much_is_purged_meanwhile() {
    let (layer, authority, _storage) = layer().await;
    let db = layer.database("db", authority.for_job("test"));
    db.set_purged_infos_limit(10).await.unwrap();
    for n in 0..300 {
        put(&db, &format!("d{n:03}"), Some(&format!(r#"{{"n":{}}}"#, n % 11))).await;
    }
    let slow = Arc::new(Texts::stopping_after(80));
    layer.run_views_by(slow.clone());
    define(&db, "_design/v", &[("n", "n|_count")]).await;
    let asked = tokio::spawn({
        let reader = db.reader().clone();
        async move { rows(&reader, "_design/v", "n", ViewUpdate::True).await }
    });
    let begun = until_some("the build begins", async || standing(&db).await.progress).await;
    until("mapping stands still", async || slow.mapped() >= 80).await;
    for n in (0..300).step_by(5) {
        purge(&db, &format!("d{n:03}")).await;
    }
    slow.go_on();
    for n in (1..300).step_by(5) {
        if asked.is_finished() {
            break;
        }
        purge(&db, &format!("d{n:03}")).await;
    }
    assert!(!asked.await.unwrap().unwrap().is_empty());
    compare(&db, "_design/v", "n", "n").await;
    assert_eq!(beginning(&db).await, begun.trees[0].secret_0, "it was not built anew");
    assert_eq!(violations(&db).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_log_lacks_purges_the_group_is_compared_with_the_documents() {
    let (layer, authority, _storage) = layer().await;
    layer.run_views_by(Arc::new(Texts::default()));
    let db = layer.database("db", authority.for_job("test"));
    define(&db, "_design/v", &[("n", "n|_count"), ("id", "_id|written")]).await;
    for n in 0..30 {
        put(&db, &format!("d{n:02}"), Some(r#"{"n":1}"#)).await;
    }
    put(&db, "many", Some(r#"{"n":1,"many":700}"#)).await;
    compare(&db, "_design/v", "n", "n").await;
    let begun = beginning(&db).await;
    layer.shutdown();
    let (other, others) = crate::Layer::open(db.inner.db.clone(), db.inner.options.clone(), None).await.unwrap();
    let theirs = other.database("db", others.for_job("test"));
    for n in 5..20 {
        purge(&theirs, &format!("d{n:02}")).await;
    }
    purge(&theirs, "many").await;
    // One document is written again, and one has been deleted.
    put(&theirs, "d07", Some(r#"{"n":8}"#)).await;
    put(&theirs, "d22", None).await;
    forget_log(&theirs).await;
    purge(&theirs, "d25").await;
    put(&theirs, "new", Some(r#"{"n":7}"#)).await;
    other.run_views_by(Arc::new(Texts::default()));
    // The existing rows are readable at any time.
    let read = rows(&theirs, "_design/v", "n", ViewUpdate::False).await.unwrap();
    assert!(!read.is_empty());
    compare(&theirs, "_design/v", "n", "n").await;
    compare(&theirs, "_design/v", "id", "_id").await;
    assert_eq!(beginning(&theirs).await, begun, "it was not built anew");
    assert_eq!(violations(&theirs).await, Vec::<String>::new());
    for n in 0..5 {
        purge(&theirs, &format!("d{n:02}")).await;
    }
    compare(&theirs, "_design/v", "n", "n").await;
    assert_eq!(beginning(&theirs).await, begun);
}

/// Functions that purge documents at each call of `map`, as long as ids are left.
struct PurgingFunctions {
    texts: Texts,
    purges: Arc<Purges>,
}

struct Purges {
    db: Database,
    at_once: usize,
    ids: Mutex<Vec<String>>,
}

impl Purges {
    fn give(&self, ids: impl IntoIterator<Item = String>) {
        self.ids.lock().unwrap().extend(ids);
    }

    fn take(&self) -> Vec<String> {
        let mut ids = self.ids.lock().unwrap();
        let left = ids.len().saturating_sub(self.at_once);
        ids.split_off(left)
    }

    fn left(&self) -> usize {
        self.ids.lock().unwrap().len()
    }
}

impl ViewFunctions for PurgingFunctions {
    fn load(&self, database: &str, source: &GroupSource, bounds: ViewBounds) -> Arc<dyn GroupFunctions> {
        let functions = self.texts.load(database, source, bounds);
        Arc::new(PurgingGroup { functions, purges: Arc::clone(&self.purges) })
    }
}

struct PurgingGroup {
    functions: Arc<dyn GroupFunctions>,
    purges: Arc<Purges>,
}

impl GroupFunctions for PurgingGroup {
    fn check(&self) -> BoxFuture<'_, Result<(), FunctionFailure>> {
        self.functions.check()
    }

    fn map(&self, documents: Vec<Vec<u8>>) -> BoxFuture<'_, Result<MapOutcome, FunctionFailure>> {
        Box::pin(async move {
            for id in self.purges.take() {
                purge(&self.purges.db, &id).await;
            }
            self.functions.map(documents).await
        })
    }

    fn reduce<'a>(&'a self, reductions: &'a [Reduction<'a>]) -> BoxFuture<'a, Result<ReduceResults, FunctionFailure>> {
        self.functions.reduce(reductions)
    }
}

async fn purging(at_once: usize) -> (Database, Arc<Purges>, Storage) {
    let (db, storage) = database().await;
    let purges = Arc::new(Purges { db: db.clone(), at_once, ids: Mutex::default() });
    flatbed_operations::view_runtime::run_views_by(
        &db.inner,
        Arc::new(PurgingFunctions { texts: Texts::default(), purges: Arc::clone(&purges) }),
    );
    (db, purges, storage)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_follows_though_something_is_purged_whenever_it_maps() {
    follows_while(1, 40).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_follows_though_much_is_purged_whenever_it_maps() {
    flatbed_databases::limits::lower();
    follows_while(RECORDS_MAX.get() + 1, 20 * (RECORDS_MAX.get() + 1)).await;
}

/// Checks that a query is answered although each call of `map` purges `at_once` documents, as long as some of the
/// `spares` are left.
async fn follows_while(at_once: usize, spares: usize) {
    let (db, purges, _storage) = purging(at_once).await;
    let spare = |n: usize| format!("s{n:03}");
    for n in 0..spares {
        put(&db, &spare(n), Some(r#"{"n":1}"#)).await;
    }
    define(&db, "_design/v", &[("n", "n|_sum")]).await;
    compare(&db, "_design/v", "n", "n").await;
    purges.give((0..spares).map(spare));
    put(&db, "new", Some(r#"{"n":2}"#)).await;
    let read = rows(&db, "_design/v", "n", ViewUpdate::True).await.unwrap();
    assert!(read.iter().any(|(_, id, _)| id == "new"));
    let left = purges.left();
    assert!((spares / 2..spares).contains(&left), "it waited for purges to end: {left} are left");
    purges.ids.lock().unwrap().clear();
    compare(&db, "_design/v", "n", "n").await;
    assert_eq!(violations(&db).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_purged_while_it_is_mapped_has_no_rows() {
    let (db, purges, _storage) = purging(1).await;
    define(&db, "_design/v", &[("n", "n|_sum")]).await;
    let mut random = Random(7);
    for round in 0..60 {
        let mut id = || format!("e{}", random.below(6));
        purges.give([id()]);
        for _ in 0..2 {
            put(&db, &id(), Some(&format!(r#"{{"n":{round}}}"#))).await;
        }
        if round % 3 == 0 {
            rows(&db, "_design/v", "n", ViewUpdate::True).await.unwrap();
        }
    }
    purges.ids.lock().unwrap().clear();
    compare(&db, "_design/v", "n", "n").await;
    assert_eq!(violations(&db).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_kept_for_groups_up_to_a_size() {
    // Elsewhere sizes are estimates.
    if engine().is_none() || !pages_are_full() {
        return;
    }
    let (db, _storage) = database().await;
    db.set_purged_infos_limit(2).await.unwrap();
    let put_and_purge = async |id: &str| {
        put(&db, id, Some(r#"{"n":1}"#)).await;
        purge(&db, id).await;
    };
    for n in 0..5 {
        put_and_purge(&format!("before{n}")).await;
    }
    assert_eq!(logged(&db).await.0, 2);
    define(&db, "_design/v", &[("n", "n")]).await;
    for n in 0..20 {
        put_and_purge(&format!("d{n}")).await;
    }
    assert_eq!(logged(&db).await.0, 22);
    let long = "x".repeat(1_800);
    for n in 0..60 {
        put_and_purge(&format!("{long}{n}")).await;
    }
    let (records, bytes) = logged(&db).await;
    assert!(records > 2 && (25_000..60_000).contains(&bytes), "{records} records of {bytes} bytes");
    // `_purged_infos_limit` prevails over the size limit.
    db.set_purged_infos_limit(50).await.unwrap();
    for n in 0..60 {
        put_and_purge(&format!("{long}{n}")).await;
    }
    assert_eq!(logged(&db).await.0, 50);
    // A deleted group keeps no records.
    db.set_purged_infos_limit(2).await.unwrap();
    put(&db, "_design/v", None).await;
    db.view_cleanup().await.unwrap();
    put_and_purge("last").await;
    assert_eq!(logged(&db).await.0, 2);
}
