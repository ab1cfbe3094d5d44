//! Reads and writes of documents: indexes in the transaction of a write, queries, and functions that judge writes.
//!
//! Only the crates of the layer use it. All writes go through one function, which passes the old and the new state of
//! each document to the index maintainers in the same transaction. A read of a single document is one range read.
#![cfg_attr(not(test), forbid(unsafe_code))]
#![expect(missing_docs, reason = "only the crates of the layer use it: what a name says need not be said twice")]
#![allow(rustdoc::private_intra_doc_links, reason = "`make lint` documents private items too")]

pub mod compactions;
pub mod find;
pub mod index;
pub mod index_builds;
pub mod index_waits;
pub mod judge;
pub mod lanes;
pub mod read;
pub mod view_runtime;
pub mod write;

#[cfg(test)]
#[path = "../../fdb-embedded/src/layers.rs"]
mod layers;

/// Each module uses only the modules in its row. Modules below it need not know its state, which is found by its type.
#[test]
fn folders_know_only_those_below_them() {
    let layers = layers::Layers::of(env!("CARGO_MANIFEST_DIR"));
    let table: [(&str, &[&str]); 10] = [
        ("compactions", &[]),
        ("index", &[]),
        ("index_builds", &[]),
        ("lanes", &[]),
        ("read", &[]),
        ("view_runtime", &[]),
        ("index_waits", &["index_builds"]),
        ("judge", &["index", "read", "view_runtime"]),
        ("find", &["index", "read", "index_waits"]),
        ("write", &["compactions", "index", "lanes", "read", "judge"]),
    ];
    assert_eq!(layers.beyond(&table), Vec::<String>::new());
}
