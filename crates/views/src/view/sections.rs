//! The sections of a first build: parts of a tree's rows whose nodes are built at the same time, in any order.
//!
//! A section begins with a row that begins a node of the section's level ([`flatbed_rowtree::Section`]). The row's key
//! and size alone decide that, so the transaction that writes such a row in a first build also writes a key for its
//! section, and clears it with the row. The key is a hash: builders that begin to look at random hashes rarely meet.
//! Each tree has one more section, which begins before its first row. All keys are gone once the nodes are built.

use flatbed_rowtree::{Section, Shape};
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::ViewKeys;
use flatbed_store::proto::{self, ViewProgress, ViewSection};
use flatbed_store::transaction::{Quiet, Transaction};
use prost::Message;
use sha2::{Digest, Sha256};

use crate::view::documents::DocumentDiff;
use crate::view::group::{ViewGroup, shape_of};
use crate::view::node_part::{NodePart, NodesPace, make_part};
use crate::view::undo::{GroupReads, Writes};
use crate::view::written::WrittenReduces;

/// The rule that decides which rows of a group begin sections.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SectionRule {
    shapes: Vec<Shape>,
    /// 0: none do.
    level: u8,
}

impl SectionRule {
    /// Returns the rule of a first build.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn of(progress: &ViewProgress) -> Result<SectionRule> {
        let shapes = (0..progress.trees.len()).map(|tree| Ok(shape_of(&progress.trees, tree)?.0));
        Ok(SectionRule { shapes: shapes.collect::<Result<_>>()?, level: level_of(progress)? })
    }

    /// Adds the sections that begin or end with changes of rows.
    pub(super) fn mark(&self, keys: &ViewKeys, diffs: &[DocumentDiff<'_>], writes: &mut Writes) {
        for row in diffs.iter().flat_map(|diff| &diff.rows) {
            let Some(shape) = self.shapes.get(row.tree).filter(|_| self.level > 0) else { continue };
            let begins = |bytes: usize| shape.level(&row.key, bytes) >= self.level;
            let had = row.old.as_ref().is_some_and(|old| begins(usize::try_from(old.bytes).unwrap_or(usize::MAX)));
            let has = row.new.is_some_and(|new| begins(new.row.bytes()));
            if had || has {
                let section = has.then(|| new_section(row.tree, row.key.clone()).encode_to_vec());
                writes.insert(keys.section(&hash_of(row.tree, &row.key)), section);
            }
        }
    }

    /// Builds a part of a section's nodes: about as many as `pace` says. The output is the section's next state; `None`:
    /// it is complete. With it, the tree's root if it is among the nodes: the height, its rows and their bytes.
    ///
    /// Rows do not change meanwhile. The caller writes the output in the same transaction, after a read of the section
    /// with a conflict.
    pub async fn build(
        &self,
        (trx, keys): (&Transaction, &ViewKeys),
        group: &ViewGroup,
        written: Option<&dyn WrittenReduces>,
        section: &ViewSection,
        pace: &mut NodesPace,
    ) -> Result<BuiltSection> {
        let tree = section.tree as usize;
        let shape = self.shapes.get(tree).ok_or_else(|| Error::Corrupt(format!("a group has no tree {tree}")))?;
        let level = u8::try_from(section.level).unwrap_or(u8::MAX).max(1);
        let of = Section {
            level: self.level,
            begin: section.begin.clone(),
            end: Some(section.end.clone()).filter(|end| !end.is_empty()),
        };
        let begin = if section.at.is_empty() { section.begin.clone() } else { section.at.clone() };
        let reads = GroupReads { trx, keys, is_before: false };
        let NodePart { nodes, next, end, is_root, first } =
            make_part(reads, group, written, (tree, shape, level), (&of, begin), pace).await?;
        let is_empty = next.is_none() && section.at.is_empty() && nodes.is_empty();
        let next = match next {
            Some(at) => Some((u32::from(level), at)),
            None if is_root || is_empty || level >= self.level => None,
            None => Some((u32::from(level) + 1, Vec::new())),
        };
        let next = next.map(|(level, at)| {
            let end = end.unwrap_or_default();
            ViewSection { level, at, end, ..section.clone() }
        });
        let root = first.filter(|_| is_root);
        let root = root.map(|root| (u32::from(level), root.rows, root.bytes));
        Ok(BuiltSection { nodes, next, root })
    }
}

/// See [`SectionRule::build`].
#[derive(Debug)]
pub struct BuiltSection {
    nodes: Vec<(Vec<u8>, Vec<u8>)>,
    pub next: Option<ViewSection>,
    pub root: Option<(u32, u64, u64)>,
}

impl BuiltSection {
    /// Writes the nodes.
    pub fn write(&self, trx: &Transaction) -> Result<()> {
        self.nodes.iter().try_for_each(|(key, node)| Quiet(trx).set(key, node))
    }
}

/// Returns the level of a first build's sections; 0: it has none.
///
/// # Errors
/// [`Error::Corrupt`].
pub(super) fn level_of(progress: &ViewProgress) -> Result<u8> {
    u8::try_from(progress.section_level).map_err(|_| Error::Corrupt("sections have too high a level".to_owned()))
}

/// Notes the sections before the first sections that rows begin.
pub(super) fn begin_sections(trx: &Transaction, keys: &ViewKeys, trees: usize) -> Result<()> {
    (0..trees).try_for_each(|tree| {
        let section = new_section(tree, Vec::new());
        Quiet(trx).set(&keys.section(&hash_of(tree, &[])), &section.encode_to_vec())
    })
}

fn new_section(tree: usize, begin: Vec<u8>) -> proto::ViewSection {
    ViewSection { tree: u32::try_from(tree).unwrap_or(u32::MAX), begin, ..Default::default() }
}

/// Returns the hash under which a section is noted, from its tree and its begin: 16 bytes.
fn hash_of(tree: usize, begin: &[u8]) -> Vec<u8> {
    let hash = Sha256::new_with_prefix((tree as u64).to_be_bytes()).chain_update(begin).finalize();
    hash.get(..16).unwrap_or_default().to_vec()
}
