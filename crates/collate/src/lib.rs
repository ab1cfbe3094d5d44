//! Collation and reduction for indexes. Pure: no keys, no I/O.
//!
//! - [`Collation`]: CouchDB's orders of JSON keys, as a comparison and as [sort keys](SortKey), bytes that compare
//!   alike; its [signature](Collation::signature) is part of an index's.
//! - [`Search`], [`label`]: keys whose sort form does not fit into FoundationDB's keys.
//! - [`arrange()`]: the order of a document's rows in one view.
//! - [`reduce`]: CouchDB's built-in reductions.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod arrange;
mod codec;
mod collation;
mod form;
mod han;
mod key;
pub mod label;
mod marks;
mod number;
pub mod reduce;
mod search;
mod signature;
mod weights;

pub use arrange::{ArrangedRow, Tail, arrange};
pub use collation::{Collation, NoData};
pub use key::{CUT_BYTES, HIGHEST, SortKey, cut_to_level, group_prefix, split};
pub use search::{Boundary, LabelPlace, Search, SearchRequest};
