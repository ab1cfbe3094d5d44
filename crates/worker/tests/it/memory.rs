//! Memory that jobs have in common, with documents that mean no good.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use flatbed_worker::checkpoint::Checkpoint;
use flatbed_worker::documents::Description;
use flatbed_worker::failure::Failure;
use flatbed_worker::memory::Memory;
use flatbed_worker::output::{Delivery, Refused, Target};
use flatbed_worker::run::{Counts, End, Runner};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::fake::{FakeQueue, FakeSource, job, redactor};

/// Far more than any of this takes; who waits for ever fails.
const PATIENCE: Duration = Duration::from_secs(300);

/// A target that takes its time, and knows how much all of its kind are given at once.
#[derive(Debug, Clone, Default)]
struct Scales {
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    is_down: Arc<AtomicBool>,
    /// Of documents of this target.
    ids: Arc<std::sync::Mutex<Vec<String>>>,
}

impl Target for Scales {
    async fn begin(&mut self, _: u64) -> Result<Option<Checkpoint>, Refused> {
        Ok(None)
    }

    async fn deliver(&mut self, batch: Vec<Delivery>, _: Option<Checkpoint>) -> Result<(), Refused> {
        let bytes: usize = batch.iter().map(Delivery::bytes).sum();
        let now = self.now.fetch_add(bytes, Ordering::SeqCst) + bytes;
        self.most.fetch_max(now, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(2)).await;
        self.now.fetch_sub(bytes, Ordering::SeqCst);
        if self.is_down.load(Ordering::SeqCst) {
            return Err(Refused::failed(Failure::Connection, "down"));
        }
        self.ids.lock().unwrap().extend(batch.into_iter().map(|delivery| delivery.id));
        Ok(())
    }
}

fn into_rows() -> Description {
    // A document of some kilobytes becomes megabytes: each element has the whole text beside it.
    let mapping = json!({"tables": [{"name": "t", "primary_key": "id", "columns": [{"name": "id", "path": "$._id"}]},
        {"name": "u", "parent": "t", "foreign_key": {"column": "t", "references": "id"}, "source_array": "$.of",
         "columns": {"t": "$$._id", "text": "$$.text"}}]});
    let retry =
        json!({"retry": {"backoff_base_seconds": 0.01, "backoff_max_seconds": 0.05}, "processing": {"batch": 50}});
    job("rdbms", json!({"id": "out", "database_type": "sqlite", "database": "x"}), mapping, retry)
}

async fn run(
    job: Description,
    source: FakeSource,
    target: Scales,
    memory: Memory,
    stopping: watch::Receiver<bool>,
) -> (End, Counts) {
    let runner = Runner::new(&job, source, target, FakeQueue::default(), redactor(), stopping, 1).sharing(memory);
    let (end, counts, ..) = tokio::time::timeout(PATIENCE, runner.once().run()).await.expect("nobody waits for ever");
    (end, counts)
}

#[tokio::test]
async fn what_documents_swell_to_is_bounded_for_all_jobs_together() {
    const JOBS: usize = 8;
    // 16 MB for what was read, 16 MB for what is made: a part of one job at a time.
    let memory = Memory::new(32 << 20);
    let scales = Scales::default();
    let (_stop, stopping) = watch::channel(false);
    let mut runs = Vec::new();
    for at in 0..JOBS {
        let source = FakeSource::default();
        for number in 0..40 {
            let body = match (number + at) % 8 {
                // 6 MB of rows of 36 kB.
                0 => json!({"text": "x".repeat(30_000), "of": vec![0; 200]}),
                // More than a part has room for: 12 MB.
                1 => json!({"text": "x".repeat(40_000), "of": vec![0; 300]}),
                // More than there may be of one document.
                2 => json!({"text": "x".repeat(20_000), "of": vec![0; 9_000]}),
                3 => json!({"of": vec![0; 20_000]}),
                _ => json!({"n": number}),
            };
            source.write(&format!("d{number}"), body);
        }
        let target = Scales { ids: Arc::default(), ..scales.clone() };
        runs.push(tokio::spawn(run(into_rows(), source, target, memory.clone(), stopping.clone())));
    }
    for run in runs {
        let (end, counts) = run.await.unwrap();
        // A quarter is poison.
        assert_eq!((end, counts.delivered, counts.queued), (End::Done, 30, 10));
    }
    let most = scales.most.load(Ordering::SeqCst);
    assert!(most > 8 << 20 && most <= 16 << 20, "{most}");
    assert_eq!(memory.taken(), (0, 0));
}

#[tokio::test]
async fn who_cannot_deliver_leaves_room_to_others() {
    // 24 MB for what was read: one page under way and another one in the plan of a job fill it.
    let memory = Memory::new(48 << 20);
    let source = |count: usize| {
        let source = FakeSource::default();
        for number in 0..count {
            source.write(&format!("d{number}"), json!({"text": "x".repeat(300_000)}));
        }
        source
    };
    let (stop, stopping) = watch::channel(false);
    let down: Vec<Scales> = (0..3).map(|_| Scales::default()).collect();
    let mut waiting = Vec::new();
    for target in &down {
        target.is_down.store(true, Ordering::SeqCst);
        let lines = job("cloud", json!({"id": "out", "provider": "stdout"}), Value::Null, into_rows_retry());
        waiting.push(tokio::spawn(run(lines, source(100), target.clone(), memory.clone(), stopping.clone())));
    }
    let lines = || job("cloud", json!({"id": "out", "provider": "stdout"}), Value::Null, into_rows_retry());
    for _ in 0..3 {
        let target = Scales::default();
        let (end, counts) = run(lines(), source(60), target.clone(), memory.clone(), stopping.clone()).await;
        assert_eq!((end, counts.delivered), (End::Done, 60));
    }
    // They go on where they were, and lose nothing.
    for target in &down {
        target.is_down.store(false, Ordering::SeqCst);
    }
    for (run, target) in waiting.into_iter().zip(&down) {
        let (end, counts) = run.await.unwrap();
        assert_eq!((end, counts.delivered), (End::Done, 100));
        let mut ids = target.ids.lock().unwrap().clone();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 100);
    }
    drop(stop);
    assert_eq!(memory.taken(), (0, 0));
}

fn into_rows_retry() -> Value {
    json!({"retry": {"backoff_base_seconds": 0.01, "backoff_max_seconds": 0.05}, "processing": {"batch": 20}})
}
