//! The frequency of checkpoints, counted at the source; and that none exceeds what the target has.

use std::time::Duration;

use flatbed_clock::{Clock, ManualClock};
use flatbed_testkit::{soon, until};
use flatbed_worker::checkpoint::Checkpoint;
use flatbed_worker::documents::Description;
use flatbed_worker::failure::Failure;
use flatbed_worker::output::sqlite::Sqlite;
use flatbed_worker::output::{Delivery, DeliveryError, Target};
use flatbed_worker::run::{RunEnd, Runner};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::fake::{FakeQueue, FakeSource, job, redactor};

/// Takes everything except the document `poison`, and is killed before a batch with a given sequence. A batch may take
/// time.
#[derive(Debug)]
struct Watched {
    source: FakeSource,
    has: watch::Sender<Vec<u64>>,
    killed_at: Option<u64>,
    takes: Option<(ManualClock, Duration)>,
}

impl Watched {
    fn new(source: &FakeSource) -> Watched {
        Watched { source: source.clone(), has: watch::Sender::new(Vec::new()), killed_at: None, takes: None }
    }
}

impl Target for Watched {
    async fn deliver(&mut self, batch: Vec<Delivery>, _: Option<Checkpoint>) -> Result<(), DeliveryError> {
        let seqs: Vec<u64> = batch.iter().map(|delivery| delivery.seq.parse().unwrap()).collect();
        let kept = self.source.0.lock().unwrap().kept.last().copied().unwrap_or(0);
        assert!(seqs.iter().all(|seq| *seq > kept), "{seqs:?} are delivered, and {kept} is the checkpoint");
        if self.killed_at.is_some_and(|at| seqs.contains(&at)) {
            return Err(DeliveryError::Superseded);
        }
        if batch.iter().any(|delivery| delivery.id == "poison") {
            return Err(DeliveryError::failed(Failure::Sql(*b"22001"), "poison"));
        }
        if let Some((clock, time)) = &self.takes {
            clock.advance(*time);
        }
        self.has.send_modify(|has| has.extend(seqs));
        Ok(())
    }
}

fn into_lines(checkpoint: Value, batch: u64) -> Description {
    let system = json!({"checkpoint": checkpoint, "processing": {"batch": batch}});
    job("cloud", json!({"id": "out", "provider": "stdout"}), Value::Null, system)
}

fn write(source: &FakeSource, ids: impl IntoIterator<Item = u64>) {
    ids.into_iter().for_each(|id| source.write(&format!("d{id}"), json!({"n": id})));
}

fn kept(source: &FakeSource) -> Vec<u64> {
    source.0.lock().unwrap().kept.clone()
}

async fn once<T: Target>(job: &Description, source: &FakeSource, target: T, epoch: u64) -> (RunEnd, T) {
    once_by(ManualClock::new().clock(), job, source, target, epoch).await
}

async fn once_by<T: Target>(
    clock: Clock,
    job: &Description,
    source: &FakeSource,
    target: T,
    epoch: u64,
) -> (RunEnd, T) {
    let (_stop, stopping) = watch::channel(false);
    let (source, queue) = (source.clone(), FakeQueue::default());
    let runner = Runner::new(job, source, target, queue, redactor(), stopping, epoch).with_clock(clock).once();
    let (end, _, _, target, _) = runner.run().await;
    (end, target.unwrap())
}

#[tokio::test]
async fn it_is_written_as_often_as_the_job_says() {
    for (settings, batch, seconds, expected) in [
        (json!({}), 3, 0, vec![30]),
        (json!({"every_n_docs": 0, "every_seconds": 0}), 3, 0, vec![30]),
        (json!({"every_n_docs": 10}), 1_000, 0, vec![10, 20, 30]),
        (json!({"every_n_docs": 7}), 1_000, 0, vec![7, 14, 21, 28, 30]),
        // A smaller batch is not divided for it.
        (json!({"every_n_docs": 7}), 3, 0, vec![9, 18, 27, 30]),
        (json!({"every_n_docs": 1_000}), 3, 0, vec![30]),
        (json!({"every_seconds": 3_600}), 3, 0, vec![30]),
        (json!({"every_n_docs": 20, "every_seconds": 3_600}), 10, 0, vec![20, 30]),
        // Each batch takes two seconds; the default is five.
        (json!({}), 3, 2, vec![9, 18, 27, 30]),
        (json!({"every_seconds": 4}), 3, 2, vec![6, 12, 18, 24, 30]),
    ] {
        let source = FakeSource::default();
        write(&source, 1..=30);
        let manual = ManualClock::new();
        let takes = Some((manual.clone(), Duration::from_secs(seconds)));
        let (job, target) = (into_lines(settings.clone(), batch), Watched { takes, ..Watched::new(&source) });
        let (end, target) = once_by(manual.clock(), &job, &source, target, 1).await;
        assert_eq!((end, target.has.borrow().len()), (RunEnd::Done, 30));
        assert_eq!(kept(&source), expected, "{settings} in batches of {batch}");
    }
}

#[tokio::test]
async fn a_crash_repeats_no_more_than_it_says() {
    for killed_at in [1, 10, 11, 55, 60, 99] {
        let (job, source) = (into_lines(json!({"every_n_docs": 10}), 1_000), FakeSource::default());
        write(&source, 1..=49);
        source.write("poison", json!({}));
        write(&source, 51..=100);
        let target = Watched { killed_at: Some(killed_at), ..Watched::new(&source) };
        let (end, target) = once(&job, &source, target, 1).await;
        assert_eq!(end, RunEnd::Superseded);
        let (first, checkpoint) = (target.has.borrow().clone(), kept(&source).last().copied().unwrap_or(0));
        let again = first.iter().filter(|seq| **seq > checkpoint).count();
        assert!(again <= 10, "{again} of {first:?} behind {checkpoint}");
        let (end, target) = once(&job, &source, Watched::new(&source), 2).await;
        assert_eq!(end, RunEnd::Done);
        let all: std::collections::BTreeSet<u64> = first.iter().chain(target.has.borrow().iter()).copied().collect();
        assert!(all.len() == 99 && target.has.borrow().len() == 99 - first.len() + again);
        assert_eq!(kept(&source).last(), Some(&100));
    }
}

/// Single changes do not cause a checkpoint each; the end of the job writes it.
#[tokio::test]
async fn changes_that_trickle_are_not_a_write_each() {
    for (settings, expected) in [(json!({}), vec![1, 2, 3, 4, 5]), (json!({"every_seconds": 3_600}), vec![5])] {
        let (job, source) = (into_lines(settings.clone(), 1_000), FakeSource::default());
        source.0.lock().unwrap().is_patient = true;
        let (stop, stopping) = watch::channel(false);
        let target = Watched::new(&source);
        let mut has = target.has.subscribe();
        let runner = Runner::new(&job, source.clone(), target, FakeQueue::default(), redactor(), stopping, 1);
        let writes = async {
            for count in 1..=5 {
                write(&source, [count]);
                has.wait_for(|has| has.contains(&count)).await.unwrap();
                let is_kept = async || settings != json!({}) || kept(&source).contains(&count);
                until("the checkpoint is written", is_kept).await;
            }
            stop.send_replace(true);
        };
        soon(async {
            let ((end, ..), ()) = tokio::join!(runner.run(), writes);
            assert_eq!(end, RunEnd::Stopped);
        })
        .await;
        assert_eq!(kept(&source), expected, "{settings}");
    }
}

#[tokio::test]
async fn its_time_comes_although_no_change_does() {
    let (job, source) = (into_lines(json!({"every_seconds": 60}), 1_000), FakeSource::default());
    source.0.lock().unwrap().is_patient = true;
    let (manual, (stop, stopping)) = (ManualClock::new(), watch::channel(false));
    let target = Watched::new(&source);
    let runner = Runner::new(&job, source.clone(), target, FakeQueue::default(), redactor(), stopping, 1);
    let runner = runner.with_clock(manual.clock());
    let writes = async {
        for count in 1..=3 {
            write(&source, [count]);
            until("the checkpoint's time is waited for", async || manual.waiting() > 0).await;
            assert_eq!(kept(&source).last().copied().unwrap_or(0), count - 1);
            manual.advance(Duration::from_secs(60));
            until("the checkpoint is written", async || kept(&source).last() == Some(&count)).await;
        }
        stop.send_replace(true);
    };
    soon(async { drop(tokio::join!(runner.run(), writes)) }).await;
    assert_eq!(kept(&source), [1, 2, 3]);
}

/// The checkpoint in a target with transactions is authoritative.
#[tokio::test]
async fn a_target_that_keeps_it_has_it_with_each_batch() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("x.sqlite");
    let mapping = json!({"tables": [{"name": "t", "primary_key": "id", "columns": [{"name": "id", "path": "$._id"}]}]});
    let output = json!({"id": "out", "database_type": "sqlite", "database": "x.sqlite"});
    let system =
        json!({"checkpoint": {"every_n_docs": 1_000_000, "every_seconds": 3_600}, "processing": {"batch": 10}});
    let (job, source) = (job("rdbms", output, mapping, system), FakeSource::default());
    write(&source, 1..=35);
    let open = || Sqlite::in_file(&file, &job.id, job.mapping.tables(), true);
    let (end, _) = once(&job, &source, open(), 1).await;
    assert_eq!((end, kept(&source)), (RunEnd::Done, Vec::new()));
    assert_eq!(open().begin(2).await.unwrap().unwrap().seq.as_str(), "35");
}
