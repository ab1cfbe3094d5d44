//! Numbers that a float would round keep their digits where `flatbed import`, `dump` and `load` copy JSON themselves.

use std::fs;

use flatbed_client::Connection;
use hyper::Method;

use crate::support::{Server, run};

/// A number above 2^64.
const LARGE: &str = "123456789012345678901234567890";

/// Sends a request that must succeed, and returns the text of its answer.
async fn ask(connection: &mut Connection, method: Method, path: &str, body: &str) -> String {
    let answer = connection.call(method, path, body.to_owned()).await.expect("an answer");
    assert!(matches!(answer.status, 200..=202), "{path}: {}", answer.text());
    String::from_utf8(answer.body.to_vec()).expect("UTF-8")
}

/// Makes a database whose settings and local document have the number.
async fn fill(connection: &mut Connection) -> (String, String) {
    ask(connection, Method::PUT, "/db", "").await;
    let security = format!("{{\"members\":{{\"names\":[]}},\"z\":{LARGE},\"a\":1.0}}");
    ask(connection, Method::PUT, "/db/_security", &security).await;
    ask(connection, Method::PUT, "/db/_local/one", &format!("{{\"z\":{LARGE},\"a\":[1e300]}}")).await;
    let local = ask(connection, Method::GET, "/db/_local/one", "").await;
    assert!(local.contains(LARGE), "{local}");
    (ask(connection, Method::GET, "/db/_security", "").await, local)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_keeps_all_digits_of_settings_and_local_documents() {
    let directory = tempfile::tempdir().unwrap();
    let source = Server::start(&directory.path().join("source"));
    let target = Server::start(&directory.path().join("target"));
    let (security, local) = fill(&mut source.connect().await).await;
    let mut other = target.connect().await;
    // The second run finds nothing to write.
    for _ in 0..2 {
        let moved = run(&["import", &source.url.to_string(), "--to", &target.url.to_string(), "--local", "--verify"]);
        assert!(moved.status.success(), "{}", String::from_utf8_lossy(&moved.stdout));
        assert_eq!(ask(&mut other, Method::GET, "/db/_security", "").await, security);
        assert_eq!(ask(&mut other, Method::GET, "/db/_local/one", "").await, local);
    }
}

#[tokio::test]
async fn a_dump_keeps_all_digits_of_security() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let mut connection = server.connect().await;
    let (security, _) = fill(&mut connection).await;
    let url = server.url.to_string();
    let dump = run(&["dump", "db", "--url", &url]);
    assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
    let file = directory.path().join("dump.jsonl");
    fs::write(&file, &dump.stdout).unwrap();
    let loaded = run(&["load", "again", file.to_str().unwrap(), "--url", &url]);
    assert!(loaded.status.success(), "{}", String::from_utf8_lossy(&loaded.stderr));
    assert_eq!(ask(&mut connection, Method::GET, "/again/_security", "").await, security);
}
