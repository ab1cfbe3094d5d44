//! Finds the positions of keys among an index's entries. Keys that are too long to be stored whole need a search.

use std::cmp::Ordering;
use std::collections::HashMap;

use flatbed_collate::{Boundary, LabelPlace, Search, SortKey, split};
use flatbed_databases::document::latest::begin_latest;
use flatbed_flatten::json::Value;
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::{IndexPart, KeyRange, RowPlaces, SortPlace};
use futures_util::future::try_join_all;

use crate::index::json::entry::{self, EntryValue};
use crate::index::json::key::{Body, key_of};
use crate::index::json::pivots::{self, LEVELS, PAGE, Pivots};
use crate::index::maintainers::IndexContext;

type Labels = (Vec<Vec<u8>>, bool);

#[derive(Clone, Copy)]
pub struct EntrySearch<'a> {
    pub within: &'a IndexContext<'a>,
    pub number: u64,
    pub index: &'a flatbed_mango::Index,
    /// The rows of one partition, or of all.
    pub places: RowPlaces<'a>,
    /// True if reads add no conflicts.
    pub snapshot: bool,
    pub written: Option<&'a WrittenKeys>,
}

/// Keys that are only in their documents, for documents that the transaction has written: it cannot read their infos.
pub type WrittenKeys = HashMap<String, Vec<Value<'static>>>;

impl EntrySearch<'_> {
    /// Finds the position of a cut key. `compare` orders the key against another one.
    pub async fn search(&self, key: &SortKey, compare: impl Fn(&Value<'_>) -> Ordering) -> Result<LabelPlace> {
        let beginning = self.within.instance.keys.index_beginning(self.number, self.places, key.bytes());
        let at = |label: &[u8], behind| self.beside(&[key.bytes(), label].concat(), behind);
        let pivots = Pivots::new(&self.within.instance.keys, self.number, self.places, key.bytes());
        let mut search = Search::new();
        // All levels are read at once, as few of them have labels.
        let levels: Vec<u64> = (1..=LEVELS).collect();
        let first = try_join_all(levels.iter().map(|level| self.pivots(&pivots, *level, &search))).await?;
        let mut levels: Vec<(u64, Labels)> = levels.into_iter().zip(first).collect();
        loop {
            while !search.has_pivots()
                && let Some((level, (labels, more))) = levels.pop()
            {
                let is_new = more && !matches!(search.between(), (None, None));
                let (labels, more) = if is_new { self.pivots(&pivots, level, &search).await? } else { (labels, more) };
                search.offer(labels);
                if more && search.has_pivots() {
                    levels.push((level, (Vec::new(), true)));
                }
            }
            let ask = search.ask();
            let begin = ask.after.map_or_else(|| beginning.begin.clone(), |label| at(label, true));
            let end = ask.before.map_or_else(|| beginning.end.clone(), |label| at(label, false));
            let pivot = at(&ask.pivot, false).clamp(begin.clone(), end.clone());
            let upper = KeyRange { begin: pivot.clone(), end };
            let lower = KeyRange { begin, end: pivot };
            let row = match self.first(&upper, false).await? {
                None => self.first(&lower, true).await?,
                found => found,
            };
            let seen = row.as_ref().map(|(label, key)| (label.as_slice(), compare(key)));
            if let Some(place) = search.saw(seen) {
                return Ok(place);
            }
        }
    }

    /// Reads the first labels of a level between the search's bounds, and whether more follow.
    async fn pivots(&self, pivots: &Pivots<'_>, level: u64, search: &Search) -> Result<Labels> {
        let IndexContext { trx, instance, .. } = *self.within;
        let page = trx.range(&pivots.range(level, search.between()), true).page(PAGE).await?;
        let mut labels = Vec::with_capacity(page.len());
        for row in &page {
            let (_, IndexPart::Node(_, from)) = instance.keys.split_index(row.key())? else { continue };
            labels.extend(pivots::label(&from).map(<[u8]>::to_vec));
        }
        Ok((labels, !page.is_all()))
    }

    /// Reads the first or last entry of a range: its label and key.
    async fn first(&self, range: &KeyRange, reverse: bool) -> Result<Option<(Vec<u8>, Value<'static>)>> {
        let IndexContext { trx, instance, .. } = *self.within;
        if range.begin >= range.end {
            return Ok(None);
        }
        let first = trx.range(range, self.snapshot).reverse(reverse).first(1).await?;
        let Some(row) = first.first() else { return Ok(None) };
        let (_, IndexPart::Entry(SortPlace { element, id, .. })) = instance.keys.split_index(row.key())? else {
            return Err(Error::Corrupt("an index contains a key that is no entry".to_owned()));
        };
        let key = self.key(&id, row.value()).await?;
        Ok(Some((split(&element).1.to_vec(), Value::Array(key))))
    }

    pub async fn key(&self, id: &str, value: &[u8]) -> Result<Vec<Value<'static>>> {
        let IndexContext { trx, instance, .. } = *self.within;
        if let EntryValue::Key(key) = entry::decode(value)? {
            return Ok(key);
        }
        if let Some(key) = self.written.and_then(|written| written.get(id)) {
            return Ok(key.clone());
        }
        // A change of the key changes the entry, so a snapshot is enough.
        let found = Box::pin(begin_latest(trx, instance, id).finish(trx, instance)).await?;
        let key = match &found {
            Some((info, rows)) if !info.deleted => {
                key_of(self.within, self.index, (id, &info.winner), Body::Read(rows)).await?
            }
            _ => None,
        };
        match key.map(|key| key.values) {
            Some(Value::Array(key)) => Ok(key),
            _ => Err(Error::Corrupt(format!("{id:?} has an entry in index {} and no key", self.number))),
        }
    }

    /// Returns the storage key before or behind the entries at a boundary.
    pub fn at(&self, boundary: &Boundary) -> Vec<u8> {
        match boundary {
            Boundary::Before(bytes) => self.beside(bytes, false),
            Boundary::Behind(bytes) => self.beside(bytes, true),
        }
    }

    /// Returns the position before all entries whose sort bytes begin with these, or with `behind` the position after
    /// the entries with exactly these sort bytes.
    fn beside(&self, bytes: &[u8], behind: bool) -> Vec<u8> {
        let place = if behind { self.places.behind_element(bytes) } else { self.places.before_prefix(bytes) };
        self.within.instance.keys.index_place(self.number, &place)
    }
}
