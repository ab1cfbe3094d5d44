//! What the server counts, and all figures in Prometheus' text form.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use flatbed_metrics::{Counter, Family, Gauge, Held, Histogram, Key, Keyed, Kind, Labelled, Value};

use crate::route::{Route, Verb};
use crate::server::State;

/// An answer's status.
#[derive(Debug)]
pub(crate) struct Status;

impl Key for Status {
    const NAME: &'static str = "status";
    const COUNT_MAX: usize = 20;
}

flatbed_metrics::labels! {
    /// How a feed is followed. `_db_updates` is one kind in all its forms.
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
    /// What one server has counted since it was bound.
    pub(crate) struct Metrics {
        requests: Labelled<Route, Labelled<Verb, Keyed<Status>>> = "Requests answered, by route, method and status.",
        request_duration_seconds: Labelled<Route, Labelled<Verb, Histogram>> = "From the head of a request to the head of its answer; the body of a feed or stream comes after it.",
        requests_in_flight: Gauge = "Requests whose answer is not yet sent to its end, feeds among them.",
        answers_broken_off: Counter = "Answers that began and were not sent to their end, because the client went away or the storage failed.",
        connections: Gauge = "Connections open.",
        connections_accepted: Counter = "Connections accepted.",
        received_bytes: Counter = "Bytes received on all connections.",
        sent_bytes: Counter = "Bytes sent on all connections.",
        followers: Labelled<FeedKind, Gauge> = "Feeds being answered, by kind.",
        feed_rows: Labelled<FeedKind, Counter> = "Rows sent on feeds, by kind.",
        feed_bytes: Labelled<FeedKind, Counter> = "Bytes of feeds' bodies handed to their connections, heartbeats among them, by kind.",
    }
}

impl Metrics {
    /// A request is answered: its head took so long.
    pub(crate) fn answered(&self, route: Route, verb: Verb, status: u16, duration: Duration) {
        self.requests.of(route).of(verb).count(i32::from(status));
        self.request_duration_seconds.of(route).of(verb).observe(duration);
    }

    /// A feed begins. It is counted among the followers until the answer is dropped.
    pub(crate) fn follow(self: &Arc<Self>, kind: FeedKind) -> Follower {
        Follower { kind, _held: self.followers.of(kind).hold(), metrics: self.clone() }
    }
}

/// A feed that is being answered.
#[derive(Debug)]
pub(crate) struct Follower {
    kind: FeedKind,
    metrics: Arc<Metrics>,
    _held: Held,
}

impl Follower {
    /// Rows have been written to it.
    pub(crate) fn rows(&self, count: u64) {
        self.metrics.feed_rows.of(self.kind).add(count);
    }

    /// Bytes have been handed to its connection.
    pub(crate) fn bytes(&self, count: usize) {
        self.metrics.feed_bytes.of(self.kind).add(count as u64);
    }
}

/// What a [`FiguresElsewhere`] asks.
type Asked = Arc<dyn Fn() -> Vec<Family> + Send + Sync>;

/// Figures that `/metrics` tells and somebody else keeps, such as those of the storage and of the process; by default
/// there are none.
#[derive(Clone, Default)]
pub struct FiguresElsewhere(Vec<Asked>);

impl FiguresElsewhere {
    /// Asks `families` too, each time. It must not block.
    #[must_use]
    pub fn and(mut self, families: impl Fn() -> Vec<Family> + Send + Sync + 'static) -> FiguresElsewhere {
        self.0.push(Arc::new(families));
        self
    }
}

impl fmt::Debug for FiguresElsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FiguresElsewhere").field(&self.0.len()).finish()
    }
}

/// All figures of a server.
pub(crate) fn exposition(state: &State) -> String {
    let mut families = state.metrics.families();
    families.extend(memory(state));
    families.push(replications(state));
    let is_failed = f64::from(u8::from(state.health.failure().is_some()));
    let help = "Whether the storage takes no more writes before a restart.";
    families.push(Family::gauge("flatbed_storage_failed", help, is_failed));
    families.extend(state.layer.metrics());
    families.extend(state.figures.0.iter().flat_map(|families| families()));
    flatbed_metrics::text(&families)
}

fn memory(state: &State) -> [Family; 2] {
    let ([texts, trees, uploads], pages, unsent) =
        (state.memory.usage(), state.outlets.page_usage(), state.outlets.piece_usage());
    let of_peers = state.replicator.memory_usage().map(|usage| Usage { used: usage.used, limit: usage.limit });
    let [replica_texts, replica_trees, replica_pages] = of_peers;
    let parts = [
        ("request_text", texts),
        ("request_tree", trees),
        ("request_upload", uploads),
        ("answer_page", pages),
        ("answer_unsent", unsent),
        ("replication_text", replica_texts),
        ("replication_tree", replica_trees),
        ("replication_page", replica_pages),
    ];
    let mut used =
        Family::new("flatbed_memory_used_bytes", "Memory that bodies of requests and answers hold.", Kind::Gauge);
    let mut limit = Family::new("flatbed_memory_limit_bytes", "What they may hold at most together.", Kind::Gauge);
    for (part, usage) in parts {
        used.push(&[("part", part.into())], Value::Count(usage.used as u64));
        limit.push(&[("part", part.into())], Value::Count(usage.limit as u64));
    }
    [used, limit]
}

/// How much there is of something bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    pub used: usize,
    pub limit: usize,
}

/// Replications that this server runs or tries again, by their state.
fn replications(state: &State) -> Family {
    let mut family = Family::new("flatbed_replications", "Replications of this server, by state.", Kind::Gauge);
    let jobs = state.replicator.here();
    for name in ["running", "pending", "crashing"] {
        let count = jobs.iter().filter(|job| job.standing().state() == name).count();
        family.push(&[("state", name.into())], Value::Count(count as u64));
    }
    family
}
