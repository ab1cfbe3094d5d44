//! Tests of `write::expire` with a whole layer.
#![cfg(test)]

use std::time::Duration;

use flatbed_channels::Expiry;
use flatbed_clock::ManualClock;
use flatbed_databases::channels::ReadPrincipal;
use flatbed_databases::document::edit::Edit;
use flatbed_flatten::json::Value;
use flatbed_operations::write::expire::*;
use flatbed_revtree::GENERATION_MAX;
use flatbed_store::error::{Error, Refusal};
use flatbed_store::transaction;
use flatbed_testkit::Storage;

use crate::handle::Database;
use crate::tests::fenced::{layer_at, user};
use crate::{ChannelsOptions, CreateOptions};

const TURN: Duration = Duration::from_secs(60);

/// A database with channels and a stopped clock.
struct ExpiryFixture {
    /// The database, for writes of a user and of the server.
    db: Database,
    server: Database,
    /// The time of the process's stopped clock, in seconds.
    now: u64,
    /// Removes the storage when dropped.
    _storage: Storage,
}

async fn ends() -> ExpiryFixture {
    let manual = ManualClock::new();
    let (layer, authority, storage) = layer_at(&manual).await;
    let server = layer.database("ends", authority.for_job("test"));
    let options = CreateOptions { channels: Some(ChannelsOptions::default()), ..CreateOptions::default() };
    server.create(&options).await.unwrap();
    let db = layer.database("ends", user("root")).asked_by(ReadPrincipal::All);
    ExpiryFixture { db, server, now: manual.clock().unix_seconds(), _storage: storage }
}

async fn write(db: &Database, id: &str, history: Option<&str>, second: u64) {
    let edit = Edit {
        id: id.to_owned().into(),
        parent: None,
        history: history.map(|rev| vec![rev.parse().unwrap()]),
        deleted: false,
        expiry: Some(Expiry::At(second)),
        attachments: Vec::new(),
        body: Value::Object(Vec::new()),
    };
    db.update(&edit).await.unwrap();
}

async fn ended(db: &Database, until_s: u64) -> Vec<String> {
    let inner = &*db.inner;
    let mut read = ReadEnded { inner, name: &db.name, begin: None, until_s };
    let page = transaction::read(&inner.db, &inner.metrics, &mut read).await.unwrap();
    page.ended.into_iter().map(|ended| ended.id).collect()
}

#[tokio::test]
async fn a_clock_that_was_set_back_takes_no_document_before_its_time() {
    let ExpiryFixture { db, server, now, _storage } = ends().await;
    write(&db, "soon", None, now + 30).await;
    let due_ms = (now + 60) * 1_000;
    // As seen before the clock was set back.
    assert_eq!(expire(&server.handle, TURN, due_ms, Duration::ZERO).await.unwrap(), None);
    assert_eq!(db.info().await.unwrap().doc_count, 1);
    assert_eq!(ended(&db, now + 60).await, ["soon"]);
    assert_eq!(expire(&server.handle, TURN, due_ms, Duration::from_secs(60)).await.unwrap(), Some(true));
    assert_eq!(db.info().await.unwrap().doc_count, 0);
}

#[tokio::test]
async fn a_document_on_its_last_generation_is_not_tried_again_and_again() {
    let ExpiryFixture { db, server, now, _storage } = ends().await;
    let last = format!("{GENERATION_MAX}-x");
    for n in 0..5 {
        write(&db, &format!("last{n}"), Some(&last), now - 5).await;
    }
    write(&db, "over", Some("7-x"), now - 5).await;
    assert_eq!(ended(&db, now).await, ["over"]);
    assert_eq!(expire(&server.handle, TURN, 0, Duration::ZERO).await.unwrap(), Some(true));
    assert_eq!(db.info().await.unwrap().doc_count, 5);
    let shown = db.get("last0", &crate::GetOptions::default()).await;
    assert!(matches!(shown, Err(Error::Refused(Refusal::DocumentNotFound(_)))));
}
