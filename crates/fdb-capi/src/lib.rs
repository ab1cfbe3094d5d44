//! FoundationDB 7.3's C API over the embedded engine.
//!
//! Every function of `fdb_c.h` is a Rust function of the same name with the C calling convention. The program exports
//! none of them: `fdb-c` builds a `libfdb_c.so` from them, and `foundationdb-sys` calls them or those of an installed
//! library. FoundationDB's documentation of the C API has their contracts.
//!
//! Beyond C, [`open_embedded`] and [`engine_of`] serve programs that link this crate, and [`cluster_file`] parses
//! cluster files.

mod blob;
pub mod cluster_file;
mod completion;
mod database;
mod defaults;
mod delivery;
mod error;
mod future;
mod future_calls;
mod mapped;
mod mapped_answer;
mod network;
mod network_options;
mod outcome;
mod reads;
mod tenant;
mod transaction;
mod types;

pub use blob::*;
pub use database::*;
pub use delivery::advance;
pub use error::{fdb_error_predicate, fdb_get_error};
pub use future::{FDBCallback, FDBFuture};
pub use future_calls::*;
pub use mapped::fdb_transaction_get_mapped_range;
pub use network::*;
pub use reads::*;
pub use tenant::*;
pub use transaction::*;
pub use types::*;

#[cfg(test)]
#[path = "../../fdb-embedded/src/layers.rs"]
mod layers;

#[test]
fn no_two_files_know_each_other() {
    assert_eq!(layers::Layers::of(env!("CARGO_MANIFEST_DIR")).circles(), [""; 0]);
}
