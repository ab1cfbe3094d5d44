//! `_stats` and `_system` of a node: CouchDB's members, with values from `/metrics` where Flatbed has the metric.

use std::collections::BTreeMap;

use flatbed_http::Reply;
use flatbed_layer::json::Object;
use flatbed_metrics::{Family, Value, total as count};
use hyper::StatusCode;

use crate::error::{Failure, Result};
use crate::metrics::families;
use crate::state::State;
use distribution::Distribution;
use members::{FIGURES, Kind, METHODS, STATUSES, Source, UNCOUNTED};

mod distribution;
mod members;

enum Tree {
    Below(BTreeMap<String, Tree>),
    Leaf(Figure, &'static str),
}

enum Figure {
    Counter(u64),
    Gauge(u64),
    Histogram(Distribution),
}

impl Figure {
    /// Reads a value from the metric families. `source`: `None` for metrics that Flatbed does not count.
    fn read(families: &[Family], kind: Kind, source: Option<Source>) -> Figure {
        let number = || match source {
            None => 0,
            Some(Source::All(name)) => count(families, name),
            Some(Source::Of(name, label, value)) => with(families, name, label, value),
        };
        match (kind, source) {
            (Kind::Counter, _) => Figure::Counter(number()),
            (Kind::Gauge, _) => Figure::Gauge(number()),
            (Kind::Histogram, None) => Figure::Histogram(Distribution::default()),
            (Kind::Histogram, Some(Source::All(name))) => Figure::Histogram(Distribution::of(families, name, None)),
            (Kind::Histogram, Some(Source::Of(name, label, value))) => {
                Figure::Histogram(Distribution::of(families, name, Some((label, value))))
            }
        }
    }
}

impl Tree {
    /// Adds a leaf. `path` separates the names with dots.
    fn put(&mut self, path: &str, leaf: Tree) {
        let Tree::Below(below) = self else { return };
        match path.split_once('.') {
            None => drop(below.insert(path.to_owned(), leaf)),
            Some((first, rest)) => {
                below.entry(first.to_owned()).or_insert_with(|| Tree::Below(BTreeMap::new())).put(rest, leaf);
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
            Tree::Leaf(figure, what) => {
                let kind = match figure {
                    Figure::Counter(value) => {
                        object.number("value", *value);
                        "counter"
                    }
                    Figure::Gauge(value) => {
                        object.number("value", *value);
                        "gauge"
                    }
                    Figure::Histogram(distribution) => {
                        distribution.write(object.object("value"));
                        "histogram"
                    }
                };
                object.string("type", kind).string("desc", what);
            }
        }
        object.end();
    }
}

/// Returns the sum of a family's counts with this label value.
fn with(families: &[Family], name: &str, label: &str, value: &str) -> u64 {
    families.iter().filter(|family| family.name == name).map(|family| family.with(label, value)).sum()
}

fn tree(families: &[Family]) -> Tree {
    let mut tree = Tree::Below(BTreeMap::new());
    for &(beginning, kind, names) in UNCOUNTED {
        for name in names.split_whitespace() {
            let leaf = Tree::Leaf(Figure::read(families, kind, None), "not counted by Flatbed");
            tree.put(&format!("{beginning}.{name}"), leaf);
        }
    }
    for &(path, kind, source, what) in FIGURES {
        tree.put(path, Tree::Leaf(Figure::read(families, kind, Some(source)), what));
    }
    let requests = |label: &str, value: &str| Figure::Counter(with(families, "flatbed_requests", label, value));
    for method in METHODS {
        let path = format!("couchdb.httpd_request_methods.{method}");
        tree.put(&path, Tree::Leaf(requests("method", method), "requests of this method"));
    }
    for status in STATUSES {
        let path = format!("couchdb.httpd_status_codes.{status}");
        tree.put(&path, Tree::Leaf(requests("status", status), "answers of this status"));
    }
    tree
}

pub(crate) fn stats(state: &State, path: &[String]) -> Result<Reply> {
    let tree = tree(&families(state));
    let found = tree.find(path).ok_or_else(|| Failure::not_found("missing"))?;
    let mut text = Vec::new();
    found.write(Object::new(&mut text));
    Ok(Reply::json(StatusCode::OK, text))
}

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
    Reply::object(StatusCode::OK, |object| {
        object.number("uptime", uptime);
        let memory = gauge("process_resident_memory_bytes") as u64;
        let mut of_memory = object.object("memory");
        of_memory.number("other", 0).number("atom", 0).number("atom_used", 0);
        of_memory.number("processes", memory).number("processes_used", memory);
        of_memory.number("binary", 0).number("code", 0).number("ets", 0);
        of_memory.end();
        object.number("run_queue", 0).number("run_queue_dirty_cpu", 0).number("ets_table_count", 0);
        object.object("bt_engine_cache").number("memory", 0).number("size", 0);
        object.number("context_switches", 0).number("reductions", 0);
        object.number("garbage_collection_count", 0).number("words_reclaimed", 0);
        object.number("io_input", count(&families, "flatbed_received_bytes"));
        object.number("io_output", count(&families, "flatbed_sent_bytes"));
        object.number("os_proc_count", 0).number("stale_proc_count", 0);
        object.number("process_count", gauge("process_threads") as u64);
        // Only the operating system bounds the number of threads.
        object.number("process_limit", 0);
        let mut queues = object.object("message_queues");
        queues.object("couch_file").end();
        queues.object("couch_db_updater").end();
        queues.number("couch_server", 0).number("index_server", 0);
        queues.number("rexi_buffer", 0).number("rexi_server", 0);
        queues.end();
        object.number("internal_replication_jobs", 0);
        object.object("distribution").end();
        object.object("distribution_events").end();
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Members that couchdb-prometheus-exporter reads, and those that CouchDB itself reads by name for `_prometheus`.
    const READ: &str = "couchdb.auth_cache_hits couchdb.auth_cache_misses couchdb.database_reads couchdb.database_writes \
        couchdb.open_databases couchdb.open_os_files couchdb.request_time couchdb.httpd.bulk_requests \
        couchdb.httpd.clients_requesting_changes couchdb.httpd.requests couchdb.httpd.temporary_view_reads \
        couchdb.httpd.view_reads couchdb.httpd_request_methods.COPY couchdb.httpd_request_methods.PUT \
        couchdb.httpd_status_codes.200 couchdb.httpd_status_codes.412 couchdb.httpd_status_codes.500 couch_log.level.alert \
        couch_log.level.critical couch_log.level.debug couch_log.level.emergency couch_log.level.error couch_log.level.info \
        couch_log.level.notice couch_log.level.warning fabric.worker fabric.open_shard fabric.read_repairs.success \
        fabric.read_repairs.failure fabric.doc_update.errors fabric.doc_update.mismatched_errors \
        fabric.doc_update.write_quorum_errors couch_replicator.changes_read_failures couch_replicator.changes_reader_deaths \
        couch_replicator.changes_manager_deaths couch_replicator.changes_queue_deaths couch_replicator.checkpoints.success \
        couch_replicator.checkpoints.failure couch_replicator.failed_starts couch_replicator.requests \
        couch_replicator.responses.success couch_replicator.responses.failure couch_replicator.stream_responses.success \
        couch_replicator.stream_responses.failure couch_replicator.worker_deaths couch_replicator.workers_started \
        couch_replicator.cluster_is_stable couch_replicator.db_scans couch_replicator.docs.dbs_created \
        couch_replicator.docs.dbs_deleted couch_replicator.docs.dbs_found couch_replicator.docs.failed_state_updates \
        couch_replicator.docs.completed_state_updates couch_replicator.jobs.adds couch_replicator.jobs.duplicate_adds \
        couch_replicator.jobs.removes couch_replicator.jobs.starts couch_replicator.jobs.stops couch_replicator.jobs.crashes \
        couch_replicator.jobs.running couch_replicator.jobs.pending couch_replicator.jobs.crashed couch_replicator.jobs.total \
        couch_replicator.connection.acquires couch_replicator.connection.creates couch_replicator.connection.releases \
        couch_replicator.connection.owner_crashes couch_replicator.connection.worker_crashes \
        couch_replicator.connection.closes mango.unindexed_queries mango.query_invalid_index mango.too_many_docs_scanned \
        mango.docs_examined mango.quorum_docs_examined mango.results_returned mango.query_time mango.evaluate_selector \
        ddoc_cache.hit ddoc_cache.miss ddoc_cache.recovery rexi.streams.timeout.init_stream";

    #[test]
    fn exporters_find_what_they_read() {
        let tree = tree(&[]);
        for path in READ.split_whitespace() {
            let names: Vec<String> = path.split('.').map(str::to_owned).collect();
            assert!(tree.find(&names).is_some(), "{path}");
        }
    }

    /// Members of CouchDB's search, which is in programs of its own there and not in Flatbed.
    #[test]
    fn members_of_search() {
        let tree = tree(&[]);
        for (path, is_histogram) in [
            ("couchdb.io_queue.search", false),
            ("couchdb.io_queue2.search.count", false),
            ("dreyfus.httpd.search", true),
            ("nouveau.active_searches", false),
            ("nouveau.search_latency", true),
        ] {
            let names: Vec<String> = path.split('.').map(str::to_owned).collect();
            let Some(Tree::Leaf(figure, _)) = tree.find(&names) else { panic!("{path}") };
            assert_eq!(matches!(figure, Figure::Histogram(..)), is_histogram, "{path}");
        }
    }

    #[test]
    fn members_are_told_once_and_as_what_they_are() {
        let mut paths: Vec<String> = FIGURES.iter().map(|(path, ..)| (*path).to_owned()).collect();
        for &(beginning, _, names) in UNCOUNTED {
            paths.extend(names.split_whitespace().map(|name| format!("{beginning}.{name}")));
        }
        let tree = tree(&[]);
        for path in &paths {
            let names: Vec<String> = path.split('.').map(str::to_owned).collect();
            assert!(matches!(tree.find(&names), Some(Tree::Leaf(..))), "{path} is hidden by another one");
        }
        let count = paths.len();
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), count);
    }
}
