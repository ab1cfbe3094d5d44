//! The load of `make bench-feeds`: thousands of continuous followers of one server, its own client, and one table of
//! the results.

mod catch_up;
pub(crate) mod followers;
pub(crate) mod stream;
mod table;
pub(crate) mod tally;

use std::{
    cell::Cell,
    collections::BTreeMap,
    fs,
    io::{self, Write},
    path::PathBuf,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use flatbed_client::Connection;
use hyper::Method;
use serde_json::{Value, json};
use tokio::task::{JoinSet, LocalSet};

use crate::{
    documents,
    limits::raise_open_files,
    load::{self, LoadError, Target},
    server::{Server, ServerError},
    stats::{cpu_s, own_cpu_s, percentiles, resident, rounded},
};
use followers::{Followers, Plan, Report};
use tally::Tally;

/// The requests that write at once: enough for 1,000 per second if each takes some milliseconds.
const WRITERS: usize = 32;

/// The time limit for the remaining rows, counted from the last row.
const DRAIN_MAX: Duration = Duration::from_secs(30);

/// The idle time before the measurement.
const SETTLE: Duration = Duration::from_secs(2);

/// The options of the measurements.
pub(crate) struct Options {
    /// Flatbed's binary.
    pub flatbed: PathBuf,
    /// The directory of the data and the results.
    pub directory: PathBuf,
    /// The names of the cases; a star at the end matches any end; none: all.
    pub cases: Vec<String>,
    /// The duration of each case's writes, in seconds.
    pub seconds: u64,
    /// The number of runs of each case.
    pub rounds: u64,
    /// The documents of the database in the catch-up cases.
    pub documents: u64,
}

/// The cases of one follower that starts at 0, without and with documents.
const CATCH_UP: [&str; 2] = ["catch-up", "catch-up-docs"];

/// The reason why a case gave no figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FeedsError {
    /// The server did not start.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// A write failed.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A call of the operating system failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The limit on open files is too low for a case.
    #[error("{feeds} feeds need {needed} open files and the limit is {limit}: raise it (ulimit -Hn)")]
    OpenFiles {
        feeds: usize,
        /// The files that they need.
        needed: u64,
        /// The system's limit.
        limit: u64,
    },
    /// Some feeds did not begin.
    #[error("not all {feeds} feeds began: {failures:?}")]
    NotOpened {
        feeds: usize,
        /// The first failures.
        failures: Vec<String>,
    },
    /// A follower has seen wrong rows, which is a fault of the server.
    #[error("{case}: {what}")]
    Wrong {
        case: String,
        /// The defect.
        what: String,
    },
    /// The name of a case is unknown.
    #[error("no case is called {0:?}; there are {1}")]
    NoCase(String, String),
}

/// One measurement.
#[derive(Clone, Copy)]
struct Case {
    feeds: usize,
    databases: usize,
    /// The writes per second; 0: the followers only wait.
    rate: u64,
    /// The feeds on a connection of HTTP/2; 0: HTTP/1.1.
    streams: usize,
}

impl Case {
    fn name(&self) -> String {
        let protocol = if self.streams == 0 { String::new() } else { format!("-h2x{}", self.streams) };
        let work = if self.rate == 0 { "idle".to_owned() } else { self.rate.to_string() };
        format!("{}of{}{protocol}-{work}", self.feeds, self.databases)
    }

    /// Returns the number of followers of each write.
    fn followers(&self) -> u32 {
        u32::try_from(self.feeds / self.databases).unwrap_or(u32::MAX)
    }
}

/// Returns whether a case has this name or, if the name ends with a star, this prefix.
fn is_called(case: &str, name: &str) -> bool {
    match name.strip_suffix('*') {
        Some(beginning) => case.starts_with(beginning),
        None => case == name,
    }
}

/// Returns the cases: each number of followers and databases at each rate, and some over HTTP/2.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for databases in [1, 1_000] {
        for feeds in [1_000, 10_000] {
            cases.extend([0, 10, 100, 1_000].map(|rate| Case { feeds, databases, rate, streams: 0 }));
        }
    }
    for feeds in [1_000, 10_000] {
        cases.extend([0, 100].map(|rate| Case { feeds, databases: 1, rate, streams: 100 }));
    }
    cases
}

/// Runs the cases. Prints a line of JSON for each, and at the end the table. The directory gets both, too.
pub(crate) async fn run(options: &Options) -> Result<(), FeedsError> {
    let all = cases();
    for wanted in &options.cases {
        let names: Vec<String> = all.iter().map(Case::name).chain(CATCH_UP.map(str::to_owned)).collect();
        if !names.iter().any(|name| is_called(name, wanted)) {
            return Err(FeedsError::NoCase(wanted.clone(), names.join(" ")));
        }
    }
    let limit = raise_open_files()?;
    println!("{}", json!({ "open_files_max": limit, "for": "the client, and the server, which inherits it" }));
    fs::create_dir_all(&options.directory)?;
    let mut log = fs::File::create(options.directory.join("feeds.jsonl"))?;
    let mut text = String::from(table::HEAD);
    let is_wanted = |name: &str| options.cases.is_empty() || options.cases.iter().any(|wanted| is_called(name, wanted));
    for case in all.into_iter().filter(|case| is_wanted(&case.name())) {
        // Files beside the feeds: the writers, listeners, the data.
        let needed = case.feeds as u64 + 200;
        if needed > limit {
            return Err(FeedsError::OpenFiles { feeds: case.feeds, needed, limit });
        }
        for _ in 0..options.rounds {
            let data = options.directory.join("feeds-data");
            crate::suite::remove(&data)?;
            let server = Server::flatbed(&options.flatbed, &data).await?;
            let figures = run_case(case, options.seconds, &server).await?;
            server.stop().await?;
            crate::suite::remove(&data)?;
            println!("{figures}");
            writeln!(log, "{figures}")?;
            text.push_str(&table::row(&figures));
            fs::write(options.directory.join("feeds.md"), &text)?;
        }
    }
    if CATCH_UP.iter().any(|name| is_wanted(name)) {
        text.push_str(table::CATCH_UP_HEAD);
        for figures in catch_up(options, &is_wanted).await? {
            println!("{figures}");
            writeln!(log, "{figures}")?;
            text.push_str(&table::catch_up_row(&figures));
        }
        fs::write(options.directory.join("feeds.md"), &text)?;
    }
    print!("\n{text}");
    Ok(())
}

/// Loads the database once and follows it from its beginning, once for each round.
async fn catch_up(options: &Options, is_wanted: &impl Fn(&str) -> bool) -> Result<Vec<Value>, FeedsError> {
    let data = options.directory.join("feeds-data");
    crate::suite::remove(&data)?;
    let server = Server::flatbed(&options.flatbed, &data).await?;
    let target = Target { url: server.url.clone(), database: "/caught".to_owned(), pid: server.pid() };
    load::fresh(&target).await?;
    println!("{}", load::bulk(&target, 1_000, options.documents, u64::MAX).await?);
    let mut found = Vec::new();
    for (at, name) in CATCH_UP.into_iter().enumerate().filter(|(_, name)| is_wanted(name)) {
        for round in 0..options.rounds {
            let include_docs = name == CATCH_UP[1];
            let round = round * CATCH_UP.len() as u64 + at as u64;
            found.push(catch_up::run(&server, &target, options.documents, round, include_docs).await?);
        }
    }
    server.stop().await?;
    crate::suite::remove(&data)?;
    Ok(found)
}

/// The counters of the operating system and of the server at one moment.
struct Moment {
    at: Instant,
    server_cpu_s: f64,
    client_cpu_s: f64,
    memory_mb: f64,
    counters: BTreeMap<String, f64>,
}

async fn moment(server: &Server, pid: u32) -> Result<Moment, FeedsError> {
    let mut connection = Connection::open(&server.url).await.map_err(LoadError::from)?;
    let answer = connection.call(Method::GET, "/metrics", Bytes::new()).await.map_err(LoadError::from)?;
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    let mut counters: BTreeMap<String, f64> = BTreeMap::new();
    for (name, value) in text.lines().filter_map(|line| line.strip_prefix("flatbed_")?.rsplit_once(' ')) {
        // Counters with labels are summed.
        let name = name.split_once('{').map_or(name, |(name, _)| name);
        let name = name.strip_suffix("_total").unwrap_or(name);
        *counters.entry(name.to_owned()).or_default() += value.parse().unwrap_or(0.0);
    }
    Ok(Moment {
        counters,
        at: Instant::now(),
        server_cpu_s: cpu_s(pid),
        client_cpu_s: own_cpu_s(),
        memory_mb: resident(pid).anonymous_mb,
    })
}

impl Moment {
    /// Returns the growth of a counter of the server since `before`; 0 if the server does not have it.
    fn counted(&self, before: &Moment, name: &str) -> f64 {
        let value = |moment: &Moment| moment.counters.get(name).copied().unwrap_or_default();
        value(self) - value(before)
    }

    /// Returns the processor seconds of the server and of the client since `before`.
    fn cpu_s(&self, before: &Moment) -> (f64, f64) {
        (self.server_cpu_s - before.server_cpu_s, self.client_cpu_s - before.client_cpu_s)
    }
}

async fn run_case(case: Case, seconds: u64, server: &Server) -> Result<Value, FeedsError> {
    let wrong = |what: String| FeedsError::Wrong { case: case.name(), what };
    let pid = server.pid().ok_or_else(|| wrong("the server is gone".to_owned()))?;
    let address = server.url.authority().parse().map_err(|error| wrong(format!("{error}")))?;
    make_databases(server, case.databases).await?;

    let empty = moment(server, pid).await?;
    let tally = Arc::new(Tally::new(usize::try_from(case.rate * seconds).unwrap_or(0)));
    let plan = Plan { address, feeds: case.feeds, databases: case.databases, streams: case.streams, asks: None };
    let followers = Followers::start(plan, tally.clone())?;
    if !followers.opened(case.feeds).await {
        return Err(FeedsError::NotOpened { feeds: case.feeds, failures: followers.stop()?.failures });
    }
    let opening_s = empty.at.elapsed().as_secs_f64();
    tokio::time::sleep(SETTLE).await;
    let idle = moment(server, pid).await?;
    let mut figures = json!({
        "case": case.name(), "feeds": case.feeds, "databases": case.databases, "rate": case.rate,
        "http": if case.streams == 0 { 1 } else { 2 }, "opening_s": rounded(opening_s, 100.0),
        "memory_before_mb": rounded(empty.memory_mb, 10.0), "memory_idle_mb": rounded(idle.memory_mb, 10.0),
        "idle_kb_a_feed": rounded((idle.memory_mb - empty.memory_mb) * 1024.0 / case.feeds as f64, 10.0),
    });
    if case.rate == 0 {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let after = moment(server, pid).await?;
        figures["idle_cpu_s"] = json!(rounded(after.cpu_s(&idle).0, 100.0));
        figures["idle_s"] = json!(rounded((after.at - idle.at).as_secs_f64(), 10.0));
        figures["transactions"] = json!(after.counted(&idle, "transactions"));
        let report = followers.stop()?;
        return if report.failures.is_empty() { Ok(figures) } else { Err(wrong(report.failures.join("; "))) };
    }

    let peak_mb = Rc::new(Cell::new(idle.memory_mb));
    let local = LocalSet::new();
    let mut written = local
        .run_until(async {
            let peak_mb = peak_mb.clone();
            let sampler = tokio::task::spawn_local(async move {
                loop {
                    peak_mb.set(peak_mb.get().max(resident(pid).anonymous_mb));
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            });
            let written = write(case, seconds, server, tally.clone()).await;
            drain(&tally, case.followers()).await;
            sampler.abort();
            written
        })
        .await?;
    let after = moment(server, pid).await?;
    let report = followers.stop()?;
    let acknowledged = tally.acknowledged();
    check(case, &report, acknowledged as u64).map_err(wrong)?;
    let (last_rows, missing) = tally.last_rows(case.followers());
    if missing > 0 {
        return Err(wrong(format!("{missing} rows did not come within {DRAIN_MAX:?}")));
    }

    let took_s = (after.at - idle.at).as_secs_f64();
    let rows = tally.rows() as f64;
    let (server_cpu_s, client_cpu_s) = after.cpu_s(&idle);
    let per_write = |name: &str| rounded(after.counted(&idle, name) / acknowledged as f64, 100.0);
    figures["writes"] = json!(acknowledged);
    figures["writes_per_s"] = json!(rounded(acknowledged as f64 / written.seconds, 10.0));
    figures["write_ms"] = percentiles(&mut written.latencies_ms);
    figures["rows"] = json!(rows);
    figures["rows_per_s"] = json!(rounded(rows / took_s, 1.0));
    figures["bytes"] = json!(report.bytes);
    figures["acknowledged_to_last_row_ms"] = last_rows;
    figures["acknowledged_to_row_ms"] = report.latencies.percentiles();
    figures["took_s"] = json!(rounded(took_s, 10.0));
    figures["server_cpu_s"] = json!(rounded(server_cpu_s, 100.0));
    figures["client_cpu_s"] = json!(rounded(client_cpu_s, 100.0));
    figures["server_us_a_row"] = json!(rounded(server_cpu_s * 1e6 / rows, 100.0));
    figures["memory_peak_mb"] = json!(rounded(peak_mb.get(), 10.0));
    figures["work_kb_a_feed"] = json!(rounded((peak_mb.get() - empty.memory_mb) * 1024.0 / case.feeds as f64, 10.0));
    for name in ["transactions", "by_seq_reads", "by_seq_rows", "watches_set", "watches_fired"] {
        figures[format!("{name}_a_write")] = json!(per_write(name));
    }
    Ok(figures)
}

async fn make_databases(server: &Server, databases: usize) -> Result<(), LoadError> {
    let mut connection = Connection::open(&server.url).await?;
    for database in 0..databases {
        let path = format!("/feeds{database}");
        let answer = connection.call(Method::PUT, &path, Bytes::new()).await?;
        if answer.status != 201 {
            return Err(LoadError::Status { method: Method::PUT, path, status: answer.status, text: answer.text() });
        }
    }
    Ok(())
}

struct WriteTimes {
    latencies_ms: Vec<f64>,
    seconds: f64,
}

/// Writes at the case's rate. Each document is new, and databases take turns. A write waits for a free connection.
async fn write(case: Case, seconds: u64, server: &Server, tally: Arc<Tally>) -> Result<WriteTimes, LoadError> {
    let started = Instant::now();
    let count = case.rate * seconds;
    let next = Rc::new(Cell::new(0_u64));
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS.min(usize::try_from(case.rate).unwrap_or(WRITERS)) {
        let mut connection = Connection::open(&server.url).await?;
        let (next, tally) = (next.clone(), tally.clone());
        writers.spawn_local(async move {
            let mut latencies_ms = Vec::new();
            loop {
                let number = next.replace(next.get() + 1);
                if number >= count {
                    return Ok::<_, LoadError>(latencies_ms);
                }
                let due = started + Duration::from_nanos(number * 1_000_000_000 / case.rate);
                tokio::time::sleep_until(due.into()).await;
                let database = number as usize % case.databases;
                let path = format!("/feeds{database}/{}", documents::id(number));
                let sent = Instant::now();
                let answer = connection.call(Method::PUT, &path, documents::text(number, false)).await?;
                if answer.status != 201 {
                    let (status, text) = (answer.status, answer.text());
                    return Err(LoadError::Status { method: Method::PUT, path, status, text });
                }
                tally.acknowledge(number as usize);
                latencies_ms.push(sent.elapsed().as_secs_f64() * 1e3);
            }
        });
    }
    let mut latencies_ms = Vec::new();
    while let Some(finished) = writers.join_next().await {
        if let Ok(finished) = finished {
            latencies_ms.extend(finished?);
        }
    }
    Ok(WriteTimes { latencies_ms, seconds: started.elapsed().as_secs_f64() })
}

/// Waits until the followers have all rows, or none came for [`DRAIN_MAX`].
async fn drain(tally: &Tally, followers: u32) {
    let wanted = tally.acknowledged() as u64 * u64::from(followers);
    let (mut last, mut since) = (tally.rows(), Instant::now());
    while last < wanted && since.elapsed() < DRAIN_MAX {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let rows = tally.rows();
        if rows > last {
            (last, since) = (rows, Instant::now());
        }
    }
}

/// Checks that each follower has each row of its database once, and that all followers of a database have the same
/// order.
fn check(case: Case, report: &Report, writes: u64) -> Result<(), String> {
    if !report.failures.is_empty() {
        return Err(report.failures.join("; "));
    }
    let mut orders: BTreeMap<usize, u64> = BTreeMap::new();
    for (feed, seen) in report.seen.iter().enumerate() {
        // Writes go to the databases in turn.
        let databases = case.databases as u64;
        let wanted = writes / databases + u64::from((seen.database as u64) < writes % databases);
        if seen.rows != wanted {
            return Err(format!("feed {feed} has {} rows, not {wanted}", seen.rows));
        }
        if *orders.entry(seen.database).or_insert(seen.order) != seen.order {
            return Err(format!("feed {feed} has another order than others of its database"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_names_of_their_own() {
        let mut names: Vec<String> = cases().iter().map(Case::name).collect();
        assert!(names.contains(&"10000of1000-100".to_owned()) && names.contains(&"1000of1-h2x100-idle".to_owned()));
        names.sort();
        names.dedup();
        assert_eq!(names.len(), cases().len());
        assert!(is_called("1000of1-10", "1000of1-10") && is_called("1000of1-10", "1000*"));
        assert!(!is_called("1000of1-100", "1000of1-10"));
    }

    #[test]
    fn a_follower_that_lost_or_swapped_rows_is_found() {
        let case = Case { feeds: 2, databases: 1, rate: 10, streams: 0 };
        let report = |second: followers::FollowerResult| Report {
            seen: vec![followers::FollowerResult { database: 0, rows: 3, order: 7 }, second],
            latencies: tally::Histogram::default(),
            failures: Vec::new(),
            bytes: 0,
        };
        assert_eq!(check(case, &report(followers::FollowerResult { database: 0, rows: 3, order: 7 }), 3), Ok(()));
        assert!(check(case, &report(followers::FollowerResult { database: 0, rows: 2, order: 7 }), 3).is_err());
        assert!(check(case, &report(followers::FollowerResult { database: 0, rows: 3, order: 8 }), 3).is_err());
    }
}
