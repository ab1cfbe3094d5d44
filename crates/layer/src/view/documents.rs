//! What documents have in a group: read before their rows are changed, and compared with what they are to have.

use std::collections::HashMap;

use foundationdb::future::FdbSlice;
use futures_util::future::{join_all, try_join_all};
use prost::Message;

use crate::document::body::{BODY_BYTES_MAX, begin_read};
use crate::error::{Error, Result};
use crate::store::keys::{RowKey, ViewKeys};
use crate::store::proto;
use crate::store::transaction::{Quiet, Transaction};
use crate::view::labels::Labels;
use crate::view::prepare::{PreparedDocument, PreparedRow, row_cost};

/// Of a value of what a document has.
const PART_BYTES: usize = 90_000;

/// What a document has.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Had {
    pub rows: Vec<proto::ViewRowOf>,
    /// Values that it lies in.
    pub parts: u32,
}

/// Reads what documents have, of all at once. `snapshot`: nobody else may write it.
pub(crate) async fn read_had(
    trx: &Transaction,
    keys: &ViewKeys,
    ids: impl Iterator<Item = &str>,
    snapshot: bool,
) -> Result<Vec<Had>> {
    let (ids, reads): (Vec<&str>, Vec<_>) = ids.map(|id| (id, trx.get(&keys.of_document(id), snapshot))).unzip();
    let firsts: Vec<Option<FdbSlice>> = join_all(reads).await.into_iter().collect::<std::result::Result<_, _>>()?;
    let had = ids.into_iter().zip(firsts).map(|(id, first)| async move {
        let Some(first) = first else { return Ok(Had::default()) };
        let mut found = proto::ViewRowsOf::decode(&*first)?;
        if found.parts > 1 {
            // Whoever writes them writes the first one, too.
            for page in begin_read(trx, keys.of_document_rest(id)).finish(trx, BODY_BYTES_MAX).await? {
                for part in &page {
                    found.rows.append(&mut proto::ViewRowsOf::decode(part.value())?.rows);
                }
            }
        }
        Ok::<_, Error>(Had { rows: found.rows, parts: found.parts })
    });
    try_join_all(had).await
}

/// A row that goes, comes or has another value.
pub(super) struct RowDiff<'d> {
    pub tree: usize,
    /// The bytes of its key.
    pub key: Vec<u8>,
    pub old: Option<proto::ViewRowOf>,
    pub new: Option<NewRow<'d>>,
}

/// What a row is to be.
#[derive(Clone, Copy)]
pub(super) struct NewRow<'d> {
    pub id: &'d str,
    pub row: &'d PreparedRow,
}

/// What a document's new rows change.
pub(super) struct DocumentDiff<'d> {
    pub id: &'d str,
    /// Each row's key once.
    pub rows: Vec<RowDiff<'d>>,
    /// What it has from now on.
    pub has: Vec<proto::ViewRowOf>,
    had_parts: u32,
}

impl DocumentDiff<'_> {
    /// What it writes, about, without nodes.
    pub(super) fn bytes(&self) -> u64 {
        let has: usize = self.has.iter().map(proto::ViewRowOf::encoded_len).sum();
        let rows = self.rows.iter().map(|row| match &row.new {
            Some(new) => row_cost(row.key.len(), new.row.bytes()),
            None => row_cost(row.key.len() / 2, 0),
        });
        if self.rows.is_empty() { 0 } else { has as u64 + rows.sum::<u64>() }
    }

    /// Writes what the document has. `conflicts`: whoever else writes it at the same time shall fail.
    pub(super) fn write(&self, trx: &Transaction, keys: &ViewKeys, conflicts: bool) -> Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let first = keys.of_document(self.id);
        if self.had_parts > 1 {
            Quiet(trx).clear_range(&keys.of_document_rest(self.id))?;
        }
        if self.has.is_empty() {
            if conflicts {
                trx.clear(&first);
                return Ok(());
            }
            return Quiet(trx).clear(&first);
        }
        let mut parts: Vec<proto::ViewRowsOf> = Vec::new();
        let mut bytes = PART_BYTES;
        for row in &self.has {
            let len = row.encoded_len() + 8;
            if bytes + len > PART_BYTES {
                parts.push(proto::ViewRowsOf::default());
                bytes = 0;
            }
            bytes += len;
            if let Some(part) = parts.last_mut() {
                part.rows.push(row.clone());
            }
        }
        let count = parts.len() as u32;
        for (at, mut part) in parts.into_iter().enumerate() {
            if at > 0 {
                Quiet(trx).set(&keys.of_document_part(self.id, at as u64), &part.encode_to_vec())?;
                continue;
            }
            part.parts = count;
            if conflicts {
                trx.set(&first, &part.encode_to_vec());
            } else {
                Quiet(trx).set(&first, &part.encode_to_vec())?;
            }
        }
        Ok(())
    }
}

/// The key of a row that a document has.
pub(crate) fn row_key(id: &str, row: &proto::ViewRowOf) -> RowKey {
    RowKey { element: row.element.clone(), id: id.to_owned(), spelling: row.spelling, ordinal: row.ordinal }
}

/// Compares what a document has with what it is to have. `None`: there is no room for the label of a long key.
pub(super) async fn diff<'d>(
    document: &'d PreparedDocument,
    had: &Had,
    labels: &mut Labels<'_>,
) -> Result<Option<DocumentDiff<'d>>> {
    let place = |row: &proto::ViewRowOf| (row.tree, row.spelling, row.ordinal, row.element.clone());
    let mut old: HashMap<_, &proto::ViewRowOf> = had.rows.iter().map(|row| (place(row), row)).collect();
    let mut diff = DocumentDiff {
        id: &document.id,
        rows: Vec::new(),
        has: Vec::with_capacity(document.rows.len()),
        had_parts: had.parts,
    };
    for row in &document.rows {
        let element = match row.sort_key.is_cut() {
            false => row.sort_key.bytes().to_vec(),
            true => match had.rows.iter().find(|old| is_same_long_row(old, row)) {
                Some(old) => old.element.clone(),
                None => match labels.element(row).await? {
                    Some(element) => element,
                    None => return Ok(None),
                },
            },
        };
        let message = row.message(&document.id, element);
        let before = old.remove(&place(&message));
        if before.is_none_or(|before| before.hash != message.hash) {
            let new = Some(NewRow { id: &document.id, row });
            let key = row_key(&document.id, &message).encode();
            diff.rows.push(RowDiff { tree: row.tree, key, old: before.cloned(), new });
        }
        diff.has.push(message);
    }
    let gone = old.into_values().map(|old| RowDiff {
        tree: old.tree as usize,
        key: row_key(&document.id, old).encode(),
        old: Some(old.clone()),
        new: None,
    });
    diff.rows.extend(gone);
    Ok(Some(diff))
}

/// Whether a row with a long key is what it was, which keeps its label.
fn is_same_long_row(old: &proto::ViewRowOf, new: &PreparedRow) -> bool {
    old.tree as usize == new.tree
        && old.hash == new.hash
        && (old.spelling, old.ordinal) == (new.tail.spelling, new.tail.ordinal)
        && flatbed_collate::split(&old.element).0 == new.sort_key.bytes()
}
