//! Writes and reads of single documents, in both layouts.

use crate::support::{Store, all_changes, assert_clean, braces, create, delete, get, pages_are_full, put};
use flatbed_layer::{AllDocsQuery, CreateOptions, Error, GetOptions, NotFound, Refusal, RevId, check};
use flatbed_testkit::until;

const LAYOUTS: [Option<u32>; 3] = [Some(0), None, Some(60_000)];

#[tokio::test]
async fn an_edit_replaces_the_whole_document() {
    let store = Store::new();
    let layer = store.layer().await;
    for (at, run_bytes) in LAYOUTS.into_iter().enumerate() {
        let db = create(&layer, &format!("db{at}"), run_bytes).await;
        let first = put(&db, "d", None, r#"{"a":1,"gone":{"x":[1,2]},"z":"y"}"#).await.unwrap();
        let second = put(&db, "d", Some(&first), r#"{"z":1.0,"a":{}}"#).await.unwrap();
        assert_eq!(get(&db, "d").await.unwrap(), r#"{"z":1.0,"a":{}}"#);
        let old = GetOptions { rev: Some(first.clone()), revs: true, ..GetOptions::default() };
        let old = db.get("d", &old).await.unwrap();
        assert_eq!(braces(&old.body), r#"{"a":1,"gone":{"x":[1,2]},"z":"y"}"#);
        assert_eq!(old.revisions, Some(vec![first.clone()]));
        let new = GetOptions { revs: true, revs_info: true, local_seq: true, ..GetOptions::default() };
        let new = db.get("d", &new).await.unwrap();
        assert_eq!(new.revisions, Some(vec![second.clone(), first.clone()]));
        assert_eq!(new.revs_info, Some(vec![(second.clone(), true), (first.clone(), true)]));
        assert_eq!(new.local_seq, Some(db.update_seq().await.unwrap()));
        assert!(matches!(put(&db, "d", Some(&first), "{}").await, Err(Error::Refused(Refusal::Conflict))));
        assert!(matches!(put(&db, "d", None, "{}").await, Err(Error::Refused(Refusal::Conflict))));
        assert_clean(&layer, &db).await;
    }
}

#[tokio::test]
async fn a_document_that_is_small_only_as_it_is_stored_is_large() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let text = format!(r#"{{"x":"{}"}}"#, "y".repeat(300_000));
    let first = put(&db, "d", None, &text).await.unwrap();
    let small = GetOptions { small_only: true, ..GetOptions::default() };
    assert!(matches!(db.get("d", &small).await, Err(Error::Refused(Refusal::LargeDocument))));
    put(&db, "d", Some(&first), "{}").await.unwrap();
    // A body whose first page is short counts as large: the caller reads it again.
    assert!(db.get("d", &small).await.is_ok() || !pages_are_full());
    let superseded = GetOptions { rev: Some(first), ..small };
    assert!(matches!(db.get("d", &superseded).await, Err(Error::Refused(Refusal::LargeDocument))));
}

#[tokio::test]
async fn tombstones_and_what_is_created_on_them() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let first = put(&db, "d", None, r#"{"a":1}"#).await.unwrap();
    let gone = delete(&db, "d", &first).await.unwrap();
    assert_eq!(gone.generation(), 2);
    assert!(matches!(get(&db, "d").await, Err(Error::Refused(Refusal::DocumentNotFound(NotFound::Deleted)))));
    assert!(matches!(get(&db, "never").await, Err(Error::Refused(Refusal::DocumentNotFound(NotFound::Missing)))));
    let info = db.info().await.unwrap();
    assert_eq!((info.doc_count, info.doc_del_count), (0, 1));
    assert!(db.all_docs(AllDocsQuery::default()).next_page().await.unwrap().is_none());
    let again = put(&db, "d", None, r#"{"a":"again"}"#).await.unwrap();
    assert_eq!(again.generation(), 3);
    let line = db.get("d", &GetOptions { revs: true, ..GetOptions::default() }).await.unwrap().revisions.unwrap();
    assert_eq!(line, vec![again, gone, first]);
    let rows = all_changes(&db).await;
    assert_eq!(rows.len(), 1, "one by-seq entry a document");
    assert_clean(&layer, &db).await;
}

#[tokio::test]
async fn revision_ids_are_couchdbs() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let mut parent = None;
    for (body, expected) in [
        (r#"{"a":1}"#, "1-23202479633c2b380f79507a776743d5"),
        (r#"{"a":2}"#, "2-71173597778497e0a6aa176963f222db"),
        (r#"{"a":3}"#, "3-28390acbb2afb09d34e8e35d2d2211ad"),
        (r#"{"a":4}"#, "4-4e79cc8e9c422f2b504fffffc6d807b8"),
        (r#"{"_deleted":true}"#, "5-791a11b72507e9181d9d311707b746dc"),
        (r#"{"a":"again"}"#, "6-b88dae42630d5303238acc79a46a5221"),
    ] {
        let rev = put(&db, "d", parent.as_ref(), body).await.unwrap();
        assert_eq!(rev.to_string(), expected);
        parent = Some(rev);
    }
    // A first edit may name an unknown parent.
    let unknown: RevId = "1-967a00dff5e02add41819138abb3284d".parse().unwrap();
    let rev = put(&db, "missing", Some(&unknown), r#"{"a":1}"#).await.unwrap();
    assert_eq!(rev.to_string(), "2-4f54ab3740f3104eec1cf2ec2b0327ed");
    // But not one that no edit can create.
    let invented: RevId = "1-123".parse().unwrap();
    assert!(matches!(put(&db, "new", Some(&invented), "{}").await, Err(Error::Refused(Refusal::Conflict))));
    assert_clean(&layer, &db).await;
}

#[tokio::test]
async fn long_histories_stay_bounded_and_are_stemmed() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let mut line: Vec<RevId> = Vec::new();
    for edit in 0..1_100 {
        line.push(put(&db, "d", line.last(), &format!(r#"{{"n":{edit}}}"#)).await.unwrap());
    }
    line.reverse();
    line.truncate(1_000);
    let options = GetOptions { revs: true, revs_info: true, ..GetOptions::default() };
    let document = db.get("d", &options).await.unwrap();
    assert_eq!(document.revisions.unwrap(), line);
    assert!(document.revs_info.unwrap().iter().all(|(_, available)| *available));
    assert_clean(&layer, &db).await;
}

#[tokio::test]
async fn values_come_back_as_written() {
    let store = Store::new();
    let layer = store.layer().await;
    let deep = format!("{}1{}", r#"{"d":["#.repeat(40), "]}".repeat(40));
    let long_name = "n".repeat(9_000);
    let bodies = [
        "{}".to_owned(),
        r#"{"":{"":[]},"e":{},"n":null,"t":true,"f":false}"#.to_owned(),
        r#"{"z":1,"y":1.0,"x":-0.0,"w":123456789012345678901234567890,"v":1e3,"u":0.1,"s":5e-324,"r":1.10}"#.to_owned(),
        r#"{"b":{"y":1,"x":2},"a":[[],[{}],{"x":1,"y":2}],"\u0000":"\u0000"}"#.to_owned(),
        r#"{"é😀":"ü","10":1,"a/b":"c"}"#.to_owned(),
        deep,
        format!(r#"{{"{long_name}":{{"x":1}},"s":"{}"}}"#, "é".repeat(100_000)),
    ];
    for (at, run_bytes) in LAYOUTS.into_iter().enumerate() {
        let db = create(&layer, &format!("db{at}"), run_bytes).await;
        for (at, body) in bodies.iter().enumerate() {
            let id = format!("d{at}\0é");
            put(&db, &id, None, body).await.unwrap();
            let found = get(&db, &id).await.unwrap();
            assert!(found == *body, "{run_bytes:?}: {} came back as {}", &body[..60.min(body.len())], found);
        }
        assert_clean(&layer, &db).await;
    }
}

#[tokio::test]
async fn names_beyond_the_limit_stand_literally() {
    let store = Store::new();
    let layer = store.layer().await;
    let options = CreateOptions { run_bytes: Some(0), field_ids_max: Some(20), ..CreateOptions::default() };
    layer.create_database("db", &options).await.unwrap();
    let db = layer.database("db");
    for document in 0..10 {
        let members: Vec<String> = (0..10).map(|n| format!(r#""k{document}-{n}":{n}"#)).collect();
        let body = format!("{{{}}}", members.join(","));
        put(&db, &format!("d{document}"), None, &body).await.unwrap();
        assert_eq!(get(&db, &format!("d{document}")).await.unwrap(), body);
    }
    assert_eq!(flatbed_metrics::total(&layer.metrics(), "flatbed_field_ids_allocated"), 20);
    assert_clean(&layer, &db).await;
}

#[tokio::test]
async fn what_an_unknown_commit_allocated_is_counted_once() {
    for seed in 517..522 {
        let Some(store) = Store::with_faults(0.5, seed) else { return };
        let layer = store.layer().await;
        let db = create(&layer, "db", None).await;
        put(&db, "d", None, r#"{"a":1,"b":2,"c":3}"#).await.unwrap();
        assert_eq!(flatbed_metrics::total(&layer.metrics(), "flatbed_field_ids_allocated"), 3, "seed {seed}");
    }
}

#[tokio::test]
async fn large_bodies_are_staged_and_broken_uploads_swept() {
    let store = Store::new();
    let layer = store.layer().await;
    for (at, run_bytes) in [Some(0), None].into_iter().enumerate() {
        let db = create(&layer, &format!("db{at}"), run_bytes).await;
        let body = |n: usize| {
            let items: Vec<String> = (0..n).map(|i| format!(r#"{{"i":{i},"text":"{}"}}"#, "x".repeat(480))).collect();
            format!(r#"{{"items":[{}]}}"#, items.join(","))
        };
        let large = body(15_500);
        assert!(large.len() > 7_500_000);
        let first = put(&db, "large", None, &large).await.unwrap();
        assert!(get(&db, "large").await.unwrap() == large);
        let second = put(&db, "large", Some(&first), &body(15_000)).await.unwrap();
        let old = db.get("large", &GetOptions { rev: Some(first.clone()), ..GetOptions::default() }).await.unwrap();
        assert!(braces(&old.body) == large);
        put(&db, "large", Some(&second), r#"{"small":1}"#).await.unwrap();
        assert!(matches!(put(&db, "large", Some(&first), &large).await, Err(Error::Refused(Refusal::Conflict))));
        let too_large = format!(r#"{{"s":"{}"}}"#, "x".repeat(8_000_001));
        assert!(matches!(
            put(&db, "too", None, &too_large).await,
            Err(Error::Refused(Refusal::DocumentTooLarge { .. }))
        ));
        assert_clean(&layer, &db).await;
        // The upload ends between its transactions.
        let upload = put(&db, "broken", None, &large);
        let _ = tokio::time::timeout(std::time::Duration::from_millis(120), upload).await;
        // A dropped commit may still succeed, so the sums are compared only when nothing is running.
        until("the upload is swept", async || {
            layer.sweep_broken_uploads(std::time::Duration::ZERO).await.unwrap();
            let report = check::check_database(&db, |_| {}).await.unwrap();
            report.sums_compared && report.staged_uploads == 0
        })
        .await;
        assert_clean(&layer, &db).await;
    }
}

#[tokio::test]
async fn illegal_ids_and_documents_are_refused() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    for id in ["", "_x", "_design/", &"x".repeat(2_049)] {
        assert!(matches!(put(&db, id, None, "{}").await, Err(Error::Refused(Refusal::InvalidDocument { .. }))), "{id}");
    }
    for id in ["_design/x", &"é".repeat(1_024), "a/b", "\u{0}", "10"] {
        put(&db, id, None, "{}").await.unwrap();
    }
    for body in [r#"{"_x":1}"#, r#"{"_deleted":1}"#, "[]", r#"{"_rev":1}"#, r#"{"_rev":"x"}"#] {
        assert!(put(&db, "d", None, body).await.is_err(), "{body}");
    }
    assert_clean(&layer, &db).await;
}
