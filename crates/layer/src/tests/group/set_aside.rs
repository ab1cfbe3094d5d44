//! Documents on which functions exceed a bound of time or memory.
#![cfg(test)]

use std::sync::Arc;

use flatbed_testkit::{until, until_some};
use flatbed_views::group::build::read_with_local_seq;
use flatbed_views::group::mapper::map;

use super::functions::Texts;
use super::together::job_by;
use super::{define, mapped, put, rows, sorted};
use crate::check::check_database;
use crate::handle::Reader;
use crate::tests::fenced::{database, layer, open};
use crate::{Error, FunctionFailure, ViewFailure, ViewUpdate};

const GOOD: &str = r#"{"n":1}"#;
const HEAVY: &str = r#"{"n":1,"heavy":true}"#;

async fn ids(reader: &Reader, view: &str) -> Vec<String> {
    let rows = rows(reader, "_design/v", view, ViewUpdate::True).await.unwrap();
    sorted(rows).into_iter().map(|(_, id, _)| id).collect()
}

async fn set_aside(reader: &Reader) -> (u64, Vec<String>) {
    let found = reader.view_info("_design/v").await.unwrap().set_aside;
    assert!(found.documents.iter().all(|(_, reason)| reason == "heavy"), "{found:?}");
    (found.count, found.documents.into_iter().map(|(id, _)| id).collect())
}

fn some(ids: &[&str]) -> (u64, Vec<String>) {
    (ids.len() as u64, ids.iter().map(|id| (*id).to_owned()).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_is_set_aside_until_it_maps_or_is_gone() {
    let (one, authority, storage) = layer().await;
    one.run_views_by(Arc::new(Texts::default()));
    let db = one.database("db", authority.for_job("test"));
    for (id, body) in [("a", GOOD), ("b", GOOD), ("x", HEAVY), ("y", HEAVY), ("z", HEAVY)] {
        put(&db, id, Some(body)).await;
    }
    define(&db, "_design/v", &[("h", "heavy:n"), ("n", "n")]).await;
    // The first build skips them.
    assert_eq!((ids(&db, "h").await, ids(&db, "n").await), (some(&["a", "b"]).1, some(&["a", "b"]).1));
    assert_eq!(set_aside(&db).await, some(&["x", "y", "z"]));
    assert_eq!(check_database(&db, |_| {}).await.unwrap().violations, [""; 0]);
    put(&db, "x", Some(GOOD)).await;
    put(&db, "y", None).await;
    assert_eq!((ids(&db, "h").await, set_aside(&db).await), (some(&["a", "b", "x"]).1, some(&["z"])));
    let rev = db.get("z", &Default::default()).await.unwrap().rev;
    db.purge("z", &[rev]).await.unwrap();
    assert_eq!((ids(&db, "h").await, set_aside(&db).await), (some(&["a", "b", "x"]).1, some(&[])));
    // Following removes the rows of earlier revisions.
    put(&db, "b", Some(HEAVY)).await;
    put(&db, "c", Some(HEAVY)).await;
    assert_eq!((ids(&db, "n").await, set_aside(&db).await), (some(&["a", "x"]).1, some(&["b", "c"])));
    // Another process reads the same, and its check does not map them.
    let (two, others) = open(&storage, None).await;
    let texts = Arc::new(Texts::default());
    two.run_views_by(texts.clone());
    let theirs = two.database("db", others.for_job("test"));
    assert_eq!(set_aside(&theirs).await, some(&["b", "c"]));
    let report = check_database(&theirs, |_| {}).await.unwrap();
    assert_eq!((report.violations, texts.mapped()), (Vec::new(), 2));
    put(&theirs, "b", Some(GOOD)).await;
    for reader in [db.reader(), theirs.reader()] {
        assert_eq!((ids(reader, "h").await, set_aside(reader).await), (some(&["a", "b", "x"]).1, some(&["c"])));
        assert_eq!(check_database(reader, |_| {}).await.unwrap().violations, [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_was_slow_once_is_retried() {
    let (db, _storage) = mapped().await;
    put(&db, "a", Some(r#"{"n":1,"slow":true}"#)).await;
    put(&db, "b", Some(GOOD)).await;
    define(&db, "_design/v", &[("n", "n")]).await;
    assert_eq!((ids(&db, "n").await, set_aside(&db).await), (some(&["a", "b"]).1, some(&[])));
    assert_eq!(db.inner.metrics.view_documents_failed.get(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_set_aside_is_retried_after_a_new_revision() {
    let (db, _storage) = database().await;
    flatbed_operations::view_runtime::run_views_by(&db.inner, Arc::new(Texts::slow_times(2)));
    let slow = Some(r#"{"n":1,"slow":true}"#);
    put(&db, "a", slow).await;
    put(&db, "b", Some(GOOD)).await;
    define(&db, "_design/v", &[("n", "n")]).await;
    let count = async || db.view_info("_design/v").await.unwrap().set_aside.count;
    assert_eq!((ids(&db, "n").await, count().await), (some(&["b"]).1, 1));
    put(&db, "a", slow).await;
    assert_eq!((ids(&db, "n").await, count().await), (some(&["a", "b"]).1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_after_many_breaches_gets_further() {
    let (layer, authority, _storage) = layer().await;
    let db = layer.database("db", authority.for_job("test"));
    let ids: Vec<String> = (0..6).map(|n| format!("d{n}")).collect();
    for id in &ids {
        put(&db, id, Some(HEAVY)).await;
    }
    define(&db, "_design/v", &[("h", "heavy:n")]).await;
    let texts = Texts::default();
    let job = job_by(&db, "_design/v", &texts).await;
    let ended = map(&job, read_with_local_seq(&job, &ids).await.unwrap()).await.map(drop);
    assert!(matches!(ended, Err(Error::View(ViewFailure::Function(FunctionFailure::OutOfResources(_))))), "{ended:?}");
    let before = texts.mapped();
    // A new task of the group uses what the process remembers.
    let job = job_by(&db, "_design/v", &texts).await;
    let part = map(&job, read_with_local_seq(&job, &ids).await.unwrap()).await.unwrap();
    assert!(part.documents.len() == 6 && part.documents.iter().all(|document| document.set_aside() == Some("heavy")));
    assert_eq!(texts.mapped() - before, 2 * 2, "the first four are not tried again");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_mapped_before_a_failure_is_not_lost() {
    let (layer, authority, _storage) = layer().await;
    let db = layer.database("db", authority.for_job("test"));
    for (id, body) in [("a", GOOD), ("b", HEAVY), ("c", GOOD), ("d", r#"{"n":1,"fatal":true}"#)] {
        put(&db, id, Some(body)).await;
    }
    define(&db, "_design/v", &[("h", "heavy:n"), ("f", "fatal:n")]).await;
    let texts = Texts::busy_each_second_call();
    let job = job_by(&db, "_design/v", &texts).await;
    let (mut rest, mut parts) = (read_with_local_seq(&job, &some(&["a", "b", "c", "d"]).1).await.unwrap(), Vec::new());
    let ended = loop {
        match map(&job, rest).await {
            Ok(part) => {
                parts.push(part.documents.iter().map(|document| document.id().to_owned()).collect::<Vec<_>>());
                rest = part.rest;
            }
            Err(error) => break error,
        }
    };
    // The second call fails as busy. The third one exceeds the bound again. After that each second call fails as busy.
    assert_eq!(parts, [["a"], ["b"], ["c"]]);
    assert!(matches!(ended, Error::View(ViewFailure::Function(FunctionFailure::Busy(_)))), "{ended:?}");
    let ended = map(&job, read_with_local_seq(&job, &some(&["d"]).1).await.unwrap()).await.map(drop);
    assert!(matches!(ended, Err(Error::View(ViewFailure::Function(FunctionFailure::Thrown { .. })))), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_built_of_a_range_is_not_mapped_again() {
    let (db, _storage) = database().await;
    for id in ["a", "b", "c", "d"] {
        put(&db, id, Some(GOOD)).await;
    }
    let texts = Arc::new(Texts::busy_after(1, 2));
    flatbed_operations::view_runtime::run_views_by(&db.inner, texts.clone());
    define(&db, "_design/v", &[("n", "n")]).await;
    until("there is no turn", async || db.inner.metrics.view_update_failures.get() > 0).await;
    assert_eq!(texts.mapped(), 2);
    texts.stop_being_busy();
    let built = async || rows(&db, "_design/v", "n", ViewUpdate::True).await.ok();
    assert_eq!(until_some("it is built", built).await.len(), 4);
    assert_eq!(texts.mapped(), 4);
}
