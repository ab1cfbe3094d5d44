use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flatbed_clock::ManualClock;
use flatbed_testkit::{soon, until};
use flatbed_worker::checkpoint::{Checkpoint, SourceMismatch};
use flatbed_worker::documents::Description;
use flatbed_worker::failure::{Failure, Halt};
use flatbed_worker::output::lines::Lines;
use flatbed_worker::output::sqlite::Sqlite;
use flatbed_worker::output::{Delivery, DeliveryError, Target};
use flatbed_worker::progress::Progress;
use flatbed_worker::run::{RunEnd, Runner};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::fake::{FakeQueue, FakeSource, Mishap, Unlucky, job, once, redactor};

fn into_sqlite(system: Value) -> Description {
    let mapping = json!({"source": {"match": {"t": "order"}}, "tables": [
        {"name": "orders", "primary_key": "k", "columns": [{"name": "k", "path": "$.k", "type": "integer"}, {"name": "id", "path": "$._id", "type": "text"}]},
        {"name": "items", "parent": "orders", "foreign_key": {"column": "k", "references": "k"}, "source_array": "$.items", "columns": {"name": "$"}}]});
    let mut merged = json!({"retry": {"backoff_base_seconds": 0.001, "backoff_max_seconds": 0.002}});
    merged.as_object_mut().unwrap().extend(system.as_object().unwrap().clone());
    job("rdbms", json!({"id": "out", "database_type": "sqlite", "database": "x.sqlite"}), mapping, merged)
}

fn open(file: &Path, job: &Description) -> Sqlite {
    Sqlite::in_file(file, &job.id, job.mapping.tables(), true)
}

/// Returns the document and number of items of each order in the tables.
fn orders(file: &Path) -> BTreeMap<i64, (String, i64)> {
    let connection = rusqlite::Connection::open(file).unwrap();
    let query = "SELECT k, id, (SELECT count(*) FROM items WHERE items.k = orders.k) FROM orders";
    let mut statement = connection.prepare(query).unwrap();
    let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, (row.get(1)?, row.get(2)?)));
    statement.query_map([], row).unwrap().map(Result::unwrap).collect()
}

/// Returns the expected orders, without documents in the queue.
fn expected(source: &FakeSource, queue: &FakeQueue) -> BTreeMap<i64, (String, i64)> {
    let queued = queue.documents();
    let of = |(id, body): (String, Value)| {
        let items = body["items"].as_array().map_or(0, Vec::len);
        (body["t"] == "order" && !queued.contains(&id)).then(|| (body["k"].as_i64().unwrap(), (id, items as i64)))
    };
    source.documents().into_iter().filter_map(of).collect()
}

fn order(k: i64, items: usize) -> Value {
    json!({"t": "order", "k": k, "items": vec!["x"; items]})
}

#[tokio::test]
async fn outages_are_waited_for_and_queue_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("x.sqlite");
    let (job, source, queue) =
        (into_sqlite(json!({"processing": {"batch": 10}})), FakeSource::default(), FakeQueue::default());
    for at in 0..100 {
        source.write(&format!("d{at}"), order(at, 1));
    }
    source.0.lock().unwrap().failing = 5;
    let mishaps = (0..60).map(|at| (at % 3 != 0).then_some(Mishap::Outage)).collect();
    let (end, counts, _) = once(&job, &source, Unlucky { target: open(&file, &job), mishaps }, &queue, 1).await;
    assert_eq!((end, counts.delivered, counts.queued), (RunEnd::Done, 100, 0));
    assert!(counts.outages >= 20, "{counts:?}");
    assert_eq!(orders(&file), expected(&source, &queue));
    let patient = into_sqlite(
        json!({"halt_on_failure": true, "retry": {"max_retries": 3, "backoff_base_seconds": 0.001, "backoff_max_seconds": 0.002}}),
    );
    source.write("d1", order(1, 2));
    let unlucky = Unlucky { target: open(&file, &patient), mishaps: vec![Some(Mishap::Outage); 9] };
    assert_eq!(once(&patient, &source, unlucky, &queue, 2).await.0, RunEnd::GaveUp("gone".to_owned()));
}

#[tokio::test]
async fn what_must_not_go_on_halts() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("x.sqlite");
    let (job, source, queue) = (into_sqlite(json!({})), FakeSource::default(), FakeQueue::default());
    source.write("good", order(1, 0));
    let (end, _, old) = once(&job, &source, open(&file, &job), &queue, 5).await;
    assert_eq!(end, RunEnd::Done);
    // Another process takes over the job, and the first returns.
    assert_eq!(once(&job, &source, open(&file, &job), &queue, 6).await.0, RunEnd::Done);
    assert_eq!(once(&job, &source, old, &queue, 5).await.0, RunEnd::Superseded);
    // A mapping that is wrong for all documents.
    for at in 0..500 {
        source.write(&format!("d{at}"), json!({"t": "order"}));
    }
    let (end, counts, _) = once(&job, &source, open(&file, &job), &queue, 7).await;
    assert_eq!((end, counts.queued), (RunEnd::Halted(Halt::InARow), 100));
    // A database that was created again, or restored.
    source.0.lock().unwrap().instance = 1;
    assert_eq!(
        once(&job, &source, open(&file, &job), &queue, 8).await.0,
        RunEnd::SourceMismatch(SourceMismatch::MadeAgain)
    );
    let restored = FakeSource::default();
    assert_eq!(
        once(&job, &restored, open(&file, &job), &queue, 9).await.0,
        RunEnd::SourceMismatch(SourceMismatch::Behind)
    );
}

/// Whichever request fails, nothing is delivered of a database that is another one by then.
#[tokio::test(start_paused = true)]
async fn a_source_that_was_away_is_looked_at() {
    let mut job = job("cloud", json!({"id": "out", "provider": "stdout"}), Value::Null, json!({}));
    job.input.changes_feed.limit = 10;
    let mut ends = Vec::new();
    for at in 1.. {
        let (source, queue) = (FakeSource::default(), FakeQueue::default());
        for id in 0..30 {
            source.write(&format!("d{id}"), json!({}));
        }
        source.0.lock().unwrap().made_again_at = Some(at);
        let (end, counts, _) = once(&job, &source, Lines::new(Vec::new(), Vec::new()), &queue, 1).await;
        if source.0.lock().unwrap().instance == 0 {
            break;
        }
        ends.push((end, counts.delivered));
    }
    let strange = |delivered| (RunEnd::SourceMismatch(SourceMismatch::MadeAgain), delivered);
    let done = (RunEnd::Done, 30);
    // The requests: the database, the checkpoint, three pages and an empty one, the written checkpoint.
    assert_eq!(ends, [done.clone(), done.clone(), strange(0), strange(10), strange(20), strange(30), done]);
}

/// Only the source's identity or its sequences reveal the new database.
#[tokio::test]
async fn a_database_that_is_made_again_while_it_is_waited_for_is_noticed() {
    for incarnation in [None, Some(1)] {
        let job = job("cloud", json!({"id": "out", "provider": "stdout"}), Value::Null, json!({}));
        let (source, queue) = (FakeSource::default(), FakeQueue::default());
        {
            let mut state = source.0.lock().unwrap();
            (state.is_patient, state.incarnation) = (true, incarnation);
        }
        source.write("old", json!({}));
        let progress = Arc::new(Progress::default());
        let (_stop, stopping) = watch::channel(false);
        let target = Lines::new(Vec::new(), Vec::new());
        let runner =
            Runner::new(&job, source.clone(), target, queue, redactor(), stopping, 1).with_progress(progress.clone());
        let made_again = async {
            until("the document is delivered", async || progress.delivered() == 1).await;
            source.make_again();
            source.write("new", json!({}));
        };
        let ((end, counts, ..), ()) = soon(async { tokio::join!(runner.run(), made_again) }).await;
        assert_eq!((end, counts.delivered), (RunEnd::SourceMismatch(SourceMismatch::MadeAgain), 1), "{incarnation:?}");
    }
}

#[tokio::test]
async fn a_target_that_is_away_is_tried_after_longer_and_longer_pauses() {
    let retry = json!({"backoff_base_seconds": 60, "backoff_max_seconds": 3_600});
    let job = job("cloud", json!({"id": "out", "provider": "stdout"}), Value::Null, json!({"retry": retry}));
    let (source, queue, manual) = (FakeSource::default(), FakeQueue::default(), ManualClock::new());
    source.write("a", json!({}));
    let target = Unlucky { target: Lines::new(Vec::new(), Vec::new()), mishaps: vec![Some(Mishap::Outage); 4] };
    let (_stop, stopping) = watch::channel(false);
    let progress = Arc::new(Progress::new(manual.clock()));
    let runner = Runner::new(&job, source, target, queue, redactor(), stopping, 1).with_progress(progress.clone());
    let time = async {
        for failures in 1..=4 {
            let is_paused = async || progress.outages() == failures && manual.waiting() == 1;
            until("the next try is waited for", is_paused).await;
            // A pause lies between half of the schedule's pause and the whole.
            let pause = Duration::from_secs(60 << (failures - 1));
            manual.advance(pause / 2 - Duration::from_secs(1));
            tokio::task::yield_now().await;
            assert_eq!((progress.outages(), manual.waiting()), (failures, 1));
            assert!(progress.is_failing() && progress.lag().rows == 1);
            manual.advance(pause / 2 + Duration::from_secs(1));
        }
    };
    let ((end, counts, ..), ()) =
        soon(async { tokio::join!(runner.with_clock(manual.clock()).once().run(), time) }).await;
    assert_eq!((end, counts.outages, counts.delivered), (RunEnd::Done, 4, 1));
    assert!(!progress.is_failing());
}

/// A target with a checkpoint that it cannot report while it is down.
#[derive(Debug)]
struct Away;

impl Target for Away {
    async fn begin(&mut self, _: u64) -> Result<Option<Checkpoint>, DeliveryError> {
        Err(DeliveryError::failed(Failure::Connection, "gone"))
    }

    async fn deliver(&mut self, _: Vec<Delivery>, _: Option<Checkpoint>) -> Result<(), DeliveryError> {
        Ok(())
    }
}

#[tokio::test]
async fn how_far_behind_a_job_is_is_not_known_while_its_target_is_away() {
    let job = job("cloud", json!({"id": "out", "provider": "stdout"}), Value::Null, json!({}));
    let (source, queue, manual) = (FakeSource::default(), FakeQueue::default(), ManualClock::new());
    source.write("a", json!({}));
    let progress = Arc::new(Progress::new(manual.clock()));
    let (stop, stopping) = watch::channel(false);
    let runner = Runner::new(&job, source, Away, queue, redactor(), stopping, 1).with_progress(progress.clone());
    let time = async {
        until("the next try is waited for", async || progress.outages() == 1 && manual.waiting() == 1).await;
        assert!(progress.is_failing() && !progress.knows_lag());
        manual.advance(Duration::from_millis(1));
        stop.send_replace(true);
    };
    let ((end, ..), ()) = soon(async { tokio::join!(runner.with_clock(manual.clock()).run(), time) }).await;
    assert_eq!(end, RunEnd::Stopped);
}

#[tokio::test]
async fn a_job_follows_until_it_is_told_to_end() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("x.sqlite");
    let (job, source, queue) = (into_sqlite(json!({})), FakeSource::default(), FakeQueue::default());
    once(&job, &source, open(&file, &job), &queue, 1).await;
    let (stop, stopping) = watch::channel(false);
    let manual = ManualClock::new();
    let runner = Runner::new(&job, source.clone(), open(&file, &job), queue.clone(), redactor(), stopping, 2);
    let runner = runner.with_clock(manual.clock());
    let writes = async {
        let wait = async || {
            until("the job waits", async || manual.waiting() > 0).await;
            manual.advance(Duration::from_secs(1));
            // Yields to the runner, which shares the task.
            tokio::task::yield_now().await;
        };
        for at in 0..20 {
            source.write(&format!("d{}", at % 7), order(at, at as usize % 3));
            wait().await;
        }
        while orders(&file) != expected(&source, &queue) {
            wait().await;
        }
        stop.send_replace(true);
    };
    let ((end, ..), ()) = soon(async { tokio::join!(runner.run(), writes) }).await;
    assert_eq!(end, RunEnd::Stopped);
    // A source that answers at once without changes is not polled in a loop.
    assert!(source.0.lock().unwrap().requests < 400);
}

#[tokio::test]
async fn lines_have_their_checkpoint_at_the_source() {
    let job = job("cloud", json!({"id": "out", "provider": "stdout"}), Value::Null, json!({}));
    let (source, queue) = (FakeSource::default(), FakeQueue::default());
    source.write("a", json!({"n": 1}));
    source.write("b", json!({"n": 2}));
    source.write("a", Value::Null);
    source.write("_design/x", json!({"views": {}}));
    let lines = |lines: Lines<Vec<u8>>| String::from_utf8(lines.into_inner().unwrap()).unwrap();
    let (end, _, target) = once(&job, &source, Lines::new(Vec::new(), Vec::new()), &queue, 1).await;
    assert_eq!(end, RunEnd::Done);
    assert_eq!(
        lines(target),
        concat!(
            "{\"id\":\"b\",\"rev\":\"2-x\",\"seq\":\"2\",\"doc\":{\"_id\":\"b\",\"_rev\":\"2-x\",\"n\":2}}\n",
            "{\"id\":\"a\",\"rev\":\"3-x\",\"seq\":\"3\",\"deleted\":true}\n"
        )
    );
    let locals = source.0.lock().unwrap().locals.clone();
    let [(checkpoint, _)] = locals.values().collect::<Vec<_>>()[..] else { panic!() };
    assert_eq!((checkpoint.seq.as_str(), checkpoint.is_initial_sync_done), ("4", true));
    source.write("c", json!({"n": 3}));
    let (_, counts, _) = once(&job, &source, Lines::new(Vec::new(), Vec::new()), &queue, 2).await;
    assert_eq!(counts.delivered, 1);
    // A job resumes from the Python worker's checkpoint, but not if the target's tables are new.
    let (checkpoint, _) = source.0.lock().unwrap().locals.values().next().unwrap().clone();
    source.0.lock().unwrap().locals.clear();
    let (_stop, stopping) = watch::channel(false);
    let target = Lines::new(Vec::new(), Vec::new());
    let runner = Runner::new(&job, source.clone(), target, queue.clone(), redactor(), stopping, 3);
    assert_eq!(runner.with_checkpoint(checkpoint).once().run().await.1.delivered, 0);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("x.sqlite");
    let job = into_sqlite(json!({}));
    assert_eq!(once(&job, &source, open(&file, &job), &queue, 1).await.1.delivered, 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Writes during kills of the worker and failures of the target: in the end the tables have what the source has,
    /// except for documents in the queue, which are exactly the poisoned ones.
    #[test]
    fn kills_and_outages_lose_nothing(
        rounds in proptest::collection::vec(
            (proptest::collection::vec((0_u8..12, 0_u8..30, 0_usize..4, 0_u8..8), 0..40),
             proptest::collection::vec(proptest::option::of(proptest::sample::select(vec![Mishap::Outage, Mishap::KilledBefore, Mishap::KilledAfter])), 0..6)),
            1..8),
        batch in 1_u64..20,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("x.sqlite");
        let (job, source, queue) = (into_sqlite(json!({"processing": {"batch": batch}})), FakeSource::default(), FakeQueue::default());
        let mut poisoned = std::collections::BTreeSet::new();
        let mut epoch = 0;
        for (writes, mishaps) in rounds {
            for (document, key, items, kind) in writes {
                let id = format!("d{document}");
                // Distinct keys: two documents with one key are not tested here.
                let mut body = order(i64::from(document) * 100 + i64::from(key), items);
                match kind {
                    0 => body = Value::Null,
                    1 => body["t"] = "invoice".into(),
                    2 => body["k"] = "poison".into(),
                    _ => {}
                }
                source.write(&id, body);
            }
            poisoned.extend(source.documents().into_iter().filter(|(_, body)| body["k"] == "poison").map(|(id, _)| id));
            epoch += 1;
            let unlucky = Unlucky { target: open(&file, &job), mishaps };
            let (end, ..) = runtime.block_on(once(&job, &source, unlucky, &queue, epoch));
            prop_assert!(matches!(end, RunEnd::Done | RunEnd::Superseded), "{:?}", end);
        }
        let (end, ..) = runtime.block_on(once(&job, &source, open(&file, &job), &queue, epoch + 1));
        prop_assert_eq!(end, RunEnd::Done);
        let now_poisoned = |id: &str| source.documents().get(id).is_some_and(|body| body["k"] == "poison");
        prop_assert!(queue.documents().iter().all(|id| poisoned.contains(id)));
        for (id, body) in source.documents() {
            prop_assert!(body["k"] != "poison" || queue.documents().contains(&id));
        }
        // A fixed document has its rows; a poisoned one has its previous rows.
        let found: BTreeMap<i64, (String, i64)> = orders(&file).into_iter().filter(|(_, (id, _))| !now_poisoned(id)).collect();
        prop_assert_eq!(found, expected(&source, &poisoned_now(&source)));
    }
}

/// Returns a queue with the currently poisoned documents, for [`expected`].
fn poisoned_now(source: &FakeSource) -> FakeQueue {
    let queue = FakeQueue::default();
    for (id, _) in source.documents().into_iter().filter(|(_, body)| body["k"] == "poison") {
        let entry = json!({"type": "dlq", "doc_id_original": id, "seq": "1", "method": "PUT", "status": 0, "error": "", "time": 0, "doc_data": ""});
        queue.0.lock().unwrap().insert(id, serde_json::from_value(entry).unwrap());
    }
    queue
}
