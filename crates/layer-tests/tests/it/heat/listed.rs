//! The public operations of the layer, from its sources.

use std::collections::BTreeSet;
use std::path::Path;

/// The public functions of [`Database`](flatbed_layer::Database) and [`Layer`](flatbed_layer::Layer) that write no keys
/// of an operation: handles, figures of the process, reads, and the ends of waits.
const NOT_WRITES: [&str; 33] = [
    "access_changes",
    "actor",
    "all_databases",
    "are_settings_known",
    "asked_by",
    "asker",
    "bound_sizes",
    "clock",
    "compactions",
    "database",
    "database_updates",
    "databases_cached",
    "document_bytes_max",
    "followers",
    "forget_gone_databases",
    "index_builds",
    "index_waits",
    "metrics",
    "newest_database_update",
    "open",
    "ping",
    "reader",
    "replicator_databases",
    "resyncs",
    "route",
    "run_views_by",
    "securities",
    "security",
    "settings_changed",
    "shutdown",
    "stored_settings",
    "until_groups_released",
    "users_changed",
];

/// Others of these, whose names are shared with nothing that writes.
const FIGURES: [&str; 3] = ["uuid", "view_tasks", "view_waits"];

/// Returns the names of the public functions that write: those in `impl Database` and `impl Layer` that are not listed
/// as others.
pub fn writes() -> BTreeSet<String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../layer/src");
    let mut names = BTreeSet::new();
    for file in std::fs::read_dir(directory).expect("the layer's sources") {
        let path = file.expect("a file").path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            functions(&std::fs::read_to_string(path).expect("a source"), &mut names);
        }
    }
    for other in NOT_WRITES.into_iter().chain(FIGURES) {
        assert!(names.remove(other), "{other} is no public function of the layer any more");
    }
    names
}

/// Adds the public functions of a source's blocks for databases and layers. rustfmt begins and ends a block at the
/// line's begin.
fn functions(source: &str, names: &mut BTreeSet<String>) {
    let mut is_inside = false;
    for line in source.lines() {
        match line {
            "impl Database {" | "impl Layer {" => is_inside = true,
            "}" => is_inside = false,
            _ if !is_inside => {}
            _ => {
                let name = ["    pub async fn ", "    pub fn "].iter().find_map(|start| line.strip_prefix(start));
                if let Some(name) = name {
                    let end = name.find(['(', '<']).unwrap_or(name.len());
                    names.insert(name[..end].to_owned());
                }
            }
        }
    }
}

#[test]
fn public_functions_are_found_in_a_source() {
    let mut names = BTreeSet::new();
    let source = "impl Reader {\n    pub fn no(&self) {}\n}\nimpl Database {\n    pub async fn one(\n    pub fn two<'a>(\n    \
                  fn three() {\n    }\n}\npub fn four() {}\n";
    functions(source, &mut names);
    assert_eq!(names, ["one", "two"].map(str::to_owned).into());
}
