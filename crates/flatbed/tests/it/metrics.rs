//! `/metrics` as Prometheus reads it: every line is parsed, and the metrics move with the work.

use std::collections::{BTreeMap, HashSet};

use crate::support::{Server, call, flatbed, has_engine, lines, storage};
use flatbed_client::Connection;
use flatbed_testkit::until;
use hyper::Method;

/// A time series: its name and its labels.
pub type Series = (String, BTreeMap<String, String>);

/// The metrics at one time.
#[derive(Default)]
pub struct Scrape {
    /// The types by name.
    pub kinds: BTreeMap<String, String>,
    pub values: BTreeMap<Series, f64>,
}

impl Scrape {
    pub async fn of(server: &Server, path: &str) -> Scrape {
        let answer = server.connect().await.call(Method::GET, path, "").await.expect("an answer");
        assert_eq!(answer.status, 200, "{path}");
        Scrape::parse(std::str::from_utf8(&answer.body).expect("UTF-8"))
    }

    /// Parses the text form strictly. Panics if Prometheus would refuse or misread it.
    pub fn parse(text: &str) -> Scrape {
        assert!(text.ends_with('\n') && !text.contains("\n\n") && !text.contains('\r'));
        let mut scrape = Scrape::default();
        let (mut helped, mut family) = (None, None::<(String, String)>);
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').expect("a name and a help text");
                assert!(is_name(name, true) && !help.is_empty(), "{line}");
                helped = Some(name.to_owned());
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a name and a kind");
                assert_eq!(helped.take().as_deref(), Some(name), "its help comes before: {line}");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
                assert!(kind != "histogram" || name.ends_with("_seconds"), "{line}");
                assert!(!["micro", "milli", "nano"].iter().any(|part| name.contains(part)), "seconds: {line}");
                let before = scrape.kinds.insert(name.to_owned(), kind.to_owned());
                assert_eq!(before, None, "a family stands once: {line}");
                family = Some((name.to_owned(), kind.to_owned()));
            } else {
                let (family, kind) = family.as_ref().expect("a type comes before");
                assert!(helped.is_none(), "{line}");
                let (name, labels, value) = sample(line);
                let suffix = name.strip_prefix(family.as_str()).unwrap_or_else(|| panic!("{line} is under {family}"));
                assert_eq!(["_bucket", "_sum", "_count"].contains(&suffix), kind == "histogram", "{line}");
                assert!(kind == "histogram" || suffix.is_empty(), "{line}");
                assert_eq!(labels.contains_key("le"), suffix == "_bucket", "{line}");
                assert!(value.is_finite() && (value >= 0.0 || kind == "gauge"), "{line}");
                assert!(scrape.values.insert((name, labels), value).is_none(), "a series stands once: {line}");
            }
        }
        scrape.check_histograms();
        scrape
    }

    /// Checks that buckets never fall, and that the last one equals the count.
    fn check_histograms(&self) {
        let names = self.kinds.iter().filter(|(_, kind)| *kind == "histogram").map(|(name, _)| name);
        for name in names {
            let counts = self.values.iter().filter(|((of, _), _)| *of == format!("{name}_count"));
            for ((_, labels), count) in counts {
                let mut buckets: Vec<(f64, f64)> = Vec::new();
                for ((of, with), value) in &self.values {
                    let mut with = with.clone();
                    let Some(bound) = with.remove("le").filter(|_| *of == format!("{name}_bucket")) else { continue };
                    if with == *labels {
                        let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().expect("a number") };
                        buckets.push((bound, *value));
                    }
                }
                buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
                assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{name} {labels:?} {buckets:?}");
                assert_eq!(buckets.last(), Some(&(f64::INFINITY, *count)), "{name} {labels:?}");
                assert!(self.values.contains_key(&(format!("{name}_sum"), labels.clone())), "{name} {labels:?}");
            }
        }
    }

    /// Returns the sum of the series of that name that have all these labels.
    fn get(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has = |of: &BTreeMap<String, String>| {
            labels.iter().all(|(name, value)| of.get(*name).is_some_and(|of| of == value))
        };
        self.values.iter().filter(|((of, with), _)| of == name && has(with)).map(|(_, value)| value).sum()
    }

    /// Checks that no counter has fallen or vanished.
    fn comes_after(&self, before: &Scrape) {
        for ((name, labels), was) in &before.values {
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
            let kind = before.kinds.get(name).or(family.and_then(|family| before.kinds.get(family)));
            if kind.is_some_and(|kind| kind == "gauge") {
                continue;
            }
            let now = self.values.get(&(name.clone(), labels.clone()));
            assert!(now.is_some_and(|now| now >= was), "{name} {labels:?} was {was} and is {now:?}");
        }
    }
}

fn is_name(text: &str, colons: bool) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || (colons && byte == b':');
    text.bytes().all(legal) && text.bytes().next().is_some_and(|first| !first.is_ascii_digit())
}

/// Parses `name{label="value",...} number`, without a time.
fn sample(line: &str) -> (String, BTreeMap<String, String>, f64) {
    let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("{line}"));
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name, true), "{line}");
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (label, value) = rest.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
            assert!(is_name(label, false), "{line}");
            let mut text = String::new();
            let mut chars = value.chars();
            loop {
                match chars.next().unwrap_or_else(|| panic!("no end: {line}")) {
                    '"' => break,
                    '\\' => text.push(match chars.next() {
                        Some('n') => '\n',
                        Some(escaped @ ('\\' | '"')) => escaped,
                        other => panic!("no escape: {other:?} in {line}"),
                    }),
                    char => text.push(char),
                }
            }
            assert!(labels.insert(label.to_owned(), text).is_none(), "a label stands once: {line}");
            rest = chars.as_str();
            match rest.strip_prefix(',') {
                Some(more) => rest = more,
                None => break,
            }
        }
        rest = rest.strip_prefix('}').unwrap_or_else(|| panic!("{line}"));
    }
    let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("{line}"));
    (name.to_owned(), labels, value.parse().unwrap_or_else(|_| panic!("no number: {line}")))
}

const REQUESTS: &str = "flatbed_requests_total";

async fn status(connection: &mut Connection, method: Method, path: &str, body: &str) -> u16 {
    call(connection, method, path, body).await.0
}

#[tokio::test]
async fn figures_move_with_what_is_done() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let before = Scrape::of(&server, "/metrics").await;
    let mut connection = server.connect().await;
    let body = r#"{"a":1,"b":[2,3]}"#;
    assert_eq!(status(&mut connection, Method::PUT, "/secretive", "").await, 201);
    for id in ["d1", "d2", "d3"] {
        assert_eq!(status(&mut connection, Method::PUT, &format!("/secretive/{id}"), body).await, 201);
    }
    assert_eq!(status(&mut connection, Method::PUT, "/secretive/d1", body).await, 409);
    assert_eq!(status(&mut connection, Method::GET, "/secretive/d1", "").await, 200);
    assert_eq!(status(&mut connection, Method::GET, "/secretive/nothing", "").await, 404);
    assert_eq!(status(&mut connection, Method::GET, "/secretive/_changes", "").await, 200);
    assert_eq!(status(&mut connection, Method::from_bytes(b"BREW").unwrap(), "/secretive/d1", "").await, 405);
    let docs = r#"{"docs":[{"_id":"b1"},{"_id":"b2"}]}"#;
    assert_eq!(status(&mut connection, Method::POST, "/secretive/_bulk_docs", docs).await, 201);
    assert_eq!(status(&mut connection, Method::GET, "/_db_updates", "").await, 200);
    let mut feed = lines(&server, "/secretive/_changes?feed=continuous&heartbeat=60000").await;
    for _ in 0..5 {
        assert!(feed.next().await.expect("readable").is_some());
    }
    // Rows that arrive while the feed waits are counted as well.
    assert_eq!(status(&mut connection, Method::PUT, "/secretive/d4", body).await, 201);
    assert!(feed.next().await.expect("readable").is_some());

    // Connections: this one, the feed's and the request's own. Requests: the feed and the request itself. Earlier
    // connections vanish when the server has noticed their end.
    let are_alone = async || {
        let now = Scrape::of(&server, "/metrics").await;
        now.get("flatbed_connections", &[]) == 3.0 && now.get("flatbed_requests_in_flight", &[]) == 2.0
    };
    until("others are gone", are_alone).await;
    let before_last = Scrape::of(&server, "/metrics").await;
    let after = Scrape::of(&server, "/metrics").await;
    after.comes_after(&before);
    let moved = |name: &str, labels: &[(&str, &str)]| after.get(name, labels) - before.get(name, labels);
    let document = ("route", "/{db}/{docid}");
    assert_eq!(moved(REQUESTS, &[document, ("method", "PUT"), ("status", "201")]), 4.0);
    assert_eq!(moved(REQUESTS, &[document, ("method", "PUT"), ("status", "409")]), 1.0);
    assert_eq!(moved(REQUESTS, &[document, ("method", "GET"), ("status", "200")]), 1.0);
    assert_eq!(moved(REQUESTS, &[document, ("method", "GET"), ("status", "404")]), 1.0);
    assert_eq!(moved(REQUESTS, &[document, ("method", "other"), ("status", "405")]), 1.0);
    assert_eq!(moved(REQUESTS, &[("route", "/{db}/_bulk_docs"), ("status", "201")]), 1.0);
    assert_eq!(moved(REQUESTS, &[("route", "/{db}/_changes"), ("status", "200")]), 2.0);
    let scrapes = [("route", "/metrics"), ("status", "200")];
    assert_eq!(after.get(REQUESTS, &scrapes) - before_last.get(REQUESTS, &scrapes), 1.0);
    assert_eq!(moved("flatbed_request_duration_seconds_count", &[document, ("method", "PUT")]), 5.0);
    assert!(moved("flatbed_request_duration_seconds_sum", &[document]) > 0.0);
    assert_eq!(moved("flatbed_documents_written_total", &[]), 6.0);
    assert_eq!(moved("flatbed_document_conflicts_total", &[]), 1.0);
    assert_eq!(moved("flatbed_documents_read_total", &[]), 1.0);
    assert!(moved("flatbed_commits_total", &[]) >= 5.0 && moved("flatbed_transactions_total", &[]) >= 9.0);
    // Background work may commit while the metrics are read.
    let timed = moved("flatbed_commit_duration_seconds_count", &[]);
    assert!((moved("flatbed_commits_total", &[]) - timed).abs() <= 1.0, "{timed}");
    assert!(moved("flatbed_mapping_hits_total", &[]) >= 2.0 && moved("flatbed_mapping_misses_total", &[]) >= 1.0);
    assert_eq!(after.get("flatbed_followers", &[("feed", "continuous")]), 1.0);
    assert_eq!(after.get("flatbed_followers", &[("feed", "normal")]), 0.0);
    assert_eq!(moved("flatbed_feed_rows_total", &[("feed", "continuous")]), 6.0);
    assert_eq!(moved("flatbed_feed_rows_total", &[("feed", "normal")]), 3.0);
    assert!(moved("flatbed_feed_rows_total", &[("feed", "db_updates")]) >= 1.0);
    assert!(moved("flatbed_feed_bytes_total", &[("feed", "continuous")]) > 200.0);
    assert!(moved("flatbed_sent_bytes_total", &[]) > 1_000.0 && moved("flatbed_received_bytes_total", &[]) > 500.0);
    for name in ["resident_memory_bytes", "open_fds", "start_time_seconds", "max_fds"] {
        assert!(after.get(&format!("process_{name}"), &[]) > 0.0, "{name}");
    }
    // It counts in ticks of 10 ms: a quiet machine may have needed less.
    assert!(after.get("process_cpu_seconds_total", &[]) >= 0.0);
    if std::env::var_os("FLATBED_CLUSTER_FILE").is_none() {
        let (free, size) = (after.get("flatbed_disk_free_bytes", &[]), after.get("flatbed_disk_size_bytes", &[]));
        assert!(0.0 < size && free <= size, "{free} of {size}");
        assert!(after.get("flatbed_engine_map_bytes", &[]) > 0.0 && moved("flatbed_engine_commits_total", &[]) >= 5.0);
    }
    for (name, labels) in after.values.keys() {
        let is_told = labels.values().any(|value| value.contains("secretive") || value.contains("d1"));
        assert!(!is_told, "{name} {labels:?}");
    }

    // The client of the feed closes it in the middle.
    drop(feed);
    until("the feed ends", async || {
        // A feed notices when it next writes.
        status(&mut connection, Method::POST, "/secretive", "{}").await;
        Scrape::of(&server, "/metrics").await.get("flatbed_followers", &[("feed", "continuous")]) == 0.0
    })
    .await;
    let end = Scrape::of(&server, "/_node/_local/_prometheus").await;
    end.comes_after(&after);
    assert!(end.get("flatbed_answers_broken_off_total", &[]) >= 1.0);
    let names = |scrape: &Scrape| scrape.kinds.keys().cloned().collect::<HashSet<_>>();
    assert_eq!(names(&end), names(&after));
    assert!(server.stop());
}

#[tokio::test]
async fn answers_with_a_length_are_not_broken_off() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let mut connection = server.connect().await;
    let text = "x".repeat(600_000);
    assert_eq!(status(&mut connection, Method::PUT, "/db", "").await, 201);
    assert_eq!(status(&mut connection, Method::PUT, "/db/large", &format!("{{\"text\":\"{text}\"}}")).await, 201);
    for path in ["/db/large", "/db/_all_docs?include_docs=true", "/db/_changes?include_docs=true", "/nothing"] {
        status(&mut connection, Method::GET, path, "").await;
        status(&mut connection, Method::HEAD, path, "").await;
    }
    let is_at_rest = async || Scrape::of(&server, "/metrics").await.get("flatbed_requests_in_flight", &[]) == 1.0;
    until("no other request is in flight", is_at_rest).await;
    let scrape = Scrape::of(&server, "/metrics").await;
    assert_eq!(scrape.get("flatbed_answers_broken_off_total", &[]), 0.0);
}

#[tokio::test]
async fn errors_of_the_storage_are_counted_by_code() {
    if !has_engine() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let storage = storage(&data);
    let mut command = flatbed();
    command.env("FLATBED_FDB_BUGGIFY", "0.3,11");
    let server = Server::start_as(&mut command, &storage.iter().map(String::as_str).collect::<Vec<_>>());
    let mut connection = server.connect().await;
    assert_eq!(status(&mut connection, Method::PUT, "/db", "").await, 201);
    for at in 0..40 {
        assert_eq!(status(&mut connection, Method::PUT, &format!("/db/d{at}"), "{}").await, 201);
    }
    let scrape = Scrape::of(&server, "/metrics").await;
    for code in ["1020", "1021"] {
        assert!(scrape.get("flatbed_retries_total", &[("code", code)]) > 0.0, "{code}");
    }
    assert_eq!(scrape.get("flatbed_retries_total", &[("code", "1020")]), scrape.get("flatbed_conflicts_total", &[]));
    assert!(scrape.get("flatbed_faults_injected_total", &[]) > 0.0);
}
