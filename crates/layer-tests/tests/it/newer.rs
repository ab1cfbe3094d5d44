//! Stores that a newer program has changed while this one runs: refused, whatever is cached.

use std::time::Duration;

use crate::support::{Layer, Store, change, create, get, put, snapshot};
use flatbed_clock::Clock;
use flatbed_layer::renew::renew;
use flatbed_layer::{BackgroundOptions, Error, LayerOptions};
use foundationdb::tuple::{Bytes, pack};

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

/// Counts keys of a subspace of the root.
fn count(store: &Store, rows: &Rows, number: i64) -> usize {
    let prefix = pack(&(Bytes::from(store.root.clone()), number));
    rows.iter().filter(|(key, _)| key.starts_with(&prefix)).count()
}

async fn open(store: &Store) -> Result<Layer, Error> {
    Layer::open(store.fdb.clone(), LayerOptions { root: store.root.clone(), ..LayerOptions::default() }).await
}

/// A program beside its successor: its cache does not keep it from seeing another feature.
#[tokio::test]
async fn a_process_that_runs_refuses_what_a_newer_one_has_changed() {
    let store = Store::new();
    // The test runs the background work itself, whose notes could otherwise come between its two reads of all keys.
    let layer = store.layer_alone().await;
    let background = layer.background(BackgroundOptions::default());
    let db = create(&layer, "db", None).await;
    put(&db, "d", None, "{}").await.unwrap();
    let before = snapshot(&store).await;
    let instance = pack(&(Bytes::from(store.root.clone()), 0));
    let record = before.iter().find(|(key, _)| *key == instance).expect("the root's record").1.clone();
    // Another feature (field 5), in a transaction that bumps the metadata version.
    let newer = [record.as_slice(), &[0x2a, 6], b"shards"].concat();
    let write = async |record: &[u8]| {
        change(&store.fdb, |trx| {
            trx.set(&instance, record);
            trx.update_metadata_version();
        })
        .await;
    };
    write(&newer).await;
    let is_refused =
        |result: Result<(), Error>| matches!(result, Err(Error::FeatureUnknown { feature, .. }) if feature == "shards");
    assert!(is_refused(put(&db, "e", None, "{}").await.map(|_| ())));
    assert!(is_refused(get(&db, "d").await.map(|_| ())));
    assert!(is_refused(layer.ping().await));
    assert!(is_refused(layer.create_database("new", &Default::default()).await));
    assert!(is_refused(layer.delete_database("db").await));
    assert!(is_refused(layer.newest_database_update().await.map(|_| ())));
    assert!(is_refused(layer.sweep_database_updates(Duration::ZERO).await.map(|_| ())));
    // A creation and its mark are still to be recorded.
    assert_eq!(count(&store, &before, 17), 0);
    assert!(is_refused(background.round().await.map(|_| ())));
    assert!(is_refused(open(&store).await.map(|_| ())));
    assert!(is_refused(renew(&store.fdb, &store.root, &Clock::system()).await.map(|_| ())));
    let after = snapshot(&store).await;
    let but_the_record = |rows: &Rows| rows.iter().filter(|(key, _)| *key != instance).cloned().collect::<Rows>();
    assert_eq!(but_the_record(&after), but_the_record(&before), "nothing is written");
    write(&record).await;
    put(&db, "e", None, "{}").await.unwrap();
    background.round().await.unwrap();
    assert_eq!(count(&store, &snapshot(&store).await, 17), 2, "what was not noted then is now");
}
