//! The surface's metrics, and the export of all metrics in Prometheus' text format.

use std::fmt;
use std::sync::Arc;

use flatbed_http::{AnswerCounter, Usage};
use flatbed_mango::{ExecutionStats, Index};
use flatbed_metrics::{Counter, Family, Gauge, GaugeGuard, Kind, LabelledMetrics, Value};

use crate::state::State;

flatbed_metrics::labels! {
    /// The way in which a client follows a feed. `_db_updates` counts as one way in all its forms.
    pub(crate) enum FeedKind: "feed" {
        Normal = "normal",
        Longpoll = "longpoll",
        Continuous = "continuous",
        EventSource = "eventsource",
        WebSocket = "websocket",
        DbUpdates = "db_updates",
    }
}

flatbed_metrics::metrics! {
    pub(crate) struct Feeds {
        followers: LabelledMetrics<FeedKind, Gauge> = "Feeds being answered, by kind.",
        feed_rows: LabelledMetrics<FeedKind, Counter> = "Rows sent on feeds, by kind.",
        feed_bytes: LabelledMetrics<FeedKind, Counter> = "Bytes of feed bodies written to connections, including heartbeats, by kind.",
    }
}

flatbed_metrics::labels! {
    /// The kind of index that a Mango query used.
    pub(crate) enum QueryIndex: "index" {
        AllDocs = "all_docs",
        Json = "json",
    }
}

flatbed_metrics::metrics! {
    pub(crate) struct Queries {
        queries: LabelledMetrics<QueryIndex, Counter> = "Mango queries started, by index: a Mango index or the index of all ids.",
        query_keys_examined: LabelledMetrics<QueryIndex, Counter> = "Index rows read by Mango queries.",
        query_documents_examined: LabelledMetrics<QueryIndex, Counter> = "Documents read by Mango queries.",
        query_documents_returned: LabelledMetrics<QueryIndex, Counter> = "Documents returned or counted by Mango queries.",
    }
}

impl QueryIndex {
    pub(crate) fn of(index: &Index) -> QueryIndex {
        if index.is_all_docs() { QueryIndex::AllDocs } else { QueryIndex::Json }
    }
}

impl Queries {
    pub(crate) fn begin(&self, index: QueryIndex) {
        self.queries.of(index).add(1);
    }

    /// Counts the cost of a query's step from `before` to `after`.
    pub(crate) fn examined(&self, index: QueryIndex, before: &ExecutionStats, after: &ExecutionStats) {
        self.query_keys_examined.of(index).add(after.keys_examined.saturating_sub(before.keys_examined));
        self.query_documents_examined.of(index).add(after.docs_examined.saturating_sub(before.docs_examined));
        self.query_documents_returned.of(index).add(after.results_returned.saturating_sub(before.results_returned));
    }
}

impl Feeds {
    /// Counts the start of a feed. The returned guard counts as a follower until it is dropped.
    pub(crate) fn follow(self: &Arc<Self>, kind: FeedKind) -> Box<dyn AnswerCounter> {
        Box::new(Follower { kind, _held: self.followers.of(kind).hold(), feeds: self.clone() })
    }
}

/// Counts a feed as a follower until it is dropped.
struct Follower {
    kind: FeedKind,
    feeds: Arc<Feeds>,
    _held: GaugeGuard,
}

impl AnswerCounter for Follower {
    fn rows(&self, count: u64) {
        self.feeds.feed_rows.of(self.kind).add(count);
    }

    fn bytes(&self, count: usize) {
        self.feeds.feed_bytes.of(self.kind).add(count as u64);
    }
}

/// A source of metric families outside of this crate.
type FamilySource = Arc<dyn Fn() -> Vec<Family> + Send + Sync>;

/// Further sources of `/metrics`, such as the storage and the process; none by default.
#[derive(Clone, Default)]
pub struct MetricSources(Vec<FamilySource>);

impl MetricSources {
    /// Adds a source that each export calls. It must not block.
    #[must_use]
    pub fn and(mut self, families: impl Fn() -> Vec<Family> + Send + Sync + 'static) -> MetricSources {
        self.0.push(Arc::new(families));
        self
    }
}

impl fmt::Debug for MetricSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FiguresElsewhere").field(&self.0.len()).finish()
    }
}

pub(crate) fn exposition(state: &State) -> String {
    flatbed_metrics::text(&families(state))
}

pub(crate) fn families(state: &State) -> Vec<Family> {
    let mut families = state.shell.families();
    families.extend(state.feeds.families());
    families.extend(state.queries.families());
    families.extend(memory(state));
    families.push(replications(state));
    let is_failed = f64::from(u8::from(state.health.failure().is_some()));
    let help = "1 if the storage accepts no more writes until a restart.";
    families.push(Family::gauge("flatbed_storage_failed", help, is_failed));
    families.extend(state.service.metrics());
    families.extend(state.figures.0.iter().flat_map(|families| families()));
    // Shells of several surfaces count under the same names.
    flatbed_metrics::merged(families)
}

fn memory(state: &State) -> [Family; 2] {
    let [replica_texts, replica_trees, replica_pages] =
        state.replicator.memory_usage().map(|usage| Usage { used: usage.used, limit: usage.limit });
    let of_replications =
        [("replication_text", replica_texts), ("replication_tree", replica_trees), ("replication_page", replica_pages)];
    let mut used =
        Family::new("flatbed_memory_used_bytes", "Memory that bodies of requests and answers hold.", Kind::Gauge);
    let mut limit = Family::new(
        "flatbed_memory_limit_bytes",
        "Limit of the memory that bodies of requests and answers hold.",
        Kind::Gauge,
    );
    for (part, usage) in state.shell.memory().into_iter().chain(of_replications) {
        used.push(&[("part", part.into())], Value::Count(usage.used as u64));
        limit.push(&[("part", part.into())], Value::Count(usage.limit as u64));
    }
    [used, limit]
}

fn replications(state: &State) -> Family {
    let mut family = Family::new("flatbed_replications", "Replications of this server, by state.", Kind::Gauge);
    let jobs = state.replicator.here();
    for name in ["running", "pending", "crashing"] {
        let count = jobs.iter().filter(|job| job.standing().state() == name).count();
        family.push(&[("state", name.into())], Value::Count(count as u64));
    }
    family
}
