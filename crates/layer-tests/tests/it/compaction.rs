//! Removal of bodies of revisions that are not leaves, of purged leaves, and of purged documents.

use crate::support::*;
use flatbed_layer::check::check_database;
use flatbed_layer::json::{Limits, parse};
use flatbed_layer::{CreateOptions, Database, Edit, EditParts, Error, GetOptions, Refusal, RevId};
use flatbed_testkit::until;

async fn replicate(db: &Database, id: &str, path: &str, body: &str) -> RevId {
    let history: Vec<RevId> = path.split(' ').map(|rev| rev.parse().unwrap()).collect();
    let parts =
        EditParts::from_json(parse(body.as_bytes(), &Limits::default()).unwrap(), &flatbed_clock::Clock::system())
            .unwrap();
    let edit = Edit {
        expiry: None,
        id: id.into(),
        parent: None,
        history: Some(history),
        deleted: parts.deleted,
        attachments: Vec::new(),
        body: parts.body,
    };
    db.update(&edit).await.unwrap().rev
}

fn fill(size: usize) -> String {
    format!(r#"{{"fill":"{}"}}"#, "x".repeat(size))
}

async fn compact(db: &Database) {
    db.compact().await.unwrap();
    until("it is compacted", async || !db.info().await.unwrap().is_compacting).await;
}

async fn is_available(db: &Database, id: &str, rev: &RevId) -> bool {
    db.get(id, &GetOptions { rev: Some(rev.clone()), ..GetOptions::default() }).await.is_ok()
}

#[tokio::test]
async fn compaction_drops_what_is_no_leaf_and_nothing_else() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let mut old = Vec::new();
    for number in 0..60 {
        let id = format!("d{number:02}");
        // Some bodies in rows, others in blobs.
        let size = if number % 20 == 0 { 450_000 } else { 2_000 };
        let first = put(&db, &id, None, &fill(size)).await.unwrap();
        let second = put(&db, &id, Some(&first), &fill(size)).await.unwrap();
        replicate(&db, &id, &format!("2-a {first}"), &fill(size)).await;
        old.push((id, first, second));
    }
    let before = db.info().await.unwrap();
    assert!(before.superseded_size_bytes > before.active_size_bytes / 4);
    let seq = db.update_seq().await.unwrap();
    compact(&db).await;
    for (id, first, second) in &old {
        assert!(!is_available(&db, id, first).await);
        assert!(is_available(&db, id, second).await && is_available(&db, id, &"2-a".parse().unwrap()).await);
        let options = GetOptions { revs_info: true, ..GetOptions::default() };
        let line = db.get(id, &options).await.unwrap().revs_info.unwrap();
        assert_eq!(line.iter().map(|(_, is_there)| *is_there).collect::<Vec<_>>(), [true, false]);
    }
    let after = db.info().await.unwrap();
    assert_eq!((after.superseded_size_bytes, db.update_seq().await.unwrap()), (0, seq));
    assert!(after.active_size_bytes < before.active_size_bytes * 3 / 4);
    assert_clean(&layer, &db).await;
}

/// The compaction frees what the checker has already counted, and no sequence changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_during_a_compaction_compares_no_sums() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    for number in 0..10 {
        let id = format!("d{number}");
        let first = put(&db, &id, None, &fill(2_000)).await.unwrap();
        put(&db, &id, Some(&first), &fill(2_000)).await.unwrap();
    }
    let during = |_| tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(compact(&db)));
    let report = check_database(&db, during).await.unwrap();
    assert!(report.is_clean() && !report.sums_compared, "{report:#?}");
    assert_clean(&layer, &db).await;
}

#[tokio::test]
async fn a_database_may_keep_leaves_only() {
    let store = Store::new();
    let layer = store.layer().await;
    let options = CreateOptions { leaves_only: true, ..CreateOptions::default() };
    layer.create_database("db", &options).await.unwrap();
    let db = layer.database("db");
    for size in [100, 450_000] {
        let id = format!("d{size}");
        let first = put(&db, &id, None, &fill(size)).await.unwrap();
        let loser = replicate(&db, &id, "1-0", &fill(size)).await;
        put(&db, &id, Some(&first), &fill(size)).await.unwrap();
        delete(&db, &id, &loser).await.unwrap();
        assert!(!is_available(&db, &id, &first).await && !is_available(&db, &id, &loser).await);
    }
    assert_eq!(db.info().await.unwrap().superseded_size_bytes, 0);
    assert_clean(&layer, &db).await;
}

#[tokio::test]
async fn purged_leaves_and_documents_are_gone() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    for (id, size) in [("small", 100), ("large", 450_000)] {
        for path in ["3-c 2-b 1-a", "3-d 2-b 1-a", "2-e 1-a"] {
            replicate(&db, id, path, &fill(size)).await;
        }
        let second = replicate(&db, id, "4-f 3-c 2-b 1-a", &fill(size)).await;
        assert_clean(&layer, &db).await;
        // The winner is purged, with the data that only it had below it.
        assert_eq!(db.purge(id, &["4-f".parse().unwrap(), "2-b".parse().unwrap()]).await.unwrap(), [second]);
        let shown = db.get(id, &GetOptions { revs: true, conflicts: true, ..GetOptions::default() }).await.unwrap();
        assert_eq!((shown.rev.to_string().as_str(), shown.conflicts.map(|c| c.len())), ("3-d", Some(1)));
        assert!(!is_available(&db, id, &"3-c".parse().unwrap()).await);
        let missing =
            db.missing_revs(&[(id.into(), vec!["3-c".parse().unwrap(), "2-b".parse().unwrap()])]).await.unwrap();
        assert_eq!(missing[0].0, ["3-c".parse::<RevId>().unwrap()]);
        assert_clean(&layer, &db).await;
        let left: Vec<RevId> = ["3-d", "2-e"].map(|rev| rev.parse().unwrap()).into();
        assert_eq!(db.purge(id, &left).await.unwrap().len(), 2);
        assert!(matches!(get(&db, id).await, Err(Error::Refused(Refusal::DocumentNotFound(_)))));
        assert_clean(&layer, &db).await;
    }
    let info = db.info().await.unwrap();
    assert_eq!((info.doc_count, info.doc_del_count, info.active_size_bytes, info.purge_seq), (0, 0, 0, 4));
    assert_eq!(all_changes(&db).await.len(), 0);
    put(&db, "small", None, "{}").await.unwrap();
    assert_clean(&layer, &db).await;
}

/// Two servers that compact at the same time subtract the freed bytes from the counters once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn compactions_of_two_servers_count_what_goes_once() {
    let store = Store::new();
    let layers = [store.layer().await, store.layer().await];
    let db = create(&layers[0], "db", None).await;
    let other = layers[1].database("db");
    for round in 0..6 {
        for number in 0..40 {
            let id = format!("r{round}d{number:02}");
            let first = put(&db, &id, None, &fill(2_000)).await.unwrap();
            put(&db, &id, Some(&first), &fill(2_000)).await.unwrap();
        }
        tokio::join!(compact(&db), compact(&other));
        assert_clean(&layers[0], &db).await;
        assert_eq!(db.info().await.unwrap().superseded_size_bytes, 0);
    }
}

/// The keys of the dropped data of 25 documents exceed one transaction.
#[tokio::test]
async fn a_compaction_takes_as_many_transactions_as_it_needs() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    // A NUL takes two bytes in a key.
    let ids: Vec<String> = (0..25).map(|number| format!("{}{number:02}", "\0".repeat(2_046))).collect();
    for generation in 1..=36_u64 {
        let path = (1..=generation).rev().take(2).map(|at| format!("{at}-a").parse().unwrap());
        let path: Vec<RevId> = path.collect();
        let edit = |id: &String| Edit {
            expiry: None,
            id: id.clone().into(),
            parent: None,
            history: Some(path.clone()),
            deleted: false,
            attachments: Vec::new(),
            body: parse(b"{}", &Limits::default()).unwrap(),
        };
        let edits: Vec<_> = ids.iter().map(edit).collect();
        assert!(db.bulk_update(&edits).await.unwrap().iter().all(|result| result.is_ok()));
    }
    assert!(db.info().await.unwrap().superseded_size_bytes > 0);
    compact(&db).await;
    assert_eq!(db.info().await.unwrap().superseded_size_bytes, 0);
    assert_clean(&layer, &db).await;
}

#[tokio::test]
async fn where_a_documents_present_life_began() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let born = async |id: &str| {
        let document = db.get(id, &GetOptions { born: true, ..GetOptions::default() }).await.unwrap();
        document.born.unwrap()
    };
    let first = put(&db, "d", None, r#"{"n":1}"#).await.unwrap();
    assert_eq!(born("d").await, first);
    let second = put(&db, "d", Some(&first), r#"{"n":2}"#).await.unwrap();
    assert_eq!(born("d").await, first);
    let gone = delete(&db, "d", &second).await.unwrap();
    let again = put(&db, "d", None, r#"{"n":3}"#).await.unwrap();
    assert_eq!((gone.generation(), born("d").await), (3, again.clone()));
    let changed = put(&db, "d", Some(&again), r#"{"n":4}"#).await.unwrap();
    assert_eq!(born("d").await, again);
    compact(&db).await;
    assert_eq!(born("d").await, again);
    // Only a request for it returns it, and an older revision has its own.
    let older = GetOptions { rev: Some(changed), ..GetOptions::default() };
    assert_eq!(db.get("d", &older).await.unwrap().born, None);

    // A replicated revision whose missing parent could be a tombstone counts as created again.
    let [a, b, c] = ["a", "b", "c"].map(|of| of.repeat(32));
    replicate(&db, "r", &format!("1-{a}"), r#"{"n":1}"#).await;
    replicate(&db, "r", &format!("3-{c} 2-{b} 1-{a}"), r#"{"n":3}"#).await;
    assert_eq!(born("r").await.to_string(), format!("1-{a}"));
    replicate(&db, "other", &format!("3-{c} 2-{b} 1-{a}"), r#"{"n":3}"#).await;
    let plain = delete(&db, "other", &format!("3-{c}").parse().unwrap()).await.unwrap();
    replicate(&db, "r", &format!("5-{a} {plain} 3-{c} 2-{b} 1-{a}"), r#"{"n":5}"#).await;
    assert_eq!(born("r").await.to_string(), format!("5-{a}"));
    // A stored tombstone with members counts as one.
    replicate(&db, "m", &format!("1-{a}"), "{}").await;
    replicate(&db, "m", &format!("2-{b} 1-{a}"), r#"{"_deleted":true,"by":"anna"}"#).await;
    replicate(&db, "m", &format!("3-{c} 2-{b} 1-{a}"), "{}").await;
    assert_eq!(born("m").await.to_string(), format!("3-{c}"));
    assert_clean(&layer, &db).await;
}
