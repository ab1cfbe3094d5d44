//! The background work of two processes.

use std::time::Duration;

use flatbed_testkit::until;

use crate::keys::shard_of;
use crate::tests::support::{Storage, UID, assert_sound, change, name};
use crate::{Change, Maintenance, MaintenanceOptions, Precondition, Store, Uid};

const NONE: Precondition = Precondition::None;

async fn records(store: &Store) -> u64 {
    store.check().await.unwrap().records
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_due_is_done_by_one_and_goes_on_in_another() {
    let storage = Storage::new();
    let (one, two) = (storage.store().await, storage.store().await);
    let options = MaintenanceOptions { look_every: Duration::from_secs(2), silence_max: Duration::from_secs(15) };
    let first = Maintenance::new(&one, options.clone()).unwrap();
    let second = Maintenance::new(&two, options).unwrap();
    let tabs = name("tabs");
    for uid in 0..20 {
        one.put(Uid(uid), &tabs, Change { ttl: Some(1), ..change("a", "1") }, NONE).await.unwrap();
        one.put(Uid(uid), &tabs, Change { ttl: Some(1_000_000), ..change("b", "1") }, NONE).await.unwrap();
    }
    first.start();
    second.start();
    first.start();
    // Each check moves the clock by a second.
    let records_later = async || {
        storage.advance(100);
        records(&two).await
    };
    storage.advance(2_000);
    until("what has expired is swept", async || records_later().await == 20).await;
    // The leases are free when nothing is due.
    let leases = one.inner.keys.leases();
    let leases = &leases;
    let is_given_up = async || {
        storage.advance(100);
        !one.inner.runner.read(move |trx| async move { trx.is_any(leases).await }).await.unwrap()
    };
    until("the leases are given up", is_given_up).await;
    // The former owner vanished without a release.
    for slice in (0..20).map(|uid| shard_of(Uid(uid))) {
        let owner = flatbed_jobs::Leases::take(&*one.inner, &slice.to_string(), &[9; 16], None).await.unwrap();
        assert!(matches!(owner, flatbed_jobs::TakenLease::Ours(_)));
    }
    first.stop().await;
    storage.advance(100_000_000);
    until("another process sweeps", async || records_later().await == 0).await;
    // A committed batch is folded at once by the process that committed it.
    let staged = two.begin_batch(UID, &tabs, vec![change("c", "1")], NONE).await.unwrap();
    two.commit_batch(UID, &tabs, staged.batch, Vec::new(), NONE).await.unwrap();
    let keys = two.inner.keys.user(UID).staged();
    let keys = &keys;
    let is_folded = async || !two.inner.runner.read(move |trx| async move { trx.is_any(keys).await }).await.unwrap();
    until("the batch is folded", is_folded).await;
    second.stop().await;
    assert_sound(&one).await;
}
