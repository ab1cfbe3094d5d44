//! Turns of transactions that write many rows.
#![cfg(test)]

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use flatbed_clock::ManualClock;
use flatbed_store::error::Result;
use flatbed_store::view_functions::EmittedRows;
use flatbed_testkit::{soon, until};
use flatbed_views::at_once::BatchPacer;
use flatbed_views::group::leases::{WriteOutcome, WriteRows, new_token};
use flatbed_views::group::steps::{GroupContext, Step, Work};
use flatbed_views::view::prepare::{EmittedDocument, prepare};
use flatbed_views::view::sections::SectionRule;
use flatbed_views::view_updates::memory::UNIT_BYTES;
use flatbed_views::view_updates::views;
use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::sync::Semaphore;

use super::functions::Texts;
use super::together::job_by;
use super::{define, put};
use crate::tests::fenced::{layer, layer_with};
use crate::{CreateOptions, LayerOptions};

/// A transaction that waits until it gets a permit.
struct GatedWrite<'a> {
    name: (usize, usize),
    bytes: usize,
    begun: &'a Mutex<BTreeSet<(usize, usize)>>,
    gate: &'a Semaphore,
}

impl Work for GatedWrite<'_> {
    type Output = ();

    async fn attempt(&mut self, _: &GroupContext<'_>) -> Result<Option<()>> {
        self.begun.lock().unwrap().insert(self.name);
        if let Ok(permit) = self.gate.acquire().await {
            permit.forget();
        }
        Ok(Some(()))
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn databases_take_turns_at_large_writes() {
    let (layer, authority, _storage) = layer().await;
    let mut jobs = Vec::new();
    for n in 0..5 {
        let db = layer.database(&format!("db{n}"), authority.for_job("test"));
        db.create(&CreateOptions::default()).await.unwrap();
        define(&db, "_design/v", &[("n", "n")]).await;
        jobs.push(job_by(&db, "_design/v", &Texts::default()).await);
    }
    let (begun, gate, open) = (Mutex::default(), Semaphore::new(0), Semaphore::new(1));
    let of_four = (0..4).flat_map(|database| (0..3).map(move |number| (database, number)));
    let large = of_four.map(|name| {
        let work = GatedWrite { name, bytes: 1 << 20, begun: &begun, gate: &gate };
        Step::run(&jobs[name.0], work)
    });
    let large = join_all(large.collect::<Vec<_>>());
    let looks = async {
        let count = || begun.lock().unwrap().len();
        let has_begun = |names: &[(usize, usize)]| names.iter().all(|name| begun.lock().unwrap().contains(name));
        let waiting = &layer.inner.metrics.view_writes_waiting;
        until("the others wait", async || (count(), waiting.get()) == (4, 8)).await;
        assert!(has_begun(&[(0, 0), (0, 1), (1, 0), (1, 1)]));
        // A small one does not wait for them.
        let small = GatedWrite { name: (4, 0), bytes: 0, begun: &begun, gate: &open };
        soon(Step::run(&jobs[4], small)).await.unwrap().unwrap();
        // Databases without a turn come before the third transaction of any.
        for database in [2, 3] {
            gate.add_permits(2);
            until("two more begin", async || count() == 2 * database + 3).await;
            assert!(has_begun(&[(database, 0), (database, 1)]));
        }
        gate.add_permits(8);
    };
    let (ended, ()) = soon(async { tokio::join!(large, looks) }).await;
    assert!(ended.into_iter().all(|ended| ended.unwrap() == Some(())));
    assert_eq!(layer.inner.metrics.view_writes_waiting.get(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_rows_wait_for_a_turn_and_few_do_not() {
    let (manual, wait) = (ManualClock::new(), Duration::from_secs(30));
    let options = LayerOptions { clock: manual.clock(), ..LayerOptions::default() };
    let (layer, authority, _storage) = layer_with(options, None).await;
    let db = layer.database("db", authority.for_job("test"));
    define(&db, "_design/v", &[("n", "n")]).await;
    define(&db, "_design/w", &[("n", "n|written")]).await;
    let job = job_by(&db, "_design/v", &Texts::default()).await;
    let mut held = Vec::new();
    for namespace in [1_000, 1_000, 1_001, 1_001] {
        held.push(views(&db.inner).row_writes.acquire(namespace, UNIT_BYTES).await.unwrap());
    }
    let of = |rows: usize| {
        let mut emitted = EmittedRows::default();
        (0..rows).for_each(|n| emitted.push(&n.to_string(), "1"));
        [prepare(
            &job.storage,
            EmittedDocument { id: "d".to_owned(), trees: vec![emitted], ..EmittedDocument::default() },
        )]
    };
    let (few, many) = (of(1), of(1_000));
    let lease = ("", new_token().unwrap());
    let none = SectionRule::default();
    let mut pace = BatchPacer::new(&job.state.entered);
    let wrote =
        soon(Step::run(&job, WriteRows { lease, sections: &none, documents: &few, pace: &mut pace })).await.unwrap();
    assert!(matches!(wrote, Some(WriteOutcome::Lost)));
    let mut waits = Box::pin(Step::run(&job, WriteRows { lease, sections: &none, documents: &many, pace: &mut pace }));
    assert!(waits.as_mut().now_or_never().is_none() && job.is_waiting());
    // Functions that reduce in a transaction do not block other groups, and the reverse.
    let reducing = job_by(&db, "_design/w", &Texts::default()).await;
    let mut its_pace = BatchPacer::new(&reducing.state.entered);
    let reduces = WriteRows { lease, sections: &none, documents: &many, pace: &mut its_pace };
    assert!(matches!(soon(Step::run(&reducing, reduces)).await.unwrap(), Some(WriteOutcome::Lost)));
    put(&db, "d", Some("{}")).await;
    manual.advance(wait);
    drop(held);
    assert!(matches!(soon(waits).await.unwrap(), Some(WriteOutcome::Lost)));
    // The clock counts in units of its own, so seconds are compared.
    let seconds = pace.end().as_secs();
    assert_eq!((seconds, job.is_waiting()), (wait.as_secs(), false), "the wait is no time of the transaction");
}
