//! Random concurrent work, with and without faults, after which everything is recomputed from the raw keys.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use crate::support::{Layer, Random, Store, all_changes, assert_clean, create, get, put, soon};
use flatbed_layer::json::{Limits, parse};
use flatbed_layer::{
    ChangesQuery, Conflicts, Database, Edit, EditParts, Error, GetOptions, Refusal, RevId, Seq, Since, WaitOutcome,
    WrittenRevision,
};
use flatbed_testkit::{Faults, pass};

trait Bodies {
    fn body(&mut self) -> String;
}

impl Bodies for Random {
    fn body(&mut self) -> String {
        let deleted = self.below(6) == 0;
        let mut members: Vec<String> = if deleted { vec![r#""_deleted":true"#.into()] } else { Vec::new() };
        for _ in 0..self.below(6) {
            let name = format!("f{}", self.below(40));
            if members.iter().any(|member| member.starts_with(&format!("{name:?}"))) {
                continue;
            }
            let value = match self.below(4) {
                0 => format!("{}", self.below(1_000_000)),
                1 => format!("\"{}\"", "x".repeat(self.below(3_000) as usize)),
                2 => format!(r#"[1,{{"g{}":null}}]"#, self.below(20)),
                _ => format!(r#"{{"h":{{"i":{}}}}}"#, self.below(9)),
            };
            members.push(format!("{name:?}:{value}"));
        }
        format!("{{{}}}", members.join(","))
    }
}

type Acknowledged = Arc<Mutex<HashMap<String, Vec<RevId>>>>;

async fn winner(db: &Database, id: &str) -> Option<RevId> {
    let rows = db.all_docs_keys(&[id.to_owned()], false, Conflicts::No).await.expect("read");
    rows.into_iter().next().flatten().map(|row| row.rev)
}

fn note(acknowledged: &Acknowledged, id: &str, rev: RevId) {
    acknowledged.lock().unwrap().entry(id.to_owned()).or_default().push(rev);
}

/// Edits shared documents, which conflict, and one of its own, which must not.
async fn writer(db: Database, number: u64, operations: u64, documents: u64, acknowledged: Acknowledged) {
    let mut random = Random(number * 7_919 + 1);
    let own = format!("own{number}");
    let mut own_rev: Option<RevId> = None;
    for _ in 0..operations {
        let id = format!("d{:03}", random.below(documents));
        match random.below(10) {
            0..4 => {
                let parent = winner(&db, &id).await;
                match put(&db, &id, parent.as_ref(), &random.body()).await {
                    Ok(rev) => note(&acknowledged, &id, rev),
                    Err(Error::Refused(Refusal::Conflict | Refusal::DocumentNotFound(_))) => {}
                    Err(error) => panic!("{id}: {error}"),
                }
            }
            4..7 => {
                let rev = put(&db, &own, own_rev.as_ref(), &random.body()).await;
                let rev = rev.unwrap_or_else(|error| panic!("{own}, which nobody else writes: {error}"));
                note(&acknowledged, &own, rev.clone());
                own_rev = Some(rev);
            }
            7 => {
                let bodies: Vec<(String, String)> =
                    (0..8).map(|_| (format!("d{:03}", random.below(documents)), random.body())).collect();
                let mut edits = Vec::new();
                for (id, body) in &bodies {
                    let parts = EditParts::from_json(
                        parse(body.as_bytes(), &Limits::default()).unwrap(),
                        &flatbed_clock::Clock::system(),
                    )
                    .unwrap();
                    let parent = winner(&db, id).await;
                    edits.push(Edit {
                        expiry: None,
                        id: id.into(),
                        parent,
                        history: None,
                        deleted: parts.deleted,
                        attachments: Vec::new(),
                        body: parts.body,
                    });
                }
                for (edit, result) in edits.iter().zip(db.bulk_update(&edits).await.expect("bulk")) {
                    match result {
                        Ok(WrittenRevision { rev }) => note(&acknowledged, &edit.id, rev),
                        Err(Refusal::Conflict | Refusal::DocumentNotFound(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            _ => {
                let _ = get(&db, &id).await;
            }
        }
    }
}

/// Follows until it reads the last sequence; each row must be later than the one before.
async fn follower(db: Database, until: tokio::sync::watch::Receiver<Option<Seq>>) -> BTreeMap<String, (Seq, RevId)> {
    let mut changes = db.changes(ChangesQuery { since: Since::Beginning, ..ChangesQuery::default() });
    let mut view = BTreeMap::new();
    let mut last: Option<Seq> = None;
    loop {
        let page = changes.next_page().await.expect("a page");
        for row in page.rows {
            assert!(last.is_none_or(|last| last < row.seq), "a feed went back");
            last = Some(row.seq);
            view.insert(row.id, (row.seq, row.rev));
        }
        if page.at_end {
            if until.borrow().is_some_and(|until| page.last_seq >= until.into()) {
                return view;
            }
            tokio::select! {
                waited = changes.wait() => assert_eq!(waited, WaitOutcome::MayHaveChanged),
                () = pass(std::time::Duration::from_millis(100)) => {}
            }
        }
    }
}

/// Runs random work on all layers. Afterwards no acknowledged edit may be missing or exist twice.
async fn work(layers: &[Layer], run_bytes: Option<u32>, writers: u64, operations: u64, documents: u64) {
    let db = create(&layers[0], "db", run_bytes).await;
    let acknowledged = Acknowledged::default();
    let (done, until) = tokio::sync::watch::channel(None);
    let at = |number: u64| layers[number as usize % layers.len()].database("db");
    let followers: Vec<_> = (0..3).map(|number| tokio::spawn(follower(at(number), until.clone()))).collect();
    let tasks: Vec<_> = (0..writers)
        .map(|number| tokio::spawn(writer(at(number), number, operations, documents, acknowledged.clone())))
        .collect();
    for task in tasks {
        task.await.expect("a writer");
    }
    done.send_replace(Some(db.update_seq().await.expect("the last sequence")));
    assert_clean(&layers[0], &db).await;
    let mut expected = BTreeMap::new();
    for row in all_changes(&db).await {
        expected.insert(row.id, (row.seq, row.rev));
    }
    for follower in followers {
        assert_eq!(soon(follower).await.expect("a follower"), expected);
    }
    let acknowledged = acknowledged.lock().unwrap().clone();
    for (id, revs) in acknowledged {
        let rev = winner(&db, &id).await;
        let options = GetOptions { rev, revs: true, no_body: true, ..GetOptions::default() };
        let line = db.get(&id, &options).await.expect("the document").revisions.expect("its line");
        let (found, said) = (line.iter().collect::<HashSet<_>>(), revs.iter().collect::<HashSet<_>>());
        assert_eq!(said.len(), revs.len(), "{id}: a revision was acknowledged twice");
        assert_eq!(found, said, "{id}: what is there is not what was acknowledged");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_work_at_two_servers() {
    let store = Store::new();
    let layers = [store.layer().await, store.layer().await];
    work(&layers, None, 16, 60, 30).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_work_in_the_seeds_layout() {
    let store = Store::new();
    let layers = [store.layer().await, store.layer().await];
    work(&layers, Some(0), 12, 40, 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_work_with_shards() {
    let store = Store::new().sharded(4);
    let layers = [store.layer().await, store.layer().await];
    work(&layers, None, 16, 60, 30).await;
}

/// Returns the probabilities and seeds of the runs: the test's own, or those up to the probability and from the seed in
/// the environment's `FLATBED_TEST_FAULTS=PROBABILITY,SEED`.
fn faults(probability: f64, seeds: std::ops::Range<u64>) -> Vec<(f64, u64)> {
    let given = Faults::given();
    let with = |seed: u64| match given {
        None => (probability, seed),
        Some((most, first)) => {
            let seed = first.wrapping_add(seed - seeds.start);
            (most * (1 + Random(seed).below(6)) as f64 / 6.0, seed)
        }
    };
    seeds.clone().map(with).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_work_under_faults() {
    for (probability, seed) in faults(0.1, 0..4) {
        println!("faults: probability {probability:.3}, seed {seed}");
        let Some(store) = Store::with_faults(probability, seed) else { return };
        let store = if seed % 4 > 1 { store.sharded(4) } else { store };
        let layers = [store.layer().await, store.layer().await];
        work(&layers, if seed % 2 == 0 { None } else { Some(0) }, 8, 30, 10).await;
        let metrics = layers.each_ref().map(|layer| layer.metrics()).concat();
        let count = |name| flatbed_metrics::total(&metrics, name);
        assert!(count("flatbed_retries") > 0, "no faults were injected");
        assert!(count("flatbed_unknown_results") > 0 || probability < 0.1, "no faults were injected into commits");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn databases_and_large_bodies_under_faults() {
    for (probability, seed) in faults(0.2, 10..14) {
        println!("faults: probability {probability:.3}, seed {seed}");
        let Some(store) = Store::with_faults(probability, seed) else { return };
        let layer = store.layer().await;
        for round in 0..6 {
            // After an unknown result the retry of a creation must not report that the database exists.
            let db = create(&layer, "db", None).await;
            let large = format!(r#"{{"round":{round},"text":"{}"}}"#, "é".repeat(600_000));
            let first = put(&db, "large", None, &large).await.unwrap();
            put(&db, "large", Some(&first), r#"{"small":true}"#).await.unwrap();
            let old = GetOptions { rev: Some(first), ..GetOptions::default() };
            assert_eq!(db.get("large", &old).await.unwrap().body.len() + 2, large.len());
            assert_clean(&layer, &db).await;
            layer.delete_database("db").await.unwrap();
        }
    }
}

/// The checker runs beside writers that add names of fields, and must find no fault at any moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn checks_beside_writers() {
    let store = Store::new();
    let layers = [store.layer().await, store.layer().await];
    create(&layers[0], "db", None).await;
    let writers: Vec<_> = (0..6)
        .map(|writer| {
            let db = layers[writer % 2].database("db");
            tokio::spawn(async move {
                for n in 0..300 {
                    let body = format!(r#"{{"w{writer}n{n}":{{"x{writer}{}":1}}}}"#, n % 7);
                    put(&db, &format!("{n}-{writer}"), None, &body).await.unwrap();
                }
            })
        })
        .collect();
    // Another server, whose cached names are those of its start.
    let checked = store.layer().await.database("db");
    while !writers.iter().all(tokio::task::JoinHandle::is_finished) {
        let report = flatbed_layer::check::check_database(&checked, |_| {}).await.expect("checked");
        assert!(report.is_clean(), "{report:#?}");
    }
    for writer in writers {
        writer.await.expect("a writer");
    }
    assert_clean(&layers[0], &layers[0].database("db")).await;
}
