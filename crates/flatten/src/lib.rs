//! JSON to rows of path and scalar, rows to packed runs, and back; and the revision id that CouchDB gives to a body.
//!
//! Pure: no I/O, no keys, no state. A body is parsed ([`json::parse`]), its names are looked up ([`unknown_names`],
//! [`FieldIds`]), it is flattened ([`flatten()`]) and packed ([`pack`]) into pairs of path and value, which the layer
//! writes under a prefix. Read back in order they give the text again, byte for byte but for white space, escapes and
//! duplicate names ([`write_members`]).
//!
//! # Paths
//!
//! A path is FoundationDB-tuple-encoded: field ids from 10 up as integers, names without an id as strings; 0 before an
//! array position, 1 before the number of a string's part, 2 for an object's permutation, 3 before the number of a packed
//! subtree's part. Rows lie in order of their paths.
//!
//! # Values
//!
//! | first byte | what follows |
//! |---|---|
//! | `00` | a plain run, see [`run`](mod@run) |
//! | `01` | a run compressed with lz4 |
//! | `10` `11` `12` | null, false, true: nothing |
//! | `13` | an integer of 64 bits, zigzag, as a varint |
//! | `14` | any other number: its text |
//! | `15` | a string: UTF-8 |
//! | `16` `17` | `{}`, `[]`: nothing |
//! | `18` | part of a string of more than 50,000 bytes |
//! | `19` | part of a packed subtree: compact JSON text |
//! | `1a` | a permutation: for each member in the order written, its place among the sorted ones, as varints |
//!
//! A body without members is one row, `16` at the empty path. A body whose root is packed lies under `3, n`.
#![forbid(unsafe_code)]

mod error;
pub mod etf;
mod flatten;
pub mod json;
pub mod path;
pub mod run;
mod scalar;
mod unflatten;

pub use error::DecodeError;
pub use flatten::{FieldIds, FlattenOptions, LITERAL_BYTES_MAX, PART_BYTES, Rows, flatten, unknown_names};
pub use json::text_len as json_len;
pub use run::{VALUE_BYTES_MAX, pack};
pub use unflatten::{FieldNames, validate, write_members};
