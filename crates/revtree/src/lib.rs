//! Ids of documents and revisions, and what can be said of revisions without looking at a store.
//!
//! What a document is (ordinary, design, local) follows from its id.
//!
//! A document's history is a tree whose nodes are revision ids `GENERATION-HASH`. This crate knows how such an id is
//! written, how two of them compare, how paths of revisions make a tree and which of its leaves wins, the same on every
//! replica, and how the line of ancestors of a leaf is kept so that an edit does not rewrite all of it. It does no I/O
//! and knows no keys.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod ancestry;
mod document_id;
mod rev_id;
mod tree;

pub use ancestry::{ANCESTORS_INLINE_MAX, Ancestry, Sealed};
pub use document_id::{DESIGN, DESIGN_IDS, DocumentId, DocumentKind, LOCAL, design_id, local_id};
pub use rev_id::{GENERATION_MAX, HASH_BYTES_MAX, Hash, InvalidRevision, RevId};
pub use tree::{Branch, Merged, Tree, rank};
