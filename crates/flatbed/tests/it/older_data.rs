//! A store that an earlier program left, read and written by this one. Always on the embedded engine.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Server, call, run};
use flatbed_client::Connection;
use hyper::Method;

/// The last program before issue 11.
const BEFORE_ISSUE_11: &str = "before-issue-11";

/// The last program of format 1.
const FORMAT_1: &str = "format-1";

fn fixture(of: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(of).join(name)
}

/// A copy of what a program left.
fn data(of: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::copy(fixture(of, "data.mdb"), data.join("data.mdb")).unwrap();
    let data = data.to_str().expect("UTF-8").to_owned();
    (directory, data)
}

/// A path and the answer that the earlier program gave.
fn recorded(of: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(fixture(of, "answers.txt")).unwrap();
    let answer = |line: &str| line.split_once('\t').map(|(path, body)| (path.to_owned(), body.replace("\\n", "\n")));
    text.lines().map(|line| answer(line).expect("a path and an answer")).collect()
}

async fn assert_recorded(of: &str, connection: &mut Connection, but: &[&str]) {
    let recorded = recorded(of);
    assert!(recorded.len() > 3, "{}", recorded.len());
    for (path, body) in recorded.iter().filter(|(path, _)| !but.contains(&path.as_str())) {
        let answer = connection.call(Method::GET, &format!("/{path}"), "").await.unwrap();
        // Which an earlier program did not say.
        let body = if path.ends_with("_design_docs") { &body.replace("\"offset\":null", "\"offset\":0") } else { body };
        assert_eq!(String::from_utf8_lossy(&answer.body).trim_end(), body.trim_end(), "{path}");
    }
}

fn assert_clean(data: &str) {
    for database in ["db", "other/one"] {
        let check = run(&["check", database, "--data-dir", data]);
        assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_program_left_is_read_and_written() {
    let (_directory, data) = data(BEFORE_ISSUE_11);
    let data = data.as_str();
    assert_clean(data);
    let server = Server::start_with(&["--data-dir", data]);
    let mut connection = server.connect().await;
    // Earlier versions did not have `_purged_infos`.
    assert_recorded(BEFORE_ISSUE_11, &mut connection, &["db/_purged_infos"]).await;
    let purged = call(&mut connection, Method::GET, "/db/_purged_infos", "").await.1;
    assert_eq!(purged["purged_infos"].as_array().map(Vec::len), Some(1), "{purged}");
    let large = call(&mut connection, Method::GET, "/db/large", "").await.1;
    assert_eq!(large["large"].as_array().map(Vec::len), Some(600));
    // The function still judges; edits, conflicts and purges go on where they were.
    let (status, _) = call(&mut connection, Method::PUT, "/db/new", r#"{"refused":true}"#).await;
    assert_eq!(status, 403);
    let rev = call(&mut connection, Method::GET, "/db/attached", "").await.1["_rev"].as_str().unwrap().to_owned();
    let body = r#"{"n":1,"_attachments":{"a.txt":{"stub":true}}}"#;
    assert_eq!(call(&mut connection, Method::PUT, &format!("/db/attached?rev={rev}"), body).await.0, 201);
    let kept = connection.call(Method::GET, "/db/attached/a.txt", "").await.unwrap();
    assert_eq!(&kept.body[..], b"attached text\n");
    let path = "/db/conflict?rev=2-cccccccccccccccccccccccccccccccc";
    assert_eq!(call(&mut connection, Method::DELETE, path, "").await.0, 200);
    let winner = call(&mut connection, Method::GET, "/db/conflict", "").await.1;
    assert_eq!(winner["side"], "b");
    let purge = r#"{"conflict":["1-oddhash"]}"#;
    assert_eq!(call(&mut connection, Method::POST, "/db/_purge", purge).await.0, 201);
    drop(connection);
    assert!(server.stop());
    assert_clean(data);
    let server = Server::start_with(&["--data-dir", data]);
    let changed: Vec<String> = recorded(BEFORE_ISSUE_11)
        .into_iter()
        .map(|(path, _)| path)
        .filter(|path| ["conflict", "attached", "_changes", "_purged_infos"].iter().any(|part| path.contains(part)))
        .collect();
    let changed: Vec<&str> = changed.iter().map(String::as_str).collect();
    assert_recorded(BEFORE_ISSUE_11, &mut server.connect().await, &changed).await;
}

/// Format 1 is upgraded by use: the answers are the same, edits go on where they were, and nothing is wrong before and after.
#[tokio::test(flavor = "multi_thread")]
async fn format_one_is_upgraded_by_use() {
    let (_directory, data) = data(FORMAT_1);
    let data = data.as_str();
    assert_clean(data);
    let server = Server::start_with(&["--data-dir", data]);
    let mut connection = server.connect().await;
    assert_recorded(FORMAT_1, &mut connection, &[]).await;
    let large = call(&mut connection, Method::GET, "/db/large", "").await.1;
    assert_eq!(large["large"].as_array().map(Vec::len), Some(600));
    let changes = call(&mut connection, Method::GET, "/db/_changes", "").await.1;
    assert_eq!(changes["results"].as_array().map(Vec::len), Some(5));
    // Enough for ancestors to be sealed again, which then name those of format 1.
    let before = call(&mut connection, Method::GET, "/db/long?revs=true", "").await.1;
    let mut rev = before["_rev"].as_str().expect("a revision").to_owned();
    for n in 201..=240 {
        let path = format!("/db/long?rev={rev}");
        let written = call(&mut connection, Method::PUT, &path, &format!("{{\"n\":{n}}}")).await.1;
        rev = written["rev"].as_str().expect("a revision").to_owned();
    }
    let after = call(&mut connection, Method::GET, "/db/long?revs=true", "").await.1;
    let (before, after) = (before["_revisions"]["ids"].as_array(), after["_revisions"]["ids"].as_array());
    assert_eq!(after.map(|ids| &ids[40..]), before.map(|ids| &ids[..]));
    drop(connection);
    assert!(server.stop());
    assert_clean(data);
    let server = Server::start_with(&["--data-dir", data]);
    assert_recorded(FORMAT_1, &mut server.connect().await, &["db/long?revs=true"]).await;
}
