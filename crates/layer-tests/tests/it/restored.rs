//! Restores beside open layers and into younger clusters: no server writes from an old cache, and an interrupted
//! renewal resumes.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::Duration;

use crate::support::{
    Layer, Store, all_changes, assert_clean, change, create, delete, get, put, put_back, snapshot, soon, update_names,
};
use flatbed_layer::json::{Limits, parse};
use flatbed_layer::renew::{RenewalReport, renew};
use flatbed_layer::{
    Changes, ChangesQuery, Database, Edit, EditParts, Error, FollowOutcome, LayerOptions, Refusal, Seq, Since,
};
use foundationdb::tuple::{Bytes, Element, pack, unpack};
use futures_util::FutureExt;

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

/// Runs a renewal, and kills it after this many transactions; `None` if it was killed.
async fn renew_for(store: &Store, transactions: usize) -> Option<RenewalReport> {
    let mut left = transactions;
    let killed = |_: u64| {
        left -= 1;
        if left == 0 {
            resume_unwind(Box::new(()));
        }
    };
    let renewed = AssertUnwindSafe(renew(&store.fdb, &store.root, false, killed)).catch_unwind().await;
    renewed.ok().map(|renewed| renewed.expect("renewed"))
}

async fn renewed(store: &Store) -> RenewalReport {
    renew(&store.fdb, &store.root, false, |_| {}).await.expect("renewed")
}

async fn open(store: &Store) -> Result<Layer, Error> {
    Layer::open(store.fdb.clone(), LayerOptions { root: store.root.clone(), ..LayerOptions::default() }).await
}

fn ids(rows: &[flatbed_layer::ChangeRow]) -> Vec<String> {
    rows.iter().map(|row| row.id.clone()).collect()
}

/// Returns the number of rows of a feed behind a sequence.
async fn after(db: &Database, seq: Seq) -> usize {
    let mut changes = db.changes(ChangesQuery { since: Since::after(seq), ..ChangesQuery::default() });
    let mut rows = 0;
    loop {
        let page = changes.next_page().await.expect("a page");
        rows += page.rows.len();
        if page.at_end {
            return rows;
        }
    }
}

/// Opens two servers with a database, and takes a backup of it.
async fn two_servers() -> (Store, [Layer; 2], Rows) {
    let store = Store::new();
    let layers = [store.layer().await, store.layer().await];
    let db = create(&layers[0], "db", None).await;
    put(&db, "first", None, r#"{"known":{"a":1}}"#).await.unwrap();
    for layer in &layers {
        get(&layer.database("db"), "first").await.unwrap();
    }
    let backup = snapshot(&store).await;
    (store, layers, backup)
}

#[tokio::test]
async fn names_that_the_restored_mapping_lacks_are_not_written_by_their_old_ids() {
    let (store, layers, backup) = two_servers().await;
    let body =
        |layer: usize, n: usize| format!(r#"{{"known":{{"a":{n},"new{n}":true}},"of{layer}":{{"new{n}":[{n}]}}}}"#);
    let write = async |phase: &str| {
        let mut written = Vec::new();
        for n in 0..20 {
            // Another order each time, so that an old id now belongs to another name.
            let n = if phase == "lost" { n } else { 19 - n };
            for (at, layer) in layers.iter().enumerate() {
                let (id, body) = (format!("{phase}-{at}-{n}"), body(at, n));
                put(&layer.database("db"), &id, None, &body).await.unwrap();
                written.push((id, body));
            }
        }
        written
    };
    write("lost").await;
    let seen = layers[1].database("db").update_seq().await.unwrap();
    put_back(&store, &backup).await;
    renewed(&store).await;
    let written = write("kept").await;
    for layer in layers.iter().chain([&store.layer().await]) {
        let db = layer.database("db");
        assert_clean(layer, &db).await;
        for (id, body) in &written {
            assert_eq!(&get(&db, id).await.unwrap(), body, "{id}");
        }
        assert_eq!(get(&db, "first").await.unwrap(), r#"{"known":{"a":1}}"#);
        assert!(matches!(get(&db, "lost-0-1").await, Err(Error::Refused(Refusal::DocumentNotFound(_)))));
        // Positions of replicas and followers in the lost history are invalid.
        assert_eq!(after(&db, seen).await, 41);
    }
}

/// Both databases have the same namespace: the restore has reverted its first allocation.
#[tokio::test]
async fn a_database_of_a_lost_history_is_another_one() {
    let (store, layers, backup) = two_servers().await;
    let lost = create(&layers[0], "again", None).await;
    put(&lost, "d", None, r#"{"x":1,"y":2}"#).await.unwrap();
    let mut follower = layers[1].database("again").changes(ChangesQuery::default());
    assert_eq!(ids(&follower.next_page().await.unwrap().rows), ["d"]);
    let seen = lost.update_seq().await.unwrap();
    put_back(&store, &backup).await;
    renewed(&store).await;
    let again = create(&layers[1], "again", None).await;
    put(&again, "e", None, r#"{"y":2,"x":1}"#).await.unwrap();
    // The first operation of this server: its cache is of the lost database, whose ids were the other way round.
    put(&lost, "f", None, r#"{"x":1,"y":2}"#).await.unwrap();
    for layer in &layers {
        let again = layer.database("again");
        assert_eq!(get(&again, "e").await.unwrap(), r#"{"y":2,"x":1}"#);
        assert_eq!(get(&again, "f").await.unwrap(), r#"{"x":1,"y":2}"#);
        assert_eq!(after(&again, seen).await, 2, "a sequence of the lost one");
        assert_clean(layer, &again).await;
    }
    assert_eq!(ids(&follower.next_page().await.unwrap().rows), ["e", "f"]);
}

#[tokio::test]
async fn what_is_staged_for_a_lost_history_is_not_taken() {
    let (store, [layer, other], _) = two_servers().await;
    let db = layer.database("db");
    let mut upload = db.upload("application/octet-stream", false).await.unwrap();
    upload.write(&vec![7; 1_000_000]).await.unwrap();
    let mut whole = db.upload("application/octet-stream", false).await.unwrap();
    whole.write(&vec![8; 1_000_000]).await.unwrap();
    // The backup has a part of both.
    let backup = snapshot(&store).await;
    whole.write(&vec![8; 1_000_000]).await.unwrap();
    let whole = whole.finish().await.unwrap();
    put_back(&store, &backup).await;
    renewed(&store).await;
    assert!(matches!(upload.write(&vec![7; 1_000_000]).await, Err(Error::Refused(Refusal::UploadSwept))));
    drop(upload);
    let data = flatbed_layer::AttachmentEdit::Data {
        content_type: "application/octet-stream".into(),
        data: whole,
        revpos: None,
    };
    let edit = Edit {
        expiry: None,
        id: "attached".into(),
        parent: None,
        history: None,
        deleted: false,
        attachments: vec![("a".into(), data)],
        body: parse(b"{}", &Limits::default()).unwrap(),
    };
    assert!(matches!(db.update(&edit).await, Err(Error::Refused(Refusal::UploadSwept))));
    // The rest of them is swept like other abandoned uploads.
    assert_eq!(other.sweep_broken_uploads(Duration::ZERO).await.unwrap(), 2);
    assert_clean(&other, &other.database("db")).await;
}

#[tokio::test]
async fn followers_of_a_lost_history_begin_anew() {
    let (store, layers, backup) = two_servers().await;
    let mut followers: Vec<_> =
        layers.iter().map(|layer| layer.database("db").changes(ChangesQuery::default())).collect();
    let told = async |follower: &mut Changes, count: usize| {
        let mut seen = Vec::new();
        while seen.len() < count {
            match soon(follower.follow()).await {
                FollowOutcome::Rows(rows) => seen.extend(rows.iter().map(|row| row.row.id.clone())),
                FollowOutcome::ReadOn => seen.extend(ids(&follower.next_page().await.unwrap().rows)),
                FollowOutcome::Shutdown => panic!("the server runs"),
            }
        }
        seen
    };
    for follower in &mut followers {
        assert_eq!(told(follower, 1).await, ["first"]);
    }
    put(&layers[0].database("db"), "lost", None, "{}").await.unwrap();
    for follower in &mut followers {
        assert_eq!(told(follower, 1).await, ["lost"]);
    }
    put_back(&store, &backup).await;
    renewed(&store).await;
    put(&layers[1].database("db"), "kept", None, "{}").await.unwrap();
    for follower in &mut followers {
        assert_eq!(told(follower, 2).await, ["first", "kept"]);
    }
}

/// Creates several databases with all kinds of stamps: edits, tombstones, conflicts, purges, creations and deletions.
async fn much(layer: &Layer) -> Database {
    let db = create(layer, "db", None).await;
    for n in 0..30 {
        put(&db, &format!("d{n:02}"), None, &format!(r#"{{"n":{n}}}"#)).await.unwrap();
    }
    let rev = put(&db, "edited", None, "{}").await.unwrap();
    put(&db, "edited", Some(&rev), r#"{"n":2}"#).await.unwrap();
    let rev = put(&db, "gone", None, "{}").await.unwrap();
    delete(&db, "gone", &rev).await.unwrap();
    for n in 0..5 {
        let rev = put(&db, "purged", None, &format!(r#"{{"n":{n}}}"#)).await.unwrap();
        db.purge("purged", &[rev]).await.unwrap();
    }
    for leaf in ["2-a 1-x", "2-b 1-x"] {
        let history = Some(leaf.split(' ').map(|rev| rev.parse().unwrap()).collect());
        let parts =
            EditParts::from_json(parse(b"{}", &Limits::default()).unwrap(), &flatbed_clock::Clock::system()).unwrap();
        let (attachments, body) = (Vec::new(), parts.body);
        let edit = Edit { expiry: None, id: "both".into(), parent: None, history, deleted: false, attachments, body };
        db.update(&edit).await.unwrap();
    }
    create(layer, "empty", None).await;
    let emptied = create(layer, "emptied", None).await;
    let rev = put(&emptied, "d", None, "{}").await.unwrap();
    emptied.purge("d", &[rev]).await.unwrap();
    create(layer, "deleted", None).await;
    layer.delete_database("deleted").await.unwrap();
    create(layer, "deleted", None).await;
    layer.delete_database("deleted").await.unwrap();
    db
}

async fn assert_all_clean(layer: &Layer) {
    for name in ["db", "empty", "emptied"] {
        assert_clean(layer, &layer.database(name)).await;
    }
    let mut names = update_names(layer).await;
    names.sort();
    let mut told: Vec<_> = ["db Created", "db Updated", "deleted Deleted", "empty Created"].map(str::to_owned).into();
    told.extend(["emptied Created".to_owned(), "emptied Updated".to_owned()]);
    told.sort();
    assert_eq!(names, told);
}

/// Moves every stamp by some seconds, as of an older cluster.
fn shifted(rows: &Rows, by: i64) -> Rows {
    let shift = |stamp: &mut [u8]| {
        let version = u64::from_be_bytes(stamp[..8].try_into().unwrap());
        stamp[..8].copy_from_slice(&version.saturating_add_signed(by).to_be_bytes());
    };
    let int = |element: &Element<'_>| if let Element::Int(n) = element { Some(*n) } else { None };
    let rows = rows.iter().cloned().map(|(mut key, mut value)| {
        let elements: Vec<Element<'_>> = unpack(&key).unwrap();
        let has_stamp = matches!(elements.last(), Some(Element::Versionstamp(_)));
        let parts: Vec<Option<i64>> = elements.iter().map(int).collect();
        match (parts.as_slice(), elements.len()) {
            ([_, Some(3), _, Some(0), Some(0)], _) | ([_, Some(10), _, _] | [_, Some(11), _], _) => shift(&mut value),
            ([_, Some(3), _, Some(2), _, Some(0)], 6) => shift(&mut value[2..]),
            _ => {}
        }
        if has_stamp {
            let at = key.len() - 12;
            shift(&mut key[at..]);
        }
        (key, value)
    });
    rows.collect()
}

const SECONDS: i64 = 1_000_000;

#[tokio::test]
async fn what_was_restored_into_a_younger_cluster_is_stamped_anew() {
    for by in [1_000_000 * SECONDS, 3 * SECONDS, -SECONDS] {
        let store = Store::new();
        let layer = store.layer().await;
        let before = all_changes(&much(&layer).await).await;
        layer.shutdown();
        drop(layer);
        let rows = snapshot(&store).await;
        put_back(&store, &shifted(&rows, by)).await;
        if by > 100 * SECONDS {
            let Err(Error::StampsAhead { newest, now }) = open(&store).await.map(|_| ()) else { panic!("it opens") };
            assert!(newest > now + 900_000 * SECONDS as u64);
        }
        let done = renewed(&store).await;
        assert_eq!(done, RenewalReport { databases: 3, entries: before.len() as u64 });
        // All stamps are those of commits of this cluster.
        let stamped = snapshot(&store).await;
        assert_eq!(stamped.len(), rows.len() - 3, "superseded creations are forgotten");
        let layer = store.layer().await;
        assert_all_clean(&layer).await;
        let db = layer.database("db");
        let after_it = all_changes(&db).await;
        assert_eq!(ids(&after_it), ids(&before));
        assert!(after_it.is_sorted_by_key(|row| row.seq));
        for row in &before {
            assert_eq!(after(&db, row.seq).await, before.len(), "a checkpoint of before means the beginning");
        }
        let seen = db.update_seq().await.unwrap();
        assert_eq!(after(&db, seen).await, 0);
        put(&db, "later", None, "{}").await.unwrap();
        assert_eq!(after(&db, seen).await, 1);
        assert_eq!(all_changes(&db).await.last().unwrap().id, "later");
        // A later purge finds the earlier ones in order.
        db.set_purged_infos_limit(1).await.unwrap();
        let rev = put(&db, "purged", None, "{}").await.unwrap();
        db.purge("purged", &[rev]).await.unwrap();
        put(&db, "last", None, "{}").await.unwrap();
        assert_all_clean(&layer).await;
        let purges = |rows: &Rows| {
            // {root}/3/{namespace}/10/{versionstamp}
            let prefix = pack(&(Bytes::from(store.root.clone()), 3)).len();
            let is_purge = |key: &[u8]| key.get(prefix + 2..prefix + 5) == Some(&[0x15, 10, 0x33]);
            rows.iter().filter(|(key, _)| is_purge(key)).count()
        };
        assert_eq!((purges(&rows), purges(&stamped)), (6, 6));
        assert_eq!(purges(&snapshot(&store).await), 2, "one of each");
    }
}

/// Returns [`much`] in a store of its own, with injected faults if requested. The rows are made without faults, whose
/// results would be unknown, and then inserted. `None` if faults cannot be injected.
async fn filled(faults: Option<f64>) -> Option<(Store, Layer)> {
    let made = Store::new();
    let layer = made.layer().await;
    much(&layer).await;
    let Some(probability) = faults else { return Some((made, layer)) };
    let mut store = Store::with_faults(probability, 77)?;
    // The size of a record includes the root in its key.
    store.storage.root.clone_from(&made.root);
    let rows = snapshot(&made).await;
    // The cluster may be younger than the inserted stamps, so that no layer opens afterwards.
    let layer = store.layer().await;
    put_back(&store, &rows).await;
    Some((store, layer))
}

#[tokio::test]
async fn a_renewal_that_is_killed_goes_on() {
    for (transactions, faults) in [(1, None), (2, None), (3, None), (2, Some(0.1))] {
        let Some((store, layer)) = filled(faults).await else { continue };
        let db = layer.database("db");
        let before = ids(&all_changes(&db).await);
        let mut kills = 0;
        let done = loop {
            if let Some(done) = renew_for(&store, transactions).await {
                break done;
            }
            kills += 1;
            assert!(kills < 20, "it gets on");
            // Killed after its last transaction.
            let Err(refused) = open(&store).await else { break renewed(&store).await };
            // All reads and writes are refused meanwhile.
            assert!(matches!(refused, Error::Renewing));
            assert!(matches!(put(&db, "no", None, "{}").await, Err(Error::Renewing)));
            assert!(matches!(get(&db, "edited").await, Err(Error::Renewing)));
            assert!(matches!(db.set_revs_limit(7).await, Err(Error::Renewing)));
            assert!(matches!(layer.create_database("no", &Default::default()).await, Err(Error::Renewing)));
            assert!(matches!(layer.delete_database("empty").await, Err(Error::Renewing)));
            assert!(matches!(layer.sweep_database_updates(Duration::ZERO).await, Err(Error::Renewing)));
            assert!(matches!(layer.ping().await, Err(Error::Renewing)));
        };
        assert!(kills > 1 && done.databases == 3, "{kills} {done:?}");
        assert_all_clean(&layer).await;
        assert_eq!(ids(&all_changes(&db).await), before);
    }
}

#[tokio::test]
async fn a_backup_of_a_renewal_under_way_gets_incarnations_that_nobody_knows() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = much(&layer).await;
    let before = all_changes(&db).await;
    // From before the database is finished until all are.
    let mut transactions = 3;
    let backup = loop {
        assert!(renew_for(&store, transactions).await.is_none());
        let backup = snapshot(&store).await;
        renewed(&store).await;
        let seen = db.update_seq().await.unwrap();
        put_back(&store, &backup).await;
        renewed(&store).await;
        assert_eq!(after(&db, seen).await, before.len(), "after {transactions}");
        assert_all_clean(&layer).await;
        if transactions == 6 {
            break backup;
        }
        transactions += 1;
    };
    // Copied with all keys of the engine.
    put_back(&store, &backup).await;
    renew(&store.fdb, &store.root, true, |_| {}).await.unwrap();
    assert_all_clean(&layer).await;
}

#[tokio::test]
async fn two_renewals_at_once_do_no_harm() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = much(&layer).await;
    let before = all_changes(&db).await;
    for _ in 0..5 {
        let one = async || renew(&store.fdb, &store.root, false, |_| {}).await;
        let (a, b) = tokio::join!(one(), one());
        let ended = |done: &Result<RenewalReport, Error>| matches!(done, Ok(_) | Err(Error::RenewedElsewhere));
        assert!(ended(&a) && ended(&b) && (a.is_ok() || b.is_ok()), "{a:?} {b:?}");
        assert_all_clean(&layer).await;
        assert_eq!(ids(&all_changes(&db).await), ids(&before));
    }
}

#[tokio::test]
async fn where_there_is_nothing_nothing_is_renewed() {
    let store = Store::new();
    assert!(matches!(renew(&store.fdb, &store.root, false, |_| {}).await, Err(Error::StoreNotFound)));
    assert!(snapshot(&store).await.is_empty());
    change(&store.fdb, |_| {}).await;
}
