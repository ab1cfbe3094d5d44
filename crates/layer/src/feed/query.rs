//! What a feed is asked for.

use std::collections::HashSet;
use std::sync::Arc;

use crate::feed::row::ChangeRow;
use crate::feed::tail::{TailDocument, TailRow};
use crate::store::seq::Seq;

/// Where a feed begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Since {
    /// With the oldest change.
    #[default]
    Beginning,
    /// After the newest one that is there at the first read.
    Now,
    /// After this one. A sequence of another incarnation means the beginning.
    After(Seq),
}

/// What a feed shows.
#[derive(Debug, Clone, Default)]
pub struct ChangesQuery {
    /// Where to begin.
    pub since: Since,
    /// Newest first, down to `since`. Such a feed cannot wait.
    pub descending: bool,
    /// With each changed document as it stands.
    pub include_docs: bool,
    /// The documents with their other leaves that are not deleted.
    pub conflicts: bool,
    /// All leaves of each document, not only the winner.
    pub all_leaves: bool,
    /// How many rows at most.
    pub limit: Option<u64>,
    /// These documents only.
    pub doc_ids: Option<Arc<HashSet<String>>>,
    /// Design documents only.
    pub design_only: bool,
}

impl ChangesQuery {
    pub(super) fn passes(&self, id: &str) -> bool {
        let is_wanted = self.doc_ids.as_ref().is_none_or(|ids| ids.contains(id));
        is_wanted && (!self.design_only || id.starts_with("_design/"))
    }

    pub(super) fn is_filtered(&self) -> bool {
        self.doc_ids.is_some() || self.design_only
    }

    pub(crate) fn reads_documents(&self) -> bool {
        self.include_docs
    }
}

impl ChangesQuery {
    /// Whether a feed shows a shared row; `None`: what it needs for that is not in it.
    pub(super) fn takes(&self, row: &TailRow) -> Option<bool> {
        if !self.passes(&row.row.id) {
            return Some(false);
        }
        if self.all_leaves && row.row.lacks_leaves() {
            return None;
        }
        if !self.reads_documents() {
            return Some(true);
        }
        let TailDocument::Read { with_conflicts, .. } = &row.document else { return None };
        if self.include_docs && self.conflicts && !with_conflicts {
            return None;
        }
        Some(true)
    }

    /// The row as this feed shows it.
    pub(super) fn shown(&self, row: &TailRow) -> ChangeRow {
        let mut shown = row.row.clone();
        if !self.all_leaves {
            shown.leaves.truncate(1);
        }
        if let (true, TailDocument::Read { document, .. }) = (self.include_docs, &row.document) {
            let mut document = document.clone();
            document.conflicts = document.conflicts.filter(|_| self.conflicts);
            shown.doc = Some(*document);
        }
        shown
    }
}
