//! Making deliveries ahead, and the size of parts. The target itself verifies order and checkpoints.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flatbed_testkit::{Random, pass, soon};
use flatbed_worker::checkpoint::Checkpoint;
use flatbed_worker::documents::Description;
use flatbed_worker::failure::Failure;
use flatbed_worker::memory::Memory;
use flatbed_worker::output::{Delivery, DeliveryError, Target};
use flatbed_worker::run::{Counts, RunEnd, Runner};
use flatbed_worker::script::{Call, Scripts};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use crate::fake::{FakeQueue, FakeSource, job, redactor};

/// A target with transactions that verifies each call: no state of a document after a newer one, no checkpoint beyond
/// what it or the queue has.
#[derive(Debug)]
struct Strict {
    source: FakeSource,
    queue: FakeQueue,
    has: BTreeMap<String, u64>,
    checkpoint: Option<Checkpoint>,
    /// The source of random failures and of concurrent changes.
    random: Option<Random>,
    calls: usize,
    documents: usize,
}

fn is_poison(id: &str) -> bool {
    id.ends_with("07")
}

impl Strict {
    fn new(source: &FakeSource, queue: &FakeQueue, random: Option<Random>) -> Strict {
        let (source, queue) = (source.clone(), queue.clone());
        Strict { source, queue, has: BTreeMap::new(), checkpoint: None, random, calls: 0, documents: 0 }
    }
}

impl Target for Strict {
    async fn begin(&mut self, _: u64) -> Result<Option<Checkpoint>, DeliveryError> {
        Ok(self.checkpoint.clone())
    }

    async fn deliver(&mut self, batch: Vec<Delivery>, checkpoint: Option<Checkpoint>) -> Result<(), DeliveryError> {
        self.calls += 1;
        self.documents += batch.len();
        if let Some(random) = &mut self.random {
            for _ in 0..random.below(4) {
                // Documents under way change too: a newer state is read before the older one is settled.
                let of_batch = batch.get(random.index(2 * batch.len() + 1));
                let id = of_batch.map_or_else(|| format!("d{}", random.below(400)), |delivery| delivery.id.clone());
                self.source.write(&id, if random.below(5) == 0 { Value::Null } else { json!({"n": 1}) });
                pass(Duration::from_millis(random.below(3))).await;
            }
            match random.below(8) {
                0 => return Err(DeliveryError::failed(Failure::Connection, "gone")),
                1 => return Err(DeliveryError::Superseded),
                _ => {}
            }
        }
        if batch.iter().any(|delivery| is_poison(&delivery.id)) {
            return Err(DeliveryError::failed(Failure::Sql(*b"22001"), "poison"));
        }
        for delivery in &batch {
            let seq = delivery.seq.parse().unwrap();
            let before = self.has.insert(delivery.id.clone(), seq);
            assert!(before.is_none_or(|before| before < seq), "{} after {before:?}", delivery.seq);
        }
        let Some(checkpoint) = checkpoint else { return Ok(()) };
        let at = checkpoint.seq.number().unwrap() as u64;
        let before =
            self.checkpoint.replace(checkpoint).and_then(|before| before.seq.number()).map(|number| number as u64);
        assert!(before.is_none_or(|before| before <= at));
        let queued: HashSet<String> = self.queue.documents().into_iter().collect();
        for (seq, id) in self.source.sequences().into_iter().filter(|(seq, _)| *seq <= at) {
            assert!(self.has.get(&id) == Some(&seq) || queued.contains(&id), "{id} of {seq} is passed by {at}");
        }
        Ok(())
    }

    fn keeps_checkpoint(&self) -> bool {
        true
    }
}

fn in_batches(of: u64) -> Description {
    let retry = json!({"backoff_base_seconds": 0.001, "backoff_max_seconds": 0.002});
    let mapping = json!({"tables": [{"name": "t", "primary_key": "id", "columns": {"id": "$._id"}}]});
    let output = json!({"id": "out", "database_type": "sqlite", "database": "x"});
    job("rdbms", output, mapping, json!({"processing": {"batch": of}, "retry": retry}))
}

async fn run<T: Target>(job: &Description, source: &FakeSource, target: T, queue: &FakeQueue) -> (RunEnd, Counts, T) {
    let (_stop, stopping) = watch::channel(false);
    let memory = Memory::default();
    let runner = Runner::new(job, source.clone(), target, queue.clone(), redactor(), stopping, 1);
    let (end, counts, _, target, _) = runner.with_memory(memory.clone()).once().run().await;
    assert_eq!(memory.taken(), (0, 0));
    (end, counts, target.unwrap())
}

/// With changes, outages and runs that end anywhere; the next run resumes from the target's checkpoint.
#[tokio::test(start_paused = true)]
async fn no_checkpoint_and_no_state_comes_before_its_turn() {
    for seed in 0..60 {
        let (source, queue) = (FakeSource::default(), FakeQueue::default());
        let limit = 7 + seed % 9;
        // With few documents, changes arrive with the next page while the ones that they overtake are under way.
        let (documents, batch) = if seed % 6 == 0 { (250, 10) } else { (limit * 3 / 2, limit) };
        for at in 0..documents {
            source.write(&format!("d{at}"), json!({"n": 0}));
        }
        source.0.lock().unwrap().hints = (seed / 6 % 2 == 0).then_some(seed);
        let mut job = in_batches(batch);
        job.input.changes_feed.limit = limit;
        let mut target = Strict::new(&source, &queue, Some(Random(seed)));
        for _ in 0..100 {
            let (end, _, left) = run(&job, &source, target, &queue).await;
            target = left;
            if end == RunEnd::Done {
                break;
            }
            assert_eq!(end, RunEnd::Superseded);
        }
        // Neither failures nor changes from now on.
        target.random = None;
        let (end, _, target) = run(&job, &source, target, &queue).await;
        assert_eq!(end, RunEnd::Done);
        let expected = source.sequences().into_iter().filter(|(_, id)| !is_poison(id)).map(|(seq, id)| (id, seq));
        let has: BTreeMap<_, _> = target.has.into_iter().filter(|(id, _)| !is_poison(id)).collect();
        assert_eq!(has, expected.collect::<BTreeMap<_, _>>(), "seed {seed}");
    }
}

/// The next page is requested while the current one is parsed, and only that one.
#[tokio::test(start_paused = true)]
async fn the_next_page_is_asked_for_before_one_is_read() {
    for memory in [Memory::new(512 << 20), Memory::new(130 << 20)] {
        let (source, queue) = (FakeSource::default(), FakeQueue::default());
        for at in 0..1_000 {
            source.write(&format!("d{at}x"), json!({"n": 0}));
        }
        source.0.lock().unwrap().hints = Some(1);
        let mut job = in_batches(10);
        job.input.changes_feed.limit = 10;
        let (_stop, stopping) = watch::channel(false);
        let target = Strict::new(&source, &queue, None);
        let runner = Runner::new(&job, source.clone(), target, queue.clone(), redactor(), stopping, 1);
        let (end, counts, ..) = runner.with_memory(memory.clone()).once().run().await;
        assert_eq!((end, counts.delivered, memory.taken()), (RunEnd::Done, 1_000, (0, 0)));
        assert_eq!(source.0.lock().unwrap().pages, (0, 2));
    }
}

/// Every fiftieth of 2,000 documents is poison.
#[tokio::test]
async fn poison_costs_no_multiple_of_the_work() {
    const DOCUMENTS: usize = 2_000;
    let (source, queue) = (FakeSource::default(), FakeQueue::default());
    for at in 0..DOCUMENTS {
        let id = if at % 50 == 7 { format!("d{at}x07") } else { format!("d{at}x") };
        source.write(&id, json!({"n": 0}));
    }
    let job = in_batches(500);
    let (end, counts, target) = run(&job, &source, Strict::new(&source, &queue, None), &queue).await;
    assert_eq!((end, counts.delivered, counts.queued), (RunEnd::Done, 1_960, 40));
    assert!(target.calls < 400 && target.documents < 4 * DOCUMENTS, "{} {}", target.calls, target.documents);
    // A single one costs only its bisection.
    let (source, queue) = (FakeSource::default(), FakeQueue::default());
    for at in 0..2_000 {
        source.write(&if at == 333 { "d07".to_owned() } else { format!("d{at}x") }, json!({"n": 0}));
    }
    let (_, counts, target) = run(&job, &source, Strict::new(&source, &queue, None), &queue).await;
    assert_eq!((counts.delivered, counts.queued), (1_999, 1));
    assert!(target.calls < 4 + 14 && target.documents < 2_000 + 1_100, "{} {}", target.calls, target.documents);
}

/// Takes its first batch only once part of the next is made.
#[derive(Debug)]
struct Late {
    next_is_made: Arc<Notify>,
    has_waited: bool,
    /// Returned instead of success.
    refusal: Option<DeliveryError>,
}

impl Target for Late {
    async fn deliver(&mut self, batch: Vec<Delivery>, _: Option<Checkpoint>) -> Result<(), DeliveryError> {
        if !batch.is_empty() && !self.has_waited {
            self.has_waited = true;
            self.next_is_made.notified().await;
        }
        self.refusal.clone().map_or(Ok(()), Err)
    }
}

#[tokio::test]
async fn the_next_batch_is_made_while_one_is_written() {
    let (source, queue) = (FakeSource::filled(40), FakeQueue::default());
    let output = json!({"id": "out", "provider": "stdout"});
    let mut job = job("cloud", output, json!({"function": "(doc) => doc"}), json!({"processing": {"batch": 10}}));
    job.input.changes_feed.limit = 10;
    let next_is_made = Arc::<Notify>::default();
    let scripts: Scripts = Arc::new({
        let next_is_made = next_is_made.clone();
        move |call: Call| {
            let text = call.document.unwrap();
            if text.contains("\"n\":10,") || text.contains("\"n\":10}") {
                next_is_made.notify_one();
            }
            Box::pin(std::future::ready(Ok(text)))
        }
    });
    let (_stop, stopping) = watch::channel(false);
    let target = Late { next_is_made, has_waited: false, refusal: None };
    let runner = Runner::new(&job, source, target, queue, redactor(), stopping, 1).with_scripts(scripts).once();
    let (end, counts, ..) = soon(runner.run()).await;
    assert_eq!((end, counts.delivered), (RunEnd::Done, 40));
}

/// A function that never returns, under a slow target.
#[tokio::test(start_paused = true)]
async fn what_is_made_ahead_ends_with_the_job_and_with_what_is_before_it() {
    for is_refused in [false, true] {
        let (source, queue) = (FakeSource::filled(40), FakeQueue::default());
        let output = json!({"id": "out", "provider": "stdout"});
        let system = json!({"processing": {"batch": 10}, "halt_on_failure": true, "retry": {"max_retries": 0}});
        let mut job = job("cloud", output, json!({"function": "(doc) => doc"}), system);
        job.input.changes_feed.limit = 10;
        let next_is_made = Arc::<Notify>::default();
        let (stop, stopping) = watch::channel(false);
        let scripts: Scripts = Arc::new({
            let next_is_made = next_is_made.clone();
            move |call: Call| {
                let text = call.document.unwrap();
                if !text.contains("\"n\":10}") && !text.contains("\"n\":10,") {
                    return Box::pin(std::future::ready(Ok(text)));
                }
                if !is_refused {
                    stop.send_replace(true);
                }
                next_is_made.notify_one();
                Box::pin(std::future::pending())
            }
        });
        let refusal = is_refused.then(|| DeliveryError::failed(Failure::Connection, "gone"));
        let target = Late { next_is_made, has_waited: false, refusal };
        let runner = Runner::new(&job, source, target, queue, redactor(), stopping, 1).with_scripts(scripts);
        let (end, counts, ..) = soon(runner.run()).await;
        let expected = if is_refused { (RunEnd::GaveUp("gone".to_owned()), 0) } else { (RunEnd::Stopped, 10) };
        assert_eq!((end, counts.delivered), expected);
    }
}

/// Writes may be lost with a power failure: then no checkpoint passes them.
#[derive(Debug, Default)]
struct Forgetful {
    seqs: Vec<u64>,
    failing: u32,
}

impl Target for Forgetful {
    async fn deliver(&mut self, batch: Vec<Delivery>, _: Option<Checkpoint>) -> Result<(), DeliveryError> {
        self.seqs.extend(batch.iter().map(|delivery| delivery.seq.parse::<u64>().unwrap()));
        Ok(())
    }

    async fn persist(&mut self) -> Result<(), DeliveryError> {
        if self.failing > 0 {
            self.failing -= 1;
            self.seqs.clear();
            return Err(DeliveryError::failed(Failure::Storage, "the disk is gone"));
        }
        Ok(())
    }
}

#[tokio::test]
async fn what_is_not_sure_to_last_is_delivered_again() {
    let (source, queue) = (FakeSource::filled(30), FakeQueue::default());
    let job = in_batches(10);
    let (end, counts, target) = run(&job, &source, Forgetful { failing: 1, ..Forgetful::default() }, &queue).await;
    assert_eq!((end, counts.outages, target.seqs), (RunEnd::Done, 1, (1..=30).collect()));
    // Deliveries in between do not prove that the disk works, and the run's end does not pass what is lost.
    source.0.lock().unwrap().locals.clear();
    let retry = json!({"backoff_base_seconds": 0.001, "max_retries": 1});
    let system = json!({"halt_on_failure": true, "processing": {"batch": 10}, "retry": retry});
    let job = crate::fake::job("cloud", json!({"id": "out", "provider": "stdout"}), Value::Null, system);
    let (end, _, target) = run(&job, &source, Forgetful { failing: 2, ..Forgetful::default() }, &queue).await;
    assert_eq!((end, target.seqs), (RunEnd::GaveUp("the disk is gone".to_owned()), Vec::new()));
    assert!(source.0.lock().unwrap().locals.is_empty());
}

/// Persists twice, then loses what it took, and is down until another job has had its turn.
#[derive(Debug, Default)]
struct Unsteady {
    seqs: Vec<u64>,
    kept: u32,
    is_down: Arc<AtomicBool>,
    went_down: Arc<Notify>,
}

impl Target for Unsteady {
    async fn deliver(&mut self, batch: Vec<Delivery>, _: Option<Checkpoint>) -> Result<(), DeliveryError> {
        if self.is_down.load(Ordering::SeqCst) {
            self.went_down.notify_one();
            return Err(DeliveryError::failed(Failure::Connection, "down"));
        }
        self.seqs.extend(batch.iter().map(|delivery| delivery.seq.parse::<u64>().unwrap()));
        Ok(())
    }

    async fn persist(&mut self) -> Result<(), DeliveryError> {
        self.kept += 1;
        if self.kept == 3 {
            self.seqs.truncate(20);
            self.is_down.store(true, Ordering::SeqCst);
            return Err(DeliveryError::failed(Failure::Storage, "the disk is gone"));
        }
        Ok(())
    }
}

/// Changes that are read again may be released before any is delivered: then they are read from the checkpoint again,
/// and not from where the run began.
#[tokio::test(start_paused = true)]
async fn who_went_back_goes_back_no_further() {
    let system = json!({"processing": {"batch": 10}, "checkpoint": {"every_n_docs": 10}});
    let mut job = job("cloud", json!({"id": "out", "provider": "stdout"}), Value::Null, system);
    job.input.changes_feed.limit = 10;
    let documents = || FakeSource::filled(40);
    // A page takes all memory.
    let memory = Memory::new(32 << 20);
    let target = Unsteady::default();
    let (is_down, went_down) = (target.is_down.clone(), target.went_down.clone());
    let (_stop, stopping) = watch::channel(false);
    let runner = Runner::new(&job, documents(), target, FakeQueue::default(), redactor(), stopping.clone(), 1);
    let other = async {
        went_down.notified().await;
        let target = Forgetful::default();
        let runner = Runner::new(&job, documents(), target, FakeQueue::default(), redactor(), stopping, 1);
        let (end, ..) = runner.with_memory(memory.clone()).once().run().await;
        assert_eq!(end, RunEnd::Done);
        is_down.store(false, Ordering::SeqCst);
    };
    let both = async { tokio::join!(runner.with_memory(memory.clone()).once().run(), other) };
    let ((end, _, _, target, _), ()) = soon(both).await;
    assert_eq!((end, target.unwrap().seqs), (RunEnd::Done, (1..=40).collect()));
}
