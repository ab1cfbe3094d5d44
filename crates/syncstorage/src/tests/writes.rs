//! Single writes, deletions, and limits.

use bytes::Bytes;

use crate::tests::support::{Storage, UID, assert_sound, change, id, name};
use crate::{Change, Error, Limits, ListQuery, Maintenance, MaintenanceOptions, Precondition, Store, Timestamp, Uid};

const NONE: Precondition = Precondition::None;

fn counted(store: &Store, family: &str) -> u64 {
    let family = store.metrics().into_iter().find(|found| found.name == format!("flatbed_{family}")).unwrap();
    match family.samples[0].value {
        flatbed_metrics::Value::Count(count) => count,
        _ => panic!("no counter"),
    }
}

#[tokio::test]
async fn times_grow_by_a_step_whatever_the_clock_says() {
    let storage = Storage::new();
    let hour_late = storage.clock.clock().skewed(-3_600_000);
    let (one, two) = (storage.store().await, storage.store_with(hour_late).await);
    let tabs = name("tabs");
    let first = one.put(UID, &tabs, change("a", "1"), NONE).await.unwrap().modified;
    assert_eq!(first, storage.now());
    for (step, store) in (1..).zip([&one, &two, &two, &one]) {
        let written = store.put(UID, &tabs, change("a", "2"), NONE).await.unwrap().modified;
        assert_eq!(written.hundredths(), first.hundredths() + step);
    }
    assert_eq!((counted(&one, "sync_clock_ahead"), counted(&two, "sync_clock_ahead")), (0, 2));
    let got = two.get(UID, &tabs, &id("a"), NONE).await.unwrap();
    assert!(got.now >= got.record.modified);
    // The clock survives the deletion of everything.
    let all = two.delete_all(UID, NONE).await.unwrap();
    assert_eq!((all.before.hundredths(), all.modified), (first.hundredths() + 4, Timestamp::ZERO));
    let info = one.info_collections(UID, NONE).await.unwrap();
    assert_eq!((info.modified, info.collections.len()), (Timestamp::ZERO, 0));
    assert!(two.put(UID, &tabs, change("a", "1"), NONE).await.unwrap().modified > all.before);
    assert_sound(&one).await;
}

#[tokio::test]
async fn a_large_put_and_a_large_post() {
    let storage = Storage::new();
    let (store, history) = (storage.store().await, name("history"));
    let payload = "é".repeat(1_310_720);
    store.put(UID, &history, change("a", &payload), NONE).await.unwrap();
    assert_eq!(store.get(UID, &history, &id("a"), NONE).await.unwrap().record.payload, payload.as_bytes());
    // 100 of 26 kB, one of which changes a ttl alone.
    let mut changes: Vec<Change> = (0..99).map(|at| change(&format!("r{at:02}"), &"x".repeat(26_000))).collect();
    changes.push(Change { id: id("a"), payload: None, sortindex: None, ttl: Some(1_000) });
    let before = store.get(UID, &history, &id("a"), NONE).await.unwrap().record.modified;
    storage.advance(100);
    let written = store.post(UID, &history, changes, NONE).await.unwrap();
    let record = store.get(UID, &history, &id("a"), NONE).await.unwrap().record;
    assert_eq!((record.modified, record.expires), (before, Some(written.modified.after_seconds(1_000))));
    assert_eq!(store.collection_counts(UID, NONE).await.unwrap().collections, [(history.clone(), 100)]);
    let bytes = 99 * 26_000 + 2_621_440;
    assert_eq!(store.collection_usage(UID, NONE).await.unwrap().collections, [(history.clone(), bytes)]);
    assert_sound(&store).await;
    // All in a few chunks.
    let query = ListQuery { full: true, ..ListQuery::default() };
    let mut list = store.list(UID, &history, &query, NONE).await.unwrap();
    let (mut records, mut chunks) = (0, 0);
    while let Some(chunk) = list.next().await.unwrap() {
        (records, chunks) = (records + chunk.len(), chunks + 1);
    }
    assert_eq!((records, chunks), (100, 4));
    // A write that fails its condition changes nothing.
    let refused = store.put(UID, &history, change("a", &payload), Precondition::UnmodifiedSince(Timestamp::ZERO)).await;
    assert!(matches!(refused, Err(Error::Modified { .. })));
    assert_eq!(store.check().await.unwrap().batches, 0);
    store.delete_collection(UID, &history, NONE).await.unwrap();
    assert_sound(&store).await;
}

#[tokio::test]
async fn what_is_beyond_a_bound_is_refused() {
    let mut storage = Storage::new();
    storage.limits = Limits { max_post_records: 5_000, quota_bytes: Some(1_000), ..Limits::default() };
    let (store, tabs) = (storage.store().await, name("tabs"));
    assert_eq!(store.limits().max_post_records, Limits::POST_RECORDS_MAX);
    let many = (0..401).map(|at| change(&at.to_string(), "")).collect();
    let refused = store.post(UID, &tabs, many, NONE).await;
    assert!(matches!(refused, Err(Error::OutOfBounds(_))), "{refused:?}");
    let twice = store.post(UID, &tabs, vec![change("a", ""), change("a", "")], NONE).await;
    assert!(matches!(twice, Err(Error::OutOfBounds(_))), "{twice:?}");
    for bad in [
        Change { sortindex: Some(1_000_000_000), ..change("a", "") },
        Change { sortindex: Some(i32::MIN), ..change("a", "") },
        Change { ttl: Some(1_000_000_000), ..change("a", "") },
        Change { payload: Some(Bytes::from(vec![b'x'; 2_621_441])), ..change("a", "") },
    ] {
        assert!(matches!(store.put(UID, &tabs, bad, NONE).await, Err(Error::OutOfBounds(_))));
    }
    store.put(UID, &tabs, change("a", &"x".repeat(900)), NONE).await.unwrap();
    let over = store.put(UID, &name("other"), change("b", &"x".repeat(101)), NONE).await;
    assert!(matches!(over, Err(Error::OverQuota)), "{over:?}");
    // It fits in place of the existing record, and a smaller one always does.
    store.put(UID, &tabs, change("a", &"x".repeat(1_000)), NONE).await.unwrap();
    store.put(UID, &tabs, change("a", "x"), NONE).await.unwrap();
    let quota = store.quota(UID, NONE).await.unwrap();
    assert_eq!((quota.used_bytes, quota.limit_bytes), (1, Some(1_000)));
    let staged = store.begin_batch(UID, &tabs, vec![change("c", &"x".repeat(1_000))], NONE).await.unwrap();
    let over = store.commit_batch(UID, &tabs, staged.batch, Vec::new(), NONE).await;
    assert!(matches!(over, Err(Error::OverQuota)), "{over:?}");
    assert_sound(&store).await;
}

#[tokio::test]
async fn a_user_is_purged_at_a_time() {
    let storage = Storage::new();
    let (store, tabs) = (storage.store().await, name("tabs"));
    let maintenance = Maintenance::new(&store, MaintenanceOptions::default()).unwrap();
    for uid in [Uid(7), Uid(8)] {
        store.put(uid, &tabs, Change { ttl: Some(100_000_000), ..change("a", "1") }, NONE).await.unwrap();
        store.begin_batch(uid, &tabs, vec![change("b", &"x".repeat(10_000))], NONE).await.unwrap();
    }
    store.purge_user_at(Uid(7), store.now().after_seconds(60)).await.unwrap();
    assert_eq!(maintenance.round().await.unwrap(), 0);
    storage.advance(6_000);
    assert_eq!(maintenance.round().await.unwrap(), 1);
    assert_sound(&store).await;
    assert_eq!(store.check().await.unwrap().users, 1);
    assert!(matches!(store.get(Uid(7), &tabs, &id("a"), NONE).await, Err(Error::NotFound { .. })));
    store.get(Uid(8), &tabs, &id("a"), NONE).await.unwrap();
}

#[tokio::test]
async fn users_see_nothing_of_each_other() {
    let storage = Storage::new();
    let (store, tabs) = (storage.store().await, name("tabs"));
    // Numbers whose encodings have a common prefix.
    let uids = [0, 1, 255, 256, 257, 65_535, 65_536, u64::MAX].map(Uid);
    for uid in uids {
        store.put(uid, &tabs, change("a", &uid.to_string()), NONE).await.unwrap();
    }
    store.delete_all(Uid(256), NONE).await.unwrap();
    for uid in uids.into_iter().filter(|uid| uid.0 != 256) {
        assert_eq!(store.get(uid, &tabs, &id("a"), NONE).await.unwrap().record.payload, uid.to_string());
    }
    assert_eq!(store.check().await.unwrap().users, 8);
    assert_sound(&store).await;
}

#[tokio::test]
async fn a_newer_format_is_refused() {
    let storage = Storage::new();
    let store = storage.store().await;
    let key = &store.inner.keys.format();
    store.inner.runner.write(move |trx, _| async move { trx.set_quietly(key, &[2]) }).await.unwrap();
    let opened = storage.open_again(storage.clock.clock()).await;
    assert!(matches!(opened, Err(Error::Format(2))), "{opened:?}");
}

#[tokio::test]
async fn the_checker_sees_what_is_wrong() {
    let storage = Storage::new();
    let (store, tabs) = (storage.store().await, name("tabs"));
    let changes =
        vec![Change { ttl: Some(60), sortindex: Some(3), ..change("a", "1") }, change("b", &"x".repeat(9_000))];
    let user = store.inner.keys.user(UID);
    let keys = user.collection(&tabs);
    let row = |of| keys.record(&id(of));
    let found = |of: &'static str| {
        let (store, key) = (store.clone(), row(of));
        async move {
            let key = &key;
            let read = store.inner.runner.read(move |trx| async move { trx.get(key, true).await }).await;
            crate::values::Row::decode(&read.unwrap().unwrap()).unwrap()
        }
    };
    store.post(UID, &tabs, changes.clone(), NONE).await.unwrap();
    let edits = vec![change("c", "1"), Change { payload: None, sortindex: Some(2), ..change("b", "") }];
    let over = store.begin_batch(UID, &tabs, edits.clone(), NONE).await.unwrap().batch;
    let written = store.commit_batch(UID, &tabs, over, Vec::new(), NONE).await.unwrap().modified;
    let open = store.begin_batch(UID, &tabs, edits, NONE).await.unwrap();
    let deadline = storage.now().after_seconds(7_200);
    let (over, open) = (user.batch(over), (user.batch(open.batch), open.batch));
    let (a, b) = (found("a").await, found("b").await);
    let blob = b.payload.blob().unwrap();
    let expires = a.expires.unwrap();
    let broken = [
        keys.record(&id("a")),
        keys.modified(a.modified, &id("a")),
        keys.sortindex(crate::keys::SortKey::of(a.sortindex), &id("a")),
        keys.expiry(expires, &id("a")),
        keys.blob_part(blob, 0),
        user.due(expires, &crate::keys::Due::Expiry(tabs.clone())),
        user.head(),
        keys.state().to_vec(),
        over.staged_record(&id("c")),
        over.sortindex(crate::keys::SortKey(1_000_000_002), &id("b")),
        over.payload(&id("c")),
        user.due(written.after_seconds(10), &crate::keys::Due::Fold(tabs.clone())),
        open.0.record().to_vec(),
        open.0.staged_record(&id("b")),
        open.0.payload(&id("c")),
        user.due(deadline, &crate::keys::Due::Batch(open.1)),
    ];
    assert_sound(&store).await;
    for key in &broken {
        let value = store.inner.runner.read(move |trx| async move { trx.get(key, true).await }).await.unwrap().unwrap();
        store.inner.runner.write(move |trx, _| async move { trx.clear_quietly(key) }).await.unwrap();
        assert_ne!(store.check().await.unwrap().problems, 0, "{key:x?}");
        let value = &value;
        store.inner.runner.write(move |trx, _| async move { trx.set_quietly(key, value) }).await.unwrap();
    }
    // Keys that belong to nothing.
    let strays = [
        keys.record(&id("z")),
        keys.modified(a.modified, &id("z")),
        keys.blob_part(crate::keys::BlobId { writer: 1, number: 1 }, 0),
        user.batch(crate::BatchId(5)).staged_record(&id("a")),
        user.collection(&name("gone")).record(&id("a")),
        user.due(expires.next(), &crate::keys::Due::Expiry(tabs.clone())),
        over.payload(&id("b")),
        over.staged_record(&id("d")),
        store.inner.keys.part(9),
    ];
    for key in &strays {
        let row = &a.encode();
        store.inner.runner.write(move |trx, _| async move { trx.set_quietly(key, row) }).await.unwrap();
        assert_ne!(store.check().await.unwrap().problems, 0, "{key:x?}");
        store.inner.runner.write(move |trx, _| async move { trx.clear_quietly(key) }).await.unwrap();
    }
    assert_sound(&store).await;
}
