//! Background work: done when it is due, by one process for all, and by another one after a crash.

use std::collections::HashMap;
use std::time::Duration;

use crate::support::{
    Layer, Random, Store, assert_clean, change, create, note_record_change, pages_are_full, put, snapshot,
};
use flatbed_layer::waits::{self, Waits};
use flatbed_layer::{Background, BackgroundOptions, CreateOptions, Database, LayerOptions};
use flatbed_testkit::{WaitLoop, until};
use foundationdb::tuple::{Bytes, pack};

/// Looks often, and takes over soon.
fn hasty() -> BackgroundOptions {
    BackgroundOptions {
        look_every: Duration::from_millis(50),
        silence_max: Duration::from_millis(600),
        ..BackgroundOptions::default()
    }
}

/// Treats work that is due within a quarter of an hour as due now.
fn ahead() -> BackgroundOptions {
    BackgroundOptions { ahead: Duration::from_secs(15 * 60), ..BackgroundOptions::default() }
}

/// Returns text that does not compress.
fn fill(size: usize) -> String {
    let mut random = Random(7);
    let text: String = (0..size).map(|_| char::from(b'0' + random.below(75) as u8).to_ascii_lowercase()).collect();
    format!(r#"{{"fill":"{}"}}"#, text.replace('\\', "/"))
}

/// Writes documents with two superseded revisions each.
async fn superseded(db: &Database, documents: usize, size: usize) {
    let fill = fill(size);
    for number in 0..documents {
        let id = format!("d{number:03}");
        let mut parent = None;
        for _ in 0..3 {
            parent = Some(put(db, &id, parent.as_ref(), &fill).await.unwrap());
        }
    }
}

async fn compacted(db: &Database) {
    until("it is compacted", async || !db.info().await.unwrap().is_compacting).await;
}

async fn upload(db: &Database) {
    let mut upload = db.upload("text/plain", false).await.unwrap();
    upload.write(b"nobody takes it").await.unwrap();
    upload.finish().await.unwrap();
}

/// Counts the keys under the root by their first number.
async fn keys(store: &Store) -> HashMap<i64, usize> {
    let mut count = HashMap::new();
    for (key, _) in snapshot(store).await {
        let subspace = foundationdb::tuple::Subspace::from_bytes(pack(&(Bytes::from(store.root.clone()),)));
        let rest = &key[subspace.bytes().len()..];
        let number = if rest[0] == 0x14 { 0 } else { i64::from(rest[1]) };
        *count.entry(number).or_default() += 1;
    }
    count
}

#[tokio::test]
async fn nothing_due_is_nothing_leased_or_read() {
    let store = Store::new();
    let layer = store.layer_alone().await;
    for number in 0..40 {
        let db = create(&layer, &format!("db{number}"), None).await;
        put(&db, "d", None, "{}").await.unwrap();
    }
    let background = layer.background(BackgroundOptions::default());
    // The creations of the databases are recorded.
    assert_eq!(background.round().await.unwrap(), 0);
    for background in [&background, &store.layer_alone().await.background(BackgroundOptions::default())] {
        let (done, waited) = waits::count(background.round()).await;
        let read = Waits { transactions: 1, range_reads: 17, path: waited.path, ..Waits::default() };
        assert_eq!((done.unwrap(), waited, waited.path.depth()), (0, read, 2));
    }
    let left = keys(&store).await;
    assert_eq!((left.get(&16), left.get(&17)), (None, Some(&2)), "marks and events to be swept in an hour: {left:?}");
}

#[tokio::test]
async fn what_nobody_took_is_swept_when_it_is_due() {
    let store = Store::new();
    let options =
        LayerOptions { root: store.root.clone(), uploads_broken_after: Duration::ZERO, ..LayerOptions::default() };
    let layer = Layer::open_alone(store.fdb.clone(), options, None).await.unwrap();
    let (with, without) = (create(&layer, "with", None).await, create(&layer, "without", None).await);
    put(&without, "d", None, "{}").await.unwrap();
    upload(&with).await;
    // It is due within ten minutes.
    layer.background(BackgroundOptions::default()).round().await.unwrap();
    assert_clean(&layer, &with).await;
    let sweeps = layer.counted("flatbed_sweeps");
    let later = layer.background(ahead());
    later.round().await.unwrap();
    assert_eq!((layer.counted("flatbed_blobs_swept"), layer.counted("flatbed_sweeps") - sweeps), (1, 1));
    assert_clean(&layer, &with).await;
    // A later upload schedules the work again.
    upload(&with).await;
    later.round().await.unwrap();
    assert_eq!(layer.counted("flatbed_blobs_swept"), 2);
    // A deleted database leaves no work.
    upload(&with).await;
    with.delete().await.unwrap();
    later.round().await.unwrap();
    assert_eq!(layer.counted("flatbed_background_failures"), 0);
}

#[tokio::test]
async fn an_upload_that_is_not_broken_yet_is_looked_at_again() {
    let store = Store::new();
    let layer = store.layer_alone().await;
    let db = create(&layer, "db", None).await;
    upload(&db).await;
    // Too early.
    let early = pack(&(Bytes::from(store.root.clone()), 17, 0, 3, slice_of("db"), "db"));
    change(&store.fdb, |trx| trx.set(&early, b"")).await;
    assert_eq!(layer.background(BackgroundOptions::default()).round().await.unwrap(), 1);
    assert_eq!(layer.counted("flatbed_blobs_swept"), 0);
    assert_clean(&layer, &db).await;
}

/// Computes the slice as design/data-model.md defines it.
fn slice_of(name: &str) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in name.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash.to_be_bytes().into_iter().fold(0, |slice, byte| slice ^ u64::from(byte))
}

#[tokio::test]
async fn a_database_with_much_that_is_superseded_is_compacted_by_itself() {
    let store = Store::new();
    let layer = store.layer_alone().await;
    let (much, little) = (create(&layer, "much", None).await, create(&layer, "little", None).await);
    superseded(&much, 24, 390_000).await;
    superseded(&little, 10, 2_000).await;
    let done = layer.background(BackgroundOptions::default()).round().await.unwrap();
    // The threshold of bytes is random, so the small database may be examined, too.
    assert!((2..=3).contains(&done), "{done}");
    assert_eq!(layer.counted("flatbed_compactions"), 1);
    assert_eq!(much.info().await.unwrap().superseded_size_bytes, 0);
    assert!(little.info().await.unwrap().superseded_size_bytes > 0);
    assert_clean(&layer, &much).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_two_processes_one_does_each_piece_of_work() {
    let store = Store::new();
    let layers = [store.layer_alone().await, store.layer_alone().await];
    let mut databases = Vec::new();
    for number in 0..24 {
        let db = create(&layers[0], &format!("db{number}"), None).await;
        superseded(&db, 3, 2_000).await;
        databases.push(db);
    }
    let backgrounds = layers.each_ref().map(|layer| layer.background(hasty()));
    for db in &databases {
        db.compact().await.unwrap();
        assert!(layers[1].database(db.name()).info().await.unwrap().is_compacting, "the other process sees it, too");
    }
    backgrounds.iter().for_each(Background::start);
    for db in &databases {
        compacted(db).await;
        assert_eq!(db.info().await.unwrap().superseded_size_bytes, 0);
    }
    tokio::join!(backgrounds[0].stop(), backgrounds[1].stop());
    let done = layers.each_ref().map(|layer| layer.counted("flatbed_compactions"));
    assert_eq!(done[0] + done[1], 24, "{done:?}");
    assert_eq!(keys(&store).await.get(&16), None, "leases are given up");
    assert_clean(&layers[0], &databases[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn another_process_goes_on_where_one_has_died() {
    let mut waiting = WaitLoop::begin();
    loop {
        // Slow storage: one server that needs 13 us for a key.
        let Some(store) = Store::slow() else { return };
        let layers = [store.layer_alone().await, store.layer_alone().await];
        let db = create(&layers[0], "db", None).await;
        for parent in [false, true] {
            for part in 0..10 {
                let edits = (0..500).map(|number| (format!("d{part}-{number:03}"), parent));
                replicate_all(&db, edits).await;
            }
        }
        let one = layers[0].background(hasty());
        db.compact().await.unwrap();
        one.start();
        let has_come_further = || layers[0].compactions().first().is_some_and(|progress| progress.changes_done > 0);
        let is_over = async || !db.info().await.unwrap().is_compacting;
        until("it has come further", async || has_come_further() || is_over().await).await;
        drop(one);
        until("it has ended", async || layers[0].compactions().is_empty()).await;
        let left = db.info().await.unwrap();
        // All of it may be done before the first look.
        if left.superseded_size_bytes == 0 {
            waiting.pause("a compaction is seen in the middle").await;
            continue;
        }
        assert!(left.superseded_size_bytes > 0 && left.is_compacting, "{left:?}");
        assert_eq!(keys(&store).await.get(&16), Some(&1), "its lease is there still");
        let two = layers[1].background(hasty());
        two.start();
        compacted(&db).await;
        assert_eq!(db.info().await.unwrap().superseded_size_bytes, 0);
        assert_eq!(layers[1].counted("flatbed_compactions"), 0, "it went on with the one that was begun");
        two.stop().await;
        assert_clean(&layers[0], &db).await;
        break;
    }
}

async fn replicate_all(db: &Database, edits: impl Iterator<Item = (String, bool)>) {
    use flatbed_layer::Edit;
    use flatbed_layer::json::{Limits, parse};
    let body = br#"{"a":1}"#;
    let history = |second| if second { vec!["2-b", "1-a"] } else { vec!["1-a"] };
    let edits: Vec<_> = edits
        .map(|(id, second)| Edit {
            expiry: None,
            id: id.into(),
            parent: None,
            history: Some(history(second).into_iter().map(|rev| rev.parse().unwrap()).collect()),
            deleted: false,
            attachments: Vec::new(),
            body: parse(body, &Limits::default()).unwrap(),
        })
        .collect();
    assert!(db.bulk_update(&edits).await.unwrap().iter().all(Result::is_ok));
}

#[tokio::test]
async fn one_bad_database_does_not_end_the_work_of_those_behind_it() {
    let store = Store::new();
    let layer = store.layer_alone().await;
    let mut databases = Vec::new();
    for number in 0..12 {
        let db = create(&layer, &format!("db{number:02}"), None).await;
        superseded(&db, 1, 2_000).await;
        db.compact().await.unwrap();
        databases.push(db);
    }
    let record = pack(&(Bytes::from(store.root.clone()), 1, "db00"));
    change(&store.fdb, |trx| {
        trx.set(&record, b"\xff\xff");
        note_record_change(trx, &store.root, "db00");
    })
    .await;
    let background = store.layer_alone().await.background(BackgroundOptions::default());
    assert_eq!(background.round().await.unwrap(), 11);
    for db in &databases[1..] {
        assert_eq!(db.info().await.unwrap().superseded_size_bytes, 0);
    }
    // A failed task waits, and is retried.
    let failures = || background_failures(&store);
    assert_eq!((background.round().await.unwrap(), failures().await), (0, vec![1]));
    layer.database("db00").delete().await.unwrap_err();
    change(&store.fdb, |trx| {
        trx.clear(&record);
        note_record_change(trx, &store.root, "db00");
    })
    .await;
    assert!(layer.background(ahead()).round().await.unwrap() >= 1);
    assert!(!failures().await.contains(&1));
}

/// Returns how often each due task has failed: the second field of its entry.
async fn background_failures(store: &Store) -> Vec<u8> {
    let due = pack(&(Bytes::from(store.root.clone()), 17));
    let entries = snapshot(store).await.into_iter().filter(|(key, _)| key.starts_with(&due));
    // A tag and a token of 8 bytes, a tag and a count; 0 is left out.
    entries.map(|(_, value)| value.get(10).copied().unwrap_or_default()).collect()
}

#[tokio::test]
async fn what_only_a_newer_program_can_do_is_left_to_it() {
    let store = Store::new();
    let layer = store.layer_alone().await;
    let db = create(&layer, "db", None).await;
    superseded(&db, 1, 2_000).await;
    db.compact().await.unwrap();
    let key = pack(&(Bytes::from(store.root.clone()), 1, "db"));
    let record = snapshot(&store).await.into_iter().find(|(found, _)| *found == key).unwrap().1;
    // With an unknown feature.
    let newer = [&record[..], b"\x6a\x07unknown"].concat();
    let set = async |value: &[u8]| {
        change(&store.fdb, |trx| {
            trx.set(&key, value);
            note_record_change(trx, &store.root, "db");
        })
        .await;
    };
    set(&newer).await;
    let background = layer.background(BackgroundOptions::default());
    let before = keys(&store).await.get(&17).copied();
    assert_eq!((background.round().await.unwrap(), layer.counted("flatbed_background_failures")), (0, 0));
    set(&record).await;
    // The first look records the creations and writes of databases.
    assert!(keys(&store).await.get(&17).copied() > before);
    assert!(background.round().await.unwrap() >= 1);
    assert_eq!(db.info().await.unwrap().superseded_size_bytes, 0);
}

/// One position for all buckets, though documents move between them.
#[tokio::test]
async fn compactions_of_a_database_with_shards_go_on_where_others_were() {
    let store = Store::new();
    let open = |shard| {
        let options = LayerOptions { root: store.root.clone(), shard: Some(shard), ..LayerOptions::default() };
        Layer::open_alone(store.fdb.clone(), options, None)
    };
    let layers = [open(0).await.unwrap(), open(3).await.unwrap()];
    let options = CreateOptions { shards: Some(4), ..CreateOptions::default() };
    layers[0].create_database("db", &options).await.unwrap();
    let databases = layers.each_ref().map(|layer| layer.database("db"));
    let compact = async |number: usize| {
        let rows = layers[number].counted("flatbed_by_seq_rows");
        databases[number].compact().await.unwrap();
        layers[number].background(BackgroundOptions::default()).round().await.unwrap();
        assert_eq!(databases[0].info().await.unwrap().superseded_size_bytes, 0);
        layers[number].counted("flatbed_by_seq_rows") - rows
    };
    let mut revs = Vec::new();
    for number in 0..30 {
        let (db, id) = (&databases[number % 2], format!("d{number}"));
        let first = put(db, &id, None, "{}").await.unwrap();
        revs.push(put(db, &id, Some(&first), "{}").await.unwrap());
    }
    let compacted = [compact(0).await, compact(0).await, compact(1).await];
    // If one bucket's page is short, rows of the others are read again.
    assert!(compacted == [30, 0, 0] || !pages_are_full() && compacted[0] >= 30, "{compacted:?}");
    // Ten stay in their bucket, ten move to the other one, which was examined as well.
    for (number, rev) in revs.iter().enumerate().filter(|(number, _)| number % 3 < 2) {
        put(&databases[number % 3], &format!("d{number}"), Some(rev), "{}").await.unwrap();
    }
    let compacted = [compact(1).await, compact(0).await];
    assert!(compacted == [20, 0] || !pages_are_full() && compacted[0] >= 20, "{compacted:?}");
    assert_clean(&layers[0], &databases[0]).await;
}
