//! A store that an earlier program left, read and written by this one. Always on the embedded engine.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Server, call, run};
use flatbed_client::Connection;
use hyper::Method;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/before-issue-11").join(name)
}

/// A path and the answer that the earlier program gave.
fn recorded() -> Vec<(String, String)> {
    let text = fs::read_to_string(fixture("answers.txt")).unwrap();
    let answer = |line: &str| line.split_once('\t').map(|(path, body)| (path.to_owned(), body.replace("\\n", "\n")));
    text.lines().map(|line| answer(line).expect("a path and an answer")).collect()
}

async fn assert_recorded(connection: &mut Connection, but: &[&str]) {
    let recorded = recorded();
    assert!(recorded.len() > 10, "{}", recorded.len());
    for (path, body) in recorded.iter().filter(|(path, _)| !but.contains(&path.as_str())) {
        let answer = connection.call(Method::GET, &format!("/{path}"), "").await.unwrap();
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
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::copy(fixture("data.mdb"), data.join("data.mdb")).unwrap();
    let data = data.to_str().expect("UTF-8");
    assert_clean(data);
    let server = Server::start_with(&["--data-dir", data]);
    let mut connection = server.connect().await;
    assert_recorded(&mut connection, &[]).await;
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
    let changed: Vec<String> = recorded()
        .into_iter()
        .map(|(path, _)| path)
        .filter(|path| ["conflict", "attached", "_changes"].iter().any(|part| path.contains(part)))
        .collect();
    let changed: Vec<&str> = changed.iter().map(String::as_str).collect();
    assert_recorded(&mut server.connect().await, &changed).await;
}
