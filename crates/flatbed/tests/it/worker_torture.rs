//! Documents with updates, deletions, moving keys and shrinking arrays, delivered by the changes worker to all kinds of
//! targets at once, while every participant fails.
//!
//! Two processes work for one server. They are killed every few seconds, and suspended for three lease times. The
//! server is killed, ended, and restarted. Each target suffers the faults of its kind (`target.rs`), one after the
//! other. The disk of the files fills up. Some documents are poison: no target can map them (1 %), or judging targets
//! refuse them (1 %).
//!
//! Meanwhile, with few documents, each lossless target has everything that its job reports as delivered, or the queue
//! has it. At the end each target has the source's content, except documents whose newest state is poison, of which it
//! may have rows of an older state. The queue has each of those, and no entry that was not its document's fault. After
//! the documents and the targets are mended and the queue is replayed, it is empty, and each target has everything.
//!
//! SQLite, HTTP and a file always take part. PostgreSQL, MariaDB and an S3 server (`FLATBED_MOTO_SERVER`) do if they
//! are available and `FLATBED_TEST_SECONDS`, the duration of changes and faults, or `FLATBED_REQUIRE_SERVERS=1` is set.
//! `FLATBED_TEST_DOCUMENTS` is the number of documents and `FLATBED_TEST_SEED` the seed, which repeats the choices and
//! not their interleaving. A disk is filled if `FLATBED_TEST_SECONDS` is set and the test may mount one.

mod endpoint;
mod gate;
mod lines;
mod model;
mod processes;
#[path = "../../../worker/tests/it/servers.rs"]
mod servers;
mod source;
mod tables;
mod target;

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flatbed_testkit::{PATIENCE, Random, length, number, seed};
use hyper::Method;
use serde_json::Value;
use tokio::runtime::Handle;

use crate::support::Server;
use crate::worker_process::{TestFiles, Worker};
use endpoint::Endpoint;
use lines::{LinesFile, Store};
use model::{Documents, Rows, add_rows, differences, is_heavy, is_unmappable};
use processes::pass;
use source::{FeedPosition, Source};
use tables::Tables;
use target::{Fault, Target, job_of};

/// The most times that a target loses a table and is refilled. Each document then comes once more.
const DROPPED_MAX: u32 = 2;

/// The replays of a queue amid faults: ten failed ones exhaust an entry.
const REPLAYS_MAX: u32 = 5;

/// The documents of a request.
const AT_ONCE: usize = 500;

/// The default duration of changes and faults, in seconds.
const SHORT: f64 = 6.5;

/// The checks of the passed position while an endpoint is away, and the pause between them, in which a lease reports
/// it.
const LOOKS: u32 = 20;
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// The shortest pause between two checks of the final state.
const SETTLE_PAUSE: Duration = Duration::from_millis(300);

/// A separate disk for files, if it can be mounted.
struct Disk(Option<PathBuf>);

impl Disk {
    fn at(directory: &Path, bytes: usize) -> Disk {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"]).arg(directory);
        let is_mounted = mount.output().is_ok_and(|done| done.status.success());
        if !is_mounted {
            println!("skipped: no disk is filled, as none may be mounted");
        }
        Disk(is_mounted.then(|| directory.to_owned()))
    }

    /// Fills up from time to time.
    fn suffers(&self, mut random: Random, is_over: &AtomicBool) {
        let Some(directory) = &self.0 else { return };
        let filler = directory.join("filler");
        while !is_over.load(Ordering::Relaxed) {
            pass(random.seconds(2.0, 8.0), is_over);
            let mut file = fs::File::create(&filler).unwrap();
            for size in [1 << 20, 4 << 10, 1] {
                let chunk = vec![0; size];
                while file.write_all(&chunk).is_ok() {}
            }
            pass(random.seconds(0.5, 3.0), is_over);
            fs::remove_file(&filler).unwrap();
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Some(directory) = &self.0 {
            let _ = Command::new("umount").arg("--lazy").arg(directory).status();
        }
    }
}

/// The threads that cause faults. Dropped, it ends before the servers and processes that it disturbs.
struct Chaos {
    place: Arc<TestFiles>,
    is_over: Arc<AtomicBool>,
    server: Option<JoinHandle<Server>>,
    workers: Vec<JoinHandle<Worker>>,
    others: Vec<JoinHandle<()>>,
}

impl Chaos {
    fn new(place: Arc<TestFiles>) -> Chaos {
        let (is_over, server, workers, others) = Default::default();
        Chaos { place, is_over, server, workers, others }
    }

    fn run<T: Send + 'static>(
        &self,
        what: impl FnOnce(&TestFiles, &AtomicBool) -> T + Send + 'static,
    ) -> Option<JoinHandle<T>> {
        let (place, is_over) = (self.place.clone(), self.is_over.clone());
        Some(std::thread::spawn(move || what(&place, &is_over)))
    }

    /// Ends it, and returns the server and the processes, each unharmed.
    async fn end(mut self) -> (Server, Vec<Worker>) {
        self.is_over.store(true, Ordering::Relaxed);
        let joined = move || {
            for other in std::mem::take(&mut self.others) {
                other.join().unwrap();
            }
            let server = self.server.take().unwrap().join().unwrap();
            let workers = std::mem::take(&mut self.workers);
            (server, workers.into_iter().map(|worker| worker.join().unwrap()).collect())
        };
        tokio::task::spawn_blocking(joined).await.unwrap()
    }
}

impl Drop for Chaos {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // Each thread ends with its processes.
        self.server.take().map(JoinHandle::join);
        self.workers.drain(..).for_each(|worker| drop(worker.join()));
    }
}

struct Torture {
    source: Source,
    targets: Vec<Arc<dyn Target>>,
    /// The time limit for the remaining work at the end, far beyond what so many documents need.
    at_last: Duration,
}

/// Causes one fault after the other.
fn suffer(target: &dyn Target, source: &Source, mut random: Random, is_over: &AtomicBool, handle: &Handle) {
    let mut dropped = 0;
    while !target.faults().is_empty() {
        pass(random.seconds(0.3, 3.0), is_over);
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let fault = *random.one_of(target.faults());
        if fault == Fault::Dropped {
            dropped += 1;
            if dropped > DROPPED_MAX {
                continue;
            }
        }
        println!("{} suffers: {fault:?}", target.id());
        target.suffers(fault, true);
        pass(random.seconds(0.3, 5.0), is_over);
        target.suffers(fault, false);
        if fault == Fault::Dropped {
            handle.block_on(source.reset(target.id()));
        }
    }
}

impl Torture {
    /// Returns the current defects of targets and their queues. `is_mended`: no document is poison.
    async fn look(&self, is_mended: bool) -> Vec<String> {
        let (documents, entries) = (self.source.documents().await, self.source.entries().await);
        let mut wrong = Vec::new();
        let keys: HashSet<i64> = documents.values().filter_map(|(_, document)| document["k"].as_i64()).collect();
        assert_eq!(keys.len(), documents.len(), "two documents have one key: the test is wrong");
        for target in &self.targets {
            let id = target.id();
            let is_poison = |document: &Value| is_unmappable(document) || target.judges() && is_heavy(document);
            let (mut expected, mut poisoned) = (Rows::new(), HashSet::new());
            for (id, (rev, document)) in &documents {
                if !is_mended && is_poison(document) {
                    poisoned.insert((id.clone(), rev.clone()));
                } else {
                    add_rows(id, document, &mut expected);
                }
            }
            let mut queued = HashSet::new();
            for entry in entries.iter().filter(|entry| entry.job == id) {
                assert!(is_poison(&entry.document), "{id}: {} is in the queue: {}", entry.id, entry.why);
                let is_newest = documents.get(&entry.id).is_some_and(|(rev, _)| *rev == entry.rev);
                if is_newest && !entry.is_overtaken {
                    queued.insert((entry.id.clone(), entry.rev.clone()));
                } else if is_mended && !entry.is_overtaken {
                    wrong.push(format!("{id}: an entry of {} waits", entry.id));
                }
            }
            wrong.extend(poisoned.difference(&queued).map(|one| format!("{id}: {one:?} is not in the queue")).take(5));
            wrong.extend(queued.difference(&poisoned).map(|one| format!("{id}: {one:?} is in the queue")).take(5));
            let of = target.clone();
            let read = move || {
                let rows = of.rows();
                let complaint = is_mended.then(|| of.complaint(rows.len())).flatten();
                (rows, complaint)
            };
            let (found, complaint) = tokio::task::spawn_blocking(read).await.unwrap();
            let excused = poisoned.into_iter().map(|(id, _)| id).collect();
            let different = differences(&expected, &found, &excused);
            wrong.extend(different.into_iter().map(|text| format!("{id}: {text}")));
            wrong.extend(complaint.map(|text| format!("{id}: {text}")));
        }
        wrong
    }

    /// Checks that a lossless target, or its queue, has each document up to the position that its job reports. `None`:
    /// a participant was away.
    async fn passed(&self) -> Option<Vec<String>> {
        let reached = self.source.reached().await?;
        let documents = self.source.changes().await?;
        let mut wrong = Vec::new();
        for target in self.targets.iter().filter(|target| target.keeps_what_it_has()) {
            let Some(at) = reached.get(target.id()) else { continue };
            let of = target.clone();
            let found = tokio::task::spawn_blocking(move || of.rows()).await.unwrap();
            let queued = self.source.queued(target.id()).await?;
            for (seq, document) in documents.iter().filter(|(seq, _)| seq <= at) {
                let text = |name: &str| document[name].as_str().unwrap().to_owned();
                let (id, mut expected) = ((text("_id"), text("_rev")), Rows::new());
                add_rows(&id.0, document, &mut expected);
                let is_there = expected.iter().all(|(key, row)| found.get(key) == Some(row));
                if !is_there && !queued.contains(&id) {
                    wrong.push((seq, format!("{}: {id:?} of {seq:?} is passed by {at:?}", target.id())));
                }
            }
        }
        // Documents that changed meanwhile may have been there.
        let now: HashSet<FeedPosition> = self.source.changes().await?.into_iter().map(|(seq, _)| seq).collect();
        Some(wrong.into_iter().filter(|(seq, _)| now.contains(*seq)).map(|(_, text)| text).collect())
    }

    /// While nothing is accepted, no job may report progress, however long it waits.
    async fn an_endpoint_is_away(&self, documents: &mut Documents) {
        let Some(endpoint) = self.targets.iter().find(|target| target.id() == "http") else { return };
        endpoint.suffers(Fault::Answers(503), true);
        let batch = documents.change(20);
        self.source.write(documents, &batch).await;
        for _ in 0..LOOKS {
            let passed = self.passed().await.unwrap_or_default();
            assert!(passed.is_empty(), "{}", passed.join("\n"));
            flatbed_testkit::pass(LOOK_PAUSE).await;
        }
        endpoint.suffers(Fault::Answers(503), false);
    }

    /// Waits until there is no defect.
    async fn settle(&self, is_mended: bool) {
        let mut wrong = Vec::new();
        let settled = async {
            loop {
                let looked = Instant::now();
                wrong = self.look(is_mended).await;
                if wrong.is_empty() {
                    return;
                }
                if is_mended {
                    for target in &self.targets {
                        self.source.replay(target.id()).await;
                    }
                }
                // Many documents are not checked all the time.
                flatbed_testkit::pass(looked.elapsed().max(SETTLE_PAUSE)).await;
            }
        };
        if tokio::time::timeout(self.at_last, settled).await.is_err() {
            panic!("{}\n{:#}", wrong.join("\n"), self.source.jobs().await);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn targets_have_what_the_source_has() {
    let is_long = number::<f64>("FLATBED_TEST_SECONDS").is_some();
    let count = number("FLATBED_TEST_DOCUMENTS").unwrap_or(300);
    let seed = seed(1);
    let random = |number: u64| Random(seed.wrapping_add(number.wrapping_mul(0x1234_5678_9abc_def1)));

    let place = Arc::new(TestFiles::new());
    fs::write(place.path("secrets/sql"), servers::PASSWORD).unwrap();
    let disk = is_long.then(|| Arc::new(Disk::at(&place.path("files"), (64 << 20) + count * 8_000)));
    let mut targets: Vec<Arc<dyn Target>> = vec![
        Arc::new(Tables::sqlite(place.path("files/torture.sqlite"))),
        Arc::new(Endpoint::new().await),
        Arc::new(LinesFile(place.path("files/torture.jsonl"))),
    ];
    if is_long || std::env::var("FLATBED_REQUIRE_SERVERS").is_ok_and(|value| value == "1") {
        for tables in [Tables::postgres().await, Tables::mariadb().await].into_iter().flatten() {
            targets.push(Arc::new(tables));
        }
        if let Some(store) = Store::new().await {
            targets.push(Arc::new(store));
        }
    }
    // No other test listens at this address, so the port stays free while the server is away.
    let server = place.server(&["--listen", "127.0.5.2:0", "--log-level", "warn"]);
    let address = server.url.authority();
    let source = Source { url: server.url.clone() };
    let at_last = 2 * PATIENCE + Duration::from_secs(count as u64 / 20);
    let torture = Torture { source: source.clone(), targets, at_last };

    let mut documents = Documents::new(count, random(0));
    source.ask(Method::PUT, "/db", Value::Null).await;
    for from in (0..count).step_by(AT_ONCE) {
        let batch = documents.first(from..count.min(from + AT_ONCE));
        source.write(&mut documents, &batch).await;
    }
    let mut chaos = Chaos::new(place.clone());
    for number in 0..2 {
        let (address, random) = (address.clone(), random(10 + number as u64));
        chaos
            .workers
            .extend(chaos.run(move |place, is_over| processes::worker(place, &address, number, random, is_over)));
    }
    source.until_there("/_worker").await;
    for target in &torture.targets {
        let path = format!("/_worker/job::{}", target.id());
        source.ask(Method::PUT, &path, job_of(&**target, if is_long { 500 } else { 20 })).await;
    }
    if !is_long {
        torture.an_endpoint_is_away(&mut documents).await;
    }
    let own = random(1);
    chaos.server = chaos.run(move |place, is_over| processes::server(place, server, own, is_over));
    for (at, target) in torture.targets.iter().enumerate() {
        let (target, source, handle, random) =
            (target.clone(), source.clone(), Handle::current(), random(20 + at as u64));
        let faults = chaos.run(move |_, is_over| suffer(&*target, &source, random, is_over, &handle));
        chaos.others.extend(faults);
    }
    let own = random(2);
    if let Some(disk) = disk.clone() {
        chaos.others.extend(chaos.run(move |_, is_over| disk.suffers(own, is_over)));
    }

    let mut own = random(3);
    let end = Instant::now() + length(SHORT);
    let (mut replays, mut looks, mut looked) = (0, 0, Instant::now());
    while Instant::now() < end {
        let count = 1 + own.index(50);
        let batch = documents.change(count);
        source.write(&mut documents, &batch).await;
        flatbed_testkit::pass(own.seconds(0.0, 0.2)).await;
        if !is_long && looked.elapsed() > Duration::from_millis(300) {
            let passed = torture.passed().await;
            looks += u32::from(passed.is_some());
            let passed = passed.unwrap_or_default();
            assert!(passed.is_empty(), "{}", passed.join("\n"));
            looked = Instant::now();
        }
        if own.one_in(50) && replays < REPLAYS_MAX {
            replays += 1;
            source.replay(own.one_of(&torture.targets).id()).await;
        }
    }
    println!("looked {looks} times at what is passed");
    loop {
        let batch = documents.cleared();
        if batch.is_empty() {
            break;
        }
        source.write(&mut documents, &batch).await;
    }
    let (server, workers) = chaos.end().await;
    assert!(documents.are(&source.documents().await), "the source has something else than was acknowledged");
    torture.settle(false).await;

    for target in torture.targets.clone() {
        tokio::task::spawn_blocking(move || target.relents()).await.unwrap();
    }
    for batch in documents.mended().chunks(AT_ONCE) {
        source.write(&mut documents, batch).await;
    }
    torture.settle(true).await;
    for target in &torture.targets {
        source.clear_overtaken(target.id()).await;
    }
    assert!(source.entries().await.is_empty());
    for worker in workers {
        assert!(worker.end());
    }
    assert!(server.stop());
}
