//! Tests of `document::fields` with a whole layer.
#![cfg(test)]

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use flatbed_flatten::json::{Limits, parse};
use flatbed_flatten::path::FIRST_FIELD_ID;
use futures_util::future::try_join;

use crate::tests::fenced::database;
use crate::{Edit, GetOptions};

/// A load that began before a body's names existed, or was dropped, loads only some of them.
#[tokio::test]
async fn who_misses_names_does_not_rely_on_a_load_that_began_before() {
    let (db, _storage) = database().await;
    let body = parse(br#"{"a":1,"b":2,"c":3}"#, &Limits::default()).unwrap();
    let id = "d".into();
    let edit = Edit { expiry: None, id, parent: None, history: None, deleted: false, attachments: Vec::new(), body };
    db.update(&edit).await.unwrap();
    // As a process that does not know the names.
    db.inner.databases.remove(&db.name);
    db.exists().await.unwrap();
    let instance = db.inner.cached(&db.name).expect("an instance");
    assert_eq!(instance.fields.len(), 0);
    let loading = instance.fields.loading.lock().await;
    let options = GetOptions::default();
    let mut reads = pin!(try_join(db.get("d", &options), db.get("d", &options)));
    let waits = tokio::time::timeout(Duration::from_millis(300), &mut reads).await;
    assert!(waits.is_err(), "they wait for who loads");
    instance.fields.enter(FIRST_FIELD_ID, &["a".to_owned()]);
    drop(loading);
    let (one, two) = reads.await.unwrap();
    assert_eq!([one.body, two.body], [br#""a":1,"b":2,"c":3"#; 2]);
    // One load for both.
    assert_eq!(instance.fields.loads.load(Ordering::Relaxed), 1);
}
