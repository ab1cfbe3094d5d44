//! Writers, deleters, purgers and design documents that come and go, while views are read: no query misses a write that
//! was acknowledged before it, and at the end every group is what its documents make.
#![cfg(test)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::functions::Texts;
use super::{compare, define, put, rows, violations};
use crate::handle::Database;
use crate::{CreateOptions, Layer, LayerOptions, ViewUpdate};

/// Numbers that a seed decides (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// Each writer has documents of its own, so it knows what the last acknowledged write of each was.
async fn write(db: Database, writer: u64, steps: u64) {
    let mut random = Random(writer);
    let mut model: BTreeMap<String, u64> = BTreeMap::new();
    for step in 0..steps {
        let id = format!("w{writer}-{}", random.below(6));
        match random.below(10) {
            0..=5 => {
                let n = writer * 1_000_000 + step;
                put(&db, &id, Some(&format!(r#"{{"n":{n}}}"#))).await;
                model.insert(id, n);
            }
            6 | 7 => {
                put(&db, &id, None).await;
                model.remove(&id);
            }
            _ => {
                if let Ok(document) = db.get(&id, &Default::default()).await {
                    db.purge(&id, &[document.rev]).await.unwrap();
                }
                // What lay below the purged leaf is none: the document is gone, unless it has another leaf.
                match db.get(&id, &Default::default()).await {
                    Ok(document) => {
                        let body = String::from_utf8(document.body).unwrap();
                        model.insert(id, body.trim_start_matches("\"n\":").parse().unwrap());
                    }
                    Err(_) => {
                        model.remove(&id);
                    }
                }
            }
        }
        if random.below(3) == 0 {
            let found = rows(&db, "_design/stays", "n", ViewUpdate::True).await.unwrap();
            let own = format!("w{writer}-");
            let found: BTreeMap<String, u64> = found
                .into_iter()
                .filter(|(_, id, _)| id.starts_with(&own))
                .map(|(key, id, _)| (id, key.parse().unwrap()))
                .collect();
            assert_eq!(found, model, "writer {writer}, step {step}");
        }
    }
}

/// Design documents come, change and go.
async fn redefine(db: Database, until: Arc<AtomicU64>) {
    let mut random = Random(77);
    while until.load(Ordering::Relaxed) > 0 {
        let design = format!("_design/d{}", random.below(3));
        match random.below(4) {
            0 => put(&db, &design, None).await,
            1 => define(&db, &design, &[("n", "n|_count"), ("id", "_id")]).await,
            2 => define(&db, &design, &[("n", "_id"), ("id", "n|_sum")]).await,
            _ => define(&db, &design, &[("n", "n|_stats")]).await,
        }
        if random.below(3) == 0 {
            db.view_cleanup().await.unwrap();
        }
        let _ = rows(&db, &design, "n", ViewUpdate::Lazy).await;
        tokio::time::sleep(Duration::from_millis(random.below(60))).await;
    }
}

/// Torments a store with two servers.
async fn torment(fdb: Arc<foundationdb::Database>, root: Vec<u8>, shards: Option<u32>, steps: u64) {
    let mut layers = Vec::new();
    for shard in 0..2 {
        let options = LayerOptions { root: root.clone(), shard: Some(shard), ..LayerOptions::default() };
        let (layer, authority) = Layer::open(fdb.clone(), options, None).await.unwrap();
        layer.run_views_by(Arc::new(Texts::default()));
        layers.push((layer.database("db", authority.for_job("test")), layer));
    }
    layers[0].0.create(&CreateOptions { shards, ..CreateOptions::default() }).await.unwrap();
    let db = layers[0].0.clone();
    for n in 0..50 {
        put(&db, &format!("old{n}"), Some(&format!(r#"{{"n":{n}}}"#))).await;
    }
    define(&db, "_design/stays", &[("n", "n|_sum"), ("id", "_id|written")]).await;
    let writing = Arc::new(AtomicU64::new(1));
    let redefining = tokio::spawn(redefine(layers[1].0.clone(), writing.clone()));
    let writers = (1..=6).map(|writer| tokio::spawn(write(layers[writer % 2].0.clone(), writer as u64, steps)));
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    writing.store(0, Ordering::Relaxed);
    redefining.await.unwrap();
    define(&db, "_design/d0", &[("n", "n|_stats")]).await;
    define(&db, "_design/d1", &[("n", "n|_count"), ("id", "_id")]).await;
    put(&db, "_design/d2", None).await;
    for (db, _) in &layers {
        compare(db, "_design/stays", "n", "n").await;
        compare(db, "_design/stays", "id", "_id").await;
        compare(db, "_design/d0", "n", "n").await;
        compare(db, "_design/d1", "n", "n").await;
        compare(db, "_design/d1", "id", "_id").await;
    }
    db.view_cleanup().await.unwrap();
    assert_eq!(violations(&db).await, Vec::<String>::new());
    layers.iter().for_each(|(_, layer)| layer.shutdown());
}

/// A store: where `FLATBED_CLUSTER_FILE` says, or the embedded engine; with faults only there.
pub(super) fn store(faults: Option<u64>) -> Option<(Arc<foundationdb::Database>, Vec<u8>, Option<tempfile::TempDir>)> {
    crate::fenced::network();
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos();
    let root = format!("torture{}-{now}", std::process::id()).into_bytes();
    let Some(seed) = faults else {
        let (path, directory) = match std::env::var("FLATBED_CLUSTER_FILE") {
            Ok(path) => (path, None),
            Err(_) => {
                let directory = tempfile::tempdir().unwrap();
                let path = directory.path().join("embedded.cluster");
                std::fs::write(&path, "embedded:test@data\n").unwrap();
                (path.to_str().unwrap().to_owned(), Some(directory))
            }
        };
        return Some((Arc::new(foundationdb::Database::from_path(&path).unwrap()), root, directory));
    };
    let engine = foundationdb_sys::backend::embedded()?;
    let directory = tempfile::tempdir().unwrap();
    let mut options = fdb_embedded::OpenOptions::default();
    options.buggify = Some(fdb_embedded::Buggify::new(0.03, seed));
    let database = engine.open(directory.path(), options).unwrap();
    // SAFETY: the pointer is a database of what answers, and nobody else destroys it.
    let fdb = unsafe { foundationdb::Database::new_from_pointer(database) };
    Some((Arc::new(fdb), root, Some(directory)))
}

#[tokio::test(flavor = "multi_thread")]
async fn no_query_misses_an_acknowledged_write() {
    let Some((fdb, root, _directory)) = store(None) else { return };
    torment(fdb, root, None, 60).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nor_in_a_database_with_shards() {
    let Some((fdb, root, _directory)) = store(None) else { return };
    torment(fdb, root, Some(3), 40).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nor_with_faults() {
    for seed in 0..2 {
        let Some((fdb, root, _directory)) = store(Some(seed)) else { return };
        torment(fdb, root, None, 30).await;
    }
}
