//! The stored rows of documents: read before they change, and compared with the new ones.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use flatbed_databases::document::body::{BODY_BYTES_MAX, begin_read};
use flatbed_databases::limits::Limit;
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::{ViewKeys, ViewPart};
use flatbed_store::proto;
use flatbed_store::transaction::{Quiet, Transaction};
use foundationdb::future::FdbSlice;
use foundationdb::options::ConflictRangeType;
use futures_util::future::{join_all, try_join_all};
use prost::Message;

use crate::view::group::ViewGroup;
use crate::view::labels::Labels;
use crate::view::prepare::{PreparedDocument, PreparedRow, row_cost};

/// The size of one value of a document's list of rows. A changed row rewrites its value.
const PART_BYTES: Limit<u64> = Limit::new(16_000, 1_500);

/// The most values of [`PART_BYTES`] that one read takes of several documents: 5 MB in storage, some 20 MB in memory. A
/// single document may have more: a large document.
const HAD_PARTS_MAX: Limit<u64> = Limit::new(300, 20);

/// Decides whether a transaction may read the stored rows of a large document ([`HAD_PARTS_MAX`]). A process bounds the
/// number of such reads in parallel.
#[derive(Debug, Default)]
pub struct LargeReadGate {
    is_open: bool,
    /// True if the current attempt has met a large document.
    is_requested: AtomicBool,
}

impl LargeReadGate {
    pub fn open() -> LargeReadGate {
        LargeReadGate { is_open: true, ..LargeReadGate::default() }
    }

    pub fn begin_attempt(&self) {
        self.is_requested.store(false, Ordering::Relaxed);
    }

    fn request(&self) -> bool {
        self.is_requested.store(true, Ordering::Relaxed);
        self.is_open
    }

    /// Returns whether the transaction skipped a large document. It must not be committed, and is retried with an open
    /// gate.
    pub fn must_retry(&self) -> bool {
        self.is_requested.load(Ordering::Relaxed) && !self.is_open
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoredRows {
    /// By the number of the value that lists them; the first is 0. The order of rows has no meaning, and numbers may be
    /// missing.
    pub parts: BTreeMap<u64, Vec<proto::ViewRowOf>>,
    /// True if it has more than a bound allows, and so no rows.
    pub is_refused: bool,
    /// True if a function exceeded its bound on the document, so that it has no rows.
    pub is_set_aside: bool,
}

impl StoredRows {
    pub fn rows(&self) -> impl Iterator<Item = &proto::ViewRowOf> {
        self.parts.values().flatten()
    }
}

/// Reads the stored rows of a prefix of the documents concurrently. The prefix has at most [`HAD_PARTS_MAX`] values
/// beyond the first one of each document, or is one large document. If that comes first and `large_reads` is closed,
/// nothing is read. `snapshot`: no other transaction may write these keys.
pub async fn read_stored_rows(
    trx: &Transaction,
    keys: &ViewKeys,
    ids: impl Iterator<Item = &str>,
    snapshot: bool,
    large_reads: Option<&LargeReadGate>,
) -> Result<Vec<StoredRows>> {
    let (ids, reads): (Vec<&str>, Vec<_>) = ids.map(|id| (id, trx.get(&keys.of_document(id), snapshot))).unzip();
    let firsts: Vec<Option<FdbSlice>> = join_all(reads).await.into_iter().collect::<std::result::Result<_, _>>()?;
    let (mut read, mut parts) = (Vec::with_capacity(firsts.len()), 0);
    for first in firsts {
        let first = first.map(|first| proto::ViewRowsOf::decode(&*first)).transpose()?;
        parts += first.as_ref().map_or(0, |first| u64::from(first.parts.saturating_sub(1)));
        if parts > HAD_PARTS_MAX.get() && (!read.is_empty() || large_reads.is_some_and(|gate| !gate.request())) {
            break;
        }
        read.push(first);
    }
    let had = ids.into_iter().zip(read).map(|(id, found)| async move {
        let Some(found) = found else { return Ok(StoredRows::default()) };
        let (is_refused, is_set_aside) = (found.refused, found.set_aside);
        let mut parts = BTreeMap::from([(0, found.rows)]);
        if found.parts > 1 {
            // Every writer of these values writes the first one, too.
            for page in begin_read(trx, keys.of_document_rest(id)).finish(trx, BODY_BYTES_MAX).await? {
                for row in &page {
                    let ViewPart::OfDocument(_, part) = keys.split(row.key())? else { continue };
                    parts.insert(part, proto::ViewRowsOf::decode(row.value())?.rows);
                }
            }
        }
        Ok::<_, Error>(StoredRows { parts, is_refused, is_set_aside })
    });
    try_join_all(had).await
}

pub(super) struct RowDiff<'d> {
    pub tree: usize,
    pub key: Vec<u8>,
    pub old: Option<proto::ViewRowOf>,
    pub new: Option<NewRow<'d>>,
}

#[derive(Clone, Copy)]
pub(super) struct NewRow<'d> {
    pub id: &'d str,
    pub row: &'d PreparedRow,
}

#[derive(Clone, Copy)]
enum Change<'d> {
    /// An existing row is removed or gets another value. It is identified by its value in the document's list and its
    /// index there.
    Old {
        part: u64,
        at: usize,
        old: &'d proto::ViewRowOf,
        new: Option<&'d PreparedRow>,
    },
    New(&'d PreparedRow),
}

/// The planned changes of a document's rows, computed without reading any row.
pub(super) struct Plan<'d> {
    group: &'d ViewGroup,
    pub document: &'d PreparedDocument,
    had: &'d StoredRows,
    /// Existing rows in the order of the values that list them, then new ones, so that the first changes affect few
    /// values.
    changes: Vec<Change<'d>>,
    /// True if more changes follow later.
    pub is_partial: bool,
    /// True if parts of values are already staged.
    pub is_staged: bool,
}

/// The identity of a row within its document: tree, spelling, ordinal and sort key.
type RowIdentity<'r> = (u32, u32, u32, &'r [u8]);

impl<'d> Plan<'d> {
    /// Compares the stored rows of a document with its new ones.
    pub(super) fn of(group: &'d ViewGroup, document: &'d PreparedDocument, had: &'d StoredRows) -> Plan<'d> {
        let old: Vec<(u64, usize, &proto::ViewRowOf)> = (had.parts.iter())
            .flat_map(|(part, rows)| rows.iter().enumerate().map(|(at, row)| (*part, at, row)))
            .collect();
        // A row with a long key keeps its label only if it is unchanged: the position of another row is known only
        // after a search.
        let mut places: HashMap<RowIdentity<'_>, usize> = HashMap::new();
        let mut long: HashMap<(RowIdentity<'_>, &[u8]), usize> = HashMap::new();
        for (index, (.., row)) in old.iter().enumerate() {
            let (form, label) = flatbed_collate::split(&row.element);
            match label.is_empty() {
                true => places.insert(place(row), index),
                false => long.insert(((row.tree, row.spelling, row.ordinal, form), &row.hash), index),
            };
        }
        let (mut stays, mut replaced) = (vec![false; old.len()], HashMap::new());
        let mut changes = Vec::new();
        for row in &document.rows {
            let at = (row.tree as u32, row.tail.spelling, row.tail.ordinal, row.sort_key.bytes());
            let found = match row.sort_key.is_cut() {
                false => places.get(&at),
                true => long.get(&(at, row.hash.as_slice())),
            };
            match found.and_then(|index| Some((*index, old.get(*index)?))) {
                Some((index, (.., before)))
                    if (&before.hash[..], before.expires_at_ms) == (&row.hash[..], row.ends_at_ms) =>
                {
                    if let Some(stays) = stays.get_mut(index) {
                        *stays = true;
                    }
                }
                Some((index, _)) => {
                    replaced.insert(index, row);
                }
                None => changes.push(Change::New(row)),
            }
        }
        let goes = (0..).zip(&old).zip(stays).filter(|(_, stays)| !stays).map(|((index, (part, at, old)), _)| {
            Change::Old { part: *part, at: *at, old, new: replaced.get(&index).copied() }
        });
        let changes = goes.chain(changes).collect();
        Plan { group, document, had, changes, is_partial: false, is_staged: false }
    }

    pub(super) fn rows(&self) -> usize {
        self.changes.len()
    }

    /// Returns the approximate bytes to write, without nodes. `undo`: with the old values.
    pub(super) fn bytes(&self, undo: bool) -> u64 {
        let mut parts = TouchedParts::default();
        self.changes.iter().map(|change| self.cost(change, undo) + parts.cost(self.had, change)).sum()
    }

    /// Keeps only the first changes, at most `rows` of `bytes`, and at least one.
    pub(super) fn limit(&mut self, rows: usize, bytes: u64) {
        let (mut parts, mut sum) = (TouchedParts::default(), 0);
        let fits = |change: &&Change<'_>| {
            sum += self.cost(change, true) + parts.cost(self.had, change);
            sum <= bytes
        };
        let most = self.changes.iter().take(rows).take_while(fits).count().max(1);
        self.is_partial |= most < self.changes.len();
        self.changes.truncate(most);
    }

    fn cost(&self, change: &Change<'_>, undo: bool) -> u64 {
        let of_new = |row: &PreparedRow| {
            let is_elsewhere = self.is_staged && row.blob_id(self.document.id()).is_some();
            // The search for a long key's position reads keys of the same length.
            let looked_at = if row.sort_key.is_cut() { row.key.len() } else { 0 };
            let bytes = if is_elsewhere { looked_at.max(100) } else { row.bytes() };
            row_cost(row.sort_key.bytes().len() + self.document.id().len() + 20, bytes)
        };
        let of_old = |row: &proto::ViewRowOf| {
            let bytes = if undo && row.blob_id.is_empty() { row.bytes as usize } else { 0 };
            row_cost(row.element.len() + self.document.id().len() + 20, bytes)
        };
        match change {
            Change::New(row) => of_new(row),
            Change::Old { old, new, .. } => of_old(old) + new.map_or(0, of_new),
        }
    }

    /// Returns the new rows that are stored in parts, which must exist.
    pub(super) fn large_rows(&self) -> impl Iterator<Item = (Vec<u8>, &'d PreparedRow)> {
        let new = |change: &Change<'d>| match change {
            Change::New(row) => Some(*row),
            Change::Old { new, .. } => *new,
        };
        let id = self.document.id();
        self.changes.iter().filter_map(new).filter_map(move |row| Some((row.blob_id(id)?, row)))
    }

    /// Returns the keys of all rows to change, and the document's new list. `None`: a long key's label does not fit.
    pub(super) async fn diff(&self, labels: &mut Labels<'_>) -> Result<Option<DocumentDiff<'d>>> {
        let id = self.document.id();
        let (is_partial, is_staged, was_refused) = (self.is_partial, self.is_staged, self.had.is_refused);
        // The last part sets it.
        let is_refused = if is_partial { was_refused } else { self.document.is_refused() };
        let was_set_aside = self.had.is_set_aside;
        let set_aside = self.document.set_aside();
        let is_set_aside = if is_partial { was_set_aside } else { set_aside.is_some() };
        let aside = SetAsideChange { was: was_set_aside, is: is_set_aside, reason: set_aside.unwrap_or_default() };
        let of = |rows, has| DocumentDiff { id, rows, has, is_partial, is_staged, was_refused, is_refused, aside };
        if self.changes.is_empty() {
            // If the flags change, the whole list is rewritten: a part of it may have been entered before.
            let has = match was_refused == is_refused && was_set_aside == is_set_aside {
                true => StoredParts::default(),
                false => StoredParts::after(self.had, &HashSet::new(), Vec::new()),
            };
            return Ok(Some(of(Vec::new(), has)));
        }
        let mut rows: Vec<RowDiff<'d>> = Vec::with_capacity(self.changes.len());
        let (mut gone, mut come) = (HashSet::new(), Vec::new());
        // Removed rows with long keys, by key: a row with the same key and another value may follow.
        let mut long = HashMap::new();
        for change in &self.changes {
            match change {
                Change::Old { part, at, old, new } => {
                    gone.insert((*part, *at));
                    let key = self.group.row_key(id, old).encode();
                    if new.is_none() && !flatbed_collate::split(&old.element).1.is_empty() {
                        long.insert((old.tree, key.clone()), rows.len());
                    }
                    come.extend(new.map(|new| new.message(id, old.element.clone())));
                    let new = new.map(|row| NewRow { id, row });
                    rows.push(RowDiff { tree: old.tree as usize, key, old: Some((*old).clone()), new });
                }
                Change::New(row) => {
                    let element = match row.sort_key.is_cut() {
                        false => row.sort_key.bytes().to_vec(),
                        true => match labels.element(id, row).await? {
                            Some(element) => element,
                            None => return Ok(None),
                        },
                    };
                    let message = row.message(id, element);
                    let key = self.group.row_key(id, &message).encode();
                    let new = Some(NewRow { id, row });
                    match long.remove(&(message.tree, key.clone())).and_then(|at| rows.get_mut(at)) {
                        Some(before) => before.new = new,
                        None => rows.push(RowDiff { tree: row.tree, key, old: None, new }),
                    }
                    come.push(message);
                }
            }
        }
        Ok(Some(of(rows, StoredParts::after(self.had, &gone, come))))
    }
}

#[derive(Default)]
struct TouchedParts(BTreeSet<u64>);

impl TouchedParts {
    fn cost(&mut self, had: &StoredRows, change: &Change<'_>) -> u64 {
        match change {
            Change::Old { part, .. } if self.0.insert(*part) => {
                had.parts.get(part).map_or(0, |rows| rows.iter().map(bytes_of).sum())
            }
            _ => 0,
        }
    }
}

#[derive(Default)]
struct StoredParts {
    /// The changed values, each complete; one without rows is cleared.
    parts: BTreeMap<u64, Vec<proto::ViewRowOf>>,
    /// The number of the last value with rows; `None`: no value has rows.
    last: Option<u64>,
}

impl StoredParts {
    fn after(had: &StoredRows, gone: &HashSet<(u64, usize)>, come: Vec<proto::ViewRowOf>) -> StoredParts {
        let stays = |part: u64| {
            let rows = had.parts.get(&part).into_iter().flatten().enumerate();
            rows.filter(move |(at, _)| !gone.contains(&(part, *at))).map(|(_, row)| row)
        };
        let all = || had.parts.keys().flat_map(|part| stays(*part));
        if all().map(bytes_of).sum::<u64>() + come.iter().map(bytes_of).sum::<u64>() <= PART_BYTES.get() {
            let rows: Vec<_> = all().cloned().chain(come).collect();
            let last = (!rows.is_empty()).then_some(0);
            let others = had.parts.keys().filter(|part| **part > 0).map(|part| (*part, Vec::new()));
            return StoredParts { parts: std::iter::once((0, rows)).chain(others).collect(), last };
        }
        let touched: BTreeSet<u64> = gone.iter().map(|(part, _)| *part).collect();
        let mut parts: BTreeMap<u64, Vec<_>> =
            touched.into_iter().map(|part| (part, stays(part).cloned().collect())).collect();
        let mut last = had.parts.keys().next_back().copied().unwrap_or_default();
        let mut bytes = stays(last).map(bytes_of).sum::<u64>();
        for row in come {
            let more = bytes_of(&row);
            if bytes > 0 && bytes + more > PART_BYTES.get() {
                (last, bytes) = (last + 1, 0);
            }
            bytes += more;
            parts.entry(last).or_insert_with(|| stays(last).cloned().collect()).push(row);
        }
        let is_left = |(part, rows): &(&u64, &Vec<_>)| !rows.is_empty() && !parts.contains_key(part);
        let left = had.parts.iter().rfind(is_left).map(|(part, _)| *part);
        let written = parts.iter().rfind(|(_, rows)| !rows.is_empty()).map(|(part, _)| *part);
        // The first value says that others exist.
        parts.entry(0).or_insert_with(|| stays(0).cloned().collect());
        StoredParts { parts, last: left.max(written) }
    }
}

fn bytes_of(row: &proto::ViewRowOf) -> u64 {
    row.encoded_len() as u64 + 8
}

pub(super) struct DocumentDiff<'d> {
    pub id: &'d str,
    /// Each row's key once.
    pub rows: Vec<RowDiff<'d>>,
    has: StoredParts,
    /// True if more changes follow later.
    pub is_partial: bool,
    /// True if parts of values are already staged.
    pub is_staged: bool,
    /// True if the old, or the new, document exceeds a bound.
    was_refused: bool,
    is_refused: bool,
    aside: SetAsideChange<'d>,
}

#[derive(Debug, Clone, Copy)]
struct SetAsideChange<'d> {
    was: bool,
    is: bool,
    /// Empty unless `is`.
    reason: &'d str,
}

impl DocumentDiff<'_> {
    /// Returns the change of the count of refused documents: -1, 0 or 1.
    pub(super) fn refused_more(&self) -> i64 {
        i64::from(self.is_refused) - i64::from(self.was_refused)
    }

    /// Returns the change of the count of documents set aside: -1, 0 or 1.
    pub(super) fn set_aside_more(&self) -> i64 {
        i64::from(self.aside.is) - i64::from(self.aside.was)
    }

    /// Returns the approximate bytes beside rows and nodes: the document's list, and parts of values.
    pub(super) fn bytes_beside(&self) -> u64 {
        let has: u64 = self.has.parts.values().flatten().map(bytes_of).sum();
        let large =
            |row: &RowDiff<'_>| row.new.filter(|new| new.row.blob_id(new.id).is_some()).map(|new| new.row.bytes());
        let parts: usize = self.rows.iter().filter(|_| !self.is_staged).filter_map(large).sum();
        has + parts as u64
    }

    /// Writes the document's list. `conflicts`: adds a write conflict range, so that concurrent writers abort.
    pub(super) fn write(&self, trx: &Transaction, keys: &ViewKeys, conflicts: bool) -> Result<()> {
        if self.rows.is_empty() && self.refused_more() == 0 && self.set_aside_more() == 0 {
            return Ok(());
        }
        match (self.aside.was, self.aside.is) {
            (false, true) => Quiet(trx).set(&keys.set_aside(self.id), self.aside.reason.as_bytes())?,
            (true, false) => Quiet(trx).clear(&keys.set_aside(self.id))?,
            _ => {}
        }
        let set = |key: &[u8], rows: &[proto::ViewRowOf], parts: u64| {
            let (refused, set_aside) = (parts > 0 && self.is_refused, parts > 0 && self.aside.is);
            let has = proto::ViewRowsOf { rows: rows.to_vec(), parts: parts as u32, refused, set_aside };
            Quiet(trx).set(key, &has.encode_to_vec())
        };
        for (part, rows) in self.has.parts.iter().filter(|(part, _)| **part > 0) {
            let key = keys.of_document_part(self.id, *part);
            if rows.is_empty() { Quiet(trx).clear(&key)? } else { set(&key, rows, 0)? }
        }
        let first = keys.of_document(self.id);
        if conflicts {
            trx.add_conflict_range(&first, &[&first[..], &[0]].concat(), ConflictRangeType::Write)?;
        }
        match (self.has.parts.get(&0), self.has.last) {
            (_, None) if self.is_refused || self.aside.is => set(&first, &[], 1),
            (_, None) => Quiet(trx).clear(&first),
            (Some(rows), Some(last)) => set(&first, rows, last + 1),
            (None, Some(_)) => Ok(()),
        }
    }
}

fn place(row: &proto::ViewRowOf) -> RowIdentity<'_> {
    (row.tree, row.spelling, row.ordinal, &row.element)
}
