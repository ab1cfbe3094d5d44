//! Devices of one user at two processes, at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::tests::support::{Random, Storage, UID, assert_sound, change, id, name};
use crate::{
    Change, CollectionName, Error, ListQuery, Maintenance, MaintenanceOptions, Precondition, Store, Timestamp,
};

const NONE: Precondition = Precondition::None;
const BATCH: usize = 260;

/// The last time in any answer.
#[derive(Default)]
struct LatestTime(AtomicU64);

impl LatestTime {
    fn now(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Checks that a write that began after the answer `before` has a later time.
    fn note(&self, before: u64, at: Timestamp) {
        assert!(at.hundredths() as u64 > before, "{at} is not later than {before}");
        self.0.fetch_max(at.hundredths() as u64, Ordering::SeqCst);
    }
}

/// Writes as one device: single records and deletions of ids that only this device uses, and batches of ids that all
/// devices use.
async fn device(store: Store, collection: CollectionName, seen: Arc<LatestTime>, number: u64, rounds: u64) {
    let mut random = Random(number);
    for round in 0..rounds {
        let before = seen.now();
        let own = |at: u64| format!("own{number}-{at}");
        let result = match random.below(8) {
            0..=3 => {
                let payload = "x".repeat(random.below(30) as usize);
                store.put(UID, &collection, change(&own(random.below(5)), &payload), NONE).await
            }
            4 => {
                let changes = (0..4).map(|at| Change { ttl: Some(1), ..change(&own(at), "short") }).collect();
                store.post(UID, &collection, changes, NONE).await
            }
            5 => store.delete_records(UID, &collection, &[id(&own(0)), id(&own(1))], NONE).await,
            _ => {
                let mark = format!("{number}/{round}");
                let changes: Vec<Change> = (0..BATCH).map(|at| change(&format!("b{at:03}"), &mark)).collect();
                let staged = store.begin_batch(UID, &collection, changes[..100].to_vec(), NONE).await.unwrap();
                store.append_batch(UID, &collection, staged.batch, changes[100..200].to_vec(), NONE).await.unwrap();
                store.commit_batch(UID, &collection, staged.batch, changes[200..].to_vec(), NONE).await
            }
        };
        match result {
            Ok(written) => seen.note(before, written.modified),
            // The outcomes of injected faults.
            Err(Error::Storage(_) | Error::Unknown | Error::Busy) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Checks that half a batch and wrong counts are never visible.
async fn reader(store: Store, collection: CollectionName, is_over: Arc<AtomicBool>) {
    let (mut last, mut reads) = (Timestamp::ZERO, 0);
    while !is_over.load(Ordering::Relaxed) || reads == 0 {
        let query = ListQuery { full: true, ..ListQuery::default() };
        let mut list = store.list(UID, &collection, &query, NONE).await.unwrap();
        assert!(list.modified() >= last);
        last = list.modified();
        let (mut marks, mut in_batch, listed) = (std::collections::BTreeSet::new(), 0, list.ids().len());
        let mut read = 0;
        let end = loop {
            match list.next().await {
                Ok(Some(chunk)) => {
                    read += chunk.len();
                    for record in chunk.iter().filter(|record| record.id.as_str().starts_with('b')) {
                        in_batch += 1;
                        marks.insert(record.payload.clone());
                    }
                }
                end => break end,
            }
        };
        // Under faults the list may change before all of it is read; it is then ignored.
        if matches!(end, Err(Error::Changed)) {
            continue;
        }
        assert_eq!(end.unwrap(), None);
        assert_eq!(read, listed);
        assert!(matches!((marks.len(), in_batch), (0, 0) | (1, BATCH)), "{marks:?} of {in_batch}");
        reads += 1;
    }
}

async fn at_once(storage: Storage, rounds: u64) {
    let (tabs, seen, is_over) = (name("tabs"), Arc::<LatestTime>::default(), Arc::<AtomicBool>::default());
    let stores = [storage.store().await, storage.store().await];
    let options = MaintenanceOptions { look_every: Duration::from_millis(100), ..MaintenanceOptions::default() };
    let background = stores.each_ref().map(|store| Maintenance::new(store, options.clone()).unwrap());
    background.iter().for_each(Maintenance::start);
    let ticks = storage.tick();
    let readers: Vec<_> =
        stores.iter().map(|store| tokio::spawn(reader(store.clone(), tabs.clone(), is_over.clone()))).collect();
    let devices: Vec<_> = (0..4)
        .map(|at| {
            let store = stores[at as usize % 2].clone();
            tokio::spawn(device(store, tabs.clone(), seen.clone(), at, rounds))
        })
        .collect();
    for device in devices {
        device.await.unwrap();
    }
    is_over.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.await.unwrap();
    }
    for background in background {
        background.stop().await;
    }
    ticks.stop().await;
    assert_sound(&stores[0]).await;
    let counts = stores[1].collection_counts(UID, NONE).await.unwrap().collections;
    let listed = stores[0].list(UID, &tabs, &ListQuery::default(), NONE).await.unwrap().ids().len() as u64;
    assert_eq!(counts, [(tabs.clone(), listed)]);
    // Fold and remove what is left.
    storage.advance(1_000_000);
    stores[0].inner.do_due().await.unwrap();
    let user = stores[0].inner.keys.user(UID);
    let staged = &user.staged();
    let is_left = stores[0].inner.runner.read(move |trx| async move { trx.is_any(staged).await });
    assert!(!is_left.await.unwrap());
    assert_sound(&stores[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_sees_half_a_batch() {
    at_once(Storage::new(), 6).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_sees_half_a_batch_under_faults() {
    let Some(storage) = Storage::with_faults() else { return };
    at_once(storage, 5).await;
}

/// Single writes and deletions of ids of a batch, while the batch is folded page by page.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_while_a_batch_is_folded_stays() {
    let storage = Storage::new();
    let (one, two, tabs) = (storage.store().await, storage.store().await, name("tabs"));
    for round in 0..4 {
        let mut batch = None;
        for from in [0, 100] {
            let changes: Vec<Change> = (from..from + 100)
                .map(|at| Change { sortindex: Some(round), ttl: Some(1_000), ..change(&format!("r{at:03}"), "batch") })
                .collect();
            batch = Some(match batch {
                None => one.begin_batch(UID, &tabs, changes, NONE).await.unwrap().batch,
                Some(batch) => one.append_batch(UID, &tabs, batch, changes, NONE).await.unwrap().batch,
            });
        }
        one.commit_batch(UID, &tabs, batch.unwrap(), Vec::new(), NONE).await.unwrap();
        // The position of the fold, so that writes hit it.
        let (place, mut random, mut expected) = (AtomicU64::new(0), Random(round as u64), BTreeMap::new());
        let folds = async {
            let (user, mut after) = (two.inner.keys.user(UID), None);
            loop {
                match two.inner.fold_page(&user, &tabs, after.as_ref(), 6).await.unwrap() {
                    crate::fold::FoldOutcome::Nothing => break,
                    crate::fold::FoldOutcome::Until(id) => {
                        place.store(id.as_str()[1..].parse().unwrap(), Ordering::Relaxed);
                        after = Some(id);
                    }
                    _ => after = None,
                }
            }
            place.store(u64::MAX, Ordering::Relaxed);
        };
        let writes = async {
            while place.load(Ordering::Relaxed) < 200 {
                let at = place.load(Ordering::Relaxed) + random.below(8);
                let of = format!("r{at:03}");
                if random.one_in(2) {
                    let single = Change { sortindex: Some(-(at as i32)), ttl: Some(1_000), ..change(&of, "single") };
                    one.put(UID, &tabs, single, NONE).await.unwrap();
                    expected.insert(at, "single");
                } else {
                    one.delete_records(UID, &tabs, &[id(&of)], NONE).await.unwrap();
                    expected.insert(at, "");
                }
            }
        };
        tokio::join!(writes, folds);
        assert_sound(&two).await;
        for at in 0..200 {
            let found = two.get(UID, &tabs, &id(&format!("r{at:03}")), NONE).await;
            match expected.get(&at).copied().unwrap_or("batch") {
                "" => assert!(matches!(found, Err(Error::NotFound { .. })), "{at}"),
                payload => assert_eq!(found.unwrap().record.payload, payload, "{at}"),
            }
        }
    }
}
