//! Small writes that arrive together are committed together, each as if it were alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::{Layer, Random, Store, assert_clean, create, get, put, soon};
use flatbed_layer::json::{Limits, parse};
use flatbed_layer::{
    Database, Document, Edit, Error, GetOptions, Judge, Judgement, LayerOptions, ProposedWrite, Refusal, Result, RevId,
    Rule, Verdict, WrittenRevision, waits,
};
use flatbed_testkit::pass;
use futures_util::future::{BoxFuture, join_all};
use tokio::task::unconstrained;

const WRITERS: usize = 100;

fn id(number: usize) -> String {
    format!("d{number:03}")
}

/// Opens a server that runs four transactions of single writes at once.
async fn four(store: &Store) -> Layer {
    store.layer_with(LayerOptions { single_writes_at_once: Some(4), ..LayerOptions::default() }).await
}

/// Runs writes at once, and returns their results and the number of commits. All of them arrive before any ends,
/// because the task that polls them does not yield to the runtime in between.
async fn at_once<T>(writes: impl IntoIterator<Item = impl Future<Output = T>>) -> (Vec<T>, u64) {
    let (done, counted) = soon(waits::count(unconstrained(join_all(writes)))).await;
    (done, counted.commits)
}

async fn increment(db: &Database, id: &str) -> Result<RevId> {
    let found = db.get(id, &GetOptions::default()).await?;
    let n: u64 = number(&found.body);
    put(db, id, Some(&found.rev), &format!(r#"{{"n":{}}}"#, n + 1)).await
}

fn number(body: &[u8]) -> u64 {
    std::str::from_utf8(body).unwrap().trim_start_matches(r#""n":"#).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_that_come_together_take_few_transactions() {
    let store = Store::new();
    let layer = four(&store).await;
    let db = create(&layer, "db", None).await;
    put(&db, "first", None, r#"{"n":0}"#).await.unwrap();
    let ids: Vec<String> = (0..WRITERS).map(id).collect();
    let (written, commits) = at_once(ids.iter().map(|id| put(&db, id, None, r#"{"n":1}"#))).await;
    assert!(written.iter().all(|rev| rev.is_ok()), "{written:?}");
    // The first ones, which do not wait, and a few more.
    assert!(commits < 15, "{commits}");
    let edits = ids.iter().zip(&written).map(|(id, rev)| put(&db, id, rev.as_ref().ok(), r#"{"n":2}"#));
    let (edited, commits) = at_once(edits).await;
    assert!(edited.iter().all(|rev| rev.is_ok()), "{edited:?}");
    assert!(commits < 15, "{commits}");
    for (id, rev) in ids.iter().zip(edited) {
        let found = db.get(id, &GetOptions::default()).await.unwrap();
        assert_eq!((found.rev, number(&found.body)), (rev.unwrap(), 2));
    }
    // A single client does not wait.
    let (_, counted) = waits::count(async {
        for at in 0..10 {
            put(&db, &format!("alone{at}"), None, "{}").await.unwrap();
        }
    })
    .await;
    assert_eq!((counted.commits, counted.transactions), (10, 10));
    assert_clean(&layer, &db).await;
}

struct NotBob;

impl Judge for NotBob {
    fn load(&self, _: &Document, _: &str) -> Arc<dyn Rule> {
        Arc::new(NotBob)
    }

    fn caller(&self) -> u64 {
        0
    }
}

impl Rule for NotBob {
    fn judge<'a>(&'a self, write: ProposedWrite<'a>) -> BoxFuture<'a, Judgement> {
        let (id, is_bob) = (write.edit.id.to_string(), write.user.name.as_deref() == Some("bob"));
        Box::pin(async move { if is_bob { Err(Refusal::Forbidden(id)) } else { Ok(Verdict::default()) } })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_is_refused_for_itself() {
    let store = Store::new();
    let layer = store.layer_judged_by(NotBob).await;
    let own = create(&layer, "db", None).await;
    put(&own, "_design/v", None, r#"{"validate_doc_update":"function () {}"}"#).await.unwrap();
    put(&own, "first", None, r#"{"n":0}"#).await.unwrap();
    let (anna, bob) = (layer.written_by("db", "anna"), layer.written_by("db", "bob"));
    let nobodys: RevId = "1-967a00dff5e02add41819138abb3284d".parse().unwrap();
    let write = |at: usize| {
        let (db, nobodys) = ([&anna, &bob, &anna, &own][at % 4].clone(), nobodys.clone());
        async move {
            match at % 4 {
                2 => {
                    put(&db, &id(at), None, r#"{"n":0}"#).await.unwrap();
                    put(&db, &id(at), Some(&nobodys), r#"{"n":1}"#).await
                }
                _ => put(&db, &id(at), None, r#"{"n":1}"#).await,
            }
        }
    };
    let (written, commits) = at_once((0..WRITERS).map(write)).await;
    assert!(commits < 2 * WRITERS as u64, "{commits}");
    for (at, result) in written.into_iter().enumerate() {
        match (at % 4, result) {
            (0 | 3, Ok(rev)) => assert_eq!(own.get(&id(at), &GetOptions::default()).await.unwrap().rev, rev),
            (1, Err(Error::Refused(Refusal::Forbidden(of)))) => {
                assert_eq!(of, id(at));
                assert!(matches!(get(&own, &id(at)).await, Err(Error::Refused(Refusal::DocumentNotFound(_)))));
            }
            (2, Err(Error::Refused(Refusal::Conflict))) => assert_eq!(get(&own, &id(at)).await.unwrap(), r#"{"n":0}"#),
            (_, result) => panic!("{at}: {result:?}"),
        }
    }
    assert_clean(&layer, &own).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_edits_of_one_document_one_is_made_after_the_other() {
    let store = Store::new();
    let layer = four(&store).await;
    let db = create(&layer, "db", None).await;
    let first = put(&db, "hot", None, r#"{"n":0}"#).await.unwrap();
    // All on the same revision: all but one are refused, and soon.
    let bodies: Vec<String> = (1..=WRITERS).map(|n| format!(r#"{{"n":{n}}}"#)).collect();
    let (done, commits) = at_once(bodies.iter().map(|body| put(&db, "hot", Some(&first), body))).await;
    let made: Vec<&RevId> = done.iter().filter_map(|rev| rev.as_ref().ok()).collect();
    let is_refused = |rev: &&Result<RevId>| matches!(rev, Err(Error::Refused(Refusal::Conflict)));
    assert_eq!((made.len(), done.iter().filter(is_refused).count()), (1, WRITERS - 1));
    assert!(commits < 8, "{commits}");
    assert_eq!(&db.get("hot", &GetOptions::default()).await.unwrap().rev, made[0]);
    // Other documents are written meanwhile.
    put(&db, "count", None, r#"{"n":0}"#).await.unwrap();
    let writers = (0..8).map(|at| {
        let db = db.clone();
        tokio::spawn(async move {
            let mut rev = put(&db, &id(at), None, r#"{"n":0}"#).await.unwrap();
            for n in 1..=10 {
                while increment(&db, "count").await.is_err() {}
                rev = put(&db, &id(at), Some(&rev), &format!(r#"{{"n":{n}}}"#)).await.expect("nobody else writes it");
            }
        })
    });
    soon(join_all(writers)).await.into_iter().for_each(|done| done.unwrap());
    assert_eq!(get(&db, "count").await.unwrap(), r#"{"n":80}"#);
    assert_clean(&layer, &db).await;
}

/// A client that computes the revision of its edit need not wait for it before the next edit.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_edit_goes_into_the_transaction_after() {
    let store = Store::new();
    let options = LayerOptions { single_writes_at_once: Some(1), ..LayerOptions::default() };
    let layer = store.layer_with(options).await;
    let (model, db) = (create(&layer, "model", None).await, create(&layer, "db", None).await);
    let mut revs: Vec<RevId> = Vec::new();
    for n in 0..4 {
        revs.push(put(&model, "d", revs.last(), &format!(r#"{{"n":{n}}}"#)).await.unwrap());
    }
    assert_eq!(put(&db, "d", None, r#"{"n":0}"#).await.unwrap(), revs[0]);
    // The first one is running when the others arrive.
    let first = put(&db, "other", None, r#"{"n":0}"#);
    let edit = |n: usize| {
        let (db, parent) = (db.clone(), revs[n - 1].clone());
        async move { put(&db, "d", Some(&parent), &format!(r#"{{"n":{n}}}"#)).await.unwrap() }
    };
    let (first, one, two, three) = soon(futures_util::future::join4(first, edit(1), edit(2), edit(3))).await;
    assert_eq!((first.is_ok(), &[one, two, three][..]), (true, &revs[1..]));
    assert_clean(&layer, &db).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_with_many_leaves_goes_alone() {
    let store = Store::new();
    let layer = four(&store).await;
    let db = create(&layer, "db", None).await;
    let leaf = |at: usize| Edit {
        expiry: None,
        id: "wide".into(),
        parent: None,
        history: Some(vec![format!("1-{at}").parse().unwrap()]),
        deleted: false,
        attachments: Vec::new(),
        body: parse(br#"{"n":1}"#, &Limits::default()).unwrap(),
    };
    let leaves: Vec<_> = (0..150).map(leaf).collect();
    assert!(db.bulk_update(&leaves).await.unwrap().iter().all(|outcome| outcome.is_ok()));
    let wide = db.get("wide", &GetOptions::default()).await.unwrap().rev;
    let ids: Vec<String> = (0..WRITERS).map(id).collect();
    let writes = ids.iter().map(|id| match id.ends_with('7') {
        true => put(&db, "wide", Some(&wide), r#"{"n":2}"#),
        false => put(&db, id, None, r#"{"n":1}"#),
    });
    let (done, _) = at_once(writes.map(|write| Box::pin(write) as BoxFuture<'_, Result<RevId>>)).await;
    let refused = done.iter().filter(|rev| matches!(rev, Err(Error::Refused(Refusal::Conflict)))).count();
    assert_eq!((refused, done.iter().filter(|rev| rev.is_ok()).count()), (9, WRITERS - 9));
    assert_clean(&layer, &db).await;
}

/// Small edits of documents with large bodies, which each edit moves: a write behind many of them waits for one
/// transaction, not for one for each two of them.
#[tokio::test(flavor = "multi_thread")]
async fn who_comes_behind_large_documents_waits_for_one_transaction() {
    let store = Store::new();
    let options = LayerOptions { single_writes_at_once: Some(1), ..LayerOptions::default() };
    let layer = store.layer_with(options).await;
    let db = create(&layer, "db", None).await;
    for body_bytes in [300_000, 30_000] {
        let large = format!(r#"{{"n":1,"text":"{}"}}"#, "x".repeat(body_bytes));
        let ids: Vec<String> = (0..60).map(|at| format!("{body_bytes}-{at}")).collect();
        let mut revs = Vec::new();
        for id in &ids {
            revs.push(put(&db, id, None, &large).await.unwrap());
        }
        // Writes that go alone do so beside it.
        let joint = || flatbed_metrics::total(&layer.metrics(), "flatbed_joint_commits");
        let before = joint();
        let edits = ids.iter().zip(&revs).map(|(id, rev)| put(&db, id, Some(rev), r#"{"n":2}"#));
        let behind = format!("behind {body_bytes}");
        let waits = async {
            // All others have arrived.
            tokio::task::yield_now().await;
            put(&db, &behind, None, r#"{"n":1}"#).await.unwrap();
            joint() - before
        };
        let (edited, waited) = soon(futures_util::future::join(join_all(edits), waits)).await;
        assert!(edited.iter().all(|rev| rev.is_ok()), "{edited:?}");
        assert!(waited <= 1, "{body_bytes}: {waited} joint transactions before it");
    }
    assert_clean(&layer, &db).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_goes_away_takes_nobody_along() {
    let store = Store::new();
    let layer = four(&store).await;
    let db = create(&layer, "db", None).await;
    put(&db, "first", None, r#"{"n":0}"#).await.unwrap();
    let mut random = Random(11);
    for round in 0..20 {
        let name = |at: usize| format!("{round}-{at}");
        let tasks: Vec<_> = (0..40)
            .map(|at| {
                let (db, id) = (db.clone(), name(at));
                tokio::spawn(async move { put(&db, &id, None, r#"{"n":1}"#).await })
            })
            .collect();
        // The first ones are those that do not wait.
        pass(Duration::from_micros(random.below(1_500))).await;
        tasks.iter().step_by(3).for_each(|task| task.abort());
        for (at, task) in tasks.into_iter().enumerate() {
            match soon(task).await {
                Ok(rev) => {
                    assert_eq!(db.get(&name(at), &GetOptions::default()).await.unwrap().rev, rev.unwrap());
                }
                Err(gone) => assert!(at % 3 == 0 && gone.is_cancelled(), "{gone}"),
            }
        }
    }
    // No write is left that delays others.
    let (_, counted) = waits::count(put(&db, "alone", None, "{}")).await;
    assert_eq!((counted.transactions, counted.commits), (1, 1));
    assert_clean(&layer, &db).await;
}

/// Writers at two servers under faults, some of which are dropped: each acknowledged write exists once, each refused
/// one does not.
async fn torture(seed: u64) {
    let Some(store) = Store::with_faults(0.03, seed) else { return };
    let layers = [four(&store).await, four(&store).await];
    let db = create(&layers[0], "db", None).await;
    const COUNTERS: u64 = 5;
    for at in 0..COUNTERS {
        put(&db, &format!("c{at}"), None, r#"{"n":0}"#).await.unwrap();
    }
    let (made, unknown): (Arc<[AtomicU64; 5]>, Arc<[AtomicU64; 5]>) = Default::default();
    let writers = (0..40_u64).map(|at| {
        let (db, made, unknown) = (layers[(at % 2) as usize].database("db"), made.clone(), unknown.clone());
        tokio::spawn(async move {
            let mut random = Random(seed << 8 | at);
            let own = format!("own{at}");
            let mut rev = put(&db, &own, None, r#"{"n":0}"#).await.expect("nobody else writes it");
            for n in 1..12 {
                rev = put(&db, &own, Some(&rev), &format!(r#"{{"n":{n}}}"#)).await.expect("nobody else writes it");
                let counter = random.below(COUNTERS) as usize;
                let name = format!("c{counter}");
                let Ok(found) = db.get(&name, &GetOptions::default()).await else { continue };
                let body = format!(r#"{{"n":{}}}"#, number(&found.body) + 1);
                let write = put(&db, &name, Some(&found.rev), &body);
                let patience = if random.below(4) == 0 { random.below(20_000) } else { 60_000_000 };
                match tokio::time::timeout(Duration::from_micros(patience), write).await {
                    Ok(Ok(_)) => made[counter].fetch_add(1, Ordering::Relaxed),
                    Ok(Err(Error::Refused(Refusal::Conflict))) => 0,
                    Ok(Err(error)) => panic!("{name}: {error}"),
                    Err(_) => unknown[counter].fetch_add(1, Ordering::Relaxed),
                };
            }
            (own, rev)
        })
    });
    for written in soon(join_all(writers)).await {
        let (own, rev) = written.unwrap();
        let found = db.get(&own, &GetOptions { revs: true, ..GetOptions::default() }).await.unwrap();
        // Written twelve times, and none of them twice.
        assert_eq!((found.rev, found.revisions.map_or(0, |revs| revs.len())), (rev, 12), "{own}");
    }
    // A dropped write may still be committed.
    pass(Duration::from_millis(100)).await;
    for counter in 0..COUNTERS as usize {
        let found = db.get(&format!("c{counter}"), &GetOptions::default()).await.unwrap();
        let (n, made) = (number(&found.body), made[counter].load(Ordering::Relaxed));
        let most = made + unknown[counter].load(Ordering::Relaxed);
        assert!((made..=most).contains(&n), "counter {counter}: {n}, not {made} to {most}");
        assert_eq!(found.rev.generation(), n + 1);
    }
    assert_clean(&layers[0], &db).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_acknowledged_is_there_once_under_faults() {
    for seed in [1, 2, 3] {
        torture(seed).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_database_is_for_itself_and_one_that_goes_takes_its_own() {
    let store = Store::new();
    let layer = four(&store).await;
    let (kept, gone) = (create(&layer, "kept", None).await, create(&layer, "gone", None).await);
    let mut tasks = Vec::new();
    for at in 0..WRITERS {
        for db in [&kept, &gone] {
            let db = db.clone();
            tasks.push(tokio::spawn(async move {
                let edit = Edit {
                    expiry: None,
                    id: id(at).into(),
                    parent: None,
                    history: None,
                    deleted: false,
                    attachments: Vec::new(),
                    body: parse(br#"{"n":1}"#, &Limits::default()).unwrap(),
                };
                (db.name().to_owned(), db.update(&edit).await)
            }));
        }
    }
    layer.delete_database("gone").await.unwrap();
    for task in tasks {
        match soon(task).await.unwrap() {
            (name, Err(Error::DatabaseNotFound)) => assert_eq!(name, "gone"),
            (_, result) => assert!(matches!(result, Ok(WrittenRevision { .. })), "{result:?}"),
        }
    }
    assert_eq!(kept.info().await.unwrap().doc_count, WRITERS as u64);
    assert_clean(&layer, &kept).await;
}
