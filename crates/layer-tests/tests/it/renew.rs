//! Renewals after a restore: a store goes on in another epoch, its feeds and sequences with it, and nothing is rewritten.

use std::time::Duration;

use crate::support::{
    Store, all_changes, assert_clean, change, create, delete, get, put, put_back, rows_between, snapshot,
};
use flatbed_clock::{Clock, ManualClock};
use flatbed_layer::renew::{RenewalReport, Roots, renew, roots};
use flatbed_layer::waits;
use flatbed_layer::{ChangesQuery, CreateOptions, Database, Error, Refusal, Seq, Since};
use foundationdb::tuple::pack;

/// Returns the position of a feed that begins after `since`, and its rows.
async fn follow(db: &Database, since: Since) -> (Seq, Vec<String>) {
    let mut changes = db.changes(ChangesQuery { since, ..ChangesQuery::default() });
    let mut rows = Vec::new();
    loop {
        let page = changes.next_page().await.expect("a page");
        rows.extend(page.rows.into_iter().map(|row| row.id));
        if page.at_end {
            return (page.last_seq.seq(), rows);
        }
    }
}

async fn after(db: &Database, seq: Seq) -> Vec<String> {
    follow(db, Since::after(seq)).await.1
}

async fn renewed(store: &Store, clock: &Clock) -> u32 {
    renew(&store.fdb, &store.root, clock).await.expect("renewed").epoch
}

#[tokio::test]
async fn followers_go_on() {
    let store = Store::new();
    let layer = store.layer().await;
    let (db, empty) = (create(&layer, "db", None).await, create(&layer, "empty", None).await);
    for n in 0..30 {
        put(&db, &format!("d{n:02}"), None, "{}").await.unwrap();
    }
    let first = put(&db, "first", None, r#"{"n":1}"#).await.unwrap();
    put(&db, "first", Some(&first), r#"{"n":2}"#).await.unwrap();
    let gone = put(&db, "gone", None, "{}").await.unwrap();
    delete(&db, "gone", &gone).await.unwrap();
    let before = all_changes(&db).await;
    let seen = db.update_seq().await.unwrap();
    let seen_empty = empty.update_seq().await.unwrap();
    let info = db.info().await.unwrap();
    let rows = snapshot(&store).await;
    let epoch = renewed(&store, &Clock::system()).await;
    assert!(epoch > 1_700_000_000);
    let changed: Vec<_> = rows
        .iter()
        .zip(snapshot(&store).await)
        .filter(|(before, after)| *before != after)
        .map(|(row, _)| &row.0)
        .collect();
    let root = foundationdb::tuple::Bytes::from(store.root.clone());
    assert_eq!(changed, [&pack(&(root, 0))], "nothing else is written");

    // A layer that was open all the time notices, as does one that is opened now.
    let layers = [layer.clone(), store.layer().await];
    for layer in &layers {
        let (db, empty) = (layer.database("db"), layer.database("empty"));
        assert_clean(layer, &db).await;
        assert_eq!(all_changes(&db).await, before);
        let now = db.update_seq().await.unwrap();
        assert!(now > seen && now.epoch() == epoch, "behind all of the restored state, and before new changes");
        assert!(empty.update_seq().await.unwrap() > seen_empty);
        let (last, rows) = follow(&db, Since::after(before[20].seq)).await;
        assert_eq!((last, rows.len()), (now, before.len() - 21));
        for since in [seen, now, last] {
            assert!(after(&db, since).await.is_empty());
        }
        let now = db.info().await.unwrap();
        assert_eq!((now.doc_count, now.doc_del_count), (info.doc_count, info.doc_del_count));
        assert_eq!(now.incarnation, info.incarnation);
    }
    // Both continue from there, and an old document moves to the end.
    put(&db, "later", None, "{}").await.unwrap();
    let moved = before.iter().find(|row| row.id == "d03").unwrap().rev.clone();
    put(&layers[1].database("db"), "d03", Some(&moved), "{}").await.unwrap();
    let all = all_changes(&db).await;
    assert!(all.is_sorted_by_key(|row| row.seq) && all.len() == before.len() + 1);
    let texts: Vec<_> = all.iter().map(|row| row.seq.to_string()).collect();
    let number = |text: &String| text.split_once('-').unwrap().0.parse::<u128>().unwrap();
    assert!(texts.iter().map(number).is_sorted(), "{texts:?}");
    assert!(texts.iter().zip(&all).all(|(text, row)| text.parse::<Seq>().unwrap() == row.seq));
    for layer in &layers {
        let db = layer.database("db");
        assert_eq!(after(&db, seen).await, ["later", "d03"]);
        assert_eq!(after(&db, before[31].seq).await.last().unwrap(), "d03");
        assert_clean(layer, &db).await;
    }
    assert_eq!(get(&db, "first").await.unwrap(), r#"{"n":2}"#);
}

/// Positions that followers took in states of the store that restores have lost.
#[tokio::test]
async fn positions_of_lost_states() {
    let manual = ManualClock::new();
    let clock = manual.clock();
    let pass = || manual.advance(Duration::from_secs(100));
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    for id in ["a", "b"] {
        put(&db, id, None, "{}").await.unwrap();
    }
    let first = snapshot(&store).await;
    let kept = db.update_seq().await.unwrap();
    put(&db, "lost", None, "{}").await.unwrap();
    let lost_of_0 = db.update_seq().await.unwrap();

    put_back(&store, &first).await;
    let one = renewed(&store, &clock).await;
    assert_eq!(one, 1_700_000_000);
    let begin_of_one = db.update_seq().await.unwrap();
    put(&db, "c", None, "{}").await.unwrap();
    // New changes come after the lost future, too.
    for since in [kept, lost_of_0, begin_of_one] {
        assert_eq!(after(&db, since).await, ["c"]);
    }
    let of_one = db.update_seq().await.unwrap();
    let second = snapshot(&store).await;
    put(&db, "lost", None, "{}").await.unwrap();
    let lost_of_one = db.update_seq().await.unwrap();

    // A backup of the new epoch.
    pass();
    put_back(&store, &second).await;
    let two = renewed(&store, &clock).await;
    assert_eq!(two, one + 100);
    put(&db, "d", None, "{}").await.unwrap();
    for (since, rows) in
        [(kept, vec!["c", "d"]), (lost_of_0, vec!["c", "d"]), (of_one, vec!["d"]), (lost_of_one, vec!["d"])]
    {
        assert_eq!(after(&db, since).await, rows, "{since}");
    }
    let of_two = db.update_seq().await.unwrap();
    assert_clean(&layer, &db).await;

    // The older backup again: the two epochs behind it are not in its history.
    pass();
    put_back(&store, &first).await;
    let three = renewed(&store, &clock).await;
    assert_eq!(three, two + 100, "as high as none that the lost states have begun");
    put(&db, "e", None, "{}").await.unwrap();
    for (since, rows) in [(kept, vec!["e"]), (of_one, vec!["a", "b", "e"]), (of_two, vec!["a", "b", "e"])] {
        assert_eq!(after(&db, since).await, rows, "{since}");
        // A follower from there is not held back by the shared rows either.
        let mut changes = db.changes(ChangesQuery { since: Since::after(since), ..ChangesQuery::default() });
        let page = changes.next_page().await.unwrap();
        assert!(page.last_seq.seq().epoch() == three && page.rows.len() == rows.len());
    }
    assert_clean(&layer, &db).await;
}

#[tokio::test]
async fn a_renewal_takes_one_transaction_whatever_there_is() {
    let mut counted = Vec::new();
    for databases in [1, 50] {
        let store = Store::new();
        let layer = store.layer().await;
        for n in 0..databases {
            let db = create(&layer, &format!("db{n}"), None).await;
            put(&db, "d", None, "{}").await.unwrap();
        }
        let (report, waits) = waits::count(renew(&store.fdb, &store.root, &ManualClock::new().clock())).await;
        assert_eq!(report.unwrap(), RenewalReport { epoch: 1_700_000_000 });
        counted.push((waits.transactions, waits.point_reads, waits.range_reads, waits.keys_read, waits.keys_written));
    }
    assert_eq!(counted[0], counted[1]);
    // The root's record, and the buckets of access versions.
    assert_eq!((counted[0].0, counted[0].1, counted[0].2), (1, 1, 1));
}

#[tokio::test]
async fn faults_and_further_renewals_do_no_harm() {
    let Some(store) = Store::with_faults(0.2, 7_700) else { return };
    let layer = store.layer().await;
    let db = loop {
        match layer.create_database("db", &CreateOptions::default()).await {
            Ok(()) | Err(Error::DatabaseExists) => break layer.database("db"),
            Err(_) => {}
        }
    };
    let (mut seen, mut epoch, clock) = (Seq::zero(0), 0, ManualClock::new().clock());
    let mut rows = Vec::new();
    for n in 0..20 {
        let id = format!("d{n:02}");
        while !matches!(put(&db, &id, None, "{}").await, Ok(_) | Err(Error::Refused(Refusal::Conflict))) {}
        rows.push(id.clone());
        if n > 0 {
            assert_eq!(after(&db, seen).await, [id]);
        }
        let before = epoch;
        let one = async || renew(&store.fdb, &store.root, &clock).await;
        let (a, b) = tokio::join!(one(), one());
        let (a, b) = (a.unwrap().epoch, b.unwrap().epoch);
        epoch = a.max(b);
        assert!(a != b && a > before && b > before, "{before} {a} {b}");
        seen = db.update_seq().await.unwrap();
        assert_eq!(seen.epoch(), epoch);
        assert_eq!(follow(&db, Since::Beginning).await, (seen, rows.clone()));
    }
    assert_clean(&layer, &db).await;
}

#[tokio::test]
async fn all_roots_are_found() {
    let store = Store::new();
    let mut expected = Vec::new();
    for suffix in [&b""[..], b"\0", b"\0\0a", b"\xff", b"b"] {
        let root = [store.root.as_slice(), suffix].concat();
        let options = flatbed_layer::LayerOptions { root: root.clone(), ..Default::default() };
        let layer = crate::support::Layer::open(store.fdb.clone(), options).await.unwrap();
        create(&layer, "db", None).await;
        put(&layer.database("db"), "d", None, "{}").await.unwrap();
        expected.push(root);
    }
    // Keys of other programs, some of which look like a layer's.
    let other = foundationdb::tuple::Bytes::from([store.root.as_slice(), b"other"].concat());
    let others = [
        [b"\x01", store.root.as_slice(), b"endless"].concat(),
        pack(&(other.clone(), 0)),
        pack(&(other.clone(), "k")),
        [b"\x02", store.root.as_slice()].concat(),
        [b"\0", store.root.as_slice()].concat(),
    ];
    change(&store.fdb, |trx| others.iter().for_each(|key| trx.set(key, b"value"))).await;
    let mut found = roots(&store.fdb).await.unwrap().known;
    found.retain(|root| root.starts_with(&store.root));
    expected.sort();
    assert_eq!(found, expected);
    // A single root is renewed.
    renew(&store.fdb, &expected[1], &Clock::system()).await.unwrap();
}

#[tokio::test]
async fn a_root_of_an_older_format_does_not_hide_the_others() {
    let store = Store::new();
    let mut expected = Vec::new();
    for suffix in ["a", "b", "c"] {
        let root = [store.root.as_slice(), suffix.as_bytes()].concat();
        let options = flatbed_layer::LayerOptions { root: root.clone(), ..Default::default() };
        let layer = crate::support::Layer::open(store.fdb.clone(), options).await.unwrap();
        create(&layer, "db", None).await;
        expected.push(root);
    }
    let old = expected.remove(1);
    let key = pack(&(foundationdb::tuple::Bytes::from(old.clone()), 0));
    let end = [key.as_slice(), &[0]].concat();
    let rows = loop {
        if let Ok(rows) = rows_between(&store.fdb.create_trx().unwrap(), &key, &end).await {
            break rows;
        }
    };
    // `format_version` is field 1.
    let mut record = rows[0].1.clone();
    assert_eq!(record[0], 0x08);
    record[1] = 1;
    change(&store.fdb, |trx| trx.set(&key, &record)).await;
    let Roots { mut known, mut too_old } = roots(&store.fdb).await.unwrap();
    known.retain(|root| root.starts_with(&store.root));
    too_old.retain(|(root, _)| root.starts_with(&store.root));
    assert_eq!(known, expected);
    let [(root, Error::FormatTooOld { found: 1, .. })] = &too_old[..] else { panic!("{too_old:?}") };
    assert_eq!(*root, old);
}
