//! The keys of a document in readable form: each existing key once, and none of other documents.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::{Store, put, snapshot};
use flatbed_layer::{CreateOptions, Database, Error, StoredKey};

async fn all(db: &Database, id: &str) -> Vec<StoredKey> {
    let (mut keys, mut after) = (Vec::new(), None::<Vec<u8>>);
    loop {
        let page = db.stored_keys(id, after.as_deref()).await.unwrap();
        keys.extend(page.keys);
        after = page.next;
        if after.is_none() {
            // The keys elsewhere come with the first page.
            keys.sort_by_key(|key| ["by_seq", "all_docs"].contains(&key.what));
            return keys;
        }
    }
}

fn forms(keys: &[StoredKey]) -> Vec<&str> {
    keys.iter().map(|key| key.form.as_str()).collect()
}

#[tokio::test]
async fn names_and_places_instead_of_numbers() {
    let store = Store::new();
    let layer = store.layer().await;
    layer.create_database("db", &CreateOptions { run_bytes: Some(0), ..CreateOptions::default() }).await.unwrap();
    let db = layer.database("db");
    let body = r#"{"customer":{"city":"Bern"},"tags":["x",["y"]]}"#;
    let rev = put(&db, "a\"/1", None, body).await.unwrap();
    // Longer by a NUL, and so directly behind.
    put(&db, "a\"/1\0", None, body).await.unwrap();
    let keys = all(&db, "a\"/1").await;
    let begin = r#"{NS} / 2 / "a\"/1" / "#;
    let expected = [
        format!("{begin}0"),
        format!("{begin}1 / customer / city"),
        format!("{begin}1 / tags / [0]"),
        format!("{begin}1 / tags / [1] / [0]"),
        format!("{begin}2 / 1 / {rev}"),
        format!("{begin}3 / {rev}"),
    ];
    assert_eq!(forms(&keys)[..6], expected.each_ref().map(String::as_str));
    let what: Vec<&str> = keys.iter().map(|key| key.what).collect();
    assert_eq!(what, ["info", "body", "body", "body", "leaf", "revision", "by_seq", "all_docs"]);
    assert!(keys[6].form.starts_with("{NS} / 3 / "), "{}", keys[6].form);
    assert_eq!(keys[7].form, r#"{NS} / 4 / "a\"/1""#);
    // The store has these keys, with these lengths.
    let raw: BTreeMap<_, _> = snapshot(&store).await.into_iter().collect();
    for key in &keys {
        assert_eq!(raw.get(&key.key).map(Vec::len), Some(key.value_bytes), "{}", key.form);
    }
    // Another process has not cached the names.
    let other = store.layer().await;
    assert_eq!(all(&other.database("db"), "a\"/1").await, keys);
    assert_eq!(all(&db, "none").await, []);
    let gone = layer.database("none").stored_keys("a", None).await;
    assert!(matches!(gone, Err(Error::DatabaseNotFound)), "{gone:?}");
}

#[tokio::test]
async fn pages_have_each_key_once_and_no_other_documents() {
    let store = Store::new();
    let layer = store.layer().await;
    layer.create_database("db", &CreateOptions { run_bytes: Some(0), ..CreateOptions::default() }).await.unwrap();
    let db = layer.database("db");
    let members: Vec<String> = (0..250).map(|at| format!("\"f{at}\":{at}")).collect();
    put(&db, "a", None, &format!("{{{}}}", members.join(","))).await.unwrap();
    put(&db, "b", None, "{}").await.unwrap();
    let keys = all(&db, "a").await;
    let different: BTreeSet<&Vec<u8>> = keys.iter().map(|key| &key.key).collect();
    assert_eq!((keys.len(), different.len()), (255, 255));
    let first = db.stored_keys("a", None).await.unwrap();
    assert!(first.next.is_some() && first.keys.len() < 150);
    // A position in another document is not valid in this one.
    let of_b = db.stored_keys("b", None).await.unwrap().keys;
    let strayed = db.stored_keys("a", Some(&of_b[0].key)).await.unwrap();
    assert!(strayed.keys.iter().all(|key| different.contains(&key.key)));
}
