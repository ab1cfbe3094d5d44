//! Creation and deletion of databases, at one server and at two.

use std::time::Duration;

use crate::support::{Store, all_changes, assert_clean, create, get, put, soon};
use flatbed_layer::{
    AllDocsQuery, ChangesQuery, CreateOptions, Error, LayerOptions, NameRange, Refusal, SECURITY_BYTES_MAX, Since,
    WaitOutcome,
};
use flatbed_testkit::pass;

#[tokio::test]
async fn create_list_delete() {
    let store = Store::new();
    let layer = store.layer().await;
    for name in ["c", "a", "b"] {
        create(&layer, name, None).await;
    }
    assert!(matches!(layer.create_database("a", &CreateOptions::default()).await, Err(Error::DatabaseExists)));
    assert!(matches!(
        layer.create_database("A", &CreateOptions::default()).await,
        Err(Error::Refused(Refusal::IllegalDatabaseName(_)))
    ));
    assert_eq!(layer.all_databases(&NameRange::default()).await.unwrap(), ["a", "b", "c"]);
    let range = NameRange { start: Some("b".into()), descending: true, limit: Some(1), ..NameRange::default() };
    assert_eq!(layer.all_databases(&range).await.unwrap(), ["b"]);
    let range = NameRange { end: Some("c".into()), exclusive_end: true, skip: 1, ..NameRange::default() };
    assert_eq!(layer.all_databases(&range).await.unwrap(), ["b"]);
    layer.delete_database("b").await.unwrap();
    assert!(matches!(layer.delete_database("b").await, Err(Error::DatabaseNotFound)));
    assert!(matches!(get(&layer.database("b"), "d").await, Err(Error::DatabaseNotFound)));
    assert!(matches!(put(&layer.database("b"), "d", None, "{}").await, Err(Error::DatabaseNotFound)));
    assert_eq!(layer.all_databases(&NameRange::default()).await.unwrap(), ["a", "c"]);
}

#[tokio::test]
async fn changes_of_security_at_once_are_all_kept() {
    let store = Store::new();
    let (one, two) = (store.layer().await, store.layer().await);
    let (at_one, at_two) = (create(&one, "db", None).await, two.database("db"));
    let add = |name: &'static [u8]| move |text: &[u8]| Some([text, name].concat());
    let (a, b) = tokio::join!(at_one.change_security(add(b"a")), at_two.change_security(add(b"b")));
    a.and(b).unwrap();
    let found = at_one.security().await.unwrap().unwrap();
    assert!([&b"ab"[..], b"ba"].contains(&&found[..]), "{found:?}");
    // Neither `None` nor too much changes it.
    at_two.change_security(|_| None).await.unwrap();
    at_two.change_security(|_| Some(vec![b' '; SECURITY_BYTES_MAX + 1])).await.unwrap();
    assert_eq!(at_one.security().await.unwrap().unwrap(), found);
}

#[tokio::test]
async fn two_servers_see_one_another() {
    let store = Store::new();
    let (one, two) = (store.layer().await, store.layer().await);
    assert_eq!(one.uuid(), two.uuid());
    let at_one = create(&one, "db", None).await;
    let at_two = two.database("db");
    let rev = put(&at_one, "d", None, r#"{"from":"one"}"#).await.unwrap();
    assert_eq!(get(&at_two, "d").await.unwrap(), r#"{"from":"one"}"#);
    // Both servers allocate fields.
    for n in 0..30 {
        put(&at_one, &format!("o{n}"), None, &format!(r#"{{"one{n}":1,"both{n}":{{"x{n}":2}}}}"#)).await.unwrap();
        put(&at_two, &format!("t{n}"), None, &format!(r#"{{"both{n}":1,"two{n}":2}}"#)).await.unwrap();
        assert_eq!(get(&at_one, &format!("t{n}")).await.unwrap(), format!(r#"{{"both{n}":1,"two{n}":2}}"#));
    }
    assert_clean(&two, &at_two).await;
    // After deletion and creation at one server, the other one neither sees nor writes the old database.
    let old_seq = at_two.update_seq().await.unwrap();
    one.delete_database("db").await.unwrap();
    assert!(matches!(get(&at_two, "d").await, Err(Error::DatabaseNotFound)));
    create(&one, "db", Some(0)).await;
    put(&at_two, "d", None, r#"{"x":1,"from":"new"}"#).await.unwrap();
    assert!(matches!(put(&at_two, "d", Some(&rev), "{}").await, Err(Error::Refused(Refusal::Conflict))));
    assert_eq!(get(&at_one, "d").await.unwrap(), r#"{"x":1,"from":"new"}"#);
    // A sequence of the old one means the beginning.
    let mut changes = at_two.changes(ChangesQuery { since: Since::after(old_seq), ..ChangesQuery::default() });
    assert_eq!(changes.next_page().await.unwrap().rows.len(), 1);
    assert_clean(&one, &at_one).await;
}

#[tokio::test]
async fn nothing_is_kept_of_databases_that_are_gone() {
    let store = Store::new();
    let (one, two) = (store.layer().await, store.layer().await);
    for n in 0..20 {
        let db = create(&one, &format!("db{n}"), None).await;
        put(&db, "d", None, r#"{"a":1}"#).await.unwrap();
        assert_eq!(get(&two.database(&format!("db{n}")), "d").await.unwrap(), r#"{"a":1}"#);
    }
    assert_eq!((one.databases_cached(), two.databases_cached()), (20, 20));
    // Lookups of missing databases leave no entries.
    for n in 20..40 {
        let db = one.database(&format!("db{n}"));
        assert!(matches!(get(&db, "d").await, Err(Error::DatabaseNotFound)));
        assert!(matches!(put(&db, "d", None, "{}").await, Err(Error::DatabaseNotFound)));
    }
    assert_eq!(one.databases_cached(), 20);
    for n in 0..10 {
        one.delete_database(&format!("db{n}")).await.unwrap();
    }
    // Another database of the same name.
    create(&one, "db0", None).await;
    one.forget_gone_databases().await.unwrap();
    two.forget_gone_databases().await.unwrap();
    assert_eq!((one.databases_cached(), two.databases_cached()), (10, 10));
    assert_eq!(get(&two.database("db10"), "d").await.unwrap(), r#"{"a":1}"#);
    assert!(matches!(get(&two.database("db0"), "d").await, Err(Error::Refused(Refusal::DocumentNotFound(_)))));
    assert_eq!(two.forget_gone_databases().await.unwrap(), 0);
}

#[tokio::test]
async fn few_databases_are_held_in_memory() {
    let store = Store::new();
    let options = LayerOptions { database_cache_bytes: 8 * 5_000, ..LayerOptions::default() };
    let layer = store.layer_with(options).await;
    let followed = create(&layer, "followed", None).await;
    let mut changes = followed.changes(ChangesQuery::default());
    changes.next_page().await.unwrap();
    for n in 0..40 {
        put(&create(&layer, &format!("db{n}"), None).await, "d", None, &format!(r#"{{"a{n}":1}}"#)).await.unwrap();
        assert!(layer.databases_cached() <= 9, "{}", layer.databases_cached());
    }
    for n in 0..40 {
        assert_eq!(get(&layer.database(&format!("db{n}")), "d").await.unwrap(), format!(r#"{{"a{n}":1}}"#));
    }
    // Its follower sees changes, though the cache was full many times.
    let waited = tokio::spawn(async move {
        let came = changes.wait().await;
        (came, changes)
    });
    put(&followed, "d", None, "{}").await.unwrap();
    assert_eq!(soon(waited).await.unwrap().0, WaitOutcome::MayHaveChanged);
}

#[tokio::test]
async fn a_follower_at_one_server_sees_writes_at_the_other() {
    let store = Store::new();
    let (one, two) = (store.layer().await, store.layer().await);
    let at_one = create(&one, "db", None).await;
    let mut changes = two.database("db").changes(ChangesQuery { since: Since::Now, ..ChangesQuery::default() });
    assert!(changes.next_page().await.unwrap().at_end);
    let writer = tokio::spawn(async move {
        for n in 0..200 {
            put(&at_one, &format!("d{n}"), None, "{}").await.unwrap();
            if n % 20 == 0 {
                pass(Duration::from_millis(20)).await;
            }
        }
    });
    let mut seen = Vec::new();
    while seen.len() < 200 {
        assert_eq!(soon(changes.wait()).await, WaitOutcome::MayHaveChanged);
        loop {
            let page = changes.next_page().await.unwrap();
            seen.extend(page.rows.into_iter().map(|row| (row.seq, row.id)));
            if page.at_end {
                break;
            }
        }
    }
    writer.await.unwrap();
    assert!(seen.is_sorted_by(|a, b| a.0 < b.0));
    assert_eq!(
        seen.iter().map(|row| &row.1).collect::<Vec<_>>(),
        (0..200).map(|n| format!("d{n}")).collect::<Vec<_>>().iter().collect::<Vec<_>>()
    );
    let fired = flatbed_metrics::total(&two.metrics(), "flatbed_watches_fired");
    assert!(fired > 0);
    // The shutdown of the server ends the wait.
    two.shutdown();
    assert_eq!(soon(changes.wait()).await, WaitOutcome::Shutdown);
}

#[tokio::test]
async fn deletion_under_writers_leaves_nothing_behind() {
    let store = Store::new();
    let (one, two) = (store.layer().await, store.layer().await);
    create(&one, "db", None).await;
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let db = if writer % 2 == 0 { one.database("db") } else { two.database("db") };
            tokio::spawn(async move {
                for n in 0..100 {
                    match put(&db, &format!("w{writer}-{n}"), None, &format!(r#"{{"f{n}":1}}"#)).await {
                        Ok(_) | Err(Error::DatabaseNotFound) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        })
        .collect();
    for _ in 0..10 {
        pass(Duration::from_millis(5)).await;
        one.delete_database("db").await.unwrap();
        create(&two, "db", None).await;
    }
    for writer in writers {
        writer.await.unwrap();
    }
    assert_clean(&one, &one.database("db")).await;
}

#[tokio::test]
async fn walks_go_page_by_page_both_ways() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let ids: Vec<String> = (0..2_500).map(|n| format!("d{n:05}")).collect();
    for chunk in ids.chunks(500) {
        let edits: Vec<_> = chunk
            .iter()
            .map(|id| flatbed_layer::Edit {
                expiry: None,
                id: id.as_str().into(),
                parent: None,
                history: None,
                deleted: false,
                attachments: Vec::new(),
                body: flatbed_layer::json::parse(br#"{"v":1}"#, &Default::default()).unwrap(),
            })
            .collect();
        assert!(db.bulk_update(&edits).await.unwrap().iter().all(Result::is_ok));
    }
    assert_eq!(all_changes(&db).await.len(), ids.len());
    for include_docs in [false, true] {
        for descending in [false, true] {
            let query = AllDocsQuery {
                start: Some(if descending { "d02400" } else { "d00100" }.into()),
                end: Some(if descending { "d00100" } else { "d02400" }.into()),
                exclusive_end: true,
                partition: None,
                descending,
                include_docs,
                conflicts: false.into(),
                skip: 10,
                limit: Some(2_200),
            };
            let mut walk = db.all_docs(query);
            assert_eq!(walk.total_rows().await.unwrap(), Some(2_500));
            let mut found = Vec::new();
            while let Some(page) = walk.next_page().await.unwrap() {
                assert!(page.iter().all(|row| row.doc.is_some() == include_docs));
                found.extend(page.into_iter().map(|row| row.id));
            }
            let mut expected: Vec<String> = ids[100..2_400].to_vec();
            if descending {
                expected = ids[101..=2_400].iter().rev().cloned().collect();
            }
            let expected: Vec<String> = expected.into_iter().skip(10).take(2_200).collect();
            assert_eq!(found, expected, "include_docs {include_docs}, descending {descending}");
        }
    }
}
