//! Changes of databases in order, pushed to their followers.
//!
//! Only the crates of the layer use it.
#![cfg_attr(not(test), forbid(unsafe_code))]
#![expect(missing_docs, reason = "only the crates of the layer use it: what a name says need not be said twice")]
#![allow(rustdoc::private_intra_doc_links, reason = "`make lint` documents private items too")]

pub mod feed;
pub mod updates;

#[cfg(test)]
#[path = "../../fdb-embedded/src/layers.rs"]
mod layers;

/// Each module uses only the modules in its row. Modules below it need not know its state, which is found by its type.
#[test]
fn modules_know_only_those_below_them() {
    let layers = layers::Layers::of(env!("CARGO_MANIFEST_DIR"));
    let table: [(&str, &[&str]); 2] = [("feed", &[]), ("updates", &["feed"])];
    assert_eq!(layers.beyond(&table), Vec::<String>::new());
}
