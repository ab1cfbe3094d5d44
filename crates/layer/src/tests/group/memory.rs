//! The memory of emitted rows until they are written.
#![cfg(test)]

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use flatbed_clock::ManualClock;
use flatbed_operations::index::groups::groups_of;
use flatbed_store::keys::ViewPart;
use flatbed_store::proto::ViewLeasePlace;
use flatbed_store::transaction::Transaction;
use flatbed_store::view_functions::EmittedRows;
use flatbed_testkit::{Storage, until};
use flatbed_views::group::build::read_with_local_seq;
use flatbed_views::group::job::Job;
use flatbed_views::group::mapper::{DocumentToMap, map, prepare_document};
use flatbed_views::group::steps::GroupStanding;
use flatbed_views::view::documents::read_stored_rows;
use flatbed_views::view::prepare::EmittedDocument;
use flatbed_views::view_updates::memory::UNIT_BYTES;
use flatbed_views::view_updates::{RUN_DOCUMENTS_MAX, views};
use futures_util::FutureExt;
use futures_util::future::join_all;
use prost::Message;
use tokio::sync::Semaphore;

use super::functions::Texts;
use super::together::job_by;
use super::{compare, define, put, standing, violations};
use crate::handle::Database;
use crate::tests::fenced::layer_with;
use crate::{Layer, LayerOptions, ViewUpdate};

/// The budget of all databases. A database may hold half of it, and a part an eighth.
const BYTES: usize = 128 << 10;

/// The rows of a document with [`FEW`] rows take less than half of a part; with [`MANY`], more than the share of a
/// database.
const FEW: u32 = 20;
const MANY: u32 = 1_000;

async fn database() -> (Database, Layer, Storage) {
    let options = LayerOptions { view_memory_bytes: BYTES, ..LayerOptions::default() };
    let (layer, authority, storage) = layer_with(options, None).await;
    (layer.database("db", authority.for_job("test")), layer, storage)
}

async fn put_rows(db: &Database, id: &str, rows: u32, n: u32) {
    put(db, id, Some(&format!(r#"{{"n":{n},"many":{rows}}}"#))).await;
}

async fn read(job: &Job, ids: &[&str]) -> Vec<DocumentToMap> {
    let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
    read_with_local_seq(job, &ids).await.unwrap()
}

fn has_dropped(job: &Job) -> bool {
    job.state.mapped_at_once.load(Ordering::Relaxed) < RUN_DOCUMENTS_MAX
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_without_memory_are_dropped_and_mapped_again() {
    let (db, _layer, _storage) = database().await;
    for id in ["a", "b", "c"] {
        put_rows(&db, id, FEW, 1).await;
    }
    define(&db, "_design/v", &[("n", "n")]).await;
    let texts = Texts::default();
    let job = job_by(&db, "_design/v", &texts).await;
    let memory = &views(&db.inner).rows_memory;
    let full = memory.acquire(job.id.0, BYTES / 2).await.unwrap();
    let mut waits = Box::pin(map(&job, read(&job, &["a", "b", "c"]).await));
    until("they are dropped", async || {
        assert!(waits.as_mut().now_or_never().is_none(), "no memory is free");
        has_dropped(&job)
    })
    .await;
    drop(full);
    let part = waits.await.unwrap();
    assert_eq!(texts.mapped(), 3 + 3, "they were not kept");
    assert_eq!((part.documents.len(), part.rest.len()), (2, 1), "as many as fit a part");
    let held: usize = part.documents.iter().map(|document| document.memory_bytes()).sum();
    assert_eq!(memory.usage().0, held);
    let rest = map(&job, part.rest).await.unwrap();
    assert_eq!((rest.documents.len(), rest.rest.len(), texts.mapped()), (1, 0, 7));
    drop((part.permit, rest));
    assert_eq!(memory.usage(), (0, BYTES / 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_missing_in_an_answer_are_requested_again() {
    let (db, _layer, _storage) = database().await;
    for id in ["a", "b", "c", "d", "e"] {
        put(&db, id, Some(r#"{"n":1}"#)).await;
    }
    define(&db, "_design/v", &[("n", "n")]).await;
    let texts = Texts::answering_at_most(2);
    let job = job_by(&db, "_design/v", &texts).await;
    let part = map(&job, read(&job, &["a", "b", "c", "d", "e"]).await).await.unwrap();
    let ids: Vec<&str> = part.documents.iter().map(|document| document.id()).collect();
    assert_eq!((ids, part.rest.len()), (vec!["a", "b", "c", "d", "e"], 0));
    assert_eq!(texts.mapped(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_with_more_rows_than_a_database_may_have_goes_alone() {
    let (db, _layer, _storage) = database().await;
    for (id, rows) in [("a", FEW), ("b", MANY), ("c", FEW)] {
        put_rows(&db, id, rows, 1).await;
    }
    define(&db, "_design/v", &[("n", "n")]).await;
    define(&db, "_design/w", &[("n", "other:n")]).await;
    let texts = Texts::default();
    let (one, two) = (job_by(&db, "_design/v", &texts).await, job_by(&db, "_design/w", &texts).await);
    let (mut parts, mut rest) = (Vec::new(), read(&one, &["a", "b", "c"]).await);
    while !rest.is_empty() {
        let part = map(&one, rest).await.unwrap();
        rest = part.rest;
        parts.push(part.documents.iter().map(|document| document.id().to_owned()).collect::<Vec<_>>().concat());
    }
    assert_eq!(parts, ["a", "b", "c"]);
    let large = map(&one, read(&one, &["b"]).await).await.unwrap();
    let before = texts.mapped();
    assert!(!has_dropped(&two));
    let mut waits = Box::pin(map(&two, read(&two, &["b"]).await));
    until("it is dropped", async || {
        assert!(waits.as_mut().now_or_never().is_none(), "no memory is free");
        has_dropped(&two)
    })
    .await;
    drop(large);
    assert_eq!(waits.await.unwrap().documents.len(), 1);
    assert_eq!(texts.mapped(), before + 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_that_emit_much_are_built_followed_and_checked_in_bounded_memory() {
    let (db, layer, _storage) = database().await;
    layer.run_views_by(Arc::new(Texts::default()));
    let large = ["large0", "large1"];
    let fill = async |n: u32| {
        for at in 0..30 {
            put_rows(&db, &format!("d{at:02}"), FEW, n).await;
        }
        for id in large {
            put_rows(&db, id, MANY, n).await;
        }
    };
    fill(1).await;
    // All maps emit the same rows, under different signatures.
    let designs = [("_design/v", "v:n"), ("_design/w", "w:n"), ("_design/x", "x:n")];
    for (design, map) in designs {
        define(&db, design, &[("n", map)]).await;
    }
    for n in [1, 2] {
        join_all(designs.map(|(design, _)| compare(&db, design, "n", "n"))).await;
        if n == 1 {
            fill(2).await;
        }
    }
    assert_eq!(violations(&db).await, Vec::<String>::new());
    let memory = &views(&db.inner).rows_memory;
    until("all memory is returned", async || memory.usage().0 == 0).await;
    // An oversized document counts in full, and each task has a small free permit.
    let of_one = MANY as usize * 450;
    let most = memory.usage().1;
    assert!((BYTES / 8..=BYTES + of_one).contains(&most), "{most}");
    // Stored rows are read in bounded portions, those of a large document with a permit.
    assert_eq!(views(&db.inner).large_reads.usage(), (0, UNIT_BYTES));
    let instance = db.inner.cached("db").unwrap();
    let view = instance.keys.view(groups_of(&instance.record).next().unwrap().number);
    let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
    let had = read_stored_rows(&trx, &view, large.into_iter(), true, None).await.unwrap();
    assert_eq!((had.len(), had[0].rows().count()), (1, MANY as usize));
}

async fn beats(db: &Database) -> u64 {
    let GroupStanding { instance, group, .. } = standing(db).await;
    let keys = instance.keys.view(group.number);
    let all = keys.leases();
    let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
    let leases = trx.range(&all, true).all(1_000).await.unwrap();
    let places = leases.iter().filter(|row| matches!(keys.split(row.key()), Ok(ViewPart::LeasePlace(_))));
    places.map(|row| ViewLeasePlace::decode(row.value()).unwrap().beats).max().unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_waits_for_memory_keeps_its_lease_and_its_pace() {
    let manual = ManualClock::new();
    let options = LayerOptions { view_memory_bytes: BYTES, clock: manual.clock(), ..LayerOptions::default() };
    let (layer, authority, _storage) = layer_with(options, None).await;
    let db = layer.database("db", authority.for_job("test"));
    for id in ["a", "b", "c"] {
        put_rows(&db, id, FEW, 1).await;
    }
    let (views, namespace) = (views(&db.inner), db.inner.cached("db").unwrap().record.namespace);
    let full = views.rows_memory.acquire(namespace, BYTES / 2).await.unwrap();
    layer.run_views_by(Arc::new(Texts::default()));
    define(&db, "_design/v", &[("n", "n")]).await;
    let asked = tokio::spawn({
        let reader = db.reader().clone();
        async move { super::rows(&reader, "_design/v", "n", ViewUpdate::True).await }
    });
    let state = views.group((namespace, standing(&db).await.group.number));
    let pace = state.range.documents();
    until("a range waits", async || state.resource_waits.load(Ordering::Relaxed) > 0).await;
    // Four times as long as a lease without completed ranges is kept.
    until("it works at its lease all the while", async || {
        manual.advance(Duration::from_millis(100));
        beats(&db).await >= 20
    })
    .await;
    drop(full);
    until("it is built", async || layer.inner.metrics.view_groups_built.get() > 0).await;
    assert_eq!(state.range.documents(), pace, "the wait does not count");
    until("the query is answered", async || {
        manual.advance(Duration::from_millis(10));
        asked.is_finished()
    })
    .await;
    assert_eq!(asked.await.unwrap().unwrap().len(), 3 * FEW as usize);
}

/// The only blocking thread is busy, so a document is prepared either at once or after it.
#[test]
fn large_documents_are_prepared_apart_from_the_runtime_one_at_a_time() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let (db, _layer, _storage) = database().await;
        define(&db, "_design/v", &[("n", "n")]).await;
        let job = job_by(&db, "_design/v", &Texts::default()).await;
        let of = |value: &str| {
            let mut rows = EmittedRows::default();
            rows.push("1", value);
            EmittedDocument { id: "d".to_owned(), trees: vec![rows], ..EmittedDocument::default() }
        };
        let (release, blocked) = mpsc::channel::<()>();
        let blocks = tokio::task::spawn_blocking(move || blocked.recv());
        let mut waited = Duration::ZERO;
        let small = prepare_document(&job, of("1"), &mut waited).now_or_never();
        assert!(small.is_some_and(|prepared| prepared.is_ok()));
        let (large, permits) = (of(&format!("[{}[]]", "[],".repeat(400_000))), &views(&db.inner).large_json);
        assert_eq!(permits.available_permits(), 1);
        let mut preparing = Box::pin(prepare_document(&job, large, &mut waited));
        assert!(preparing.as_mut().now_or_never().is_none());
        drop(preparing);
        assert_eq!(permits.available_permits(), 0);
        drop(release);
        assert!(blocks.await.unwrap().is_err());
        assert!(permits.acquire().await.is_ok());
        // Only large documents need a permit.
        let held = permits.acquire().await.unwrap();
        let medium = prepare_document(&job, of(&format!("\"{}\"", "a".repeat(20_000))), &mut waited).await.unwrap();
        assert!(!medium.is_refused());
        drop(held);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_build_returns_its_memory() {
    let (db, layer, _storage) = database().await;
    let (memory, steps) = (&views(&db.inner).rows_memory, &views(&db.inner).steps);
    for at in 0..40 {
        put_rows(&db, &format!("d{at:02}"), FEW, 1).await;
    }
    define(&db, "_design/v", &[("n", "n")]).await;
    steps.forget_permits(Semaphore::MAX_PERMITS);
    layer.run_views_by(Arc::new(Texts::default()));
    let asked = tokio::spawn({
        let reader = db.reader().clone();
        async move { super::rows(&reader, "_design/v", "n", ViewUpdate::True).await }
    });
    // The build makes one step at a time, and stops with rows that are not written yet.
    until("rows are held", async || {
        if memory.usage().0 == 0 && steps.available_permits() == 0 {
            steps.add_permits(1);
        }
        memory.usage().0 > 0
    })
    .await;
    assert_eq!(standing(&db).await.progress.map(|progress| progress.phase), Some(0));
    layer.shutdown();
    until("all memory is returned", async || memory.usage().0 == 0).await;
    assert!(asked.await.unwrap().is_err());
}
