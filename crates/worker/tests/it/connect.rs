use std::sync::Mutex;

use flatbed_worker::connect::{AnyTarget, Secrets, connect};
use flatbed_worker::documents::{Connections, Document, read};
use flatbed_worker::run::{Counts, RunEnd, Runner};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::fake::FakeQueue;
use crate::server::{Request, Response, reach, serve};

/// A database with three documents, and its `_local` documents.
fn answer(request: &Request, local: &Mutex<Option<Value>>) -> Response {
    let ok = |body: Value| (200, "", body.to_string());
    if !request.headers.contains(&("authorization".to_owned(), "Basic YW5uYTpodW50ZXIy".to_owned())) {
        return (401, "", "{}".to_owned());
    }
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    match (request.method.as_str(), path) {
        ("GET", "/db") => ok(json!({"instance_start_time": "17", "update_seq": "4-x"})),
        ("GET", "/db/_changes") => {
            let since: u64 = query.split("since=").nth(1).unwrap().split(['-', '&']).next().unwrap().parse().unwrap();
            let row = |seq: u64, id: &str, doc: Value| {
                let mut row = json!({"seq": format!("{seq}-x"), "id": id, "changes": [{"rev": "1-x"}], "doc": doc});
                if doc.is_null() {
                    row["deleted"] = true.into();
                }
                row
            };
            let rows = [
                row(1, "a", json!({"_id": "a", "_rev": "1-x", "n": 1.50})),
                row(3, "b", json!({"_id": "b", "_rev": "1-x", "n": "none"})),
                row(4, "c", Value::Null),
            ];
            let rows: Vec<Value> = rows
                .into_iter()
                .skip_while(|row| row["seq"].as_str().unwrap()[..1].parse::<u64>().unwrap() <= since)
                .collect();
            ok(json!({"results": rows, "last_seq": "4-x"}))
        }
        ("GET", _) => match &*local.lock().unwrap() {
            Some(checkpoint) => ok(checkpoint.clone()),
            None => (404, "", "{}".to_owned()),
        },
        _ => {
            let mut checkpoint: Value = serde_json::from_str(&request.body).unwrap();
            checkpoint["_rev"] = "0-1".into();
            *local.lock().unwrap() = Some(checkpoint);
            (201, "", json!({"rev": "0-1"}).to_string())
        }
    }
}

#[tokio::test]
async fn documents_of_worker_become_a_job_that_runs() {
    let local = std::sync::Arc::new(Mutex::new(None));
    let kept = local.clone();
    let (url, _) = serve(move |request| answer(request, &kept)).await;
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("couch"), "hunter2\n").unwrap();
    let secrets = Secrets { directory: Some(directory.path().to_owned()), ..Secrets::default() };
    let input = json!({"type": "inputs_changes", "src": [{"id": "in", "source_type": "couchdb", "url": format!("{url}/db"),
        "auth": {"method": "basic", "username": "anna", "password": "file:couch"}}]});
    let sqlite = json!({"type": "outputs_rdbms", "src": [{"id": "out", "database_type": "sqlite", "database": "x.sqlite", "create_tables": true}]});
    let lines = json!({"type": "outputs_cloud", "src": [{"id": "out", "provider": "file", "file": "x.jsonl"}]});
    let mapping = json!({"type": "mapping", "name": "m.yaml",
        "content": "tables:\n- name: t\n  primary_key: id\n  columns:\n    id: $._id\n    n: {path: $.n, type: 'numeric(5,2)'}\n"});
    let mut connections = Connections::default();
    for document in [&input, &sqlite, &lines, &mapping] {
        connections.add(read(document.to_string().as_bytes()).unwrap());
    }
    for (kind, mapping) in [("rdbms", json!("m.yaml")), ("cloud", Value::Null)] {
        let job = json!({"type": "job", "id": "j", "inputs": [{"id": "in"}], "outputs": [{"id": "out"}], "output_type": kind, "mapping": mapping});
        let Document::Job(job) = read(job.to_string().as_bytes()).unwrap() else { panic!() };
        let job = connections.resolve(&job).unwrap();
        for round in 0..2 {
            let connected = connect(&job, &reach(secrets.clone(), Some(directory.path().to_owned()))).unwrap();
            let (queue, (_stop, stopping)) = (FakeQueue::default(), watch::channel(false));
            let runner = Runner::new(
                &job,
                connected.source,
                connected.target,
                queue.clone(),
                connected.redactor,
                stopping,
                1 + round,
            );
            let (end, counts, _, target, _) = runner.once().run().await;
            // `b` has no number, which only a typed column requires. The second run finds nothing new.
            let is_table = matches!(target, Some(AnyTarget::Sqlite(_)));
            let expected = match (round, is_table) {
                (0, true) => Counts { delivered: 2, queued: 1, outages: 0, ..Counts::default() },
                (0, false) => Counts { delivered: 3, queued: 0, outages: 0, ..Counts::default() },
                _ => Counts::default(),
            };
            assert_eq!((end, counts), (RunEnd::Done, expected), "{kind} {round}");
            assert_eq!(queue.documents().len() as u64, expected.queued);
        }
    }
    let connection = rusqlite::Connection::open(directory.path().join("x.sqlite")).unwrap();
    let row: (String, String) =
        connection.query_row("SELECT id, n FROM t", [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    assert_eq!(row, ("a".to_owned(), "1.50".to_owned()));
    let lines = std::fs::read_to_string(directory.path().join("x.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), 3);
    assert!(lines.ends_with("{\"id\":\"c\",\"rev\":\"1-x\",\"seq\":\"4-x\",\"deleted\":true}\n"));
    assert_eq!(local.lock().unwrap().as_ref().unwrap()["remote"], "4-x");
}
