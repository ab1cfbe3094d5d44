//! What readers see while a large document is changed: the keys of rows and nodes as they were before.
//!
//! A document with more changes than a transaction holds is changed in several. Each of them writes rows and nodes as it would
//! alone, and beside each key that it changes first what lay there: the undo. Who follows reads the keys as they are; a reader
//! sees in the progress that there are undos, and reads what they say instead. With the last change all undos are
//! cleared, which is one range, so the new rows come into sight together with the group's place.

use futures_util::future::{join_all, try_join};
use prost::Message;

use crate::error::Result;
use crate::store::keys::{KeyRange, ViewKeys};
use crate::store::proto::{self, ViewProgress, ViewTree};
use crate::store::transaction::{Page, Transaction};

/// Keys that are read at once at least where undos are merged in: many of these may be of keys that were not there.
const MERGED_KEYS: usize = if cfg!(test) { 3 } else { 500 };

/// What readers see of a group's trees, and whether that is before what its keys are.
pub(crate) fn shown(progress: &ViewProgress) -> (&[ViewTree], bool) {
    match &progress.large {
        Some(large) if !large.trees.is_empty() => (&large.trees, true),
        _ => (&progress.trees, false),
    }
}

/// Reads keys of a group in a transaction, as a snapshot: whoever writes them has the group's progress as a read conflict.
#[derive(Clone, Copy)]
pub(crate) struct GroupReads<'a> {
    pub trx: &'a Transaction,
    pub keys: &'a ViewKeys,
    /// Through the undos, as a reader; else as keys are.
    pub is_before: bool,
}

/// Keys and values in order, or backwards.
pub(crate) enum Found {
    /// As they came.
    Stored(Page),
    /// Merged with undos; whether there is more behind them.
    Merged(Vec<(Vec<u8>, Vec<u8>)>, bool),
}

impl Found {
    pub(crate) fn len(&self) -> usize {
        match self {
            Found::Stored(page) => page.len(),
            Found::Merged(rows, _) => rows.len(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the range goes on behind the last one.
    pub(crate) fn more(&self) -> bool {
        match self {
            Found::Stored(page) => !page.is_all(),
            Found::Merged(_, more) => *more,
        }
    }

    pub(crate) fn get(&self, at: usize) -> Option<(&[u8], &[u8])> {
        match self {
            Found::Stored(page) => page.get(at).map(|row| (row.key(), row.value())),
            Found::Merged(rows, _) => rows.get(at).map(|(key, value)| (key.as_slice(), value.as_slice())),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        (0..self.len()).filter_map(|at| self.get(at))
    }
}

impl<'a> GroupReads<'a> {
    /// The value of a row or a node. What is asked for is asked for with the call.
    pub(crate) fn get(&self, key: &[u8]) -> impl Future<Output = Result<Option<Vec<u8>>>> + Send + use<> {
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

    /// A page of rows or nodes. Where nothing is merged it is asked for with the call.
    pub(crate) fn range(
        self,
        range: &KeyRange,
        limit: usize,
        reverse: bool,
    ) -> impl Future<Output = Result<Found>> + Send + use<'a> {
        let stored = (!self.is_before).then(|| self.trx.range(range, true).reverse(reverse).page(limit));
        let range = range.clone();
        async move {
            match stored {
                Some(stored) => Ok(Found::Stored(stored.await?)),
                None => self.merged(&range, limit, reverse).await,
            }
        }
    }

    async fn merged(self, range: &KeyRange, limit: usize, reverse: bool) -> Result<Found> {
        let (mut rest, mut found) = (range.clone(), Vec::new());
        let most = limit.max(MERGED_KEYS);
        while rest.begin < rest.end {
            let undos = KeyRange { begin: self.keys.undo(&rest.begin), end: self.keys.undo(&rest.end) };
            let page = |range: &KeyRange| self.trx.range(range, true).reverse(reverse).page(most);
            let (stored, undos) = try_join(page(&rest), page(&undos)).await?;
            let before = |a: &[u8], b: &[u8]| if reverse { a > b } else { a < b };
            // Up to where both are known.
            let end = |page: &Page| page.last().filter(|_| !page.is_all()).map(|row| row.key().to_vec());
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
                        return Ok(Found::Merged(found, true));
                    }
                }
            }
            match until {
                None => break,
                Some(until) if reverse => rest.end = until,
                Some(until) => rest.begin = [&until[..], &[0]].concat(),
            }
        }
        Ok(Found::Merged(found, false))
    }
}

/// What an undo says.
fn value_of(undo: &[u8]) -> Result<Option<Vec<u8>>> {
    let proto::ViewUndo { absent, value } = proto::ViewUndo::decode(undo)?;
    Ok((!absent).then_some(value))
}

/// Keys, and what is to be written there; `None`: it is to be cleared.
pub(super) type Writes = std::collections::BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// The undos of keys that are to be written: of those that have none yet, what lies there.
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
