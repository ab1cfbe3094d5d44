//! `_stats` and `_system` of a node: what of the figures in `/metrics` CouchDB has too, in its tree.

use std::collections::BTreeMap;

use flatbed_http::Reply;
use flatbed_layer::json::Object;
use flatbed_metrics::{Family, Value, total as count};
use hyper::StatusCode;

use crate::error::{Failure, Result};
use crate::metrics::families;
use crate::state::State;

/// A tree of figures.
enum Tree {
    Below(BTreeMap<String, Tree>),
    /// Its type and what it is.
    Leaf(u64, &'static str, &'static str),
}

impl Tree {
    fn put(&mut self, path: &[&str], leaf: Tree) {
        let Tree::Below(below) = self else { return };
        match path {
            [] => {}
            [last] => drop(below.insert((*last).to_owned(), leaf)),
            [first, rest @ ..] => {
                below.entry((*first).to_owned()).or_insert_with(|| Tree::Below(BTreeMap::new())).put(rest, leaf);
            }
        }
    }

    fn find(&self, path: &[String]) -> Option<&Tree> {
        match (self, path) {
            (tree, []) => Some(tree),
            (Tree::Below(below), [first, rest @ ..]) => below.get(first)?.find(rest),
            (Tree::Leaf(..), _) => None,
        }
    }

    fn write(&self, mut object: Object<'_>) {
        match self {
            Tree::Below(below) => {
                for (name, tree) in below {
                    tree.write(object.object(name.as_str()));
                }
            }
            Tree::Leaf(value, kind, what) => {
                object.number("value", *value).string("type", kind).string("desc", what);
            }
        }
        object.end();
    }
}

/// All counts of a family with this value of a label.
fn with(families: &[Family], name: &str, label: &str, value: &str) -> u64 {
    families.iter().filter(|family| family.name == name).map(|family| family.with(label, value)).sum()
}

const METHODS: [&str; 7] = ["COPY", "DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT"];
const STATUSES: [&str; 18] = [
    "200", "201", "202", "204", "206", "301", "302", "304", "400", "401", "403", "404", "405", "406", "409", "412",
    "413", "500",
];

fn tree(state: &State) -> Tree {
    let families = families(state);
    let mut tree = Tree::Below(BTreeMap::new());
    let counter = |value, what| Tree::Leaf(value, "counter", what);
    for (path, name, what) in [
        (&["couchdb", "httpd", "requests"][..], "flatbed_requests", "number of HTTP requests"),
        (
            &["couchdb", "database_reads"],
            "flatbed_documents_read",
            "number of times a document was read from a database",
        ),
        (&["couchdb", "database_writes"], "flatbed_documents_written", "number of times a database was changed"),
        (&["couchdb", "document_writes"], "flatbed_documents_written", "number of document write operations"),
        (&["couchdb", "document_purges", "conflicts"], "flatbed_document_conflicts", "number of edits answered 409"),
        (&["couchdb", "open_databases"], "flatbed_databases_cached", "number of open databases"),
        (
            &["couchdb", "httpd", "clients_requesting_changes"],
            "flatbed_followers",
            "number of clients for continuous _changes",
        ),
        (&["couchdb", "httpd", "aborted_requests"], "flatbed_answers_broken_off", "number of aborted requests"),
        (
            &["couchdb", "mango", "docs_examined"],
            "flatbed_query_documents_examined",
            "number of documents examined by mango queries",
        ),
        (
            &["couchdb", "mango", "results_returned"],
            "flatbed_query_documents_returned",
            "number of rows returned by mango queries",
        ),
    ] {
        tree.put(path, counter(count(&families, name), what));
    }
    for method in METHODS {
        let value = with(&families, "flatbed_requests", "method", method);
        tree.put(
            &["couchdb", "httpd_request_methods", method],
            counter(value, "number of HTTP requests of this method"),
        );
    }
    for status in STATUSES {
        let value = with(&families, "flatbed_requests", "status", status);
        tree.put(&["couchdb", "httpd_status_codes", status], counter(value, "number of HTTP responses of this status"));
    }
    for (route, name) in [("/{db}/_bulk_docs", "bulk_requests"), ("/{db}/_design/{ddoc}/_view/{view}", "view_reads")] {
        let value = with(&families, "flatbed_requests", "route", route);
        tree.put(&["couchdb", "httpd", name], counter(value, "number of requests"));
    }
    tree
}

/// `_stats`, or what is beneath `path` in it.
pub(crate) fn stats(state: &State, path: &[String]) -> Result<Reply> {
    let tree = tree(state);
    let found = tree.find(path).ok_or_else(|| Failure::not_found("missing"))?;
    let mut text = Vec::new();
    found.write(Object::new(&mut text));
    Ok(Reply::json(StatusCode::OK, text))
}

/// `_system`
pub(crate) fn system(state: &State) -> Reply {
    let families = families(state);
    let number = |value: &Value| match value {
        Value::Count(count) => *count as f64,
        Value::Number(number) => *number,
        Value::Histogram { .. } => 0.0,
    };
    let of_name = |name: &str| {
        families
            .iter()
            .filter(|family| family.name == name)
            .flat_map(|family| &family.samples)
            .map(|sample| number(&sample.value))
            .sum::<f64>()
    };
    let gauge = |name: &'static str| of_name(name);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let began = gauge("process_start_time_seconds");
    let uptime = if began > 0.0 { (now - began).max(0.0) as u64 } else { 0 };
    Reply::json(
        StatusCode::OK,
        Object::text(|object| {
            object.number("uptime", uptime);
            let memory = gauge("process_resident_memory_bytes") as u64;
            let mut of_memory = object.object("memory");
            of_memory.number("other", 0).number("processes", memory).number("processes_used", memory);
            of_memory.end();
            object.number("run_queue", 0).number("run_queue_dirty_cpu", 0);
            object.number("io_input", count(&families, "flatbed_received_bytes"));
            object.number("io_output", count(&families, "flatbed_sent_bytes"));
            object.number("os_proc_count", 0).number("stale_proc_count", 0);
            object.number("process_count", gauge("process_threads") as u64);
            object.object("message_queues").end();
            object.number("internal_replication_jobs", 0);
            object.object("distribution").end();
        }),
    )
}
