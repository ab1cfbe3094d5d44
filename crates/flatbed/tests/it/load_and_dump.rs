//! Real documents in by `flatbed load`, out by `flatbed dump`, and in again.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Output, Stdio},
};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};

use crate::support::{Server, call, faults, flatbed, run, storage, text};
use hyper::Method;
use serde_json::Value;

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/browser-compat-data.jsonl");

fn by_id(text: &str) -> BTreeMap<String, Value> {
    let documents = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line is a document"));
    documents.map(|document| (document["_id"].as_str().expect("an _id").to_owned(), document)).collect()
}

/// Returns the sorted lines of a dump: a full dump is in the order of changes.
fn sorted(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    // The first line names the database.
    let lines = text.lines().filter(|line| !line.starts_with("{\"_flatbed_dump\":"));
    let mut lines: Vec<String> = lines.map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn the_sample_comes_back_equal() {
    load_and_dump(None);
}

#[test]
fn the_sample_comes_back_equal_under_faults() {
    load_and_dump(faults());
}

fn load_and_dump(faults: Option<String>) {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let server = Server::start_under(&faults, &data);
    let url = server.url.to_string();
    let sample = fs::read_to_string(SAMPLE).unwrap();
    let databases = [("packed", &[][..]), ("one-key-a-leaf", &["--run-bytes", "0"]), ("sharded", &["--shards", "4"])];
    for (database, arguments) in databases {
        let load = run(&[&["load", database, SAMPLE, "--url", &url], arguments].concat());
        assert!(load.status.success(), "{}", text(&load));
        assert!(text(&load).starts_with("92 documents loaded"), "{}", text(&load));

        let dump = run(&["dump", database, "--no-rev", "--url", &url]);
        assert!(dump.status.success(), "{}", text(&dump));
        let dumped = String::from_utf8(dump.stdout).unwrap();
        assert_eq!(by_id(&dumped), by_id(&sample), "{database}: value by value");
        let mut lines: Vec<&str> = sample.lines().collect();
        lines.sort_by_key(|line| by_id(line).into_keys().next());
        assert!(dumped.lines().eq(lines), "{database}: the same text, the names in their order");

        // With revisions, into another database: the dump has the same revisions.
        let with_revisions = run(&["dump", database, "--url", &url]);
        let file = directory.path().join("dump.jsonl");
        fs::write(&file, &with_revisions.stdout).unwrap();
        let again = format!("{database}-again");
        let load = run(&["load", &again, file.to_str().unwrap(), "--url", &url]);
        assert!(load.status.success(), "{}", text(&load));
        assert_eq!(sorted(&run(&["dump", &again, "--url", &url])), sorted(&with_revisions));
    }
    assert!(server.stop());
    for database in ["packed", "one-key-a-leaf", "sharded", "packed-again"] {
        let check = crate::support::check(database, &data);
        assert!(check.status.success(), "{}", text(&check));
    }
    let check = crate::support::check("none", &data);
    assert_eq!(check.status.code(), Some(2), "{}", text(&check));
}

#[tokio::test]
async fn all_leaves_come_back_with_their_attachments() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let url = server.url.to_string();
    let mut connection = server.connect().await;
    let line = |id: &str, ids: &[&str], members: &str| {
        let (start, ids, rev) = (ids.len(), serde_json::to_string(ids).unwrap(), ids[0]);
        format!(r#"{{"_id":"{id}","_rev":"{start}-{rev}","_revisions":{{"start":{start},"ids":{ids}}}{members}}}"#)
    };
    // One attachment is stored compressed, the other is not.
    let data = BASE64.encode("so much text ".repeat(500));
    let attachments = format!(
        r#","n":2,"_attachments":{{"a.txt":{{"content_type":"text/plain","revpos":2,"data":"{data}"}},
        "b":{{"content_type":"image/png","revpos":1,"data":"AAEC"}}}}"#
    );
    let lines = [
        line("both", &["b", "a"], r#","n":1"#),
        line("both", &["c", "a"], &attachments),
        line("both", &["e", "d", "a"], r#","_deleted":true,"why":"x""#),
        line("gone", &["b", "a"], r#","_deleted":true"#),
        line("_design/d", &["a"], r#","language":"javascript""#),
        line("a b/ü", &["f"], ""),
    ];
    let file = directory.path().join("leaves.jsonl");
    let load = |database: &str, content: &[u8]| {
        fs::write(&file, content).unwrap();
        run(&["load", database, file.to_str().unwrap(), "--url", &url])
    };
    let loaded = load("db", lines.join("\n").as_bytes());
    assert!(loaded.status.success() && text(&loaded).starts_with("6 documents loaded"), "{}", text(&loaded));

    let dump = run(&["dump", "db", "--url", &url]);
    assert!(dump.status.success(), "{}", text(&dump));
    let dumped = String::from_utf8(dump.stdout.clone()).unwrap();
    let dumped: Vec<&str> = dumped.lines().collect();
    assert!(dumped.len() == 8 && dumped[0].starts_with("{\"_flatbed_dump\":"), "{}", text(&dump));
    assert_eq!(dumped[7], "{\"_flatbed_end\":{\"revisions\":6,\"left_out\":0}}");
    let loaded = load("again", &dump.stdout);
    assert!(loaded.status.success() && text(&loaded).starts_with("6 documents loaded"), "{}", text(&loaded));
    for id in ["both", "gone", "_design/d", "a%20b%2F%C3%BC"] {
        let mut leaves = Vec::new();
        for database in ["db", "again"] {
            let path = format!("/{database}/{id}?open_revs=all&revs=true&attachments=true");
            let (status, found) = call(&mut connection, Method::GET, &path, "").await;
            assert_eq!(status, 200, "{found}");
            let mut found: Vec<String> = found.as_array().unwrap().iter().map(Value::to_string).collect();
            found.sort_unstable();
            leaves.push(found);
        }
        assert_eq!(leaves[0], leaves[1]);
        assert_eq!(leaves[0].len(), if id == "both" { 3 } else { 1 }, "{leaves:?}");
    }
    let (_, both) = call(&mut connection, Method::GET, "/again/both?attachments=true", "").await;
    assert_eq!((&both["_rev"], &both["_attachments"]["a.txt"]["data"]), (&"2-c".into(), &data.into()), "{both}");
    // Existing revisions are no failure.
    let loaded = load("again", &dump.stdout);
    assert!(loaded.status.success(), "{}", text(&loaded));
    assert_eq!(sorted(&run(&["dump", "again", "--url", &url])), sorted(&dump));

    // A dump that was cut off is known as such, and an older one, of documents alone, is loaded.
    let cut = load("cut", dumped[..7].join("\n").as_bytes());
    assert_eq!(cut.status.code(), Some(2), "{}", text(&cut));
    assert!(text(&cut).contains("leaves.jsonl: the dump is cut off"), "{}", text(&cut));
    let older = load("older", dumped[1..7].join("\n").as_bytes());
    assert!(older.status.success() && text(&older).starts_with("6 documents loaded"), "{}", text(&older));
    assert_eq!(sorted(&run(&["dump", "older", "--url", &url])), sorted(&dump));

    // As new documents: the winners, with their attachments.
    let winners = run(&["dump", "db", "--no-rev", "--url", &url]);
    let loaded = load("anew", &winners.stdout);
    assert!(loaded.status.success() && text(&loaded).starts_with("3 documents loaded"), "{}", text(&loaded));
    let (_, both) = call(&mut connection, Method::GET, "/anew/both?attachments=true", "").await;
    assert_eq!(both["_attachments"]["b"]["data"], "AAEC", "{both}");

    // A stub without data, as in older dumps, fails only its own document.
    let stub = b"{\"_id\":\"s\",\"_attachments\":{\"a\":{\"stub\":true,\"revpos\":1}}}\n{\"_id\":\"fresh\"}\n";
    let loaded = load("anew", stub);
    assert_eq!(loaded.status.code(), Some(1), "{}", text(&loaded));
    assert!(text(&loaded).contains("leaves.jsonl:1: 412 "), "{}", text(&loaded));
    assert!(text(&loaded).contains("1 documents loaded"), "{}", text(&loaded));
}

#[test]
fn load_waits_for_a_server_that_starts() {
    let directory = tempfile::tempdir().unwrap();
    // The port refuses connections until the server listens: this socket has it, and never listens.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap().to_string();
    let url = format!("http://{address}");
    let mut load = flatbed()
        .args(["load", "db", SAMPLE, "--url", &url])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(load.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert!(said.starts_with(&format!("no server answers at {url} yet")), "{said}");
    let data = storage(&directory.path().join("data"));
    let listen = ["--listen".to_owned(), address];
    let _server = Server::start_with(&data.iter().chain(&listen).map(String::as_str).collect::<Vec<_>>());
    let loaded = load.wait_with_output().unwrap();
    assert!(loaded.status.success() && text(&loaded).starts_with("92 documents loaded"), "{}", text(&loaded));
}

/// A dump warns about properties of the database that its documents do not contain.
#[tokio::test]
async fn what_a_dump_does_not_hold_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let url = server.url.to_string();
    let mut connection = server.connect().await;
    let file = directory.path().join("parts.jsonl");
    let path = file.to_str().unwrap();
    fs::write(&file, "{\"_id\":\"a:1\"}\n{\"_id\":\"b:1\"}\n").unwrap();
    for (database, arguments) in [("parts", &["--partitioned"][..]), ("again", &[])] {
        let loaded = run(&[&["load", database, path, "--url", &url], arguments].concat());
        assert!(loaded.status.success(), "{}", text(&loaded));
        let (_, info) = call(&mut connection, Method::GET, &format!("/{database}"), "").await;
        assert_eq!((&info["props"]["partitioned"], &info["doc_count"]), (&true.into(), &2.into()), "{info}");
        let dump = run(&["dump", database, "--url", &url]);
        assert!(dump.status.success(), "{}", text(&dump));
        assert!(!text(&dump).contains("is partitioned, which"), "{}", text(&dump));
        let winners = run(&["dump", database, "--no-rev", "--url", &url]);
        assert!(text(&winners).contains(&format!("{database} is partitioned, which")), "{}", text(&winners));
        fs::write(&file, &dump.stdout).unwrap();
    }
    fs::write(&file, "{\"_id\":\"a:1\"}\n").unwrap();
    let loaded = run(&["load", "plain", path, "--url", &url]);
    assert!(loaded.status.success(), "{}", text(&loaded));
    let there = run(&["load", "plain", path, "--partitioned", "--url", &url]);
    assert!(text(&there).contains("plain exists: --partitioned is not applied"), "{}", text(&there));
    let (status, made) = call(&mut connection, Method::PUT, "/ends", r#"{"channels":true}"#).await;
    assert_eq!(status, 201, "{made}");
    let dump = run(&["dump", "ends", "--url", &url]);
    assert!(dump.status.success() && text(&dump).contains("ends has channels: the dump"), "{}", text(&dump));
    let dump = run(&["dump", "plain", "--url", &url]);
    assert!(dump.status.success() && !text(&dump).contains("the dump"), "{}", text(&dump));
}

#[tokio::test]
async fn what_fails_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let url = server.url.to_string();
    let load = |name: &str, content: &str, arguments: &[&str]| {
        let path = directory.path().join(name);
        fs::write(&path, content).unwrap();
        run(&[&["load", "db", path.to_str().unwrap(), "--url", &url], arguments].concat())
    };

    let array = load("array.json", " [{\"_id\":\"a\",\n\"n\":1e300},\n{\"_id\":\"b\"}]\n", &[]);
    assert!(array.status.success(), "{}", text(&array));

    let some =
        load("some.jsonl", "{\"_id\":\"c\"}\n{\"_id\":\"a\"}\n{\"_id\":\"d\",\"x\":nonsense}\n{\"_id\":\"e\"}\n", &[]);
    assert_eq!(some.status.code(), Some(1), "{}", text(&some));
    let report = text(&some);
    assert!(report.contains("some.jsonl:2: \"a\" \"conflict\""), "{report}");
    assert!(report.contains("some.jsonl:3: "), "{report}");
    assert!(report.contains("2 documents loaded"), "{report}");

    let broken = load("broken.jsonl", "{\"_id\":\"f\"}\n{\"_id\":", &[]);
    assert_eq!(broken.status.code(), Some(2), "{}", text(&broken));
    assert!(text(&broken).contains("broken.jsonl: line 2: the input ends in the middle"), "{}", text(&broken));

    let mut connection = server.connect().await;
    let (_, a) = call(&mut connection, Method::GET, "/db/a", "").await;
    let rev = a["_rev"].as_str().unwrap();
    let edit = load("edit.jsonl", &format!("{{\"_id\":\"a\",\"_rev\":\"{rev}\",\"n\":2}}"), &["--keep-rev"]);
    assert!(edit.status.success(), "{}", text(&edit));
    let (_, a) = call(&mut connection, Method::GET, "/db/a", "").await;
    assert_eq!(a["n"], 2);

    let sharded = load("sharded.jsonl", "{\"_id\":\"g\"}", &["--shards", "4", "--run-bytes", "0"]);
    assert!(sharded.status.success(), "{}", text(&sharded));
    assert!(text(&sharded).contains("db exists: --shards is not applied"), "{}", text(&sharded));
    let refused = run(&["load", "other", SAMPLE, "--shards", "65", "--url", &url]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    assert!(text(&refused).contains("the server refuses: 400"), "{}", text(&refused));
    for (database, shards) in [("made", 4), ("plain", 1)] {
        let flags: &[&str] = if shards > 1 { &["--shards", "4", "--run-bytes", "0"] } else { &[] };
        let made = run(&[&["load", database, SAMPLE, "--url", &url], flags].concat());
        assert!(made.status.success(), "{}", text(&made));
        let (_, info) = call(&mut connection, Method::GET, &format!("/{database}"), "").await;
        assert_eq!((&info["cluster"]["q"], &info["doc_count"]), (&shards.into(), &92.into()), "{info}");
        assert_eq!(info["props"]["run_bytes"] == 0, shards > 1, "{info}");
    }

    let missing = run(&["dump", "none", "--url", &url]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing).contains("404"), "{}", text(&missing));
    let nobody = run(&["dump", "db", "--url", "http://127.0.0.1:1"]);
    assert_eq!(nobody.status.code(), Some(2));
    assert!(text(&nobody).starts_with("flatbed: no server answers at http://127.0.0.1:1"), "{}", text(&nobody));
    assert!(!Path::new("flatbed-data").exists(), "load and dump make no storage of their own");
}
