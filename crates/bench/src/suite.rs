//! The suite of `make bench`: the same loads on Flatbed and on pouchdb-server, the raw engine under the same keys, and
//! one table of the results.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use bytes::Bytes;
use flatbed_client::Connection;
use hyper::Method;
use serde_json::{Value, json};

use crate::{
    histories,
    load::{self, Kind, LoadError, Target},
    queries,
    server::{Server, ServerError},
    stats::{disk_mb, resident, rounded},
};

pub(crate) struct Options {
    /// Flatbed's binary.
    pub flatbed: PathBuf,
    /// The script of npm's pouchdb-server, if it is installed.
    pub pouchdb: Option<PathBuf>,
    /// The directory of the data and the results.
    pub directory: PathBuf,
    /// The documents of the bulk load, and so of the reads. pouchdb-server, which is slower, gets a tenth.
    pub documents: u64,
    /// The longest duration of a load of single requests, in seconds.
    pub seconds: u64,
}

/// The reason why the suite did not finish.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SuiteError {
    /// A server did not start.
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error("{server}, {name}: {source}")]
    Load {
        /// The server that was loaded.
        server: &'static str,
        /// The load.
        name: &'static str,
        /// The failure.
        source: LoadError,
    },
    /// The results cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The figures of one server by name.
pub(crate) type Figures = BTreeMap<&'static str, f64>;

/// The rows of the table: a figure's name, its description, the figure of CouchDB 3.5.0 with the same generator on a
/// quiet machine of the kind that the aims are for, and the aim.
const ROWS: &[(&str, &str, Option<f64>, Option<f64>)] = &[
    ("put_1", "single writes, 1 at a time (/s)", Some(297.0), Some(1000.0)),
    ("put_16", "single writes, 16 at a time (/s)", Some(975.0), Some(5000.0)),
    ("put_64", "single writes, 64 at a time (/s)", Some(1644.0), Some(10_000.0)),
    ("sync_ms", "the disk's fdatasync before them, p50 (ms)", None, None),
    ("bulk", "bulk of 1,000 (documents/s)", Some(5637.0), Some(20_000.0)),
    ("get_16", "reads, 16 at a time (/s)", Some(1795.0), Some(40_000.0)),
    ("get_64", "reads, 64 at a time (/s)", Some(2481.0), Some(40_000.0)),
    ("all_docs", "_all_docs with documents (rows/s)", Some(13_450.0), Some(100_000.0)),
    ("changes", "_changes (rows/s)", Some(32_400.0), Some(300_000.0)),
    ("changes_docs", "_changes with documents (rows/s)", Some(10_356.0), Some(60_000.0)),
    ("latency_p50", "acknowledged write to feed, p50 (ms)", None, Some(2.0)),
    ("latency_p99", "acknowledged write to feed, p99 (ms)", None, None),
    ("anonymous_mb", "resident memory, own (MB)", None, Some(150.0)),
    ("file_mb", "resident memory, mapped files (MB)", None, None),
    ("disk_mb", "disk (MB)", Some(147.0), Some(220.0)),
    ("documents", "documents at the reads, memory and disk", Some(100_000.0), None),
    ("replication", "10,000 documents to another Flatbed (s)", None, Some(3.0)),
    ("update_plain", "updates of documents without a history (/s)", None, None),
    ("update_history", "updates of documents of 1,000 revisions (/s)", None, None),
    ("history_share", "updates with 1,000 revisions take so many times as long", None, Some(1.5)),
    ("history_cpu_share", "and so many times the processor time", None, Some(1.5)),
    ("update_conflicts", "updates of documents with 50 conflicts (/s)", None, None),
    ("read_plain", "reads of documents without a history (/s)", None, None),
    ("read_conflicts", "reads of documents with 50 conflicts (/s)", None, None),
    ("idle_transactions", "transactions of an idle feed in 35 s", None, Some(65.0)),
    ("build_view_emit", "first build of a view of one emit (documents/s)", Some(1280.0), Some(20_000.0)),
    ("build_view_sum", "the same with _sum (documents/s)", None, Some(20_000.0)),
    ("build_view_stats", "the same with _stats (documents/s)", None, Some(20_000.0)),
    ("build_json_index", "build of a json index (documents/s)", Some(2445.0), Some(60_000.0)),
    ("find_ms", "_find of 25 by an index (ms)", Some(9.0), Some(0.5)),
    ("count_ms", "_count of a hundred by an index (ms)", None, None),
    ("scan_ms", "_find without an index (ms)", Some(6900.0), Some(400.0)),
    ("page_ms", "page of 20 rows of a view (ms)", None, None),
    ("skip_ms", "page behind a skip of 90 % (ms)", None, None),
    ("reduce_ms", "reduce of a range of half of all rows (ms)", None, Some(2.0)),
    ("groups_ms", "group_level=1 of 1,000 groups (ms)", None, Some(50.0)),
    ("pages_16", "pages of 100 rows, 16 readers (/s)", None, Some(3000.0)),
    ("row_p50_ms", "acknowledged write to the row in a view, p50 (ms)", None, Some(10.0)),
    ("row_p99_ms", "acknowledged write to the row in a view, p99 (ms)", None, Some(50.0)),
    ("lag_ms", "views behind 5,000 updates of random keys a second (ms)", None, Some(1000.0)),
    ("cost_json_single", "what a json index costs single writes (%)", None, Some(25.0)),
    ("cost_json_bulk", "what a json index costs bulk (%)", None, Some(35.0)),
    ("cost_view_single", "what a view costs single writes (%)", None, Some(45.0)),
    ("cost_view_bulk", "what a view costs bulk (%)", None, Some(45.0)),
];

/// The simulated cluster of Flatbed's second run: design/embedded-engine.md.
pub(crate) const MODEL: &[(&str, &str)] = &[("FLATBED_FDB_LATENCY_US", "1000,500,2000"), ("FLATBED_FDB_SERVER", "1")];

/// Runs all loads. Prints a line of JSON for each, and at the end the table. The directory gets both, too.
pub(crate) async fn run(options: &Options) -> Result<(), SuiteError> {
    fs::create_dir_all(&options.directory)?;
    let mut log = fs::File::create(options.directory.join("results.jsonl"))?;

    let data = options.directory.join("flatbed-data");
    let mut flatbed = Figures::new();
    remove(&data)?;
    let server = Server::flatbed(&options.flatbed, &data).await?;
    single_writes("flatbed", &server, options, &mut log, &mut flatbed).await?;
    server.stop().await?;
    // A new directory, so that disk and memory are those of these documents.
    remove(&data)?;
    let server = Server::flatbed(&options.flatbed, &data).await?;
    the_rest("flatbed", &server, options.documents, options.seconds, &mut log, &mut flatbed).await?;
    if let Some(transactions) = idle_transactions(&server).await {
        flatbed.insert("idle_transactions", transactions);
    }
    let other_data = options.directory.join("flatbed-other-data");
    remove(&other_data)?;
    let other = Server::flatbed(&options.flatbed, &other_data).await?;
    let seconds = replication("flatbed", &server, &other, &mut log).await?;
    flatbed.insert("replication", seconds);
    // On another server than the one whose keys the raw engine takes.
    histories(&other, &mut log, &mut flatbed).await?;
    other.stop().await?;
    remove(&other_data)?;
    server.stop().await?;
    let asked = Server::flatbed(&options.flatbed, &other_data).await?;
    queries("flatbed", &asked, options, &mut log, &mut flatbed).await?;
    asked.stop().await?;
    remove(&other_data)?;

    let raw = raw_engine(options, &data, &mut log)?;
    remove(&data)?;

    let model = under_the_model(options, &data, &other_data, &mut log).await?;

    let mut pouchdb = Figures::new();
    if let Some(script) = &options.pouchdb {
        let data = options.directory.join("pouchdb-data");
        remove(&data)?;
        let server = Server::pouchdb(script, &data).await?;
        single_writes("pouchdb-server", &server, options, &mut log, &mut pouchdb).await?;
        server.stop().await?;
        remove(&data)?;
        let server = Server::pouchdb(script, &data).await?;
        let documents = options.documents / 10;
        the_rest("pouchdb-server", &server, documents, options.seconds, &mut log, &mut pouchdb).await?;
        server.stop().await?;
        remove(&data)?;
    }

    let table = table(&flatbed, &model, &pouchdb, &raw);
    fs::write(options.directory.join("results.md"), &table)?;
    print!("\n{table}");
    Ok(())
}

/// Runs the same loads with a cluster's latencies and the work of its server simulated by the engine. Histories are
/// left out, since creating them takes minutes there.
async fn under_the_model(
    options: &Options,
    data: &Path,
    other_data: &Path,
    log: &mut fs::File,
) -> Result<Figures, SuiteError> {
    const NAME: &str = "flatbed, simulated cluster";
    let mut figures = Figures::new();
    let server = Server::flatbed_with(&options.flatbed, data, MODEL).await?;
    single_writes(NAME, &server, options, log, &mut figures).await?;
    server.stop().await?;
    remove(data)?;
    let server = Server::flatbed_with(&options.flatbed, data, MODEL).await?;
    the_rest(NAME, &server, options.documents, options.seconds, log, &mut figures).await?;
    let other = Server::flatbed_with(&options.flatbed, other_data, MODEL).await?;
    figures.insert("replication", replication(NAME, &server, &other, log).await?);
    other.stop().await?;
    server.stop().await?;
    remove(other_data)?;
    let asked = Server::flatbed_with(&options.flatbed, other_data, MODEL).await?;
    queries(NAME, &asked, options, log, &mut figures).await?;
    asked.stop().await?;
    remove(other_data)?;
    remove(data)?;
    Ok(figures)
}

/// Removes a directory with its content, if it exists.
pub(crate) fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn target(server: &Server, database: &str) -> Target {
    Target { url: server.url.clone(), database: format!("/{database}"), pid: server.pid() }
}

/// Writes the line of a load, and returns its figure for the table.
fn record(
    log: &mut fs::File,
    server: &'static str,
    name: &'static str,
    result: Result<Value, LoadError>,
    pointer: &str,
) -> Result<f64, SuiteError> {
    let result = result.map_err(|source| SuiteError::Load { server, name, source })?;
    line(log, server, &result)?;
    Ok(result.pointer(pointer).and_then(Value::as_f64).unwrap_or(f64::NAN))
}

async fn fresh(server: &'static str, name: &'static str, target: &Target) -> Result<(), SuiteError> {
    load::fresh(target).await.map_err(|source| SuiteError::Load { server, name, source })
}

async fn single_writes(
    name_of_server: &'static str,
    server: &Server,
    options: &Options,
    log: &mut fs::File,
    figures: &mut Figures,
) -> Result<(), SuiteError> {
    figures.insert("sync_ms", sync_ms(&server.directory)?);
    for (name, workers) in [("put_1", 1), ("put_16", 16), ("put_64", 64)] {
        let target = target(server, "single");
        fresh(name_of_server, name, &target).await?;
        let result = load::single(&target, Kind::Put(0), workers, options.documents, options.seconds).await;
        figures.insert(name, record(log, name_of_server, name, result, "/per_s")?);
    }
    Ok(())
}

async fn the_rest(
    name_of_server: &'static str,
    server: &Server,
    documents: u64,
    seconds: u64,
    log: &mut fs::File,
    figures: &mut Figures,
) -> Result<(), SuiteError> {
    let target = target(server, "bench");
    let mut record = |name, result, pointer: &str| record(log, name_of_server, name, result, pointer);
    fresh(name_of_server, "bulk", &target).await?;
    figures.insert("bulk", record("bulk", load::bulk(&target, 1000, documents, 600).await, "/per_s")?);
    figures.insert("documents", documents as f64);
    for (name, workers) in [("get_16", 16), ("get_64", 64)] {
        let result = load::single(&target, Kind::Get(documents), workers, u64::MAX, seconds).await;
        figures.insert(name, record(name, result, "/per_s")?);
    }
    for (name, path) in [
        ("all_docs", "/_all_docs?include_docs=true"),
        ("changes", "/_changes"),
        ("changes_docs", "/_changes?include_docs=true"),
    ] {
        figures.insert(name, record(name, load::rows(&target, path).await, "/per_s")?);
    }
    if let Some(pid) = server.pid() {
        let memory = resident(pid);
        let disk_mb = rounded(disk_mb(&server.directory), 10.0);
        figures.insert("file_mb", rounded(memory.file_mb, 10.0));
        figures.insert("disk_mb", disk_mb);
        let found = json!({
            "load": "none", "documents": documents, "anonymous_mb": rounded(memory.anonymous_mb, 10.0),
            "file_mb": rounded(memory.file_mb, 10.0), "peak_mb": rounded(memory.peak_mb, 10.0), "disk_mb": disk_mb,
        });
        figures.insert("anonymous_mb", record("memory", Ok(found), "/anonymous_mb")?);
    }
    let latency = load::latency(&target, 500, 50).await;
    let p99 = latency.as_ref().ok().and_then(|figures| figures.pointer("/acknowledged_to_row_ms/p99")?.as_f64());
    figures.insert("latency_p50", record("latency", latency, "/acknowledged_to_row_ms/p50")?);
    figures.insert("latency_p99", p99.unwrap_or(f64::NAN));
    Ok(())
}

/// Measures documents with a history and with conflicts beside plain documents.
async fn histories(server: &Server, log: &mut fs::File, figures: &mut Figures) -> Result<(), SuiteError> {
    let found = histories::run(&target(server, "histories")).await;
    let found = found.map_err(|source| SuiteError::Load { server: "flatbed", name: "histories", source })?;
    line(log, "flatbed", &found)?;
    let figure = |name: &str| found[name].as_f64().unwrap_or(f64::NAN);
    for name in ["update_plain", "update_history", "update_conflicts", "read_plain", "read_conflicts"] {
        figures.insert(name, figure(name));
    }
    figures.insert("history_share", figure("update_plain") / figure("update_history"));
    figures.insert("history_cpu_share", figure("update_history_cpu_us") / figure("update_plain_cpu_us"));
    Ok(())
}

/// Measures views and json indexes.
async fn queries(
    name: &'static str,
    server: &Server,
    options: &Options,
    log: &mut fs::File,
    figures: &mut Figures,
) -> Result<(), SuiteError> {
    let found = queries::run(&target(server, "queries"), options.documents).await;
    let found = found.map_err(|source| SuiteError::Load { server: name, name: "queries", source })?;
    line(log, name, &found)?;
    for (row, ..) in ROWS {
        if let Some(figure) = found[*row].as_f64().filter(|_| *row != "documents") {
            figures.insert(row, figure);
        }
    }
    Ok(())
}

/// Returns the seconds of one replication of 10,000 documents that the server pushes into an empty database of another.
async fn replication(
    name: &'static str,
    server: &Server,
    other: &Server,
    log: &mut fs::File,
) -> Result<f64, SuiteError> {
    const DOCUMENTS: u64 = 10_000;
    let failed = |source| SuiteError::Load { server: name, name: "replication", source };
    let source = target(server, "replicated");
    fresh(name, "replication", &source).await?;
    load::bulk(&source, 1000, DOCUMENTS, 600).await.map_err(failed)?;
    let spec = json!({"source": "replicated", "target": format!("{}/replica", other.url), "create_target": true});
    let mut connection = Connection::open(&server.url).await.map_err(|error| failed(error.into()))?;
    let started = Instant::now();
    let answer = connection.call(Method::POST, "/_replicate", spec.to_string()).await;
    let seconds = rounded(started.elapsed().as_secs_f64(), 100.0);
    let answer: Value = serde_json::from_slice(&answer.map_err(|error| failed(error.into()))?.body).unwrap_or_default();
    let written = answer.pointer("/history/0/docs_written").and_then(Value::as_u64);
    let result = json!({"load": "replication", "documents": written, "seconds": seconds});
    line(log, name, &result)?;
    // An incomplete replication has no figure.
    Ok(if written == Some(DOCUMENTS) { seconds } else { f64::NAN })
}

/// Returns the median time of 50 syncs of one page each to a file, in milliseconds. Single writes depend on it, and it
/// varies with other work of the machine.
fn sync_ms(directory: &Path) -> io::Result<f64> {
    let mut file = tempfile::tempfile_in(directory)?;
    let mut times_ms = Vec::new();
    for _ in 0..50 {
        let started = Instant::now();
        file.write_all(&[1; 4096])?;
        file.sync_data()?;
        times_ms.push(started.elapsed().as_secs_f64() * 1e3);
    }
    times_ms.sort_by(f64::total_cmp);
    Ok(rounded(times_ms[times_ms.len() / 2], 100.0))
}

fn line(log: &mut fs::File, server: &str, result: &Value) -> io::Result<()> {
    let mut result = result.clone();
    result["server"] = json!(server);
    println!("{result}");
    writeln!(log, "{result}")
}

/// Returns the transactions that a server begins in 35 s while one continuous feed waits and nothing is written, from
/// its own counters. `None` if it has none.
async fn idle_transactions(server: &Server) -> Option<f64> {
    let mut feed = Connection::open(&server.url).await.ok()?;
    let path = "/bench/_changes?feed=continuous&since=now&heartbeat=60000";
    let response = feed.send(Method::GET, path, Bytes::new()).await.ok()?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = transactions(server).await?;
    tokio::time::sleep(Duration::from_secs(35)).await;
    let after = transactions(server).await?;
    drop(response);
    Some(after - before)
}

async fn transactions(server: &Server) -> Option<f64> {
    let answer = Connection::open(&server.url).await.ok()?.call(Method::GET, "/metrics", Bytes::new()).await.ok()?;
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    let counters = text.lines().filter(|line| !line.starts_with('#') && line.contains("transactions"));
    counters.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).reduce(|sum, value| sum + value)
}

/// Runs the raw engine in a process of its own: FoundationDB's network can be started only once in a process.
fn raw_engine(options: &Options, source: &Path, log: &mut fs::File) -> Result<Figures, SuiteError> {
    let mut figures = Figures::from([("sync_ms", sync_ms(source)?)]);
    let output = std::process::Command::new(std::env::current_exe()?)
        .arg("raw")
        .arg("--source")
        .arg(source)
        .arg("--directory")
        .arg(options.directory.join("raw-data"))
        .arg("--documents")
        .arg(options.documents.to_string())
        .stderr(std::process::Stdio::inherit())
        .output()?;
    for text in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(result) = serde_json::from_str::<Value>(text) else { continue };
        line(log, "raw engine", &result)?;
        let number = |name: &str| result[name].as_f64().unwrap_or(f64::NAN);
        let name = match (number("workers") as u64, number("documents_a_transaction") as u64) {
            (1, 1) => "put_1",
            (16, 1) => "put_16",
            (64, 1) => "put_64",
            _ => "bulk",
        };
        figures.insert(name, number("per_s"));
    }
    Ok(figures)
}

fn table(flatbed: &Figures, model: &Figures, pouchdb: &Figures, raw: &Figures) -> String {
    let mut text = String::from(
        "| | Flatbed | on a simulated cluster | share of the raw engine | raw engine, same keys | pouchdb-server | CouchDB 3.5.0, elsewhere | aim |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for (name, title, couchdb, aim) in ROWS {
        let share = match (flatbed.get(name), raw.get(name)) {
            (Some(flatbed), Some(raw)) if *name != "sync_ms" => format!("{:.0} %", flatbed / raw * 100.0),
            _ => String::new(),
        };
        let cells = [
            cell(flatbed.get(name)),
            cell(model.get(name)),
            share,
            cell(raw.get(name)),
            cell(pouchdb.get(name)),
            cell(couchdb.as_ref()),
            cell(aim.as_ref()),
        ];
        text.push_str(&format!("| {title} | {} |\n", cells.join(" | ")));
    }
    text
}

fn cell(figure: Option<&f64>) -> String {
    match figure {
        None => String::new(),
        Some(figure) if figure.abs() < 100.0 && figure.fract() != 0.0 => format!("{figure:.2}"),
        Some(figure) => {
            let digits = format!("{figure:.0}");
            let mut grouped = String::new();
            for (index, digit) in digits.chars().enumerate() {
                if index > 0 && (digits.len() - index) % 3 == 0 && !grouped.ends_with('-') {
                    grouped.push(',');
                }
                grouped.push(digit);
            }
            grouped
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells() {
        for (figure, text) in
            [(1234567.8, "1,234,568"), (999.0, "999"), (1.234, "1.23"), (-1000.0, "-1,000"), (2.0, "2")]
        {
            assert_eq!(cell(Some(&figure)), text);
        }
    }

    #[test]
    fn a_row_a_figure() {
        let figures = |put_1| Figures::from([("put_1", put_1)]);
        let table = table(&figures(500.0), &figures(200.0), &Figures::new(), &figures(1000.0));
        assert!(
            table.contains("| single writes, 1 at a time (/s) | 500 | 200 | 50 % | 1,000 |  | 297 | 1,000 |"),
            "{table}"
        );
        assert_eq!(table.lines().count(), ROWS.len() + 2);
    }
}
