//! A model of a user's store: the API's rules in memory, one operation after the other.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::{
    BatchId, Change, CollectionName, DeleteResult, Error, Info, ListQuery, Precondition, Record, RecordId, Result,
    Sort, Timestamp, WriteResult,
};

#[derive(Debug, Clone, Default)]
pub(crate) struct Model {
    pub last: Timestamp,
    pub shown: Timestamp,
    collections: BTreeMap<CollectionName, Collection>,
    pub batches: BTreeMap<BatchId, Batch>,
}

#[derive(Debug, Clone, Default)]
struct Collection {
    modified: Timestamp,
    records: BTreeMap<RecordId, Record>,
}

#[derive(Debug, Clone)]
pub(crate) struct Batch {
    pub collection: CollectionName,
    deadline: Timestamp,
    changes: BTreeMap<RecordId, Change>,
}

impl Model {
    pub(crate) fn now(&self, clock: Timestamp) -> Timestamp {
        clock.max(self.last)
    }

    fn time_of(&self, name: &CollectionName) -> Timestamp {
        self.collections.get(name).map_or(Timestamp::ZERO, |collection| collection.modified)
    }

    pub(crate) fn get(&self, name: &CollectionName, id: &RecordId, at: Timestamp) -> Option<&Record> {
        let record = self.collections.get(name)?.records.get(id)?;
        record.expires.is_none_or(|expires| expires > at).then_some(record)
    }

    /// Returns the time of a write, which becomes the collection's.
    fn write(&mut self, clock: Timestamp, name: &CollectionName) -> Timestamp {
        self.last = clock.max(self.last.next());
        self.shown = self.last;
        self.collections.entry(name.clone()).or_default().modified = self.last;
        self.last
    }

    fn apply(&mut self, name: &CollectionName, change: &Change, at: Timestamp, is_batch: bool) {
        let old = self.get(name, &change.id, at).cloned();
        let is_moved = is_batch || change.payload.is_some() || change.sortindex.is_some();
        let old_member = |of: fn(&Record) -> Option<i32>| old.as_ref().and_then(of);
        let record = Record {
            id: change.id.clone(),
            modified: old.as_ref().map_or(at, |old| if is_moved { at } else { old.modified }),
            payload: change
                .payload
                .clone()
                .unwrap_or_else(|| old.as_ref().map_or_else(Bytes::new, |old| old.payload.clone())),
            sortindex: change.sortindex.or(old_member(|old| old.sortindex)),
            expires: match change.ttl {
                Some(ttl) => Some(at.after_seconds(ttl)),
                None => old.as_ref().and_then(|old| old.expires),
            },
        };
        let collection = self.collections.entry(name.clone()).or_default();
        collection.records.insert(change.id.clone(), record);
    }

    pub(crate) fn put(
        &mut self,
        clock: Timestamp,
        name: &CollectionName,
        change: &Change,
        condition: Precondition,
    ) -> Result<WriteResult> {
        let now = self.now(clock);
        let modified = self.get(name, &change.id, now).map_or(Timestamp::ZERO, |record| record.modified);
        condition.judge(modified, now)?;
        let at = self.write(clock, name);
        self.apply(name, change, at, false);
        Ok(WriteResult { modified: at })
    }

    pub(crate) fn post(
        &mut self,
        clock: Timestamp,
        name: &CollectionName,
        changes: &[Change],
        condition: Precondition,
    ) -> Result<WriteResult> {
        condition.judge(self.time_of(name), self.now(clock))?;
        let at = self.write(clock, name);
        changes.iter().for_each(|change| self.apply(name, change, at, false));
        Ok(WriteResult { modified: at })
    }

    /// Adds to a batch, and begins it if it is unknown. Returns the collection's time.
    pub(crate) fn stage(
        &mut self,
        clock: Timestamp,
        name: &CollectionName,
        batch: Option<BatchId>,
        changes: &[Change],
        condition: Precondition,
    ) -> Result<(Batch, Timestamp)> {
        condition.judge(self.time_of(name), self.now(clock))?;
        let mut staged = match batch {
            None => {
                let deadline = clock.after_seconds(7_200);
                Batch { collection: name.clone(), deadline, changes: BTreeMap::new() }
            }
            Some(batch) => self.open(clock, name, batch)?.clone(),
        };
        for change in changes {
            let merged = staged.changes.entry(change.id.clone()).or_insert_with(|| change.clone());
            merged.payload = change.payload.clone().or(merged.payload.take());
            merged.sortindex = change.sortindex.or(merged.sortindex);
            merged.ttl = change.ttl.or(merged.ttl);
        }
        Ok((staged, self.time_of(name)))
    }

    fn open(&self, clock: Timestamp, name: &CollectionName, batch: BatchId) -> Result<&Batch> {
        let batch = self.batches.get(&batch).ok_or(Error::BatchNotFound)?;
        if batch.collection != *name || batch.deadline <= clock { Err(Error::BatchNotFound) } else { Ok(batch) }
    }

    pub(crate) fn commit(
        &mut self,
        clock: Timestamp,
        name: &CollectionName,
        batch: BatchId,
        changes: &[Change],
        condition: Precondition,
    ) -> Result<WriteResult> {
        let (staged, _) = if changes.is_empty() {
            // The batch is looked up first.
            let staged = self.open(clock, name, batch)?.clone();
            condition.judge(self.time_of(name), self.now(clock))?;
            (staged, Timestamp::ZERO)
        } else {
            self.stage(clock, name, Some(batch), changes, condition)?
        };
        self.batches.remove(&batch);
        let at = self.write(clock, name);
        staged.changes.values().for_each(|change| self.apply(name, change, at, true));
        Ok(WriteResult { modified: at })
    }

    pub(crate) fn delete_record(
        &mut self,
        clock: Timestamp,
        name: &CollectionName,
        id: &RecordId,
        condition: Precondition,
    ) -> Result<DeleteResult> {
        let now = self.now(clock);
        let found = self.get(name, id, now).map(|record| record.modified);
        condition.judge(found.unwrap_or_default(), now)?;
        let before = found.ok_or(Error::NotFound { now })?;
        let at = self.write(clock, name);
        self.collections.get_mut(name).unwrap().records.remove(id);
        Ok(DeleteResult { before, modified: at, now: at })
    }

    pub(crate) fn delete_records(
        &mut self,
        clock: Timestamp,
        name: &CollectionName,
        ids: &[RecordId],
        condition: Precondition,
    ) -> Result<WriteResult> {
        condition.judge(self.time_of(name), self.now(clock))?;
        let at = self.write(clock, name);
        let records = &mut self.collections.get_mut(name).unwrap().records;
        ids.iter().for_each(|id| drop(records.remove(id)));
        Ok(WriteResult { modified: at })
    }

    pub(crate) fn delete_collection(
        &mut self,
        clock: Timestamp,
        name: &CollectionName,
        condition: Precondition,
    ) -> Result<DeleteResult> {
        let (before, now) = (self.time_of(name), self.now(clock));
        condition.judge(before, now)?;
        if !self.collections.contains_key(name) {
            return Ok(DeleteResult { before, modified: self.shown, now });
        }
        let at = self.write(clock, name);
        self.collections.remove(name);
        Ok(DeleteResult { before, modified: at, now: at })
    }

    pub(crate) fn delete_all(&mut self, clock: Timestamp, condition: Precondition) -> Result<DeleteResult> {
        let (before, now) = (self.shown, self.now(clock));
        condition.judge(before, now)?;
        if !(self.collections.is_empty() && self.batches.is_empty() && before == Timestamp::ZERO) {
            self.last = clock.max(self.last.next());
        }
        (self.shown, self.collections, self.batches) = Default::default();
        Ok(DeleteResult { before, modified: Timestamp::ZERO, now })
    }

    pub(crate) fn times(&self, clock: Timestamp) -> Info<Timestamp> {
        self.info(clock, |collection, _| Some(collection.modified))
    }

    pub(crate) fn counts(&self, clock: Timestamp) -> Info<u64> {
        self.info(clock, |collection, now| Some(live(collection, now).count() as u64).filter(|count| *count > 0))
    }

    pub(crate) fn usage(&self, clock: Timestamp) -> Info<u64> {
        self.info(clock, |collection, now| {
            live(collection, now).next()?;
            Some(live(collection, now).map(|record| record.payload.len() as u64).sum())
        })
    }

    fn info<T>(&self, clock: Timestamp, of: impl Fn(&Collection, Timestamp) -> Option<T>) -> Info<T> {
        let now = self.now(clock);
        let collections = self.collections.iter();
        let collections = collections.filter_map(|(name, collection)| Some((name.clone(), of(collection, now)?)));
        Info { modified: self.shown, now, collections: collections.collect() }
    }

    /// Returns all records of a list, ignoring limit and offset.
    pub(crate) fn list(&self, clock: Timestamp, name: &CollectionName, query: &ListQuery) -> (Timestamp, Vec<Record>) {
        let Some(collection) = self.collections.get(name) else { return (Timestamp::ZERO, Vec::new()) };
        let mut records: Vec<Record> = live(collection, self.now(clock))
            .filter(|record| query.ids.as_ref().is_none_or(|ids| ids.contains(&record.id)))
            .filter(|record| query.newer.is_none_or(|newer| record.modified > newer))
            .filter(|record| query.older.is_none_or(|older| record.modified < older))
            .cloned()
            .collect();
        records.sort_by(|one, other| match query.sort {
            Sort::Oldest => (one.modified, &one.id).cmp(&(other.modified, &other.id)),
            Sort::Newest => (other.modified, &other.id).cmp(&(one.modified, &one.id)),
            Sort::Index => (other.sortindex, &other.id).cmp(&(one.sortindex, &one.id)),
        });
        (collection.modified, records)
    }
}

fn live(collection: &Collection, now: Timestamp) -> impl Iterator<Item = &Record> {
    collection.records.values().filter(move |record| record.expires.is_none_or(|expires| expires > now))
}
