//! The memory budget that jobs share, under hostile documents.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use flatbed_testkit::{PATIENCE, pass, soon, until};
use flatbed_worker::checkpoint::Checkpoint;
use flatbed_worker::documents::Description;
use flatbed_worker::failure::Failure;
use flatbed_worker::memory::Memory;
use flatbed_worker::output::{BatchLimits, Delivery, DeliveryError, Target};
use flatbed_worker::run::{Counts, RunEnd, Runner};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::fake::{FakeQueue, FakeSource, job, redactor};

/// A slow target that measures the bytes that all targets of its kind hold.
#[derive(Debug, Clone, Default)]
struct Scales {
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    is_down: Arc<AtomicBool>,
    ids: Arc<std::sync::Mutex<Vec<String>>>,
    rows: Arc<std::sync::Mutex<Vec<usize>>>,
}

impl Target for Scales {
    async fn deliver(&mut self, batch: Vec<Delivery>, _: Option<Checkpoint>) -> Result<(), DeliveryError> {
        let bytes: usize = batch.iter().map(Delivery::bytes).sum();
        let now = self.now.fetch_add(bytes, Ordering::SeqCst) + bytes;
        self.most.fetch_max(now, Ordering::SeqCst);
        self.rows.lock().unwrap().push(batch.iter().map(Delivery::rows).sum());
        pass(Duration::from_millis(2)).await;
        self.now.fetch_sub(bytes, Ordering::SeqCst);
        if self.is_down.load(Ordering::SeqCst) {
            return Err(DeliveryError::failed(Failure::Connection, "down"));
        }
        self.ids.lock().unwrap().extend(batch.into_iter().map(|delivery| delivery.id));
        Ok(())
    }
}

fn into_rows() -> Description {
    // A document of some kilobytes grows to megabytes: each element has the whole text beside it.
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
) -> (RunEnd, Counts) {
    let runner = Runner::new(&job, source, target, FakeQueue::default(), redactor(), stopping, 1).with_memory(memory);
    let (end, counts, ..) = soon(runner.once().run()).await;
    (end, counts)
}

#[tokio::test]
async fn what_documents_swell_to_is_bounded_for_all_jobs_together() {
    const JOBS: usize = 8;
    // 16 MB for changes, 16 MB for products: one part of one job at a time.
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
                // 12 MB: more than a part holds.
                1 => json!({"text": "x".repeat(40_000), "of": vec![0; 300]}),
                // More than one document may produce.
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
        assert_eq!((end, counts.delivered, counts.queued), (RunEnd::Done, 30, 10));
    }
    let most = scales.most.load(Ordering::SeqCst);
    assert!(most > 8 << 20 && most <= 16 << 20, "{most}");
    assert_eq!(memory.taken(), (0, 0));
}

#[tokio::test]
async fn what_documents_make_is_bounded_in_rows_too() {
    let (scales, source) = (Scales::default(), FakeSource::default());
    for number in 0..30 {
        source.write(&format!("d{number}"), json!({"of": vec![0; 1_000]}));
    }
    // A document is delivered whole, regardless of its rows.
    source.write("most", json!({"of": vec![0; 9_990]}));
    source.write("next", json!({"of": vec![0; 9_990]}));
    let (_stop, stopping) = watch::channel(false);
    let (end, counts) = run(into_rows(), source, scales.clone(), Memory::default(), stopping).await;
    assert_eq!((end, counts.delivered), (RunEnd::Done, 32));
    let rows = scales.rows.lock().unwrap();
    assert_eq!(rows.iter().sum::<usize>(), 30 * 1_001 + 2 * 9_991);
    assert!(rows.iter().all(|rows| (9_000..20_000).contains(rows)), "{rows:?}");
}

#[tokio::test]
async fn who_cannot_deliver_leaves_room_to_others() {
    // 24 MB for changes: filled by one page under way and another in a job's plan.
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
        assert_eq!((end, counts.delivered), (RunEnd::Done, 60));
    }
    // They resume where they were and lose nothing.
    for target in &down {
        target.is_down.store(false, Ordering::SeqCst);
    }
    for (run, target) in waiting.into_iter().zip(&down) {
        let (end, counts) = run.await.unwrap();
        assert_eq!((end, counts.delivered), (RunEnd::Done, 100));
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

/// Takes two documents together, regardless of the wait.
#[derive(Debug, Clone, Default)]
struct Pairs(Arc<std::sync::Mutex<Vec<usize>>>);

impl Target for Pairs {
    async fn deliver(&mut self, batch: Vec<Delivery>, _: Option<Checkpoint>) -> Result<(), DeliveryError> {
        self.0.lock().unwrap().push(batch.len());
        Ok(())
    }

    fn window(&self) -> Option<BatchLimits> {
        Some(BatchLimits { documents: 2, bytes: 16 << 20, age: 10 * PATIENCE })
    }
}

/// An answer that waits is small: a large document is read as a page, also while others wait to be delivered with it.
#[tokio::test]
async fn a_large_document_is_gathered_too() {
    let (source, pairs) = (FakeSource::default(), Pairs::default());
    source.write("small", json!({"n": 1}));
    let lines = job("cloud", json!({"id": "out", "provider": "stdout"}), Value::Null, json!({}));
    let (stop, stopping) = watch::channel(false);
    let runner = Runner::new(&lines, source.clone(), pairs.clone(), FakeQueue::default(), redactor(), stopping, 1);
    let writes = async {
        // Requests: the database, the checkpoint, a page, and one that waits.
        until("a change is waited for", async || source.0.lock().unwrap().requests >= 4).await;
        source.write("large", json!({"text": "x".repeat(300_000)}));
        until("a pair is delivered", async || !pairs.0.lock().unwrap().is_empty()).await;
        stop.send_replace(true);
    };
    let ((end, ..), ()) = soon(async { tokio::join!(runner.run(), writes) }).await;
    assert_eq!((end, pairs.0.lock().unwrap().as_slice()), (RunEnd::Stopped, &[2][..]));
}
