//! The members of `_stats`: those of CouchDB 3.5, so that exporters find them, and the metric that each one shows.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// The sum of all series of a family.
    All(&'static str),
    /// The sum of the series with a label value: family, label, value.
    Of(&'static str, &'static str, &'static str),
}

use Kind::{Counter, Gauge, Histogram};
use Source::{All, Of};

const REQUESTS: &str = "flatbed_requests";
const DURATIONS: &str = "flatbed_request_duration_seconds";

/// Members that show a metric: path with dots, type, source, description.
#[rustfmt::skip]
pub(super) const FIGURES: &[(&str, Kind, Source, &str)] = &[
    ("couchdb.commits", Counter, All("flatbed_commits"), "transactions committed"),
    ("couchdb.database_reads", Counter, All("flatbed_documents_read"), "documents read"),
    ("couchdb.database_writes", Counter, All("flatbed_documents_written"), "revisions of documents committed"),
    ("couchdb.document_writes", Counter, All("flatbed_documents_written"), "revisions of documents committed"),
    ("couchdb.httpd.aborted_requests", Counter, All("flatbed_answers_broken_off"), "answers not sent to their end"),
    ("couchdb.httpd.bulk_requests", Counter, Of(REQUESTS, "route", "/{db}/_bulk_docs"), "requests of _bulk_docs"),
    ("couchdb.httpd.clients_requesting_changes", Counter, All("flatbed_followers"), "feeds being answered"),
    ("couchdb.httpd.purge_requests", Counter, Of(REQUESTS, "route", "/{db}/_purge"), "requests of _purge"),
    ("couchdb.httpd.requests", Counter, All(REQUESTS), "requests answered"),
    ("couchdb.httpd.view_reads", Counter, Of(REQUESTS, "route", "/{db}/_design/{ddoc}/_view/{view}"), "requests of views"),
    ("couchdb.open_databases", Counter, All("flatbed_databases_cached"), "databases held in memory"),
    ("couchdb.open_os_files", Counter, All("process_open_fds"), "file descriptors open"),
    ("couchdb.password_hashing_slow", Counter, All("flatbed_password_checks"), "passwords checked"),
    ("couchdb.query_server.calls.map", Counter, All("flatbed_view_documents_mapped"), "documents mapped for views"),
    ("couchdb.request_time", Histogram, All(DURATIONS), "milliseconds from a request's head to that of its answer"),
    ("couch_replicator.jobs.crashed", Gauge, Of("flatbed_replications", "state", "crashing"), "replications that failed and are tried again"),
    ("couch_replicator.jobs.pending", Gauge, Of("flatbed_replications", "state", "pending"), "replications that wait"),
    ("couch_replicator.jobs.running", Gauge, Of("flatbed_replications", "state", "running"), "replications that run"),
    ("couch_replicator.jobs.total", Gauge, All("flatbed_replications"), "replications of this process"),
    ("mango.docs_examined", Counter, All("flatbed_query_documents_examined"), "documents that queries read"),
    ("mango.keys_examined", Counter, All("flatbed_query_keys_examined"), "rows of indexes that queries read"),
    ("mango.query_time", Histogram, Of(DURATIONS, "route", "/{db}/_find"), "milliseconds from the head of a _find to that of its answer"),
    ("mango.results_returned", Counter, All("flatbed_query_documents_returned"), "documents that queries answered"),
    ("mango.unindexed_queries", Counter, Of("flatbed_queries", "index", "all_docs"), "queries without an index of their own"),
];

/// Members that Flatbed does not count and shows as 0: a common path prefix, their type, and the last names of their
/// paths.
#[rustfmt::skip]
pub(super) const UNCOUNTED: &[(&str, Kind, &str)] = &[
    ("auto_purge", Counter, "start complete db_open purge"),
    ("couch_log.level", Counter, "alert critical debug emergency error info notice warning report report_error"),
    ("couch_replicator", Counter, "changes_manager_deaths changes_queue_deaths changes_read_failures changes_reader_deaths \
        cluster_is_stable connect_to_applied db_scans failed_starts requests worker_deaths workers_started"),
    ("couch_replicator.checkpoints", Counter, "failure success"),
    ("couch_replicator.connection", Counter, "acquires closes creates owner_crashes releases worker_crashes"),
    ("couch_replicator.docs", Counter, "completed_state_updates db_changes dbs_created dbs_deleted dbs_found failed_state_updates"),
    ("couch_replicator.jobs", Counter, "adds crashes duplicate_adds removes starts stops"),
    ("couch_replicator.responses", Counter, "failure success"),
    ("couch_replicator.stream_responses", Counter, "failure success"),
    ("couchdb", Counter, "auth_cache_hits auth_cache_misses database_purges document_inserts legacy_checksums \
        local_document_writes password_hashing_fast"),
    ("couchdb", Gauge, "maintenance_mode upgrade_in_progress"),
    ("couchdb", Histogram, "collect_results_time db_open_time dbinfo"),
    ("couchdb.bt_engine_cache", Counter, "full hits misses"),
    ("couchdb.coalesced_updates", Counter, "interactive replicated"),
    ("couchdb.couch_server", Counter, "all_dbs_active lru_skip"),
    ("couchdb.document_purges", Counter, "failure success total"),
    ("couchdb.httpd", Counter, "abandoned_streaming_requests all_docs_timeouts explain_timeouts find_timeouts \
        partition_all_docs_requests partition_all_docs_timeouts partition_explain_requests partition_explain_timeouts \
        partition_find_requests partition_find_timeouts partition_view_requests partition_view_timeouts \
        temporary_view_reads view_timeouts"),
    ("couchdb.httpd", Histogram, "bulk_docs"),
    ("couchdb.io_queue", Counter, "search"),
    ("couchdb.io_queue2.search", Counter, "count"),
    ("couchdb.mrview", Counter, "emits map_doc"),
    ("couchdb.query_server", Counter, "acquired_processes process_error_exits process_errors process_exits process_prompts \
        process_starts vdu_rejects"),
    ("couchdb.query_server", Gauge, "process_count"),
    ("couchdb.query_server", Histogram, "vdu_process_time"),
    ("couchdb.query_server.calls", Counter, "add_fun ddoc_filter ddoc_new ddoc_other ddoc_vdu other reduce reset spawn_proc"),
    ("couchdb.query_server.time", Counter, "add_fun ddoc_filter ddoc_new ddoc_other ddoc_vdu map other reduce reset spawn_proc"),
    ("ddoc_cache", Counter, "hit miss recovery"),
    ("dreyfus.httpd", Histogram, "search"),
    ("dreyfus.index", Histogram, "await group1 group2 info search"),
    ("dreyfus.rpc", Histogram, "group1 group2 info search"),
    ("fabric.doc_update", Counter, "errors mismatched_errors write_quorum_errors"),
    ("fabric.open_shard", Counter, "timeouts"),
    ("fabric.read_repairs", Counter, "failure success"),
    ("fabric.worker", Counter, "timeouts"),
    ("fsync", Counter, "count"),
    ("fsync", Histogram, "time"),
    ("global_changes", Counter, "db_writes event_doc_conflict rpcs"),
    ("global_changes", Gauge, "listener_pending_updates server_pending_updates"),
    ("mango", Counter, "evaluate_selector query_invalid_index quorum_docs_examined too_many_docs_scanned"),
    ("mem3.shard_cache", Counter, "eviction hit miss"),
    ("nouveau", Counter, "active_searches connection_closed_errors"),
    ("nouveau", Histogram, "search_latency update_latency"),
    ("pread", Counter, "exceed_eof exceed_limit"),
    ("rexi", Counter, "buffered down dropped"),
    ("rexi.streams.timeout", Counter, "init_stream stream wait_for_ack"),
];

/// Methods with a counter of their own, under `couchdb.httpd_request_methods`.
pub(super) const METHODS: [&str; 7] = ["COPY", "DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT"];

/// Statuses with a counter of their own, under `couchdb.httpd_status_codes`.
pub(super) const STATUSES: [&str; 25] = [
    "200", "201", "202", "204", "206", "301", "302", "304", "400", "401", "403", "404", "405", "406", "409", "412",
    "413", "414", "415", "416", "417", "500", "501", "503", "507",
];
