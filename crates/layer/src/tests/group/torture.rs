//! Writers, deleters, purgers, truncation of the log of purges, and design documents that come and go, while views are
//! read: no query misses a write acknowledged before it, and at the end every group has the rows of its documents.
#![cfg(test)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flatbed_testkit::{Faults, Random, Storage, pass};

use super::functions::Texts;
use super::purges::forget_log;
use super::{compare, define, put, rows, violations};
use crate::handle::Database;
use crate::{CreateOptions, Layer, LayerOptions, ViewUpdate};

/// Each writer has documents of its own, so it knows the last acknowledged write of each.
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
                // A purge removes the ancestors, too: the document is gone unless it has another leaf.
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
        if random.below(4) == 0 {
            forget_log(&db).await;
        }
        let _ = rows(&db, &design, "n", ViewUpdate::Lazy).await;
        pass(Duration::from_millis(random.below(60))).await;
    }
}

async fn torment(storage: Storage, shards: Option<u32>, steps: u64) {
    let mut layers = Vec::new();
    for shard in 0..2 {
        let options = LayerOptions { root: storage.root.clone(), shard: Some(shard), ..LayerOptions::default() };
        let (layer, authority) = Layer::open(storage.fdb.clone(), options, None).await.unwrap();
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

#[tokio::test(flavor = "multi_thread")]
async fn no_query_misses_an_acknowledged_write() {
    torment(Storage::new(), None, 60).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nor_in_a_database_with_shards() {
    torment(Storage::new(), Some(3), 40).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nor_with_faults() {
    for seed in 0..2 {
        let Some(storage) = Storage::with(Faults::new(0.03, seed)) else { return };
        torment(storage, None, 30).await;
    }
}
