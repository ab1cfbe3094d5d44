//! Hides the changes of a large document from readers until they are complete.
//!
//! A document with more changes than a transaction holds is changed over several. Each of them writes rows and nodes as
//! usual. The first write of a key also saves the old value: the undo. The follower reads the keys themselves. A reader
//! sees in the progress that undos exist, and reads the old values instead. The last transaction clears all undos,
//! which are one range, so the new rows become visible together with the group's new position.

use flatbed_databases::limits::Limit;
use flatbed_store::error::Result;
use flatbed_store::keys::{KeyRange, ViewKeys};
use flatbed_store::proto::{self, ViewProgress, ViewTree};
use flatbed_store::transaction::{RangePage, Transaction};
use futures_util::future::{join_all, try_join};
use prost::Message;

/// The least number of keys read at once while undos are merged: many undos may be of keys that did not exist.
const MERGED_KEYS: Limit<usize> = Limit::new(500, 3);

/// Returns the visible state of a group's trees, and whether it is older than the keys themselves.
pub fn shown(progress: &ViewProgress) -> (&[ViewTree], bool) {
    match &progress.large {
        Some(large) if !large.trees.is_empty() => (&large.trees, true),
        _ => (&progress.trees, false),
    }
}

/// Reads keys of a group in a transaction, as a snapshot: every writer of them has the group's progress as a read
/// conflict.
#[derive(Clone, Copy)]
pub struct GroupReads<'a> {
    pub trx: &'a Transaction,
    pub keys: &'a ViewKeys,
    /// True to read through the undos, as readers do; false to read the keys themselves.
    pub is_before: bool,
}

pub enum GroupPage {
    Stored(RangePage),
    /// Merged with undos; true if more follow.
    Merged(Vec<(Vec<u8>, Vec<u8>)>, bool),
}

impl GroupPage {
    pub fn len(&self) -> usize {
        match self {
            GroupPage::Stored(page) => page.len(),
            GroupPage::Merged(rows, _) => rows.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn more(&self) -> bool {
        match self {
            GroupPage::Stored(page) => !page.is_all(),
            GroupPage::Merged(_, more) => *more,
        }
    }

    pub fn get(&self, at: usize) -> Option<(&[u8], &[u8])> {
        match self {
            GroupPage::Stored(page) => page.get(at).map(|row| (row.key(), row.value())),
            GroupPage::Merged(rows, _) => rows.get(at).map(|(key, value)| (key.as_slice(), value.as_slice())),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        (0..self.len()).filter_map(|at| self.get(at))
    }
}

impl<'a> GroupReads<'a> {
    /// Reads a row or a node. The read begins with the call.
    pub fn get(&self, key: &[u8]) -> impl Future<Output = Result<Option<Vec<u8>>>> + Send + use<> {
        let stored = self.trx.get(key, true);
        let undo = self.is_before.then(|| self.trx.get(&self.keys.undo(key), true));
        async move {
            if let Some(undo) = undo
                && let Some(undo) = undo.await?
            {
                return value_of(&undo);
            }
            Ok(stored.await?.map(|value| value.to_vec()))
        }
    }

    /// Reads a page of rows or nodes. Without undos the read begins with the call.
    pub fn range(
        self,
        range: &KeyRange,
        limit: usize,
        reverse: bool,
    ) -> impl Future<Output = Result<GroupPage>> + Send + use<'a> {
        let stored = (!self.is_before).then(|| self.trx.range(range, true).reverse(reverse).page(limit));
        let range = range.clone();
        async move {
            match stored {
                Some(stored) => Ok(GroupPage::Stored(stored.await?)),
                None => self.merged(&range, limit, reverse).await,
            }
        }
    }

    async fn merged(self, range: &KeyRange, limit: usize, reverse: bool) -> Result<GroupPage> {
        let (mut rest, mut found) = (range.clone(), Vec::new());
        let most = limit.max(MERGED_KEYS.get());
        while rest.begin < rest.end {
            let undos = KeyRange { begin: self.keys.undo(&rest.begin), end: self.keys.undo(&rest.end) };
            let page = |range: &KeyRange| self.trx.range(range, true).reverse(reverse).page(most);
            let (stored, undos) = try_join(page(&rest), page(&undos)).await?;
            let before = |a: &[u8], b: &[u8]| if reverse { a > b } else { a < b };
            // The merge ends where one of both pages ends.
            let end = |page: &RangePage| page.last().filter(|_| !page.is_all()).map(|row| row.key().to_vec());
            let (stored_end, undo_end) = (end(&stored), end(&undos).map(|key| self.keys.undone(&key)));
            let until = match (stored_end, undo_end) {
                (Some(a), Some(b)) => Some(if before(&a, &b) { a } else { b }),
                (a, b) => a.or(b),
            };
            let is_known = |key: &[u8]| until.as_deref().is_none_or(|until| !before(until, key));
            let mut undos = undos.iter().map(|row| (self.keys.undone(row.key()), row.value())).peekable();
            let mut stored = stored.iter().peekable();
            loop {
                let key = match (stored.peek(), undos.peek()) {
                    (None, None) => break,
                    (Some(row), None) => row.key().to_vec(),
                    (None, Some((undone, _))) => undone.clone(),
                    (Some(row), Some((undone, _))) if before(undone, row.key()) => undone.clone(),
                    (Some(row), Some(_)) => row.key().to_vec(),
                };
                if !is_known(&key) {
                    break;
                }
                let as_it_is = stored.next_if(|row| row.key() == key).map(|row| row.value().to_vec());
                let value = match undos.next_if(|(undone, _)| *undone == key) {
                    Some((_, undo)) => value_of(undo)?,
                    None => as_it_is,
                };
                if let Some(value) = value {
                    found.push((key, value));
                    if found.len() == limit {
                        return Ok(GroupPage::Merged(found, true));
                    }
                }
            }
            match until {
                None => break,
                Some(until) if reverse => rest.end = until,
                Some(until) => rest.begin = [&until[..], &[0]].concat(),
            }
        }
        Ok(GroupPage::Merged(found, false))
    }
}

fn value_of(undo: &[u8]) -> Result<Option<Vec<u8>>> {
    let proto::ViewUndo { absent, value } = proto::ViewUndo::decode(undo)?;
    Ok((!absent).then_some(value))
}

/// Keys with their new values; `None`: the key is to be cleared.
pub(super) type Writes = std::collections::BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Returns the undos of keys to be written that have none yet, from their stored values.
pub(super) async fn undos(trx: &Transaction, keys: &ViewKeys, writes: &Writes) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let reads = writes.keys().map(|key| {
        let undo_key = keys.undo(key);
        let (undo, stored) = (trx.get(&undo_key, true), trx.get(key, true));
        async move {
            if undo.await?.is_some() {
                return Ok(None);
            }
            let undo = match stored.await? {
                None => proto::ViewUndo { absent: true, value: Vec::new() },
                Some(value) => proto::ViewUndo { absent: false, value: value.to_vec() },
            };
            Ok(Some((undo_key, undo.encode_to_vec())))
        }
    });
    let undos: Result<Vec<_>> = join_all(reads.collect::<Vec<_>>()).await.into_iter().collect();
    Ok(undos?.into_iter().flatten().collect())
}
