//! Entries of due work that writes make: how many keys and commits they cost.

use std::time::Duration;

use crate::support::{Layer, Store, create, put};
use flatbed_clock::ManualClock;
use flatbed_layer::json::{Limits, parse};
use flatbed_layer::waits::{self, Waits};
use flatbed_layer::{Database, Edit, Refusal};

const VIEW: &str = r#"{"views":{"v":{"map":"function (doc) { emit(doc.n); }"}}}"#;

async fn created(layer: &Layer, name: &str, has_view: bool) -> Database {
    let db = create(layer, name, None).await;
    put(&db, "_design/v", None, if has_view { VIEW } else { "{}" }).await.unwrap();
    db
}

/// Writes new documents one after the other, and returns the number of keys written and of commits.
async fn written(db: &Database, from: usize, count: usize) -> (u64, u64) {
    let (_, waited) = waits::count(async {
        for number in from..from + count {
            put(db, &format!("d{number:05}"), None, "{}").await.unwrap();
        }
    })
    .await;
    (waited.keys_written, waited.commits)
}

#[tokio::test]
async fn commits_of_a_minute_write_one_entry_for_the_views_of_their_database() {
    let (store, manual) = (Store::new(), ManualClock::new());
    let layer = store.layer_alone_at(&manual).await;
    let (with, without) = (created(&layer, "with", true).await, created(&layer, "without", false).await);
    let (with_keys, commits) = written(&with, 0, 1_000).await;
    let (without_keys, _) = written(&without, 0, 1_000).await;
    assert_eq!((with_keys - without_keys, commits), (1, 1_000));
    // Each minute has another one, and each process writes its own.
    manual.advance(Duration::from_secs(60));
    assert_eq!(written(&with, 1_000, 10).await.0 - written(&without, 1_000, 10).await.0, 1);
    let other = store.layer_alone_at(&manual).await;
    let databases = ["with", "without"].map(|name| other.database(name));
    for db in &databases {
        db.exists().await.unwrap();
    }
    let [with, without] = &databases;
    assert_eq!(written(with, 2_000, 10).await.0 - written(without, 2_000, 10).await.0, 1);
}

#[tokio::test]
async fn refused_edits_commit_nothing_in_a_database_with_a_view() {
    let (store, manual) = (Store::new(), ManualClock::new());
    let layer = store.layer_alone_at(&manual).await;
    let db = created(&layer, "db", true).await;
    let first = put(&db, "d", None, "{}").await.unwrap();
    put(&db, "d", Some(&first), "{}").await.unwrap();
    // A minute whose entry nothing has written.
    manual.advance(Duration::from_secs(60));
    let refused = |waited: Waits| (waited.commits, waited.keys_written);
    let (_, waited) = waits::count(async {
        for _ in 0..1_000 {
            put(&db, "d", Some(&first), "{}").await.unwrap_err();
        }
    })
    .await;
    assert_eq!(refused(waited), (0, 0));
    let edit = |_| Edit {
        expiry: None,
        id: "d".into(),
        parent: Some(first.clone()),
        history: None,
        deleted: false,
        attachments: Vec::new(),
        body: parse(b"{}", &Limits::default()).unwrap(),
    };
    let edits: Vec<_> = (0..100).map(edit).collect();
    let (outcomes, waited) = waits::count(db.bulk_update(&edits)).await;
    assert!(outcomes.unwrap().iter().all(|outcome| matches!(outcome, Err(Refusal::Conflict))));
    assert_eq!(refused(waited), (0, 0));
    // One edit of many that is applied commits, with the entry.
    let other = Edit { id: "other".into(), parent: None, ..edit(0) };
    let (outcomes, waited) = waits::count(db.bulk_update(&[edit(0), other])).await;
    assert!(matches!(outcomes.unwrap()[..], [Err(Refusal::Conflict), Ok(_)]));
    assert_eq!((waited.commits, waited.keys_written), (1, 13));
}
