//! The visibility of batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flatbed_testkit::soon;
use tokio::time::timeout;

use crate::commit::OVERLAYS_MAX;
use crate::fold::FOLD_ROWS_MAX;
use crate::tests::support::{Random, Storage, UID, assert_sound, change, id, ids, listed, name};
use crate::{
    BatchId, Change, CollectionName, Error, Limits, ListQuery, Maintenance, MaintenanceOptions, Precondition, Sort,
    Store,
};

const NONE: Precondition = Precondition::None;

async fn batch_of(store: &Store, collection: &CollectionName, changes: Vec<Change>) -> BatchId {
    let mut batch = None;
    for chunk in changes.chunks(100) {
        batch = Some(match batch {
            None => store.begin_batch(UID, collection, chunk.to_vec(), NONE).await.unwrap().batch,
            Some(batch) => store.append_batch(UID, collection, batch, chunk.to_vec(), NONE).await.unwrap().batch,
        });
    }
    batch.unwrap()
}

async fn commit(store: &Store, collection: &CollectionName, batch: BatchId) {
    store.commit_batch(UID, collection, batch, Vec::new(), NONE).await.unwrap();
}

fn numbered(from: usize, to: usize, payload: &str) -> Vec<Change> {
    (from..to).map(|at| change(&format!("r{at:05}"), payload)).collect()
}

async fn count(store: &Store, collection: &CollectionName) -> u64 {
    let counts = store.collection_counts(UID, NONE).await.unwrap().collections;
    counts.into_iter().find(|(name, _)| name == collection).map_or(0, |(_, count)| count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_over_a_collection_reads_alike_whatever_is_folded_of_it() {
    let storage = Storage::new();
    let (store, bookmarks) = (storage.store().await, name("bookmarks"));
    for from in (0..600).step_by(100) {
        let changes: Vec<Change> = numbered(from, from + 100, "old")
            .into_iter()
            .enumerate()
            .map(|(at, change)| Change { sortindex: (at % 3 > 0).then_some(at as i32), ..change })
            .collect();
        store.post(UID, &bookmarks, changes, NONE).await.unwrap();
    }
    storage.advance(1_000);
    // Half of them again: some with a payload alone, some with a sortindex alone, large ones, and new ones.
    let large = "l".repeat(20_000);
    let edits: Vec<Change> = (300..1_000)
        .map(|at| match at % 5 {
            0 => Change { payload: None, sortindex: Some(1_000 - at), ..change(&format!("r{at:05}"), "") },
            1 => Change { sortindex: Some(at), ..change(&format!("r{at:05}"), "new") },
            2 if at % 50 == 2 => change(&format!("r{at:05}"), &large),
            _ => change(&format!("r{at:05}"), "new"),
        })
        .collect();
    let batch = batch_of(&store, &bookmarks, edits).await;
    assert_eq!(count(&store, &bookmarks).await, 600);
    commit(&store, &bookmarks, batch).await;
    assert_eq!(count(&store, &bookmarks).await, 1_000);
    assert_sound(&store).await;
    let sorts = [Sort::Newest, Sort::Oldest, Sort::Index].map(|sort| ListQuery { sort, ..ListQuery::default() });
    // More than a reader sorts itself.
    let newer = store.get(UID, &bookmarks, &id("r00000"), NONE).await.unwrap().record.modified;
    let sorts = sorts.into_iter().chain([ListQuery { sort: Sort::Index, newer: Some(newer), ..ListQuery::default() }]);
    let sorts: Vec<ListQuery> = sorts.collect();
    let mut before = Vec::new();
    for query in &sorts {
        before.push(listed(&store, &bookmarks, query).await);
    }
    let usage = store.collection_usage(UID, NONE).await.unwrap();
    let (user, mut after) = (store.inner.keys.user(UID), None);
    for step in 0.. {
        match store.inner.fold_page(&user, &bookmarks, after.as_ref(), FOLD_ROWS_MAX).await.unwrap() {
            crate::fold::FoldOutcome::Nothing => break,
            crate::fold::FoldOutcome::Until(id) => after = Some(id),
            _ => after = None,
        }
        if step % 2 == 0 {
            for (query, before) in sorts.iter().zip(&before) {
                assert_eq!(listed(&store, &bookmarks, query).await, *before, "{query:?}, {step}");
            }
            assert_eq!(store.collection_usage(UID, NONE).await.unwrap().collections, usage.collections);
            assert_sound(&store).await;
        }
    }
    for (query, before) in sorts.iter().zip(&before) {
        assert_eq!(listed(&store, &bookmarks, query).await, *before, "{query:?}");
    }
    assert_sound(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fifth_batch_folds_one_first() {
    let storage = Storage::new();
    let (store, history) = (storage.store().await, name("history"));
    for number in 0..OVERLAYS_MAX + 2 {
        let batch = batch_of(&store, &history, numbered(number * 10, number * 10 + 20, &number.to_string())).await;
        commit(&store, &history, batch).await;
        assert_eq!(count(&store, &history).await, number as u64 * 10 + 20);
        assert_sound(&store).await;
    }
    let records = listed(&store, &history, &ListQuery { sort: Sort::Oldest, ..ListQuery::default() }).await;
    assert_eq!(records.len(), 70);
    for (at, record) in records.iter().enumerate() {
        assert_eq!(record.payload, (at / 10).min(5).to_string(), "{}", record.id);
    }
    // A single write overrides all of them, and a deletion removes all.
    store.put(UID, &history, change("r00015", "mine"), NONE).await.unwrap();
    store.delete_records(UID, &history, &[id("r00025"), id("r00045")], NONE).await.unwrap();
    store.inner.fold_all(UID, &history).await.unwrap();
    assert_eq!(store.get(UID, &history, &id("r00015"), NONE).await.unwrap().record.payload, "mine");
    assert_eq!(count(&store, &history).await, 68);
    assert_sound(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_while_a_batch_is_uploaded_stays_where_the_batch_leaves_it_out() {
    let storage = Storage::new();
    let (store, forms) = (storage.store().await, name("forms"));
    store.post(UID, &forms, numbered(0, 300, "old").split_off(200), NONE).await.unwrap();
    let edits: Vec<Change> =
        numbered(0, 700, "").into_iter().map(|change| Change { payload: None, sortindex: Some(1), ..change }).collect();
    let batch = batch_of(&store, &forms, edits).await;
    // Others write and delete records below the batch.
    store.put(UID, &forms, change("r00200", "mine"), NONE).await.unwrap();
    store.put(UID, &forms, change("r00650", "mine"), NONE).await.unwrap();
    store.delete_record(UID, &forms, &id("r00299"), NONE).await.unwrap();
    let over = batch_of(&store, &forms, vec![change("r00699", "over"), change("z", "over")]).await;
    commit(&store, &forms, over).await;
    commit(&store, &forms, batch).await;
    let payload = async |of: &str| store.get(UID, &forms, &id(of), NONE).await.unwrap().record.payload;
    for (of, wanted) in
        [("r00000", ""), ("r00200", "mine"), ("r00201", "old"), ("r00299", ""), ("r00650", "mine"), ("r00699", "over")]
    {
        assert_eq!(payload(of).await, wanted, "{of}");
    }
    assert_eq!(count(&store, &forms).await, 701);
    assert_sound(&store).await;
    store.inner.fold_all(UID, &forms).await.unwrap();
    assert_eq!((payload("r00200").await, payload("r00699").await), ("mine".into(), "over".into()));
    assert_sound(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_committed_however_busy_the_collection_is() {
    let storage = Storage::new();
    let (store, tabs) = (storage.store().await, name("tabs"));
    let batch = batch_of(&store, &tabs, numbered(0, 1_500, "batch")).await;
    let (writer, is_over) = (storage.store().await, Arc::new(AtomicBool::new(false)));
    let (clock, collection, until) = (storage.clock.clone(), tabs.clone(), is_over.clone());
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let writes = tokio::spawn(async move {
        let (mut begun, mut writes) = (Some(begun), 0);
        while !until.load(Ordering::Relaxed) {
            clock.advance(Duration::from_millis(10));
            writer.put(UID, &collection, change(&format!("r{:05}", writes % 1_500), "single"), NONE).await.unwrap();
            writes += 1;
            begun.take().map(|begun| begun.send(()));
        }
    });
    has_begun.await.unwrap();
    commit(&store, &tabs, batch).await;
    is_over.store(true, Ordering::Relaxed);
    writes.await.unwrap();
    assert_eq!(count(&store, &tabs).await, 1_500);
    assert_sound(&store).await;
}

#[tokio::test]
async fn a_batch_is_known_in_its_collection_for_two_hours() {
    let storage = Storage::new();
    let (store, tabs) = (storage.store().await, name("tabs"));
    let maintenance = Maintenance::new(&store, MaintenanceOptions::default()).unwrap();
    let batch = batch_of(&store, &tabs, vec![change("a", &"x".repeat(100_000)), change("b", "1")]).await;
    for (collection, batch) in [(&name("other"), batch), (&tabs, BatchId(5))] {
        let refused = store.append_batch(UID, collection, batch, vec![change("c", "1")], NONE).await;
        assert!(matches!(refused, Err(Error::BatchNotFound)), "{refused:?}");
        let refused = store.commit_batch(UID, collection, batch, Vec::new(), NONE).await;
        assert!(matches!(refused, Err(Error::BatchNotFound)), "{refused:?}");
    }
    storage.advance(720_000 - 1);
    store.append_batch(UID, &tabs, batch, vec![change("c", "1")], NONE).await.unwrap();
    storage.advance(1);
    let refused = store.commit_batch(UID, &tabs, batch, Vec::new(), NONE).await;
    assert!(matches!(refused, Err(Error::BatchNotFound)), "{refused:?}");
    assert_eq!(maintenance.round().await.unwrap(), 1);
    assert_eq!(store.check().await.unwrap().batches, 0);
    assert_sound(&store).await;
    let user = store.inner.keys.user(UID);
    let left = &user.all();
    let is_left = store.inner.runner.read(move |trx| async move { trx.is_any(left).await }).await;
    assert!(!is_left.unwrap());
}

#[tokio::test]
async fn deletions_and_open_batches() {
    let storage = Storage::new();
    let (store, tabs) = (storage.store().await, name("tabs"));
    store.post(UID, &tabs, vec![change("a", "old"), change("l", &"o".repeat(9_000))], NONE).await.unwrap();
    let edits = vec![
        Change { payload: None, sortindex: Some(1), ..change("a", "") },
        change("b", &"n".repeat(9_000)),
        change("c", "new"),
    ];
    let batch = batch_of(&store, &tabs, edits.clone()).await;
    let other = batch_of(&store, &tabs, edits).await;
    store.delete_collection(UID, &tabs, NONE).await.unwrap();
    assert_sound(&store).await;
    // The batch still exists; the values that it omitted are gone.
    commit(&store, &tabs, batch).await;
    let record = store.get(UID, &tabs, &id("a"), NONE).await.unwrap().record;
    assert_eq!((record.payload.as_ref(), record.sortindex), (&b""[..], Some(1)));
    assert_eq!(store.get(UID, &tabs, &id("b"), NONE).await.unwrap().record.payload.len(), 9_000);
    assert_eq!(count(&store, &tabs).await, 3);
    // The same over a committed batch.
    store.delete_collection(UID, &tabs, NONE).await.unwrap();
    assert!(ids(&store, &tabs, &ListQuery::default()).await.is_empty());
    assert_sound(&store).await;
    // All includes open batches.
    store.delete_all(UID, NONE).await.unwrap();
    let refused = store.commit_batch(UID, &tabs, other, Vec::new(), NONE).await;
    assert!(matches!(refused, Err(Error::BatchNotFound)), "{refused:?}");
    assert_eq!(store.check().await.unwrap().batches, 0);
    assert_sound(&store).await;
}

#[tokio::test]
async fn batches_are_bounded() {
    let mut storage = Storage::new();
    storage.limits = Limits { max_total_records: 150, max_total_bytes: 100_000, ..Limits::default() };
    let (store, tabs) = (storage.store().await, name("tabs"));
    let batch = batch_of(&store, &tabs, numbered(0, 100, "1")).await;
    let refused = store.append_batch(UID, &tabs, batch, numbered(100, 200, "1"), NONE).await;
    assert!(matches!(refused, Err(Error::BatchTooLarge)), "{refused:?}");
    let refused = store.append_batch(UID, &tabs, batch, vec![change("a", &"x".repeat(99_901))], NONE).await;
    assert!(matches!(refused, Err(Error::BatchTooLarge)), "{refused:?}");
    // The same records again do not count twice.
    store.append_batch(UID, &tabs, batch, numbered(0, 100, "2"), NONE).await.unwrap();
    commit(&store, &tabs, batch).await;
    assert_eq!(store.quota(UID, NONE).await.unwrap().used_bytes, 100);
    for _ in 0..Limits::OPEN_BATCHES_MAX {
        batch_of(&store, &tabs, numbered(0, 1, "1")).await;
    }
    let refused = store.begin_batch(UID, &tabs, Vec::new(), NONE).await;
    assert!(matches!(refused, Err(Error::TooMany(_))), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_folds_what_was_left() {
    let storage = Storage::new();
    let (store, tabs) = (storage.store().await, name("tabs"));
    let batch = batch_of(&store, &tabs, numbered(0, 300, "1")).await;
    commit(&store, &tabs, batch).await;
    drop(store);
    let other = storage.store().await;
    let maintenance = Maintenance::new(&other, MaintenanceOptions::default()).unwrap();
    assert_eq!(maintenance.round().await.unwrap(), 0);
    storage.advance(1_000);
    assert_eq!(maintenance.round().await.unwrap(), 1);
    let user = other.inner.keys.user(UID);
    let staged = &user.staged();
    let is_left = other.inner.runner.read(move |trx| async move { trx.is_any(staged).await }).await;
    assert_eq!((is_left.unwrap(), count(&other, &tabs).await), (false, 300));
    assert_sound(&other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_fold_at_once() {
    let storage = Storage::new();
    let (one, two, tabs) = (storage.store().await, storage.store().await, name("tabs"));
    let mut random = Random(3);
    for round in 0..3 {
        for _ in 0..3 {
            let mut edits = numbered(0, 400, &round.to_string());
            edits.retain(|_| random.one_in(2));
            edits.iter_mut().for_each(|change| change.ttl = random.one_in(3).then_some(10_000));
            let batch = batch_of(&one, &tabs, edits).await;
            commit(&two, &tabs, batch).await;
        }
        let before = listed(&one, &tabs, &ListQuery::default()).await;
        let (first, second) = tokio::join!(one.inner.fold_all(UID, &tabs), two.inner.fold_all(UID, &tabs));
        first.and(second).unwrap();
        assert_eq!(listed(&two, &tabs, &ListQuery::default()).await, before);
        assert_sound(&one).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_batch_over_a_collection() {
    let storage = Storage::new();
    let (store, history) = (storage.store().await, name("history"));
    for from in (0..2_000).step_by(400) {
        let batch = batch_of(&store, &history, numbered(from, from + 400, &"o".repeat(100))).await;
        commit(&store, &history, batch).await;
    }
    let batch = batch_of(&store, &history, numbered(1_000, 11_000, &"n".repeat(100))).await;
    let more = store.append_batch(UID, &history, batch, numbered(11_000, 11_001, "1"), NONE).await;
    assert!(matches!(more, Err(Error::BatchTooLarge)), "{more:?}");
    commit(&store, &history, batch).await;
    assert_eq!(count(&store, &history).await, 11_000);
    assert_eq!(store.quota(UID, NONE).await.unwrap().used_bytes, 1_100_000);
    let all = store.list(UID, &history, &ListQuery { sort: Sort::Oldest, ..ListQuery::default() }, NONE).await.unwrap();
    assert_eq!((all.ids().len(), &all.ids()[0], &all.ids()[9_999]), (10_000, &id("r00000"), &id("r09999")));
    assert!(all.next_offset().is_some());
    store.inner.fold_all(UID, &history).await.unwrap();
    assert_eq!(count(&store, &history).await, 11_000);
    assert_sound(&store).await;
}

#[tokio::test]
async fn whoever_holds_a_collection_does_so_for_ten_seconds() {
    let storage = Storage::new();
    let (store, history) = (storage.store().await, name("history"));
    store.put(UID, &history, change("a", "1"), NONE).await.unwrap();
    let batch = batch_of(&store, &history, numbered(0, 10, "2")).await;
    let user = store.inner.keys.user(UID);
    let put = |of: &'static str| store.put(UID, &history, change(of, "1"), NONE);
    let little = Duration::from_millis(200);
    store.inner.hold(&user, &history, batch).await.unwrap();
    assert!(timeout(little, put("b")).await.is_err());
    // The process that was about to commit it has died.
    storage.advance(1_001);
    soon(put("b")).await.unwrap();
    // The process that holds it does not wait for itself, and lets others in when it is done.
    let batch = batch_of(&store, &history, numbered(0, 10, "3")).await;
    store.inner.hold(&user, &history, batch).await.unwrap();
    assert!(timeout(little, put("c")).await.is_err());
    soon(commit(&store, &history, batch)).await;
    soon(put("c")).await.unwrap();
    assert_eq!(count(&store, &history).await, 13);
}
