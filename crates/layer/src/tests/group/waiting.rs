//! Waiting queries: for a group that another process follows, in the list of waits, and with a limit if functions find
//! no free thread.
#![cfg(test)]

use std::sync::Arc;
use std::time::Duration;

use flatbed_clock::ManualClock;
use flatbed_flatten::json::{Limits, parse};
use flatbed_store::error::{Error, ViewFailure};
use flatbed_store::waits;
use flatbed_testkit::{pass, soon, until, until_some};
use flatbed_views::view_updates::{STUCK_MAX, views};

use super::functions::Texts;
use super::{compare, define, mapped, put, rows, standing};
use crate::handle::Reader;
use crate::tests::fenced::open_at;
use crate::{FunctionFailure, Layer, Select, ViewQuery, ViewRange, ViewUpdate};

fn ask(reader: &Reader, view: &str) -> tokio::task::JoinHandle<crate::Result<usize>> {
    let (reader, view) = (reader.clone(), view.to_owned());
    tokio::spawn(async move { rows(&reader, "_design/v", &view, ViewUpdate::True).await.map(|rows| rows.len()) })
}

async fn until_waiting(layer: &Layer, queries: u64) {
    until("so many queries wait", async || views(&layer.inner).waiting() == queries).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_another_process_does_not_look_all_the_time_and_is_told_at_once() {
    let (layer, authority, storage) = crate::tests::fenced::layer().await;
    let follower = Arc::new(Texts::default());
    layer.run_views_by(follower.clone());
    let db = layer.database("db", authority.for_job("test"));
    define(&db, "_design/v", &[("n", "n|_sum"), ("id", "_id")]).await;
    put(&db, "a", Some(r#"{"n":1}"#)).await;
    compare(&db, "_design/v", "n", "n").await;
    let manual = ManualClock::new();
    let (other, others) = open_at(&storage, &manual).await;
    other.run_views_by(Arc::new(Texts::default()));
    let theirs = other.database("db", others.for_job("test"));
    compare(&theirs, "_design/v", "n", "n").await;
    // The follower stops while mapping a change.
    follower.stop_after(follower.mapped());
    put(&db, "b", Some(r#"{"n":2}"#)).await;
    let queries: Vec<_> = (0..40).map(|at| ask(&theirs, if at % 4 == 0 { "id" } else { "n" })).collect();
    until_waiting(&other, 40).await;
    // Each has two timers, and the shared poll has one.
    until("all have looked", async || manual.waiting() > 80).await;
    let before = other.inner.metrics.storage().transactions.get();
    // A slow poll would come after 2 s, and take the group over.
    for _ in 0..15 {
        manual.advance(Duration::from_millis(100));
        // No query stops waiting in order to poll.
        assert_eq!(views(&other.inner).waiting(), 40);
        pass(Duration::from_millis(20)).await;
    }
    let looks = other.inner.metrics.storage().transactions.get() - before;
    assert!(looks <= 10, "{looks} transactions in which nothing came");
    let (waits, rest) = other.view_waits();
    let waits: Vec<_> = waits.iter().map(|wait| (&*wait.database, &*wait.view, wait.waiting)).collect();
    assert_eq!((waits.len(), rest), (2, 0), "{waits:?}");
    assert!(waits.contains(&("db", "n", 30)) && waits.contains(&("db", "id", 10)), "{waits:?}");
    follower.go_on();
    // The watch reports it, since the time of a slow poll does not come. Polls are a few milliseconds apart.
    let mut left = 20;
    until("they are told", async || {
        if left > 0 {
            left -= 1;
            manual.advance(Duration::from_millis(10));
        }
        views(&other.inner).waiting() == 0
    })
    .await;
    for query in queries {
        assert_eq!(soon(query).await.unwrap().unwrap(), 2);
    }
    assert_eq!((views(&other.inner).waiting(), other.view_waits().0), (0, Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_functions_that_have_no_time_gets_an_error_in_the_end() {
    let (db, _storage) = mapped().await;
    put(&db, "a", Some(r#"{"n":1,"busy":true}"#)).await;
    define(&db, "_design/v", &[("n", "busy:n")]).await;
    let query = ask(&db, "n");
    until("it is tried in vain", async || db.inner.metrics.view_update_failures.get() > 1).await;
    assert!(!query.is_finished());
    let group = standing(&db).await;
    views(&db.inner).group((group.instance.record.namespace, group.group.number)).age_failures(STUCK_MAX);
    let failed = soon(query).await.unwrap().unwrap_err();
    assert!(matches!(failed, Error::View(ViewFailure::Function(FunctionFailure::Busy(_)))), "{failed}");
    put(&db, "a", Some(r#"{"n":1}"#)).await;
    assert_eq!(until_some("it is retried", async || ask(&db, "n").await.unwrap().ok()).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_that_wait_are_shown_by_view_and_no_more_than_so_many() {
    let (db, _storage) = mapped().await;
    put(&db, "a", Some(r#"{"n":1}"#)).await;
    define(&db, "_design/v", &[("n", "n")]).await;
    compare(&db, "_design/v", "n", "n").await;
    let views = views(&db.inner);
    let group = views.group((1_000, 1));
    let waits_for = |view: usize| flatbed_views::view_updates::WaitsFor {
        database: "db".into(),
        design: "_design/w".to_owned(),
        view: format!("v{view:03}"),
        signature: [7; 16],
    };
    let begin = |at: usize| flatbed_views::view_updates::WaitingReader::begin(views, &group, waits_for(at / 2));
    let mut waiting: Vec<_> = (0..1_200).map(|at| begin(at).ok().unwrap()).collect();
    let (waits, rest) = views.waits();
    assert_eq!((waits.len(), rest), (500, 200));
    assert!(waits.iter().all(|wait| wait.waiting == 2 && wait.signature == "07".repeat(16)));
    waiting.extend((1_200..10_000).map(|at| begin(at % 4).ok().unwrap()));
    assert!(matches!(begin(0), Err(ViewFailure::TooManyWaiting)));
    drop(waiting);
    assert_eq!((views.waiting(), views.waits()), (0, (Vec::new(), 0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_a_view_that_is_up_to_date_is_one_transaction_and_says_whether_it_is_another() {
    let (db, _storage) = mapped().await;
    for n in 0..150 {
        put(&db, &format!("d{n:03}"), Some(&format!(r#"{{"n":{n}}}"#))).await;
    }
    assert!(db.view_known("_design/v", "n", ViewUpdate::True).is_none());
    define(&db, "_design/v", &[("n", "n|_sum")]).await;
    compare(&db, "_design/v", "n", "n").await;
    let page = async |from: Option<i64>| {
        // The local follower may already know that it has changed.
        let known = db.view_known("_design/v", "n", ViewUpdate::True);
        let view = known.ok_or(Error::View(ViewFailure::Changed))?;
        let start = from.map(|from| parse(from.to_string().as_bytes(), &Limits::default()).unwrap().into_owned());
        let range = ViewRange { start, ..ViewRange::default() };
        let query = ViewQuery { select: Select::Range(range), limit: Some(20), ..ViewQuery::default() };
        view.rows(query).next_page().await.map(|page| page.unwrap().rows.len())
    };
    // The rows before a key are counted down the tree.
    for (from, most) in [(None, 4), (Some(100), 5)] {
        let (rows, waits) = waits::count(page(from)).await;
        assert_eq!((rows.unwrap(), waits.transactions), (20, 1));
        assert!(!waits::are_exact() || waits.path.depth() <= most, "{waits:?}");
    }
    let (other, others) = Layer::open(db.inner.db.clone(), db.inner.options.clone(), None).await.unwrap();
    let theirs = other.database("db", others.for_job("test"));
    define(&theirs, "_design/v", &[("n", "_id|_count")]).await;
    let changed = page(None).await;
    assert!(matches!(changed, Err(Error::View(ViewFailure::Changed))), "{changed:?}");
    compare(&db, "_design/v", "n", "_id").await;
    assert_eq!(page(None).await.unwrap(), 20);
    put(&theirs, "_design/v", None).await;
    let changed = page(None).await;
    assert!(matches!(changed, Err(Error::View(ViewFailure::Changed))), "{changed:?}");
    assert!(db.view_known("_design/v", "n", ViewUpdate::True).is_none());
    db.delete().await.unwrap();
    assert!(db.view_known("_design/v", "n", ViewUpdate::True).is_none());
}
