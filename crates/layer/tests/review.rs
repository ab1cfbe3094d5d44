//! Two servers that allocate the same names, document ids of the greatest length, and databases that change under a walk.

mod support;

use flatbed_layer::{AllDocsQuery, ChangesQuery};
use support::{Store, assert_clean, create, delete, get, put, soon};

fn names(range: std::ops::Range<usize>) -> String {
    let members: Vec<String> = range.map(|n| format!(r#""name{n}":{n}"#)).collect();
    format!("{{{}}}", members.join(","))
}

/// The second batch of an allocation must not give ids to names that the first found to be another server's.
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

/// Each key of a document has its id: many small rows under a long id must still fit.
#[tokio::test]
async fn a_long_id_with_many_rows() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", Some(0)).await;
    let id = "i".repeat(1024);
    let body = format!(r#"{{"a":[{}1]}}"#, "1,".repeat(5_400));
    let first = put(&db, &id, None, &body).await.unwrap();
    let second = put(&db, &id, Some(&first), &body.replace("[1,", "[2,")).await.unwrap();
    delete(&db, &id, &second).await.unwrap();
    assert_clean(&layer, &db).await;
}

/// A walk whose database is another one at its next page must not end as if all had been read.
#[tokio::test]
async fn a_walk_does_not_end_well_in_another_database() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    for n in 0..250 {
        put(&db, &format!("d{n:03}"), None, "{}").await.unwrap();
    }
    let mut walk = db.all_docs(AllDocsQuery { include_docs: true, ..AllDocsQuery::default() });
    assert_eq!(walk.next_page().await.unwrap().unwrap().len(), 200);
    layer.delete_database("db").await.unwrap();
    create(&layer, "db", None).await;
    put(&db, "d249", None, "{}").await.unwrap();
    assert!(walk.next_page().await.is_err(), "the walk ended as if it were complete");
}

/// Deletion of a database that nobody has written to wakes its followers, or they never see its successor.
#[tokio::test]
async fn a_follower_of_an_empty_database_sees_its_successor() {
    let store = Store::new();
    let (one, two) = (store.layer().await, store.layer().await);
    let at_one = create(&one, "db", None).await;
    let mut changes = at_one.changes(ChangesQuery::default());
    for _ in 0..2 {
        // The first wait subscribes, the second is told what the hub has read.
        assert!(changes.next_page().await.unwrap().rows.is_empty());
        soon(changes.wait()).await;
    }
    assert!(changes.next_page().await.unwrap().rows.is_empty());
    two.delete_database("db").await.unwrap();
    let at_two = create(&two, "db", None).await;
    put(&at_two, "d", None, "{}").await.unwrap();
    soon(changes.wait()).await;
    assert_eq!(changes.next_page().await.unwrap().rows.len(), 1);
}
