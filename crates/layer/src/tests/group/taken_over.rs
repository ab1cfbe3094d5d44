//! Two processes follow one group, and one of them is slow to enter the documents that it has read.
#![cfg(test)]

use std::sync::Arc;

use flatbed_clock::ManualClock;
use flatbed_store::view_functions::EmittedRows;
use flatbed_testkit::{Storage, until};
use flatbed_views::group::large::LargeOutcome;
use flatbed_views::group::purges::enter_documents;
use flatbed_views::group::reconcile::reconcile;
use flatbed_views::group::steps::{BEAT_INTERVAL, EnteredPurges, Hold, Step, Take, purges_of};
use flatbed_views::view::prepare::{EmittedDocument, prepare};
use flatbed_views::view_updates::memory::UNIT_BYTES;
use flatbed_views::view_updates::views;
use futures_util::FutureExt;
use tokio::sync::Semaphore;

use super::functions::Texts;
use super::purges::{forget_log, purge};
use super::together::{job, prepared};
use super::{compare, define, put, rows, standing, violations};
use crate::handle::Database;
use crate::tests::fenced::{layer, open, open_at};
use crate::{Layer, ViewUpdate};

/// Opens the database in a process that runs no functions.
async fn database(storage: &Storage) -> Database {
    let (layer, authority) = open(storage, None).await;
    layer.database("db", authority.for_job("test"))
}

/// A comparison with the documents does not change the group's position: only the holder shows it to the other process.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_read_before_another_process_took_over_is_not_entered() {
    let (layer, authority, storage) = layer().await;
    layer.run_views_by(Arc::new(Texts::default()));
    let db = layer.database("db", authority.for_job("test"));
    define(&db, "_design/v", &[("n", "n")]).await;
    for n in 0..10 {
        put(&db, &format!("d{n}"), Some(r#"{"n":1}"#)).await;
    }
    compare(&db, "_design/v", "n", "n").await;
    layer.shutdown();
    until("its tasks have ended", async || layer.inner.metrics.view_updates_running.get() == 0).await;
    let (ones, twos) = (database(&storage).await, database(&storage).await);
    put(&twos, "x", Some(r#"{"n":1}"#)).await;
    let (one, two) = (Arc::new(job(&ones).await), job(&twos).await);
    let before = standing(&ones).await.progress.unwrap();
    // The second process has read and mapped a document, which is then purged; the log loses the purge.
    let documents = prepared(&two, "x");
    purge(&twos, "x").await;
    forget_log(&twos).await;
    // The first process makes one step.
    let steps = &views(&ones.inner).steps;
    steps.forget_permits(Semaphore::MAX_PERMITS);
    steps.add_permits(1);
    let comparing = tokio::spawn({
        let (one, before) = (Arc::clone(&one), before.clone());
        async move { reconcile(&one, before).await }
    });
    let owner = views(&ones.inner).owner;
    let holds = async || standing(&ones).await.progress.unwrap().holder == owner;
    until("the first one holds the group", holds).await;
    let taken = standing(&ones).await.progress.unwrap();
    assert_eq!(taken.purges, before.purges, "it holds the group before it compares");
    let as_before = EnteredPurges { purges: purges_of(&before), stamp: before.purge_stamp.clone(), drained: None };
    let late = enter_documents(&two, before.clone(), &documents, &as_before).await.unwrap();
    assert!(matches!(late, LargeOutcome::Elsewhere));
    steps.add_permits(1_000);
    assert!(matches!(comparing.await.unwrap().unwrap(), LargeOutcome::Stands(_)));
    assert_eq!(standing(&ones).await.progress.unwrap().purges, before.purges + 1);
    assert_eq!(violations(&ones).await, Vec::<String>::new());
}

/// The successor's clock stands still, so it never counts another process as silent.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_stops_releases_its_groups() {
    let (layer, authority, storage) = layer().await;
    layer.run_views_by(Arc::new(Texts::default()));
    let db = layer.database("db", authority.for_job("test"));
    define(&db, "_design/v", &[("n", "n")]).await;
    put(&db, "a", Some(r#"{"n":1}"#)).await;
    compare(&db, "_design/v", "n", "n").await;
    assert!(layer.until_groups_released().now_or_never().is_none(), "it follows the group");
    layer.shutdown();
    until("its tasks have ended", async || layer.inner.metrics.view_updates_running.get() == 0).await;
    layer.until_groups_released().await;
    let writer = database(&storage).await;
    put(&writer, "b", Some(r#"{"n":2}"#)).await;
    assert!(standing(&writer).await.progress.unwrap().holder.is_empty(), "it still holds the group");
    let (successor, others) = open_at(&storage, &ManualClock::new()).await;
    successor.run_views_by(Arc::new(Texts::default()));
    compare(&successor.database("db", others.for_job("test")), "_design/v", "n", "n").await;
}

async fn until_ended(layer: &Layer) {
    layer.shutdown();
    until("its tasks have ended", async || layer.inner.metrics.view_updates_running.get() == 0).await;
    layer.until_groups_released().await;
}

/// Its clock stands still, so the pause does not end by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_stops_releases_a_group_that_pauses_after_a_failure() {
    let (layer, authority, storage) = layer().await;
    layer.run_views_by(Arc::new(Texts::default()));
    let db = layer.database("db", authority.for_job("test"));
    define(&db, "_design/v", &[("n", "busy:n")]).await;
    put(&db, "a", Some(r#"{"n":1}"#)).await;
    compare(&db, "_design/v", "n", "busy:n").await;
    until_ended(&layer).await;
    let (pausing, others) = open_at(&storage, &ManualClock::new()).await;
    pausing.run_views_by(Arc::new(Texts::default()));
    let db = pausing.database("db", others.for_job("test"));
    Step::run(&job(&db).await, Take { anew: None }).await.unwrap().expect("it is the holder");
    put(&db, "b", Some(r#"{"n":2,"busy":true}"#)).await;
    let query = tokio::spawn({
        let reader = db.reader().clone();
        async move { rows(&reader, "_design/v", "n", ViewUpdate::True).await.map(drop) }
    });
    until("it has failed", async || pausing.inner.metrics.view_update_failures.get() > 0).await;
    let writer = database(&storage).await;
    assert_eq!(standing(&writer).await.progress.unwrap().holder, pausing.inner.process);
    until_ended(&pausing).await;
    assert!(standing(&writer).await.progress.unwrap().holder.is_empty(), "it still holds the group");
    query.abort();
}

/// Builds a group and leaves it without a holder.
async fn built() -> Storage {
    let (layer, authority, storage) = layer().await;
    layer.run_views_by(Arc::new(Texts::default()));
    let db = layer.database("db", authority.for_job("test"));
    define(&db, "_design/v", &[("n", "n")]).await;
    put(&db, "a", Some(r#"{"n":1}"#)).await;
    compare(&db, "_design/v", "n", "n").await;
    until_ended(&layer).await;
    storage
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_waits_for_its_turn_shows_that_it_works() {
    let (storage, manual) = (built().await, ManualClock::new());
    let (layer, authority) = open_at(&storage, &manual).await;
    let db = layer.database("db", authority.for_job("test"));
    let job = Arc::new(job(&db).await);
    let before = Step::run(&job, Take { anew: None }).await.unwrap().expect("it is the holder");
    let mut turns = Vec::new();
    for namespace in [1_000, 1_000, 1_001, 1_001] {
        turns.push(views(&db.inner).row_writes.acquire(namespace, UNIT_BYTES).await.unwrap());
    }
    let mut emitted = EmittedRows::default();
    (0..1_000).for_each(|n| emitted.push(&n.to_string(), "1"));
    let large = [prepare(
        &job.storage,
        EmittedDocument { id: "d".to_owned(), trees: vec![emitted], ..EmittedDocument::default() },
    )];
    let entering = tokio::spawn({
        let (job, before) = (Arc::clone(&job), before.clone());
        async move {
            let as_before = EnteredPurges::as_before(&before);
            enter_documents(&job, before, &large, &as_before).await
        }
    });
    until("it waits", async || job.is_waiting()).await;
    // Twice: it shows it again and again.
    let mut seen = before.clone();
    for _ in 0..2 {
        until("another process sees a change", async || {
            manual.advance(BEAT_INTERVAL.get());
            standing(&db).await.progress.unwrap() != seen
        })
        .await;
        seen = standing(&db).await.progress.unwrap();
    }
    assert!(job.is_waiting());
    assert_eq!((&seen.stamp, &seen.holder), (&before.stamp, &before.holder));
    drop(turns);
    assert!(matches!(entering.await.unwrap().unwrap(), LargeOutcome::Stands(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_holder_that_has_not_moved_is_replaced() {
    let storage = built().await;
    let (ones, twos) = (database(&storage).await, database(&storage).await);
    let (one, two) = (job(&ones).await, job(&twos).await);
    let first = Step::run(&one, Take { anew: None }).await.unwrap().expect("it is the holder");
    assert!(Step::run(&two, Hold { silent: None }).await.unwrap().is_none());
    let (replaced, second) = Step::run(&one, Hold { silent: None }).await.unwrap().expect("it is the holder");
    assert_eq!(replaced, first.nodes_mark);
    assert!(Step::run(&two, Hold { silent: Some(&first) }).await.unwrap().is_none());
    let (_, third) = Step::run(&two, Hold { silent: Some(&second) }).await.unwrap().expect("it takes over");
    assert_eq!(third.holder, twos.inner.process);
    assert!(Step::run(&one, Hold { silent: None }).await.unwrap().is_none());
}
