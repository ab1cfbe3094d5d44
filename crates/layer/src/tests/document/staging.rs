//! Tests of `document::staging` with a whole layer.
#![cfg(test)]

use std::time::Duration;

use flatbed_databases::document::staging::*;
use flatbed_operations::write::batch::instance_of;
use flatbed_store::transaction;
use flatbed_store::transaction::Transaction;
use tokio::time::Instant;

use crate::tests::fenced::database;

#[tokio::test]
async fn what_is_renewed_while_it_is_swept_is_looked_at_again() {
    let (db, _storage) = database().await;
    let instance = instance_of(&db.inner, &db.name).await.unwrap();
    let stage = async |blob_id: &[u8], created_at_ms| {
        let (inner, instance, rows) = (&db.inner, &*instance, &[(vec![1], vec![2])]);
        let actor = db.actor();
        let mut stage = Stage { inner, instance, actor, blob_id, created_at_ms, rows, is_first: true, touches: false };
        assert!(transaction::write(&inner.db, &inner.metrics, &mut stage).await.unwrap());
    };
    stage(b"a", 1_000).await;
    stage(b"b", 1_000).await;
    renew(&db.inner, &instance, &[b"a"]).await.unwrap();
    let mut swept = StagingSweep::default();
    for blob_id in [&b"a"[..], b"b", b"c"] {
        swept.blob(&db.inner, &instance, blob_id, 1_000, 2_000).await.unwrap();
    }
    assert_eq!(swept.blobs, 1);
    assert!(swept.oldest_ms.is_some_and(|since_ms| since_ms > 2_000), "{swept:?}");
}

#[tokio::test]
async fn any_number_of_blobs_is_swept() {
    let (db, _storage) = database().await;
    let instance = instance_of(&db.inner, &db.name).await.unwrap();
    let (blobs, now_ms) = (3 * LISTED_AT_ONCE.get() as u64 + 1, db.inner.clock.unix_ms());
    let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
    for number in 1..=blobs {
        // One is recent.
        begin(&trx, &instance.keys, &number.to_be_bytes(), if number == blobs { now_ms } else { number });
    }
    trx.commit().await.unwrap();
    let swept = sweep_database(&db.inner, &db.name, Duration::from_secs(60), Some(Instant::now())).await.unwrap();
    assert_eq!((swept.blobs, swept.is_over), (1, true));
    let swept = sweep_database(&db.inner, &db.name, Duration::from_secs(60), None).await.unwrap();
    assert_eq!((swept.blobs, swept.oldest_ms.is_some(), swept.is_over), (blobs - 2, true, false));
}
