//! The places of keys that are too long for FoundationDB's, among those that begin alike.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use flatbed_collate::{Ask, Place, Search, SortKey};
use flatbed_flatten::json::Value;
use foundationdb::options::ConflictRangeType;
use sha2::{Digest, Sha256};

use crate::document::edit::partition_of;
use crate::error::{Error, Result};
use crate::store::keys::{RowKey, RowPlaces};
use crate::view::group::ViewGroup;
use crate::view::parts::{begin_texts, decode};
use crate::view::prepare::{PreparedRow, value_of};
use crate::view::undo::{Found, GroupReads};

/// Finds them in one transaction, for rows that are written together.
pub(super) struct Labels<'a> {
    reads: GroupReads<'a>,
    group: &'a ViewGroup,
    /// Of rows that are not written yet: tree, partition and sort key with its label, and the key as JSON.
    pending: BTreeMap<Pending, String>,
}

type Pending = (usize, Option<String>, Vec<u8>);

impl<'a> Labels<'a> {
    pub(super) fn new(reads: GroupReads<'a>, group: &'a ViewGroup) -> Labels<'a> {
        Labels { reads, group, pending: BTreeMap::new() }
    }

    /// The sort key of a row of a document that is to be written, with its label; `None`: there is no room for one.
    pub(super) async fn element(&mut self, id: &str, row: &PreparedRow) -> Result<Option<Vec<u8>>> {
        let key = value_of(row.key.as_bytes()).ok_or_else(|| Error::Corrupt("a key is no JSON".to_owned()))?;
        let compare = |found: &Value<'_>| self.group.collation(row.tree).compare(&key, found);
        let partition = partition_of(id).filter(|_| self.group.is_partitioned());
        let at = (row.tree, RowPlaces(partition));
        self.alone(row)?;
        let place = self.place(at, &row.sort_key, compare).await?;
        let Some(label) = place.label() else { return Ok(None) };
        let element = row.sort_key.with_label(Some(&label)).unwrap_or_default();
        self.pending.insert((row.tree, partition.map(str::to_owned), element.clone()), row.key.clone());
        Ok(Some(element))
    }

    /// Of two who look for the places of keys that begin alike at once, to write there, one fails. That the rows that were
    /// looked at were not would not be enough, and their keys are long.
    fn alone(&self, row: &PreparedRow) -> Result<()> {
        let hash = Sha256::digest(row.sort_key.bytes());
        let begin = self.reads.keys.labelled(row.tree, hash.get(..16).unwrap_or_default());
        let end = [&begin[..], &[0]].concat();
        for kind in [ConflictRangeType::Read, ConflictRangeType::Write] {
            self.reads.trx.add_conflict_range(&begin, &end, kind)?;
        }
        Ok(())
    }

    /// The place of a key that was cut, in a tree among rows of some places; `compare` says how it compares with that of a row.
    pub(super) async fn place(
        &self,
        at: (usize, RowPlaces<'_>),
        sort_key: &SortKey,
        compare: impl Fn(&Value<'_>) -> Ordering,
    ) -> Result<Place> {
        let mut search = Search::new();
        loop {
            let found = self.find(at, sort_key.bytes(), &search.ask()).await?;
            let seen = match &found {
                None => None,
                Some((element, text)) => {
                    let (_, label) = flatbed_collate::split(element);
                    let key = value_of(text).ok_or_else(|| Error::Corrupt("a key is no JSON".to_owned()))?;
                    Some((label, compare(&key)))
                }
            };
            if let Some(place) = search.saw(seen) {
                return Ok(place);
            }
        }
    }

    /// The sort key and the key of the row that is asked for.
    async fn find(
        &self,
        (tree, places): (usize, RowPlaces<'_>),
        cut: &[u8],
        ask: &Ask<'_>,
    ) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let with = |label: &[u8]| [cut, label].concat();
        let begin = ask.after.map_or_else(|| places.before_prefix(cut), |label| places.behind_element(&with(label)));
        let end = ask.before.map_or_else(|| places.behind_prefix(cut), |label| places.before_element(&with(label)));
        let pivot = places.before_element(&with(&ask.pivot));
        let GroupReads { trx, keys, .. } = self.reads;
        let behind = self.reads.range(&keys.rows(tree, &pivot, Some(&end)), 1, false);
        let before = self.reads.range(&keys.rows(tree, &begin, Some(&pivot)), 1, true);
        let (behind, before) = futures_util::future::try_join(behind, before).await?;
        let prefix = keys.row_prefix(tree);
        let stored = |page: &Found| match page.get(0) {
            Some((key, value)) => {
                let key = RowKey::decode(key.get(prefix..).unwrap_or_default())?;
                Ok(Some((key, value.to_vec())))
            }
            None => Ok::<_, Error>(None),
        };
        let (behind, before) = (stored(&behind)?, stored(&before)?);
        // Those that come in the same transaction.
        let is_in = |element: &Vec<u8>| {
            element.starts_with(cut)
                && ask.after.is_none_or(|label| *element > with(label))
                && ask.before.is_none_or(|label| *element < with(label))
        };
        let at_pivot = (tree, places.0.map(str::to_owned), with(&ask.pivot));
        let pending_behind = self.pending.range(at_pivot.clone()..).next();
        let pending_before = self.pending.range(..at_pivot).next_back();
        let pending = |found: Option<(&Pending, &String)>| {
            let ((of, partition, element), key) = found?;
            (*of == tree && partition.as_deref() == places.0 && is_in(element))
                .then(|| (element.clone(), key.clone().into_bytes()))
        };
        let (pending_behind, pending_before) = (pending(pending_behind), pending(pending_before));
        let is_nearer = |pending: &(Vec<u8>, Vec<u8>), stored: &Option<(RowKey, Vec<u8>)>, behind: bool| {
            let is_nearer = |element: &Vec<u8>| if behind { pending.0 < *element } else { pending.0 > *element };
            stored.as_ref().is_none_or(|(stored, _)| is_nearer(&stored.element))
        };
        if let Some(found) = pending_behind.filter(|found| is_nearer(found, &behind, true)) {
            return Ok(Some(found));
        }
        if behind.is_none()
            && let Some(found) = pending_before.filter(|found| is_nearer(found, &before, false))
        {
            return Ok(Some(found));
        }
        let Some((found, row)) = behind.or(before) else { return Ok(None) };
        let (key, _) = begin_texts(trx, keys, &found.id, decode(&row)?).await?;
        Ok(Some((found.element, key)))
    }
}
