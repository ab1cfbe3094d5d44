//! JSON to rows of path and scalar, rows to packed runs, and back; and the revision id that CouchDB gives to a body.
//!
//! Pure: no I/O, no keys, no state. A body is parsed ([`json::parse`]), its names are looked up ([`unknown_names`],
//! [`FieldIds`]), and it is flattened ([`flatten()`]) and packed ([`pack`]) into pairs of path and value, which the
//! layer writes under a prefix. Read in order, the pairs give the same text again, except for white space, escapes and
//! duplicate names ([`write_members`]).
//!
//! # Paths
//!
//! A path is FoundationDB-tuple-encoded ([`path`]); rows sort by its bytes.
//!
//! | element | meaning |
//! |---|---|
//! | integer from 10 up | id of a field name |
//! | string | a field name that has no id |
//! | 0, n | position n of an array |
//! | 1, n | part n of a string of more than [`PART_BYTES`] bytes |
//! | 2, n | part n of the permutation of an object whose names are not in the order of their path elements |
//! | 3, n | part n of an object or array stored packed: a path in it would be too long, a name without an id is, or too many objects around it have a permutation |
//! | 4 to 9 | reserved |
//!
//! # Values
//!
//! The first byte is the type of a value. Lengths are unsigned LEB128 varints; every scalar contains its length.
//!
//! | first byte | what follows |
//! |---|---|
//! | `00` | a plain run, see [`run`](mod@run) |
//! | `01` | a run compressed with lz4 |
//! | `10` `11` `12` | null, false, true: nothing |
//! | `13` | an integer of 64 bits, zigzag, as a varint |
//! | `14` | any other number: length, its text |
//! | `15` | a string: length, UTF-8 |
//! | `16` `17` | `{}`, `[]`: nothing |
//! | `18` | part of a string: length, UTF-8 cut between characters |
//! | `19` | part of a packed subtree: length, compact JSON text cut between characters |
//! | `1a` | part of a permutation: length, bytes. The parts joined: for each member in the order written, its place in the order of rows, as varints |
//! | `1b` | a float of 64 bits, big-endian, whose shortest decimal form without exponent is the text |
//! | `40` to `7f` | the integers 0 to 63: nothing |
//! | `80` to `bf` | a string of 0 to 63 bytes: UTF-8 |
//! | `c0` to `df` | any other number of 1 to 32 bytes: its text |
//!
//! A body without members is one row, `16` at the empty path.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod error;
pub mod etf;
mod flatten;
pub mod json;
pub mod path;
mod pick;
mod rows;
pub mod run;
mod scalar;
mod subtree;
mod unflatten;

pub use error::DecodeError;
pub use flatten::{
    FieldIds, FlattenOptions, LITERAL_BYTES_MAX, PART_BYTES, PERMUTED_DEPTH_MAX, flatten, unknown_names,
};
pub use json::text_len as json_len;
pub use pick::{PickResult, pick};
pub use rows::Rows;
pub use run::{PackOptions, VALUE_BYTES_MAX, pack, pack_with};
pub use subtree::{SubtreeRange, read_subtree, subtree_range};
pub use unflatten::{FieldNames, Members, member_text, read_body, validate, write_members};
