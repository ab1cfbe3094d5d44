//! Which records a list has: entries of a collection and of what lies over it, put together in the list's order.

use std::cmp::Ordering;
use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use futures_util::future::try_join_all;

use crate::error::{Error, Result};
use crate::keys::{CollectionKeys, KeyRange, SortKey};
use crate::layers::{Layers, base_rows};
use crate::model::{ListQuery, Sort};
use crate::names::RecordId;
use crate::offset::{Offset, Place};
use crate::timestamp::Timestamp;
use crate::transaction::{Page, Trx};
use crate::values::{Row, StagedRow};

/// Entries of a page.
const PAGE_ROWS_MAX: usize = 1_000;

/// Of a list by sortindex, so many that are newer than asked for are sorted here.
const IN_TIME_ROWS: usize = 500;

/// Entries of the collection itself that one list looks through. Of those that it looks for there may be few among many: by
/// sortindex none knows where the new ones lie, and by time all may have expired. Then the list ends before it is full, and
/// says where it goes on. FoundationDB reads so many in far less than the 5 s that a transaction has.
const LOOKED_THROUGH: usize = if cfg!(test) { 2_500 } else { 100_000 };

/// Records that are passed over: offsets that answers give pass over none.
const SKIP_MAX: u64 = 100_000;

/// What is to be listed.
#[derive(Debug)]
pub(super) struct Wanted {
    sort: Sort,
    newer: Option<Timestamp>,
    older: Option<Timestamp>,
    limit: usize,
    skip: u64,
    /// Behind the record of this id at this place.
    behind: Option<(u64, RecordId)>,
    ids: Option<BTreeSet<RecordId>>,
}

/// What was read before it was known what lies over the collection.
pub(super) enum Ahead {
    Page(Page),
    Rows(Vec<Option<Row>>),
    /// Entries by time of what is newer than asked for, of a list by sortindex.
    InTime(Page),
}

/// An entry of a list, at its place: a time in hundredths, or a [`SortKey`].
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    position: u64,
    id: RecordId,
}

/// An entry as it was read.
struct Raw {
    entry: Entry,
    modified: Timestamp,
    expires: Option<Timestamp>,
}

/// Entries of one layer.
struct Stream {
    /// The number of the overlay; `None`: the collection itself.
    layer: Option<usize>,
    /// What was not read yet; `None`: nothing.
    left: Option<KeyRange>,
    read: VecDeque<Entry>,
    /// How many may still be looked through.
    may_read: usize,
    /// The last one that was looked at, wanted or not.
    last: Option<Entry>,
}

/// Entries of a list in their order, up to one more than is wanted.
#[derive(Default)]
struct Entries {
    found: Vec<Entry>,
    /// Where the list ends although it is not full.
    ended: Option<Entry>,
}

impl Stream {
    fn new(layer: Option<usize>, left: Option<KeyRange>) -> Stream {
        // Overlays are bounded by what a batch holds.
        let may_read = if layer.is_none() { LOOKED_THROUGH } else { usize::MAX };
        Stream { layer, left, read: VecDeque::new(), may_read, last: None }
    }

    /// Whether it has nothing to give, though there is more of it.
    fn is_stuck(&self) -> bool {
        self.read.is_empty() && self.left.is_some()
    }

    /// What comes next of it: where it is stuck, nothing comes before what it has looked at last.
    fn front(&self) -> Option<&Entry> {
        if self.is_stuck() { self.last.as_ref() } else { self.read.front() }
    }
}

impl Wanted {
    pub(super) fn new(query: &ListQuery) -> Result<Wanted> {
        let ListQuery { ids, newer, older, sort, limit, offset, .. } = query;
        let (skip, behind) = match offset.as_ref().map(|offset| &offset.0) {
            None => (0, None),
            Some(Place::Skip(skip)) if *skip <= SKIP_MAX => (*skip, None),
            Some(Place::Skip(_)) => return Err(Error::BadOffset),
            Some(Place::Behind { sort: of, position, id }) if of == sort => (0, Some((*position, id.clone()))),
            Some(Place::Behind { .. }) => return Err(Error::BadOffset),
        };
        let limit = limit.unwrap_or(ListQuery::LIMIT_MAX).min(ListQuery::LIMIT_MAX) as usize;
        let ids = ids.as_ref().map(|ids| ids.iter().cloned().collect());
        Ok(Wanted { sort: *sort, newer: *newer, older: *older, limit, skip, behind, ids })
    }

    /// Reads the first page of what lies in the collection itself.
    pub(super) async fn first_page(&self, trx: &Trx, keys: &CollectionKeys) -> Result<Ahead> {
        if let Some(ids) = &self.ids {
            let ids: Vec<&RecordId> = ids.iter().collect();
            return Ok(Ahead::Rows(base_rows(trx, keys, &ids).await?));
        }
        if self.sort == Sort::Index && self.newer.is_some_and(|newer| newer > Timestamp::ZERO) {
            // What a device has not seen yet is little, and where it lies by sortindex is known to nobody.
            return Ok(Ahead::InTime(trx.page(&self.in_time(keys), IN_TIME_ROWS, false).await?));
        }
        Ok(Ahead::Page(trx.page(&self.base_range(keys), self.page_rows(), self.is_reverse()).await?))
    }

    /// Whether an overlay has something of the times that are asked for.
    fn is_any_in_time(&self, layers: &Layers) -> bool {
        layers.overlays.iter().any(|(overlay, _)| self.is_in_time(overlay.modified))
    }

    /// The ids of the list in their order, and where the next one goes on.
    pub(super) async fn find(
        &self,
        trx: &Trx,
        layers: &Layers,
        now: Timestamp,
        ahead: Ahead,
    ) -> Result<(Vec<RecordId>, Option<Offset>)> {
        if self.limit == 0 {
            return Ok((Vec::new(), None));
        }
        let found = match ahead {
            Ahead::Rows(rows) => {
                let none = BTreeSet::new();
                self.among_some(trx, layers, now, self.ids.as_ref().unwrap_or(&none), rows).await?
            }
            Ahead::Page(page) => return self.merge(trx, layers, now, page).await.map(|entries| self.cut_off(entries)),
            Ahead::InTime(page) if page.rest.is_none() && !self.is_any_in_time(layers) => {
                let ids = page.rows.iter().map(|(key, _)| Ok(layers.keys.take_modified(key)?.1));
                let ids = ids.collect::<Result<BTreeSet<_>>>()?;
                let rows = base_rows(trx, &layers.keys, &ids.iter().collect::<Vec<_>>()).await?;
                self.among_some(trx, layers, now, &ids, rows).await?
            }
            Ahead::InTime(_) => {
                let page = trx.page(&self.base_range(&layers.keys), PAGE_ROWS_MAX, self.is_reverse()).await?;
                return self.merge(trx, layers, now, page).await.map(|entries| self.cut_off(entries));
            }
        };
        Ok(self.cut_off(Entries { found, ended: None }))
    }

    fn offset_behind(&self, entry: &Entry) -> Offset {
        match self.sort {
            Sort::Index => Offset::behind_sortindex(SortKey(entry.position), &entry.id),
            sort => {
                let modified = Timestamp::from_hundredths(i64::try_from(entry.position).unwrap_or(i64::MAX));
                Offset::behind_time(sort, modified, &entry.id)
            }
        }
    }

    /// Of some ids, up to one more than is wanted.
    async fn among_some(
        &self,
        trx: &Trx,
        layers: &Layers,
        now: Timestamp,
        ids: &BTreeSet<RecordId>,
        rows: Vec<Option<Row>>,
    ) -> Result<Vec<Entry>> {
        let ids: Vec<&RecordId> = ids.iter().collect();
        let found = layers.found(trx, &ids, rows).await?;
        let views = ids.iter().zip(&found).filter_map(|(id, found)| Some((*id, layers.view(found)?)));
        Ok(self.among(views.map(|(id, view)| (id, view.modified, view.sortindex, view.expires)), now))
    }

    /// Of records that are known, up to one more than is wanted.
    fn among<'r>(
        &self,
        records: impl Iterator<Item = (&'r RecordId, Timestamp, Option<i32>, Option<Timestamp>)>,
        now: Timestamp,
    ) -> Vec<Entry> {
        let raw = records.map(|(id, modified, sortindex, expires)| {
            let position = match self.sort {
                Sort::Index => SortKey::of(sortindex).0,
                Sort::Newest | Sort::Oldest => modified.hundredths() as u64,
            };
            Raw { entry: Entry { position, id: id.clone() }, modified, expires }
        });
        let mut entries: Vec<Entry> = raw.filter(|raw| self.is_wanted(raw, now)).map(|raw| raw.entry).collect();
        entries.sort_by(|one, other| self.order(one, other));
        if let Some((position, id)) = &self.behind {
            let place = Entry { position: *position, id: id.clone() };
            entries.retain(|entry| self.order(entry, &place) == Ordering::Greater);
        }
        entries.drain(..entries.len().min(usize::try_from(self.skip).unwrap_or(usize::MAX)));
        entries.truncate(self.limit + 1);
        entries
    }

    /// Whether all of a collection may be wanted.
    pub(super) fn is_from_the_beginning(&self) -> bool {
        let is_all = self.ids.is_none() && self.newer.is_none_or(|newer| newer == Timestamp::ZERO);
        is_all && self.behind.is_none() && self.limit > 0
    }

    /// The ids of the list in their order, of all rows that there are, and where the next one goes on.
    pub(super) fn among_rows(&self, rows: &[(RecordId, Row)], now: Timestamp) -> (Vec<RecordId>, Option<Offset>) {
        let records = rows.iter().map(|(id, row)| (id, row.modified, row.sortindex, row.expires));
        self.cut_off(Entries { found: self.among(records, now), ended: None })
    }

    /// What is wanted of the entries that were found, and where the next list goes on.
    fn cut_off(&self, entries: Entries) -> (Vec<RecordId>, Option<Offset>) {
        let Entries { mut found, ended } = entries;
        let mut next = ended.map(|ended| self.offset_behind(&ended));
        if found.len() > self.limit {
            found.truncate(self.limit);
            next = found.last().map(|last| self.offset_behind(last));
        }
        (found.into_iter().map(|entry| entry.id).collect(), next)
    }

    /// Of all, up to one more than is wanted.
    ///
    /// # Errors
    /// [`Error::BadOffset`], besides, where records are to be passed over and cannot be counted so far.
    async fn merge(&self, trx: &Trx, layers: &Layers, now: Timestamp, page: Page) -> Result<Entries> {
        let mut base = Stream::new(None, Some(self.base_range(&layers.keys)));
        self.take(trx, layers, now, &mut base, page).await?;
        let overlays =
            (0..layers.overlays.len()).map(|layer| Stream::new(Some(layer), self.overlay_range(layers, layer)));
        let mut streams: Vec<Stream> = std::iter::once(base).chain(overlays).collect();
        let (mut skip, mut out) = (self.skip, Entries::default());
        while out.found.len() <= self.limit {
            // Each stream has its next entry, or none, or is stuck.
            try_join_all(streams.iter_mut().map(|stream| self.fill(trx, layers, now, stream))).await?;
            let first = streams.iter_mut().filter(|stream| stream.front().is_some()).min_by(|one, other| {
                let order = match (one.front(), other.front()) {
                    (Some(one), Some(other)) => self.order(one, other),
                    _ => Ordering::Equal,
                };
                // What lies over a record may stand at its place.
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

    /// Reads on until there is an entry, nothing left, or enough was looked through.
    async fn fill(&self, trx: &Trx, layers: &Layers, now: Timestamp, stream: &mut Stream) -> Result<()> {
        while stream.read.is_empty() && stream.may_read > 0 {
            let Some(range) = &stream.left else { break };
            let page = trx.page(range, PAGE_ROWS_MAX, self.is_reverse()).await?;
            self.take(trx, layers, now, stream, page).await?;
        }
        Ok(())
    }

    /// Takes a page's entries that are wanted, and that nothing lies over.
    async fn take(&self, trx: &Trx, layers: &Layers, now: Timestamp, stream: &mut Stream, page: Page) -> Result<()> {
        stream.left = page.rest;
        stream.may_read = stream.may_read.saturating_sub(page.rows.len());
        let raws = page.rows.iter().map(|(key, value)| self.raw(layers, stream.layer, key, value));
        let raws = raws.collect::<Result<Vec<_>>>()?;
        if let Some(last) = raws.last().filter(|_| stream.left.is_some()) {
            stream.last = Some(last.entry.clone());
        }
        let entries: Vec<Entry> =
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

    fn raw(&self, layers: &Layers, layer: Option<usize>, key: &[u8], value: &Bytes) -> Result<Raw> {
        let Some(layer) = layer else { return self.raw_of_base(&layers.keys, key, value) };
        let (overlay, keys) = layers.overlays.get(layer).ok_or(Error::Corrupt("an overlay"))?;
        let modified = overlay.modified;
        if self.sort == Sort::Index {
            let (sort, id) = keys.take_sortindex(key)?;
            let expires = StagedRow::decode_expires(value, modified)?;
            return Ok(Raw { entry: Entry { position: sort.0, id }, modified, expires });
        }
        let expires = StagedRow::decode(value)?.final_expires(modified);
        let entry = Entry { position: modified.hundredths() as u64, id: keys.take_staged(key)? };
        Ok(Raw { entry, modified, expires })
    }

    fn raw_of_base(&self, keys: &CollectionKeys, key: &[u8], value: &Bytes) -> Result<Raw> {
        let time = |bytes: &[u8]| match bytes.try_into() {
            Ok(bytes) => Ok(Timestamp::from_hundredths(i64::from_be_bytes(bytes))),
            Err(_) => Err(Error::Corrupt("an entry of a record")),
        };
        let optional = |bytes: &[u8]| if bytes.is_empty() { Ok(None) } else { time(bytes).map(Some) };
        if self.sort == Sort::Index {
            let (sort, id) = keys.take_sortindex(key)?;
            let (modified, expires) = value.split_at_checked(8).ok_or(Error::Corrupt("an entry by sortindex"))?;
            let entry = Entry { position: sort.0, id };
            return Ok(Raw { entry, modified: time(modified)?, expires: optional(expires)? });
        }
        let (modified, id) = keys.take_modified(key)?;
        let entry = Entry { position: modified.hundredths() as u64, id };
        Ok(Raw { entry, modified, expires: optional(value)? })
    }

    fn is_wanted(&self, raw: &Raw, now: Timestamp) -> bool {
        raw.expires.is_none_or(|expires| expires > now) && self.is_in_time(raw.modified)
    }

    fn is_in_time(&self, modified: Timestamp) -> bool {
        self.newer.is_none_or(|newer| modified > newer) && self.older.is_none_or(|older| modified < older)
    }

    fn is_reverse(&self) -> bool {
        self.sort != Sort::Oldest
    }

    /// The list's order.
    fn order(&self, one: &Entry, other: &Entry) -> Ordering {
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

    /// Entries by time of the times that are asked for.
    fn in_time(&self, keys: &CollectionKeys) -> KeyRange {
        let from = self.newer.map_or(Timestamp::ZERO, Timestamp::next);
        let to = match self.older {
            Some(Timestamp::ZERO) => return KeyRange { begin: Vec::new(), end: Vec::new() },
            Some(older) => Timestamp::from_hundredths(older.hundredths() - 1),
            None => Timestamp::MAX,
        };
        keys.by_modified(from, to)
    }

    /// What an overlay has for the list; `None`: nothing.
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
        // All that it has lies at one place.
        let place = (overlay.modified.hundredths() as u64).cmp(position);
        match if self.is_reverse() { place.reverse() } else { place } {
            Ordering::Less => None,
            Ordering::Equal => Some(self.cut(keys.staged(), &keys.staged_record(id))),
            Ordering::Greater => Some(keys.staged()),
        }
    }

    /// What stands behind a key, in the list's direction.
    fn cut(&self, range: KeyRange, key: &[u8]) -> KeyRange {
        if self.is_reverse() { range.before(key) } else { range.behind(key) }
    }
}
