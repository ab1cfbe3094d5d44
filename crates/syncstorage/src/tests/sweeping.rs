//! The due work of several processes: its idle cost, failures of single users, shared slices, and death in the middle.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use flatbed_jobs::Leases;
use flatbed_kit::waits::{self, Waits};
use flatbed_testkit::{pages_are_full, until};

use crate::keys::{SHARDS, shard_of};
use crate::tests::support::{Storage, assert_sound, change, name};
use crate::{Change, Maintenance, MaintenanceOptions, Precondition, Store, Uid};

const NONE: Precondition = Precondition::None;

fn options() -> MaintenanceOptions {
    MaintenanceOptions { look_every: Duration::from_secs(30), silence_max: Duration::from_secs(15) }
}

fn for_seconds(id: &str, ttl: u32) -> Change {
    Change { ttl: Some(ttl), ..change(id, "1") }
}

async fn raw(store: &Store, key: &[u8]) -> Vec<u8> {
    let value = store.inner.runner.read(move |trx| async move { trx.get(key, true).await }).await.unwrap();
    value.unwrap().to_vec()
}

async fn set_raw(store: &Store, key: &[u8], value: &[u8]) {
    store.inner.runner.write(move |trx, _| async move { trx.set_quietly(key, value) }).await.unwrap();
}

async fn is_nothing_due(store: &Store) -> bool {
    store.inner.look_at_due().await.unwrap().due.is_empty()
}

/// One look reads the first entry of each slice, however many users there are.
#[tokio::test]
async fn idle_looks_cost_the_same_for_any_number_of_users() {
    let storage = Storage::new();
    let store = storage.store().await;
    let maintenance = Maintenance::new(&store, options()).unwrap();
    let tabs = name("tabs");
    let mut measured = Vec::new();
    for users in [0, 1, 300] {
        for uid in 0..users {
            store.put(Uid(uid), &tabs, for_seconds("a", 1_000), NONE).await.unwrap();
        }
        let (is_left, waits) = waits::count(maintenance.look_once()).await;
        assert!(!is_left.unwrap());
        measured.push(waits);
    }
    let path = measured[0].path;
    let look = Waits { transactions: 1, range_reads: SHARDS, path, ..Waits::default() };
    if pages_are_full() {
        assert_eq!((path.read_versions, path.reads, path.commits), (1, 1, 0));
        assert_eq!(measured, [look; 3]);
    }
}

#[tokio::test]
async fn an_error_at_one_user_holds_up_no_other() {
    let storage = Storage::new();
    let store = storage.store().await;
    let maintenance = Maintenance::new(&store, options()).unwrap();
    let (tabs, damaged) = (name("tabs"), [Uid(7), Uid(70)]);
    for uid in 0..100 {
        store.put(Uid(uid), &tabs, for_seconds("a", 10), NONE).await.unwrap();
    }
    let keys = &store.inner.keys;
    let states = damaged.map(|uid| keys.user(uid).collection(&tabs).state().to_vec());
    let mut intact = Vec::new();
    for key in &states {
        intact.push(raw(&store, key).await);
        set_raw(&store, key, &[9]).await;
    }
    // An entry that cannot be read, at the beginning of a slice.
    let unreadable = [&keys.due_of(shard_of(Uid(8))).begin[..], b"\x14\x15\x63"].concat();
    set_raw(&store, &unreadable, b"").await;
    storage.advance(3_000);
    assert!(!maintenance.look_once().await.unwrap());
    let left: BTreeSet<u64> = with_records(&store, 100).await;
    assert_eq!(left, damaged.map(|uid| uid.0).into());
    let deferred = || store.inner.metrics.sync_due_deferred.get();
    assert_eq!(deferred(), 3);
    // A deferred entry costs nothing until its time.
    assert!(is_nothing_due(&store).await);
    storage.advance(5_900);
    assert!(is_nothing_due(&store).await);
    storage.advance(200);
    maintenance.look_once().await.unwrap();
    assert_eq!(deferred(), 6);
    // The pause has doubled.
    storage.advance(6_200);
    assert!(is_nothing_due(&store).await);
    for (key, value) in states.iter().zip(&intact) {
        set_raw(&store, key, value).await;
    }
    // The checker takes what is put off as noted.
    let problems = store.check().await.unwrap();
    assert_eq!(problems.problems, 1, "{:#?}", problems.texts);
    storage.advance(6_200);
    maintenance.look_once().await.unwrap();
    assert!(with_records(&store, 100).await.is_empty());
    assert_eq!(deferred(), 7);
    let of_slice = keys.due_of(shard_of(Uid(8)));
    let range = &of_slice;
    store.inner.runner.write(move |trx, _| async move { trx.clear_range_quietly(range) }).await.unwrap();
    assert_sound(&store).await;
}

/// Returns the users with records in `tabs`.
async fn with_records(store: &Store, users: u64) -> BTreeSet<u64> {
    let mut left = BTreeSet::new();
    for uid in 0..users {
        let records = store.inner.keys.user(Uid(uid)).collection(&name("tabs")).records();
        let records = &records;
        if store.inner.runner.read(move |trx| async move { trx.is_any(records).await }).await.unwrap() {
            left.insert(uid);
        }
    }
    left
}

/// Notes the removal of these users, which is counted each time that it is done.
async fn note_purges(storage: &Storage, store: &Store, users: impl Iterator<Item = u64>) {
    for uid in users {
        store.put(Uid(uid), &name("tabs"), change("a", "1"), NONE).await.unwrap();
        store.purge_user_at(Uid(uid), storage.now()).await.unwrap();
    }
}

fn purged(store: &Store) -> u64 {
    store.inner.metrics.sync_users_purged.get()
}

#[tokio::test]
async fn two_processes_share_the_work_and_do_each_entry_once() {
    let storage = Storage::new();
    let (one, two) = (storage.store().await, storage.store().await);
    let first = Maintenance::new(&one, options()).unwrap();
    let second = Maintenance::new(&two, options()).unwrap();
    note_purges(&storage, &one, 0..300).await;
    let (of_one, of_two) = tokio::join!(first.look_once(), second.look_once());
    of_one.unwrap();
    of_two.unwrap();
    assert_eq!(purged(&one) + purged(&two), 300);
    assert!(purged(&one) > 0 && purged(&two) > 0, "{} and {}", purged(&one), purged(&two));
    assert!(is_nothing_due(&one).await);
    let leases = &one.inner.keys.leases();
    let is_leased = one.inner.runner.read(move |trx| async move { trx.is_any(leases).await }).await.unwrap();
    assert!(!is_leased, "a lease is removed when its slice is done");
    assert_eq!(one.check().await.unwrap().users, 0);
    assert_sound(&one).await;
}

#[tokio::test]
async fn another_process_resumes_where_one_has_died() {
    let storage = Storage::new();
    let (one, two) = (storage.store().await, storage.store().await);
    let first = Maintenance::new(&one, options()).unwrap();
    let second = Maintenance::new(&two, options()).unwrap();
    // Some 40 users in each of 8 slices: more than are worked for at once.
    let users = (0..2_560).filter(|uid| shard_of(Uid(*uid)) < 8);
    let all = users.clone().count() as u64;
    note_purges(&storage, &one, users).await;
    {
        let mut work = pin!(first.look_once());
        while purged(&one) == 0 {
            tokio::select! {
                biased;
                done = &mut work => panic!("it is done before it dies: {done:?}"),
                () = tokio::task::yield_now() => {}
            }
        }
    }
    assert!(purged(&one) < all);
    // The slices of the dead process have its leases for 15 s; the others are done at once.
    second.look_once().await.unwrap();
    let held = two.inner.look_at_due().await.unwrap();
    assert!(!held.due.is_empty() && purged(&two) > 0);
    assert!(held.due.iter().all(|slice| held.leases.iter().any(|(leased, _)| leased == slice)));
    storage.advance(1_000);
    second.look_once().await.unwrap();
    assert_eq!(two.inner.look_at_due().await.unwrap().due, held.due);
    storage.advance(600);
    second.look_once().await.unwrap();
    assert!(is_nothing_due(&two).await);
    assert_eq!(two.check().await.unwrap().users, 0);
    assert_sound(&two).await;
}

/// The tasks of a process take a dead one's slices over as time passes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_of_a_dead_process_are_taken_over_in_time() {
    let storage = Storage::new();
    let store = storage.store().await;
    let maintenance = Maintenance::new(&store, options()).unwrap();
    note_purges(&storage, &store, 0..20).await;
    for slice in (0..20).map(|uid| shard_of(Uid(uid))) {
        store.inner.take(&slice.to_string(), &[9; 16], None).await.unwrap();
    }
    maintenance.start();
    until("another process does the work", async || {
        storage.advance(500);
        is_nothing_due(&store).await
    })
    .await;
    maintenance.stop().await;
    assert_eq!(purged(&store), 20);
    assert_sound(&store).await;
}
