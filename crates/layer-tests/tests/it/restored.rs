//! Restores beside open layers and into younger clusters: no server writes from an old cache, and everything goes on.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{
    Layer, Store, all_changes, assert_clean, change, create, delete, get, put, put_back, snapshot, soon, update_names,
};
use crate::view_waits::NoFunctions;
use flatbed_clock::Clock;
use flatbed_layer::json::{Limits, parse};
use flatbed_layer::renew::{RenewalReport, renew};
use flatbed_layer::{
    Changes, ChangesQuery, Database, DatabaseUpdatesQuery, Edit, EditParts, Error, FollowOutcome, GetOptions,
    LayerOptions, Refusal, Seq, Since, ViewQuery, ViewUpdate,
};
use flatbed_testkit::shift_stamps;
use foundationdb::tuple::{Bytes, pack};

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

async fn renewed(store: &Store) -> RenewalReport {
    renew(&store.fdb, &store.root, &Clock::system()).await.expect("renewed")
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
        // Replicas and followers of the lost history get what is new.
        assert_eq!(after(&db, seen).await, 40);
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
async fn followers_of_a_lost_history_go_on() {
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
        assert_eq!(told(follower, 1).await, ["kept"]);
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
        let parts = EditParts::from_json(parse(b"{}", &Limits::default()).unwrap(), &Clock::system()).unwrap();
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
    names.dedup();
    let told = ["db Created", "db Updated", "deleted Created", "deleted Deleted"];
    let told = told.into_iter().chain(["emptied Created", "emptied Updated", "empty Created"]).collect::<Vec<_>>();
    assert_eq!(names, told);
}

/// Returns the read version.
async fn version(store: &Store) -> u64 {
    loop {
        if let Ok(version) = store.fdb.create_trx().expect("a transaction").get_read_version().await {
            return version as u64;
        }
    }
}

/// The versions by which the restored cluster is ahead: some days.
const AHEAD: u64 = 1_000_000_000_000;

/// Restores the store's rows as those of a cluster whose versions were higher. `change`: as they are to be changed.
async fn into_a_younger_cluster(store: &Store, first: u64, change: impl Fn(&mut Rows)) {
    let mut rows = snapshot(store).await;
    shift_stamps(&mut rows, first..=version(store).await, AHEAD);
    change(&mut rows);
    put_back(store, &rows).await;
    let Err(Error::StampsAhead { newest, now }) = open(store).await.map(|_| ()) else { panic!("it opens") };
    assert!(newest > now + AHEAD / 2);
    renewed(store).await;
}

#[tokio::test]
async fn what_was_restored_into_a_younger_cluster_goes_on() {
    let store = Store::new();
    let first = version(&store).await;
    let layer = store.layer().await;
    let before = all_changes(&much(&layer).await).await;
    layer.shutdown();
    drop(layer);
    let logged = foundationdb::tuple::pack(&(foundationdb::tuple::Bytes::from(store.root.clone()), 23));
    let (of_log, others): (Rows, Rows) =
        snapshot(&store).await.into_iter().partition(|(key, _)| key.starts_with(&logged));
    into_a_younger_cluster(&store, first, |_| ()).await;
    // All processes read all records again.
    assert!(!of_log.is_empty());
    assert_eq!(snapshot(&store).await.len(), others.len());
    let layer = store.layer().await;
    assert_all_clean(&layer).await;
    let db = layer.database("db");
    let after_it = all_changes(&db).await;
    assert_eq!(ids(&after_it), ids(&before));
    assert!(after_it.is_sorted_by_key(|row| row.seq));
    for (at, row) in after_it.iter().enumerate() {
        assert_eq!(after(&db, row.seq).await, after_it.len() - at - 1, "a checkpoint of before");
    }
    let mut updates = layer.database_updates(DatabaseUpdatesQuery::default());
    let told = updates.next_page().await.unwrap();
    let seen = db.update_seq().await.unwrap();
    assert_eq!(after(&db, seen).await, 0);
    put(&db, "later", None, "{}").await.unwrap();
    let rev = after_it.iter().find(|row| row.id == "d07").unwrap().rev.clone();
    put(&db, "d07", Some(&rev), "{}").await.unwrap();
    let all = all_changes(&db).await;
    assert_eq!(all[all.len() - 2..].iter().map(|row| &*row.id).collect::<Vec<_>>(), ["later", "d07"]);
    assert!(all.is_sorted_by_key(|row| row.seq));
    assert_eq!(after(&db, after_it.last().unwrap().seq).await, 2);
    let since = Since::after(told.last_seq);
    let query = DatabaseUpdatesQuery { since, ..DatabaseUpdatesQuery::default() };
    let page = layer.database_updates(query).next_page().await.unwrap();
    assert_eq!(page.rows.iter().map(|row| &*row.name).collect::<Vec<_>>(), ["db"]);
    // A later purge finds the earlier ones in order.
    let purges = |rows: &Rows| {
        // {root}/3/{namespace}/10/{epoch}/{versionstamp}
        let prefix = pack(&(Bytes::from(store.root.clone()), 3)).len();
        rows.iter().filter(|(key, _)| key.get(prefix + 2..prefix + 4) == Some(&[0x15, 10])).count()
    };
    assert_eq!(purges(&snapshot(&store).await), 6);
    db.set_purged_infos_limit(1).await.unwrap();
    let rev = put(&db, "purged", None, "{}").await.unwrap();
    db.purge("purged", &[rev]).await.unwrap();
    put(&db, "last", None, "{}").await.unwrap();
    assert_all_clean(&layer).await;
    assert_eq!(purges(&snapshot(&store).await), 2, "one of each");
}

/// A group keeps its rows, takes in what is new, and does not trust a read version of the other cluster.
#[tokio::test]
async fn views_go_on_in_a_younger_cluster() {
    let store = Store::new().sharded(1);
    let first = version(&store).await;
    let opened = async || {
        let layer = store.layer().await;
        layer.run_views_by(Arc::new(NoFunctions));
        layer
    };
    let layer = opened().await;
    let db = create(&layer, "db", None).await;
    for n in 0..20 {
        put(&db, &format!("d{n:02}"), None, &format!(r#"{{"n":{n}}}"#)).await.unwrap();
    }
    let design =
        r#"{"language":"query","views":{"v":{"map":{"fields":{"n":"asc"}},"reduce":"_count","options":{"def":{}}}}}"#;
    put(&db, "_design/v", None, design).await.unwrap();
    let rows = async |db: &Database, update| {
        let view = soon(db.view("_design/v", "v", update)).await.unwrap();
        let page = view.rows(ViewQuery::default()).next_page().await.unwrap();
        page.unwrap().rows.into_iter().map(|row| row.id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(rows(&db, ViewUpdate::True).await.len(), 20);
    layer.shutdown();
    drop((db, layer));
    into_a_younger_cluster(&store, first, |rows| {
        // {root}/3/{namespace}/13/{group}/0: the field `drained_version` of its progress, again.
        let prefix = pack(&(Bytes::from(store.root.clone()), 3)).len();
        let is_progress =
            |key: &[u8]| key.len() == prefix + 7 && key[prefix + 2..prefix + 4] == [0x15, 13] && key.ends_with(&[0x14]);
        let progress: Vec<_> = rows.iter_mut().filter(|(key, _)| is_progress(key)).collect();
        assert!(!progress.is_empty());
        for (_, value) in progress {
            value.push(3 << 3 | 1);
            value.extend(u64::try_from(i64::MAX).unwrap().to_le_bytes());
        }
    })
    .await;
    let layer = opened().await;
    let db = layer.database("db");
    assert_eq!(rows(&db, ViewUpdate::False).await.len(), 20, "it is not built again");
    put(&db, "new", None, r#"{"n":7.5}"#).await.unwrap();
    let all = rows(&db, ViewUpdate::True).await;
    assert_eq!((all.len(), &*all[8]), (21, "new"));
    let purged = db.get("d03", &GetOptions::default()).await.unwrap().rev;
    db.purge("d03", &[purged]).await.unwrap();
    assert_eq!(rows(&db, ViewUpdate::True).await.len(), 20);
    assert_clean(&layer, &db).await;
}

#[tokio::test]
async fn where_there_is_nothing_nothing_is_renewed() {
    let store = Store::new();
    assert!(matches!(renew(&store.fdb, &store.root, &Clock::system()).await, Err(Error::StoreNotFound)));
    assert!(snapshot(&store).await.is_empty());
    change(&store.fdb, |_| {}).await;
}
