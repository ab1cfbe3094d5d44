//! Groups of views: their rows, their builds, and the queries that wait for them.
//!
//! Only the crates of the layer use it.
#![cfg_attr(not(test), forbid(unsafe_code))]
#![expect(missing_docs, reason = "only the crates of the layer use it: what a name says need not be said twice")]
#![allow(rustdoc::private_intra_doc_links, reason = "`make lint` documents private items too")]

pub mod at_once;
pub mod field_maps;
pub mod group;
pub mod view;
pub mod view_updates;

#[cfg(test)]
#[path = "../../fdb-embedded/src/layers.rs"]
mod layers;

/// Each module uses only the modules in its row. Modules below it need not know its state, which is found by its type.
#[test]
fn folders_know_only_those_below_them() {
    let layers = layers::Layers::of(env!("CARGO_MANIFEST_DIR"));
    let table: [(&str, &[&str]); 5] = [
        ("at_once", &[]),
        ("field_maps", &[]),
        ("view_updates", &["at_once", "field_maps"]),
        ("view", &["view_updates"]),
        ("group", &["at_once", "view_updates", "view"]),
    ];
    assert_eq!(layers.beyond(&table), Vec::<String>::new());
}
