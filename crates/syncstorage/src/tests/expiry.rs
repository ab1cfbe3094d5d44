//! Time to live.

use crate::tests::support::{Storage, UID, assert_sound, change, id, ids, name};
use crate::{Change, Error, ListQuery, Maintenance, MaintenanceOptions, Precondition, Uid};

const NONE: Precondition = Precondition::None;

fn for_seconds(of: &str, ttl: u32) -> Change {
    Change { ttl: Some(ttl), ..change(of, "12345") }
}

#[tokio::test]
async fn what_expires_is_gone_at_the_second_and_swept_later() {
    let storage = Storage::new();
    let (store, tabs) = (storage.store().await, name("tabs"));
    let maintenance = Maintenance::new(&store, MaintenanceOptions::default()).unwrap();
    let changes = vec![for_seconds("a", 10), for_seconds("b", 20), change("c", "123")];
    let written = store.post(UID, &tabs, changes, NONE).await.unwrap().modified;
    storage.advance(999);
    assert_eq!(ids(&store, &tabs, &ListQuery::default()).await, ["c", "b", "a"]);
    storage.advance(1);
    assert_eq!(ids(&store, &tabs, &ListQuery::default()).await, ["c", "b"]);
    assert!(matches!(store.get(UID, &tabs, &id("a"), NONE).await, Err(Error::NotFound { .. })));
    assert_eq!(store.collection_counts(UID, NONE).await.unwrap().collections, [(tabs.clone(), 2)]);
    assert_eq!(store.collection_usage(UID, NONE).await.unwrap().collections, [(tabs.clone(), 8)]);
    assert_eq!(store.quota(UID, NONE).await.unwrap().used_bytes, 8);
    assert_eq!(store.check().await.unwrap().records, 3);
    // Not swept yet, for processes whose clocks are late.
    assert_eq!(maintenance.round().await.unwrap(), 0);
    storage.advance(1_000);
    assert_ne!(maintenance.round().await.unwrap(), 0);
    assert_eq!(store.check().await.unwrap().records, 2);
    assert_sound(&store).await;
    // The collection's time stays.
    let info = store.info_collections(UID, NONE).await.unwrap();
    assert_eq!((info.modified, info.collections), (written, vec![(tabs.clone(), written)]));
    storage.advance(2_000);
    assert_ne!(maintenance.round().await.unwrap(), 0);
    assert_eq!(ids(&store, &tabs, &ListQuery::default()).await, ["c"]);
    assert_eq!(maintenance.round().await.unwrap(), 0);
    assert_sound(&store).await;
}

#[tokio::test]
async fn a_ttl_of_nought_is_gone_at_once_and_keeps_nothing() {
    let storage = Storage::new();
    let (store, tabs) = (storage.store().await, name("tabs"));
    for _ in 0..3 {
        store.put(UID, &tabs, Change { sortindex: Some(5), ..for_seconds("a", 0) }, NONE).await.unwrap();
        assert!(matches!(store.get(UID, &tabs, &id("a"), NONE).await, Err(Error::NotFound { .. })));
        assert!(store.collection_counts(UID, NONE).await.unwrap().collections.is_empty());
    }
    // As a record that never existed.
    store.put(UID, &tabs, Change { payload: None, ..change("a", "") }, NONE).await.unwrap();
    let record = store.get(UID, &tabs, &id("a"), NONE).await.unwrap().record;
    assert_eq!((record.payload.as_ref(), record.sortindex, record.expires), (&b""[..], None, None));
    assert_sound(&store).await;
}

#[tokio::test]
async fn many_users_are_swept_in_a_few_transactions_each_bounded() {
    let storage = Storage::new();
    let (store, history) = (storage.store().await, name("history"));
    let maintenance = Maintenance::new(&store, MaintenanceOptions::default()).unwrap();
    for uid in 0..120 {
        let records = if uid == 60 { 90 } else { 3 };
        let changes = (0..records).map(|at| for_seconds(&at.to_string(), 10 + at % 3)).collect();
        store.post(Uid(uid), &history, changes, NONE).await.unwrap();
    }
    // More of them than one transaction sweeps.
    for from in 1..5 {
        let changes = (0..90).map(|at| for_seconds(&(from * 100 + at).to_string(), 10)).collect();
        store.post(Uid(60), &history, changes, NONE).await.unwrap();
    }
    storage.advance(3_000);
    maintenance.round().await.unwrap();
    let checked = store.check().await.unwrap();
    assert_eq!((checked.users, checked.records), (120, 0));
    assert_sound(&store).await;
    assert_eq!(maintenance.round().await.unwrap(), 0);
}

#[tokio::test]
async fn what_a_batch_makes_expire_expires_before_it_is_folded() {
    let storage = Storage::new();
    let (store, tabs) = (storage.store().await, name("tabs"));
    store
        .post(UID, &tabs, vec![for_seconds("kept", 30), for_seconds("a", 1_000), change("b", "1")], NONE)
        .await
        .unwrap();
    let edits = vec![
        for_seconds("a", 5),
        Change { payload: None, ttl: Some(5), ..change("b", "") },
        Change { payload: None, sortindex: Some(1), ..change("kept", "") },
        for_seconds("c", 5),
    ];
    let staged = store.begin_batch(UID, &tabs, edits, NONE).await.unwrap();
    storage.advance(1);
    store.commit_batch(UID, &tabs, staged.batch, Vec::new(), NONE).await.unwrap();
    assert_eq!(store.collection_counts(UID, NONE).await.unwrap().collections, [(tabs.clone(), 4)]);
    storage.advance(500);
    assert_eq!(store.collection_counts(UID, NONE).await.unwrap().collections, [(tabs.clone(), 1)]);
    assert_eq!(store.collection_usage(UID, NONE).await.unwrap().collections, [(tabs.clone(), 5)]);
    assert_eq!(ids(&store, &tabs, &ListQuery::default()).await, ["kept"]);
    storage.advance(2_500);
    assert!(store.collection_counts(UID, NONE).await.unwrap().collections.is_empty());
    // A row that keeps a part of an expiring record goes with it; overlays are folded before the sweep.
    storage.advance(2_000);
    store.inner.do_due().await.unwrap();
    assert_eq!(store.check().await.unwrap().records, 0);
    assert_sound(&store).await;
}

#[tokio::test]
async fn what_expires_between_the_upload_and_the_commit_keeps_nothing() {
    let storage = Storage::new();
    let (store, tabs) = (storage.store().await, name("tabs"));
    store.put(UID, &tabs, Change { sortindex: Some(9), ..for_seconds("a", 10) }, NONE).await.unwrap();
    let edit = Change { payload: None, sortindex: None, ttl: Some(1_000), ..change("a", "") };
    let staged = store.begin_batch(UID, &tabs, vec![edit], NONE).await.unwrap();
    storage.advance(1_000);
    store.commit_batch(UID, &tabs, staged.batch, Vec::new(), NONE).await.unwrap();
    let record = store.get(UID, &tabs, &id("a"), NONE).await.unwrap().record;
    assert_eq!((record.payload.as_ref(), record.sortindex), (&b""[..], None));
    assert_sound(&store).await;
    store.inner.fold_all(UID, &tabs).await.unwrap();
    assert_eq!(store.get(UID, &tabs, &id("a"), NONE).await.unwrap().record, record);
    assert_sound(&store).await;
}

#[tokio::test]
async fn what_is_corrupt_keeps_nobody_else_from_being_swept() {
    let storage = Storage::new();
    let (store, tabs) = (storage.store().await, name("tabs"));
    for uid in 0..300 {
        store.put(Uid(uid), &tabs, for_seconds("a", 10), NONE).await.unwrap();
    }
    for uid in [7, 70] {
        let keys = store.inner.keys.user(Uid(uid)).collection(&tabs);
        let keys = &keys;
        let bad: &[u8] = if uid == 7 { &[1, 2] } else { &[9] };
        store.inner.runner.write(move |trx, _| async move { trx.set_quietly(keys.state(), bad) }).await.unwrap();
    }
    storage.advance(3_000);
    assert_ne!(store.inner.do_due().await.unwrap(), 0);
    for uid in (0..300).map(Uid) {
        let keys = store.inner.keys.user(uid).collection(&tabs).records();
        let keys = &keys;
        let is_any = store.inner.runner.read(move |trx| async move { trx.is_any(keys).await }).await.unwrap();
        assert_eq!(is_any, uid.0 == 7 || uid.0 == 70, "{uid}");
    }
}
