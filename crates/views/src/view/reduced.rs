//! Reductions of a view's rows: of all rows, of each key, or of keys with the same beginning.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use flatbed_collate::reduce::Reducer;
use flatbed_collate::{cut_to_level, group_prefix};
use flatbed_databases::limits::Limit;
use flatbed_flatten::json;
use flatbed_rowtree::{Group, Groups, KeyRange, Parts, Tree, cover, groups};
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::{Head, RowKey};
use flatbed_store::proto;
use flatbed_store::seq::Seq;
use futures_util::future::try_join_all;

use crate::view::group::Reduction;
use crate::view::parts::{begin_key, begin_texts, decode, key_parts_bytes, texts_bytes};
use crate::view::prepare::value_of;
use crate::view::read::{PageReader, PinnedVersion, Select, Side, TreeReading, View, read_page};
use crate::view::stored::TreeRow;
use crate::view::summary::{ReducedValue, Summary};
use crate::view::written::{ReduceFailure, WrittenResult};

const PAGE_GROUPS: Limit<usize> = Limit::new(1_000, 6);

/// The largest group, in rows and in bytes of keys and values, that is reduced again in reverse order: CouchDB finds
/// such a group in one node.
const TURNED_ROWS_MAX: u64 = 32;
const TURNED_BYTES_MAX: u64 = 4_000;

/// The same limit for all groups of a page together.
const TURNED_PAGE_BYTES: u64 = 1_000_000;

/// The approximate bytes of first and last rows that a page reads and answers; one group may exceed it.
const PAGE_BYTES: u64 = 1_600_000;

/// The number of groups whose first and last rows are read concurrently. It doubles as long as they are small.
const GROUPS_AT_ONCE: Limit<usize> = Limit::new(64, 2);

const KEYS_AT_ONCE: Limit<usize> = Limit::new(64, 3);

/// The grouping of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Grouping {
    /// All rows together.
    #[default]
    All,
    /// By the first items of array keys, up to this number; each other key is a group of its own.
    Level(usize),
    /// By key.
    Exact,
}

/// A query of reductions.
#[derive(Debug, Clone, Default)]
pub struct ReduceQuery {
    /// The rows. With keys, each key is a group of its own.
    pub select: Select,
    /// The index among the reduces of the rows.
    pub reduce: usize,
    /// The grouping.
    pub grouping: Grouping,
    /// True to begin with the last group.
    pub descending: bool,
    /// The number of groups to skip.
    pub skip: u64,
    /// The most groups to answer.
    pub limit: Option<u64>,
}

/// A running query of reductions. Each page is a transaction of its own.
pub struct ReducedRows {
    view: View,
    query: Arc<ReduceQuery>,
    /// `None` after the end.
    place: Option<Cursor>,
    pinned: PinnedVersion,
}

#[derive(Debug, Clone, Default)]
struct Cursor {
    is_first: bool,
    key: usize,
    rest: Option<KeyRange>,
    skip: u64,
    limit: u64,
    groups: usize,
}

/// A page of groups, in order.
#[derive(Debug, Clone, Default)]
pub struct ReducedPage {
    /// One row per group. A range without rows has none.
    pub rows: Vec<ReducedRow>,
    /// The by-seq position up to which the view is current.
    pub place: Option<Seq>,
}

/// A group's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReducedRow {
    /// The group's key as JSON; `None` for all rows together, which CouchDB gives the key null.
    pub key: Option<Vec<u8>>,
    /// JSON, or the failure with which CouchDB answers the whole query.
    pub value: std::result::Result<Vec<u8>, ReduceFailure>,
}

impl View {
    /// Begins a query of reductions. It reads nothing yet.
    pub fn reduce(&self, query: ReduceQuery) -> ReducedRows {
        let (skip, limit) = (query.skip, query.limit.unwrap_or(u64::MAX));
        let place = Cursor { is_first: true, skip, limit, groups: PAGE_GROUPS.get(), ..Cursor::default() };
        ReducedRows { view: self.clone(), query: Arc::new(query), place: Some(place), pinned: PinnedVersion::default() }
    }
}

impl ReducedRows {
    /// Returns the next page; `None` after the last. The first page exists even if it has no groups.
    ///
    /// # Errors
    /// Those of opening the view, and of its functions.
    #[boxed]
    pub async fn next_page(&mut self) -> Result<Option<ReducedPage>> {
        let Some(from) = self.place.clone() else { return Ok(None) };
        let mut read = ReadGroups { query: &self.query, from: &from };
        let (page, next) = Box::pin(read_page(&self.view, from.is_first, &mut self.pinned, &mut read)).await?;
        self.place = next;
        Ok(Some(page))
    }
}

struct ReadGroups<'a> {
    query: &'a ReduceQuery,
    from: &'a Cursor,
}

struct RowGroup {
    range: KeyRange,
    at: usize,
    /// The number of leading items in its key, or `None` for the whole key. The outer `None`: the row has no key.
    key: Option<Option<usize>>,
    first: Option<TreeRow>,
    summary: Summary,
}

impl PageReader for ReadGroups<'_> {
    type Page = (ReducedPage, Option<Cursor>);

    async fn read(&mut self, reading: &TreeReading<'_>) -> Result<Self::Page> {
        let mut next = Cursor { is_first: false, ..self.from.clone() };
        let groups = if next.skip > 0 { PAGE_GROUPS.get() } else { next.groups };
        let wanted = next.skip.saturating_add(next.limit).min(groups as u64) as usize;
        let mut page = ReducedPage { rows: Vec::new(), place: reading.place() };
        if wanted == 0 || !reading.is_built() {
            return Ok((page, None));
        }
        let mut whole = None;
        let (found, is_over) = match (&self.query.select, self.query.grouping) {
            (Select::Keys { keys, .. }, _) => {
                (self.keys(reading, keys.len(), &mut next).await?, next.key >= keys.len())
            }
            (Select::Range(range), grouping) => {
                let range = match &self.from.rest {
                    Some(rest) => rest.clone(),
                    None => reading.range(range, self.query.descending).await?,
                };
                whole = Some(range.clone());
                let level = match grouping {
                    Grouping::All | Grouping::Level(0) => None,
                    Grouping::Level(level) => Some(Some(level)),
                    Grouping::Exact => Some(None),
                };
                match level {
                    None => (self.all(reading, range).await?.into_iter().collect(), true),
                    Some(level) => {
                        let (found, rest) = self.groups(reading, range, level, wanted).await?;
                        next.rest = rest;
                        (found, next.rest.is_none())
                    }
                }
            }
        };
        let skipped = next.skip.min(found.len() as u64);
        next.skip -= skipped;
        let limit = usize::try_from(next.limit).unwrap_or(usize::MAX);
        let mut found: Vec<RowGroup> = found.into_iter().skip(skipped as usize).take(limit).collect();
        self.turn(reading, &mut found).await?;
        page.rows = self.answered(reading, &found).await?;
        next.limit = next.limit.saturating_sub(page.rows.len() as u64);
        next.groups = next.groups.saturating_mul(2).min(PAGE_GROUPS.get());
        let mut is_over = is_over || next.limit == 0;
        if let Some(left) = found.get(page.rows.len()) {
            is_over = false;
            next.groups = page.rows.len().saturating_mul(2).clamp(1, PAGE_GROUPS.get());
            next.key = left.at;
            next.rest = whole.map(|whole| match self.query.descending {
                true => KeyRange { begin: whole.begin, end: left.range.end.clone() },
                false => KeyRange { begin: left.range.begin.clone(), end: whole.end },
            });
        }
        Ok((page, (!is_over).then_some(next)))
    }
}

impl ReadGroups<'_> {
    async fn all(&self, reading: &TreeReading<'_>, range: KeyRange) -> Result<Option<RowGroup>> {
        let summary = cover(&reading.stored(), &reading.shape, reading.height, &range).await?;
        Ok(summary.map(|summary| RowGroup { range, at: 0, key: None, first: None, summary }))
    }

    async fn keys(&self, reading: &TreeReading<'_>, count: usize, next: &mut Cursor) -> Result<Vec<RowGroup>> {
        let end = count.min(next.key + KEYS_AT_ONCE.get().min(next.groups.max(1)));
        let found = (next.key..end).map(|key| async move {
            let Some(range) = reading.range_of_key(&self.query.select, key, self.query.descending).await? else {
                return Ok(None);
            };
            let found = self.all(reading, range).await?;
            Ok::<_, Error>(found.map(|found| RowGroup { at: key, key: Some(None), ..found }))
        });
        let found = try_join_all(found.collect::<Vec<_>>()).await?;
        next.key = end;
        Ok(found.into_iter().flatten().collect())
    }

    /// Returns the first groups of a range, in the order of reading, and the rest of the range.
    async fn groups(
        &self,
        reading: &TreeReading<'_>,
        mut range: KeyRange,
        level: Option<usize>,
        wanted: usize,
    ) -> Result<(Vec<RowGroup>, Option<KeyRange>)> {
        let reverse = self.query.descending;
        let (stored, tree) = (reading.stored(), reading.open.tree);
        let collation = reading.open.group.collation(tree);
        // Identifies the group of a row. A cut key only identifies itself, so its group is searched for.
        let head_of = |key: &[u8]| -> Option<Head> {
            let common = |element: &[u8]| match level {
                None => Some(element.len()),
                Some(level) => group_prefix(collation, element, level).map(<[u8]>::len),
            };
            Head::of(key, common).ok()?
        };
        let are_together = |a: &[u8], b: &[u8]| match head_of(a) {
            Some(head) => head.is_also_of(a, b),
            None => head_of(b).is_none() && RowKey::element_of(a).ok() == RowKey::element_of(b).ok(),
        };
        let mut found: Vec<RowGroup> = Vec::new();
        loop {
            let most = wanted - found.len();
            let Groups { groups, next } =
                groups(&stored, &reading.shape, reading.height, &range, most, reverse, are_together).await?;
            let ends: Vec<Option<Vec<u8>>> = match reverse {
                // Each group ends at the beginning of the next.
                true => std::iter::once(range.end.clone())
                    .chain(groups.iter().map(|group| Some(group.first.clone())))
                    .collect(),
                false => groups
                    .iter()
                    .skip(1)
                    .map(|group| Some(group.first.clone()))
                    .chain([next.clone().or_else(|| range.end.clone())])
                    .collect(),
            };
            let mut long = None;
            for (Group { first, first_row, summary }, end) in groups.into_iter().zip(ends) {
                if head_of(&first).is_none() {
                    long = Some(first);
                    break;
                }
                let of = KeyRange { begin: first, end };
                found.push(RowGroup { range: of, at: 0, key: Some(level), first: first_row, summary });
            }
            if let Some(first) = long {
                let (found_of, rest) = self.long_group(reading, &range, &first, level.unwrap_or(0)).await?;
                found.extend(found_of);
                match rest {
                    Some(rest) if found.len() < wanted => {
                        range = rest;
                        continue;
                    }
                    rest => return Ok((found, rest)),
                }
            }
            let rest = next.map(|next| match reverse {
                true => KeyRange { end: Some(next), ..range },
                false => KeyRange { begin: next, ..range },
            });
            return Ok((found, rest));
        }
    }

    /// Returns the group of a row with a long key, and the rest of the range in the order of reading.
    async fn long_group(
        &self,
        reading: &TreeReading<'_>,
        range: &KeyRange,
        row: &[u8],
        level: usize,
    ) -> Result<(Option<RowGroup>, Option<KeyRange>)> {
        let key = key_of(reading, row).await?;
        let key = value_of(&key).ok_or_else(|| Error::Corrupt("a row of a view is not JSON".to_owned()))?;
        let begin = reading.place_of_group(&key, level, Side::Before).await?.max(range.begin.clone());
        let end = reading.place_of_group(&key, level, Side::Behind).await?;
        let end = range.end.as_ref().map_or(end.clone(), |range_end| range_end.min(&end).clone());
        let rest = match self.query.descending {
            true => KeyRange { begin: range.begin.clone(), end: Some(begin.clone()) },
            false => KeyRange { begin: end.clone(), end: range.end.clone() },
        };
        let found = self.all(reading, KeyRange { begin, end: Some(end) }).await?;
        let is_left = rest.end.as_ref().is_none_or(|end| rest.begin < *end);
        Ok((found.map(|found| RowGroup { key: Some(Some(level)), ..found }), is_left.then_some(rest)))
    }

    /// Reduces groups of few rows again, if `descending`: CouchDB passes the rows in reverse order then. The stored
    /// state of a node was computed in ascending order.
    async fn turn(&self, reading: &TreeReading<'_>, found: &mut [RowGroup]) -> Result<()> {
        let reduces = reading.open.group.reduces(reading.open.tree);
        let is_written = matches!(reduces.get(self.query.reduce), Some(Reduction::Written(_)));
        if !self.query.descending || !is_written {
            return Ok(());
        }
        let mut bytes = 0;
        let mut may_turn = |found: &&mut RowGroup| {
            let Summary { rows, bytes: own, .. } = found.summary;
            let is_small = (2..=TURNED_ROWS_MAX).contains(&rows) && own <= TURNED_BYTES_MAX;
            if is_small {
                bytes += own;
            }
            is_small && bytes <= TURNED_PAGE_BYTES
        };
        let mut small: Vec<&mut RowGroup> = found.iter_mut().filter(|found| may_turn(found)).collect();
        let stored = reading.stored();
        let rows = small.iter().map(|found| async {
            let page = stored.rows(&found.range, TURNED_ROWS_MAX as usize, true).await?;
            // Storage may return fewer rows than exist.
            let is_all = page.entries.len() as u64 == found.summary.rows;
            Ok::<_, Error>(is_all.then_some(Parts::Rows(page.entries)))
        });
        let rows = try_join_all(rows.collect::<Vec<_>>()).await?;
        let (turned, parts): (Vec<&mut &mut RowGroup>, Vec<_>) =
            small.iter_mut().zip(rows).filter_map(|(found, rows)| Some((found, rows?))).unzip();
        if parts.is_empty() {
            return Ok(());
        }
        for (found, summary) in turned.into_iter().zip(stored.summaries(parts).await?) {
            found.summary = summary;
        }
        Ok(())
    }

    /// Returns the rows of the first groups: at least one, and as many as the page's bytes allow.
    async fn answered(&self, reading: &TreeReading<'_>, found: &[RowGroup]) -> Result<Vec<ReducedRow>> {
        let (mut rows, mut bytes, mut at_once) = (Vec::new(), 0, GROUPS_AT_ONCE.get());
        while rows.len() < found.len() && bytes < PAGE_BYTES {
            let some = found.iter().skip(rows.len()).take(at_once);
            let begun = try_join_all(some.map(|found| self.begun(reading, found)).collect::<Vec<_>>()).await?;
            let (count, had) = (begun.len(), rows.len());
            let mut answers = Vec::with_capacity(count);
            for begun in begun {
                if bytes >= PAGE_BYTES && had + answers.len() > 0 {
                    break;
                }
                bytes += begun.bytes();
                answers.push(begun.row(reading));
            }
            let is_cut = answers.len() < count;
            rows.extend(try_join_all(answers).await?);
            if is_cut {
                break;
            }
            at_once = at_once.saturating_mul(2);
        }
        Ok(rows)
    }

    /// Begins the row of a group, without reading parts.
    async fn begun(&self, reading: &TreeReading<'_>, found: &RowGroup) -> Result<PendingRow> {
        let key = match (found.key, &found.first) {
            (None, _) => None,
            (Some(level), Some(TreeRow { key, alone: None, .. })) => Some((level, Text::Known(key.clone()))),
            (Some(level), _) => Some((level, edge(reading, &found.range, false).await?)),
        };
        let none = || ReduceFailure { error: "not_found".to_owned(), reason: "the view has no such reduce".to_owned() };
        let known = |value: WrittenResult| value.map(String::into_bytes).map(Text::Known);
        let state = match found.summary.states.get(self.query.reduce) {
            None => return Ok(PendingRow { key, value: Err(none()) }),
            Some(ReducedValue::Written(result)) => return Ok(PendingRow { key, value: known(result.clone()) }),
            Some(ReducedValue::BuiltIn(state)) => state,
        };
        let value = match state.finish() {
            Ok(Some(value)) => {
                let mut out = Vec::new();
                json::write(&value, &mut out);
                Ok(Text::Known(out))
            }
            // The state is too large to be kept with the node, and is stored in its row.
            Ok(None) => {
                let reduces = reading.open.group.reduces(reading.open.tree);
                let is_last = matches!(reduces.get(self.query.reduce), Some(Reduction::BuiltIn(Reducer::Last)));
                Ok(edge(reading, &found.range, is_last).await?)
            }
            Err(error) => Err(ReduceFailure { error: error.error.to_owned(), reason: error.reason }),
        };
        Ok(PendingRow { key, value })
    }
}

enum Text {
    Known(Vec<u8>),
    Of(String, proto::ViewRow),
}

struct PendingRow {
    /// `None`: the group of all rows. The number of items is as in [`RowGroup`].
    key: Option<(Option<usize>, Text)>,
    value: std::result::Result<Text, ReduceFailure>,
}

impl PendingRow {
    fn bytes(&self) -> u64 {
        let key = match &self.key {
            None => 0,
            Some((_, Text::Known(key))) => key.len() as u64,
            // The inline part of the row was read.
            Some((_, Text::Of(_, row))) => key_parts_bytes(row).max((row.key.len() + row.value.len()) as u64),
        };
        let value = match &self.value {
            Ok(Text::Known(value)) => value.len() as u64,
            Ok(Text::Of(_, row)) => texts_bytes(row),
            Err(_) => 0,
        };
        key + value
    }

    async fn row(self, reading: &TreeReading<'_>) -> Result<ReducedRow> {
        let key = match self.key {
            None => None,
            Some((level, text)) => {
                let key = match text {
                    Text::Known(key) => key,
                    Text::Of(id, row) => begin_key(reading.trx, &reading.keys, &id, row).await?,
                };
                Some(match level {
                    None => key,
                    Some(level) => match value_of(&key) {
                        Some(value) => {
                            let mut text = Vec::new();
                            json::write(&cut_to_level(&value, level), &mut text);
                            text
                        }
                        None => key,
                    },
                })
            }
        };
        let value = match self.value {
            Ok(Text::Known(value)) => Ok(value),
            Ok(Text::Of(id, row)) => Ok(begin_texts(reading.trx, &reading.keys, &id, row).await?.1),
            Err(failure) => Err(failure),
        };
        Ok(ReducedRow { key, value })
    }
}

async fn edge(reading: &TreeReading<'_>, range: &KeyRange, is_last: bool) -> Result<Text> {
    let keys = reading.keys.rows(reading.open.tree, &range.begin, range.end.as_deref());
    let page = reading.reads().range(&keys, 1, is_last).await?;
    let Some((key, value)) = page.get(0) else {
        return Err(Error::Corrupt("a group of a view has no rows".to_owned()));
    };
    let prefix = reading.keys.row_prefix(reading.open.tree);
    let id = RowKey::decode(key.get(prefix..).unwrap_or_default())?.id;
    Ok(Text::Of(id, decode(value)?))
}

async fn key_of(reading: &TreeReading<'_>, row: &[u8]) -> Result<Vec<u8>> {
    let found = reading.reads().get(&reading.keys.row(reading.open.tree, row)).await?;
    let found = found.ok_or_else(|| Error::Corrupt("a row of a view is missing".to_owned()))?;
    begin_key(reading.trx, &reading.keys, &RowKey::decode(row)?.id, decode(&found)?).await
}
