//! What a document's rows will be, made before the transaction that writes them.

use flatbed_collate::{SortKey, Tail, arrange};
use flatbed_flatten::json::{DEPTH_MAX_LIMIT, Limits, Value, parse};
use sha2::{Digest, Sha256};

use crate::document::edit::partition_of;
use crate::store::proto;
use crate::view::documents::Had;
use crate::view::group::ViewGroup;
use crate::view::parts::INLINE_BYTES_MAX;
use crate::view_functions::EmittedRows;

/// A value that has no more bytes than this is known without its row.
const KNOWN_VALUE_BYTES_MAX: usize = 24;

/// Beside its key and value: what a row takes while it is prepared, and once it is, in bytes.
const EMITTED_ROW_BYTES: usize = 400;
const PREPARED_ROW_BYTES: usize = 300;

/// Rows of a view whose texts take no more than this have no trees that matter.
const SMALL_TEXT_BYTES: usize = 1 << 20;

/// What the maps of a group emitted for a document.
#[derive(Debug, Clone, Default)]
pub(crate) struct Emitted {
    /// The document's id.
    pub id: String,
    /// For each tree of the group, keys and values as JSON texts. Of a document that is deleted or gone there are none.
    pub trees: Vec<EmittedRows>,
    /// It emitted more than a bound allows in one of them.
    pub is_too_much: bool,
    /// When the document ends, in milliseconds of Unix time; 0: never.
    pub ends_at_ms: u64,
    /// Why it is set aside, without rows: a function broke its bound of time or memory on it.
    pub set_aside: Option<String>,
}

impl Emitted {
    /// What its rows take until they are prepared, in bytes, without the trees of their JSON.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.trees.iter().map(|rows| rows.len() * EMITTED_ROW_BYTES + 3 * rows.bytes()).sum()
    }

    /// What the JSON trees of the rows of one view take at most, in bytes; 0: little.
    pub(crate) fn json_bytes(&self) -> usize {
        let large = self.trees.iter().filter(|rows| rows.bytes() > SMALL_TEXT_BYTES);
        large.map(EmittedRows::json_bytes).max().unwrap_or(0)
    }
}

/// A document's rows, ready to be written.
#[derive(Debug, Clone)]
pub(crate) struct PreparedDocument {
    pub(super) id: String,
    /// By tree, and in order.
    pub(super) rows: Vec<PreparedRow>,
    is_refused: bool,
    set_aside: Option<String>,
}

/// One of them.
#[derive(Debug, Clone)]
pub(super) struct PreparedRow {
    pub tree: usize,
    pub sort_key: SortKey,
    pub tail: Tail,
    pub key: String,
    pub value: String,
    /// Of key and value.
    pub hash: [u8; 16],
    /// When its document ends; 0: never.
    pub ends_at_ms: u64,
}

impl PreparedRow {
    /// Of key and value.
    pub(super) fn bytes(&self) -> usize {
        self.key.len() + self.value.len()
    }

    /// What stands in what the document has; `element`: the sort key with its label.
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

    /// Where its key and value lie, if not in it: an id that follows from document, place and content.
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

/// Of a row's key and value.
pub(super) fn hash_of(key: &[u8], value: &[u8]) -> [u8; 16] {
    let mut hash = Sha256::new_with_prefix((key.len() as u64).to_be_bytes());
    hash.update(key);
    hash.update(value);
    let mut cut = [0; 16];
    cut.iter_mut().zip(hash.finalize()).for_each(|(to, from)| *to = from);
    cut
}

/// A JSON text of a row.
pub(super) fn value_of(text: &[u8]) -> Option<Value<'_>> {
    parse(text, &Limits { depth_max: DEPTH_MAX_LIMIT }).ok()
}

/// Sort keys, order and hashes of what was emitted. A document whose rows are too many or too large, or no JSON, becomes one
/// without rows: [`PreparedDocument::is_refused`].
pub(crate) fn prepare(group: &ViewGroup, emitted: Emitted) -> PreparedDocument {
    let Emitted { id, trees, is_too_much, ends_at_ms, set_aside } = emitted;
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
        // A design document is in no partition, so no query finds it.
        return without_rows(id);
    }
    let (mut rows, mut bytes) = (Vec::with_capacity(count), 0);
    for (tree, emitted) in trees.into_iter().enumerate().take(group.trees().len()) {
        let mut values = Vec::with_capacity(emitted.len());
        for (key, value) in emitted.iter() {
            match (value_of(key.as_bytes()), value_of(value.as_bytes())) {
                (Some(key), Some(value)) => values.push((key, value)),
                _ => return refused(id),
            }
        }
        let arranged = arrange(group.collation(tree), &values);
        let texts: Vec<(&str, &str)> = emitted.iter().collect();
        for row in arranged {
            let Some((key, value)) = texts.get(row.at) else { continue };
            let (key, value) = ((*key).to_owned(), (*value).to_owned());
            if key.len() + value.len() > bounds.row_bytes {
                return refused(id);
            }
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

/// What a row takes in a transaction, about: it, and its line of what the document has.
pub(super) fn row_cost(key_bytes: usize, bytes: usize) -> u64 {
    (2 * key_bytes + bytes + 120) as u64
}

impl PreparedDocument {
    /// The document's id.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// What its rows take in memory until they are written, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let of_row = |row: &PreparedRow| PREPARED_ROW_BYTES + row.bytes() + row.sort_key.bytes().len();
        self.rows.iter().map(of_row).sum()
    }

    /// Whether any of its rows has a key that does not fit, and needs a label.
    pub(crate) fn has_long_keys(&self) -> bool {
        self.rows.iter().any(|row| row.sort_key.is_cut())
    }

    /// Whether what it has in the group are these rows, whatever labels their keys have.
    pub(crate) fn has_just(&self, had: &Had) -> bool {
        let mut known: Vec<_> =
            had.rows().map(|row| (row.tree as usize, row.spelling, row.ordinal, row.hash.as_slice())).collect();
        let mut made: Vec<_> =
            self.rows.iter().map(|row| (row.tree, row.tail.spelling, row.tail.ordinal, &row.hash[..])).collect();
        known.sort_unstable();
        made.sort_unstable();
        known == made
    }

    /// Why it has no rows, if a function broke its bound on it.
    pub(crate) fn set_aside(&self) -> Option<&str> {
        self.set_aside.as_deref()
    }

    /// Whether it has no rows since they were too many, too large or no JSON.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused
    }
}
