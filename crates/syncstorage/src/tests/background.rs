//! The work in the background, of two processes.

use std::time::Duration;

use crate::tests::support::{Storage, UID, assert_sound, change, name};
use crate::{Change, Maintenance, MaintenanceOptions, Precondition, Store, Uid};

const NONE: Precondition = Precondition::None;

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..1_000 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{what}: not in 20 s");
}

async fn records(store: &Store) -> u64 {
    store.check().await.unwrap().records
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_due_is_done_by_one_and_goes_on_in_another() {
    let storage = Storage::new();
    let (one, two) = (storage.store().await, storage.store().await);
    let quick = MaintenanceOptions { look_every: Duration::from_millis(30), silence_max: Duration::from_millis(500) };
    let first = Maintenance::new(&one, quick.clone()).unwrap();
    let second = Maintenance::new(&two, quick).unwrap();
    let tabs = name("tabs");
    for uid in 0..20 {
        one.put(Uid(uid), &tabs, Change { ttl: Some(1), ..change("a", "1") }, NONE).await.unwrap();
        one.put(Uid(uid), &tabs, Change { ttl: Some(1_000), ..change("b", "1") }, NONE).await.unwrap();
    }
    first.start();
    second.start();
    first.start();
    storage.clock.advance(2_000);
    until("swept", async || records(&two).await == 20).await;
    // Nobody has the lease when nothing is to be done.
    until("given up", async || one.inner.look_at_lease("sweep").await.unwrap().is_none()).await;
    // A process that had it is gone without a word.
    let owner = flatbed_jobs::Leases::take(&*one.inner, "sweep", &[9; 16], None).await.unwrap();
    assert!(matches!(owner, flatbed_jobs::TakenLease::Ours(_)));
    first.stop().await;
    storage.clock.advance(200_000);
    until("swept by another", async || records(&two).await == 0).await;
    // What was committed is folded at once by whoever did it.
    let staged = two.begin_batch(UID, &tabs, vec![change("c", "1")], NONE).await.unwrap();
    two.commit_batch(UID, &tabs, staged.batch, Vec::new(), NONE).await.unwrap();
    let keys = two.inner.keys.user(UID).staged();
    let keys = &keys;
    let is_folded = async || !two.inner.runner.read(move |trx| async move { trx.is_any(keys).await }).await.unwrap();
    until("folded", is_folded).await;
    second.stop().await;
    assert_sound(&one).await;
}
