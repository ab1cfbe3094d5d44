//! What a feed is asked for.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use flatbed_revtree::DocumentId;

use crate::document::edit::{Conflicts, Document};
use crate::feed::place::Place;
use crate::feed::row::ChangeRow;
use crate::feed::tail::{TailDocument, TailRow};
use crate::index::selector::definition::IndexName;

/// Where a feed begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Since {
    /// With the oldest change.
    #[default]
    Beginning,
    /// After the newest one that is there at the first read.
    Now,
    /// After this one. A place of another incarnation means the beginning.
    After(Place),
}

impl Since {
    /// After this one.
    pub fn after(place: impl Into<Place>) -> Since {
        Since::After(place.into())
    }
}

/// Which documents a feed is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Scope {
    /// All of the database.
    #[default]
    All,
    /// Design documents.
    Designs,
    /// These, whether they are there or not.
    Ids(Arc<HashSet<String>>),
    /// Those of some channels, and those that leave them, of a database that has channels: for who sees all of it these, else those of
    /// them that the reader has.
    Channels(Arc<BTreeSet<String>>),
    /// Those that the selector of an index takes as they are now: what a walk filtered by the selector passes. A page fails with
    /// [`Refusal::NoSelectorIndex`](crate::Refusal::NoSelectorIndex) or [`AmbiguousIndex`](crate::Refusal::AmbiguousIndex), while the index
    /// is built with [`IndexFailure::Building`](crate::IndexFailure::Building), and with
    /// [`Refusal::IndexGone`](crate::Refusal::IndexGone) once the index is another one than that which the feed began with.
    Selected(Arc<IndexName>),
}

/// A row's document.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Documents {
    /// Is not there.
    #[default]
    No,
    /// The winner, or a tombstone.
    Yes,
    /// The same, with the names of its other leaves that are not deleted.
    WithConflicts,
    /// The same, and the names of those that are: what maps of views see.
    WithAllLeaves,
}

/// What rows carry beside the document's id, its winner and whether that is deleted: for who reads the feed, or for a
/// filter between. None costs nothing; all leaves cost a read for each document with many, and documents a read each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extras {
    /// All leaves of each document, not only the winner.
    pub leaves: bool,
    /// The document as it stands.
    pub documents: Documents,
}

/// What a feed gives.
#[derive(Debug, Clone, Default)]
pub struct ChangesQuery {
    /// Where to begin.
    pub since: Since,
    /// Newest first, down to `since`. Such a feed cannot wait.
    pub descending: bool,
    /// How many rows at most.
    pub limit: Option<u64>,
    /// Which documents it is about.
    pub scope: Scope,
    /// Without tombstones, and without documents that have left the feed; of a list of ids with them.
    pub active_only: bool,
    /// With rows of what a reader has lost because channels were taken from them. Feeds of all documents have none.
    pub revocations: bool,
    /// What its rows carry.
    pub extras: Extras,
}

impl Scope {
    /// Whether a document is one of these.
    pub(super) fn has(&self, id: &str) -> bool {
        match self {
            Scope::All => true,
            Scope::Designs => DocumentId::of(id).is_design(),
            Scope::Ids(ids) => ids.contains(id),
            // They are not known by their ids.
            Scope::Channels(_) | Scope::Selected(_) => false,
        }
    }
}

impl Extras {
    /// Rows with the document as it stands, and nothing else.
    pub const DOCUMENTS: Extras = Extras { leaves: false, documents: Documents::Yes };

    /// Rows with all leaves, and nothing else.
    pub const LEAVES: Extras = Extras { leaves: true, documents: Documents::No };

    /// These and others.
    #[must_use]
    pub fn and(self, others: Extras) -> Extras {
        Extras { leaves: self.leaves || others.leaves, documents: self.documents.max(others.documents) }
    }

    /// Which leaves the documents name.
    pub(super) fn conflicts(self) -> Conflicts {
        match self.documents {
            Documents::No | Documents::Yes => Conflicts::No,
            Documents::WithConflicts => Conflicts::Live,
            Documents::WithAllLeaves => Conflicts::All,
        }
    }

    /// Whether documents are among them.
    pub fn has_documents(self) -> bool {
        self.documents != Documents::No
    }

    /// Whether a row that followers share carries them.
    pub(super) fn are_in(self, row: &TailRow) -> bool {
        let has_leaves = !self.leaves || !row.row.lacks_leaves();
        let has_document = match (self.documents, &row.document) {
            (Documents::No, _) => true,
            (_, TailDocument::NotRead) => false,
            (Documents::Yes, TailDocument::Read { .. }) => true,
            (Documents::WithConflicts | Documents::WithAllLeaves, TailDocument::Read { with_conflicts, .. }) => {
                *with_conflicts
            }
        };
        has_leaves && has_document
    }

    /// Takes out of a row what it carries for others.
    pub(super) fn leave_in(self, row: &mut ChangeRow) {
        if !self.leaves {
            row.leaves.truncate(1);
        }
        if !self.has_documents() {
            row.doc = None;
        } else if let Some(document) = &mut row.doc {
            if self.documents < Documents::WithConflicts {
                document.conflicts = None;
            }
            if self.documents < Documents::WithAllLeaves {
                document.deleted_conflicts = None;
            }
        }
    }

    /// A row that followers share with these, and without what it carries for others.
    pub(super) fn of(self, row: &TailRow) -> ChangeRow {
        let mut shown = row.row.clone();
        if let (true, TailDocument::Read { document, .. }) = (self.has_documents(), &row.document) {
            shown.doc = Some(Document::clone(document));
        }
        self.leave_in(&mut shown);
        shown
    }
}
