//! Random operations at two processes' stores. Every answer is compared with the model's.

use std::fmt::Debug;

use bytes::Bytes;

use crate::tests::model::Model;
use crate::tests::support::{Random, Storage, UID, assert_sound, id, listed, name};
use crate::{
    BatchId, Change, CollectionName, Error, ListQuery, Maintenance, MaintenanceOptions, Offset, Precondition, RecordId,
    Result, Sort, Store, Timestamp,
};

/// Checks that two answers are equal.
fn same<T: PartialEq + Debug>(what: &str, found: Result<T>, wanted: Result<T>) {
    match (&found, &wanted) {
        (Ok(found), Ok(wanted)) => assert_eq!(found, wanted, "{what}"),
        (Err(found), Err(wanted)) => assert_eq!(format!("{found:?}"), format!("{wanted:?}"), "{what}"),
        _ => panic!("{what}: {found:?}, and wanted is {wanted:?}"),
    }
}

struct Session {
    random: Random,
    model: Model,
    stores: [Store; 2],
    /// The store of a process whose clock is late.
    late: Store,
    maintenance: Maintenance,
    names: [CollectionName; 3],
    ids: Vec<RecordId>,
    storage: Storage,
    /// Batches that were begun, including committed ones.
    batches: Vec<BatchId>,
    large: bool,
}

impl Session {
    async fn new(storage: Storage, seed: u64, large: bool) -> Session {
        let stores = [storage.store().await, storage.store().await];
        let late = storage.store_with(storage.clock.clock().skewed(-300)).await;
        let maintenance = Maintenance::new(&stores[0], MaintenanceOptions::default()).unwrap();
        let ids = ["a", "b", "c", "d", "e", "f", "g", "h i", "~", "0", &"y".repeat(64), "k"].map(id).to_vec();
        let names = [name("bookmarks"), name("tabs"), name("x.y")];
        let (random, model) = (Random(seed), Model::default());
        Session { random, model, stores, late, maintenance, names, ids, storage, batches: Vec::new(), large }
    }

    fn store(&mut self) -> Store {
        self.stores[self.random.below(2) as usize].clone()
    }

    fn name(&mut self) -> CollectionName {
        // Mostly the first collection, so that its state becomes rich.
        self.names[(self.random.below(6) / 2).min(2) as usize % 3].clone()
    }

    fn id(&mut self) -> RecordId {
        self.random.one_of(&self.ids).clone()
    }

    fn change(&mut self) -> Change {
        let len = match self.random.below(40) {
            0 => 8_001 + self.random.below(100_000),
            1 if self.large => 300_000,
            2..=4 => 0,
            _ => self.random.below(60),
        };
        let letter = b'a' + self.random.below(26) as u8;
        let payload = (!self.random.one_in(4)).then(|| Bytes::from(vec![letter; len as usize]));
        let sortindex = self.random.one_in(3).then(|| self.random.below(20) as i32 - 10);
        let ttl = self.random.one_in(4).then(|| self.random.below(40) as u32);
        Change { id: self.id(), payload, sortindex, ttl }
    }

    fn changes(&mut self) -> Vec<Change> {
        let mut changes: Vec<Change> = (0..self.random.below(7)).map(|_| self.change()).collect();
        changes.sort_by(|one, other| one.id.cmp(&other.id));
        changes.dedup_by(|one, other| one.id == other.id);
        changes
    }

    fn condition(&mut self, near: Timestamp) -> Precondition {
        let time = Timestamp::from_hundredths(near.hundredths() + self.random.below(3) as i64 - 1);
        match self.random.below(12) {
            0 => Precondition::UnmodifiedSince(time),
            1 => Precondition::ModifiedSince(time),
            _ => Precondition::None,
        }
    }

    async fn step(&mut self) {
        let advance = match self.random.below(20) {
            0 => 1_500,
            1..=9 => 0,
            _ => self.random.below(150),
        };
        self.storage.advance(advance);
        let store = if self.random.one_in(20) { self.late.clone() } else { self.store() };
        let (name, clock) = (self.name(), store.now());
        let near = self.model.list(clock, &name, &ListQuery::default()).0;
        let condition = self.condition(near);
        match self.random.below(24) {
            0..=3 => {
                let change = self.change();
                let wanted = self.model.put(clock, &name, &change, condition);
                same("put", store.put(UID, &name, change, condition).await, wanted);
            }
            4..=7 => {
                let changes = self.changes();
                let wanted = self.model.post(clock, &name, &changes, condition);
                same("post", store.post(UID, &name, changes, condition).await, wanted);
            }
            8..=9 => {
                let changes = self.changes();
                let wanted = self.model.stage(clock, &name, None, &changes, condition);
                match store.begin_batch(UID, &name, changes, condition).await {
                    Ok(staged) => {
                        let (batch, modified) = wanted.unwrap();
                        assert_eq!(staged.modified, modified);
                        self.model.batches.insert(staged.batch, batch);
                        self.batches.push(staged.batch);
                    }
                    Err(error) => same("begin", Err::<(), _>(error), wanted.map(drop)),
                }
            }
            10..=12 if !self.batches.is_empty() => {
                let batch = *self.random.one_of(&self.batches);
                let name = self.name_of(batch, name);
                let changes = self.changes();
                let wanted = self.model.stage(clock, &name, Some(batch), &changes, condition);
                let found = store.append_batch(UID, &name, batch, changes, condition).await;
                if let Ok((staged, _)) = &wanted {
                    self.model.batches.insert(batch, staged.clone());
                }
                same("append", found.map(|staged| staged.modified), wanted.map(|(_, modified)| modified));
            }
            13..=14 if !self.batches.is_empty() => {
                let batch = *self.random.one_of(&self.batches);
                let name = self.name_of(batch, name);
                let changes = self.changes();
                let wanted = self.model.commit(clock, &name, batch, &changes, condition);
                same("commit", store.commit_batch(UID, &name, batch, changes, condition).await, wanted);
            }
            15 => {
                let id = self.id();
                let wanted = self.model.delete_record(clock, &name, &id, condition);
                same("delete", store.delete_record(UID, &name, &id, condition).await, wanted);
            }
            16 => {
                let ids: Vec<RecordId> = (0..self.random.below(4)).map(|_| self.id()).collect();
                let wanted = self.model.delete_records(clock, &name, &ids, condition);
                same("delete ids", store.delete_records(UID, &name, &ids, condition).await, wanted);
            }
            17 if self.random.one_in(4) => {
                let wanted = self.model.delete_collection(clock, &name, condition);
                same("delete collection", store.delete_collection(UID, &name, condition).await, wanted);
            }
            18 if self.random.one_in(12) => {
                let wanted = self.model.delete_all(clock, condition);
                same("delete all", store.delete_all(UID, condition).await, wanted);
            }
            19..=21 => {
                let user = store.inner.keys.user(UID);
                let rows = 1 + self.random.below(4) as usize;
                store.inner.fold_page(&user, &name, None, rows).await.unwrap();
            }
            22 if self.random.one_in(5) => drop(self.maintenance.round().await.unwrap()),
            _ => {}
        }
    }

    /// Returns the batch's collection, mostly.
    fn name_of(&mut self, batch: BatchId, other: CollectionName) -> CollectionName {
        match self.model.batches.get(&batch) {
            Some(batch) if !self.random.one_in(20) => batch.collection.clone(),
            _ => other,
        }
    }

    async fn compare(&mut self) {
        let (store, clock) = (self.store(), self.storage.now());
        let none = Precondition::None;
        same("times", store.info_collections(UID, none).await, Ok(self.model.times(clock)));
        same("counts", store.collection_counts(UID, none).await, Ok(self.model.counts(clock)));
        same("usage", store.collection_usage(UID, none).await, Ok(self.model.usage(clock)));
        let used: u64 = self.model.usage(clock).collections.iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(store.quota(UID, none).await.unwrap().used_bytes, used);
        let (name, id) = (self.name(), self.id());
        let now = self.model.now(clock);
        let wanted = self.model.get(&name, &id, now).cloned().ok_or(Error::NotFound { now });
        same("get", store.get(UID, &name, &id, none).await.map(|got| got.record), wanted);
        self.compare_list(&store, clock).await;
    }

    async fn compare_list(&mut self, store: &Store, clock: Timestamp) {
        let name = self.name();
        let sort = *self.random.one_of(&[Sort::Newest, Sort::Oldest, Sort::Index]);
        let mut query = ListQuery { sort, ..ListQuery::default() };
        let near = self.model.last.hundredths();
        if self.random.one_in(3) {
            query.newer = Some(Timestamp::from_hundredths(near - self.random.below(1_000) as i64));
        }
        if self.random.one_in(4) {
            query.older = Some(Timestamp::from_hundredths(near - self.random.below(300) as i64));
        }
        if self.random.one_in(5) {
            query.ids = Some((0..self.random.below(8)).map(|_| self.id()).collect());
        }
        let (modified, wanted) = self.model.list(clock, &name, &query);
        let found = listed(store, &name, &query).await;
        let what = format!("{query:?}");
        assert_eq!(found, wanted, "{what}");
        // The same list by pages.
        let (limit, mut paged, mut offset) = (1 + self.random.below(4), Vec::new(), None);
        loop {
            let query = ListQuery { limit: Some(limit as u32), offset, ..query.clone() };
            let list = self.store().list(UID, &name, &query, Precondition::None).await.unwrap();
            assert_eq!(list.modified(), modified);
            assert!(list.ids().len() as u64 == limit || list.next_offset().is_none());
            paged.extend(list.ids().to_vec());
            match list.next_offset() {
                Some(next) => offset = Offset::parse(&next.to_string()),
                None => break,
            }
        }
        let wanted: Vec<_> = wanted.into_iter().map(|record| record.id).collect();
        assert_eq!(paged, wanted, "{what}, {limit} a page");
        let skip = self.random.below(6);
        query.offset = Offset::parse(&skip.to_string());
        let skipped = store.list(UID, &name, &query, Precondition::None).await.unwrap();
        assert_eq!(skipped.ids(), &wanted[(skip as usize).min(wanted.len())..], "{what}, without {skip}");
    }

    async fn run(&mut self, steps: u64) {
        for step in 0..steps {
            self.step().await;
            self.compare().await;
            if step % 50 == 49 {
                assert_sound(&self.stores[0]).await;
            }
        }
    }
}

fn seeds() -> Vec<u64> {
    flatbed_testkit::number("FLATBED_TEST_SEED").map_or_else(|| (1..=6).collect(), |seed| vec![seed])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_is_the_models() {
    for seed in seeds() {
        println!("FLATBED_TEST_SEED={seed}");
        Session::new(Storage::new(), seed, seed == 1).await.run(250).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_is_the_models_under_faults() {
    // Faults cost waits and next to no work, so all run at once.
    let sessions = seeds().into_iter().take(3).map(|seed| async move {
        println!("FLATBED_TEST_SEED={seed}");
        let Some(storage) = Storage::with_faults() else { return };
        Session::new(storage, seed + 100, false).await.run(150).await;
    });
    futures_util::future::join_all(sessions).await;
}
