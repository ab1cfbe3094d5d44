//! The metrics of a server, independent of its surface.

use std::time::Duration;

use flatbed_metrics::{Counter, Family, Gauge, Histogram, Key, KeyedCounter, Label, LabelledMetrics};
use hyper::Method;

#[derive(Debug)]
pub(crate) struct Status;

impl Key for Status {
    const NAME: &'static str = "status";
    const COUNT_MAX: usize = 20;
}

flatbed_metrics::labels! {
    pub(crate) enum Verb: "method" {
        Get = "GET",
        Head = "HEAD",
        Post = "POST",
        Put = "PUT",
        Delete = "DELETE",
        Copy = "COPY",
        Options = "OPTIONS",
        Other = "other",
    }
}

impl From<&Method> for Verb {
    fn from(method: &Method) -> Verb {
        match method.as_str() {
            "GET" => Verb::Get,
            "HEAD" => Verb::Head,
            "POST" => Verb::Post,
            "PUT" => Verb::Put,
            "DELETE" => Verb::Delete,
            "COPY" => Verb::Copy,
            "OPTIONS" => Verb::Options,
            _ => Verb::Other,
        }
    }
}

flatbed_metrics::labels! {
    pub(crate) enum ListenerKind: "listener" {
        Http = "http",
        Https = "https",
        Unix = "unix",
    }
}

flatbed_metrics::labels! {
    pub(crate) enum HandshakeResult: "result" {
        Completed = "completed",
        Failed = "failed",
        TimedOut = "timed_out",
    }
}

flatbed_metrics::labels! {
    pub(crate) enum Bound: "limit" {
        /// The address has too many connections.
        ConnectionsByAddress = "connections_by_address",
        /// All places are taken, and the queue for them is full.
        Connections = "connections",
        /// No request had arrived on the connection, and a new one needed its place.
        Unfinished = "unfinished",
        /// Too many connections of the address were closed without a request.
        LeftUnfinished = "left_unfinished",
        /// The connection was idle, and a new one needed its place.
        Idle = "idle",
        /// No request arrived in time.
        Head = "head",
        /// A request body was slow, and a new connection needed the place.
        SlowBody = "slow_body",
        /// A client read nothing for too long, or read slowly while others needed the memory of its answer.
        SlowReader = "slow_reader",
        RequestsByAddress = "requests_by_address",
        RequestsByUser = "requests_by_user",
        MemoryByAddress = "memory_by_address",
        /// Too many anonymous feeds.
        AnonymousFeeds = "anonymous_feeds",
        /// The page has another origin.
        Origin = "origin",
    }
}

#[derive(Debug)]
pub(crate) struct Requests<L> {
    answered: LabelledMetrics<L, LabelledMetrics<Verb, KeyedCounter<Status>>>,
    duration_seconds: LabelledMetrics<L, LabelledMetrics<Verb, Histogram>>,
}

impl<L: Label> Requests<L> {
    pub(crate) fn new() -> Requests<L> {
        Requests { answered: LabelledMetrics::default(), duration_seconds: LabelledMetrics::default() }
    }

    pub(crate) fn answered(&self, label: L, verb: Verb, status: u16, duration: Duration) {
        self.answered.of(label).of(verb).count(i32::from(status));
        self.duration_seconds.of(label).of(verb).observe(duration);
    }

    pub(crate) fn families(&self) -> [Family; 2] {
        let seconds =
            "Time from the head of a request to the head of its answer, without the body of a feed or stream.";
        [
            Family::of("flatbed_requests", "Requests answered, by route, method and status.", &self.answered),
            Family::of("flatbed_request_duration_seconds", seconds, &self.duration_seconds),
        ]
    }
}

flatbed_metrics::metrics! {
    pub(crate) struct Traffic {
        requests_in_flight: Gauge = "Requests whose answers are not completely sent, including feeds.",
        answers_broken_off: Counter = "Answers that broke off because the client left or the storage failed.",
        connections: Gauge = "Open connections.",
        listener_connections: LabelledMetrics<ListenerKind, Gauge> = "Open connections by listener: HTTP, HTTPS, or Unix socket.",
        connections_accepted: Counter = "Connections accepted.",
        received_bytes: Counter = "Bytes received on all connections.",
        sent_bytes: Counter = "Bytes sent on all connections.",
        tls_handshakes: LabelledMetrics<HandshakeResult, Counter> = "TLS handshakes by result.",
        refused: LabelledMetrics<Bound, Counter> = "Connections and requests refused or closed, by limit.",
    }
}

/// Counts the output of one answer, in addition to the metrics of all connections.
pub trait AnswerCounter: Send + Sync {
    /// Counts rows written to the answer.
    fn rows(&self, count: u64);

    /// Counts bytes passed to the connection.
    fn bytes(&self, count: usize);
}

/// The use of a bounded resource, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// The bytes in use.
    pub used: usize,
    /// The limit.
    pub limit: usize,
}
