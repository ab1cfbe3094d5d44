//! The records of a list: the entries of a collection and of its overlays, merged in the list's order.

use std::cmp::Ordering;
use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use futures_util::future::try_join_all;

use crate::error::{Error, Result};
use crate::keys::{CollectionKeys, KeyRange, SortKey};
use crate::layers::{Layers, base_rows};
use crate::model::{ListQuery, Sort};
use crate::names::RecordId;
use crate::offset::{Offset, OffsetPosition};
use crate::timestamp::Timestamp;
use crate::transaction::{Page, Trx};
use crate::values::{Row, StagedRow};

const PAGE_ROWS_MAX: usize = 1_000;

/// The records newer than requested that a list by sortindex sorts here.
const IN_TIME_ROWS: usize = 500;

/// The entries of the collection itself that one list reads. Few of many entries may match: by sortindex the new ones may
/// lie anywhere, and by time all may have expired. At the limit the list ends early and returns an offset. FoundationDB
/// reads so many entries in far less than a transaction's 5 s.
const ENTRIES_READ_MAX: usize = if cfg!(test) { 2_500 } else { 100_000 };

/// The most records that a numeric offset skips. Offsets in answers skip none.
const SKIP_MAX: u64 = 100_000;

#[derive(Debug)]
pub(super) struct ListPlan {
    sort: Sort,
    newer: Option<Timestamp>,
    older: Option<Timestamp>,
    limit: usize,
    skip: u64,
    /// The position and id behind which the list begins.
    behind: Option<(u64, RecordId)>,
    ids: Option<BTreeSet<RecordId>>,
}

/// The data read before the overlays are known.
pub(super) enum FirstPage {
    Page(Page),
    Rows(Vec<Option<Row>>),
    /// Entries by time of the records newer than requested, of a list by sortindex.
    InTime(Page),
}

/// An entry of a list, at its position: a time in hundredths, or a [`SortKey`].
#[derive(Debug, Clone, PartialEq, Eq)]
struct ListEntry {
    position: u64,
    id: RecordId,
}

struct RawEntry {
    entry: ListEntry,
    modified: Timestamp,
    expires: Option<Timestamp>,
}

struct LayerStream {
    /// The number of the overlay; `None`: the collection itself.
    layer: Option<usize>,
    /// The unread range; `None`: nothing is left.
    left: Option<KeyRange>,
    read: VecDeque<ListEntry>,
    /// The number of entries that may still be read.
    may_read: usize,
    /// The last entry read, whether or not it matched.
    last: Option<ListEntry>,
}

/// The entries of a list in order, up to one more than the limit.
#[derive(Default)]
struct ListEntries {
    found: Vec<ListEntry>,
    /// The position where the list ends early.
    ended: Option<ListEntry>,
}

impl LayerStream {
    fn new(layer: Option<usize>, left: Option<KeyRange>) -> LayerStream {
        // Overlays are bounded by the limits of a batch.
        let may_read = if layer.is_none() { ENTRIES_READ_MAX } else { usize::MAX };
        LayerStream { layer, left, read: VecDeque::new(), may_read, last: None }
    }

    /// Returns whether its buffer is empty although entries are left unread.
    fn is_stuck(&self) -> bool {
        self.read.is_empty() && self.left.is_some()
    }

    /// Returns its next entry. If it is stuck, its next entry follows the last one read.
    fn front(&self) -> Option<&ListEntry> {
        if self.is_stuck() { self.last.as_ref() } else { self.read.front() }
    }
}

impl ListPlan {
    pub(super) fn new(query: &ListQuery) -> Result<ListPlan> {
        let ListQuery { ids, newer, older, sort, limit, offset, .. } = query;
        let (skip, behind) = match offset.as_ref().map(|offset| &offset.0) {
            None => (0, None),
            Some(OffsetPosition::Skip(skip)) if *skip <= SKIP_MAX => (*skip, None),
            Some(OffsetPosition::Skip(_)) => return Err(Error::BadOffset),
            Some(OffsetPosition::Behind { sort: of, position, id }) if of == sort => (0, Some((*position, id.clone()))),
            Some(OffsetPosition::Behind { .. }) => return Err(Error::BadOffset),
        };
        let limit = limit.unwrap_or(ListQuery::LIMIT_MAX).min(ListQuery::LIMIT_MAX) as usize;
        let ids = ids.as_ref().map(|ids| ids.iter().cloned().collect());
        Ok(ListPlan { sort: *sort, newer: *newer, older: *older, limit, skip, behind, ids })
    }

    pub(super) async fn first_page(&self, trx: &Trx, keys: &CollectionKeys) -> Result<FirstPage> {
        if let Some(ids) = &self.ids {
            let ids: Vec<&RecordId> = ids.iter().collect();
            return Ok(FirstPage::Rows(base_rows(trx, keys, &ids).await?));
        }
        if self.sort == Sort::Index && self.newer.is_some_and(|newer| newer > Timestamp::ZERO) {
            // A device has few unseen records, and their positions by sortindex are unknown.
            return Ok(FirstPage::InTime(trx.page(&self.in_time(keys), IN_TIME_ROWS, false).await?));
        }
        Ok(FirstPage::Page(trx.page(&self.base_range(keys), self.page_rows(), self.is_reverse()).await?))
    }

    /// Returns whether an overlay has edits in the requested times.
    fn is_any_in_time(&self, layers: &Layers) -> bool {
        layers.overlays.iter().any(|(overlay, _)| self.is_in_time(overlay.modified))
    }

    /// Returns the ids of the list in order, and the offset of the next list.
    pub(super) async fn find(
        &self,
        trx: &Trx,
        layers: &Layers,
        now: Timestamp,
        ahead: FirstPage,
    ) -> Result<(Vec<RecordId>, Option<Offset>)> {
        if self.limit == 0 {
            return Ok((Vec::new(), None));
        }
        let found = match ahead {
            FirstPage::Rows(rows) => {
                let none = BTreeSet::new();
                self.among_some(trx, layers, now, self.ids.as_ref().unwrap_or(&none), rows).await?
            }
            FirstPage::Page(page) => {
                return self.merge(trx, layers, now, page).await.map(|entries| self.cut_off(entries));
            }
            FirstPage::InTime(page) if page.rest.is_none() && !self.is_any_in_time(layers) => {
                let ids = page.rows.iter().map(|(key, _)| Ok(layers.keys.take_modified(key)?.1));
                let ids = ids.collect::<Result<BTreeSet<_>>>()?;
                let rows = base_rows(trx, &layers.keys, &ids.iter().collect::<Vec<_>>()).await?;
                self.among_some(trx, layers, now, &ids, rows).await?
            }
            FirstPage::InTime(_) => {
                let page = trx.page(&self.base_range(&layers.keys), PAGE_ROWS_MAX, self.is_reverse()).await?;
                return self.merge(trx, layers, now, page).await.map(|entries| self.cut_off(entries));
            }
        };
        Ok(self.cut_off(ListEntries { found, ended: None }))
    }

    fn offset_behind(&self, entry: &ListEntry) -> Offset {
        match self.sort {
            Sort::Index => Offset::behind_sortindex(SortKey(entry.position), &entry.id),
            sort => {
                let modified = Timestamp::from_hundredths(i64::try_from(entry.position).unwrap_or(i64::MAX));
                Offset::behind_time(sort, modified, &entry.id)
            }
        }
    }

    /// Returns the entries among some ids, up to one more than the limit.
    async fn among_some(
        &self,
        trx: &Trx,
        layers: &Layers,
        now: Timestamp,
        ids: &BTreeSet<RecordId>,
        rows: Vec<Option<Row>>,
    ) -> Result<Vec<ListEntry>> {
        let ids: Vec<&RecordId> = ids.iter().collect();
        let found = layers.found(trx, &ids, rows).await?;
        let views = ids.iter().zip(&found).filter_map(|(id, found)| Some((*id, layers.view(found)?)));
        Ok(self.among(views.map(|(id, view)| (id, view.modified, view.sortindex, view.expires)), now))
    }

    /// Returns the entries among known records, up to one more than the limit.
    fn among<'r>(
        &self,
        records: impl Iterator<Item = (&'r RecordId, Timestamp, Option<i32>, Option<Timestamp>)>,
        now: Timestamp,
    ) -> Vec<ListEntry> {
        let raw = records.map(|(id, modified, sortindex, expires)| {
            let position = match self.sort {
                Sort::Index => SortKey::of(sortindex).0,
                Sort::Newest | Sort::Oldest => modified.hundredths() as u64,
            };
            RawEntry { entry: ListEntry { position, id: id.clone() }, modified, expires }
        });
        let mut entries: Vec<ListEntry> = raw.filter(|raw| self.is_wanted(raw, now)).map(|raw| raw.entry).collect();
        entries.sort_by(|one, other| self.order(one, other));
        if let Some((position, id)) = &self.behind {
            let place = ListEntry { position: *position, id: id.clone() };
            entries.retain(|entry| self.order(entry, &place) == Ordering::Greater);
        }
        entries.drain(..entries.len().min(usize::try_from(self.skip).unwrap_or(usize::MAX)));
        entries.truncate(self.limit + 1);
        entries
    }

    /// Returns whether the list may contain the whole collection.
    pub(super) fn is_from_the_beginning(&self) -> bool {
        let is_all = self.ids.is_none() && self.newer.is_none_or(|newer| newer == Timestamp::ZERO);
        is_all && self.behind.is_none() && self.limit > 0
    }

    /// Returns the ids of the list in order from all rows, and the offset of the next list.
    pub(super) fn among_rows(&self, rows: &[(RecordId, Row)], now: Timestamp) -> (Vec<RecordId>, Option<Offset>) {
        let records = rows.iter().map(|(id, row)| (id, row.modified, row.sortindex, row.expires));
        self.cut_off(ListEntries { found: self.among(records, now), ended: None })
    }

    /// Cuts the entries at the limit. Returns the ids and the offset of the next list.
    fn cut_off(&self, entries: ListEntries) -> (Vec<RecordId>, Option<Offset>) {
        let ListEntries { mut found, ended } = entries;
        let mut next = ended.map(|ended| self.offset_behind(&ended));
        if found.len() > self.limit {
            found.truncate(self.limit);
            next = found.last().map(|last| self.offset_behind(last));
        }
        (found.into_iter().map(|entry| entry.id).collect(), next)
    }

    /// Merges all layers, up to one more entry than the limit.
    ///
    /// # Errors
    /// [`Error::BadOffset`] if a numeric offset lies beyond the entries that may be read.
    async fn merge(&self, trx: &Trx, layers: &Layers, now: Timestamp, page: Page) -> Result<ListEntries> {
        let mut base = LayerStream::new(None, Some(self.base_range(&layers.keys)));
        self.take(trx, layers, now, &mut base, page).await?;
        let overlays =
            (0..layers.overlays.len()).map(|layer| LayerStream::new(Some(layer), self.overlay_range(layers, layer)));
        let mut streams: Vec<LayerStream> = std::iter::once(base).chain(overlays).collect();
        let (mut skip, mut out) = (self.skip, ListEntries::default());
        while out.found.len() <= self.limit {
            // Each stream has its next entry, or is empty, or is stuck.
            try_join_all(streams.iter_mut().map(|stream| self.fill(trx, layers, now, stream))).await?;
            let first = streams.iter_mut().filter(|stream| stream.front().is_some()).min_by(|one, other| {
                let order = match (one.front(), other.front()) {
                    (Some(one), Some(other)) => self.order(one, other),
                    _ => Ordering::Equal,
                };
                // An overlay's entry may stand at the same position.
                order.then_with(|| one.is_stuck().cmp(&other.is_stuck()))
            });
            let Some(first) = first else { break };
            if first.is_stuck() {
                if skip > 0 {
                    return Err(Error::BadOffset);
                }
                out.ended = first.last.take();
                break;
            }
            let Some(entry) = first.read.pop_front() else { break };
            if skip > 0 {
                skip -= 1;
            } else {
                out.found.push(entry);
            }
        }
        Ok(out)
    }

    /// Reads on until an entry is buffered, nothing is left, or the limit is reached.
    async fn fill(&self, trx: &Trx, layers: &Layers, now: Timestamp, stream: &mut LayerStream) -> Result<()> {
        while stream.read.is_empty() && stream.may_read > 0 {
            let Some(range) = &stream.left else { break };
            let page = trx.page(range, PAGE_ROWS_MAX, self.is_reverse()).await?;
            self.take(trx, layers, now, stream, page).await?;
        }
        Ok(())
    }

    /// Buffers the entries of a page that match and that no overlay covers.
    async fn take(
        &self,
        trx: &Trx,
        layers: &Layers,
        now: Timestamp,
        stream: &mut LayerStream,
        page: Page,
    ) -> Result<()> {
        stream.left = page.rest;
        stream.may_read = stream.may_read.saturating_sub(page.rows.len());
        let raws = page.rows.iter().map(|(key, value)| self.raw(layers, stream.layer, key, value));
        let raws = raws.collect::<Result<Vec<_>>>()?;
        if let Some(last) = raws.last().filter(|_| stream.left.is_some()) {
            stream.last = Some(last.entry.clone());
        }
        let entries: Vec<ListEntry> =
            raws.into_iter().filter(|raw| self.is_wanted(raw, now)).map(|raw| raw.entry).collect();
        let over = stream.layer.map_or(0, |layer| layer + 1);
        if over < layers.overlays.len() {
            let ids: Vec<RecordId> = entries.iter().map(|entry| entry.id.clone()).collect();
            let are_covered = layers.are_covered(trx, over, &ids).await?;
            let uncovered = entries.into_iter().zip(are_covered).filter(|(_, is_covered)| !is_covered);
            stream.read.extend(uncovered.map(|(entry, _)| entry));
        } else {
            stream.read.extend(entries);
        }
        Ok(())
    }

    fn raw(&self, layers: &Layers, layer: Option<usize>, key: &[u8], value: &Bytes) -> Result<RawEntry> {
        let Some(layer) = layer else { return self.raw_of_base(&layers.keys, key, value) };
        let (overlay, keys) = layers.overlays.get(layer).ok_or(Error::Corrupt("an overlay"))?;
        let modified = overlay.modified;
        if self.sort == Sort::Index {
            let (sort, id) = keys.take_sortindex(key)?;
            let expires = StagedRow::decode_expires(value, modified)?;
            return Ok(RawEntry { entry: ListEntry { position: sort.0, id }, modified, expires });
        }
        let expires = StagedRow::decode(value)?.final_expires(modified);
        let entry = ListEntry { position: modified.hundredths() as u64, id: keys.take_staged(key)? };
        Ok(RawEntry { entry, modified, expires })
    }

    fn raw_of_base(&self, keys: &CollectionKeys, key: &[u8], value: &Bytes) -> Result<RawEntry> {
        let time = |bytes: &[u8]| match bytes.try_into() {
            Ok(bytes) => Ok(Timestamp::from_hundredths(i64::from_be_bytes(bytes))),
            Err(_) => Err(Error::Corrupt("an entry of a record")),
        };
        let optional = |bytes: &[u8]| if bytes.is_empty() { Ok(None) } else { time(bytes).map(Some) };
        if self.sort == Sort::Index {
            let (sort, id) = keys.take_sortindex(key)?;
            let (modified, expires) = value.split_at_checked(8).ok_or(Error::Corrupt("an entry by sortindex"))?;
            let entry = ListEntry { position: sort.0, id };
            return Ok(RawEntry { entry, modified: time(modified)?, expires: optional(expires)? });
        }
        let (modified, id) = keys.take_modified(key)?;
        let entry = ListEntry { position: modified.hundredths() as u64, id };
        Ok(RawEntry { entry, modified, expires: optional(value)? })
    }

    fn is_wanted(&self, raw: &RawEntry, now: Timestamp) -> bool {
        raw.expires.is_none_or(|expires| expires > now) && self.is_in_time(raw.modified)
    }

    fn is_in_time(&self, modified: Timestamp) -> bool {
        self.newer.is_none_or(|newer| modified > newer) && self.older.is_none_or(|older| modified < older)
    }

    fn is_reverse(&self) -> bool {
        self.sort != Sort::Oldest
    }

    fn order(&self, one: &ListEntry, other: &ListEntry) -> Ordering {
        let order = one.position.cmp(&other.position).then_with(|| one.id.cmp(&other.id));
        if self.is_reverse() { order.reverse() } else { order }
    }

    fn page_rows(&self) -> usize {
        let skip = usize::try_from(self.skip).unwrap_or(usize::MAX);
        self.limit.saturating_add(1).saturating_add(skip).min(PAGE_ROWS_MAX)
    }

    fn base_range(&self, keys: &CollectionKeys) -> KeyRange {
        if self.sort == Sort::Index {
            let range = keys.by_sortindex();
            return match &self.behind {
                Some((position, id)) => range.before(&keys.sortindex(SortKey(*position), id)),
                None => range,
            };
        }
        let range = self.in_time(keys);
        match &self.behind {
            Some((position, id)) => {
                let modified = Timestamp::from_hundredths(i64::try_from(*position).unwrap_or(i64::MAX));
                self.cut(range, &keys.modified(modified, id))
            }
            None => range,
        }
    }

    /// Returns the range of the entries by time of the requested times.
    fn in_time(&self, keys: &CollectionKeys) -> KeyRange {
        let from = self.newer.map_or(Timestamp::ZERO, Timestamp::next);
        let to = match self.older {
            Some(Timestamp::ZERO) => return KeyRange { begin: Vec::new(), end: Vec::new() },
            Some(older) => Timestamp::from_hundredths(older.hundredths() - 1),
            None => Timestamp::MAX,
        };
        keys.by_modified(from, to)
    }

    /// Returns the range of an overlay's entries for the list; `None`: it has none.
    fn overlay_range(&self, layers: &Layers, layer: usize) -> Option<KeyRange> {
        let (overlay, keys) = layers.overlays.get(layer)?;
        if !self.is_in_time(overlay.modified) {
            return None;
        }
        let Some((position, id)) = &self.behind else {
            return Some(if self.sort == Sort::Index { keys.by_sortindex() } else { keys.staged() });
        };
        if self.sort == Sort::Index {
            return Some(keys.by_sortindex().before(&keys.sortindex(SortKey(*position), id)));
        }
        // All its entries have the same position.
        let place = (overlay.modified.hundredths() as u64).cmp(position);
        match if self.is_reverse() { place.reverse() } else { place } {
            Ordering::Less => None,
            Ordering::Equal => Some(self.cut(keys.staged(), &keys.staged_record(id))),
            Ordering::Greater => Some(keys.staged()),
        }
    }

    /// Returns the range behind a key, in the list's direction.
    fn cut(&self, range: KeyRange, key: &[u8]) -> KeyRange {
        if self.is_reverse() { range.before(key) } else { range.behind(key) }
    }
}
