//! `flatbed dump` and `flatbed load` over every kind of document, and the settings of a database.

use std::cell::Cell;
use std::fmt::Write;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use hyper::Method;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{Server, call, run};

/// Returns the leaves of a document with their histories and the data of their attachments.
async fn leaves(server: &Server, database: &str, id: &str) -> Vec<String> {
    let path = format!("/{database}/{id}?open_revs=all&revs=true&attachments=true");
    let (status, found) = call(&mut server.connect().await, Method::GET, &path, "").await;
    assert_eq!(status, 200, "{found}");
    let mut found: Vec<String> = found.as_array().unwrap().iter().map(Value::to_string).collect();
    found.sort_unstable();
    found
}

/// Returns bytes that do not compress and hardly repeat.
fn bytes(length: usize, mut seed: u64) -> Vec<u8> {
    let mut data = Vec::with_capacity(length);
    for _ in 0..length {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        data.push((seed >> 56) as u8);
    }
    data
}

#[tokio::test]
async fn large_attachments_local_documents_and_settings_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let url = server.url.to_string();
    let mut connection = server.connect().await;
    let mut put = async |path: &str, body: Value| {
        let text = if body.is_null() { String::new() } else { body.to_string() };
        let (status, answer) = call(&mut connection, Method::PUT, path, &text).await;
        assert!(matches!(status, 200..=202), "{path}: {answer}");
    };
    put("/db?partitioned=true", Value::Null).await;
    let security = json!({ "admins": { "names": ["anna"], "roles": [] }, "members": { "names": [], "roles": ["r"] } });
    put("/db/_security", security.clone()).await;
    put("/db/_revs_limit", 7.into()).await;
    put("/db/_local/one", json!({ "n": 1 })).await;
    let (large, compressed) = (bytes(1_500_000, 1), "so much text ".repeat(150_000).into_bytes());
    let attached = |data: &[u8], kind: &str| json!({ "content_type": kind, "data": BASE64.encode(data) });
    put(
        "/db/a:large",
        json!({ "_attachments": {
            "z/large": attached(&large, "image/png"),
            "compressed": attached(&compressed, "text/plain"),
            "empty": attached(b"", "a/b"),
            "a b\u{e9}": attached(b"x", "image/png"),
        } }),
    )
    .await;
    // An attachment without a name has no path at which it could be read alone.
    put("/db/a:unnamed", json!({ "_attachments": { "": attached(&large, "image/png") } })).await;
    put("/db/a:small", json!({ "_attachments": { "a": attached(b"x", "image/png") } })).await;

    let dump = run(&["dump", "db", "--local", "--url", &url]);
    assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
    let lines: Vec<Value> = dump
        .stdout
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    let pieces = lines.iter().filter(|line| line.get("_flatbed_data").is_some()).count();
    assert!(pieces > 10, "large attachments are on lines of their own: {pieces}");
    let file = directory.path().join("dump.jsonl");
    fs::write(&file, &dump.stdout).unwrap();
    let file = file.to_str().unwrap();
    // Twice: what is there already is no failure.
    for _ in 0..2 {
        let loaded = run(&["load", "again", file, "--url", &url]);
        assert!(loaded.status.success(), "{}", String::from_utf8_lossy(&loaded.stderr));
        for id in ["a:large", "a:unnamed", "a:small"] {
            assert_eq!(leaves(&server, "again", id).await, leaves(&server, "db", id).await, "{id}");
        }
    }
    let mut connection = server.connect().await;
    let mut got = async |path: &str| call(&mut connection, Method::GET, path, "").await.1;
    assert_eq!(got("/again/_security").await, security);
    assert_eq!(got("/again/_revs_limit").await, 7);
    assert_eq!(got("/again/_local/one").await["n"], 1);
    assert_eq!(got("/again").await["props"]["partitioned"], true);

    // A dump that ends in an attachment is not loaded as if it were complete.
    let text = fs::read_to_string(file).unwrap();
    let at = text.find("{\"_flatbed_data\"").unwrap();
    fs::write(file, &text[..at]).unwrap();
    let cut = run(&["load", "cut", file, "--url", &url]);
    assert_eq!(cut.status.code(), Some(2), "{}", String::from_utf8_lossy(&cut.stderr));
    assert!(String::from_utf8_lossy(&cut.stderr).contains("the dump is cut off"));
    // A line in a wrong place is named.
    fs::write(file, text.replacen("{\"_flatbed_data\"", "{\"_id\":\"a:x\"}\n{\"_flatbed_data\"", 1)).unwrap();
    let odd = run(&["load", "odd", file, "--url", &url]);
    assert_eq!(odd.status.code(), Some(2), "{}", String::from_utf8_lossy(&odd.stderr));
    assert!(String::from_utf8_lossy(&odd.stderr).contains("this line of a dump is damaged"));
    // A lost line is noticed.
    fs::write(file, text.split_inclusive('\n').filter(|line| !line.contains("\"a:small\"")).collect::<String>())
        .unwrap();
    let less = run(&["load", "less", file, "--url", &url]);
    assert_eq!(less.status.code(), Some(2), "{}", String::from_utf8_lossy(&less.stderr));
    assert!(String::from_utf8_lossy(&less.stderr).contains("it has 2 of 3 revisions"));
}

#[tokio::test]
async fn a_database_with_channels_keeps_its_sync_function() {
    let directory = tempfile::tempdir().unwrap();
    let mut arguments = crate::support::storage(&directory.path().join("data"));
    arguments.extend(["--gateway-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"].map(str::to_owned));
    let server = Server::start_with(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let (url, admin) = (server.url.to_string(), server.gateway[1].to_string());
    let mut connection = server.connect().await;
    let function = "function (doc) { channel(doc.to); }";
    let (status, made) = call(&mut connection, Method::PUT, "/db", &json!({ "sync": function }).to_string()).await;
    assert_eq!(status, 201, "{made}");
    let dump = run(&["dump", "db", "--admin-url", &admin, "--url", &url]);
    let said = String::from_utf8_lossy(&dump.stderr);
    assert!(dump.status.success() && said.contains("does not contain its users"), "{said}");
    let file = directory.path().join("dump.jsonl");
    fs::write(&file, &dump.stdout).unwrap();
    let loaded = run(&["load", "again", file.to_str().unwrap(), "--url", &url]);
    assert!(loaded.status.success(), "{}", String::from_utf8_lossy(&loaded.stderr));
    let mut administrators = flatbed_client::Connection::open(&server.gateway[1]).await.unwrap();
    let (_, config) = call(&mut administrators, Method::GET, "/again/_config", "").await;
    assert_eq!(config["sync"], function, "{config}");
}

/// A branch of a document: its length, the seed of its revisions, whether it ends in a deletion, and its attachments.
type Branch = (usize, u8, bool, Vec<(String, usize, i64)>);

fn branches() -> impl Strategy<Value = Vec<Branch>> {
    let name = prop::sample::select(vec!["", "a", "a b/c", "\u{e9}", "%"]).prop_map(str::to_owned);
    let length = prop::sample::select(vec![0, 1, 2, 3, 5_000, 400_000, 700_000]);
    let attachments = prop::collection::vec((name, length, 0..4_i64), 0..4);
    prop::collection::vec((1..5_usize, any::<u8>(), any::<bool>(), attachments), 1..4)
}

/// Returns the line of a leaf. Revisions are odd on purpose: short, long, and not hexadecimal.
fn leaf(id: &str, (at, branch): (usize, &Branch)) -> String {
    let (length, seed, is_deleted, attachments) = branch;
    let hash = |position: usize| match seed % 3 {
        0 => format!("{at}{position}x"),
        1 => format!("{at:016x}{position:016x}"),
        _ => format!("Odd.{at}_{position}"),
    };
    let ids: Vec<String> = (1..=*length).rev().map(hash).collect();
    let mut document = json!({ "_id": id, "_rev": format!("{length}-{}", ids[0]), "n": seed });
    document["_revisions"] = json!({ "start": length, "ids": ids });
    if *is_deleted {
        document["_deleted"] = true.into();
    }
    for (name, bytes_length, revpos) in attachments {
        let data = BASE64.encode(bytes(*bytes_length, u64::from(*seed)));
        document["_attachments"][name] = json!({ "content_type": "image/png", "revpos": revpos, "data": data });
    }
    document.to_string()
}

#[test]
fn every_kind_of_document_comes_back() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let url = server.url.to_string();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let file = directory.path().join("dump.jsonl");
    let case = Cell::new(0);
    let config = ProptestConfig { cases: 12, ..ProptestConfig::default() };
    proptest!(config, |(documents in prop::collection::vec(branches(), 1..4))| {
        case.set(case.get() + 1);
        let ids: Vec<String> = (0..documents.len()).map(|at| format!("doc-{at}")).collect();
        let mut lines = String::new();
        for (id, branches) in ids.iter().zip(&documents) {
            for branch in branches.iter().enumerate() {
                writeln!(lines, "{}", leaf(id, branch)).unwrap();
            }
        }
        fs::write(&file, &lines).unwrap();
        let (one, other) = (format!("one-{}", case.get()), format!("other-{}", case.get()));
        let loaded = run(&["load", &one, file.to_str().unwrap(), "--url", &url]);
        prop_assert!(loaded.status.success(), "{}", String::from_utf8_lossy(&loaded.stderr));
        let dump = run(&["dump", &one, "--url", &url]);
        prop_assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
        fs::write(&file, &dump.stdout).unwrap();
        let loaded = run(&["load", &other, file.to_str().unwrap(), "--url", &url]);
        prop_assert!(loaded.status.success(), "{}", String::from_utf8_lossy(&loaded.stderr));
        for id in &ids {
            let (before, behind) =
                runtime.block_on(async { (leaves(&server, &one, id).await, leaves(&server, &other, id).await) });
            prop_assert_eq!(before, behind);
        }
    });
}

/// Answers the requests of a dump as a server on which the only document is edited before its first revision is read.
fn answer_with_an_edit(mut stream: &TcpStream) -> std::io::Result<()> {
    let mut input = BufReader::new(stream);
    loop {
        let (mut head, mut length) = (String::new(), 0_usize);
        while !head.ends_with("\r\n\r\n") {
            let start = head.len();
            if input.read_line(&mut head)? == 0 {
                return Ok(());
            }
            let line = head[start..].to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0_u8; length];
        input.read_exact(&mut body)?;
        let path = head.split(' ').nth(1).unwrap();
        let change = |rev: &str, seq: &str| {
            let row = json!({ "id": "a", "seq": seq, "changes": [{ "rev": rev }] });
            json!({ "results": [row], "last_seq": seq, "pending": 0 })
        };
        let result = |of: Value| json!({ "results": [{ "id": "a", "docs": [of] }] });
        let answer = match path {
            _ if path.contains("/_changes") && path.ends_with("since=0") => change("1-a", "1-x"),
            _ if path.contains("/_changes") => change("2-b", "2-x"),
            _ if path.contains("/_bulk_get") && String::from_utf8_lossy(&body).contains("1-a") => {
                result(json!({ "error": { "id": "a", "rev": "1-a", "error": "not_found", "reason": "missing" } }))
            }
            _ if path.contains("/_bulk_get") => result(json!({ "ok": { "_id": "a", "_rev": "2-b", "n": 7 } })),
            "/db/_revs_limit" => 1_000.into(),
            _ => json!({}),
        };
        let text = answer.to_string();
        let head =
            format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", text.len());
        stream.write_all((head + &text).as_bytes())?;
    }
}

#[test]
fn a_document_that_is_edited_at_the_end_of_a_dump_is_in_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            // A client that has all answers closes the connection.
            let _ = answer_with_an_edit(&stream);
        }
    });
    let dump = run(&["dump", "db", "--url", &url]);
    let text = String::from_utf8_lossy(&dump.stdout);
    assert!(dump.status.success(), "{text} {}", String::from_utf8_lossy(&dump.stderr));
    assert!(text.contains("\"_rev\":\"2-b\"") && text.contains("\"revisions\":1,"), "{text}");
}
