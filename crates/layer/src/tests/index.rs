//! Runs the test index beside writes, purges and renewals; builds it, kills the builder and resumes.
#![cfg(test)]

pub(crate) mod channels;
mod collations;
mod json;
pub(crate) mod random;
mod selector;

use std::sync::Arc;
use std::time::Duration;

use flatbed_clock::ManualClock;
use flatbed_databases::actor::{Actor, ServerActor};
use flatbed_databases::document::edit::{Document, Edit, EditParts, GetOptions};
use flatbed_databases::document::verdict::Verdict;
use flatbed_databases::instance::Instance;
use flatbed_databases::server::CreateOptions;
use flatbed_flatten::json::{Limits, Value, parse};
use flatbed_jobs::Leases;
use flatbed_operations::index::build::{BuildPace, Step, StepOutcome, unbuilt};
use flatbed_operations::index::prepare::Preparations;
use flatbed_operations::judge::judgement::{Judge, Judgement, ProposedWrite, Rule};
use flatbed_operations::write::batch::{Work, WriteBatch, instance_of, prepare, resolved};
use flatbed_operations::write::purge::Purge;
use flatbed_revtree::RevId;
use flatbed_store::due::{self, DueKind, slice_of};
use flatbed_store::error::{Error, Refusal, Result};
use flatbed_store::keys::IndexPart;
use flatbed_store::proto;
use flatbed_store::records::RevisionRecord;
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use flatbed_testkit::{Storage, pass, until, until_wanted};
use foundationdb::future::FdbValues;
use futures_util::future::BoxFuture;

use crate::background::{Background, BackgroundOptions};
use crate::check::check_namespaces;
use crate::handle::Database;
use crate::handle::Layer;
use crate::lease::RootLeases;
use crate::renew::renew;
use crate::tests::fenced::{database, layer_at};

const FIRST: Attempt = Attempt { maybe_committed: false, after_unknown: false };

fn edit<'e>(id: &'e str, parent: Option<RevId>, body: &'e str) -> Edit<'e> {
    let EditParts { deleted, body, .. } =
        EditParts::from_json(parse(body.as_bytes(), &Limits::default()).unwrap(), &flatbed_clock::Clock::system())
            .unwrap();
    Edit { expiry: None, id: id.into(), parent, history: None, deleted, attachments: Vec::new(), body }
}

async fn put(db: &Database, id: &str, parent: Option<&RevId>, body: &str) -> Result<RevId> {
    Ok(db.update(&edit(id, parent.cloned(), body)).await?.rev)
}

async fn fill(db: &Database, count: usize) {
    let texts: Vec<_> =
        (0..count).map(|n| (format!("d{n:04}"), format!(r#"{{"kind":"k{}","n":{n}}}"#, n % 7))).collect();
    let edits: Vec<_> = texts.iter().map(|(id, text)| edit(id, None, text)).collect();
    assert!(db.bulk_update(&edits).await.unwrap().iter().all(|outcome| outcome.is_ok()));
}

async fn indexes(db: &Database) -> Vec<proto::Index> {
    resolved(&db.inner, &db.name).await.unwrap().record.indexes.clone()
}

async fn all_of(db: &Database, instance: &Instance, number: u64) -> Vec<FdbValues> {
    loop {
        let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
        match flatbed_databases::document::body::begin_read(&trx, instance.keys.index(number))
            .finish(&trx, 10_000_000)
            .await
        {
            Ok(pages) => return pages,
            Err(Error::Storage(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

async fn entries(db: &Database, number: u64) -> Vec<(String, String)> {
    let instance = resolved(&db.inner, &db.name).await.unwrap();
    let pages = all_of(db, &instance, number).await;
    let mut found = Vec::new();
    for row in pages.iter().flat_map(|page| page.iter()) {
        if let (_, IndexPart::Entry(entry)) = instance.keys.split_index(row.key()).unwrap() {
            found.push((String::from_utf8(entry.element).unwrap(), entry.id));
        }
    }
    found
}

/// Returns the entries that follow from a walk over all documents.
async fn recomputed(db: &Database, member: &str) -> Vec<(String, String)> {
    let query = crate::AllDocsQuery { include_docs: true, ..crate::AllDocsQuery::default() };
    let mut walk = db.all_docs(query);
    let mut expected = Vec::new();
    while let Some(rows) = walk.next_page().await.unwrap() {
        let is_passed_over = |id: &str| member.starts_with('^') && id.starts_with("_design/");
        for document in rows.into_iter().filter_map(|row| row.doc).filter(|doc| !is_passed_over(&doc.id)) {
            let text = [b"{", document.body.as_slice(), b"}"].concat();
            let body = parse(&text, &Limits::default()).unwrap();
            let name = member.trim_start_matches('^');
            if let Some(Value::String(value) | Value::Number(value)) = body.get(name) {
                let value = if name == member { value.to_string() } else { value.to_uppercase() };
                expected.push((value, document.id));
            }
        }
    }
    expected.sort();
    expected
}

async fn step(db: &Database, number: u64) -> StepOutcome {
    let mut step = Step::new(&db.inner, &db.name, number, BuildPace::default());
    transaction::write(&db.inner.db, &db.inner.metrics, &mut step).await.unwrap()
}

fn begin(db: &Database) -> Transaction {
    Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap()
}

async fn assert_clean(db: &Database) {
    let check = async || crate::check::check_database(db, |_| {}).await.unwrap();
    // A stopped process may still have a commit in flight.
    let report = until_wanted("the sums are compared", check, |report| report.sums_compared).await;
    assert!(report.is_clean(), "{report:#?}");
}

fn actor(db: &Database) -> ServerActor {
    match db.actor() {
        Actor::Server(actor) => actor.clone(),
        Actor::User(_) => panic!("the tests' own"),
    }
}

fn background(db: &Database, silence_max: Duration) -> Background {
    let look_every = Duration::from_millis(20);
    let options = BackgroundOptions { look_every, silence_max, ..BackgroundOptions::default() };
    Background::new(&Layer { inner: Arc::clone(&db.inner) }, actor(db), options).unwrap()
}

async fn are_built(db: &Database) -> bool {
    unbuilt(resolved(&db.inner, &db.name).await.unwrap().record.clone()).next().is_none()
}

async fn build_all(db: &Database) {
    let background = background(db, Duration::from_secs(1));
    background.start();
    until("the indexes are built", async || are_built(db).await).await;
    background.stop().await;
}

const DEFINES: &str = r#"{"member_indexes":["kind"]}"#;

#[tokio::test]
async fn an_index_is_defined_written_built_and_dropped() {
    let (db, _storage) = database().await;
    fill(&db, 30).await;
    let rev = put(&db, "_design/a", None, DEFINES).await.unwrap();
    let [index] = &indexes(&db).await[..] else { panic!("one index") };
    assert_eq!((index.number, index.readable, index.source.as_str()), (1, false, "_design/a"));
    assert_eq!(entries(&db, 1).await, []);
    // Entered from the definition on: a new document, an edited old one, and a deleted one.
    let of = |id: &str| {
        let (db, id) = (db.clone(), id.to_owned());
        async move { db.get(&id, &GetOptions::default()).await.unwrap().rev }
    };
    put(&db, "new", None, r#"{"kind":"n"}"#).await.unwrap();
    put(&db, "d0001", Some(&of("d0001").await), r#"{"kind":"edited"}"#).await.unwrap();
    put(&db, "d0002", Some(&of("d0002").await), r#"{"_deleted":true}"#).await.unwrap();
    let pair = |value: &str, id: &str| (value.to_owned(), id.to_owned());
    assert_eq!(entries(&db, 1).await, [pair("edited", "d0001"), pair("n", "new")]);
    assert_clean(&db).await;
    build_all(&db).await;
    assert!(indexes(&db).await[0].readable);
    assert_eq!(entries(&db, 1).await, recomputed(&db, "kind").await);
    put(&db, "new", Some(&of("new").await), r#"{"kind":7}"#).await.unwrap();
    // A body in a blob, before and after.
    let large = format!(r#"{{"kind":"large","x":[{}]}}"#, vec![format!("{:?}", "x".repeat(1_000)); 700].join(","));
    let rev_large = put(&db, "large", None, &large).await.unwrap();
    put(&db, "large", Some(&rev_large), &large.replace("\"large\"", "\"larger\"")).await.unwrap();
    assert_eq!(entries(&db, 1).await, recomputed(&db, "kind").await);
    assert_clean(&db).await;
    // A changed definition is another index; an unchanged one keeps its state.
    let rev = put(&db, "_design/a", Some(&rev), r#"{"member_indexes":["kind","n"]}"#).await.unwrap();
    let states: Vec<_> = indexes(&db).await.iter().map(|index| (index.number, index.readable)).collect();
    assert_eq!(states, [(1, true), (2, false)]);
    build_all(&db).await;
    assert_eq!(entries(&db, 2).await, recomputed(&db, "n").await);
    let record = resolved(&db.inner, "db").await.unwrap().record.clone();
    assert_eq!(record.features, ["index:member"]);
    put(&db, "_design/a", Some(&rev), r#"{"_deleted":true}"#).await.unwrap();
    assert_eq!((indexes(&db).await, entries(&db, 1).await, entries(&db, 2).await), (vec![], vec![], vec![]));
    let record = resolved(&db.inner, "db").await.unwrap().record.clone();
    assert_eq!((record.features, record.indexes_defined), (vec![], 2));
    assert_clean(&db).await;
}

#[tokio::test]
async fn a_replicated_definition_holds_if_it_wins() {
    let (db, _storage) = database().await;
    let replicated = |path: &[&str], body: &'static str| Edit {
        history: Some(path.iter().map(|rev| rev.parse().unwrap()).collect()),
        ..edit("_design/a", None, body)
    };
    let of = |digit: &str, generation: u32| format!("{generation}-{}", digit.repeat(32));
    db.bulk_update(&[replicated(&[&of("b", 2), &of("a", 1)], DEFINES)]).await.unwrap()[0].as_ref().unwrap();
    assert_eq!(indexes(&db).await[0].definition, b"kind");
    db.bulk_update(&[replicated(&[&of("c", 1)], r#"{"member_indexes":["loses"]}"#)]).await.unwrap()[0]
        .as_ref()
        .unwrap();
    assert_eq!(indexes(&db).await.len(), 1);
    db.bulk_update(&[replicated(&[&of("d", 3), &of("c", 2), &of("c", 1)], r#"{"member_indexes":["wins"]}"#)])
        .await
        .unwrap()[0]
        .as_ref()
        .unwrap();
    let now = indexes(&db).await;
    assert_eq!((now.len(), now[0].definition.as_slice(), now[0].number), (1, &b"wins"[..], 2));
    // The winner is purged, and the other branch's definitions hold again.
    db.purge("_design/a", &[of("d", 3).parse().unwrap()]).await.unwrap();
    assert_eq!(indexes(&db).await[0].definition, b"kind");
    db.purge("_design/a", &[of("b", 2).parse().unwrap()]).await.unwrap();
    assert_eq!(indexes(&db).await, []);
}

#[tokio::test]
async fn a_builder_that_is_killed_at_any_step_is_resumed() {
    let (db, _storage) = database().await;
    fill(&db, 45).await;
    put(&db, "_design/a", None, DEFINES).await.unwrap();
    let mut steps = 0;
    loop {
        // Killed before its commit: nothing of it remains.
        let before = entries(&db, 1).await;
        let killed = begin(&db);
        let mut attempt = Step::new(&db.inner, "db", 1, BuildPace::default());
        attempt.attempt(&killed, FIRST).await.unwrap();
        drop(killed);
        assert_eq!(entries(&db, 1).await, before);
        assert_clean(&db).await;
        // One of two concurrent steps commits.
        let (one, other) = (begin(&db), begin(&db));
        let found = attempt.attempt(&one, FIRST).await.unwrap();
        attempt.attempts = 0;
        attempt.attempt(&other, FIRST).await.unwrap();
        one.commit().await.unwrap();
        assert!(other.commit().await.is_err());
        // Killed after its commit: another process resumes.
        assert_clean(&db).await;
        steps += 1;
        match found {
            StepOutcome::On => assert!(entries(&db, 1).await.len() > before.len() || steps > 4),
            found => break assert_eq!(found, StepOutcome::Built),
        }
    }
    assert!(steps > 4, "{steps}");
    assert_eq!(entries(&db, 1).await, recomputed(&db, "kind").await);
    assert_eq!(step(&db, 1).await, StepOutcome::Built);
    assert_eq!(step(&db, 2).await, StepOutcome::Gone);
}

#[tokio::test]
async fn a_purge_and_an_edit_meet_a_builder() {
    let (db, _storage) = database().await;
    fill(&db, 15).await;
    put(&db, "_design/a", None, DEFINES).await.unwrap();
    let rev = |id: &'static str| {
        let db = db.clone();
        async move { db.get(id, &GetOptions::default()).await.unwrap().rev }
    };
    let mut attempt = Step::new(&db.inner, "db", 1, BuildPace::default());
    // Purged or edited since the builder read it.
    let building = begin(&db);
    attempt.attempt(&building, FIRST).await.unwrap();
    db.purge("d0001", &[rev("d0001").await]).await.unwrap();
    assert!(building.commit().await.is_err(), "a document is gone");
    let building = begin(&db);
    attempt.attempt(&building, FIRST).await.unwrap();
    put(&db, "d0002", Some(&rev("d0002").await), r#"{"kind":"edited"}"#).await.unwrap();
    assert!(building.commit().await.is_err(), "a document is another one");
    // A step that commits after the purge or edit has read the document's new state.
    let revs = [rev("d0003").await];
    let mut purge = Purge::new(&db.handle, "d0003", &revs, None).unwrap();
    let purging = begin(&db);
    purge.attempt(&purging, FIRST).await.unwrap();
    let edits = [edit("d0004", Some(rev("d0004").await), r#"{"kind":"later"}"#)];
    let instance = instance_of(&db.inner, "db").await.unwrap();
    let mut batches = prepare(&db.handle, &instance, &edits, &[0]).await.unwrap().batches;
    let (work, items) = (Work::new(&db.inner), &mut batches[0]);
    let mut write = WriteBatch {
        inner: &db.inner,
        instance: &instance,
        edits: &edits,
        items,
        attempts: 0,
        work: &work,
        preparations: Default::default(),
        is_shared: false,
    };
    let writing = begin(&db);
    write.attempt(&writing, FIRST).await.unwrap();
    assert_eq!(step(&db, 1).await, StepOutcome::On);
    assert!(purging.commit().await.is_err(), "it does not know the entry");
    assert!(writing.commit().await.is_err(), "it does not know the entry");
    db.purge("d0003", &revs).await.unwrap();
    build_all(&db).await;
    assert_eq!(entries(&db, 1).await, recomputed(&db, "kind").await);
    assert_clean(&db).await;
}

#[tokio::test]
async fn a_purge_shows_the_body_that_it_drops() {
    let (db, _storage) = database().await;
    put(&db, "_design/a", None, DEFINES).await.unwrap();
    let of = |digit: &str| -> RevId { format!("1-{}", digit.repeat(32)).parse().unwrap() };
    // Too large for rows, even compressed.
    let text: String = (0..60_000_u64).map(|n| format!("{:x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
    let large = format!(r#"{{"kind":"large","text":"{text}"}}"#);
    for (digit, body) in [("1", r#"{"kind":"small"}"#), ("2", &large)] {
        db.update(&Edit { history: Some(vec![of(digit)]), ..edit("d", None, body) }).await.unwrap();
    }
    assert_eq!(entries(&db, 1).await, [("large".to_owned(), "d".to_owned())]);
    assert_eq!(db.purge("d", &[of("2")]).await.unwrap(), [of("2")]);
    assert_eq!(entries(&db, 1).await, [("small".to_owned(), "d".to_owned())]);
    assert_clean(&db).await;
}

#[tokio::test]
async fn what_is_prepared_fits_the_indexes_of_one_database() {
    let (layer, authority, _storage) = crate::tests::fenced::layer().await;
    let mut instances = Vec::new();
    for (name, member) in [("db", "^kind"), ("other", "^n"), ("third", "^kind")] {
        let db = layer.database(name, authority.for_job("test"));
        if name != "db" {
            db.create(&CreateOptions::default()).await.unwrap();
        }
        put(&db, "_design/a", None, &format!(r#"{{"member_indexes":["{member}"]}}"#)).await.unwrap();
        instances.push(resolved(&db.inner, name).await.unwrap());
    }
    let preparations = Preparations::of(&instances[0]);
    assert_eq!([0, 1, 2].map(|at| preparations.are_current(&instances[at])), [true, false, true]);
    assert!(!Preparations::default().are_current(&instances[0]));
    let body = format!(r#"{{"kind":"{}"}}"#, "k".repeat(300));
    let ids: Vec<_> = (0..20).map(|n| n.to_string()).collect();
    let edits: Vec<_> = ids.iter().map(|id| edit(id, None, &body)).collect();
    preparations.edits(&layer.inner, &edits.iter().collect::<Vec<_>>()).await.unwrap();
    assert_eq!(preparations.count(), 3, "of 201 bytes each");
}

#[tokio::test]
async fn a_list_that_changes_under_a_write_cuts_it_anew() {
    let (db, _storage) = database().await;
    let texts: Vec<_> = (0..250).map(|n| (format!("{n:03}"), r#"{"kind":"k","x":1}"#)).collect();
    let edits: Vec<_> = texts.iter().map(|(id, text)| edit(id, None, text)).collect();
    let instance = resolved(&db.inner, "db").await.unwrap();
    let wanted: Vec<_> = (0..edits.len()).collect();
    let mut batches = prepare(&db.handle, &instance, &edits, &wanted).await.unwrap().batches;
    let (work, before) = (Work::new(&db.inner), batches[0].len());
    let items = &mut batches[0];
    let mut write = WriteBatch {
        inner: &db.inner,
        instance: &instance,
        edits: &edits,
        items,
        attempts: 0,
        work: &work,
        preparations: Default::default(),
        is_shared: false,
    };
    let (old_list, failed) = (begin(&db), begin(&db));
    assert_eq!(write.attempt(&old_list, FIRST).await.unwrap().unwrap().len(), before);
    drop(failed);
    put(&db, "_design/a", None, r#"{"member_indexes":["kind","x","a","b","c"]}"#).await.unwrap();
    assert!(old_list.commit().await.is_err(), "it knows another list");
    // The same batch has fewer documents now, since each has more entries.
    let anew = begin(&db);
    let written = write.attempt(&anew, FIRST).await.unwrap().unwrap().len();
    anew.commit().await.unwrap();
    assert!(written < before, "{written} of {before}");
    assert_eq!(entries(&db, 1).await.len(), written);
    assert_clean(&db).await;
}

#[tokio::test]
async fn a_renewal_meets_a_builder() {
    let (db, _storage) = database().await;
    fill(&db, 25).await;
    put(&db, "_design/a", None, DEFINES).await.unwrap();
    assert_eq!(step(&db, 1).await, StepOutcome::On);
    let building = begin(&db);
    let mut attempt = Step::new(&db.inner, "db", 1, BuildPace::default());
    attempt.attempt(&building, FIRST).await.unwrap();
    renew(&db.inner.db, &db.inner.options.root, &db.inner.clock).await.unwrap();
    assert!(building.commit().await.is_err(), "it read another epoch");
    assert_clean(&db).await;
    build_all(&db).await;
    assert_eq!(entries(&db, 1).await, recomputed(&db, "kind").await);
    assert_clean(&db).await;
}

/// Returns the channels that each document names, and refuses other users.
struct ByChannels;

impl Judge for ByChannels {
    fn load(&self, _: &Document, _: &str) -> Arc<dyn Rule> {
        Arc::new(ByChannels)
    }

    fn caller(&self) -> u64 {
        0
    }
}

impl Rule for ByChannels {
    fn judge<'a>(&'a self, write: ProposedWrite<'a>) -> BoxFuture<'a, Judgement> {
        let channels = match write.edit.body.get("channels") {
            Some(Value::String(channels)) => channels.split(',').map(str::to_owned).collect(),
            _ => Default::default(),
        };
        Box::pin(async move { Ok(Verdict { channels, ..Verdict::default() }) })
    }
}

#[tokio::test]
async fn what_was_judged_reaches_an_index_at_once_and_by_its_builder() {
    let (layer, authority, _storage) = crate::tests::fenced::layer_judged_by(Some(Arc::new(ByChannels))).await;
    let server = layer.database("db", authority.for_job("test"));
    let db = layer.database("db", crate::tests::fenced::user("anna"));
    put(&server, "_design/judge", None, r#"{"validate_doc_update":"function () {}"}"#).await.unwrap();
    let features = |db: &Database| {
        let db = db.clone();
        async move { resolved(&db.inner, "db").await.unwrap().record.features.clone() }
    };
    put(&db, "silent", None, "{}").await.unwrap();
    assert_eq!(features(&db).await, Vec::<String>::new());
    let old = put(&db, "old", None, r#"{"channels":"b,a"}"#).await.unwrap();
    assert_eq!(features(&db).await, ["verdicts"]);
    put(&server, "servers", None, r#"{"channels":"c"}"#).await.unwrap();
    let design = put(&server, "_design/a", None, r#"{"member_indexes":["@channels"]}"#).await.unwrap();
    put(&db, "new", None, r#"{"channels":"n"}"#).await.unwrap();
    let pair = |value: &str, id: &str| (value.to_owned(), id.to_owned());
    assert_eq!(entries(&db, 1).await, [pair("n", "new")]);
    build_all(&server).await;
    assert_eq!(entries(&db, 1).await, [pair("a,b", "old"), pair("n", "new")]);
    // The channels of a losing leaf hold once it wins: by a deletion, and by a purge.
    let loses = |rev: &str, channels: &'static str| Edit {
        history: Some(vec![rev.parse().unwrap()]),
        ..edit("old", None, channels)
    };
    let lost = format!("1-{}", "0".repeat(32));
    let mut results = db.bulk_update(&[loses(&lost, r#"{"channels":"lost"}"#)]).await.unwrap();
    results.pop().unwrap().unwrap();
    assert_eq!(entries(&db, 1).await, [pair("a,b", "old"), pair("n", "new")]);
    let gone = put(&db, "old", Some(&old), r#"{"_deleted":true}"#).await.unwrap();
    assert_eq!(entries(&db, 1).await, [pair("lost", "old"), pair("n", "new")]);
    server.purge("old", &[lost.parse().unwrap()]).await.unwrap();
    assert_eq!(entries(&db, 1).await, [pair("n", "new")]);
    let again = put(&db, "old", Some(&gone), r#"{"channels":"again"}"#).await.unwrap();
    // A compaction rewrites the records of superseded revisions, and keeps their verdicts.
    put(&db, "old", Some(&again), r#"{"channels":"last"}"#).await.unwrap();
    db.compact().await.unwrap();
    let options = BackgroundOptions::default();
    Background::new(&layer, authority.for_job("background"), options).unwrap().round().await.unwrap();
    let instance = resolved(&db.inner, "db").await.unwrap();
    let record = begin(&db).get(&instance.keys.document("old").revision(&again), true).await.unwrap().unwrap();
    let record = RevisionRecord::decode(&record).unwrap();
    assert!(record.body_dropped && Verdict::decode(record.verdict).channels.contains("again"));
    assert_eq!(entries(&db, 1).await, [pair("last", "old"), pair("n", "new")]);
    put(&server, "_design/a", Some(&design), r#"{"_deleted":true}"#).await.unwrap();
    assert_eq!(features(&db).await, ["verdicts"], "records still have them");
    assert_clean(&db).await;
    // More channels than can be stored.
    let many: Vec<_> = (0..1_001).map(|n| n.to_string()).collect();
    let refused = put(&db, "many", None, &format!(r#"{{"channels":"{}"}}"#, many.join(","))).await;
    assert!(matches!(refused, Err(Error::Refused(Refusal::Forbidden(_)))), "{refused:?}");
}

#[tokio::test]
async fn what_is_prepared_before_a_transaction_is_entered_in_it() {
    let (db, _storage) = database().await;
    fill(&db, 25).await;
    let rev = put(&db, "_design/a", None, r#"{"member_indexes":["^kind"]}"#).await.unwrap();
    let expected = async || recomputed(&db, "^kind").await;
    let texts: Vec<_> = (0..30).map(|n| (format!("e{n:04}"), r#"{"kind":"later"}"#)).collect();
    let edits: Vec<_> = texts.iter().map(|(id, text)| edit(id, None, text)).collect();
    assert!(db.bulk_update(&edits).await.unwrap().iter().all(|outcome| outcome.is_ok()));
    assert_eq!(entries(&db, 1).await.len(), 30);
    build_all(&db).await;
    assert_eq!(entries(&db, 1).await, expected().await);
    // Leaves that win later: one by a deletion, one by a purge.
    let of = |digit: &str| format!("1-{}", digit.repeat(32));
    for digit in ["1", "2"] {
        let body = format!(r#"{{"kind":"loser{digit}"}}"#);
        let history = Some(vec![of(digit).parse().unwrap()]);
        db.update(&Edit { history, ..edit("d0001", None, &body) }).await.unwrap();
    }
    for (value, gone) in [("LOSER2", None), ("LOSER1", Some(of("2")))] {
        let current = db.get("d0001", &GetOptions::default()).await.unwrap().rev;
        match gone {
            None => drop(put(&db, "d0001", Some(&current), r#"{"_deleted":true}"#).await.unwrap()),
            Some(rev) => drop(db.purge("d0001", &[rev.parse().unwrap()]).await.unwrap()),
        }
        assert!(entries(&db, 1).await.contains(&(value.to_owned(), "d0001".to_owned())), "{value}");
        assert_eq!(entries(&db, 1).await, expected().await);
    }
    let edits = [edit("f1", None, r#"{"kind":"all"}"#), edit("f2", None, r#"{"kind":"all"}"#)];
    assert!(db.bulk_update(&edits).await.unwrap().iter().all(|outcome| outcome.is_ok()));
    assert_eq!(entries(&db, 1).await, expected().await);
    // Results for another list are prepared again.
    let instance = resolved(&db.inner, "db").await.unwrap();
    let edits = [edit("g", None, r#"{"kind":"g","n":"x"}"#)];
    let mut batches = prepare(&db.handle, &instance, &edits, &[0]).await.unwrap().batches;
    let (work, preparations) = (Work::new(&db.inner), Preparations::of(&instance));
    preparations.edits(&db.inner, &[&edits[0]]).await.unwrap();
    let (inner, items) = (&db.inner, &mut batches[0]);
    let mut write = WriteBatch {
        inner,
        instance: &instance,
        edits: &edits,
        items,
        attempts: 0,
        work: &work,
        preparations,
        is_shared: false,
    };
    let writing = begin(&db);
    assert!(write.attempt(&writing, FIRST).await.unwrap().is_some());
    let rev = put(&db, "_design/a", Some(&rev), r#"{"member_indexes":["^kind","^n"]}"#).await.unwrap();
    assert!(writing.commit().await.is_err(), "it knows another list");
    assert!(write.attempt(&begin(&db), FIRST).await.unwrap().is_none(), "it is prepared for another list");
    db.update(&edits[0]).await.unwrap();
    assert!(entries(&db, 2).await.contains(&("X".to_owned(), "g".to_owned())));
    build_all(&db).await;
    assert_eq!(entries(&db, 2).await, recomputed(&db, "^n").await);
    assert_clean(&db).await;
    put(&db, "_design/a", Some(&rev), r#"{"member_indexes":["^fails"]}"#).await.unwrap();
    let refused = put(&db, "h", None, "{}").await;
    assert!(matches!(refused, Err(Error::Refused(Refusal::NotJudged { .. }))), "{refused:?}");
    assert_clean(&db).await;
}

#[tokio::test]
async fn an_index_is_built_by_who_has_the_lease() {
    let (db, _storage) = database().await;
    fill(&db, 35).await;
    put(&db, "_design/a", None, DEFINES).await.unwrap();
    // Another process has the lease, has entered some documents, and is gone.
    let leases = RootLeases(db.inner.clone());
    let id = slice_of("db").to_string();
    let gone = [9; 16];
    leases.take(&id, &gone, None).await.unwrap();
    let one = background(&db, Duration::from_millis(500));
    one.start();
    tokio::select! {
        biased;
        () = pass(Duration::from_millis(400)) => {}
        () = until("it is built", async || are_built(&db).await) => panic!("it took a lease that was another's"),
    }
    until("it is built", async || are_built(&db).await).await;
    assert_eq!(entries(&db, 1).await, recomputed(&db, "kind").await);
    // The design document is entered, too.
    until("all are entered", async || db.inner.metrics.index_documents_entered.get() == 36).await;
    // Nothing of the finished work remains.
    let layer = Layer { inner: db.inner.clone() };
    let is_over = async || leases.look(&id).await.unwrap().is_none() && layer.index_builds().is_empty();
    until("nothing is left", is_over).await;
    assert!(check_namespaces(&layer).await.unwrap().is_clean());
    let metrics = &db.inner.metrics;
    until("it is counted", async || (metrics.indexes_built.get(), metrics.index_builds_running.get()) == (1, 0)).await;
    // Failing work is retried, and blocks no other work.
    let rev = db.get("_design/a", &GetOptions::default()).await.unwrap().rev;
    let rev = put(&db, "_design/a", Some(&rev), r#"{"member_indexes":["^fails","n"]}"#).await.unwrap();
    until("the other is built", async || indexes(&db).await.iter().any(|index| index.readable)).await;
    until("it fails again", async || metrics.index_build_failures.get() > 1).await;
    // The index is removed.
    put(&db, "_design/a", Some(&rev), r#"{"member_indexes":["n"]}"#).await.unwrap();
    until("it is built", async || are_built(&db).await).await;
    one.stop().await;
    assert_eq!(entries(&db, 3).await, recomputed(&db, "n").await);
    assert_clean(&db).await;
}

#[tokio::test]
async fn an_index_is_built_as_soon_as_a_process_knows_of_it() {
    let manual = ManualClock::new();
    let (layer, authority, _storage) = layer_at(&manual).await;
    let db = layer.database("db", authority.for_job("test"));
    fill(&db, 35).await;
    let background = Background::new(&layer, actor(&db), BackgroundOptions::default()).unwrap();
    background.start();
    // Two tasks have read the list, and read it again when the clock has moved.
    until("it has looked", async || manual.waiting() == 2).await;
    put(&db, "_design/a", None, DEFINES).await.unwrap();
    until("it is built", async || are_built(&db).await).await;
    background.stop().await;
    let rev = db.get("_design/a", &GetOptions::default()).await.unwrap().rev;
    put(&db, "_design/a", Some(&rev), r#"{"member_indexes":["n"]}"#).await.unwrap();
    assert!(check_namespaces(&layer).await.unwrap().is_clean());
    let trx = begin(&db);
    trx.clear(&db.inner.keys.due(&due::key_of(DueKind::Indexes, "db", 0)));
    trx.commit().await.unwrap();
    let report = check_namespaces(&layer).await.unwrap();
    assert!(report.violations[0].contains("no due work to build"), "{report:#?}");
}

#[tokio::test]
async fn design_documents_that_define_more_than_there_is_room_for_are_counted() {
    let (db, _storage) = database().await;
    let left_out = || db.inner.metrics.design_documents_left_out.get();
    let map = |name: &str, length: usize| format!(r#"{{"fields":{{"{}":"asc"}}}}"#, name.repeat(length));
    // All definitions together may have 60,000 bytes.
    let maps = ["a", "b", "c", "d"].map(|name| map(name, 14_000));
    put(&db, "_design/full", None, &json::design(&maps.each_ref().map(String::as_str))).await.unwrap();
    assert_eq!((indexes(&db).await.len(), left_out()), (4, 0));
    // The document is written, and the log says that its index is not kept.
    let rev = put(&db, "_design/more", None, &json::design(&[&map("e", 5_000)])).await.unwrap();
    assert_eq!((indexes(&db).await.len(), left_out()), (4, 1));
    put(&db, "_design/more", Some(&rev), "{}").await.unwrap();
    put(&db, "_design/none", None, r#"{"language":"query"}"#).await.unwrap();
    assert_eq!((indexes(&db).await.len(), left_out()), (4, 1));
}
