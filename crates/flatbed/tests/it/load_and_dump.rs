//! Real documents in by `flatbed load`, out by `flatbed dump`, and in again.

use std::{collections::BTreeMap, fs, path::Path, process::Output};

use crate::support::{Server, call, faults, run};
use hyper::Method;
use serde_json::Value;

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/browser-compat-data.jsonl");

fn by_id(text: &str) -> BTreeMap<String, Value> {
    let documents = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line is a document"));
    documents.map(|document| (document["_id"].as_str().expect("an _id").to_owned(), document)).collect()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
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

        // With revisions, into another database: documents are made anew, so the same revisions come out.
        let with_revisions = run(&["dump", database, "--url", &url]);
        let file = directory.path().join("dump.jsonl");
        fs::write(&file, &with_revisions.stdout).unwrap();
        let again = format!("{database}-again");
        let load = run(&["load", &again, file.to_str().unwrap(), "--url", &url]);
        assert!(load.status.success(), "{}", text(&load));
        assert_eq!(run(&["dump", &again, "--url", &url]).stdout, with_revisions.stdout);
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
