//! Due work that makes a server follow groups of views: commits that rely on an entry of an earlier commit, and the
//! wait of a check.
#![cfg(test)]

use std::sync::Arc;
use std::time::Duration;

use flatbed_clock::ManualClock;
use flatbed_flatten::json::{Limits, parse};
use flatbed_operations::write::batch::{Work, WriteBatch, prepare, resolved};
use flatbed_store::due::DueKind;
use flatbed_store::proto;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use flatbed_testkit::{Random, Storage};
use flatbed_views::group::attend::{AttendOutcome, attend};
use flatbed_views::view::build::FOLLOWED;
use prost::Message;
use tokio::sync::oneshot;

use super::functions::Texts;
use super::{define, put, standing};
use crate::background::{Background, BackgroundOptions};
use crate::handle::Database;
use crate::tests::fenced::layer_at;
use crate::{Authority, CreateOptions, Edit, Layer, LayerOptions};

/// The most by which the clock of a server is wrong, in milliseconds. Two clocks differ by less than 55 s.
const SKEW_MS: u64 = 25_000;

/// Servers of one store, whose clocks are wrong by some seconds.
struct Cluster {
    storage: Storage,
    manual: ManualClock,
}

impl Cluster {
    async fn open(&self, skew_ms: i64) -> (Layer, Authority) {
        let clock = self.manual.clock().skewed(skew_ms);
        let options = LayerOptions { root: self.storage.root.clone(), clock, ..LayerOptions::default() };
        Layer::open(Arc::clone(&self.storage.fdb), options, None).await.unwrap()
    }

    /// Opens the database in a server that runs no functions, so that only due work makes a server follow its writes.
    async fn writer(&self, skew_ms: i64) -> Database {
        let (layer, authority) = self.open(skew_ms).await;
        layer.database("db", authority.for_job("test"))
    }

    /// Does the due work in a new server, which stops then and follows nothing later.
    async fn check(&self, skew_ms: i64) {
        let (layer, authority) = self.open(skew_ms).await;
        layer.run_views_by(Arc::new(Texts::default()));
        let actor = authority.for_job("background");
        Background::new(&layer, actor, BackgroundOptions::default()).unwrap().round().await.unwrap();
        layer.shutdown();
        layer.until_groups_released().await;
    }
}

/// Attempts to write a new document, and returns the transaction before its commit.
async fn attempted(db: &Database, id: &str) -> Transaction {
    let (inner, body) = (&*db.inner, parse(br#"{"n":1}"#, &Limits::default()).unwrap());
    let id = id.to_owned().into();
    let edit = Edit { expiry: None, id, parent: None, history: None, deleted: false, attachments: Vec::new(), body };
    let (instance, edits, work) = (resolved(inner, &db.name).await.unwrap(), [edit], Work::new(inner));
    let mut items = prepare(&db.handle, &instance, &edits, &[0]).await.unwrap().batches.pop().unwrap();
    let mut write = WriteBatch {
        inner,
        instance: &instance,
        edits: &edits,
        items: &mut items,
        attempts: 0,
        work: &work,
        preparations: Default::default(),
        is_shared: false,
    };
    let trx = Transaction::begin(&inner.db, &inner.metrics).unwrap();
    assert!(write.attempt(&trx, Attempt::default()).await.unwrap().is_some());
    trx
}

async fn is_followed(db: &Database) -> bool {
    let standing = standing(db.reader()).await;
    let progress = standing.progress.as_ref();
    progress.is_some_and(|progress| progress.phase == FOLLOWED && progress.stamp == standing.last_seq.stamp())
}

/// Checks between commits, and during them, remove entries that were followed. After the last commit some entry is
/// left, or a check has seen the commit.
#[tokio::test(flavor = "multi_thread")]
async fn no_update_is_lost_whenever_entries_are_removed() {
    for seed in 1..=4 {
        let cluster = Cluster { storage: Storage::new(), manual: ManualClock::new() };
        let mut random = Random(seed);
        let skew = |random: &mut Random| random.below(2 * SKEW_MS + 1) as i64 - SKEW_MS as i64;
        let mut writers = Vec::new();
        for _ in 0..3 {
            writers.push(cluster.writer(skew(&mut random)).await);
        }
        writers[0].create(&CreateOptions::default()).await.unwrap();
        define(&writers[0], "_design/v", &[("n", "n")]).await;
        let mut number = 0;
        for round in 0..6 {
            for _ in 0..5 + random.below(15) {
                let writer = &writers[random.below(3) as usize];
                let id = format!("d{number}");
                number += 1;
                match random.below(6) {
                    0 | 1 => put(writer, &id, Some(r#"{"n":1}"#)).await,
                    2 | 3 => cluster.manual.advance(Duration::from_millis(random.below(30_000))),
                    4 => cluster.check(skew(&mut random)).await,
                    _ => {
                        let trx = attempted(writer, &id).await;
                        // A commit ends within 5 s of its read version.
                        cluster.manual.advance(Duration::from_millis(random.below(4_900)));
                        cluster.check(skew(&mut random)).await;
                        // On a slow machine it may be too old.
                        let _ = trx.commit().await;
                    }
                }
            }
            cluster.manual.advance(Duration::from_secs(180));
            cluster.check(0).await;
            assert!(is_followed(&writers[0]).await, "seed {seed}, round {round}, document {number}");
        }
    }
}

/// Returns the times and tokens of the listed checks of groups.
async fn listed(db: &Database) -> Vec<(u64, u64)> {
    let (inner, trx) = (&db.inner, Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap());
    let rows = trx.range(&inner.keys.due_all(), true).all(1_000).await.unwrap();
    let entries = rows.iter().map(|row| (inner.keys.split_due(row.key()).unwrap(), row));
    let checks = entries.filter(|(key, _)| key.kind == DueKind::Views as u64 && key.at_ms > 0);
    checks.map(|(key, row)| (key.at_ms, proto::Due::decode(row.value()).unwrap().token)).collect()
}

#[tokio::test]
async fn a_commit_relies_only_on_an_entry_of_its_database_that_is_known_to_be_committed() {
    let manual = ManualClock::new();
    let (layer, authority, _storage) = layer_at(&manual).await;
    let db = layer.database("db", authority.for_job("test"));
    define(&db, "_design/v", &[("n", "n")]).await;
    assert_eq!(listed(&db).await, []);
    // It fails, or its result is unknown.
    drop(attempted(&db, "a").await);
    assert_eq!(listed(&db).await, []);
    put(&db, "b", Some("{}")).await;
    let first = listed(&db).await;
    assert_eq!(first.len(), 1);
    put(&db, "c", Some("{}")).await;
    assert_eq!(listed(&db).await, first);
    manual.advance(Duration::from_secs(60));
    put(&db, "d", Some("{}")).await;
    let second = listed(&db).await;
    assert_eq!((second.len(), second[0], second[1].0 - first[0].0), (2, first[0], 60_000));
    // Another instance of the database writes its own.
    db.delete().await.unwrap();
    db.create(&CreateOptions::default()).await.unwrap();
    define(&db, "_design/v", &[("n", "n")]).await;
    put(&db, "d", Some("{}")).await;
    let third = listed(&db).await;
    assert_eq!((third.len(), third[1].0), (2, second[1].0));
    assert_ne!(third[1].1, second[1].1);
}

#[tokio::test]
async fn a_check_of_groups_that_do_not_follow_ends_and_begins_its_wait_first() {
    let manual = ManualClock::new();
    let (layer, authority, _storage) = layer_at(&manual).await;
    let texts = Arc::new(Texts::stopping_after(1));
    layer.run_views_by(texts.clone());
    let db = layer.database("db", authority.for_job("test"));
    for id in ["a", "b", "c"] {
        put(&db, id, Some(r#"{"n":1}"#)).await;
    }
    define(&db, "_design/v", &[("n", "n")]).await;
    let (waits, is_waiting) = oneshot::channel();
    let checked = attend(db.reader(), Duration::from_secs(2), move || waits.send(()).unwrap());
    let (checked, ()) = tokio::join!(checked, async {
        is_waiting.await.unwrap();
        manual.advance(Duration::from_secs(2));
    });
    assert_eq!(checked.unwrap(), AttendOutcome::Unfinished);
    texts.go_on();
    // The group's task wakes the check.
    while attend(db.reader(), Duration::from_secs(2), || ()).await.unwrap() != AttendOutcome::Through {}
    let checked = attend(db.reader(), Duration::from_secs(2), || panic!("nothing is awaited")).await;
    assert_eq!(checked.unwrap(), AttendOutcome::Through);
}
