//! Replays of queue entries, and jobs that are reset to another position.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use flatbed_worker::checkpoint::{Checkpoint, SourceMismatch};
use flatbed_worker::documents::{Description, ResetTo};
use flatbed_worker::failure::Failure;
use flatbed_worker::output::sqlite::Sqlite;
use flatbed_worker::output::{Delivery, DeliveryError, Target};
use flatbed_worker::queue::EntryState;
use flatbed_worker::run::{ReplayRequest, RunEnd, Runner};
use serde_json::json;
use tokio::sync::watch;

use crate::fake::{FakeQueue, FakeSource, job, once, redactor};

struct Scenario {
    _directory: tempfile::TempDir,
    file: std::path::PathBuf,
    job: Description,
    source: FakeSource,
    queue: FakeQueue,
    epoch: u64,
}

impl Scenario {
    fn new() -> Scenario {
        let mapping = json!({"tables": [{"name": "t", "primary_key": "id", "columns": [
            {"name": "id", "path": "$._id", "type": "text"}, {"name": "n", "path": "$.n", "type": "integer"}]}]});
        let output = json!({"id": "out", "database_type": "sqlite", "database": "x.sqlite"});
        let system = json!({"retry": {"backoff_base_seconds": 0.001}, "dlq": {"max_replay_attempts": 2}});
        let directory = tempfile::tempdir().unwrap();
        let (file, job) = (directory.path().join("x.sqlite"), job("rdbms", output, mapping, system));
        Scenario {
            _directory: directory,
            file,
            job,
            source: FakeSource::default(),
            queue: FakeQueue::default(),
            epoch: 0,
        }
    }

    async fn run(&mut self, reset: Option<ResetTo>) -> (RunEnd, u64) {
        self.epoch += 1;
        let target = Sqlite::in_file(&self.file, "j", self.job.mapping.tables(), true);
        let (_stop, stopping) = watch::channel(false);
        let (source, queue) = (self.source.clone(), self.queue.clone());
        let mut runner = Runner::new(&self.job, source, target, queue, redactor(), stopping, self.epoch).once();
        if let Some(to) = reset {
            runner = runner.with_reset(to);
        }
        let (end, counts, ..) = runner.run().await;
        (end, counts.delivered + counts.replayed)
    }

    fn want_all(&self, by_hand: bool) {
        let entries = self.queue.0.lock().unwrap().clone();
        let wanted = entries.into_values().map(|entry| ReplayRequest { entry, by_hand });
        self.queue.1.lock().unwrap().extend(wanted);
    }

    fn rows(&self) -> Vec<(String, i64)> {
        let connection = rusqlite::Connection::open(&self.file).unwrap();
        let mut statement = connection.prepare("SELECT id, n FROM t ORDER BY id").unwrap();
        statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect()
    }

    fn refuse(&self, is_to: bool) {
        let connection = rusqlite::Connection::open(&self.file).unwrap();
        let trigger = "CREATE TRIGGER no BEFORE INSERT ON t WHEN NEW.n >= 100 BEGIN SELECT RAISE(ABORT, 'no'); END";
        connection.execute_batch(if is_to { trigger } else { "DROP TRIGGER no" }).unwrap();
    }
}

#[tokio::test]
async fn what_the_target_takes_at_last_leaves_the_queue() {
    let mut place = Scenario::new();
    place.source.write("a", json!({"n": 1}));
    assert_eq!(place.run(None).await, (RunEnd::Done, 1));
    place.refuse(true);
    for (id, n) in [("b", 100), ("c", 200), ("d", 300)] {
        place.source.write(id, json!({"n": n}));
    }
    assert_eq!(place.run(None).await, (RunEnd::Done, 0));
    assert_eq!(place.queue.documents(), ["b", "c", "d"]);
    // Replays fail; a newer revision than the entry's is left to the feed.
    place.source.write("d", json!({"n": 4}));
    place.want_all(false);
    assert_eq!(place.run(None).await, (RunEnd::Done, 1));
    assert_eq!(place.rows(), [("a".to_owned(), 1), ("d".to_owned(), 4)]);
    let states = |place: &Scenario| {
        let entries = place.queue.0.lock().unwrap();
        let mut states: Vec<_> =
            entries.values().map(|entry| (entry.doc_id_original.clone(), entry.state, entry.replay_attempts)).collect();
        states.sort_by(|one, other| one.0.cmp(&other.0));
        states
    };
    let named = |id: &str, state, attempts| (id.to_owned(), state, attempts);
    assert_eq!(
        states(&place),
        [named("b", EntryState::Waiting, 1), named("c", EntryState::Waiting, 1), named("d", EntryState::Overtaken, 0)]
    );
    place.want_all(false);
    place.run(None).await;
    assert_eq!(states(&place)[0], named("b", EntryState::Exhausted, 2));
    // Exhausted entries are replayed only by id.
    place.refuse(false);
    place.want_all(false);
    assert_eq!(place.run(None).await, (RunEnd::Done, 0));
    place.want_all(true);
    assert_eq!(place.run(None).await, (RunEnd::Done, 2));
    assert_eq!(place.rows().len(), 4);
    assert_eq!(place.queue.documents(), ["d"]);
}

#[tokio::test]
async fn deletions_and_edited_documents_are_replayed() {
    let mut place = Scenario::new();
    place.source.write("a", json!({"n": "no number"}));
    assert_eq!(place.run(None).await, (RunEnd::Done, 0));
    for entry in place.queue.0.lock().unwrap().values_mut() {
        entry.edit(json!({"_id": "a", "n": 7}).to_string());
    }
    place.want_all(false);
    assert_eq!(place.run(None).await, (RunEnd::Done, 1));
    assert_eq!(place.rows(), [("a".to_owned(), 7)]);
    assert!(place.queue.documents().is_empty());
}

#[tokio::test]
async fn a_job_that_is_reset_goes_on_where_it_is_told() {
    let mut place = Scenario::new();
    for at in 0..5 {
        place.source.write(&format!("d{at}"), json!({"n": at}));
    }
    assert_eq!(place.run(None).await, (RunEnd::Done, 5));
    // The source is another one: an administrator must decide.
    place.source.0.lock().unwrap().instance = 1;
    assert_eq!(place.run(None).await.0, RunEnd::SourceMismatch(SourceMismatch::MadeAgain));
    assert_eq!(place.run(Some(ResetTo::AsIs)).await.0, RunEnd::Done);
    assert_eq!(place.run(None).await, (RunEnd::Done, 0));
    assert_eq!(place.run(Some(ResetTo::Beginning)).await, (RunEnd::Done, 0));
    assert_eq!(place.run(None).await, (RunEnd::Done, 5));
    place.source.write("d9", json!({"n": 9}));
    assert_eq!(place.run(Some(ResetTo::Now)).await, (RunEnd::Done, 0));
    assert_eq!(place.run(None).await, (RunEnd::Done, 0));
    assert_eq!(place.rows().len(), 5);
}

/// Loses what was written if it fails before it persists.
#[derive(Debug, Default)]
struct Disk {
    written: BTreeSet<String>,
    kept: BTreeSet<String>,
    refused: Option<&'static str>,
    failing: u32,
}

struct OnDisk(Arc<Mutex<Disk>>);

impl Target for OnDisk {
    async fn deliver(&mut self, batch: Vec<Delivery>, _: Option<Checkpoint>) -> Result<(), DeliveryError> {
        let mut disk = self.0.lock().unwrap();
        if batch.iter().any(|delivery| Some(delivery.id.as_str()) == disk.refused) {
            return Err(DeliveryError::failed(Failure::TooLarge, "too large"));
        }
        disk.written.extend(batch.into_iter().map(|delivery| delivery.id));
        Ok(())
    }

    async fn persist(&mut self) -> Result<(), DeliveryError> {
        let mut disk = self.0.lock().unwrap();
        if disk.failing > 0 {
            disk.failing -= 1;
            disk.written = disk.kept.clone();
            return Err(DeliveryError::failed(Failure::Storage, "the disk is gone"));
        }
        disk.kept = disk.written.clone();
        Ok(())
    }
}

/// An entry is the only record of its document: it stays until the delivery is durable.
#[tokio::test(start_paused = true)]
async fn no_entry_goes_before_what_it_brought_is_kept() {
    let system = json!({"halt_on_failure": true, "retry": {"max_retries": 3, "backoff_base_seconds": 0.001}});
    let job = job("cloud", json!({"id": "out", "provider": "stdout"}), json!(null), system);
    let (source, queue, disk) = (FakeSource::default(), FakeQueue::default(), Arc::<Mutex<Disk>>::default());
    let run = async || {
        let (end, counts, _) = once(&job, &source, OnDisk(disk.clone()), &queue, 1).await;
        (end, counts.replayed)
    };
    source.write("a", json!({"n": 1}));
    disk.lock().unwrap().refused = Some("a");
    assert_eq!(run().await, (RunEnd::Done, 0));
    let wanted: Vec<_> =
        queue.0.lock().unwrap().values().map(|entry| ReplayRequest { entry: entry.clone(), by_hand: true }).collect();
    assert_eq!(wanted.len(), 1);
    // Persisting always fails: the entry stays.
    disk.lock().unwrap().refused = None;
    disk.lock().unwrap().failing = u32::MAX;
    *queue.1.lock().unwrap() = wanted.clone();
    assert_eq!(run().await, (RunEnd::GaveUp("the disk is gone".to_owned()), 0));
    assert_eq!(queue.documents(), ["a"]);
    // It fails for a while; other writes of that time are lost too.
    for failing in [0, 1, 3] {
        let id = format!("b{failing}");
        source.write(&id, json!({"n": 2}));
        let entry = wanted[0].entry.clone();
        queue.0.lock().unwrap().insert(entry.id(), entry);
        *disk.lock().unwrap() = Disk { failing, ..Disk::default() };
        *queue.1.lock().unwrap() = wanted.clone();
        assert_eq!(run().await, (RunEnd::Done, 1));
        assert!(queue.documents().is_empty());
        assert_eq!(disk.lock().unwrap().kept, BTreeSet::from(["a".to_owned(), id]));
    }
}
