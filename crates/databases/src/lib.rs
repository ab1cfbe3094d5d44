//! Databases as one process knows them: cached records, handles, admission of writers, documents' parts, and users.
//!
//! Only the crates of the layer use it. An [`Inner`](server::Inner) is a server's view of one root; it resolves a name
//! in each transaction to an [`Instance`](instance::Instance) of the database. Subsystems above keep their state in
//! [`slots`], found by its type.
#![cfg_attr(not(test), forbid(unsafe_code))]
#![expect(missing_docs, reason = "only the crates of the layer use it: what a name says need not be said twice")]
#![allow(rustdoc::private_intra_doc_links, reason = "`make lint` documents private items too")]

pub mod actor;
pub mod admission;
pub mod asker;
pub mod cache;
pub mod channels;
pub mod confirmed;
pub mod create;
pub mod document;
pub mod field_names;
pub mod handles;
pub mod held;
pub mod instance;
pub mod limits;
pub mod record_change;
pub mod resolve;
pub mod server;
pub mod size_bounds;
pub mod size_limit;
pub mod slots;
pub mod turns;

#[cfg(test)]
#[path = "../../fdb-embedded/src/layers.rs"]
mod layers;

/// Each module uses only the modules in its row. Modules below it need not know its state, which is found by its type.
#[test]
fn modules_know_only_those_below_them() {
    let layers = layers::Layers::of(env!("CARGO_MANIFEST_DIR"));
    let table: [(&str, &[&str]); 20] = [
        ("confirmed", &[]),
        ("field_names", &[]),
        ("limits", &[]),
        ("size_bounds", &[]),
        ("slots", &[]),
        ("turns", &[]),
        ("actor", &["confirmed"]),
        ("instance", &["confirmed", "field_names", "slots"]),
        ("cache", &["confirmed", "field_names", "slots", "instance"]),
        ("server", &["confirmed", "size_bounds", "slots", "turns", "instance", "cache"]),
        ("resolve", &["confirmed", "slots", "instance", "cache", "server"]),
        ("admission", &["confirmed", "actor", "instance", "server"]),
        ("create", &["confirmed", "actor", "instance", "server"]),
        ("held", &["slots", "instance", "server"]),
        ("record_change", &["confirmed", "actor", "server"]),
        ("size_limit", &["server"]),
        ("asker", &["held"]),
        ("handles", &["actor", "server", "asker"]),
        ("channels", &["limits", "instance", "server", "held", "asker", "handles"]),
        ("document", &["limits", "turns", "actor", "instance", "server", "size_limit", "handles"]),
    ];
    assert_eq!(layers.beyond(&table), Vec::<String>::new());
}
