//! Estimates the size of a key range from a bounded number of the data file's pages.
//!
//! LMDB keeps no counts, but the branch pages of a B-tree tell how many pages are between two keys. The tree is walked
//! down one level at a time. The pages at both ends of the range are followed exactly. If the pages between are many,
//! only an even sample is followed, and each page of the sample stands for the ones left out.

use std::fs::File;

use crate::disk::clears::Clears;
use crate::disk::data_file::{BadFile, NO_PAGE, Pages, of_transaction};
use crate::disk::keys::{KeyPlace, USER_TAG};
use crate::disk::page::Nodes;
use crate::disk::sealed::CHECKSUM_BYTES;

/// Most pages followed from one level to the next.
const FOLLOWED_MAX: usize = 4_096;
/// The approximate number of leaves read between the ends; the others count as their neighbours.
const LEAVES_READ_MAX: usize = 512;

/// The range to measure, and the pending clears that hide parts of it.
pub(crate) struct SampleRange<'w> {
    pub(crate) begin: &'w [u8],
    pub(crate) end: &'w [u8],
    pub(crate) clears: &'w Clears,
}

struct SampledPage {
    page: u64,
    /// A lower bound of its keys, as an LMDB key.
    lower: Vec<u8>,
    /// An exclusive upper bound of its keys; `None`: unbounded.
    upper: Option<Vec<u8>>,
    /// The number of pages that it stands for.
    weight: f64,
}

/// Calls `each` with keys of the range, ascending, and the approximate bytes of keys and values from each key to the
/// next. Returns false if the two meta pages no longer describe the transaction, so that the caller must use another
/// one.
///
/// # Errors
/// The file cannot be read, or a page is damaged.
pub(crate) fn sample(
    file: &File,
    transaction: u64,
    range: &SampleRange<'_>,
    each: &mut dyn FnMut(&[u8], f64),
) -> Result<bool, BadFile> {
    let Some(meta) = of_transaction(file, transaction)? else { return Ok(false) };
    if meta.main.root == NO_PAGE {
        return Ok(true);
    }
    let pages = Pages::of(file, meta)?;
    let (begin, end) = (KeyPlace::of(range.begin), KeyPlace::of(range.end));
    let ends = (begin.lmdb_key(), end.lmdb_key());
    let mut level = vec![SampledPage { page: meta.main.root, lower: Vec::new(), upper: None, weight: 1.0 }];
    for _ in 1..meta.main.depth {
        let mut below = Vec::new();
        for found in &level {
            push_children(&pages, found, ends, &mut below)?;
        }
        level = thin(below, FOLLOWED_MAX);
    }
    read_leaves(&pages, &level, range, each)?;
    Ok(true)
}

/// Adds the children of a branch page that may hold keys of the range.
fn push_children(
    pages: &Pages<'_>,
    of: &SampledPage,
    ends: (&[u8], &[u8]),
    children: &mut Vec<SampledPage>,
) -> Result<(), BadFile> {
    let bytes = pages.read(of.page, 1)?;
    let nodes = Nodes::of(&bytes);
    // The first key of a branch page is meaningless; its child begins where the branch page does.
    let lower = |at: usize| if at == 0 { of.lower.as_slice() } else { nodes.key(at) };
    for at in 0..nodes.count {
        let upper = if at + 1 < nodes.count { Some(nodes.key(at + 1)) } else { of.upper.as_deref() };
        if upper.is_some_and(|upper| upper <= ends.0) || lower(at) >= ends.1 {
            continue;
        }
        let upper = upper.map(<[u8]>::to_vec);
        children.push(SampledPage { page: nodes.child(at), lower: lower(at).to_vec(), upper, weight: of.weight });
    }
    Ok(())
}

/// Thins a level to about `max` pages: the first and the last, which the range's ends may cut, and a sample between.
fn thin(level: Vec<SampledPage>, max: usize) -> Vec<SampledPage> {
    let inner = level.len().saturating_sub(2);
    let step = inner.div_ceil(max.max(1)).max(1);
    if step == 1 {
        return level;
    }
    let (last, mut since, mut thinned) = (level.len() - 1, 0.0, Vec::new());
    for (at, mut found) in level.into_iter().enumerate() {
        if at == 0 || at == last {
            thinned.push(found);
            continue;
        }
        since += found.weight;
        // The middle of each group, so that neither end is favoured.
        if (at - 1) % step == step / 2 {
            found.weight = since;
            since = 0.0;
            thinned.push(found);
        }
    }
    // Adds the pages after the middle of the last group.
    if let Some(found) = thinned.len().checked_sub(2).and_then(|at| thinned.get_mut(at)) {
        found.weight += since;
    }
    thinned
}

fn read_leaves(
    pages: &Pages<'_>,
    leaves: &[SampledPage],
    range: &SampleRange<'_>,
    each: &mut dyn FnMut(&[u8], f64),
) -> Result<(), BadFile> {
    let (first, rest) = leaves.split_at(leaves.len().min(1));
    let (inner, last) = rest.split_at(rest.len().saturating_sub(1));
    let read_end = |end: &[SampledPage], each: &mut dyn FnMut(&[u8], f64)| {
        end.iter().try_for_each(|leaf| {
            for_each_record(&pages.read(leaf.page, 1)?, range, each);
            Ok::<_, BadFile>(())
        })
    };
    read_end(first, each)?;
    for group in inner.chunks(inner.len().div_ceil(LEAVES_READ_MAX).max(1)) {
        let is_seen = |leaf: &&SampledPage| range.clears.hiding(user_key(&leaf.lower)).is_none();
        let mut bytes = 0.0;
        for (at, leaf) in group.iter().filter(is_seen).enumerate() {
            // The first of a few neighbours stands for the others.
            if at == 0 {
                for_each_record(&pages.read(leaf.page, 1)?, range, &mut |_, record_bytes| bytes += record_bytes);
            }
            each(user_key(&leaf.lower), bytes * leaf.weight);
        }
    }
    read_end(last, each)
}

fn user_key(lmdb_key: &[u8]) -> &[u8] {
    lmdb_key.strip_prefix(&[USER_TAG]).unwrap_or_default()
}

/// Calls `each` with the user keys of a leaf in the range, and the bytes of each record.
fn for_each_record(leaf: &[u8], range: &SampleRange<'_>, each: &mut dyn FnMut(&[u8], f64)) {
    let nodes = Nodes::of(leaf);
    for at in 0..nodes.count {
        let Some(key) = nodes.key(at).strip_prefix(&[USER_TAG]) else { continue };
        if range.begin <= key && key < range.end && range.clears.hiding(key).is_none() {
            let value_bytes = nodes.value_bytes(at).saturating_sub(CHECKSUM_BYTES);
            each(key, (key.len() + value_bytes) as f64);
        }
    }
}
