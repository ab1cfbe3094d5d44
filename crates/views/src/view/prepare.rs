//! Prepares a document's rows before the transaction that writes them.

use std::cell::Cell;

use flatbed_collate::{SortKey, Tail, arrange};
use flatbed_databases::document::edit::partition_of;
use flatbed_flatten::json::{DEPTH_MAX_LIMIT, Limits, Value, parse, tree_bytes};
use flatbed_store::proto;
use flatbed_store::view_functions::EmittedRows;
use sha2::{Digest, Sha256};

use crate::view::documents::StoredRows;
use crate::view::group::ViewGroup;
use crate::view::parts::INLINE_BYTES_MAX;

/// A value of at most this many bytes is stored with the document, and known without its row.
const KNOWN_VALUE_BYTES_MAX: usize = 24;

/// The memory of an emitted row beside its key and value, in bytes.
const EMITTED_ROW_BYTES: usize = 400;

/// The memory of a prepared row beside its key, value and sort key, in bytes.
const PREPARED_ROW_BYTES: usize = 300;

/// The JSON trees of a view's rows are not counted if their texts have at most this many bytes.
const SMALL_TEXT_BYTES: usize = 1 << 20;

/// The rows of a document are prepared on a thread of the runtime if their texts have at most this many bytes.
const QUICK_TEXT_BYTES: usize = 16 << 10;

/// The most memory of the JSON trees that are alive while the rows of one view are sorted: the trees of all keys and of
/// the values of one key. A tree takes some four times the bytes of its text, at worst 40 times. Also the bound of the
/// tree of one value.
const TREES_BYTES_MAX: usize = 256 << 20;

#[derive(Debug, Clone, Default)]
pub struct EmittedDocument {
    pub id: String,
    /// For each tree of the group, keys and values as JSON texts. A document that is deleted or gone has none.
    pub trees: Vec<EmittedRows>,
    /// True if it emitted more than a bound allows for one tree.
    pub is_too_much: bool,
    /// When the document expires, in milliseconds of Unix time; 0: never.
    pub ends_at_ms: u64,
    /// The reason why the document is set aside, without rows: a function exceeded its bound of time or memory on it.
    pub set_aside: Option<String>,
}

impl EmittedDocument {
    /// Returns the memory of the rows until they are prepared, in bytes, without their JSON trees.
    pub fn memory_bytes(&self) -> usize {
        self.trees.iter().map(|rows| rows.len() * EMITTED_ROW_BYTES + 3 * rows.bytes()).sum()
    }

    /// Returns whether its rows are parsed and sorted within about a millisecond.
    pub fn is_quick(&self) -> bool {
        self.trees.iter().map(EmittedRows::bytes).sum::<usize>() <= QUICK_TEXT_BYTES
    }

    /// Returns an upper bound of the JSON trees of one view's rows, in bytes; 0 if all texts are small.
    pub fn json_bytes(&self) -> usize {
        let large = self.trees.iter().filter(|rows| rows.bytes() > SMALL_TEXT_BYTES);
        large.map(EmittedRows::json_bytes).max().unwrap_or(0)
    }
}

#[derive(Debug, Clone)]
pub struct PreparedDocument {
    pub(super) id: String,
    /// By tree, and in order.
    pub(super) rows: Vec<PreparedRow>,
    is_refused: bool,
    set_aside: Option<String>,
}

#[derive(Debug, Clone)]
pub(super) struct PreparedRow {
    pub tree: usize,
    pub sort_key: SortKey,
    pub tail: Tail,
    pub key: String,
    pub value: String,
    pub hash: [u8; 16],
    /// When its document expires; 0: never.
    pub ends_at_ms: u64,
}

impl PreparedRow {
    pub(super) fn bytes(&self) -> usize {
        self.key.len() + self.value.len()
    }

    /// Returns the row's record in the document's list. `element`: the sort key with its label.
    pub(super) fn message(&self, id: &str, element: Vec<u8>) -> proto::ViewRowOf {
        proto::ViewRowOf {
            tree: self.tree as u32,
            element,
            spelling: self.tail.spelling,
            ordinal: self.tail.ordinal,
            bytes: self.bytes() as u64,
            hash: self.hash.to_vec(),
            value: if self.value.len() <= KNOWN_VALUE_BYTES_MAX { self.value.clone().into_bytes() } else { Vec::new() },
            blob_id: self.blob_id(id).unwrap_or_default(),
            expires_at_ms: self.ends_at_ms,
        }
    }

    /// Returns the id of key and value in parts, if they are not inline. It is derived from document, position and
    /// content.
    pub(super) fn blob_id(&self, id: &str) -> Option<Vec<u8>> {
        if self.bytes() <= INLINE_BYTES_MAX {
            return None;
        }
        let Tail { spelling, ordinal } = self.tail;
        let mut hash = Sha256::new_with_prefix((self.tree as u64).to_be_bytes());
        hash.update(spelling.to_be_bytes());
        hash.update(ordinal.to_be_bytes());
        hash.update(self.hash);
        hash.update(id);
        Some(cut(hash))
    }
}

fn cut(hash: Sha256) -> Vec<u8> {
    hash.finalize().iter().take(16).copied().collect()
}

pub(super) fn hash_of(key: &[u8], value: &[u8]) -> [u8; 16] {
    let mut hash = Sha256::new_with_prefix((key.len() as u64).to_be_bytes());
    hash.update(key);
    hash.update(value);
    let mut cut = [0; 16];
    cut.iter_mut().zip(hash.finalize()).for_each(|(to, from)| *to = from);
    cut
}

pub(super) fn value_of(text: &[u8]) -> Option<Value<'_>> {
    parse(text, &Limits { depth_max: DEPTH_MAX_LIMIT }).ok()
}

struct TreeBudget {
    /// In bytes; [`usize::MAX`]: unbounded, and not counted.
    bytes_max: usize,
    left: Cell<usize>,
}

impl TreeBudget {
    /// Parses a text. `None`: it is not JSON, or its tree exceeds what is left of the budget.
    fn value_of<'t>(&self, text: &'t str) -> Option<Value<'t>> {
        if self.bytes_max < usize::MAX {
            self.left.set(self.left.get().checked_sub(tree_bytes(text.as_bytes()))?);
        }
        value_of(text.as_bytes())
    }

    fn fits(&self, text: &str) -> bool {
        let fits = self.bytes_max == usize::MAX || tree_bytes(text.as_bytes()) <= self.bytes_max;
        fits && value_of(text.as_bytes()).is_some()
    }
}

/// Makes sort keys, order and hashes of the emitted rows. A document whose rows are too many, too large or no JSON
/// becomes one without rows: [`PreparedDocument::is_refused`].
pub fn prepare(group: &ViewGroup, emitted: EmittedDocument) -> PreparedDocument {
    let is_small = emitted.trees.iter().all(|rows| rows.bytes() <= SMALL_TEXT_BYTES);
    prepare_within(group, emitted, if is_small { usize::MAX } else { TREES_BYTES_MAX })
}

/// `trees_bytes_max`: the bound of the JSON trees of one view.
fn prepare_within(group: &ViewGroup, emitted: EmittedDocument, trees_bytes_max: usize) -> PreparedDocument {
    let EmittedDocument { id, trees, is_too_much, ends_at_ms, set_aside } = emitted;
    let count: usize = trees.iter().map(EmittedRows::len).sum();
    let without_rows = |id| PreparedDocument { id, rows: Vec::new(), is_refused: false, set_aside: None };
    let refused = |id| PreparedDocument { is_refused: true, ..without_rows(id) };
    let bounds = group.bounds().document;
    if is_too_much || count > bounds.rows {
        return refused(id);
    }
    if set_aside.is_some() {
        return PreparedDocument { set_aside, ..without_rows(id) };
    }
    if group.is_partitioned() && partition_of(&id).is_none() {
        // A design document is in no partition, so no query reads it.
        return without_rows(id);
    }
    let (mut rows, mut bytes) = (Vec::with_capacity(count), 0);
    for (tree, emitted) in trees.into_iter().enumerate().take(group.trees().len()) {
        let texts: Vec<(&str, &str)> = emitted.iter().collect();
        let json = TreeBudget { bytes_max: trees_bytes_max, left: Cell::new(trees_bytes_max) };
        let mut keys = Vec::with_capacity(texts.len());
        for (key, value) in &texts {
            match json.value_of(key) {
                Some(tree) if key.len() + value.len() <= bounds.row_bytes && json.fits(value) => keys.push(tree),
                _ => return refused(id),
            }
        }
        // Each value is JSON, so only the budget can make this `None`.
        let is_over_budget = Cell::new(false);
        let left_by_keys = json.left.get();
        let values = |rows: &[usize]| {
            // The values of the previous key are dropped.
            json.left.set(left_by_keys);
            let value = |at: &usize| texts.get(*at).and_then(|(_, value)| json.value_of(value));
            let values: Option<Vec<_>> = rows.iter().map(value).collect();
            values.unwrap_or_else(|| {
                is_over_budget.set(true);
                Vec::new()
            })
        };
        let arranged = arrange(group.collation(tree), &keys, values);
        if is_over_budget.get() {
            return refused(id);
        }
        for row in arranged {
            let Some((key, value)) = texts.get(row.at) else { continue };
            let (key, value) = ((*key).to_owned(), (*value).to_owned());
            let hash = hash_of(key.as_bytes(), value.as_bytes());
            let row = PreparedRow { tree, sort_key: row.sort_key, tail: row.tail, key, value, hash, ends_at_ms };
            bytes += row_cost(row.sort_key.bytes().len() + id.len(), row.bytes());
            rows.push(row);
        }
    }
    if bytes > bounds.bytes {
        return refused(id);
    }
    PreparedDocument { rows, ..without_rows(id) }
}

pub(super) fn row_cost(key_bytes: usize, bytes: usize) -> u64 {
    (2 * key_bytes + bytes + 120) as u64
}

impl PreparedDocument {
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the memory of the rows until they are written, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let of_row = |row: &PreparedRow| {
            // Reduces copy a large row.
            let copies = if row.bytes() > INLINE_BYTES_MAX { 2 } else { 1 };
            PREPARED_ROW_BYTES + copies * row.bytes() + row.sort_key.bytes().len()
        };
        self.rows.iter().map(of_row).sum()
    }

    pub fn has_long_keys(&self) -> bool {
        self.rows.iter().any(|row| row.sort_key.is_cut())
    }

    /// Returns whether the document's stored rows are exactly these, whatever labels their keys have.
    pub fn has_just(&self, had: &StoredRows) -> bool {
        let mut known: Vec<_> =
            had.rows().map(|row| (row.tree as usize, row.spelling, row.ordinal, row.hash.as_slice())).collect();
        let mut made: Vec<_> =
            self.rows.iter().map(|row| (row.tree, row.tail.spelling, row.tail.ordinal, &row.hash[..])).collect();
        known.sort_unstable();
        made.sort_unstable();
        known == made
    }

    /// Returns the reason why a function exceeded its bound on it, if one did.
    pub fn set_aside(&self) -> Option<&str> {
        self.set_aside.as_deref()
    }

    /// Returns whether it has no rows because they were too many, too large or no JSON.
    pub fn is_refused(&self) -> bool {
        self.is_refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::group::ViewTree;

    fn of(rows: impl Iterator<Item = (String, String)>) -> PreparedDocument {
        let mut emitted = EmittedRows::default();
        rows.for_each(|(key, value)| emitted.push(&key, &value));
        let trees = vec![ViewTree { raw_collation: false, reduces: Vec::new() }];
        let group = ViewGroup::new(1, false, trees).unwrap();
        prepare_within(
            &group,
            EmittedDocument { id: "d".to_owned(), trees: vec![emitted], ..EmittedDocument::default() },
            2 << 20,
        )
    }

    /// Returns a JSON text of 3,001 bytes whose tree takes many times as much.
    fn objects() -> String {
        let all = ["{}"; 1_000].join(",");
        format!("[{all}]")
    }

    #[test]
    fn trees_of_keys_and_of_values_of_one_key_are_bounded() {
        let of_keys = |count: usize| of((0..count).map(|at| (objects(), at.to_string())));
        // `each`: the number of rows of a key.
        let of_values = |count: usize, each: usize| of((0..count).map(|at| ((at / each).to_string(), objects())));
        // Values of different keys are not alive at the same time.
        for each in [1, 2, 5] {
            let prepared = of_values(100, each);
            assert_eq!((prepared.rows.len(), prepared.is_refused()), (100, false), "{each} rows of a key");
        }
        assert!(of_values(100, 100).is_refused());
        assert!(of_keys(100).is_refused());
        assert_eq!(of_values(5, 5).rows.len(), 5);
        assert_eq!(of_keys(5).rows.len(), 5);
    }

    #[test]
    fn what_is_no_json_is_refused() {
        assert!(of(std::iter::once(("1".to_owned(), "{".to_owned()))).is_refused());
        assert!(of(std::iter::once((String::new(), "1".to_owned()))).is_refused());
        assert!(!of(std::iter::once(("1".to_owned(), "1".to_owned()))).is_refused());
    }
}
