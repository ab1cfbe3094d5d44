//! Keys, records and transactions of the document layer: its use of FoundationDB, and its errors.
//!
//! Only the crates of the layer use it. It knows how a database is stored, and nothing of what is done with it.
#![cfg_attr(not(test), forbid(unsafe_code))]
#![expect(missing_docs, reason = "only the crates of the layer use it: what a name says need not be said twice")]

pub mod access;
pub mod buckets;
pub mod by_seq;
pub mod database_name;
pub mod due;
pub mod error;
pub mod features;
pub mod instruments;
pub mod keys;
pub mod leases;
pub mod merge;
pub mod metrics;
pub mod namespaces;
pub mod once;
pub mod view_bounds;
pub mod view_definition;
pub mod view_functions;
#[rustfmt::skip]
pub mod proto;
pub mod record_log;
pub mod records;
pub mod root;
pub mod secrets;
pub mod seq;
pub mod sync_function;
pub mod transaction;
pub mod updated;
pub mod waits;

#[cfg(test)]
#[path = "../../fdb-embedded/src/layers.rs"]
mod layers;

#[test]
fn modules_know_only_those_below_them() {
    let layers = layers::Layers::of(env!("CARGO_MANIFEST_DIR"));
    let table: [(&str, &[&str]); 27] = [
        ("merge", &[]),
        ("metrics", &[]),
        ("namespaces", &[]),
        ("proto", &[]),
        ("view_bounds", &[]),
        ("waits", &[]),
        ("view_functions", &["view_bounds"]),
        ("view_definition", &["view_functions"]),
        ("error", &["view_functions", "view_definition"]),
        ("database_name", &["error"]),
        ("instruments", &["metrics", "error"]),
        ("seq", &["error"]),
        ("keys", &["error", "seq"]),
        ("leases", &["proto", "error", "instruments"]),
        ("transaction", &["error", "instruments"]),
        ("access", &["error", "seq", "keys", "transaction"]),
        ("due", &["proto", "error", "keys", "transaction"]),
        ("once", &["error", "keys"]),
        ("record_log", &["error", "keys", "transaction"]),
        ("records", &["proto", "error", "seq", "keys"]),
        ("updated", &["proto", "error", "seq", "keys", "transaction"]),
        ("buckets", &["proto", "error", "seq", "keys", "transaction", "records"]),
        ("root", &["proto", "error", "seq", "keys", "transaction", "records", "updated"]),
        ("by_seq", &["merge", "error", "instruments", "seq", "keys", "transaction", "buckets"]),
        ("features", &["proto", "error", "records", "buckets"]),
        ("secrets", &["proto", "error", "keys", "transaction", "root"]),
        ("sync_function", &["proto", "error", "keys", "transaction", "once", "features"]),
    ];
    assert_eq!(layers.beyond(&table), Vec::<String>::new());
}
