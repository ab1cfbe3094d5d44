//! A batch of commits, applied to one LMDB transaction.
//!
//! The batch first collects the last value of each key in memory, in key order. A key that every commit writes (a
//! counter) is written once, and LMDB's pages are visited in order.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use heed::RwTxn;

use crate::base::key_space::{KeyRange, is_single_key};
use crate::base::mutation::{Mutation, place_versionstamp};
use crate::disk::clears::Clears;
use crate::disk::packing::Packing;
use crate::disk::store::{Allowance, Store, StoreResult};
use crate::disk::stored::StoredState;

pub(crate) struct Batch {
    store: Store,
    /// `None` removes the key.
    values: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// Ranges that are already removed from LMDB or covered by a pending clear.
    pub(crate) cleared: Vec<KeyRange>,
    clears: Arc<Clears>,
    /// The number and bytes of records that the batch's clears may still remove themselves.
    allowance: Allowance,
}

impl Batch {
    pub(crate) fn new(store: Store, clears: Arc<Clears>, allowance: Allowance) -> Batch {
        Batch { store, values: BTreeMap::new(), cleared: Vec::new(), clears, allowance }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty() && self.cleared.is_empty()
    }

    pub(crate) fn clears(&self) -> &Arc<Clears> {
        &self.clears
    }

    /// Applies one mutation; resolves atomic operations.
    pub(crate) fn apply(&mut self, txn: &mut RwTxn<'_>, mutation: Mutation, stamp: [u8; 10]) -> StoreResult<()> {
        match mutation {
            Mutation::Set(key, value) => {
                self.values.insert(key, Some(value));
            }
            Mutation::StampValue(key, value) => {
                self.values.insert(key, Some(place_versionstamp(value, stamp)));
            }
            Mutation::StampKey(key, value) => {
                self.values.insert(place_versionstamp(key, stamp), Some(value));
            }
            Mutation::Atomic(op, key, operand) => match self.values.get_mut(&key) {
                Some(before) => *before = op.apply(before.as_deref(), &operand),
                None => {
                    let after = op.apply(self.stored(txn).get(&key)?, &operand);
                    self.values.insert(key, after);
                }
            },
            Mutation::Clear(range) if is_single_key(&range) => {
                self.values.insert(range.0, None);
            }
            Mutation::Clear((begin, end)) => self.clear(txn, begin, end)?,
        }
        Ok(())
    }

    fn clear(&mut self, txn: &mut RwTxn<'_>, begin: Vec<u8>, end: Vec<u8>) -> StoreResult<()> {
        let inside = (Bound::Included(begin.as_slice()), Bound::Excluded(end.as_slice()));
        let hidden: Vec<_> = self.values.range::<[u8], _>(inside).map(|(key, _)| key.clone()).collect();
        for key in hidden {
            self.values.remove(&key);
        }
        if let Some(left) = self.store.remove_some(txn, &begin, &end, &mut self.allowance)? {
            Arc::make_mut(&mut self.clears).insert(left, end.clone());
        }
        self.cleared.push((begin, end));
        Ok(())
    }

    fn stored<'t>(&'t self, txn: &'t RwTxn<'_>) -> StoredState<'t> {
        StoredState { store: self.store, txn, clears: &self.clears, map_page_bytes: None, failure: None }
    }

    pub(crate) fn value(&self, txn: &RwTxn<'_>, key: &[u8]) -> StoreResult<Option<Vec<u8>>> {
        match self.values.get(key) {
            Some(value) => Ok(value.clone()),
            None => Ok(self.stored(txn).get(key)?.map(<[u8]>::to_vec)),
        }
    }

    /// The single keys that the batch writes, with their values.
    pub(crate) fn values(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.values.iter().map(|(key, value)| (key.as_slice(), value.as_deref()))
    }

    pub(crate) fn write(&mut self, txn: &mut RwTxn<'_>, packing: &mut Packing) -> StoreResult<()> {
        packing.begin();
        for (key, value) in &self.values {
            let Some(value) = value else {
                self.store.delete(txn, key)?;
                continue;
            };
            // A later clear of the batch removed the value.
            if let Some((begin, _)) = self.clears.hiding(key) {
                let is_empty_below = self.store.is_range_empty(txn, begin, key)?;
                Arc::make_mut(&mut self.clears).uncover(key, is_empty_below);
            }
            self.store.put(txn, packing, key, value)?;
        }
        if self.clears.has_changes() {
            let changes = Arc::make_mut(&mut self.clears).take_changes();
            self.store.put_clears(txn, changes)?;
        }
        Ok(())
    }
}
