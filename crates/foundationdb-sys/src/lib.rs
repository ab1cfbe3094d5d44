//! FoundationDB's C API for the crate `foundationdb`, resolved at run time.
//!
//! The crate of the same name on crates.io links `libfdb_c` at build time, so nothing builds or runs without it. This
//! crate replaces it through `[patch.crates-io]`: the same names, version and features, but each function dispatches
//! at run time to the [`backend`]: an installed `libfdb_c`, loaded with `libloading`, or the embedded engine.
//! design/foundationdb-sys.md has the reasons and the method.
//!
//! Only API version 7.3 (730) is supported, whichever feature is chosen.

pub mod backend;
mod declared;
mod embedded;
mod exit;
mod functions;
mod options;
mod table;
mod versions;

pub use exit::NETWORK_THREAD;
pub use fdb_capi::{
    FDBCallback, FDBDatabase, FDBFuture, FDBKey, FDBKeyValue, FDBMappedKeyValue, FDBTenant, FDBTransaction, fdb_bool_t,
    fdb_error_t,
};
pub use functions::*;
pub use options::*;
pub use versions::FDB_API_VERSION;

/// A cluster of the C API before 6.1: declared for the binding, never created.
#[allow(non_camel_case_types, reason = "the name in C")]
pub type FDB_cluster = std::ffi::c_void;
/// As [`FDB_cluster`].
pub type FDBCluster = FDB_cluster;
/// The name of C's struct behind `FDBTenant`.
#[allow(non_camel_case_types, reason = "the name in C")]
pub type FDB_tenant = FDBTenant;

#[cfg(test)]
#[path = "../../fdb-embedded/src/layers.rs"]
mod layers;

#[test]
fn no_two_files_know_each_other() {
    assert_eq!(layers::Layers::of(env!("CARGO_MANIFEST_DIR")).circles(), [""; 0]);
}
