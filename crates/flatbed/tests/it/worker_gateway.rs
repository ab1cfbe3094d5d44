//! Jobs of the binary's own worker that read Sync Gateway's API as one of its users: visible documents arrive, and
//! revoked ones are removed.

use std::path::Path;

use flatbed_client::{Connection, Url};
use flatbed_testkit::until_wanted;
use hyper::Method;
use serde_json::{Value, json};

use crate::support::{Server, flatbed, storage};

fn start(data: &Path, files: &Path) -> Server {
    let mut arguments = storage(data);
    let further =
        ["--gateway-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--worker", "--worker-allow", "127.0.0.1"];
    arguments.extend(further.map(str::to_owned));
    arguments.extend(["--worker-files".into(), files.to_str().unwrap().into()]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Server::start_as(flatbed().env("FLATBED_WORKER_ANNA", "secret"), &arguments)
}

async fn ask(url: &Url, method: Method, path: &str, body: &Value) -> Value {
    let answer = Connection::open(url).await.unwrap().call(method, path, body.to_string()).await.unwrap();
    assert!(answer.status < 300, "{path}: {}", String::from_utf8_lossy(&answer.body));
    serde_json::from_slice(&answer.body).unwrap_or_default()
}

fn rows(file: &Path) -> Vec<String> {
    let connection = rusqlite::Connection::open(file).unwrap();
    // The table exists once the job starts.
    let Ok(mut statement) = connection.prepare("SELECT id || n FROM t ORDER BY id") else { return Vec::new() };
    statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

/// Returns the jobs by name, with their feed parameters.
fn jobs() -> [(&'static str, Value); 5] {
    [
        ("longpoll", json!({"feed_type": "longpoll"})),
        ("continuous", json!({"feed_type": "continuous"})),
        ("normal", json!({"feed_type": "normal", "poll_interval_seconds": 0.2})),
        ("bodiless", json!({"include_docs": false})),
        ("channel", json!({"channels": ["A"], "include_docs": false})),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_users_documents_come_and_go() {
    let directory = tempfile::tempdir().unwrap();
    let (data, files) = (directory.path().join("data"), directory.path().join("files"));
    std::fs::create_dir(&files).unwrap();
    let server = start(&data, &files);
    let [users, administrators] = &server.gateway[..] else { panic!("{:?}", server.gateway) };
    let function = "function (doc) { channel(doc.channels); if (doc.to) access(doc.to, doc.gives); }";
    ask(administrators, Method::PUT, "/db/", &json!({"sync": function})).await;
    let anna = json!({"name": "anna", "password": "secret", "admin_channels": ["A"]});
    ask(administrators, Method::PUT, "/db/_user/anna", &anna).await;
    let put = async |docs: Value| {
        let written = ask(administrators, Method::POST, "/db/_bulk_docs", &json!({"docs": docs})).await;
        let revs = written.as_array().unwrap().iter().map(|row| row["rev"].as_str().expect("written").to_owned());
        revs.collect::<Vec<_>>()
    };
    let of = |id: &str, channel: &str| json!({"_id": id, "n": 1, "channels": [channel]});
    let revs =
        put(json!([of("a", "A"), of("b", "A"), of("c", "A"), of("x", "B"), of("y", "B"), {"_id": "grant"}])).await;
    for (name, feed) in jobs() {
        let job = json!({"type": "job", "id": name, "output_type": "rdbms",
            "inputs": [{"id": "in", "source_type": "sync_gateway", "url": format!("{users}/db"), "changes_feed": feed,
                "auth": {"method": "basic", "username": "anna", "password": "env:FLATBED_WORKER_ANNA"}}],
            "outputs": [{"id": "out", "database_type": "sqlite", "database": format!("{name}.sqlite"), "create_tables": true}],
            "mapping": {"tables": [{"name": "t", "primary_key": "id", "columns": [
                {"name": "id", "path": "$._id", "type": "text"}, {"name": "n", "path": "$.n", "type": "integer"}]}]}});
        ask(&server.url, Method::PUT, &format!("/_worker/job::{name}"), &job).await;
    }
    let until = async |what: &str, wanted: &[&str], of_channel: &[&str]| {
        for (name, _) in jobs() {
            let wanted = if name == "channel" { of_channel } else { wanted };
            let file = files.join(format!("{name}.sqlite"));
            until_wanted(&format!("{name}: {what}"), async || rows(&file), |rows| rows == wanted).await;
        }
    };
    until("what was there", &["a1", "b1", "c1"], &["a1", "b1", "c1"]).await;
    let given = put(json!([{"_id": "grant", "_rev": revs[5], "to": "anna", "gives": "B"}])).await;
    until("a channel is given", &["a1", "b1", "c1", "x1", "y1"], &["a1", "b1", "c1"]).await;
    put(json!([
        {"_id": "a", "_rev": revs[0], "n": 2, "channels": []}, {"_id": "b", "_rev": revs[1], "n": 2, "channels": ["B"]},
        {"_id": "c", "_rev": revs[2], "_deleted": true}, {"_id": "x", "_rev": revs[3], "n": 2, "channels": ["B"]},
    ]))
    .await;
    until("one leaves, one moves, one is deleted, one changes", &["b2", "x2", "y1"], &[]).await;
    let taken = put(json!([{"_id": "grant", "_rev": given[0]}])).await;
    until("the channel is lost", &[], &[]).await;
    put(json!([{"_id": "grant", "_rev": taken[0], "to": "anna", "gives": "B"}])).await;
    until("and given again", &["b2", "x2", "y1"], &[]).await;
    assert!(server.stop());
}
