//! Ids of documents and revisions, and revision trees. Pure: no I/O, no keys.
//!
//! The kind of a document (ordinary, design, local) follows from its id.
//!
//! A document's history is a tree whose nodes are revision ids `GENERATION-HASH`. This crate parses and compares the
//! ids, merges paths of revisions into a tree, and picks the winning leaf, which is the same on every replica. It
//! splits a leaf's line of ancestors so that an edit does not rewrite all of it.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod ancestry;
mod document_id;
mod rev_id;
mod tree;

pub use ancestry::{ANCESTORS_INLINE_MAX, Ancestry, AncestrySegment};
pub use document_id::{DESIGN, DESIGN_IDS, DocumentId, DocumentKind, LOCAL, design_id, local_id};
pub use rev_id::{GENERATION_MAX, HASH_BYTES_MAX, Hash, InvalidRevision, RevId};
pub use tree::{Branch, MergeOutcome, Tree, rank};
