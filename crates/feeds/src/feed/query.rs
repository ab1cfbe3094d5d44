//! Queries of feeds.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use flatbed_databases::document::edit::{Conflicts, Document};
use flatbed_operations::index::selector::definition::IndexName;
use flatbed_revtree::DocumentId;

use crate::feed::place::FeedPosition;
use crate::feed::row::ChangeRow;
use crate::feed::tail::{TailDocument, TailRow};

/// The start of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Since {
    /// The oldest change.
    #[default]
    Beginning,
    /// Behind the newest change at the first read.
    Now,
    /// Behind this position. A position of another incarnation means the beginning.
    After(FeedPosition),
}

impl Since {
    /// Returns the start behind a position.
    pub fn after(place: impl Into<FeedPosition>) -> Since {
        Since::After(place.into())
    }
}

/// The documents that a feed is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Scope {
    /// All documents of the database.
    #[default]
    All,
    /// Design documents.
    Designs,
    /// The documents with these ids, existing or not.
    Ids(Arc<HashSet<String>>),
    /// Documents in some channels and those that leave them, in a database that has channels. An unrestricted reader
    /// gets all named channels, any other reader those that they hold.
    Channels(Arc<BTreeSet<String>>),
    /// Documents that the selector of an index takes in their current state: the rows of a scan filtered by the
    /// selector. A page fails with [`Refusal::NoSelectorIndex`](flatbed_store::error::Refusal::NoSelectorIndex) or
    /// [`AmbiguousIndex`](flatbed_store::error::Refusal::AmbiguousIndex), during the build of the index with
    /// [`IndexFailure::Building`](flatbed_store::error::IndexFailure::Building), and with
    /// [`Refusal::IndexGone`](flatbed_store::error::Refusal::IndexGone) once another index has replaced the one at the
    /// feed's start.
    Selected(Arc<IndexName>),
}

/// The document that a row carries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Documents {
    /// None.
    #[default]
    No,
    /// The winner, or a tombstone.
    Yes,
    /// The winner, with the names of its other leaves that are not deleted.
    WithConflicts,
    /// The winner, with the names of all other leaves: the input of the map functions of views.
    WithAllLeaves,
}

/// Optional parts of rows, for the reader of the feed or for a filter. All leaves cost one read for each document with
/// many leaves; documents cost one read each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extras {
    /// All leaves of each document, not only the winner.
    pub leaves: bool,
    /// The document in its current state.
    pub documents: Documents,
}

/// A query of a feed.
#[derive(Debug, Clone, Default)]
pub struct ChangesQuery {
    /// The start.
    pub since: Since,
    /// Newest first, down to `since`. Such a feed cannot wait.
    pub descending: bool,
    /// Row limit.
    pub limit: Option<u64>,
    /// The documents that the feed is about.
    pub scope: Scope,
    /// Omits tombstones and documents that have left the feed; in a feed of a list of ids the latter stay.
    pub active_only: bool,
    /// Includes rows of documents that the reader lost with a channel. Feeds of all documents have none.
    pub revocations: bool,
    /// The optional parts of its rows.
    pub extras: Extras,
}

impl Scope {
    pub(super) fn has(&self, id: &str) -> bool {
        match self {
            Scope::All => true,
            Scope::Designs => DocumentId::of(id).is_design(),
            Scope::Ids(ids) => ids.contains(id),
            // Membership does not follow from an id.
            Scope::Channels(_) | Scope::Selected(_) => false,
        }
    }
}

impl Extras {
    /// Rows with the document in its current state alone.
    pub const DOCUMENTS: Extras = Extras { leaves: false, documents: Documents::Yes };

    /// Rows with all leaves alone.
    pub const LEAVES: Extras = Extras { leaves: true, documents: Documents::No };

    /// Returns the union with others.
    #[must_use]
    pub fn and(self, others: Extras) -> Extras {
        Extras { leaves: self.leaves || others.leaves, documents: self.documents.max(others.documents) }
    }

    /// Returns which leaves the documents name.
    pub(super) fn conflicts(self) -> Conflicts {
        match self.documents {
            Documents::No | Documents::Yes => Conflicts::No,
            Documents::WithConflicts => Conflicts::Live,
            Documents::WithAllLeaves => Conflicts::All,
        }
    }

    /// Returns whether rows carry documents.
    pub fn has_documents(self) -> bool {
        self.documents != Documents::No
    }

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

    /// Removes from a row everything that is not among these.
    pub(super) fn retain_in(self, row: &mut ChangeRow) {
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

    /// Returns a shared row with these extras alone.
    pub(super) fn of(self, row: &TailRow) -> ChangeRow {
        let mut shown = row.row.clone();
        if let (true, TailDocument::Read { document, .. }) = (self.has_documents(), &row.document) {
            shown.doc = Some(Document::clone(document));
        }
        self.retain_in(&mut shown);
        shown
    }
}
