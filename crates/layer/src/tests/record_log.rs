//! Tests the log of changed records, and transactions that began before a change.
#![cfg(test)]

use flatbed_clock::ManualClock;
use flatbed_store::keys::METADATA_VERSION;
use flatbed_store::record_log::sweep_changes_before;
use flatbed_store::transaction::Transaction;

use crate::tests::fenced::{layer_at, open_at};
use crate::{CreateOptions, Layer};

async fn begin(layer: &Layer) -> Transaction {
    let trx = Transaction::begin(&layer.inner.db, &layer.inner.metrics).unwrap();
    trx.get(METADATA_VERSION, true).await.unwrap();
    trx
}

async fn limit_in(layer: &Layer, trx: &Transaction, name: &str) -> u64 {
    layer.inner.resolve(trx, name).await.unwrap().revs_limit()
}

async fn limit(layer: &Layer, name: &str) -> u64 {
    limit_in(layer, &begin(layer).await, name).await
}

/// The log may lose entries that a process has not read. Then the process reads each record again.
#[tokio::test]
async fn a_change_whose_entry_is_gone_is_noticed() {
    let manual = ManualClock::new();
    let (layer, authority, storage) = layer_at(&manual).await;
    let (elsewhere, _) = open_at(&storage, &manual).await;
    let db = layer.database("db", authority.for_job("test"));
    let second = layer.database("second", authority.for_job("test"));
    second.create(&CreateOptions::default()).await.unwrap();
    let sweep = async |version| {
        let trx = Transaction::begin(&layer.inner.db, &layer.inner.metrics).unwrap();
        let swept = sweep_changes_before(&trx, &layer.inner.keys, version).await.unwrap();
        trx.commit().await.unwrap();
        swept
    };
    for round in 1..4 {
        limit(&elsewhere, "db").await;
        limit(&elsewhere, "second").await;
        db.set_revs_limit(round).await.unwrap();
        assert!(sweep(u64::MAX).await && !sweep(u64::MAX).await);
        // Behind the entry that is gone.
        second.set_revs_limit(10 + round).await.unwrap();
        assert_eq!((limit(&elsewhere, "db").await, limit(&elsewhere, "second").await), (round, 10 + round));
    }
    // A process that has read all that is gone keeps its cache.
    assert!(sweep(u64::MAX).await);
    second.set_revs_limit(20).await.unwrap();
    let misses = elsewhere.inner.metrics.database_cache_misses.get();
    assert_eq!((limit(&elsewhere, "second").await, limit(&elsewhere, "db").await), (20, 3));
    assert_eq!(elsewhere.inner.metrics.database_cache_misses.get() - misses, 1);
    // Recent entries stay.
    assert!(!crate::sweeper::sweep_record_log(&layer.inner).await.unwrap());
}

/// A transaction with a read version from before a change reads the earlier state, and leaves later ones alone.
#[tokio::test]
async fn a_transaction_from_before_a_change_does_not_bring_the_record_back() {
    let manual = ManualClock::new();
    let (layer, authority, storage) = layer_at(&manual).await;
    let (elsewhere, _) = open_at(&storage, &manual).await;
    let db = elsewhere.database("db", authority.for_job("test"));
    for round in 1..6 {
        db.set_revs_limit(round).await.unwrap();
        limit(&layer, "db").await;
        let earlier = begin(&layer).await;
        db.set_revs_limit(100 + round).await.unwrap();
        if round % 2 == 0 {
            assert_eq!(limit(&layer, "db").await, 100 + round);
        } else {
            // Another database's reader learns of the change.
            layer.inner.resolve(&begin(&layer).await, "none").await.unwrap_err();
        }
        if round > 3 {
            layer.inner.databases.remove("db");
        }
        assert_eq!(limit_in(&layer, &earlier, "db").await, round);
        assert_eq!(limit(&layer, "db").await, 100 + round);
        assert_eq!(limit_in(&layer, &earlier, "db").await, round);
        assert_eq!(limit(&layer, "db").await, 100 + round);
    }
}

/// Transactions that miss the cache at the same time get one instance: its locks and followers are single.
#[tokio::test]
async fn misses_at_the_same_time_share_an_instance() {
    let manual = ManualClock::new();
    let (layer, _authority, _storage) = layer_at(&manual).await;
    let inner = &layer.inner;
    inner.databases.clear();
    let (one, other) = (begin(&layer).await, begin(&layer).await);
    let (one, other) = futures_util::try_join!(inner.resolve(&one, "db"), inner.resolve(&other, "db")).unwrap();
    assert!(std::sync::Arc::ptr_eq(&one, &other));
}
