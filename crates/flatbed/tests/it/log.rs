//! The log: each line of a request carries its id, requests are logged on demand, and no line contains a secret.

use std::{
    fs::{self, File},
    path::Path,
};

use crate::support::{Server, call, flatbed, has_engine, storage};
use flatbed_client::{Connection, Url};
use http_body_util::BodyExt;
use hyper::Method;
use serde_json::Value;

/// Starts a server that logs to a file.
fn start(directory: &Path, faults: Option<&str>, arguments: &[&str]) -> Server {
    let mut command = flatbed();
    command.stderr(File::create(directory.join("log")).expect("a file"));
    command.envs(faults.map(|faults| ("FLATBED_FDB_BUGGIFY", faults)));
    let storage = storage(&directory.join("data"));
    let arguments: Vec<&str> = storage.iter().map(String::as_str).chain(arguments.iter().copied()).collect();
    Server::start_as(&mut command, &arguments)
}

fn log(directory: &Path) -> String {
    fs::read_to_string(directory.join("log")).expect("the log")
}

/// Sends a request, and returns its status and its id.
async fn ask(connection: &mut Connection, method: Method, path: &str, body: &str) -> (u16, String) {
    let answer = connection.send(method, path, body.to_owned().into()).await.expect("an answer");
    let id = answer.headers().get("x-couch-request-id").expect("an id").to_str().expect("text").to_owned();
    let status = answer.status().as_u16();
    answer.into_body().collect().await.expect("all of it");
    (status, id)
}

#[tokio::test]
async fn a_line_a_request() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["--log-level", "info,access=debug", "--log-format", "json"];
    let server = start(directory.path(), None, &arguments);
    let mut connection = server.connect().await;
    let mut asked = vec![];
    for (method, path, body) in [
        (Method::PUT, "/db", ""),
        (Method::PUT, "/db/d?batch=ok", "{\"a\":1}"),
        (Method::GET, "/db/d", ""),
        (Method::GET, "/db/nothing", ""),
        (Method::GET, "/db/_all_docs", ""),
    ] {
        let (status, id) = ask(&mut connection, method.clone(), path, body).await;
        asked.push((method, path.split('?').next().unwrap_or_default(), status, id));
    }
    assert!(server.stop());
    let lines: Vec<Value> = log(directory.path())
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}")))
        .filter(|line: &Value| line["target"] == "access")
        .collect();
    assert_eq!(lines.len(), asked.len(), "{lines:?}");
    for (line, (method, path, status, id)) in lines.iter().zip(&asked) {
        assert_eq!((&line["method"], &line["path"]), (&method.as_str().into(), &(*path).into()), "{line}");
        assert_eq!((&line["status"], &line["span"]["request_id"]), (&(*status).into(), &id.as_str().into()), "{line}");
        assert!(line["bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{line}");
        assert!(line["duration_ms"].as_f64() >= line["head_ms"].as_f64(), "{line}");
        assert!(line["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")), "{line}");
        assert_eq!(line["is_complete"], true, "{line}");
    }
}

/// Names of users and ids of documents are between marks or absent, whatever is logged.
#[tokio::test]
async fn user_data_are_redacted() {
    for (how, format) in [("mark", "text"), ("hide", "json"), ("hide", "text"), ("none", "text")] {
        let directory = tempfile::tempdir().unwrap();
        let mut command = flatbed();
        command.stderr(File::create(directory.path().join("log")).expect("a file"));
        command.env("FLATBED_ADMIN", "zacharias:verschlossen");
        let storage = storage(&directory.path().join("data"));
        let arguments = ["--log-level", "trace", "--log-format", format, "--redact", how];
        let arguments: Vec<&str> = storage.iter().map(String::as_str).chain(arguments).collect();
        let server = Server::start_as(&mut command, &arguments);
        let with = |credentials: &str| {
            let url = server.url.to_string().replace("http://", &format!("http://{credentials}@"));
            Url::parse(&url).expect("a URL")
        };
        let mut connection = Connection::open(&with("zacharias:verschlossen")).await.expect("the server answers");
        assert_eq!(ask(&mut connection, Method::PUT, "/db", "").await.0, 201);
        for (method, path, body) in [
            (Method::PUT, "/db/krankenakte", "{}"),
            (Method::PUT, "/db/krankenakte", "{}"),
            (Method::GET, "/db/krankenakte/anhang", ""),
            (Method::GET, "/db/_all_docs?startkey=%22krankenakte%22", ""),
            (Method::PUT, "/_replicator/krankenakte", r#"{"source":"http://127.0.0.1:9/krankenakte","target":"db"}"#),
        ] {
            ask(&mut connection, method, path, body).await;
        }
        let mut stranger = Connection::open(&with("methusalem:erraten")).await.expect("the server answers");
        assert_eq!(ask(&mut stranger, Method::GET, "/db/krankenakte", "").await.0, 401);
        assert!(server.stop());
        let log = log(directory.path());
        assert!(log.contains("/db") || how == "hide", "{log}");
        for word in ["zacharias", "methusalem", "krankenakte"] {
            let found = log.lines().filter(|line| line.contains(word));
            match how {
                "hide" => assert_eq!(found.collect::<Vec<_>>(), Vec::<&str>::new(), "{format}"),
                "none" => assert!(found.count() > 0, "{word} in {log}"),
                _ => {
                    for line in found {
                        // The text outside of marks.
                        let outside =
                            line.split("<ud>").map(|part| part.split_once("</ud>").map_or(part, |(_, rest)| rest));
                        let outside: Vec<&str> = outside.collect();
                        assert!(!outside.concat().contains(word), "{line}");
                    }
                    assert!(log.contains(word), "{word} in {log}");
                }
            }
        }
    }
}

/// Logs each request to a file of few lines.
#[tokio::test]
async fn a_log_file_is_rotated() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("flatbed.log");
    let arguments = ["--log-file", path.to_str().unwrap(), "--log-file-bytes", "2000", "--log-files", "3"];
    let arguments = [&arguments[..], &["--log-level", "info,access=debug", "--log-format", "json"]].concat();
    let server = start(directory.path(), None, &arguments);
    let mut connection = server.connect().await;
    let mut last = String::new();
    for _ in 0..40 {
        last = ask(&mut connection, Method::GET, "/", "").await.1;
    }
    assert!(server.stop());
    assert_eq!(log(directory.path()), "", "nothing goes to stderr");
    let mut text = String::new();
    for name in ["flatbed.log.2", "flatbed.log.1", "flatbed.log"] {
        let part = fs::read_to_string(directory.path().join(name)).unwrap_or_else(|_| panic!("no {name}"));
        assert!(part.len() <= 2_000 && part.ends_with('\n'), "{name}: {part}");
        text += &part;
    }
    assert!(!directory.path().join("flatbed.log.3").exists());
    for line in text.lines() {
        assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}");
    }
    assert!(text.contains(&last), "the last request of {text}");
}

#[tokio::test]
async fn lines_for_the_journal_have_priorities() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().unwrap();
    for format in ["text", "json"] {
        let file = File::create(directory.path().join("log")).expect("a file");
        let metadata = file.metadata().unwrap();
        let mut command = flatbed();
        command.env("JOURNAL_STREAM", format!("{}:{}", metadata.dev(), metadata.ino())).stderr(file);
        let storage = storage(&directory.path().join("data"));
        let arguments = storage.iter().map(String::as_str).chain(["--log-level", "info", "--log-format", format]);
        assert!(Server::start_as(&mut command, &arguments.collect::<Vec<_>>()).stop());
        let log = log(directory.path());
        assert!(log.lines().any(|line| line.contains("serving")), "{log}");
        for line in log.lines() {
            let begins = if format == "json" { "{" } else { "20" };
            let rest = line.strip_prefix("<6>").or(line.strip_prefix("<4>")).or(line.strip_prefix("<3>"));
            assert!(rest.is_some_and(|rest| rest.starts_with(begins)), "{line}");
        }
    }
}

#[tokio::test]
async fn a_map_that_fails_on_many_documents_is_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), None, &["--log-level", "info"]);
    let mut connection = server.connect().await;
    let documents: Vec<String> = (0..40).map(|at| format!(r#"{{"_id":"d{at}","n":{}}}"#, at % 2)).collect();
    let documents = format!(r#"{{"docs":[{}]}}"#, documents.join(","));
    let views = r#"{"views":{"a":{"map":"function (doc) { if (doc.n) throw new Error('no'); emit(doc._id, 1); }"},
        "b":{"map":"function (doc) { if (!doc.n) throw new Error('no'); emit(doc._id, 2); }"}}}"#;
    for (method, path, body) in [
        (Method::PUT, "/db", ""),
        (Method::POST, "/db/_bulk_docs", documents.as_str()),
        (Method::PUT, "/db/_design/v", views),
    ] {
        assert_eq!(call(&mut connection, method, path, body).await.0, 201, "{path}");
    }
    for view in ["a", "b"] {
        let (status, answer) = call(&mut connection, Method::GET, &format!("/db/_design/v/_view/{view}"), "").await;
        assert_eq!((status, &answer["total_rows"]), (200, &20.into()), "{answer}");
    }
    assert!(server.stop());
    let log = log(directory.path());
    let failed: Vec<&str> = log.lines().filter(|line| line.contains("a map failed")).collect();
    // One line for each map.
    assert_eq!(failed.len(), 2, "{failed:?}");
}

#[tokio::test]
async fn lines_of_a_request_carry_its_id() {
    if !has_engine() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), Some("0.3,3"), &["--log-level", "flatbed_kit=debug"]);
    let mut connection = server.connect().await;
    let mut ids = Vec::new();
    ids.push(ask(&mut connection, Method::PUT, "/db", "").await.1);
    for at in 0..24 {
        ids.push(ask(&mut connection, Method::PUT, &format!("/db/d{at}"), "{}").await.1);
        // A stream's task is not its request's.
        ids.push(ask(&mut connection, Method::GET, "/db/_all_docs?include_docs=true", "").await.1);
    }
    assert!(server.stop());
    let log = log(directory.path());
    let of_requests =
        log.lines().filter(|line| line.contains("transaction is retried") && line.contains("request_id="));
    // Only writes commit, and each is a task of its own.
    let is_commit = |line: &str| line.contains("code=1020") || line.contains("code=1021");
    assert!(of_requests.clone().any(is_commit), "{log}");
    let (mut count, mut met) = (0, std::collections::HashSet::new());
    for line in of_requests {
        let id = ids.iter().find(|id| line.contains(&format!("request{{request_id=\"{id}\"}}")));
        met.insert(id.unwrap_or_else(|| panic!("no request's id: {line}")));
        count += 1;
    }
    assert!(count > 3 && met.len() > 2, "{count} lines of {} requests: {log}", met.len());
}

#[tokio::test]
async fn no_secret_is_logged_at_any_level() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = flatbed();
    command.stderr(File::create(directory.path().join("log")).expect("a file"));
    command.env("FLATBED_ADMIN", "anna:verschlossen");
    let storage = storage(&directory.path().join("data"));
    let arguments: Vec<&str> = storage.iter().map(String::as_str).chain(["--log-level", "trace"]).collect();
    let server = Server::start_as(&mut command, &arguments);
    let with = |password: &str| {
        let url = server.url.to_string().replace("http://", &format!("http://anna:{password}@"));
        Url::parse(&url).expect("a URL")
    };
    let mut connection = Connection::open(&with("verschlossen")).await.expect("the server answers");
    assert_eq!(ask(&mut connection, Method::PUT, "/db", "").await.0, 201);
    let mut stranger = Connection::open(&with("erraten")).await.expect("the server answers");
    assert_eq!(ask(&mut stranger, Method::GET, "/db?token=gefragt", "").await.0, 401);
    // The peer refuses them, or is no such server.
    let other = server.url.authority();
    let plain = format!(r#""http://bob:heimlich@{other}/db""#);
    let auth =
        format!(r#"{{"url":"http://{other}/db","auth":{{"basic":{{"username":"bob","password":"heimlich"}}}}}}"#);
    let header = format!(r#"{{"url":"http://{other}/db","headers":{{"authorization":"Basic Ym9iOmhlaW1saWNo"}}}}"#);
    for remote in [plain, auth, header, r#""https://bob:heimlich@127.0.0.1:9/db""#.to_owned()] {
        let body = format!(r#"{{"source":{remote},"target":"copy","create_target":true}}"#);
        let (status, answer) = call(&mut connection, Method::POST, "/_replicate", &body).await;
        assert!(status >= 400, "{status} {answer}");
    }
    assert!(server.stop());
    let log = log(directory.path());
    assert!(log.contains("anna") && log.contains("a replication failed"), "{log}");
    // In plain text, and in Base64 behind the user's name.
    let secrets = [
        "verschlossen",
        "erraten",
        "heimlich",
        "gefragt",
        "dmVyc2NobG9zc2Vu",
        "ZXJyYXRlb",
        "aGVpbWxpY2",
        "YW5uYT",
        "Ym9iO",
    ];
    for secret in secrets {
        assert!(!log.contains(secret), "{secret} is in {log}");
    }
}

/// No text from a database begins a line, or moves a terminal's cursor.
#[tokio::test]
async fn an_event_is_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), None, &["--log-format", "text", "--log-level", "info"]);
    let mut connection = server.connect().await;
    let map = r"function (doc) { throw '\n2000-01-01T00:00:00Z  INFO audit: forged\r\u001b[2J\u009b2J\u2028'; }";
    let design = serde_json::json!({"views": {"v": {"map": map}}}).to_string();
    for (method, path, body, expected) in [
        (Method::PUT, "/db", "", 201),
        (Method::PUT, "/db/d", "{}", 201),
        (Method::PUT, "/db/_design/v", design.as_str(), 201),
        (Method::GET, "/db/_design/v/_view/v", "", 200),
    ] {
        assert_eq!(ask(&mut connection, method, path, body).await.0, expected, "{path}");
    }
    assert!(server.stop());
    let log = log(directory.path());
    assert!(log.contains("audit: forged"), "{log}");
    assert_eq!(log.lines().find(|line| line.starts_with("2000-01-01")), None);
    let is_raw = |character: char| character.is_control() && character != '\n' || character == '\u{2028}';
    assert_eq!(log.chars().find(|&character| is_raw(character)), None, "{log:?}");
}
