//! `flatbed worker --url`: processes that keep their jobs at a server, suspended, resumed, and with the server
//! restarted.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use flatbed_client::Url;
use flatbed_testkit::http::{Request, listen};
use flatbed_testkit::{PATIENCE, pass, until_wanted};
use hyper::Method;
use serde_json::{Value, json};

use crate::support::{Server, call, flatbed, signal, storage};

const PASSWORD: &str = "hunter2-of-root";
const TOKEN: &str = "hunter2-of-the-target";

pub struct TestFiles {
    directory: tempfile::TempDir,
}

impl TestFiles {
    pub fn new() -> TestFiles {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("files")).unwrap();
        fs::create_dir(directory.path().join("secrets")).unwrap();
        fs::write(directory.path().join("secrets/token"), TOKEN).unwrap();
        fs::write(directory.path().join("password"), format!("{PASSWORD}\n")).unwrap();
        TestFiles { directory }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn log(&self, name: &str) -> File {
        File::options().append(true).create(true).open(self.path(&format!("{name}.log"))).unwrap()
    }

    /// Starts a server with an administrator, and leases of 3 s.
    pub fn server(&self, more: &[&str]) -> Server {
        let mut arguments = storage(&self.path("data"));
        arguments.extend(["--worker-lease-seconds", "3", "--log-level", "debug"].map(str::to_owned));
        arguments.extend(more.iter().map(|text| (*text).to_owned()));
        let mut command = flatbed();
        command.env("FLATBED_ADMIN", format!("root:{PASSWORD}")).stderr(self.log("server"));
        let mut server = Server::start_as(&mut command, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
        server.url = Url::parse(&format!("http://root:{PASSWORD}@{}", server.url.authority())).unwrap();
        server
    }

    fn worker(&self, server: &Server, name: &str) -> Worker {
        self.worker_at(&server.url.authority(), name, "trace")
    }

    /// Starts a process that keeps its jobs there.
    pub fn worker_at(&self, authority: &str, name: &str, log_level: &str) -> Worker {
        let mut child = flatbed()
            .args(["worker", "--url", &format!("http://{authority}"), "--user", "root"])
            .args(["--password-file", &self.text("password"), "--worker-files", &self.text("files")])
            .args(["--worker-secrets", &self.text("secrets"), "--worker-allow", "127.0.0.1", "--log-level", log_level])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(self.log(name))
            .spawn()
            .expect("the binary runs");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let node = line.split_whitespace().last().expect("it says what it is called").to_owned();
        Worker { child, node }
    }
}

pub struct Worker {
    child: Child,
    node: String,
}

impl Worker {
    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// Sends SIGTERM, and waits; true if it ended with status 0.
    pub fn end(mut self) -> bool {
        self.signal("TERM");
        self.child.wait().unwrap().success()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn ask(server: &Server, method: Method, path: &str, body: Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    call(&mut server.connect().await, method, path, &body).await
}

async fn ok(server: &Server, method: Method, path: &str, body: Value) {
    let (status, answer) = ask(server, method, path, body).await;
    assert!(status < 300, "{path}: {status} {answer}");
}

/// Repeats a request until its answer is as wanted.
async fn until(server: &Server, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    until_wanted(path, async || ask(server, Method::GET, path, Value::Null).await.1, wanted).await
}

/// Returns the numbers written into the table, with repetitions.
fn written(file: &Path) -> Vec<i64> {
    let connection = rusqlite::Connection::open(file).unwrap();
    connection.busy_timeout(PATIENCE).unwrap();
    let mut statement = connection.prepare("SELECT n FROM written ORDER BY n").unwrap();
    statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

async fn until_written(file: &Path, numbers: std::ops::Range<i64>) {
    let look = async || written(file).into_iter().collect::<BTreeSet<_>>();
    until_wanted("the numbers are written", look, |found| *found == numbers.clone().collect()).await;
}

/// Creates a table whose every write adds a row to another one.
fn table(file: &Path) {
    let connection = rusqlite::Connection::open(file).unwrap();
    let statements = "CREATE TABLE t (id TEXT PRIMARY KEY, n INTEGER); CREATE TABLE written (n INTEGER);
        CREATE TRIGGER one AFTER INSERT ON t BEGIN INSERT INTO written VALUES (new.n); END;
        CREATE TRIGGER two AFTER UPDATE ON t BEGIN INSERT INTO written VALUES (new.n); END;";
    connection.execute_batch(statements).unwrap();
}

fn into_sqlite(id: &str) -> Value {
    json!({"type": "job", "id": id, "inputs": [{"id": "in", "source_type": "flatbed", "local": "db"}],
        "outputs": [{"id": "out", "database_type": "sqlite", "database": format!("{id}.sqlite")}], "output_type": "rdbms",
        "mapping": {"tables": [{"name": "t", "primary_key": "id", "columns": [{"name": "id", "path": "$._id", "type": "text"}, {"name": "n", "path": "$.n", "type": "integer"}]}]},
        "system": {"processing": {"batch": 7}, "retry": {"backoff_base_seconds": 0.1, "backoff_max_seconds": 0.5}}})
}

async fn put_job(server: &Server, job: &Value) {
    until(server, "/_worker", |answer| answer["db_name"] == "_worker").await;
    ok(server, Method::PUT, &format!("/_worker/job::{}", job["id"].as_str().unwrap()), job.clone()).await;
}

async fn put(server: &Server, numbers: std::ops::Range<i64>) {
    let documents: Vec<Value> = numbers.map(|n| json!({"_id": format!("d{n}"), "n": n})).collect();
    ok(server, Method::POST, "/db/_bulk_docs", json!({"docs": documents})).await;
}

/// Waits until a wanted process has the job, and returns it with its epoch.
async fn had_by(server: &Server, id: &str, wanted: impl Fn(&str) -> bool) -> (String, u64) {
    let is_so = |job: &Value| job["state"] == "running" && job["node"].as_str().is_some_and(&wanted);
    let job = until(server, &format!("/_worker/_api/jobs/{id}"), is_so).await;
    (job["node"].as_str().unwrap().to_owned(), job["epoch"].as_u64().unwrap())
}

/// Starts an endpoint that refuses all requests, and counts them.
async fn careless_endpoint() -> (String, Arc<Mutex<u32>>) {
    let asked: Arc<Mutex<u32>> = Arc::default();
    let count = asked.clone();
    let address = listen(move |mut connection| {
        let count = count.clone();
        async move {
            let Some(Request { path, headers, .. }) = connection.read().await else { return };
            *count.lock().unwrap() += 1;
            let said = format!("{path} {headers:?}");
            let status = if said.contains("d3") { 422 } else { 500 };
            connection.answer(status, "connection: close\r\n", &said).await;
        }
    });
    (format!("http://{}", address.await), asked)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_was_stopped_delivers_nothing_twice() {
    let place = TestFiles::new();
    let file = place.path("files/j.sqlite");
    table(&file);
    let server = place.server(&[]);
    ok(&server, Method::PUT, "/db", Value::Null).await;
    put(&server, 0..50).await;
    let workers = [place.worker(&server, "one"), place.worker(&server, "two")];
    put_job(&server, &into_sqlite("j")).await;
    // Failures are logged, and the log is checked at the end.
    let (url, asked) = careless_endpoint().await;
    let auth = json!({"method": "bearer", "token": "file:token"});
    let endpoint = json!({"type": "job", "id": "h", "inputs": [{"id": "in", "source_type": "flatbed", "local": "db"}], "output_type": "http",
        "outputs": [{"id": "out", "url": format!("{url}/{{id}}"), "auth": auth}], "mapping": null,
        "system": {"processing": {"batch": 1}, "retry": {"backoff_base_seconds": 0.1, "backoff_max_seconds": 0.5}}});
    put_job(&server, &endpoint).await;
    until_written(&file, 0..50).await;
    let (first, mut epoch) = had_by(&server, "j", |_| true).await;
    let (mut numbers, mut stopped) = (50, first);
    for _ in 0..2 {
        let worker = workers.iter().find(|worker| worker.node == stopped).expect("it is one of them");
        worker.signal("STOP");
        // It has requested these, and finds them when it resumes.
        put(&server, numbers..numbers + 50).await;
        let (other, risen) = had_by(&server, "j", |node| node != stopped).await;
        assert!(risen > epoch, "{risen} {epoch}");
        until_written(&file, 0..numbers + 50).await;
        // Another process has its lease by now.
        pass(Duration::from_secs(1)).await;
        put(&server, numbers + 50..numbers + 75).await;
        worker.signal("CONT");
        put(&server, numbers + 75..numbers + 100).await;
        numbers += 100;
        until_written(&file, 0..numbers).await;
        (stopped, epoch) = (other, risen);
    }
    // Each state of each document was written once.
    assert_eq!(written(&file), (0..numbers).collect::<Vec<_>>());
    until_wanted("the endpoint is asked", async || *asked.lock().unwrap(), |asked| *asked > 3).await;
    let job = until(&server, "/_worker/_api/jobs/h", |job| job["errors"][0]["error"].is_string()).await;
    assert!(!job.to_string().contains("hunter2"), "{job}");
    for worker in workers {
        worker.signal("HUP");
        assert!(worker.end());
    }
    assert!(server.stop());
    for name in ["server", "one", "two"] {
        let log = fs::read_to_string(place.path(&format!("{name}.log"))).unwrap();
        assert!(!log.is_empty());
        for secret in [PASSWORD, TOKEN] {
            let pair = BASE64_STANDARD.encode(format!("root:{secret}"));
            for text in [secret, &BASE64_STANDARD.encode(secret), &pair] {
                let line = log.lines().find(|line| line.contains(text));
                assert!(line.is_none(), "{name}.log has a secret: {line:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_is_restarted_under_them() {
    let place = TestFiles::new();
    let file = place.path("files/j.sqlite");
    table(&file);
    // No other test listens at this address, so the port stays free while the server is away.
    let server = place.server(&["--listen", "127.0.5.1:0"]);
    let address = server.url.authority();
    ok(&server, Method::PUT, "/db", Value::Null).await;
    put(&server, 0..50).await;
    let workers = [place.worker(&server, "one"), place.worker(&server, "two")];
    put_job(&server, &into_sqlite("j")).await;
    until_written(&file, 0..50).await;
    let (_, mut epoch) = had_by(&server, "j", |_| true).await;
    let (mut server, mut numbers) = (server, 50);
    for _ in 0..2 {
        put(&server, numbers..numbers + 50).await;
        server.kill();
        // Longer than the job's owner may continue without the server.
        pass(Duration::from_secs(3)).await;
        server = place.server(&["--listen", &address]);
        put(&server, numbers + 50..numbers + 100).await;
        numbers += 100;
        until_written(&file, 0..numbers).await;
        let (_, now) = had_by(&server, "j", |_| true).await;
        assert!(now >= epoch, "{now} {epoch}");
        epoch = now;
    }
    assert_eq!(written(&file), (0..numbers).collect::<Vec<_>>());
    // A request to reset reaches the job's owner.
    ok(&server, Method::POST, "/_worker/_api/jobs/j/reset", json!({"to": "now"})).await;
    until(&server, "/_worker/_api/jobs/j", |job| job["orders"] == json!([])).await;
    ok(&server, Method::POST, "/_worker/_api/jobs/j/stop", Value::Null).await;
    until(&server, "/_worker/_api/jobs/j", |job| job["state"] == "paused").await;
    for worker in workers {
        assert!(worker.end());
    }
    assert!(server.stop());
}

#[tokio::test(flavor = "multi_thread")]
async fn beside_a_server_that_runs_jobs_itself() {
    let place = TestFiles::new();
    let files = place.text("files");
    let server = place.server(&["--worker", "--worker-jobs", "1", "--worker-files", &files]);
    ok(&server, Method::PUT, "/db", Value::Null).await;
    let at = |id: &str| place.path(&format!("files/{id}.sqlite"));
    for id in ["a", "b"] {
        table(&at(id));
        put_job(&server, &into_sqlite(id)).await;
    }
    put(&server, 0..50).await;
    // The server has room for one of them.
    let worker = place.worker(&server, "one");
    let mut had = Vec::new();
    for id in ["a", "b"] {
        until_written(&at(id), 0..50).await;
        had.push((id, had_by(&server, id, |_| true).await));
    }
    let is_there = |(_, (node, _)): &&(&str, (String, u64))| *node == worker.node;
    let (there, (_, epoch)) = had.iter().find(is_there).expect("one of them runs in the process").clone();
    let (here, _) = had.iter().find(|one| !is_there(one)).expect("one of them runs in the server").clone();
    worker.signal("STOP");
    ok(&server, Method::POST, &format!("/_worker/_api/jobs/{here}/stop"), Value::Null).await;
    put(&server, 50..100).await;
    let (_, risen) = had_by(&server, there, |node| node != worker.node).await;
    assert!(risen > epoch);
    until_written(&at(there), 0..100).await;
    worker.signal("CONT");
    // Only the process has room for the other one.
    ok(&server, Method::POST, &format!("/_worker/_api/jobs/{here}/start"), Value::Null).await;
    had_by(&server, here, |node| node == worker.node).await;
    put(&server, 100..150).await;
    for id in ["a", "b"] {
        until_written(&at(id), 0..150).await;
        assert_eq!(written(&at(id)), (0..150).collect::<Vec<_>>(), "{id}");
    }
    assert!(worker.end());
    assert!(server.stop());
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_are_the_administrators() {
    let place = TestFiles::new();
    let server = place.server(&["--worker"]);
    put_job(&server, &{
        let mut job = into_sqlite("j");
        job["enabled"] = false.into();
        job
    })
    .await;
    let take = "/_worker/_api/leases/j/take";
    let hold = "/_worker/_api/leases/j/hold";
    let (one, two) = ("01".repeat(16), "02".repeat(16));
    let stranger = Url::parse(&format!("http://{}", server.url.authority())).unwrap();
    for (method, path) in [
        (Method::GET, "/_worker/_api/leases"),
        (Method::POST, "/_worker/_api/leases"),
        (Method::POST, take),
        (Method::DELETE, "/_worker/_api/leases/j"),
    ] {
        let mut connection = flatbed_client::Connection::open(&stranger).await.unwrap();
        assert_eq!(call(&mut connection, method, path, "").await.0, 401, "{path}");
    }
    let (status, taken) = ask(&server, Method::POST, take, json!({"owner": one})).await;
    assert_eq!((status, &taken["ours"], taken["epoch"].is_u64()), (200, &json!(true), true), "{taken}");
    let epoch = taken["epoch"].as_u64().unwrap();
    let told = json!({"owner": one, "told": {"epoch": epoch, "node": "x"}});
    assert_eq!(ask(&server, Method::POST, hold, told.clone()).await.1["ours"], true);
    // Another process has it, and is not silent.
    let (_, others) = ask(&server, Method::POST, take, json!({"owner": two})).await;
    assert_eq!((&others["ours"], &others["lease"]["owner"]), (&json!(false), &json!(one)));
    assert_eq!(ask(&server, Method::POST, hold, told.clone()).await.1["ours"], true);
    let (_, still) = ask(&server, Method::POST, take, json!({"owner": two, "stale": others["lease"]})).await;
    assert_eq!(still["ours"], false, "it was held since");
    // Silent since: taken over, with its state and a higher epoch.
    let (_, risen) = ask(&server, Method::POST, take, json!({"owner": two, "stale": still["lease"]})).await;
    assert_eq!((&risen["ours"], &risen["told"]["node"]), (&json!(true), &json!("x")));
    let risen = risen["epoch"].as_u64().unwrap();
    assert!(risen > epoch);
    assert_eq!(ask(&server, Method::POST, hold, told.clone()).await.1["ours"], false);
    let told_of_two = json!({"owner": two, "told": {"epoch": risen}});
    assert_eq!(ask(&server, Method::POST, hold, told_of_two.clone()).await.1["ours"], true);
    // Several at once, each with a result of its own.
    let all = "/_worker/_api/leases";
    let of =
        |owner: &str, id: &str, epoch: u64| json!({"owner": owner, "held": [{"id": id, "told": {"epoch": epoch}}]});
    let mut held = of(&two, "j", risen);
    held["held"].as_array_mut().unwrap().insert(0, json!({"id": "gone", "told": {"epoch": 7}}));
    assert_eq!(ask(&server, Method::POST, all, held.clone()).await, (200, json!({"ours": [false, true]})));
    assert_eq!(ask(&server, Method::POST, all, of(&one, "j", risen)).await.1["ours"], json!([false]));
    assert_eq!(ask(&server, Method::POST, all, of(&two, "j", risen - 1)).await.1["ours"], json!([false]));
    assert_eq!(ask(&server, Method::POST, all, json!({"owner": two, "held": []})).await.1["ours"], json!([]));
    let many: Vec<_> = (0..101).map(|at| json!({"id": at.to_string(), "told": {"epoch": 1}})).collect();
    let long = |count: usize| vec![json!({"id": "j", "told": {"epoch": 1, "x": "x".repeat(49_900)}}); count];
    for held in [
        json!(7),
        json!([7]),
        json!([{"id": "j"}]),
        json!([{"id": "", "told": {"epoch": 1}}]),
        json!([{"id": "j", "told": {"epoch": 0}}]),
        json!([{"id": "j", "told": {"epoch": 1}}, {"id": "j", "told": {"epoch": 1}}]),
        json!([{"id": "j", "told": {"epoch": 1, "x": "x".repeat(60_000)}}]),
        json!(many),
        json!(
            long(11)
                .into_iter()
                .enumerate()
                .map(|(at, mut row)| {
                    row["id"] = at.to_string().into();
                    row
                })
                .collect::<Vec<_>>()
        ),
    ] {
        assert_eq!(ask(&server, Method::POST, all, json!({"owner": two, "held": held})).await.0, 400);
    }
    assert_eq!(ask(&server, Method::POST, all, json!({"owner": "x", "held": []})).await.0, 400);
    // Released; a request of the old epoch comes late, from a process that has the lease again.
    let release = "/_worker/_api/leases/j/release";
    assert_eq!(ask(&server, Method::POST, release, told_of_two).await.1["ours"], true);
    assert_eq!(ask(&server, Method::POST, take, json!({"owner": one})).await.1["ours"], true);
    assert_eq!(ask(&server, Method::POST, hold, told).await.1["ours"], false);
    for (method, path, body, status) in [
        (Method::POST, take, json!({}), 400),
        (Method::POST, take, json!({"owner": "x"}), 400),
        (Method::POST, take, json!({"owner": one, "stale": 7}), 400),
        (Method::POST, hold, json!({"owner": one}), 400),
        (Method::POST, hold, json!({"owner": one, "told": {"epoch": 0}}), 400),
        (Method::POST, hold, json!({"owner": one, "told": {"epoch": 1, "x": "x".repeat(60_000)}}), 400),
        (Method::POST, "/_worker/_api/leases/gone/take", json!({"owner": one}), 404),
        (Method::DELETE, "/_worker/_api/leases/j", Value::Null, 409),
        (Method::GET, take, Value::Null, 405),
    ] {
        assert_eq!(ask(&server, method, path, body).await.0, status, "{path}");
    }
    // An epoch must have a successor.
    let last = json!({"owner": one, "told": {"epoch": u64::MAX}});
    assert_eq!(ask(&server, Method::POST, hold, last).await.1["ours"], false);
    assert!(server.stop());
}
