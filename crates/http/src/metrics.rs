//! What a server counts, whatever it serves.

use std::time::Duration;

use flatbed_metrics::{Counter, Family, Gauge, Histogram, Key, Keyed, Label, Labelled};
use hyper::Method;

/// An answer's status.
#[derive(Debug)]
pub(crate) struct Status;

impl Key for Status {
    const NAME: &'static str = "status";
    const COUNT_MAX: usize = 20;
}

flatbed_metrics::labels! {
    /// A request's method; those that no surface knows are one.
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
    /// What listens.
    pub(crate) enum Kind: "listener" {
        Http = "http",
        Https = "https",
        Unix = "unix",
    }
}

flatbed_metrics::labels! {
    /// How a handshake of TLS ended.
    pub(crate) enum Greeting: "result" {
        Completed = "completed",
        Failed = "failed",
        TimedOut = "timed_out",
    }
}

flatbed_metrics::labels! {
    /// A bound that a connection or a request has met.
    pub(crate) enum Bound: "limit" {
        /// Its address has too many.
        ConnectionsByAddress = "connections_by_address",
        /// All places are taken, and as many wait for one as may.
        Connections = "connections",
        /// Nothing was asked for on it, and another one came.
        Unfinished = "unfinished",
        /// Many of its address were closed as nothing was asked for on them.
        LeftUnfinished = "left_unfinished",
        /// Nothing was asked for on it any more, and another one came.
        Idle = "idle",
        /// Nothing was asked for on it in time.
        Head = "head",
        /// A request's body came slowly, and another one came.
        SlowBody = "slow_body",
        /// A client took nothing of an answer for long, or little of one that held what others waited for.
        SlowReader = "slow_reader",
        RequestsByAddress = "requests_by_address",
        RequestsByUser = "requests_by_user",
        MemoryByAddress = "memory_by_address",
        /// Somebody without a name follows, and as many do as may.
        AnonymousFeeds = "anonymous_feeds",
        /// A page of another origin.
        Origin = "origin",
    }
}

/// Requests by a surface's labels.
#[derive(Debug)]
pub(crate) struct Requests<L> {
    answered: Labelled<L, Labelled<Verb, Keyed<Status>>>,
    duration_seconds: Labelled<L, Labelled<Verb, Histogram>>,
}

impl<L: Label> Requests<L> {
    pub(crate) fn new() -> Requests<L> {
        Requests { answered: Labelled::default(), duration_seconds: Labelled::default() }
    }

    /// A request is answered: its head took so long.
    pub(crate) fn answered(&self, label: L, verb: Verb, status: u16, duration: Duration) {
        self.answered.of(label).of(verb).count(i32::from(status));
        self.duration_seconds.of(label).of(verb).observe(duration);
    }

    pub(crate) fn families(&self) -> [Family; 2] {
        let seconds =
            "From the head of a request to the head of its answer; the body of a feed or stream comes after it.";
        [
            Family::of("flatbed_requests", "Requests answered, by route, method and status.", &self.answered),
            Family::of("flatbed_request_duration_seconds", seconds, &self.duration_seconds),
        ]
    }
}

flatbed_metrics::metrics! {
    /// What one server has counted since it was made.
    pub(crate) struct Traffic {
        requests_in_flight: Gauge = "Requests whose answer is not yet sent to its end, feeds among them.",
        answers_broken_off: Counter = "Answers that began and were not sent to their end, because the client went away or the storage failed.",
        connections: Gauge = "Connections open.",
        listener_connections: Labelled<Kind, Gauge> = "Connections open, by what listens: HTTP, HTTP over TLS, a socket of the file system.",
        connections_accepted: Counter = "Connections accepted.",
        received_bytes: Counter = "Bytes received on all connections.",
        sent_bytes: Counter = "Bytes sent on all connections.",
        tls_handshakes: Labelled<Greeting, Counter> = "Handshakes of TLS, by how they ended.",
        refused: Labelled<Bound, Counter> = "Connections and requests that were refused or closed, by the bound that they met.",
    }
}

/// Counts what an answer sends beside the bytes that every answer's connection counts.
pub trait Counts: Send + Sync {
    /// Rows have been written to it.
    fn rows(&self, count: u64);

    /// Bytes have been handed to its connection.
    fn bytes(&self, count: usize);
}

/// How much there is of something bounded, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Held now.
    pub used: usize,
    /// At most.
    pub limit: usize,
}
