//! Stores after a restore: other incarnations and stamps, and otherwise the same content; no server writes from an old
//! cache.

use crate::support::{Store, all_changes, assert_clean, change, create, delete, get, put, rows_between};
use flatbed_layer::renew::{RenewalReport, Roots, renew, roots};
use flatbed_layer::{ChangesQuery, CreateOptions, Database, Edit, Error, Refusal, Seq, Since, json};
use foundationdb::tuple::pack;

/// Returns the position of a feed that begins after `since`, and the number of its rows.
async fn follow(db: &Database, since: Since) -> (Seq, usize) {
    let mut changes = db.changes(ChangesQuery { since, ..ChangesQuery::default() });
    let mut rows = 0;
    loop {
        let page = changes.next_page().await.expect("a page");
        rows += page.rows.len();
        if page.at_end {
            return (page.last_seq.seq(), rows);
        }
    }
}

#[tokio::test]
async fn followers_begin_anew() {
    let store = Store::new();
    let layer = store.layer().await;
    let (db, empty) = (create(&layer, "db", None).await, create(&layer, "empty", None).await);
    // More than a page of entries, some of them long; edited and deleted documents.
    let id = |n: usize| format!("{n:05}{}", "i".repeat(if n.is_multiple_of(7) { 900 } else { 0 }));
    for chunk in (0..5_000).collect::<Vec<_>>().chunks(500) {
        let body = || json::parse(b"{}", &json::Limits::default()).expect("JSON");
        let edits: Vec<_> = chunk
            .iter()
            .map(|n| Edit {
                expiry: None,
                id: id(*n).into(),
                parent: None,
                history: None,
                deleted: false,
                attachments: Vec::new(),
                body: body(),
            })
            .collect();
        assert!(db.bulk_update(&edits).await.unwrap().iter().all(Result::is_ok));
    }
    let first = put(&db, "first", None, r#"{"n":1}"#).await.unwrap();
    put(&db, "first", Some(&first), r#"{"n":2}"#).await.unwrap();
    let gone = put(&db, "gone", None, "{}").await.unwrap();
    delete(&db, "gone", &gone).await.unwrap();
    let before = all_changes(&db).await;
    let (seen, _) = follow(&db, Since::Beginning).await;
    let seen_empty = empty.update_seq().await.unwrap();
    let info = db.info().await.unwrap();

    let mut told = Vec::new();
    let renewed = renew(&store.fdb, &store.root, false, |moved| told.push(moved)).await.unwrap();
    assert_eq!(renewed, RenewalReport { databases: 2, entries: 5_002 });
    assert!(told.is_sorted() && told.len() > 3 && told.last() == Some(&5_002), "{told:?}");

    // A layer that was open all the time notices, as does one that is opened now.
    for layer in [layer.clone(), store.layer().await] {
        let (db, empty) = (layer.database("db"), layer.database("empty"));
        assert_clean(&layer, &db).await;
        let after = all_changes(&db).await;
        let rows = |rows: &[flatbed_layer::ChangeRow]| -> Vec<_> {
            rows.iter().map(|row| (row.id.clone(), row.rev.clone(), row.deleted)).collect()
        };
        assert_eq!(rows(&after), rows(&before), "the same changes in the same order");
        assert!(after.iter().zip(&before).all(|(after, before)| after.seq != before.seq));
        assert_eq!(follow(&db, Since::after(seen)).await.1, before.len(), "an old sequence means the beginning");
        let (last, _) = follow(&db, Since::after(before[4_000].seq)).await;
        assert_eq!(last, db.update_seq().await.unwrap());
        assert_eq!(follow(&db, Since::after(after[4_000].seq)).await.1, before.len() - 4_001);
        assert_ne!(empty.update_seq().await.unwrap(), seen_empty);
        let now = db.info().await.unwrap();
        assert_eq!((now.doc_count, now.doc_del_count), (info.doc_count, info.doc_del_count));
        assert_ne!(now.incarnation, info.incarnation);
    }
    // Both continue from there.
    assert_eq!(get(&db, "first").await.unwrap(), r#"{"n":2}"#);
    let (last, _) = follow(&db, Since::Beginning).await;
    put(&db, "later", None, "{}").await.unwrap();
    assert_eq!(follow(&db, Since::after(last)).await.1, 1);
    assert_clean(&layer, &db).await;
}

#[tokio::test]
async fn what_was_interrupted_is_done_again() {
    // Raw keys of a database without shards.
    let store = Store::new().sharded(1);
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    for n in 0..20 {
        put(&db, &format!("d{n}"), None, "{}").await.unwrap();
    }
    let (seen, _) = follow(&db, Since::Beginning).await;
    // As after an interruption: the entries are in another incarnation than the record.
    let namespace = |n: u64| {
        let root = foundationdb::tuple::Bytes::from(store.root.clone());
        (pack(&(root.clone(), 3, n, 3)), pack(&(root, 3, n, 4)))
    };
    let (begin, end) = namespace(1);
    let rows = loop {
        if let Ok(rows) = rows_between(&store.fdb.create_trx().unwrap(), &begin, &end).await {
            break rows;
        }
    };
    assert_eq!(rows.len(), 20);
    let moved = |trx: &foundationdb::Transaction| {
        for (key, value) in rows.iter().take(12) {
            let (_, stamp) = key.split_at(key.len() - 13);
            trx.set(&[begin.as_slice(), b"\x18\x01\x02\x03\x04", stamp].concat(), value);
            trx.clear(key);
        }
    };
    change(&store.fdb, moved).await;
    assert_eq!(all_changes(&db).await.len(), 8);

    let renewed = renew(&store.fdb, &store.root, false, |_| {}).await.unwrap();
    assert_eq!(renewed, RenewalReport { databases: 1, entries: 20 });
    assert_clean(&layer, &db).await;
    let (once, rows) = follow(&db, Since::after(seen)).await;
    assert_eq!(rows, 20);
    // Each renewal draws another incarnation.
    renew(&store.fdb, &store.root, false, |_| {}).await.unwrap();
    assert_eq!(follow(&db, Since::after(once)).await.1, 20);
    assert_clean(&layer, &db).await;
}

#[tokio::test]
async fn faults_lose_no_entry() {
    let Some(store) = Store::with_faults(0.2, 7_700) else { return };
    let layer = store.layer().await;
    let db = loop {
        match layer.create_database("db", &CreateOptions::default()).await {
            Ok(()) | Err(Error::DatabaseExists) => break layer.database("db"),
            Err(_) => {}
        }
    };
    for n in 0..100 {
        while !matches!(put(&db, &format!("d{n}"), None, "{}").await, Ok(_) | Err(Error::Refused(Refusal::Conflict))) {}
    }
    let (seen, rows) = follow(&db, Since::Beginning).await;
    assert_eq!(rows, 100);
    for _ in 0..20 {
        let renewed = renew(&store.fdb, &store.root, false, |_| {}).await.unwrap();
        assert_eq!(renewed, RenewalReport { databases: 1, entries: 100 }, "what was moved is counted once");
        assert_eq!(follow(&db, Since::after(seen)).await.1, 100);
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
    let renewed = renew(&store.fdb, &expected[1], false, |_| {}).await.unwrap();
    assert_eq!(renewed, RenewalReport { databases: 1, entries: 1 });
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
