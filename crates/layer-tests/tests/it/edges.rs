//! Two servers that allocate the same names, document ids of the greatest length, and databases that are replaced
//! during a scan.

use std::time::Duration;

use crate::support::{Layer, Store, assert_clean, change, create, delete, get, put, soon};
use flatbed_clock::Clock;
use flatbed_layer::renew::renew;
use flatbed_layer::{AllDocsQuery, ChangesQuery, Edit, Error, LayerOptions, Refusal, json};
use flatbed_testkit::{pass, until};
use foundationdb::tuple::{Bytes, pack};

fn names(range: std::ops::Range<usize>) -> String {
    let members: Vec<String> = range.map(|n| format!(r#""name{n}":{n}"#)).collect();
    format!("{{{}}}", members.join(","))
}

/// The second batch of an allocation must not give ids to names that another server allocated during the first.
#[tokio::test]
async fn names_of_another_server_get_no_second_id() {
    let store = Store::new();
    let (one, two) = (store.layer().await, store.layer().await);
    let at_one = create(&one, "db", None).await;
    let at_two = two.database("db");
    put(&at_one, "a", None, &names(300..310)).await.unwrap();
    put(&at_two, "b", None, &names(0..600)).await.unwrap();
    assert_eq!(get(&at_one, "b").await.unwrap(), names(0..600));
    assert_clean(&one, &at_one).await;
}

/// Each key of a document contains its id: many small rows under a long id must still fit.
#[tokio::test]
async fn a_long_id_with_many_rows() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", Some(0)).await;
    let id = "i".repeat(2048);
    let body = format!(r#"{{"a":[{}1]}}"#, "1,".repeat(5_400));
    let first = put(&db, &id, None, &body).await.unwrap();
    let second = put(&db, &id, Some(&first), &body.replace("[1,", "[2,")).await.unwrap();
    delete(&db, &id, &second).await.unwrap();
    assert_clean(&layer, &db).await;
}

/// A scan must not end as if it were complete if its database was replaced before the next page.
#[tokio::test]
async fn a_walk_does_not_end_well_in_another_database() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let edit = |n: usize| Edit {
        expiry: None,
        id: format!("d{n:04}").into(),
        parent: None,
        history: None,
        deleted: false,
        attachments: Vec::new(),
        body: json::parse(b"{}", &json::Limits::default()).unwrap(),
    };
    let edits: Vec<_> = (0..3_000).map(edit).collect();
    assert!(db.bulk_update(&edits).await.unwrap().iter().all(Result::is_ok));
    let mut walk = db.all_docs(AllDocsQuery { include_docs: true, ..AllDocsQuery::default() });
    assert_eq!(walk.next_page().await.unwrap().unwrap().len(), 500);
    layer.delete_database("db").await.unwrap();
    create(&layer, "db", None).await;
    put(&db, "d2999", None, "{}").await.unwrap();
    // One page may have been read ahead.
    let next = match walk.next_page().await {
        Ok(Some(_)) => walk.next_page().await,
        next => next,
    };
    assert!(next.is_err(), "the walk ended as if it were complete");
}

/// The deletion of a database without writes must wake its followers, or they never see its successor.
#[tokio::test]
async fn a_follower_of_an_empty_database_sees_its_successor() {
    let store = Store::new();
    let (one, two) = (store.layer().await, store.layer().await);
    let at_one = create(&one, "db", None).await;
    let mut changes = at_one.changes(ChangesQuery::default());
    assert!(changes.next_page().await.unwrap().rows.is_empty());
    let waiting = tokio::spawn(async move {
        changes.wait().await;
        changes
    });
    let watches = || flatbed_metrics::total(&one.metrics(), "flatbed_watches_set");
    until("a watch is set", async || watches() > 0).await;
    two.delete_database("db").await.unwrap();
    let at_two = create(&two, "db", None).await;
    put(&at_two, "d", None, "{}").await.unwrap();
    let mut changes = soon(waiting).await.unwrap();
    assert_eq!(changes.next_page().await.unwrap().rows.len(), 1);
}

/// Data of a newer or an older Flatbed is refused, not misread.
#[tokio::test]
async fn other_formats_are_refused() {
    let store = Store::new();
    let layer = store.layer().await;
    // `format_version` is field 1.
    let set = async |key: Vec<u8>, format: u8| change(&store.fdb, |trx| trx.set(&key, &[0x08, format])).await;
    set(pack(&(Bytes::from(store.root.clone()), 1, "future")), 99).await;
    assert!(matches!(layer.database("future").info().await, Err(Error::FormatTooNew { found: 99, .. })));
    assert!(matches!(put(&layer.database("future"), "d", None, "{}").await, Err(Error::FormatTooNew { .. })));
    set(pack(&(Bytes::from(store.root.clone()), 1, "past")), 1).await;
    assert!(matches!(layer.database("past").info().await, Err(Error::FormatTooOld { found: 1, .. })));
    assert!(matches!(put(&layer.database("past"), "d", None, "{}").await, Err(Error::FormatTooOld { .. })));
    let open = async || {
        let options = LayerOptions { root: store.root.clone(), ..LayerOptions::default() };
        Layer::open(store.fdb.clone(), options).await
    };
    set(pack(&(Bytes::from(store.root.clone()), 0)), 99).await;
    assert!(matches!(open().await, Err(Error::FormatTooNew { found: 99, .. })));
    set(pack(&(Bytes::from(store.root.clone()), 0)), 1).await;
    assert!(matches!(open().await, Err(Error::FormatTooOld { found: 1, .. })));
    assert!(matches!(
        renew(&store.fdb, &store.root, &Clock::system()).await,
        Err(Error::FormatTooOld { found: 1, .. })
    ));
}

/// A sweep in the middle of an upload makes it fail, and never leaves a document with half a body.
#[tokio::test(flavor = "multi_thread")]
async fn sweeps_during_an_upload() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let text: String = (0..60_000).map(|n| format!("{:08x}{:08x}", n * 2_654_435_761_u64, n)).collect();
    let body = format!(r#"{{"text":"{text}"}}"#);
    let (mut committed, mut swept) = (0, 0);
    for round in 0..20_u64 {
        let sweeper = tokio::spawn({
            let layer = layer.clone();
            async move {
                pass(Duration::from_millis(round)).await;
                layer.sweep_broken_uploads(Duration::ZERO).await.unwrap();
            }
        });
        match put(&db, &format!("d{round}"), None, &body).await {
            Ok(_) => committed += 1,
            Err(Error::Refused(Refusal::UploadSwept)) => swept += 1,
            Err(error) => panic!("{error}"),
        }
        sweeper.await.unwrap();
    }
    assert_eq!(committed + swept, 20);
    layer.sweep_broken_uploads(Duration::ZERO).await.unwrap();
    assert_clean(&layer, &db).await;
}

/// After a deletion at another server no edit succeeds from the cache.
#[tokio::test]
async fn edits_that_need_no_transaction_see_a_deletion_too() {
    let store = Store::new();
    let (one, two) = (store.layer().await, store.layer().await);
    let db = create(&one, "db", None).await;
    put(&db, "d", None, "{}").await.unwrap();
    two.delete_database("db").await.unwrap();
    assert!(matches!(db.bulk_update(&[]).await, Err(Error::DatabaseNotFound)));
    let value = flatbed_layer::json::parse(b"{}", &Default::default()).unwrap();
    let edit = Edit {
        expiry: None,
        id: "_no".into(),
        parent: None,
        history: None,
        deleted: false,
        attachments: Vec::new(),
        body: value,
    };
    assert!(matches!(db.bulk_update(&[edit]).await, Err(Error::DatabaseNotFound)));
}
