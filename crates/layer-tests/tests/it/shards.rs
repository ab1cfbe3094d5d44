//! Databases with shards: keys that each write changes are in buckets by process, and feeds show them as one.
//!
//! The tortures of `followers`, `concurrent` and `replicas` run with shards too; `FLATBED_TEST_SHARDS=4` gives shards
//! to the databases of every test.

use std::time::Duration;

use crate::support::{
    Layer, Store, all_changes, assert_clean, change, create, delete, pages_are_full, put, snapshot, soon,
};
use flatbed_clock::Clock;
use flatbed_layer::json::{Limits, parse};
use flatbed_layer::renew::renew;
use flatbed_layer::{
    ChangesQuery, CreateOptions, Database, DatabaseUpdateKind, DatabaseUpdatesQuery, Edit, Error, Extras,
    FollowOutcome, Refusal, Scope, Seq, Since, WaitOutcome, check,
};
use flatbed_testkit::until;
use foundationdb::tuple::{Bytes, pack};

const SHARDS: u64 = 4;

/// Opens a layer for each process; each writes to its own bucket.
async fn layers<const N: usize>(store: &Store) -> [Layer; N] {
    let mut layers = Vec::new();
    for _ in 0..N {
        layers.push(store.layer().await);
    }
    layers.try_into().unwrap_or_else(|_| unreachable!())
}

/// Counts the keys directly under {NS} with a first element, and those in each bucket under it.
async fn keys(store: &Store, subspace: u64) -> (usize, [usize; SHARDS as usize]) {
    let rows = snapshot(store).await;
    let root = || Bytes::from(store.root.clone());
    let count = |prefix: Vec<u8>| rows.iter().filter(|(key, _)| key.starts_with(&prefix)).count();
    let in_buckets = std::array::from_fn(|bucket| count(pack(&(root(), 3, 1, 15, bucket as u64, subspace))));
    (count(pack(&(root(), 3, 1, subspace))), in_buckets)
}

const META: u64 = 0;
const BY_SEQ: u64 = 3;

#[tokio::test]
async fn a_process_writes_to_one_bucket_and_takes_entries_out_of_all() {
    let store = Store::new().sharded(4);
    let [one, two, three] = layers(&store).await;
    let [first, second, third] = [one.clone(), two, three].map(|layer| layer.database("db"));
    create(&one, "db", None).await;
    assert_eq!(keys(&store, META).await, (0, [1, 0, 0, 0]), "created in the first's");
    let a = put(&first, "a", None, "{}").await.unwrap();
    let b = put(&second, "b", None, "{}").await.unwrap();
    put(&third, "c", None, "{}").await.unwrap();
    // last_seq; documents, external bytes, stored bytes.
    assert_eq!((keys(&store, META).await, keys(&store, BY_SEQ).await), ((0, [4, 4, 4, 0]), (0, [1, 1, 1, 0])));
    let a = put(&third, "a", Some(&a), "{}").await.unwrap();
    assert_eq!(keys(&store, BY_SEQ).await, (0, [0, 1, 2, 0]));
    let a = delete(&second, "a", &a).await.unwrap();
    assert_eq!(keys(&store, BY_SEQ).await, (0, [0, 2, 1, 0]));
    let order = |rows: Vec<flatbed_layer::ChangeRow>| rows.into_iter().map(|row| row.id).collect::<Vec<_>>();
    for database in [&first, &second, &third] {
        assert_eq!(order(all_changes(database).await), ["b", "c", "a"]);
        let info = database.info().await.unwrap();
        assert_eq!((info.doc_count, info.doc_del_count, info.shards), (2, 1, 4));
    }
    assert_eq!(first.purge("b", &[b]).await.unwrap().len(), 1);
    assert_eq!(first.purge("a", &[a]).await.unwrap().len(), 1);
    assert_eq!(keys(&store, BY_SEQ).await, (0, [0, 0, 1, 0]));
    assert_eq!((order(all_changes(&third).await), third.info().await.unwrap().purge_seq), (vec!["c".to_owned()], 2));
    assert_clean(&one, &first).await;
    one.delete_database("db").await.unwrap();
    assert_eq!((keys(&store, META).await, keys(&store, BY_SEQ).await), ((0, [0; 4]), (0, [0; 4])));
}

#[tokio::test]
async fn without_shards_the_layout_is_that_of_before() {
    let store = Store::new().sharded(1);
    let layer = store.layer_with(flatbed_layer::LayerOptions { shard: Some(3), ..Default::default() }).await;
    let db = create(&layer, "db", None).await;
    put(&db, "d", None, "{}").await.unwrap();
    assert_eq!((keys(&store, META).await, keys(&store, BY_SEQ).await), ((4, [0; 4]), (1, [0; 4])));
    assert_eq!(db.info().await.unwrap().shards, 1);
    for shards in [0, 65] {
        let options = CreateOptions { shards: Some(shards), ..CreateOptions::default() };
        let refused = layer.create_database("other", &options).await;
        assert!(matches!(refused, Err(Error::Refused(Refusal::InvalidSetting(_)))), "{refused:?}");
    }
}

fn edits<'a>(ids: &'a [String], body: &'a str) -> Vec<Edit<'a>> {
    let edit = |id: &'a String| {
        let body = parse(body.as_bytes(), &Limits::default()).expect("JSON");
        Edit { expiry: None, id: id.into(), parent: None, history: None, deleted: false, attachments: Vec::new(), body }
    };
    ids.iter().map(edit).collect()
}

/// Writes documents from three processes in turn, three from each and `most` from the last one, and returns their ids
/// in that order, which every feed must have. The ids end with `letters` letters. The documents of one process must fit
/// into one transaction.
async fn write_in_turns(layers: &[Layer; 3], rounds: usize, most: usize, letters: usize) -> Vec<String> {
    let mut order = Vec::new();
    let end = "i".repeat(letters);
    for round in 0..rounds {
        for (number, layer) in layers.iter().enumerate() {
            let count = if number == 2 { most } else { 3 };
            let ids: Vec<String> = (0..count).map(|at| format!("{round:03}-{number}-{at:02}{end}")).collect();
            let results = layer.database("db").bulk_update(&edits(&ids, "{}")).await.unwrap();
            assert!(results.iter().all(Result::is_ok));
            order.extend(ids);
        }
    }
    order
}

async fn walk(database: &Database, query: ChangesQuery) -> (Vec<String>, Seq, usize) {
    let query_descends = query.descending;
    let mut changes = database.changes(query);
    let (mut ids, mut pages, mut last) = (Vec::new(), 0, None);
    loop {
        let page = changes.next_page().await.unwrap();
        // If a filter drops all rows, only the position moves.
        assert!(page.at_end || last.is_none_or(|last| query_descends || last < page.last_seq), "a page gets on");
        for row in page.rows {
            last = Some(row.place());
            ids.push(row.id);
        }
        pages += 1;
        if page.at_end {
            assert!(last.is_none_or(|last| last <= page.last_seq) || changes.last_seq() == last);
            return (ids, page.last_seq.seq(), pages);
        }
    }
}

#[tokio::test]
async fn feeds_have_the_order_of_commits_and_every_parameter_its_meaning() {
    let store = Store::new().sharded(4);
    let layers = layers::<3>(&store).await;
    create(&layers[0], "db", None).await;
    // Three pages of at most 2,000 rows.
    let order = write_in_turns(&layers, 62, 60, 0).await;
    let db = layers[1].database("db");
    let (ids, last, pages) = walk(&db, ChangesQuery::default()).await;
    assert_eq!(ids, order);
    let options = CreateOptions { shards: Some(1), ..CreateOptions::default() };
    layers[0].create_database("plain", &options).await.unwrap();
    let plain = layers[0].database("plain");
    for ids in order.chunks(500) {
        plain.bulk_update(&edits(ids, "{}")).await.unwrap();
    }
    let plain_pages = walk(&plain, ChangesQuery::default()).await.2;
    assert!(!pages_are_full() || pages <= plain_pages + 2, "{pages} pages, {plain_pages} without shards");
    assert_eq!(last, db.update_seq().await.unwrap());
    let (ids, ..) = walk(&db, ChangesQuery { descending: true, ..ChangesQuery::default() }).await;
    assert!(ids.iter().eq(order.iter().rev()));
    let extras = Extras { leaves: true, documents: flatbed_layer::Documents::Yes };
    let limited = ChangesQuery { limit: Some(700), extras, ..ChangesQuery::default() };
    let (ids, at, _) = walk(&db, limited).await;
    assert_eq!(ids, order[..700]);
    let since = Since::after(at);
    let (ids, ..) = walk(&db, ChangesQuery { since, ..ChangesQuery::default() }).await;
    assert_eq!(ids, order[700..]);
    let (ids, ..) = walk(&db, ChangesQuery { since, descending: true, ..ChangesQuery::default() }).await;
    assert!(ids.iter().eq(order[700..].iter().rev()));
    for limit in [1, 3, 10] {
        let query = ChangesQuery { since, limit: Some(limit), ..ChangesQuery::default() };
        let (ids, _, pages) = walk(&db, query).await;
        assert_eq!((ids.as_slice(), pages), (&order[700..700 + limit as usize], 1));
    }
    let wanted: Vec<String> = order.iter().step_by(97).cloned().collect();
    let scope = Scope::Ids(std::sync::Arc::new(wanted.iter().cloned().collect()));
    assert_eq!(walk(&db, ChangesQuery { scope, ..ChangesQuery::default() }).await.0, wanted);
    let designs = ChangesQuery { scope: Scope::Designs, ..ChangesQuery::default() };
    assert_eq!((walk(&db, designs.clone()).await.0.len(), walk(&db, designs).await.1), (0, last));
    let mut now = db.changes(ChangesQuery { since: Since::Now, ..ChangesQuery::default() });
    let page = now.next_page().await.unwrap();
    assert!(page.rows.is_empty() && page.last_seq == last);
    let mut first = db.changes(ChangesQuery { limit: Some(10), ..ChangesQuery::default() });
    first.next_page().await.unwrap();
    let pending = first.pending().await.unwrap();
    assert!(pending >= 500 && pending <= order.len() as u64, "{pending}");
    let mut near = db.changes(ChangesQuery { limit: Some(order.len() as u64 - 7), ..ChangesQuery::default() });
    while !near.next_page().await.unwrap().at_end {}
    assert_eq!(near.pending().await.unwrap(), 7);
}

/// After a renewal the order of old and new changes over all buckets stays, and positions hold.
#[tokio::test]
async fn a_renewal_keeps_the_order_over_all_buckets() {
    let store = Store::new().sharded(4);
    let layers = layers::<3>(&store).await;
    create(&layers[0], "db", None).await;
    let mut order = write_in_turns(&layers, 8, 20, 3).await;
    let [first, second, _] = layers.each_ref().map(|layer| layer.database("db"));
    for round in 0..2 {
        let seen = second.update_seq().await.unwrap();
        let (_, middle, _) = walk(&second, ChangesQuery { limit: Some(30), ..ChangesQuery::default() }).await;
        renew(&store.fdb, &store.root, &Clock::system()).await.unwrap();
        assert_clean(&layers[2], &second).await;
        let since = |seq| ChangesQuery { since: Since::after(seq), ..ChangesQuery::default() };
        assert_eq!(walk(&second, since(seen)).await.0.len(), 0);
        let (ids, last, _) = walk(&second, since(middle)).await;
        assert_eq!((&ids[..], last), (&order[30..], first.update_seq().await.unwrap()));
        for (layer, id) in layers.iter().zip(["x", "y", "z"]) {
            let id = format!("{id}{round}");
            put(&layer.database("db"), &id, None, "{}").await.unwrap();
            order.push(id);
        }
        assert_eq!(walk(&first, since(seen)).await.0, order[order.len() - 3..]);
        assert_eq!(walk(&first, ChangesQuery::default()).await.0, order);
        assert_clean(&layers[0], &first).await;
    }
}

/// Returns whether there is a stamp of each shard's newest change of "db", which lies in bucket 78 and from there in
/// every 37th. No other bucket has one.
async fn stamps(store: &Store) -> [bool; SHARDS as usize] {
    let root = || Bytes::from(store.root.clone());
    let rows = snapshot(store).await;
    let found: Vec<_> = rows.iter().map(|(key, _)| key).filter(|key| key.starts_with(&pack(&(root(), 10)))).collect();
    let there = [78, 115, 152, 189].map(|bucket| found.contains(&&pack(&(root(), 10, bucket, "db"))));
    assert_eq!(found.len(), there.iter().filter(|there| **there).count());
    for (bucket, there) in [78, 115, 152, 189].into_iter().zip(there) {
        assert!(!there || rows.iter().any(|(key, _)| *key == pack(&(root(), 11, bucket))), "{bucket}");
    }
    there
}

/// Returns names, kinds and sequences of all rows of `_db_updates`.
async fn updates(layer: &Layer, query: DatabaseUpdatesQuery) -> Vec<(String, DatabaseUpdateKind, Seq)> {
    let mut updates = layer.database_updates(query);
    let mut rows = Vec::new();
    loop {
        let page = updates.next_page().await.unwrap();
        rows.extend(page.rows.iter().map(|row| (row.name.to_string(), row.kind, row.seq)));
        if page.at_end {
            return rows;
        }
    }
}

/// Each shard has its own stamp; the newest of them is the database's.
#[tokio::test]
async fn each_shard_says_when_it_was_changed() {
    let store = Store::new().sharded(4);
    let [one, two, three] = layers(&store).await;
    create(&one, "db", None).await;
    assert_eq!(stamps(&store).await, [false; 4]);
    let [first, second, third] = [&one, &two, &three].map(|layer| layer.database("db"));
    put(&first, "a", None, "{}").await.unwrap();
    assert_eq!(stamps(&store).await, [true, false, false, false]);
    let before = first.update_seq().await.unwrap();
    put(&third, "b", None, "{}").await.unwrap();
    put(&second, "c", None, "{}").await.unwrap();
    assert_eq!(stamps(&store).await, [true, true, true, false]);
    // Each is compared with its own bucket, though that of shard 0 is older.
    assert_clean(&one, &first).await;
    // Another database in between.
    create(&two, "other", None).await;
    put(&first, "d", None, "{}").await.unwrap();
    let stamp = |seq: Seq| seq.to_string().split('-').next().map(str::to_owned);
    for descending in [false, true] {
        let mut all = updates(&two, DatabaseUpdatesQuery { descending, ..DatabaseUpdatesQuery::default() }).await;
        if descending {
            all.reverse();
        }
        let told: Vec<_> = all.iter().map(|(name, kind, _)| (name.as_str(), *kind)).collect();
        use DatabaseUpdateKind::{Created, Updated};
        assert_eq!(told, [("db", Created), ("other", Created), ("db", Updated)]);
        assert_eq!(stamp(all[2].2), stamp(first.update_seq().await.unwrap()));
        // The newer stamp of one shard hides an older one of another, whichever page either is in.
        let since = Since::after(all[1].2);
        let later = updates(&one, DatabaseUpdatesQuery { since, ..DatabaseUpdatesQuery::default() }).await;
        assert_eq!(later, all[2..]);
    }
    let limited = DatabaseUpdatesQuery { limit: Some(1), descending: true, ..DatabaseUpdatesQuery::default() };
    assert_eq!(updates(&one, limited).await.len(), 1);
    assert!(before < first.update_seq().await.unwrap());
    assert_clean(&one, &first).await;
    // The checker knows the place and the database of each stamp.
    let root = || Bytes::from(store.root.clone());
    let rows = snapshot(&store).await;
    let value = |bucket: i32| {
        let key = pack(&(root(), 10, bucket, "db"));
        rows.iter().find(|(this, _)| *this == key).map(|(_, value)| value.clone()).unwrap()
    };
    let wrong = [(189, 78, "not at"), (226, 78, "in shard 4"), (79, 78, "no database's"), (115, 152, "not at")];
    for (bucket, of, expected) in wrong {
        let (key, bytes) = (pack(&(root(), 10, bucket, "db")), value(of));
        change(&store.fdb, |trx| trx.set(&key, &bytes)).await;
        let report = check::check_namespaces(&one).await.unwrap();
        assert!(report.violations.iter().any(|said| said.contains(expected)), "{bucket}: {:?}", report.violations);
        match bucket {
            115 => change(&store.fdb, |trx| trx.set(&key, &value(115))).await,
            _ => change(&store.fdb, |trx| trx.clear(&key)).await,
        }
    }
    assert_clean(&one, &first).await;
    two.delete_database("db").await.unwrap();
    assert_eq!(stamps(&store).await, [false; 4]);
    let kinds: Vec<_> = updates(&three, DatabaseUpdatesQuery::default()).await.into_iter().map(|row| row.1).collect();
    assert_eq!(kinds, [DatabaseUpdateKind::Created, DatabaseUpdateKind::Created, DatabaseUpdateKind::Deleted]);
}

fn metric(layer: &Layer, name: &str) -> u64 {
    flatbed_metrics::total(&layer.metrics(), &format!("flatbed_{name}"))
}

/// A change sets one watch again, that of its bucket.
#[tokio::test(flavor = "multi_thread")]
async fn each_bucket_has_a_watch_that_stays_until_it_fires() {
    let store = Store::new().sharded(4);
    let [reader, one, two] = layers(&store).await;
    create(&one, "db", None).await;
    let mut changes = reader.database("db").changes(ChangesQuery::default());
    while !changes.next_page().await.unwrap().at_end {}
    let writers = [one.database("db"), two.database("db")];
    for (number, writer) in writers.iter().cycle().take(20).enumerate() {
        // The hub waits, so that it reads each change separately.
        let watches = 4 + number as u64;
        let waits = async {
            while !matches!(
                tokio::time::timeout(Duration::from_millis(1), changes.follow()).await,
                Err(_) | Ok(FollowOutcome::Shutdown)
            ) {}
            until("its watches are set", async || metric(&reader, "watches_set") >= watches).await;
        };
        soon(waits).await;
        assert_eq!(metric(&reader, "watches_set"), watches);
        put(writer, &number.to_string(), None, "{}").await.unwrap();
        let FollowOutcome::Rows(rows) = soon(changes.follow()).await else { panic!("rows") };
        assert_eq!(rows[0].row.id, number.to_string());
    }
    assert_eq!(metric(&reader, "safety_rereads"), 0);
}

/// A database with more shards than there are watches is polled.
#[tokio::test(flavor = "multi_thread")]
async fn without_watches_for_all_buckets_they_are_polled() {
    let store = Store::new().sharded(4);
    let few = flatbed_layer::LayerOptions { watches_max: 3, ..Default::default() };
    let (few, writer) = (store.layer_with(few).await, store.layer().await);
    let db = create(&writer, "db", None).await;
    let mut changes = few.database("db").changes(ChangesQuery::default());
    while !changes.next_page().await.unwrap().at_end {}
    let following = tokio::spawn(async move {
        for number in 0..3 {
            loop {
                match changes.follow().await {
                    FollowOutcome::Rows(rows) => {
                        assert_eq!(rows[0].row.id, number.to_string());
                        break;
                    }
                    FollowOutcome::ReadOn => drop(changes.next_page().await.unwrap()),
                    FollowOutcome::Shutdown => panic!("shutdown"),
                }
            }
        }
        changes
    });
    // It follows by then.
    until("it is looked at", async || metric(&few, "polls") > 0).await;
    for number in 0..3 {
        put(&db, &number.to_string(), None, "{}").await.unwrap();
        until("it is told", async || metric(&few, "tail_rows") > number).await;
    }
    let mut changes = soon(following).await.unwrap();
    assert_eq!(metric(&few, "watches_set"), 0);
    assert!(metric(&few, "polls") > 0);
    // The poll notices its deletion as well.
    let waiting = tokio::spawn(async move { changes.wait().await });
    writer.delete_database("db").await.unwrap();
    assert_eq!(soon(waiting).await.unwrap(), WaitOutcome::MayHaveChanged);
}
