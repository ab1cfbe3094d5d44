//! Checks a group of views: compares rows, documents' lists and nodes with each other, a part in each transaction, so
//! that it may run beside the follower.

use std::collections::HashMap;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_clock::Clock;
use flatbed_collate::reduce::Reducer;
use flatbed_databases::limits::Limit;
use flatbed_flatten::json::Value;
use flatbed_rowtree::{Parts, Tree};
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::{KeyRange, Keys, RowKey, ViewKeys, ViewPart};
use flatbed_store::proto;
use flatbed_store::transaction::Transaction;
use futures_util::future::{BoxFuture, join_all};
use prost::Message;
use tokio::time::Instant;

use crate::view::asking::ConcurrentReaders;
use crate::view::build::FOLLOWED;
use crate::view::documents::{StoredRows, read_stored_rows};
use crate::view::group::{Reduction, ViewGroup, shape_of};
use crate::view::parts::{begin_texts, decode, texts_bytes};
use crate::view::prepare::{hash_of, value_of};
use crate::view::stored::{StoredTree, TreeRow};
use crate::view::summary::{ReducedValue, Summary};
use crate::view::undo::GroupReads;
use crate::view::written::{ReduceAsk, ReduceFailure, WrittenReduces, WrittenResult};

/// The time limit for running JavaScript reduces again in a transaction, which ends after five seconds.
const WRITTEN_FOR: Duration = Duration::from_secs(2);

/// Numbers that differ by less, relative to their size, count as equal: sums depend on the grouping of rows.
const SAME_NUMBER: f64 = 1e-6;

/// The most keys of a page.
pub const PAGE_KEYS: usize = 200;

/// Once a transaction holds this many stored rows of documents, it reads those of no further document. One document may
/// have more.
const SEEN_ROWS_MAX: Limit<usize> = Limit::new(50_000, 100);

#[derive(Debug, Default)]
pub struct CheckPage {
    pub keys: u64,
    pub violations: Vec<String>,
    pub refused: i64,
    /// The number of documents set aside, because a function exceeded its bound on them.
    pub set_aside: i64,
    /// The key to continue at; `None`: the check is complete.
    pub next: Option<Vec<u8>>,
}

/// Checks the keys from `begin` on, which is empty first: at most `page_keys`, but two at least.
///
/// A row must be in its document's list with this content, in order, and sorted by its key. The rows of a document's
/// list must exist. A node must begin where one begins, and equal the summary of its rows or nodes. Results of
/// JavaScript reduces are compared if they run here, give a result and take no longer than [`WRITTEN_FOR`] together.
/// Parts must have a row or a mark. With undos, nodes must equal the state before the large document that is being
/// changed.
#[boxed]
pub async fn check(
    trx: &Transaction,
    keys: &Keys,
    group: &ViewGroup,
    written: Option<&dyn WrittenReduces>,
    (begin, page_keys): (Vec<u8>, usize),
) -> Result<CheckPage> {
    let view = keys.view(group.number());
    let all = keys.index(group.number());
    let range = KeyRange { begin: if begin.is_empty() { all.begin } else { begin }, end: all.end };
    let (progress, page) =
        futures_util::future::try_join(trx.get(&view.progress(), true), trx.range(&range, true).page(page_keys.max(2)))
            .await?;
    let progress = progress.map(|bytes| proto::ViewProgress::decode(&*bytes)).transpose()?;
    let mut checked = CheckPage { keys: page.len() as u64, ..CheckPage::default() };
    let Some(progress) = progress else {
        if !page.is_empty() {
            checked.violations.push(format!("group {} has keys and no progress", group.number()));
        }
        return Ok(checked);
    };
    let reads = GroupReads { trx, keys: &view, is_before: false };
    let (progress, began) = (&progress, trx.clock().now());
    let check = Check { reads, trx, keys: &view, group, written, began, progress, trees: &progress.trees };
    let mut seen = VisitedRows::default();
    let found = page.to_vec();
    let mut looked_at = 0;
    for (key, value) in &found {
        // The last row is visited again by the next call, so each call visits at least two keys.
        if seen.rows > SEEN_ROWS_MAX.get() && looked_at >= 2 && seen.lacks(&view, key) {
            break;
        }
        looked_at += 1;
        let wrong = match check.key(key, value, &mut seen).await {
            Err(Error::Corrupt(wrong)) => Some(wrong),
            wrong => wrong?,
        };
        if let Some(wrong) = wrong {
            let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
            checked.violations.push(format!("key {key} of group {}: {wrong}", group.number()));
        }
        if matches!(view.split(key), Ok(ViewPart::OfDocument(_, 0))) {
            let had = proto::ViewRowsOf::decode(&**value).unwrap_or_default();
            checked.refused += i64::from(had.refused);
            checked.set_aside += i64::from(had.set_aside);
        }
    }
    checked.keys = looked_at as u64;
    let last = found.get(..looked_at).and_then(<[_]>::last);
    if let Some((last, _)) = last.filter(|_| looked_at < found.len() || !page.is_all()) {
        // The next call visits a row again, to compare it with the row behind it.
        let is_row = looked_at > 1 && matches!(view.split(last), Ok(ViewPart::Row(..)));
        checked.keys -= u64::from(is_row);
        checked.next = Some(if is_row { last.clone() } else { [&last[..], &[0]].concat() });
    }
    Ok(checked)
}

struct Check<'a> {
    reads: GroupReads<'a>,
    trx: &'a Transaction,
    keys: &'a ViewKeys,
    group: &'a ViewGroup,
    written: Option<&'a dyn WrittenReduces>,
    began: Instant,
    progress: &'a proto::ViewProgress,
    trees: &'a [proto::ViewTree],
}

/// Runs JavaScript reduces as long as the transaction has time for them; missing results are not compared.
struct TimedReduces<'a> {
    written: &'a dyn WrittenReduces,
    clock: &'a Clock,
    until: Instant,
}

impl WrittenReduces for TimedReduces<'_> {
    fn reduce<'a>(&'a self, asks: &'a [ReduceAsk]) -> BoxFuture<'a, Result<Vec<Vec<WrittenResult>>>> {
        Box::pin(async move {
            if let Ok(Ok(results)) = self.clock.timeout_at(self.until, self.written.reduce(asks)).await {
                return Ok(results);
            }
            let failure =
                || ReduceFailure { error: "timeout".to_owned(), reason: "the time limit was reached".to_owned() };
            Ok(asks.iter().map(|ask| vec![Err(failure()); ask.functions.len()]).collect())
        })
    }
}

/// Tree, key, and the view's key as JSON.
type PreviousRow = Option<(u64, RowKey, Vec<u8>)>;

#[derive(Default)]
struct VisitedRows {
    previous: PreviousRow,
    /// The lists of documents, by id, and by tree and row.
    had: HashMap<String, HashMap<(u64, RowKey), proto::ViewRowOf>>,
    rows: usize,
}

impl VisitedRows {
    fn lacks(&self, keys: &ViewKeys, key: &[u8]) -> bool {
        matches!(keys.split(key), Ok(ViewPart::Row(_, row)) if !self.had.contains_key(&row.id))
    }
}

impl Check<'_> {
    async fn key(&self, key: &[u8], value: &[u8], seen: &mut VisitedRows) -> Result<Option<String>> {
        Ok(match self.keys.split(key)? {
            ViewPart::Progress => self.roots().await?,
            // They are removed before nodes are built.
            ViewPart::Later(_) => (self.progress.phase == FOLLOWED).then(|| "a document was not entered".to_owned()),
            ViewPart::Refused | ViewPart::SetAsideCount => None,
            ViewPart::Leased | ViewPart::Lease(_) | ViewPart::LeasePlace(_) | ViewPart::SectionBeat(_) => None,
            ViewPart::Section(_) => self.section(value).await?,
            ViewPart::SetAside(id) => {
                let had = read_stored_rows(self.trx, self.keys, std::iter::once(&*id), true, None).await?;
                (!had.iter().any(|had| had.is_set_aside)).then(|| format!("{id:?} has a reason, but is not set aside"))
            }
            ViewPart::Row(tree, row) => {
                let (wrong, text) = self.row(tree, &row, value, seen).await?;
                let mut wrong = wrong.or_else(|| self.order(seen.previous.as_ref(), tree, &row, &text));
                if wrong.is_none() && seen.previous.as_ref().is_none_or(|(before, ..)| *before != tree) {
                    wrong = self.has_node(tree as usize, &row).await?;
                }
                seen.previous = Some((tree, row, text));
                wrong
            }
            ViewPart::OfDocument(id, 0) => self.document(&id).await?,
            ViewPart::OfDocument(id, part) => {
                let had = read_stored_rows(self.trx, self.keys, std::iter::once(&*id), true, None).await?;
                (!had.iter().any(|had| had.parts.contains_key(&part))).then(|| format!("{id:?} has no part {part}"))
            }
            ViewPart::Node(tree, level, from) => self.node(tree, level, &from, value).await?,
            ViewPart::Part(id, blob_id, _) => {
                let had = read_stored_rows(self.trx, self.keys, std::iter::once(&*id), true, None).await?;
                let is_known = had.iter().flat_map(StoredRows::rows).any(|row| row.blob_id == blob_id)
                    || self.trx.get(&self.keys.staged(&id, &blob_id), true).await?.is_some();
                (!is_known).then(|| format!("no row of {id:?} has it"))
            }
            ViewPart::Undo(undone) => self.undo(&self.keys.undone(key), &undone, value).await?,
            ViewPart::Staged(..) => {
                (!self.progress.untidy).then(|| "it is a mark, and the progress says that none exist".to_owned())
            }
        })
    }

    /// Checks that nodes are still to be built, and that the section's first row exists.
    async fn section(&self, value: &[u8]) -> Result<Option<String>> {
        if self.progress.phase == FOLLOWED {
            return Ok(Some("a section of nodes was not built".to_owned()));
        }
        let proto::ViewSection { tree, begin, .. } = proto::ViewSection::decode(value)?;
        let row = self.keys.row(tree as usize, &begin);
        let is_missing = !begin.is_empty() && self.trx.get(&row, true).await?.is_none();
        Ok(is_missing.then(|| "the first row of a section is missing".to_owned()))
    }

    async fn undo(&self, key: &[u8], undone: &ViewPart, undo: &[u8]) -> Result<Option<String>> {
        let Some(large) = self.progress.large.as_ref().filter(|large| !large.trees.is_empty()) else {
            return Ok(Some("no document is being changed".to_owned()));
        };
        proto::ViewUndo::decode(undo)?;
        let reads = GroupReads { is_before: true, ..self.reads };
        let before = Check { reads, trees: &large.trees, ..*self };
        let Some(value) = reads.get(key).await? else { return Ok(None) };
        match undone {
            ViewPart::Row(_, row) if row.id != large.document => Ok(Some("another document is changed".to_owned())),
            ViewPart::Row(tree, row) => {
                let (key, value) = begin_texts(self.trx, self.keys, &row.id, decode(&value)?).await?;
                let wrong = self.sorts(*tree, row, (&key, &value));
                Ok(if wrong.is_some() { wrong } else { before.has_node(*tree as usize, row).await? })
            }
            ViewPart::Node(tree, level, from) => before.node(*tree, *level, from, &value).await,
            _ => Ok(Some("it is invisible to readers".to_owned())),
        }
    }

    /// Checks that the trees are those of the group, and have a root if they have a height.
    async fn roots(&self) -> Result<Option<String>> {
        if self.progress.trees.len() != self.group.trees().len() {
            return Ok(Some("its trees are not those of the group".to_owned()));
        }
        for tree in 0..self.group.trees().len() {
            let (_, height) = shape_of(self.trees, tree)?;
            let root = self.trx.get(&self.keys.node(tree, height.max(1), &[]), true).await?;
            if self.progress.phase == FOLLOWED && root.is_some() != (height > 0) {
                return Ok(Some(format!("tree {tree} of height {height} has a root: {}", root.is_some())));
            }
        }
        Ok(None)
    }

    async fn has_node(&self, tree: usize, row: &RowKey) -> Result<Option<String>> {
        if self.progress.phase != FOLLOWED {
            return Ok(None);
        }
        let range = self.keys.nodes(tree, 1, &[], Some(&[&row.encode()[..], &[0]].concat()));
        let page = self.reads.range(&range, 1, true).await?;
        Ok(page.is_empty().then(|| "no node covers it".to_owned()))
    }

    async fn row(
        &self,
        tree: u64,
        row: &RowKey,
        value: &[u8],
        seen: &mut VisitedRows,
    ) -> Result<(Option<String>, Vec<u8>)> {
        if tree >= self.group.trees().len() as u64 {
            return Ok((Some("there is no such tree".to_owned()), Vec::new()));
        }
        if !seen.had.contains_key(&row.id) {
            let had = read_stored_rows(self.trx, self.keys, std::iter::once(&*row.id), true, None).await?;
            let rows = had.iter().flat_map(StoredRows::rows).cloned();
            let rows: HashMap<_, _> =
                rows.map(|known| ((u64::from(known.tree), self.group.row_key(&row.id, &known)), known)).collect();
            seen.rows += rows.len();
            seen.had.insert(row.id.clone(), rows);
        }
        let found = decode(value)?;
        let expires_at_ms = found.expires_at_ms;
        let (key, value) = begin_texts(self.trx, self.keys, &row.id, found).await?;
        let known = seen.had.get(&row.id).and_then(|rows| rows.get(&(tree, row.clone())));
        let hash = hash_of(&key, &value);
        let wrong = match known {
            None => Some(format!("document {:?} does not know it", row.id)),
            Some(known) if known.hash != hash || known.bytes != (key.len() + value.len()) as u64 => {
                Some(format!("document {:?} has another", row.id))
            }
            Some(known) if known.expires_at_ms != expires_at_ms => {
                Some(format!("document {:?} has another expiry", row.id))
            }
            Some(known) if !known.value.is_empty() && known.value != value => {
                Some(format!("document {:?} has another value", row.id))
            }
            Some(_) => self.sorts(tree, row, (&key, &value)),
        };
        Ok((wrong, key))
    }

    /// Checks that a row's key and value are JSON, and that its key sorts at its position.
    fn sorts(&self, tree: u64, row: &RowKey, (key, value): (&[u8], &[u8])) -> Option<String> {
        let (Some(key), Some(_)) = (value_of(key), value_of(value)) else { return Some("it is not JSON".to_owned()) };
        let (form, label) = flatbed_collate::split(&row.element);
        let sorted = self.group.collation(tree as usize).sort_key(&key);
        let fits = form == sorted.bytes() && sorted.is_cut() != label.is_empty();
        (!fits).then(|| "its key sorts elsewhere".to_owned())
    }

    /// Checks the order of rows with long keys: labels do not follow from keys.
    fn order(&self, previous: Option<&(u64, RowKey, Vec<u8>)>, tree: u64, row: &RowKey, key: &[u8]) -> Option<String> {
        let (before_tree, before, before_key) = previous?;
        let (form, label) = flatbed_collate::split(&row.element);
        if *before_tree != tree
            || before.partition != row.partition
            || label.is_empty()
            || flatbed_collate::split(&before.element).0 != form
        {
            return None;
        }
        let compared = self.group.collation(tree as usize).compare(&value_of(before_key)?, &value_of(key)?);
        (compared != before.element.cmp(&row.element)).then(|| "its label is not in the order of the keys".to_owned())
    }

    async fn document(&self, id: &str) -> Result<Option<String>> {
        let had = read_stored_rows(self.trx, self.keys, std::iter::once(id), true, None).await?;
        if had.iter().any(|had| had.is_set_aside) && self.trx.get(&self.keys.set_aside(id), true).await?.is_none() {
            return Ok(Some(format!("{id:?} is set aside without a reason")));
        }
        for row in had.iter().flat_map(StoredRows::rows).collect::<Vec<_>>().chunks(500) {
            let reads = row.iter().map(|row| {
                self.trx.get(&self.keys.row(row.tree as usize, &self.group.row_key(id, row).encode()), true)
            });
            for (row, found) in row.iter().zip(join_all(reads).await) {
                let Some(found) = found? else { return Ok(Some(format!("a row of {id:?} is missing"))) };
                let found = decode(&found)?;
                if found.blob_id != row.blob_id || texts_bytes(&found) != row.bytes {
                    return Ok(Some(format!("a row of {id:?} is another one")));
                }
            }
        }
        Ok(None)
    }

    async fn node(&self, tree: u64, level: u64, from: &[u8], value: &[u8]) -> Result<Option<String>> {
        let (Ok(place), Ok(at)) = (usize::try_from(tree), u8::try_from(level)) else {
            return Ok(Some("there is no such level".to_owned()));
        };
        if place >= self.group.trees().len() {
            return Ok(Some("there is no such tree".to_owned()));
        }
        let until = self.began + WRITTEN_FOR;
        let bounded = self.written.map(|written| TimedReduces { written, clock: self.trx.clock(), until });
        let written = bounded.as_ref().map(|written| written as &dyn WrittenReduces);
        let stored = StoredTree {
            reads: self.reads,
            group: self.group,
            tree: place,
            written,
            known: None,
            asking: ConcurrentReaders::default(),
        };
        let found = Summary::decode(value)?;
        if at == 0 {
            return self.alone(&stored, from, &found).await;
        }
        if self.progress.phase != FOLLOWED {
            return Ok(None);
        }
        let (shape, height) = shape_of(self.trees, place)?;
        if at > height {
            return Ok(Some(format!("it is above the root, at {height}")));
        }
        // Up to the next node of its level.
        let after = |key: &[u8]| [key, &[0]].concat();
        let rest = flatbed_rowtree::KeyRange { begin: after(from), end: None };
        let next = stored.nodes(at, &rest, 1, false).await?.entries.into_iter().next().map(|(key, _)| key);
        if at == height && (!from.is_empty() || next.is_some()) {
            return Ok(Some("the root is not alone".to_owned()));
        }
        let mut below = flatbed_rowtree::KeyRange { begin: from.to_vec(), end: next };
        let (mut parts, mut is_first): (Vec<Summary>, bool) = (Vec::new(), true);
        loop {
            let (page, summaries, more) = if at == 1 {
                let page = stored.rows(&below, 1_000, false).await?;
                let keys: Vec<_> =
                    page.entries.iter().map(|(key, row)| (key.clone(), shape.level(key, row.bytes as usize))).collect();
                let made = if keys.is_empty() {
                    Vec::new()
                } else {
                    stored.summaries(vec![Parts::Rows(page.entries)]).await?
                };
                (keys, made, page.more)
            } else {
                let page = stored.nodes(at - 1, &below, 1_000, false).await?;
                let level = |key: &[u8]| if key.is_empty() { u8::MAX } else { shape.node_level(key) };
                let keys = page.entries.iter().map(|(key, _)| (key.clone(), level(key))).collect();
                (keys, page.entries.into_iter().map(|(_, summary)| summary).collect(), page.more)
            };
            for (key, level) in &page {
                let begins = *level >= at;
                let must = is_first && !from.is_empty();
                if is_first && !from.is_empty() && *key != from || begins != must && !(is_first && from.is_empty()) {
                    return Ok(Some(format!("nodes of level {at} do not begin where they should")));
                }
                is_first = false;
            }
            parts.extend(summaries);
            match page.last() {
                Some((last, _)) if more => below.begin = after(last),
                _ => break,
            }
        }
        if parts.is_empty() {
            return Ok(Some("no rows are below it".to_owned()));
        }
        let made = stored.summaries(vec![Parts::Summaries(parts)]).await?;
        if at == height {
            let told = self.trees.get(place).map(|tree| (tree.rows, tree.bytes));
            if told != Some((found.rows, found.bytes)) {
                return Ok(Some(format!("the progress says {told:?} of {} rows", found.rows)));
            }
        }
        Ok(made.iter().find_map(|made| self.differ(place, &found, made)))
    }

    async fn alone(&self, stored: &StoredTree<'_>, from: &[u8], found: &Summary) -> Result<Option<String>> {
        let row = self.reads.get(&self.keys.row(stored.tree, from)).await?;
        let Some(row) = row.map(|row| decode(&row)).transpose()?.filter(|row| !row.blob_id.is_empty()) else {
            return Ok(Some("its row is missing, or not large".to_owned()));
        };
        let (key, value) = begin_texts(self.trx, self.keys, &RowKey::decode(from)?.id, row).await?;
        let bytes = (key.len() + value.len()) as u64;
        let made = stored.alone(vec![(from.to_vec(), TreeRow { key, value, bytes, alone: None })]).await?;
        Ok(made.iter().find_map(|made| self.differ(stored.tree, found, made)))
    }

    fn differ(&self, tree: usize, found: &Summary, made: &Summary) -> Option<String> {
        if (found.rows, found.bytes) != (made.rows, made.bytes) {
            return Some(format!(
                "it counts {} rows of {} bytes, of {} of {}",
                found.rows, found.bytes, made.rows, made.bytes
            ));
        }
        let reduces = self.group.reduces(tree);
        if found.states.len() != reduces.len() {
            return Some("a reduction is missing".to_owned());
        }
        for ((reduce, found), made) in reduces.iter().zip(&found.states).zip(&made.states) {
            let is_right = match (reduce, found, made) {
                (Reduction::BuiltIn(reducer), ReducedValue::BuiltIn(found), ReducedValue::BuiltIn(made)) => {
                    // Failures of size or range may depend on the grouping.
                    let depends = |reducer: &Reducer| !matches!(reducer, Reducer::Count | Reducer::ApproxCountDistinct);
                    found == made || depends(reducer) && found.finish() == made.finish()
                }
                (Reduction::Written(_), ReducedValue::Written(Ok(found)), ReducedValue::Written(Ok(made))) => {
                    is_same(found, made)
                }
                // No result is given if functions do not run, and sometimes if they are slow.
                (Reduction::Written(_), ReducedValue::Written(_), _) => true,
                // It did not fit beside the others, which depends on the grouping, too.
                (Reduction::BuiltIn(_), ReducedValue::Written(Err(_)), _) => true,
                (Reduction::BuiltIn(_), _, ReducedValue::Written(Err(_))) => true,
                _ => false,
            };
            if !is_right {
                return Some(format!("{reduce:?} is {found:?}, made anew it is {made:?}"));
            }
        }
        None
    }
}

/// Returns whether two results of a JavaScript reduce are equal up to the rounding of sums.
fn is_same(found: &str, made: &str) -> bool {
    fn is_same(found: &Value<'_>, made: &Value<'_>) -> bool {
        match (found, made) {
            (Value::Array(found), Value::Array(made)) => {
                found.len() == made.len() && found.iter().zip(made).all(|(found, made)| is_same(found, made))
            }
            (Value::Object(found), Value::Object(made)) => {
                found.len() == made.len()
                    && found.iter().zip(made).all(|(found, made)| found.0 == made.0 && is_same(&found.1, &made.1))
            }
            (Value::Number(found), Value::Number(made)) => {
                let as_double = |number: &str| number.parse::<f64>().unwrap_or(f64::NAN);
                let (found_double, made_double) = (as_double(found), as_double(made));
                let near = SAME_NUMBER * found_double.abs().max(made_double.abs());
                found == made || (found_double - made_double).abs() <= near
            }
            (found, made) => found == made,
        }
    }
    let values = (value_of(found.as_bytes()), value_of(made.as_bytes()));
    matches!(values, (Some(found), Some(made)) if is_same(&found, &made))
}

pub async fn all_rows(reads: GroupReads<'_>, tree: usize) -> Result<Vec<(String, String, String)>> {
    let GroupReads { trx, keys, .. } = reads;
    let mut rows = Vec::new();
    let mut range = keys.rows(tree, &[], None);
    loop {
        let page = reads.range(&range, 1_000, false).await?;
        let id = |key: &[u8]| RowKey::decode(key.get(keys.row_prefix(tree)..).unwrap_or_default()).map(|row| row.id);
        let texts = page.iter().map(|(key, value)| Ok(begin_texts(trx, keys, &id(key)?, decode(value)?)));
        let texts = texts.collect::<Result<Vec<_>>>()?;
        let texts = futures_util::future::try_join_all(texts).await?;
        for ((row, _), (key, value)) in page.iter().zip(texts) {
            let id = id(row)?;
            let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
            rows.push((text(key), id, text(value)));
        }
        match page.len().checked_sub(1).and_then(|last| page.get(last)) {
            Some((last, _)) if page.more() => range.begin = [last, &[0]].concat(),
            _ => return Ok(rows),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_same;

    #[test]
    fn results_of_written_reduces_may_differ_by_how_numbers_were_added() {
        for (found, made) in [
            ("0.6", "0.6000000000000001"),
            ("[1,{\"a\":3e10}]", "[1,{\"a\":30000000001}]"),
            ("null", "null"),
            ("0", "-0"),
            ("\"a\"", "\"\\u0061\""),
        ] {
            assert!(is_same(found, made), "{found} {made}");
        }
        for (found, made) in [
            ("1", "1.00001"),
            ("0", "1e-300"),
            ("[1]", "[1,1]"),
            ("{\"a\":1}", "{\"b\":1}"),
            ("{\"a\":1}", "{\"a\":1,\"b\":1}"),
            ("1", "\"1\""),
            ("null", "0"),
        ] {
            assert!(!is_same(found, made), "{found} {made}");
        }
    }
}
