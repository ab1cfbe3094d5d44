//! Finds the positions of keys that are too long for FoundationDB among keys with the same beginning.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use flatbed_collate::{LabelPlace, Search, SortKey};
use flatbed_databases::document::edit::partition_of;
use flatbed_flatten::json::Value;
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::{RowKey, RowPlaces};
use flatbed_store::proto;
use foundationdb::options::ConflictRangeType;
use sha2::{Digest, Sha256};

use crate::view::group::ViewGroup;
use crate::view::parts::{begin_key, decode};
use crate::view::prepare::{PreparedRow, value_of};
use crate::view::undo::GroupReads;

/// The nodes of a level that are read at once: two nodes of the level above have 16 between them on average.
const PIVOTS: usize = 20;

/// The cache limit of keys that were read, in bytes.
const READ_BYTES_MAX: usize = 2_000_000;

/// Finds labels in one transaction, for rows that are written together.
pub(super) struct Labels<'a> {
    reads: GroupReads<'a>,
    group: &'a ViewGroup,
    trees: &'a [proto::ViewTree],
    /// Known keys as JSON, by position: of rows to be written, and of rows that were read.
    known: BTreeMap<KeyPosition, Vec<u8>>,
    read_bytes: usize,
}

/// Tree, partition, and sort key with its label.
type KeyPosition = (usize, Option<String>, Vec<u8>);

impl<'a> Labels<'a> {
    pub(super) fn new(reads: GroupReads<'a>, group: &'a ViewGroup, trees: &'a [proto::ViewTree]) -> Labels<'a> {
        Labels { reads, group, trees, known: BTreeMap::new(), read_bytes: 0 }
    }

    /// Returns the sort key with its label for a row to be written; `None`: no label fits.
    pub(super) async fn element(&mut self, id: &str, row: &PreparedRow) -> Result<Option<Vec<u8>>> {
        let key = value_of(row.key.as_bytes()).ok_or_else(bad_key)?;
        let compare = |found: &Value<'_>| self.group.collation(row.tree).compare(&key, found);
        let partition = partition_of(id).filter(|_| self.group.is_partitioned());
        let at = (row.tree, RowPlaces(partition));
        self.alone(row)?;
        let place = self.place(at, &row.sort_key, compare).await?;
        let Some(label) = place.label() else { return Ok(None) };
        let element = row.sort_key.with_label(Some(&label)).unwrap_or_default();
        self.known.insert((row.tree, partition.map(str::to_owned), element.clone()), row.key.clone().into_bytes());
        Ok(Some(element))
    }

    /// Conflicts with concurrent writers of keys with the same beginning: of two such searches one fails. A conflict on
    /// the rows that were read is not enough, and their keys are long.
    fn alone(&self, row: &PreparedRow) -> Result<()> {
        let hash = Sha256::digest(row.sort_key.bytes());
        let begin = self.reads.keys.labelled(row.tree, hash.get(..16).unwrap_or_default());
        let end = [&begin[..], &[0]].concat();
        for kind in [ConflictRangeType::Read, ConflictRangeType::Write] {
            self.reads.trx.add_conflict_range(&begin, &end, kind)?;
        }
        Ok(())
    }

    /// Finds the position of a cut key in a tree, among the rows of `places`. `compare` compares it with a row's key.
    pub(super) async fn place(
        &mut self,
        at: (usize, RowPlaces<'_>),
        sort_key: &SortKey,
        compare: impl Fn(&Value<'_>) -> Ordering,
    ) -> Result<LabelPlace> {
        let compare = |text: &[u8]| value_of(text).map(|key| compare(&key)).ok_or_else(bad_key);
        let (cut, mut search) = (sort_key.bytes(), Search::new());
        if let Some(place) = self.among_known(at, cut, &mut search, &compare)? {
            return Ok(place);
        }
        // Below the root, which is a single node.
        let mut level = self.trees.get(at.0).map_or(0, |tree| tree.height).saturating_sub(1);
        loop {
            while level > 0 && !search.has_pivots() {
                let (pivots, more) = self.pivots(at, cut, &search, level).await?;
                search.offer(pivots);
                if !more || !search.has_pivots() {
                    level -= 1;
                }
            }
            let found = self.find(at, cut, &search).await?;
            let place = match &found {
                None => search.saw(None),
                Some((element, text)) => search.saw(Some((flatbed_collate::split(element).1, compare(text)?))),
            };
            if let Some((element, text)) = found {
                self.remember(at, element, text);
            }
            if let Some(place) = place {
                return Ok(place);
            }
        }
    }

    fn among_known(
        &self,
        (tree, places): (usize, RowPlaces<'_>),
        cut: &[u8],
        search: &mut Search,
        compare: &impl Fn(&[u8]) -> Result<Ordering>,
    ) -> Result<Option<LabelPlace>> {
        let from = (tree, places.0.map(str::to_owned), cut.to_vec());
        let is_alike = |known: &KeyPosition| known.0 == tree && known.1 == from.1 && known.2.starts_with(cut);
        let known: Vec<_> = self.known.range(&from..).take_while(|(known, _)| is_alike(known)).collect();
        let (mut begin, mut end) = (0, known.len());
        while let Some(((.., element), text)) = known.get(begin..end).and_then(|some| some.get(some.len() / 2)) {
            let (middle, order) = (begin.midpoint(end), compare(text)?);
            match search.saw(Some((flatbed_collate::split(element).1, order))) {
                Some(place) => return Ok(Some(place)),
                None if order.is_gt() => begin = middle + 1,
                None => end = middle,
            }
        }
        Ok(None)
    }

    fn remember(&mut self, (tree, places): (usize, RowPlaces<'_>), element: Vec<u8>, text: Vec<u8>) {
        let bytes = element.len() + text.len();
        if self.read_bytes + bytes <= READ_BYTES_MAX {
            self.read_bytes += bytes;
            self.known.insert((tree, places.0.map(str::to_owned), element), text);
        }
    }

    fn rest((_, places): (usize, RowPlaces<'_>), cut: &[u8], search: &Search) -> (Vec<u8>, Vec<u8>) {
        let with = |label: &[u8]| [cut, label].concat();
        let (after, before) = search.between();
        let begin = after.map_or_else(|| places.before_prefix(cut), |label| places.behind_element(&with(label)));
        let end = before.map_or_else(|| places.behind_prefix(cut), |label| places.before_element(&with(label)));
        (begin, end)
    }

    /// Returns the first labels of the nodes of a level between the search's bounds, and whether more follow.
    async fn pivots(
        &self,
        at: (usize, RowPlaces<'_>),
        cut: &[u8],
        search: &Search,
        level: u32,
    ) -> Result<(Vec<Vec<u8>>, bool)> {
        let GroupReads { keys, .. } = self.reads;
        let (begin, end) = Labels::rest(at, cut, search);
        let level = u8::try_from(level).map_err(|_| Error::Corrupt("a tree is too high".to_owned()))?;
        let nodes = self.reads.range(&keys.nodes(at.0, level, &begin, Some(&end)), PIVOTS, false).await?;
        let prefix = keys.node(at.0, level, &[]).len();
        let label = |key: &[u8]| {
            let element = RowKey::element_of(key.get(prefix..).unwrap_or_default())?;
            Ok(flatbed_collate::split(&element).1.to_vec())
        };
        let labels = nodes.iter().map(|(key, _)| label(key)).collect::<Result<_>>()?;
        Ok((labels, nodes.more()))
    }

    async fn find(
        &self,
        at: (usize, RowPlaces<'_>),
        cut: &[u8],
        search: &Search,
    ) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let (tree, places) = at;
        let (begin, end) = Labels::rest(at, cut, search);
        let pivot = places.before_element(&[cut, &search.ask().pivot].concat());
        let GroupReads { trx, keys, .. } = self.reads;
        let behind = self.reads.range(&keys.rows(tree, &pivot, Some(&end)), 1, false);
        let before = self.reads.range(&keys.rows(tree, &begin, Some(&pivot)), 1, true);
        let (behind, before) = futures_util::future::try_join(behind, before).await?;
        let Some((key, value)) = behind.get(0).or_else(|| before.get(0)) else { return Ok(None) };
        let found = RowKey::decode(key.get(keys.row_prefix(tree)..).unwrap_or_default())?;
        let key = begin_key(trx, keys, &found.id, decode(value)?).await?;
        Ok(Some((found.element, key)))
    }
}

fn bad_key() -> Error {
    Error::Corrupt("a key is not JSON".to_owned())
}
