//! Leases of sections: a silent holder loses its section, and its transactions fail; a section continues where it was.
#![cfg(test)]

use std::time::Duration;

use flatbed_clock::ManualClock;
use flatbed_databases::handles::ReadHandle;
use flatbed_store::proto::ViewProgress;
use flatbed_store::transaction::{NOT_COMMITTED, Transaction};
use flatbed_testkit::Storage;
use flatbed_views::at_once::BatchPacer;
use flatbed_views::group::job::Job;
use flatbed_views::group::leases::{
    EndLease, LeaseProgress, OtherLeases, TakeLease, TakeLeaseOutcome, WriteOutcome, WriteRows, new_token,
};
use flatbed_views::group::section_leases::{
    BeatSections, BuildSection, BuildSectionOutcome, HeldSection, OtherSections, TakeSection, TakeSectionOutcome,
};
use flatbed_views::group::steps::{Nodes, Step, Take};
use flatbed_views::view::build::{FOLLOWED, NODES, NodesPace, SECTIONS};
use flatbed_views::view::check::{PAGE_KEYS, all_rows, check};
use flatbed_views::view::prepare::PreparedDocument;
use flatbed_views::view::undo::GroupReads;
use flatbed_views::view_updates::views;
use prost::Message;

use super::together::{attempt, job, prepared, sections_of};
use super::{define, standing};
use crate::CreateOptions;
use crate::tests::fenced::{open, open_at};

/// The rows, one of each document.
const ROWS: usize = 8_000;

async fn progress(reader: &ReadHandle) -> ViewProgress {
    standing(reader).await.progress.unwrap()
}

async fn set_progress(job: &Job, progress: &ViewProgress) {
    let standing = standing(&job.reader).await;
    let trx = Transaction::begin(&job.reader.inner.db, &job.reader.inner.metrics).unwrap();
    trx.set(&standing.instance.keys.index_progress(standing.group.number), &progress.encode_to_vec());
    assert!(trx.commit().await.is_ok());
}

/// Writes the rows of a group whose shape is always the same, up to the phase in which sections are built.
async fn write_rows(job: &Job) {
    let begun = Step::run(job, Take { anew: None }).await.unwrap().unwrap();
    let mut trees = begun.trees.clone();
    (trees[0].secret_0, trees[0].secret_1) = (1, 2);
    set_progress(job, &ViewProgress { section_level: 2, trees, ..begun }).await;
    let (others, token) = (OtherLeases::default(), new_token().unwrap());
    let taken = Step::run(job, TakeLease { others: &others, token }).await.unwrap().unwrap();
    let TakeLeaseOutcome::Lease(lease) = taken else { panic!("there is no lease") };
    let documents: Vec<PreparedDocument> = (0..ROWS).flat_map(|n| prepared(job, &format!("d{n:04}"))).collect();
    let mut rest = &documents[..];
    while !rest.is_empty() {
        let mut pace = BatchPacer::new(&job.state.entered);
        let lease_of = (lease.from.as_str(), token);
        let rows = WriteRows { lease: lease_of, sections: &lease.sections, documents: rest, pace: &mut pace };
        match Step::run(job, rows).await.unwrap() {
            Some(WriteOutcome::Documents(count)) => rest = &rest[count..],
            wrote => panic!("{wrote:?}"),
        }
    }
    let held = LeaseProgress { from: lease.from, token, built_until: String::new(), documents: ROWS as u64 };
    Step::run(job, EndLease { held: &held }).await.unwrap().unwrap();
    while progress(&job.reader).await.phase != SECTIONS {
        holder_step(job).await;
    }
}

async fn holder_step(job: &Job) {
    let (mut pace, mut waited) = (NodesPace::default(), Duration::ZERO);
    Step::run(job, Nodes { pace: &mut pace, began: None, waited: &mut waited }).await.unwrap().unwrap();
}

async fn take(job: &Job, others: &OtherSections) -> TakeSectionOutcome {
    let token = new_token().unwrap();
    others.note_own(token);
    Step::run(job, TakeSection { others, token, chosen: None }).await.unwrap().unwrap()
}

async fn build(job: &Job, held: &HeldSection) -> BuildSectionOutcome {
    let (mut pace, mut waited) = (NodesPace::default(), Duration::ZERO);
    Step::run(job, BuildSection { held, pace: &mut pace, began: None, waited: &mut waited }).await.unwrap().unwrap()
}

async fn complete(job: &Job, mut held: HeldSection) {
    loop {
        match build(job, &held).await {
            BuildSectionOutcome::Part(section) => held.section = section,
            BuildSectionOutcome::Complete => return,
            BuildSectionOutcome::Lost => panic!("it is lost"),
        }
    }
}

fn taken(outcome: TakeSectionOutcome) -> HeldSection {
    match outcome {
        TakeSectionOutcome::Section(held) => held,
        outcome => panic!("{outcome:?}"),
    }
}

async fn violations(job: &Job) -> Vec<String> {
    let instance = standing(&job.reader).await.instance;
    let (mut begin, mut all) = (Vec::new(), Vec::new());
    loop {
        let trx = Transaction::begin(&job.reader.inner.db, &job.reader.inner.metrics).unwrap();
        let checked = check(&trx, &instance.keys, &job.storage, None, (begin, PAGE_KEYS)).await.unwrap();
        all.extend(checked.violations);
        match checked.next {
            Some(next) => begin = next,
            None => return all,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_section_continues_where_its_holder_has_died() {
    let (storage, manual) = (Storage::new(), ManualClock::new());
    let (layer, authority) = open(&storage, None).await;
    let ones = layer.database("db", authority.for_job("test"));
    let (other, authority) = open_at(&storage, &manual).await;
    let twos = other.database("db", authority.for_job("test"));
    ones.create(&CreateOptions::default()).await.unwrap();
    define(&ones, "_design/v", &[("n", "n|_count")]).await;
    let (one, two) = (job(&ones).await, job(&twos).await);
    write_rows(&one).await;
    let count = sections_of(&ones).await.len();
    assert!(count > 3, "{count} sections");
    let (of_one, of_two) = (OtherSections::default(), OtherSections::default());
    // One has built some parts of a section, and one is under way.
    let mut held = taken(take(&one, &of_one).await);
    let mut parts = 0;
    while parts < 3 {
        match build(&one, &held).await {
            BuildSectionOutcome::Part(section) => (held.section, parts) = (section, parts + 1),
            // A small section.
            BuildSectionOutcome::Complete => (held, parts) = (taken(take(&one, &of_one).await), 0),
            BuildSectionOutcome::Lost => panic!("it is lost"),
        }
    }
    let (mut pace, mut waited) = (NodesPace::default(), Duration::ZERO);
    let next = BuildSection { held: &held, pace: &mut pace, began: None, waited: &mut waited };
    let under_way = attempt(&one, next).await;
    // The other process builds all others, and sees that this one has a holder.
    loop {
        match take(&two, &of_two).await {
            TakeSectionOutcome::Section(section) => complete(&two, section).await,
            TakeSectionOutcome::Nothing => break,
            TakeSectionOutcome::Over => panic!("one is left"),
        }
    }
    let left = sections_of(&ones).await;
    assert_eq!(left.len(), 1);
    assert_eq!((&left[0], &left[0].owner[..]), (&held.section, &views(&ones.inner).owner[..]));
    manual.advance(Duration::from_millis(2_900));
    let beat = [(held.hash.clone(), held.token)];
    Step::run(&one, BeatSections { held: &beat, beats: 1, leaves: false }).await.unwrap().unwrap();
    assert!(matches!(take(&two, &of_two).await, TakeSectionOutcome::Nothing));
    manual.advance(Duration::from_millis(2_900));
    assert!(matches!(take(&two, &of_two).await, TakeSectionOutcome::Nothing), "its beat was seen");
    manual.advance(Duration::from_millis(200));
    let over = taken(take(&two, &of_two).await);
    let state = |held: &HeldSection| (held.section.level, held.section.at.clone(), held.section.end.clone());
    assert_eq!((&over.hash, state(&over)), (&held.hash, state(&held)), "from where it was");
    assert!(held.section.level > 1 || !held.section.at.is_empty());
    let failed = under_way.0.commit().await.map(drop).map_err(|failed| failed.code());
    assert_eq!(failed, Err(NOT_COMMITTED));
    assert!(matches!(build(&one, &held).await, BuildSectionOutcome::Lost));
    // A section that is left is free at once.
    let left = [(over.hash.clone(), over.token)];
    Step::run(&two, BeatSections { held: &left, beats: 1, leaves: true }).await.unwrap().unwrap();
    let again = taken(take(&one, &of_one).await);
    assert_eq!((&again.hash, state(&again)), (&held.hash, state(&held)));
    complete(&one, again).await;
    assert!(matches!(take(&two, &of_two).await, TakeSectionOutcome::Over));
    assert!(matches!(take(&one, &of_one).await, TakeSectionOutcome::Over));
    let ended = progress(&ones).await;
    assert_eq!((ended.phase, &ended.holder[..]), (NODES, &views(&twos.inner).owner[..]));
    while progress(&ones).await.phase != FOLLOWED {
        holder_step(&two).await;
    }
    assert_eq!(violations(&one).await, Vec::<String>::new());
    let standing = standing(&ones).await;
    let keys = standing.instance.keys.view(standing.group.number);
    let trx = Transaction::begin(&ones.inner.db, &ones.inner.metrics).unwrap();
    let rows = all_rows(GroupReads { trx: &trx, keys: &keys, is_before: false }, 0).await.unwrap();
    let tree = standing.progress.unwrap().trees[0];
    assert_eq!((rows.len(), tree.rows), (ROWS, ROWS as u64));
}

/// The result of a commit is unknown: the same section is taken again, and no other one beside it.
#[tokio::test(flavor = "multi_thread")]
async fn a_section_is_taken_once_if_a_commit_is_unknown() {
    let storage = Storage::new();
    let (layer, authority) = open(&storage, None).await;
    let db = layer.database("db", authority.for_job("test"));
    db.create(&CreateOptions::default()).await.unwrap();
    define(&db, "_design/v", &[("n", "n|_count")]).await;
    let job = job(&db).await;
    write_rows(&job).await;
    let (others, token) = (OtherSections::default(), new_token().unwrap());
    others.note_own(token);
    let first = Step::run(&job, TakeSection { others: &others, token, chosen: None }).await.unwrap().unwrap();
    let first = taken(first);
    let again = TakeSection { others: &others, token, chosen: Some(first.hash.clone()) };
    assert_eq!(taken(Step::run(&job, again).await.unwrap().unwrap()).hash, first.hash);
    let held = sections_of(&db).await.iter().filter(|section| !section.owner.is_empty()).count();
    assert_eq!(held, 1);
}
