//! The binary with `--worker`: killed during work, and the import of another worker's files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use flatbed_testkit::{until, until_wanted};
use hyper::Method;
use serde_json::{Value, json};

use crate::support::{Server, call, run, storage};

fn start(data: &Path, files: &Path) -> Server {
    let mut arguments = storage(data);
    arguments.extend(["--worker".into(), "--worker-files".into(), files.to_str().unwrap().into()]);
    arguments.extend(["--worker-lease-seconds".into(), "3".into()]);
    Server::start_with(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

async fn until_answer(server: &Server, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    until_wanted(path, async || call(&mut server.connect().await, Method::GET, path, "").await.1, wanted).await
}

fn numbers(file: &Path) -> Vec<i64> {
    // The job creates the file and the table when it starts.
    if !file.exists() {
        return Vec::new();
    }
    let connection = rusqlite::Connection::open(file).unwrap();
    let Ok(mut statement) = connection.prepare("SELECT n FROM t ORDER BY n") else { return Vec::new() };
    statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_lose_and_repeat_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (data, files) = (directory.path().join("data"), directory.path().join("files"));
    fs::create_dir(&files).unwrap();
    let file = files.join("x.sqlite");
    let server = start(&data, &files);
    until_answer(&server, "/_worker", |answer| answer["db_name"] == "_worker").await;
    let mut connection = server.connect().await;
    call(&mut connection, Method::PUT, "/db", "").await;
    // Each batch is a transaction of its own, so that kills fall between some.
    let job = json!({"type": "job", "id": "j", "inputs": [{"id": "in", "source_type": "flatbed", "local": "db"}],
        "outputs": [{"id": "out", "database_type": "sqlite", "database": "x.sqlite", "create_tables": true}], "output_type": "rdbms",
        "mapping": {"tables": [{"name": "t", "primary_key": "id", "columns": [{"name": "id", "path": "$._id", "type": "text"}, {"name": "n", "path": "$.n", "type": "integer"}]}]},
        "system": {"processing": {"batch": 10}}});
    let (status, answer) = call(&mut connection, Method::PUT, "/_worker/job::j", &job.to_string()).await;
    assert_eq!(status, 201, "{answer}");
    let mut server = server;
    for round in 0..3_i64 {
        let documents: Vec<Value> =
            (0..500).map(|at| json!({"_id": format!("d{at}"), "n": round * 500 + at})).collect();
        let mut connection = server.connect().await;
        if round > 0 {
            // Replaces the existing document.
            let (_, all) = call(&mut connection, Method::GET, "/db/_all_docs", "").await;
            let of = |row: &Value| json!({"_id": row["id"], "_rev": row["value"]["rev"], "_deleted": true});
            let gone: Vec<Value> = all["rows"].as_array().unwrap().iter().map(of).collect();
            call(&mut connection, Method::POST, "/db/_bulk_docs", &json!({"docs": gone}).to_string()).await;
        }
        let (status, _) =
            call(&mut connection, Method::POST, "/db/_bulk_docs", &json!({"docs": documents}).to_string()).await;
        assert_eq!(status, 201);
        // Amid the batches.
        let is_begun = async || numbers(&file).iter().any(|n| n / 500 == round);
        until("some are delivered", is_begun).await;
        server.kill();
        server = start(&data, &files);
    }
    until_answer(&server, "/_worker/_api/jobs/j", |job| {
        job["state"] == "running" && job["lag"]["rows"] == 0 && job["epoch"].is_u64()
    })
    .await;
    let expected: Vec<i64> = (1_000..1_500).collect();
    until_wanted("all are delivered", async || numbers(&file), |found| *found == expected).await;
    assert!(server.stop());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_worker_has_left() {
    let directory = tempfile::tempdir().unwrap();
    let (data, left, secrets) =
        (directory.path().join("data"), directory.path().join("left"), directory.path().join("secrets"));
    fs::create_dir_all(left.join("mappings")).unwrap();
    fs::create_dir(&secrets).unwrap();
    let config = json!({"gateway": {"src": "couchdb", "url": "http://localhost:5984", "database": "db"},
        "auth": {"method": "basic", "username": "bob", "password": "hunter2"}, "changes_feed": {"since": "0"},
        "output": {"mode": "http", "target_url": "https://h/in"}});
    fs::write(left.join("config.json"), config.to_string()).unwrap();
    let mapping = "tables:\n- name: t\n  primary_key: id\n  columns:\n    id: $._id\n";
    fs::write(left.join("mappings/m.yaml"), mapping).unwrap();
    fs::write(left.join("checkpoint.json"), r#"{"client_id":"changes_worker","SGs_Seq":"7","time":1,"remote":1}"#)
        .unwrap();
    let line = r#"{"doc_id":"a","seq":"5","method":"PUT","status":500,"error":"no","time":5,"doc":{"_id":"a"}}"#;
    fs::write(left.join("failed_docs.jsonl"), format!("{line}\n")).unwrap();
    let server = Server::start(&data);
    let url = server.url.to_string();
    let arguments = ["worker", "import", left.to_str().unwrap(), "--job", "orders", "--url", &url];
    assert_eq!(run(&arguments).status.code(), Some(2), "there is nowhere for secrets");
    let done = run(&[&arguments[..], &["--secrets", secrets.to_str().unwrap()]].concat());
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{said} {}", String::from_utf8_lossy(&done.stderr));
    assert!(said.contains("job::orders") && said.contains("not enabled") && !said.contains("hunter2"), "{said}");
    let secret = secrets.join("orders.source-password");
    assert_eq!(fs::read_to_string(&secret).unwrap(), "hunter2");
    assert_eq!(fs::metadata(&secret).unwrap().permissions().mode() & 0o777, 0o600);
    let mut connection = server.connect().await;
    let (_, jobs) = call(&mut connection, Method::GET, "/_worker/_api/jobs", "").await;
    assert_eq!((&jobs["jobs"][0]["id"], &jobs["jobs"][0]["state"]), (&json!("orders"), &json!("paused")), "{jobs}");
    let (_, checkpoint) = call(&mut connection, Method::GET, "/_worker/checkpoint::orders", "").await;
    assert_eq!(checkpoint["remote"], "7");
    let (_, all) = call(&mut connection, Method::GET, "/_worker/_all_docs?include_docs=true", "").await;
    assert!(!all.to_string().contains("hunter2"));
    let entries: Vec<&Value> =
        all["rows"].as_array().unwrap().iter().filter(|row| row["doc"]["doc_id_original"] == "a").collect();
    assert_eq!(entries.len(), 1, "{all}");
    assert!(server.stop());
}
