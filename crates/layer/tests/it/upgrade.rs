//! Stores that older programs left, and newer ones: upgraded in one transaction, or refused, by who opens and who runs.

use std::time::Duration;

use crate::support::{Layer, Store, assert_clean, change, create, get, put, put_back, snapshot, update_names};
use flatbed_layer::renew::renew;
use flatbed_layer::{BackgroundOptions, Error, LayerOptions};
use flatbed_testkit::{is_quiet, metadata_version};
use foundationdb::tuple::{Bytes, Element, pack, unpack};

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

/// `Instance` of a program that knows no features: format 2, a uuid, no epoch.
fn old_instance() -> Vec<u8> {
    [&[0x08, 2, 0x12, 16][..], &[7; 16]].concat()
}

/// What an older program would have left: newest changes by name alone, and one newest of all.
fn as_left_by_an_older_program(store: &Store, rows: &Rows) -> Rows {
    let key = |number: i64| pack(&(Bytes::from(store.root.clone()), number));
    let mut newest = Vec::new();
    let mut old = Rows::new();
    for (this, value) in rows {
        let elements: Vec<Element<'_>> = unpack(this).unwrap();
        match (&elements.get(1), elements.len()) {
            (Some(Element::Int(0)), 2) => old.push((this.clone(), old_instance())),
            (Some(Element::Int(10)), 4) => {
                let Element::String(name) = &elements[3] else { panic!("no name: {elements:?}") };
                old.push((pack(&(Bytes::from(store.root.clone()), 5, &**name)), value.clone()));
            }
            (Some(Element::Int(11)), 3) => newest = value.clone().max(newest),
            _ => old.push((this.clone(), value.clone())),
        }
    }
    assert!(!newest.is_empty(), "something has changed");
    old.push((key(6), newest));
    old
}

/// Keys of a subspace of the root.
fn count(store: &Store, rows: &Rows, number: i64) -> usize {
    let prefix = pack(&(Bytes::from(store.root.clone()), number));
    rows.iter().filter(|(key, _)| key.starts_with(&prefix)).count()
}

async fn open(store: &Store) -> Result<Layer, Error> {
    Layer::open(store.fdb.clone(), LayerOptions { root: store.root.clone(), ..LayerOptions::default() }).await
}

/// Databases with and without documents, and one that is gone.
async fn some_databases(layer: &Layer) {
    for n in 0..40 {
        let db = create(layer, &format!("db{n}"), None).await;
        if n % 4 > 0 {
            put(&db, "d", None, r#"{"a":1}"#).await.unwrap();
        }
    }
    create(layer, "gone", None).await;
    layer.delete_database("gone").await.unwrap();
}

#[tokio::test]
async fn a_store_of_an_older_program_is_upgraded_when_it_is_opened() {
    let store = Store::new();
    let layer = store.layer_alone().await;
    some_databases(&layer).await;
    let told = update_names(&layer).await;
    layer.shutdown();
    drop(layer);
    let rows = snapshot(&store).await;
    let old = as_left_by_an_older_program(&store, &rows);
    assert_eq!([5, 6, 10, 11].map(|number| count(&store, &old, number)), [30, 1, 0, 0]);
    put_back(&store, &old).await;
    let before = metadata_version(&store.fdb).await;
    // Two at once do no harm.
    let (one, two) = tokio::join!(store.layer_alone(), store.layer_alone());
    let told_others = metadata_version(&store.fdb).await;
    assert_ne!(told_others, before, "who runs looks at the root's record again");
    let upgraded = snapshot(&store).await;
    assert_eq!([5, 6, 10].map(|number| count(&store, &upgraded, number)), [0, 0, 30]);
    for layer in [&one, &two] {
        assert_eq!(update_names(layer).await, told);
    }
    assert_eq!(get(&two.database("db1"), "d").await.unwrap(), r#"{"a":1}"#);
    put(&one.database("db4"), "d", None, "{}").await.unwrap();
    two.delete_database("db1").await.unwrap();
    let later = update_names(&two).await;
    assert_eq!(later[later.len() - 2..], ["db4 Updated", "db1 Deleted"]);
    assert_clean(&two, &two.database("db2")).await;
    // Once more there is nothing to do.
    let before = snapshot(&store).await;
    let seen = metadata_version(&store.fdb).await;
    store.layer_alone().await;
    assert_eq!(snapshot(&store).await, before);
    // Other roots may have told that.
    is_quiet(&store.fdb, &seen).await;
}

/// The upgrade's transaction is all that an older program must see; what was not moved then is moved by the next that opens.
#[tokio::test]
async fn an_upgrade_that_was_interrupted_goes_on() {
    let store = Store::new();
    let layer = store.layer().await;
    some_databases(&layer).await;
    let told = update_names(&layer).await;
    let rows = snapshot(&store).await;
    let instance = pack(&(Bytes::from(store.root.clone()), 0));
    let record = rows.iter().find(|(key, _)| *key == instance).expect("the root's record").1.clone();
    put_back(&store, &as_left_by_an_older_program(&store, &rows)).await;
    change(&store.fdb, |trx| trx.set(&instance, &record)).await;
    // Some are moved already, one of them has changed since.
    let layer = open(&store).await.expect("opened");
    assert_eq!(update_names(&layer).await, told);
    let left = snapshot(&store).await;
    assert_eq!([5, 6, 10].map(|number| count(&store, &left, number)), [0, 0, 30]);
    let stale = (pack(&(Bytes::from(store.root.clone()), 5, "db1")), [0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0].to_vec());
    change(&store.fdb, |trx| trx.set(&stale.0, &stale.1)).await;
    let layer = open(&store).await.expect("opened");
    assert_eq!(update_names(&layer).await, told, "what is newer stays");
    assert_clean(&layer, &layer.database("db2")).await;
}

/// More than one transaction moves.
#[tokio::test]
async fn many_databases_are_moved() {
    let store = Store::new();
    let layer = store.layer().await;
    put(&create(&layer, "db", None).await, "d", None, "{}").await.unwrap();
    layer.shutdown();
    drop(layer);
    let mut old = as_left_by_an_older_program(&store, &snapshot(&store).await);
    let value =
        old.iter().find(|(key, _)| *key == pack(&(Bytes::from(store.root.clone()), 5, "db"))).unwrap().1.clone();
    old.extend((0..1_700_u16).map(|n| {
        let stamp = [&value[..10], &(n + 1).to_be_bytes()].concat();
        (pack(&(Bytes::from(store.root.clone()), 5, format!("name{n}"))), stamp)
    }));
    put_back(&store, &old).await;
    let layer = open(&store).await.expect("opened");
    assert_eq!(update_names(&layer).await.len(), 1 + 1_701);
    let moved = snapshot(&store).await;
    assert_eq!([5, 6, 10].map(|number| count(&store, &moved, number)), [0, 0, 1_701]);
}

#[tokio::test]
async fn a_renewal_upgrades_first() {
    let store = Store::new();
    let layer = store.layer().await;
    some_databases(&layer).await;
    let told = update_names(&layer).await;
    let old = as_left_by_an_older_program(&store, &snapshot(&store).await);
    put_back(&store, &old).await;
    // A process that runs notices that the store is not as it was.
    let refused = layer.database("never asked for").info().await.unwrap_err();
    assert!(matches!(refused, Error::NotUpgraded), "{refused}");
    renew(&store.fdb, &store.root, false, |_| ()).await.expect("renewed");
    let mut renewed = update_names(&layer).await;
    renewed.sort();
    let mut told = told;
    told.retain(|row| row != "gone Created");
    told.sort();
    assert_eq!(renewed, told);
    assert_clean(&layer, &layer.database("db2")).await;
    let left = snapshot(&store).await;
    assert_eq!([5, 6].map(|number| count(&store, &left, number)), [0, 0]);
}

/// As this program is beside the next one: what it has cached does not keep it from seeing the upgrade.
#[tokio::test]
async fn a_process_that_runs_refuses_what_a_newer_one_has_upgraded() {
    let store = Store::new();
    // What it does in the background it does when it is asked to: else what it notes could come between the two looks at all keys.
    let layer = store.layer_alone().await;
    let background = layer.background(BackgroundOptions::default());
    let db = create(&layer, "db", None).await;
    put(&db, "d", None, "{}").await.unwrap();
    let before = snapshot(&store).await;
    let instance = pack(&(Bytes::from(store.root.clone()), 0));
    let record = before.iter().find(|(key, _)| *key == instance).expect("the root's record").1.clone();
    // Another feature (field 5), in a transaction that tells.
    let newer = [record.as_slice(), &[0x2a, 6], b"shards"].concat();
    let upgrade = async |record: &[u8]| {
        change(&store.fdb, |trx| {
            trx.set(&instance, record);
            trx.update_metadata_version();
        })
        .await;
    };
    upgrade(&newer).await;
    let is_refused =
        |result: Result<(), Error>| matches!(result, Err(Error::FeatureUnknown { feature, .. }) if feature == "shards");
    assert!(is_refused(put(&db, "e", None, "{}").await.map(|_| ())));
    assert!(is_refused(get(&db, "d").await.map(|_| ())));
    assert!(is_refused(layer.ping().await));
    assert!(is_refused(layer.create_database("new", &Default::default()).await));
    assert!(is_refused(layer.delete_database("db").await));
    assert!(is_refused(layer.newest_database_update().await.map(|_| ())));
    assert!(is_refused(layer.sweep_database_updates(Duration::ZERO).await.map(|_| ())));
    // A creation and its mark are still to be noted.
    assert_eq!(count(&store, &before, 17), 0);
    assert!(is_refused(background.round().await.map(|_| ())));
    assert!(is_refused(open(&store).await.map(|_| ())));
    assert!(is_refused(renew(&store.fdb, &store.root, false, |_| ()).await.map(|_| ())));
    let after = snapshot(&store).await;
    let but_the_record = |rows: &Rows| rows.iter().filter(|(key, _)| *key != instance).cloned().collect::<Rows>();
    assert_eq!(but_the_record(&after), but_the_record(&before), "nothing is written");
    upgrade(&record).await;
    put(&db, "e", None, "{}").await.unwrap();
    background.round().await.unwrap();
    assert_eq!(count(&store, &snapshot(&store).await, 17), 2, "what was not noted then is now");
}
