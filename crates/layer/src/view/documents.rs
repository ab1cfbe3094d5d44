//! What documents have in a group: read before their rows are changed, and compared with what they are to have.

use std::collections::{HashMap, HashSet};

use foundationdb::future::FdbSlice;
use futures_util::future::{join_all, try_join_all};
use prost::Message;

use crate::document::body::{BODY_BYTES_MAX, begin_read};
use crate::error::{Error, Result};
use crate::store::keys::ViewKeys;
use crate::store::proto;
use crate::store::transaction::{Quiet, Transaction};
use crate::view::group::ViewGroup;
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
    /// It has more that is still to be changed.
    pub is_partial: bool,
    had: &'d Had,
    group: ViewGroup,
}

impl RowDiff<'_> {
    /// What it writes, about.
    fn bytes(&self) -> u64 {
        match &self.new {
            Some(new) => row_cost(self.key.len(), new.row.bytes()),
            None => row_cost(self.key.len() / 2, 0),
        }
    }
}

impl DocumentDiff<'_> {
    /// What it writes, about, without nodes.
    pub(super) fn bytes(&self) -> u64 {
        self.rows.iter().map(RowDiff::bytes).sum()
    }

    /// Leaves the first changes alone: so many, and of so many bytes, but one at least. What the document has is between what
    /// it had and what it is to have.
    pub(super) fn limit(&mut self, rows: usize, bytes: u64) {
        let mut sum = 0;
        let fits = |row: &&RowDiff<'_>| {
            sum += row.bytes();
            sum <= bytes
        };
        let most = self.rows.iter().take(rows).take_while(fits).count().max(1);
        if most >= self.rows.len() {
            return;
        }
        self.is_partial = true;
        let left: HashSet<_> = self.rows.drain(most..).map(|row| (row.tree, row.key)).collect();
        let is_left =
            |row: &proto::ViewRowOf| left.contains(&(row.tree as usize, self.group.row_key(self.id, row).encode()));
        let mut old: HashMap<_, &proto::ViewRowOf> = self.had.rows.iter().map(|row| (place(row), row)).collect();
        let mut has = Vec::new();
        for row in std::mem::take(&mut self.has) {
            match old.remove(&place(&row)) {
                _ if !is_left(&row) => has.push(row),
                Some(before) => has.push(before.clone()),
                None => {}
            }
        }
        // Those that go later, in the order that they had.
        has.extend(self.had.rows.iter().filter(|row| old.contains_key(&place(row)) && is_left(row)).cloned());
        self.has = has;
    }

    /// Writes what the document has. `conflicts`: whoever else writes it at the same time shall fail.
    pub(super) fn write(&self, trx: &Transaction, keys: &ViewKeys, conflicts: bool) -> Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let first = keys.of_document(self.id);
        let (before, parts) = (in_parts(&self.had.rows), in_parts(&self.has));
        for gone in parts.len().max(1)..before.len() {
            Quiet(trx).clear(&keys.of_document_part(self.id, gone as u64))?;
        }
        if self.has.is_empty() {
            if conflicts {
                trx.clear(&first);
                return Ok(());
            }
            return Quiet(trx).clear(&first);
        }
        let count = parts.len() as u32;
        for (at, rows) in parts.into_iter().enumerate() {
            if at > 0 {
                // What stays as it is, is not written again.
                if before.get(at) != Some(&rows) {
                    let part = proto::ViewRowsOf { rows: rows.to_vec(), parts: 0 };
                    Quiet(trx).set(&keys.of_document_part(self.id, at as u64), &part.encode_to_vec())?;
                }
                continue;
            }
            let part = proto::ViewRowsOf { rows: rows.to_vec(), parts: count };
            if conflicts {
                trx.set(&first, &part.encode_to_vec());
            } else {
                Quiet(trx).set(&first, &part.encode_to_vec())?;
            }
        }
        Ok(())
    }
}

/// What a document has, as it is cut into values.
fn in_parts(rows: &[proto::ViewRowOf]) -> Vec<&[proto::ViewRowOf]> {
    let (mut parts, mut rest) = (Vec::new(), rows);
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |row: &&proto::ViewRowOf| {
            bytes += row.encoded_len() + 8;
            bytes <= PART_BYTES
        };
        let (part, behind) = rest.split_at(rest.iter().take_while(fits).count().max(1));
        parts.push(part);
        rest = behind;
    }
    parts
}

/// Where a row of a document is.
fn place(row: &proto::ViewRowOf) -> (u32, u32, u32, Vec<u8>) {
    (row.tree, row.spelling, row.ordinal, row.element.clone())
}

/// Compares what a document has with what it is to have. `None`: there is no room for the label of a long key.
pub(super) async fn diff<'d>(
    document: &'d PreparedDocument,
    had: &'d Had,
    labels: &mut Labels<'_>,
) -> Result<Option<DocumentDiff<'d>>> {
    let mut old: HashMap<_, &proto::ViewRowOf> = had.rows.iter().map(|row| (place(row), row)).collect();
    let group = labels.group().clone();
    let mut diff = DocumentDiff {
        id: &document.id,
        rows: Vec::new(),
        has: Vec::with_capacity(document.rows.len()),
        is_partial: false,
        had,
        group: group.clone(),
    };
    for row in &document.rows {
        let element = match row.sort_key.is_cut() {
            false => row.sort_key.bytes().to_vec(),
            true => match had.rows.iter().find(|old| is_same_long_row(old, row)) {
                Some(old) => old.element.clone(),
                None => match labels.element(&document.id, row).await? {
                    Some(element) => element,
                    None => return Ok(None),
                },
            },
        };
        let message = row.message(&document.id, element);
        let before = old.remove(&place(&message));
        if before.is_none_or(|before| before.hash != message.hash) {
            let new = Some(NewRow { id: &document.id, row });
            let key = group.row_key(&document.id, &message).encode();
            diff.rows.push(RowDiff { tree: row.tree, key, old: before.cloned(), new });
        }
        diff.has.push(message);
    }
    let gone = old.into_values().map(|old| RowDiff {
        tree: old.tree as usize,
        key: group.row_key(&document.id, old).encode(),
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
