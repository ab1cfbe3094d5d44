//! The alert rules and the dashboard of `monitoring/`. Each alert fires on the metrics of a server that was brought
//! into its state, and on none that works.

mod promql;
mod rules;

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    os::unix::process::CommandExt,
    path::Path,
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

use crate::metrics::Scrape;
use crate::support::{Server, ask, call, flatbed, has_engine, run};
use flatbed_client::{Connection, Url};
use flatbed_testkit::{until, until_wanted};
use hyper::Method;
use promql::{Samples, Series, Vector, evaluate};
use serde_json::{Value, json};

const DASHBOARD: &str = include_str!("../../../../monitoring/grafana-dashboard.json");
const LISTED: &str = include_str!("../../../../docs/metrics.md");

/// Scrapes a server as Prometheus does, which adds `up`.
async fn scraped(url: &Url) -> Series {
    let mut series = Series::new();
    let answer = match Connection::open(url).await {
        Ok(mut connection) => connection.call(Method::GET, "/metrics", "").await.ok(),
        Err(_) => None,
    };
    let labels = BTreeMap::from([("job".to_owned(), "flatbed".to_owned())]);
    series.insert(("up".to_owned(), labels), f64::from(u8::from(answer.is_some())));
    if let Some(answer) = answer {
        assert_eq!(answer.status, 200);
        series.extend(Scrape::parse(std::str::from_utf8(&answer.body).expect("UTF-8")).values);
    }
    series
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

fn samples(before: Series, now: Series) -> Samples {
    Samples { before, now, now_s: now_s() as f64 }
}

/// Returns the series for which an alert fires.
async fn firing(url: &Url, alert: &str) -> Vector {
    let now = scraped(url).await;
    evaluate(&rules::named(alert).expression, &samples(now.clone(), now))
}

async fn until_fires(url: &Url, alert: &str) {
    until_wanted(alert, async || firing(url, alert).await, |found| !found.is_empty()).await;
}

async fn is_calm(url: &Url, alert: &str) {
    let found = firing(url, alert).await;
    assert_eq!(found, Vector::new(), "{alert} fires");
}

fn start(data: &Path, arguments: &[&str]) -> Server {
    Server::start_with(&[&["--data-dir", data.to_str().unwrap()][..], arguments].concat())
}

async fn ok(server: &Server, method: Method, path: &str, body: &Value) {
    ask(&mut server.connect().await, method, path, body).await;
}

async fn until_answer(server: &Server, path: &str, wanted: impl Fn(&Value) -> bool) {
    until_wanted(path, async || call(&mut server.connect().await, Method::GET, path, "").await.1, wanted).await;
}

/// A job that looks at its database often, and tries again soon.
fn job(database: &str, id: &str, kind: &str, output: &Value) -> Value {
    let mapping = json!({"tables": [
        {"name": "t", "primary_key": "id", "columns": [{"name": "id", "path": "$._id", "type": "text"}]}]});
    let mapping = if kind == "rdbms" { mapping } else { Value::Null };
    json!({"type": "job", "id": id, "inputs": [{"id": "in", "source_type": "flatbed", "local": database,
            "changes_feed": {"feed_type": "normal", "poll_interval_seconds": 0.05}}],
        "outputs": [output], "output_type": kind, "mapping": mapping,
        "system": {"retry": {"backoff_base_seconds": 0.05, "backoff_max_seconds": 0.2}}})
}

#[tokio::test]
async fn no_alert_fires_on_a_server_that_works() {
    if !has_engine() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (data, files) = (directory.path().join("data"), directory.path().join("files"));
    fs::create_dir(&files).unwrap();
    let server = start(&data, &["--worker", "--worker-files", files.to_str().unwrap()]);
    until_answer(&server, "/_worker", |answer| answer["db_name"] == "_worker").await;
    ok(&server, Method::PUT, "/db", &Value::Null).await;
    let before = scraped(&server.url).await;
    ok(&server, Method::PUT, "/db/a", &json!({"n": 1})).await;
    let views = json!({"views": {"v": {"map": "function (doc) { emit(doc.n, 1); }"}}});
    ok(&server, Method::PUT, "/db/_design/v", &views).await;
    ok(&server, Method::GET, "/db/_design/v/_view/v", &Value::Null).await;
    let output = json!({"id": "out", "database_type": "sqlite", "database": "x.sqlite", "create_tables": true});
    ok(&server, Method::PUT, "/_worker/job::x", &job("db", "x", "rdbms", &output)).await;
    until_answer(&server, "/_worker/_api/jobs/x", |job| job["state"] == "running" && job["lag"]["rows"] == 0).await;
    let out = directory.path().join("out");
    assert!(run(&["backup", "--data-dir", data.to_str().unwrap(), out.to_str().unwrap()]).status.success());

    // The machine's disk may be full: the alert has a disk of its own.
    let rules = rules::all().into_iter().filter(|rule| rule.name != "FlatbedDiskFilling");
    let now = samples(before, scraped(&server.url).await);
    for rule in rules {
        assert_eq!(evaluate(&rule.expression, &now), Vector::new(), "{} fires", rule.name);
        // A metric that is missing would never fire.
        for metric in promql::metrics(&rule.expression) {
            assert!(now.now.keys().any(|(name, _)| *name == metric), "{}: {metric} is missing", rule.name);
        }
    }
    assert!(server.stop());
}

#[tokio::test]
async fn a_server_is_down() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let url = server.url.clone();
    is_calm(&url, "FlatbedDown").await;
    server.kill();
    until_fires(&url, "FlatbedDown").await;
}

#[tokio::test]
async fn the_storage_fails_and_so_do_requests() {
    if !has_engine() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let mut command = flatbed();
    let limit = libc::rlimit { rlim_cur: 5 << 20, rlim_max: 5 << 20 };
    // SAFETY: setrlimit takes plain values and may be called between fork and exec.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_FSIZE, &limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let server = Server::start_as(&mut command, &["--data-dir", data.to_str().unwrap()]);
    ok(&server, Method::PUT, "/db", &Value::Null).await;
    is_calm(&server.url, "FlatbedStorageFailed").await;
    // Random characters, which are not compressed.
    let mut random = vec![0; 100_000];
    getrandom::fill(&mut random).unwrap();
    let text: String = random.iter().map(|byte| char::from(b'!' + byte % 90)).filter(|char| *char != '"').collect();
    let body = json!({ "text": text }).to_string();
    let mut connection = server.connect().await;
    let mut written = 0;
    let mut put = async || {
        written += 1;
        assert!(written < 1_000, "the disk does not fail");
        call(&mut connection, Method::PUT, &format!("/db/{written}"), &body).await.0
    };
    while put().await == 201 {}
    // A series has a rate once it has two values.
    let before = scraped(&server.url).await;
    for _ in 0..10 {
        assert_eq!(put().await, 503);
    }
    let now = samples(before, scraped(&server.url).await);
    for alert in ["FlatbedStorageFailed", "FlatbedServerErrors"] {
        assert_eq!(evaluate(&rules::named(alert).expression, &now).len(), 1, "{alert}");
    }
    assert!(server.stop());
}

/// A small file system in memory, unmounted when dropped.
struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    /// `None`, with a message, if this user may not mount.
    fn mount() -> Option<Tmpfs> {
        let directory = tempfile::tempdir().unwrap();
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=64m", "tmpfs"]).arg(directory.path()).output();
        if !mount.is_ok_and(|output| output.status.success()) {
            println!("skipped: no file system can be mounted here");
            return None;
        }
        Some(Tmpfs(directory))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[tokio::test]
async fn the_disk_is_filling() {
    // The expression, where no file system can be mounted.
    let expression = rules::named("FlatbedDiskFilling").expression;
    let of = |free: f64| {
        let gauge = |name: &str, value| ((name.to_owned(), BTreeMap::new()), value);
        let now = [gauge("flatbed_disk_free_bytes", free), gauge("flatbed_disk_size_bytes", 100.0)];
        evaluate(&expression, &samples(Series::new(), now.into())).len()
    };
    assert_eq!((of(9.0), of(11.0)), (1, 0));
    let Some(disk) = has_engine().then(Tmpfs::mount).flatten() else { return };
    let server = start(&disk.0.path().join("data"), &[]);
    is_calm(&server.url, "FlatbedDiskFilling").await;
    let filler = disk.0.path().join("filler");
    let mut file = fs::File::create(&filler).unwrap();
    // Up to a tenth, with room for the server's own files.
    let is_filling = async |file: &mut fs::File| {
        file.write_all(&[1; 1 << 20]).expect("room");
        !firing(&server.url, "FlatbedDiskFilling").await.is_empty()
    };
    while !is_filling(&mut file).await {}
    fs::remove_file(&filler).unwrap();
    drop(file);
    is_calm(&server.url, "FlatbedDiskFilling").await;
    assert!(server.stop());
}

#[tokio::test]
async fn the_backup_is_missing_or_old() {
    if !has_engine() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (data, out) = (directory.path().join("data"), directory.path().join("out"));
    let server = start(&data, &[]);
    assert_eq!(firing(&server.url, "FlatbedBackupOld").await.len(), 1, "there is none");
    assert!(run(&["backup", "--data-dir", data.to_str().unwrap(), out.to_str().unwrap()]).status.success());
    is_calm(&server.url, "FlatbedBackupOld").await;
    fs::write(data.join("last-backup"), format!("{}\n", now_s() - 37 * 3_600)).unwrap();
    assert_eq!(firing(&server.url, "FlatbedBackupOld").await.len(), 1, "it is 37 hours old");
    assert!(server.stop());
}

/// A map that needs too much memory for each document ends a build.
#[tokio::test]
async fn views_fail_and_fall_behind() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    for alert in ["FlatbedViewsFailing", "FlatbedViewsBehind"] {
        is_calm(&server.url, alert).await;
    }
    ok(&server, Method::PUT, "/db", &Value::Null).await;
    let documents: Vec<Value> = (0..60).map(|at| json!({"_id": format!("d{at}")})).collect();
    ok(&server, Method::POST, "/db/_bulk_docs", &json!({ "docs": documents })).await;
    let map = "function (doc) { new ArrayBuffer(1 << 30); }";
    ok(&server, Method::PUT, "/db/_design/v", &json!({"views": {"v": {"map": map}}})).await;
    until("the build fails", async || {
        let path = "/db/_design/v/_view/v";
        call(&mut server.connect().await, Method::GET, path, "").await;
        !firing(&server.url, "FlatbedViewsFailing").await.is_empty()
    })
    .await;
    until_fires(&server.url, "FlatbedViewsBehind").await;
    assert!(server.stop());
}

#[tokio::test]
async fn a_replication_crashes() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    for path in ["/db", "/_replicator"] {
        ok(&server, Method::PUT, path, &Value::Null).await;
    }
    is_calm(&server.url, "FlatbedReplicationsCrashing").await;
    let replication = json!({"source": "http://127.0.0.1:9/none", "target": "db", "continuous": true});
    ok(&server, Method::PUT, "/_replicator/r", &replication).await;
    until_fires(&server.url, "FlatbedReplicationsCrashing").await;
    assert!(server.stop());
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_the_worker_fail_and_halt() {
    let directory = tempfile::tempdir().unwrap();
    let (data, files) = (directory.path().join("data"), directory.path().join("files"));
    fs::create_dir(&files).unwrap();
    let mut arguments = crate::support::storage(&data);
    arguments.extend(["--worker", "--worker-files", files.to_str().unwrap()].map(str::to_owned));
    arguments.extend(["--worker-allow", "127.0.0.1"].map(str::to_owned));
    let server = Server::start_with(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    until_answer(&server, "/_worker", |answer| answer["db_name"] == "_worker").await;
    for database in ["one", "two"] {
        ok(&server, Method::PUT, &format!("/{database}"), &Value::Null).await;
        ok(&server, Method::PUT, &format!("/{database}/a"), &json!({})).await;
    }
    let output = json!({"id": "out", "database_type": "sqlite", "database": "x.sqlite", "create_tables": true});
    ok(&server, Method::PUT, "/_worker/job::halts", &job("one", "halts", "rdbms", &output)).await;
    let is_through = |job: &Value| job["state"] == "running" && job["delivered"] == 1 && job["lag"]["rows"] == 0;
    until_answer(&server, "/_worker/_api/jobs/halts", is_through).await;
    for alert in ["FlatbedWorkerJobsFailing", "FlatbedWorkerJobsHalted"] {
        is_calm(&server.url, alert).await;
    }
    let nowhere = json!({"id": "out", "url": "http://127.0.0.1:9/in/{id}"});
    ok(&server, Method::PUT, "/_worker/job::fails", &job("two", "fails", "http", &nowhere)).await;
    until_fires(&server.url, "FlatbedWorkerJobsFailing").await;
    is_calm(&server.url, "FlatbedWorkerJobsHalted").await;
    // The job's database is another one of the same name.
    ok(&server, Method::DELETE, "/one", &Value::Null).await;
    ok(&server, Method::PUT, "/one", &Value::Null).await;
    until_fires(&server.url, "FlatbedWorkerJobsHalted").await;
    assert!(server.stop());
}

/// Returns the expressions of all panels.
fn of_dashboard() -> Vec<String> {
    fn collect(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(members) => {
                found.extend(members.get("expr").and_then(Value::as_str).map(str::to_owned));
                members.values().for_each(|value| collect(value, found));
            }
            Value::Array(values) => values.iter().for_each(|value| collect(value, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    collect(&serde_json::from_str(DASHBOARD).expect("JSON"), &mut found);
    found
}

/// Returns the name of the family that a series belongs to.
fn family(metric: &str) -> &str {
    ["_bucket", "_sum", "_count"].iter().find_map(|suffix| metric.strip_suffix(suffix)).unwrap_or(metric)
}

#[tokio::test]
async fn the_metrics_of_rules_and_dashboard_exist() {
    let expressions: Vec<String> = rules::all().into_iter().map(|rule| rule.expression).chain(of_dashboard()).collect();
    let mut metrics: Vec<String> = expressions.iter().flat_map(|expression| promql::metrics(expression)).collect();
    metrics.sort();
    metrics.dedup();
    metrics.retain(|metric| metric != "up");
    assert!(metrics.len() > 30, "{metrics:?}");
    for metric in &metrics {
        let name = family(metric);
        let name = name.strip_suffix("_total").unwrap_or(name);
        let is_listed = ["`", "{"].iter().any(|end| LISTED.contains(&format!("`{name}{end}")));
        let is_grouped = ["process_", "flatbed_engine_"].iter().any(|begin| name.starts_with(begin));
        assert!(is_listed || is_grouped, "{metric} is not in docs/metrics.md");
    }
    if !has_engine() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = start(&directory.path().join("data"), &["--worker"]);
    // Histograms with labels appear with their first use.
    ok(&server, Method::GET, "/", &Value::Null).await;
    let scrape = Scrape::of(&server, "/metrics").await;
    for metric in &metrics {
        assert!(scrape.kinds.contains_key(family(metric)), "{metric} is not in /metrics");
    }
    assert!(server.stop());
}

/// The series of a status appear with its first request.
#[test]
fn a_server_without_failures_shows_none_of_them() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let failing = panels.iter().find(|panel| panel["title"] == "Failing requests").expect("the panel");
    assert_eq!(failing["fieldConfig"]["defaults"]["noValue"], "0%");
}

/// Each alert is named in a test above, so that a new one gets its state, and in the documentation.
#[test]
fn each_alert_has_a_test_and_a_remedy() {
    let (tests, page) = (include_str!("monitoring.rs"), include_str!("../../../../docs/operations.md"));
    for rule in rules::all() {
        assert!(tests.contains(&format!("\"{}\"", rule.name)), "{} has no test", rule.name);
        assert!(page.contains(&format!("| `{}` | ", rule.name)), "{} is not in docs/operations.md", rule.name);
    }
}
