//! Large payloads written ahead of their edits, and their removal when no edit follows.

use crate::batch::Append;
use crate::limits::Limits;
use crate::maintenance::{Maintenance, MaintenanceOptions};
use crate::tests::support::{Storage, UID, assert_sound, change, id, name};
use crate::values::StagedPayloads;
use crate::{BatchId, Change, CollectionName, Error, ListQuery, Precondition, Store};

const NONE: Precondition = Precondition::None;

fn sized(of: &str, bytes: usize) -> Change {
    change(of, &"x".repeat(bytes))
}

/// Does the work of a server that dies between writing ahead and staging.
async fn write_and_die(store: &Store, tabs: &CollectionName, batch: BatchId, changes: Vec<Change>) {
    let user = &store.inner.keys.user(UID);
    let bytes = changes.iter().filter_map(|change| change.payload.as_ref()).map(|payload| payload.len() as u32).sum();
    let (next, mut changes) = store.inner.prepare_batch(changes, batch).unwrap();
    let ahead = StagedPayloads { next, bytes };
    let (begins, condition, changes_now) = (false, NONE, &[][..]);
    let append = Append { user, name: tabs, batch, begins, changes: changes_now, condition, ahead: Some(ahead) };
    store.inner.append(&append).await.unwrap();
    store.inner.write_ahead(user, tabs, batch, ahead, &mut changes).await.unwrap();
}

/// Returns the number of parts of large payloads.
async fn parts(store: &Store, tabs: &CollectionName) -> usize {
    let (mut range, mut parts) = (store.inner.keys.user(UID).collection(tabs).blobs(), 0);
    loop {
        let next = &range;
        let rows = store
            .inner
            .runner
            .read(move |trx| async move { Ok(trx.page(next, 1_000, false).await?.rows) })
            .await
            .unwrap();
        let Some((last, _)) = rows.last() else { return parts };
        parts += rows.len();
        range = range.behind(last);
    }
}

#[tokio::test]
async fn what_no_edit_points_at_goes_with_the_commit() {
    let storage = Storage::new();
    let (store, tabs) = (storage.store().await, name("tabs"));
    let batch = store.begin_batch(UID, &tabs, vec![sized("a", 9_000)], NONE).await.unwrap().batch;
    write_and_die(&store, &tabs, batch, vec![sized("a", 100_000), sized("b", 8_001)]).await;
    assert_eq!(parts(&store, &tabs).await, 4);
    assert_sound(&store).await;
    store.append_batch(UID, &tabs, batch, vec![sized("b", 9_000), change("c", "1")], NONE).await.unwrap();
    write_and_die(&store, &tabs, batch, vec![sized("d", 9_000)]).await;
    assert_sound(&store).await;
    store.commit_batch(UID, &tabs, batch, vec![sized("e", 9_000)], NONE).await.unwrap();
    assert_eq!(parts(&store, &tabs).await, 3);
    assert_sound(&store).await;
    store.inner.fold_all(UID, &tabs).await.unwrap();
    assert_sound(&store).await;
    for of in ["a", "b", "e"] {
        assert_eq!(store.get(UID, &tabs, &id(of), NONE).await.unwrap().record.payload.len(), 9_000, "{of}");
    }
    assert_eq!(store.list(UID, &tabs, &ListQuery::default(), NONE).await.unwrap().ids().len(), 4);
}

#[tokio::test]
async fn what_no_edit_points_at_goes_after_two_hours() {
    let storage = Storage::new();
    let (store, tabs) = (storage.store().await, name("tabs"));
    let maintenance = Maintenance::new(&store, MaintenanceOptions::default()).unwrap();
    store.put(UID, &tabs, sized("kept", 9_000), NONE).await.unwrap();
    let batch = store.begin_batch(UID, &tabs, vec![sized("a", 9_000)], NONE).await.unwrap().batch;
    write_and_die(&store, &tabs, batch, vec![sized("b", 100_000)]).await;
    assert_eq!(parts(&store, &tabs).await, 4);
    storage.advance(720_000);
    assert_eq!(maintenance.round().await.unwrap(), 1);
    assert_eq!(parts(&store, &tabs).await, 1);
    assert_sound(&store).await;
}

#[tokio::test]
async fn an_append_that_is_refused_leaves_nothing() {
    let mut storage = Storage::new();
    storage.limits = Limits { max_total_bytes: 100_000, ..Limits::default() };
    let (store, tabs) = (storage.store().await, name("tabs"));
    let batch = store.begin_batch(UID, &tabs, vec![sized("a", 9_000)], NONE).await.unwrap().batch;
    let refused = store.append_batch(UID, &tabs, batch, vec![sized("a", 50_000), sized("b", 60_000)], NONE).await;
    assert!(matches!(refused, Err(Error::BatchTooLarge)), "{refused:?}");
    assert_eq!(parts(&store, &tabs).await, 1);
    assert_sound(&store).await;
    // Nor does one that comes too late.
    let user = &store.inner.keys.user(UID);
    let (next, mut changes) = store.inner.prepare_batch(vec![sized("c", 9_000)], batch).unwrap();
    let late = store.inner.write_ahead(user, &tabs, batch, StagedPayloads { next, bytes: 9_000 }, &mut changes).await;
    assert!(matches!(late, Err(Error::BatchNotFound)), "{late:?}");
    assert_eq!(parts(&store, &tabs).await, 1);
}

#[tokio::test]
async fn what_all_open_batches_take_is_bounded() {
    let mut storage = Storage::new();
    storage.limits = Limits { max_total_bytes: 3_000_000, ..Limits::default() };
    let (store, tabs) = (storage.store().await, name("tabs"));
    let begin = |bytes| store.begin_batch(UID, &tabs, vec![sized("a", bytes)], NONE);
    let first = begin(2_000_000).await.unwrap().batch;
    write_and_die(&store, &tabs, first, vec![sized("b", 1_000_000)]).await;
    let second = begin(2_000_000).await.unwrap().batch;
    for bytes in [1_000_001, 2_000_000] {
        let refused = begin(bytes).await;
        assert!(matches!(refused, Err(Error::OverQuota)), "{refused:?}");
    }
    let refused = store.append_batch(UID, &tabs, second, vec![sized("b", 1_000_001)], NONE).await;
    assert!(matches!(refused, Err(Error::OverQuota)), "{refused:?}");
    // A large write is staged as well; a small one is not, and another user has a limit of its own.
    let refused = store.put(UID, &tabs, sized("c", 1_000_001), NONE).await;
    assert!(matches!(refused, Err(Error::OverQuota)), "{refused:?}");
    store.put(UID, &tabs, sized("c", 900_000), NONE).await.unwrap();
    store.begin_batch(crate::Uid(8), &tabs, vec![sized("a", 2_000_000)], NONE).await.unwrap();
    store.append_batch(UID, &tabs, second, vec![sized("b", 1_000_000)], NONE).await.unwrap();
    assert_sound(&store).await;
    store.commit_batch(UID, &tabs, first, Vec::new(), NONE).await.unwrap();
    begin(2_500_000).await.unwrap();
    assert_sound(&store).await;
}

#[tokio::test]
async fn a_batch_beyond_the_quota_is_refused_as_it_is_staged() {
    let mut storage = Storage::new();
    storage.limits = Limits { quota_bytes: Some(20_000), ..Limits::default() };
    let (store, tabs) = (storage.store().await, name("tabs"));
    let batch = store.begin_batch(UID, &tabs, vec![sized("a", 7_000), sized("b", 7_000)], NONE).await.unwrap().batch;
    let refused = store.append_batch(UID, &tabs, batch, vec![sized("c", 7_000)], NONE).await;
    assert!(matches!(refused, Err(Error::OverQuota)), "{refused:?}");
    store.append_batch(UID, &tabs, batch, vec![sized("c", 6_000)], NONE).await.unwrap();
    store.commit_batch(UID, &tabs, batch, Vec::new(), NONE).await.unwrap();
    // The same records again take no more, once they are committed.
    let again = vec![sized("a", 7_000), sized("b", 7_000), sized("c", 6_000)];
    let again = store.begin_batch(UID, &tabs, again, NONE).await.unwrap().batch;
    store.commit_batch(UID, &tabs, again, Vec::new(), NONE).await.unwrap();
    let more = store.begin_batch(UID, &tabs, vec![sized("d", 1)], NONE).await.unwrap().batch;
    let refused = store.commit_batch(UID, &tabs, more, Vec::new(), NONE).await;
    assert!(matches!(refused, Err(Error::OverQuota)), "{refused:?}");
}
