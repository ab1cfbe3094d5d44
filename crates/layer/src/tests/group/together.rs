//! Several processes at a first build: each does a part, survivors take over from dead ones, and the result is the
//! same.
#![cfg(test)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flatbed_clock::ManualClock;
use flatbed_databases::actor::Actor;
use flatbed_databases::handles::ReadHandle;
use flatbed_flatten::json::{Limits, parse};
use flatbed_jobs::Leases;
use flatbed_store::due::slice_of;
use flatbed_store::error::Result;
use flatbed_store::keys::ViewPart;
use flatbed_store::proto::ViewSection;
use flatbed_store::transaction::{Attempt, NOT_COMMITTED, Operation, Transaction};
use flatbed_store::view_functions::ViewFunctions;
use flatbed_testkit::{Faults, Mortal, Random, Storage, until};
use flatbed_views::at_once::BatchPacer;
use flatbed_views::group::find::find;
use flatbed_views::group::job::Job;
use flatbed_views::group::leases::{
    Beat, EndLease, EndLeaseOutcome, Lease, LeaseProgress, OtherLeases, TakeLease, TakeLeaseOutcome, WriteOutcome,
    WriteRows, new_token,
};
use flatbed_views::group::steps::{Step, Take, Work};
use flatbed_views::view::build::{NODES, SECTIONS};
use flatbed_views::view::documents::LargeReadGate;
use flatbed_views::view::prepare::{EmittedDocument, PreparedDocument, prepare};
use flatbed_views::view::sections::SectionRule;
use flatbed_views::view_updates::{LoadedGroup, views};
use foundationdb::future::FdbKeyValue;
use prost::Message;
use tokio::sync::Semaphore;

use super::functions::Texts;
use super::{compare, define, put, recomputed, rows, sorted, standing, violations};
use crate::background::{Background, BackgroundOptions};
use crate::handle::Database;
use crate::lease::RootLeases;
use crate::tests::fenced::{open, open_at};
use crate::{Authority, CreateOptions, Edit, Layer, Outcome, Refusal, ViewBounds, ViewUpdate};

/// The documents that each process maps before it waits for all others: more than one lease.
const PART: u64 = 40;

struct Process {
    layer: Layer,
    db: Database,
    texts: Arc<Texts>,
}

async fn process(storage: &Storage) -> Process {
    process_of(open(storage, None).await)
}

fn process_of((layer, authority): (Layer, Authority)) -> Process {
    let texts = Arc::new(Texts::pausing(Duration::from_millis(4)));
    texts.stop_after(PART);
    layer.run_views_by(texts.clone());
    let db = layer.database("db", authority.for_job("test"));
    Process { layer, db, texts }
}

/// Opens the database in a process that runs no functions.
async fn database(storage: &Storage) -> Database {
    let (layer, authority) = open(storage, None).await;
    layer.database("db", authority.for_job("test"))
}

async fn fill(db: &Database, documents: usize) {
    db.create(&CreateOptions::default()).await.unwrap();
    let body = |n: usize| parse(format!(r#"{{"n":{}}}"#, n % 13).as_bytes(), &Limits::default()).unwrap().into_owned();
    let edit = |n: usize| Edit {
        expiry: None,
        id: format!("d{n:04}").into(),
        parent: None,
        history: None,
        deleted: false,
        attachments: Vec::new(),
        body: body(n),
    };
    let edits: Vec<Edit<'_>> = (0..documents).map(edit).collect();
    // The writes of an attempt with an unknown result are visible.
    let is_there = |outcome: &Outcome| matches!(outcome, Ok(_) | Err(Refusal::Conflict));
    for edits in edits.chunks(100) {
        assert!(db.bulk_update(edits).await.unwrap().iter().all(is_there));
    }
}

/// Builds with three processes, one of which may be killed in the middle.
async fn build(storage: Storage, is_killed: bool) {
    let documents = 600;
    let writer = database(&storage).await;
    fill(&writer, documents).await;
    define(&writer, "_design/v", &[("n", "n|_stats"), ("id", "_id|written")]).await;
    let third = {
        let storage = storage.clone();
        Mortal::start(1, async move { process(&storage).await }).await
    };
    let (one, two) = (process(&storage).await, process(&storage).await);
    let ask = |process: &Process| {
        let reader = process.db.reader().clone();
        async move { rows(&reader, "_design/v", "n", ViewUpdate::True).await }
    };
    third.spawn({
        let asks = ask(third.process());
        async move { drop(asks.await) }
    });
    // Each has a part before it continues: a process that takes leases at the same time as others may lose to them for
    // long.
    let begun = async |process: &Process, documents: u64| {
        until("it has begun", async || process.texts.mapped() >= documents).await;
    };
    begun(third.process(), 1).await;
    let others = [tokio::spawn(ask(&one)), tokio::spawn(ask(&two))];
    for process in [&one, &two, third.process()] {
        begun(process, PART).await;
    }
    [&one, &two, third.process()].iter().for_each(|process| process.texts.go_on());
    if !is_killed {
        compare(&one.db, "_design/v", "n", "n").await;
    }
    let third = third.kill();
    for answered in others {
        assert_eq!(sorted(answered.await.unwrap().unwrap()), recomputed(&writer, "n").await);
    }
    compare(&two.db, "_design/v", "id", "_id").await;
    let mapped = [&one, &two, &third].map(|process| process.texts.mapped() as usize);
    // Duplicate work: what the killed process had in progress, failures of the storage, and leases whose holder a
    // loaded machine delayed for three seconds. Without sharing, it would be 600 documents and more.
    let twice = mapped.iter().sum::<usize>() - documents;
    assert!(twice <= 400, "{mapped:?}");
    let left = leases_of(&two.db).await;
    assert_eq!(left, 0, "leases are left");
    assert_eq!(violations(&writer).await, Vec::<String>::new());
    [&one, &two].iter().for_each(|process| process.layer.shutdown());
}

/// Returns the sections of the group's nodes that are still to be built.
pub(super) async fn sections_of(db: &ReadHandle) -> Vec<ViewSection> {
    let standing = standing(db).await;
    let keys = standing.instance.keys.view(standing.group.number);
    loop {
        let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
        if let Ok(found) = trx.range(&keys.sections(), true).all(10_000).await {
            let section = |row: &FdbKeyValue| match keys.split(row.key()).unwrap() {
                ViewPart::Section(_) => Some(ViewSection::decode(row.value()).unwrap()),
                _ => None,
            };
            return found.iter().filter_map(section).collect();
        }
    }
}

/// A process is killed while it builds sections; two others build the rest, and documents change all the time.
#[tokio::test(flavor = "multi_thread")]
async fn sections_are_built_together_while_documents_change() {
    let storage = Storage::new();
    let writer = database(&storage).await;
    fill(&writer, 600).await;
    define(&writer, "_design/v", &[("n", "n|_stats"), ("id", "_id|written")]).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let edits = tokio::spawn({
        let (writer, is_over, mut random) = (writer.clone(), Arc::clone(&is_over), Random(5));
        async move {
            let mut edits = 0;
            while !is_over.load(Ordering::Relaxed) {
                let id = format!("d{:04}", random.below(700));
                let body = format!(r#"{{"n":{}}}"#, random.below(20));
                put(&writer, &id, (random.below(4) > 0).then_some(body.as_str())).await;
                edits += 1;
            }
            edits
        }
    });
    let third = {
        let storage = storage.clone();
        Mortal::start(1, async move { process(&storage).await }).await
    };
    let of_third = third.process();
    of_third.texts.go_on();
    let steps = &views(&of_third.layer.inner).steps;
    steps.forget_permits(Semaphore::MAX_PERMITS);
    third.spawn({
        let reader = of_third.db.reader().clone();
        async move { drop(rows(&reader, "_design/v", "n", ViewUpdate::True).await) }
    });
    let owner = views(&of_third.layer.inner).owner;
    // It makes one step at a time.
    let holds = async || {
        if steps.available_permits() == 0 {
            steps.add_permits(1);
        }
        let is_begun = standing(&writer).await.progress.is_some_and(|progress| progress.phase == SECTIONS);
        is_begun && sections_of(&writer).await.iter().any(|section| section.owner == owner)
    };
    until("a process holds a section", holds).await;
    assert!(sections_of(&writer).await.len() > 8, "there are more");
    let tasks = of_third.layer.view_tasks();
    assert!(tasks.len() == 1 && tasks[0].is_build, "{tasks:?}");
    let mapped = standing(&writer).await.progress.unwrap().documents;
    assert!((mapped..=tasks[0].total_changes).contains(&tasks[0].changes_done), "{mapped} are mapped: {tasks:?}");
    let (one, two) = (process(&storage).await, process(&storage).await);
    let others = [&one, &two].map(|process| {
        process.texts.go_on();
        let reader = process.db.reader().clone();
        tokio::spawn(async move { rows(&reader, "_design/v", "n", ViewUpdate::True).await })
    });
    drop(third.kill());
    for answered in others {
        answered.await.unwrap().unwrap();
    }
    is_over.store(true, Ordering::Relaxed);
    assert!(edits.await.unwrap() > 0);
    for process in [&one, &two] {
        compare(&process.db, "_design/v", "n", "n").await;
        compare(&process.db, "_design/v", "id", "_id").await;
    }
    assert_eq!(violations(&writer).await, Vec::<String>::new());
    assert!(sections_of(&writer).await.is_empty());
    [&one, &two].iter().for_each(|process| process.layer.shutdown());
}

async fn leases_of(db: &Database) -> usize {
    let instance = standing(db).await.instance;
    let number = flatbed_operations::index::groups::groups_of(&instance.record).next().unwrap().number;
    let all = instance.keys.view(number).leases();
    loop {
        let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
        if let Ok(found) = trx.range(&all, true).all(1_000).await {
            return found.len();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_processes_build_together() {
    build(Storage::new(), false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn and_one_of_them_may_be_killed() {
    build(Storage::new(), true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn and_with_faults() {
    for seed in 0..2 {
        let Some(storage) = Storage::with(Faults::new(0.03, seed)) else { return };
        build(storage, seed == 1).await;
    }
}

/// Works on the group manually: nothing else does, as the process runs no functions.
pub(super) async fn job(db: &Database) -> Job {
    job_by(db, "_design/v", &Texts::default()).await
}

/// Works like [`job`] on the group of a design document, with these functions.
pub(super) async fn job_by(db: &Database, design: &str, functions: &Texts) -> Job {
    let reader = (**db.reader()).clone();
    let found = find(&reader, design).await.unwrap().unwrap();
    let id = (found.instance.record.namespace, found.number);
    let definition = Arc::clone(&found.loaded.definition);
    let functions = functions.load("db", &definition.source(), ViewBounds::default());
    let loaded = Arc::new(LoadedGroup { definition, functions: Some(functions) });
    let state = views(&reader.inner).group(id);
    Job::new(reader, id, design.to_owned(), loaded, state).unwrap()
}

pub(super) fn prepared(job: &Job, id: &str) -> Vec<PreparedDocument> {
    let mut rows = flatbed_store::view_functions::EmittedRows::default();
    rows.push("1", "2");
    vec![prepare(&job.storage, EmittedDocument { id: id.to_owned(), trees: vec![rows], ..EmittedDocument::default() })]
}

async fn taken(job: &Job, others: &OtherLeases) -> Result<Option<Lease>> {
    let token = new_token()?;
    let taken = Step::run(job, TakeLease { others, token }).await?;
    others.is_own(token);
    Ok(match taken.unwrap() {
        TakeLeaseOutcome::Lease(lease) => Some(lease),
        TakeLeaseOutcome::Nothing => None,
        TakeLeaseOutcome::Over => panic!("it is over"),
    })
}

pub(super) async fn attempt<W: Work>(job: &Job, work: W) -> (Transaction, Option<W::Output>) {
    let trx = Transaction::begin(&job.reader.inner.db, &job.reader.inner.metrics).unwrap();
    let output =
        Step { job, work, large_reads: LargeReadGate::default() }.attempt(&trx, Attempt::default()).await.unwrap();
    (trx, output)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_holder_has_under_way_fails_once_its_lease_is_taken_over() {
    let (storage, manual) = (Storage::new(), ManualClock::new());
    let one = database(&storage).await;
    let (other, authority) = open_at(&storage, &manual).await;
    let two = other.database("db", authority.for_job("test"));
    fill(&one, 50).await;
    define(&one, "_design/v", &[("n", "n")]).await;
    let (one, two) = (job(&one).await, job(&two).await);
    let (ones, twos) = (OtherLeases::default(), OtherLeases::default());
    Step::run(&one, Take { anew: None }).await.unwrap().unwrap();
    let first = taken(&one, &ones).await.unwrap().unwrap();
    let second = taken(&two, &twos).await.unwrap().unwrap();
    assert_eq!((&*first.from, first.until.as_deref()), ("", Some("d0028")), "the design document and 29 others");
    assert_eq!((&*second.from, second.until.as_deref()), ("d0028", None));
    assert!(taken(&two, &twos).await.unwrap().is_none(), "the first one is another's");
    let held = |lease: &Lease, built_until: &str, documents: u64| LeaseProgress {
        from: lease.from.clone(),
        token: lease.token,
        built_until: built_until.to_owned(),
        documents,
    };
    let of_first = [held(&first, "d0003", 5)];
    let (lost, _) = Step::run(&one, Beat { held: &of_first, beats: 1, leaves: false }).await.unwrap().unwrap();
    assert!(lost.is_empty());
    let documents = prepared(&one, "d0004");
    let (mut pace, mut later) = (BatchPacer::new(&one.state.entered), BatchPacer::new(&one.state.entered));
    let lease = (first.from.as_str(), first.token);
    let none = SectionRule::default();
    let under_way = attempt(&one, WriteRows { lease, sections: &none, documents: &documents, pace: &mut pace }).await;
    assert!(matches!(under_way.1, Some(WriteOutcome::Documents(1))));
    let ends = attempt(&one, EndLease { held: &of_first[0] }).await;
    assert!(matches!(ends.1, Some(EndLeaseOutcome::Lease)));
    assert!(taken(&two, &twos).await.unwrap().is_none());
    manual.advance(Duration::from_millis(2_900));
    assert!(taken(&two, &twos).await.unwrap().is_none());
    manual.advance(Duration::from_millis(200));
    let over = taken(&two, &twos).await.unwrap().expect("it is taken over");
    assert_eq!((&*over.from, &*over.built_until, over.documents), ("", "d0003", 5), "from where it was");
    for trx in [under_way.0, ends.0] {
        let failed = trx.commit().await.map(drop).map_err(|failed| failed.code());
        assert_eq!(failed, Err(NOT_COMMITTED));
    }
    let rows = WriteRows { lease, sections: &none, documents: &documents, pace: &mut later };
    assert!(matches!(Step::run(&one, rows).await.unwrap(), Some(WriteOutcome::Lost)));
    assert!(matches!(Step::run(&one, EndLease { held: &of_first[0] }).await.unwrap(), Some(EndLeaseOutcome::Lost)));
    let (lost, _) = Step::run(&one, Beat { held: &of_first, beats: 2, leaves: false }).await.unwrap().unwrap();
    assert_eq!(lost, [""]);
    // A returned lease is free at once.
    let of_second = [held(&second, "d0040", 12)];
    Step::run(&two, Beat { held: &of_second, beats: 1, leaves: true }).await.unwrap().unwrap();
    let left = taken(&one, &ones).await.unwrap().expect("it was left");
    assert_eq!((&*left.from, &*left.built_until, left.documents), ("d0028", "d0040", 12));
    let ended = Step::run(&two, EndLease { held: &held(&over, "d0028", 30) }).await.unwrap();
    assert!(matches!(ended, Some(EndLeaseOutcome::Lease)));
    let ended = Step::run(&one, EndLease { held: &held(&left, "d0049", 21) }).await.unwrap();
    assert!(matches!(ended, Some(EndLeaseOutcome::Rows)));
    let progress = standing(&one.reader).await.progress.unwrap();
    assert_eq!((progress.phase, progress.documents), (NODES, 51));
    let none = Step::run(&two, TakeLease { others: &twos, token: new_token().unwrap() }).await.unwrap();
    assert!(matches!(none, Some(TakeLeaseOutcome::Over)));
}

/// The transaction that ends a lease has cleared keys of the range in which it searches for others. A cluster answers
/// that read with fewer rows than its limit.
#[tokio::test(flavor = "multi_thread")]
async fn rows_are_built_once_the_last_lease_has_ended() {
    let storage = Storage::new();
    let db = database(&storage).await;
    fill(&db, 100).await;
    define(&db, "_design/v", &[("n", "n")]).await;
    let (job, others) = (job(&db).await, OtherLeases::default());
    Step::run(&job, Take { anew: None }).await.unwrap().unwrap();
    let mut leases = Vec::new();
    while let Some(lease) = taken(&job, &others).await.unwrap() {
        leases.push(lease);
    }
    assert!(leases.len() > 2 && leases.last().unwrap().until.is_none(), "all ids are leased");
    let last = leases.len() - 1;
    for (at, Lease { from, token, .. }) in leases.into_iter().enumerate() {
        let held = LeaseProgress { from, token, built_until: String::new(), documents: 1 };
        let ended = Step::run(&job, EndLease { held: &held }).await.unwrap();
        match at == last {
            true => assert!(matches!(ended, Some(EndLeaseOutcome::Rows)), "{ended:?}"),
            false => assert!(matches!(ended, Some(EndLeaseOutcome::Lease)), "lease {at} of {last}: {ended:?}"),
        }
    }
    assert_eq!(standing(&job.reader).await.progress.unwrap().phase, NODES);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_of_several_leases_has_all_rows() {
    let storage = Storage::new();
    let (layer, authority) = open(&storage, None).await;
    layer.run_views_by(Arc::new(Texts::default()));
    let db = layer.database("db", authority.for_job("test"));
    fill(&db, 100).await;
    define(&db, "_design/v", &[("id", "_id")]).await;
    let found = rows(&db, "_design/v", "id", ViewUpdate::True).await.unwrap();
    assert_eq!((found.len(), violations(&db).await), (100, Vec::new()));
}

/// The slice's lease belongs to a dead process, and lasts as long as the clock stands still.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_begins_takes_up_groups_at_once() {
    let storage = Storage::new();
    let writer = database(&storage).await;
    fill(&writer, 20).await;
    define(&writer, "_design/v", &[("n", "n")]).await;
    RootLeases(writer.inner.clone()).take(&slice_of("db").to_string(), &[9; 16], None).await.unwrap();
    let one = process_of(open_at(&storage, &ManualClock::new()).await);
    let Actor::Server(actor) = one.db.actor() else { panic!("the tests' own") };
    let background = Background::new(&one.layer, actor.clone(), BackgroundOptions::default()).unwrap();
    background.start();
    until("the group is built", async || one.layer.inner.metrics.view_groups_built.get() > 0).await;
    background.stop().await;
}
