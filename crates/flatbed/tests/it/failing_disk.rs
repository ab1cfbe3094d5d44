//! The disk under a running server fails. Writes are refused, `/_up`, the log and `/metrics` report it, and reads
//! continue. After a restart every acknowledged write exists.

#[path = "../../../fdb-embedded/tests/failing_disk/faults.rs"]
#[allow(dead_code, reason = "the tests of the engine use the rest")]
mod faults;
use std::{
    fs::{self, File},
    os::unix::{fs::FileExt, process::CommandExt},
    path::Path,
};

use crate::support::{Server, call, counters, flatbed, has_engine, run};
use faults::Faults;
use flatbed_client::Connection;
use hyper::Method;
use serde_json::Value;

/// Writes documents until one is refused, and then more in every way. Returns the acknowledged ids.
async fn write_until_refused(connection: &mut Connection, body: &str) -> Vec<String> {
    let mut acknowledged = Vec::new();
    loop {
        let id = format!("d{}", acknowledged.len());
        let (status, answer) = call(connection, Method::PUT, &format!("/db/{id}"), body).await;
        if status != 201 {
            refused(status, &answer, &up(connection).await);
            break;
        }
        acknowledged.push(id);
        assert!(acknowledged.len() < 1_000, "the disk does not fail");
    }
    let bulk = r#"{"docs":[{"_id":"b1"},{"_id":"b2"}]}"#;
    let more = [
        (Method::PUT, "/db/more", "{}"),
        (Method::POST, "/db", "{}"),
        (Method::POST, "/db/_bulk_docs", bulk),
        (Method::PUT, "/other", ""),
        (Method::DELETE, "/db", ""),
    ];
    for (method, path, body) in more {
        let (status, answer) = call(connection, method, path, body).await;
        refused(status, &answer, &up(connection).await);
    }
    acknowledged
}

async fn up(connection: &mut Connection) -> Value {
    call(connection, Method::GET, "/_up", "").await.1
}

/// The client of a refused request is told what `/_up` tells.
fn refused(status: u16, answer: &Value, up: &Value) {
    assert_eq!((status, answer["error"].as_str()), (503, Some("storage_failed")), "{answer}");
    assert_eq!(answer["reason"], up["reason"], "{answer}");
}

/// Checks the reports of a server whose disk has failed.
async fn says_so(server: &Server, log: &Path, advice: &str) {
    let mut connection = server.connect().await;
    let (status, answer) = call(&mut connection, Method::GET, "/_up", "").await;
    assert_eq!((status, answer["error"].as_str()), (503, Some("storage_failed")), "{answer}");
    let reason = answer["reason"].as_str().expect("a reason");
    assert!(reason.contains("writing to the data file failed") && reason.contains(advice), "{reason}");
    assert_eq!(answer["status"], "storage_failed", "{answer}");
    assert_eq!(call(&mut connection, Method::HEAD, "/_up", "").await.0, 503);
    assert_eq!(counters(server, "flatbed_storage_failed").await, 1.0);
    let log = fs::read_to_string(log).expect("the log");
    let errors: Vec<&str> = log.lines().filter(|line| line.contains("ERROR")).collect();
    assert_eq!(errors.len(), 1, "{log}");
    assert!(errors[0].contains("the storage has failed") && errors[0].contains(reason), "{log}");
}

/// Checks that every acknowledged document can be read.
async fn reads(server: &Server, acknowledged: &[String]) {
    let mut connection = server.connect().await;
    for id in acknowledged {
        assert_eq!(call(&mut connection, Method::GET, &format!("/db/{id}"), "").await.0, 200, "{id}");
    }
    let (status, rows) = call(&mut connection, Method::GET, "/db/_all_docs", "").await;
    let found = rows["rows"].as_array().map_or(0, Vec::len);
    // A write with an unknown result may exist as well.
    assert!(status == 200 && (acknowledged.len()..=acknowledged.len() + 1).contains(&found), "{status} {rows}");
    let (status, changes) = call(&mut connection, Method::GET, "/db/_changes", "").await;
    assert_eq!((status, changes["results"].as_array().map_or(0, Vec::len)), (200, found), "{changes}");
}

/// Restarts the server without the fault.
async fn mended(data: &Path, acknowledged: &[String]) {
    let output = crate::support::check("db", data);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let server = Server::start(data);
    reads(&server, acknowledged).await;
    let mut connection = server.connect().await;
    assert_eq!(call(&mut connection, Method::GET, "/_up", "").await.0, 200);
    assert_eq!(counters(&server, "flatbed_storage_failed").await, 0.0);
    assert_eq!(call(&mut connection, Method::PUT, "/db/after", "{}").await.0, 201);
    assert!(server.stop());
}

#[tokio::test]
async fn a_write_or_sync_fails() {
    if !has_engine() {
        return;
    }
    let cases = [
        ("from", libc::ENOSPC, "make room on the disk"),
        ("once", libc::EIO, "the disk may be failing"),
        ("done-from", libc::EIO, "the disk may be failing"),
    ];
    for (case, (mode, errno, advice)) in cases.into_iter().enumerate() {
        let directory = tempfile::tempdir().unwrap();
        let (data, log) = (directory.path().join("data"), directory.path().join("log"));
        let faults = Faults::on(&data);
        let mut command = flatbed();
        faults.load(&mut command).stderr(File::create(&log).unwrap());
        let server = Server::start_as(&mut command, &["--data-dir", data.to_str().unwrap()]);
        let mut connection = server.connect().await;
        assert_eq!(call(&mut connection, Method::PUT, "/db", "").await.0, 201);
        let (status, answer) = call(&mut connection, Method::GET, "/_up", "").await;
        assert_eq!((status, &answer), (200, &serde_json::json!({"status": "ok", "seeds": {}})));
        assert_eq!(counters(&server, "flatbed_storage_failed").await, 0.0);
        // Some documents succeed; then the first, the second or the third call of a commit fails.
        faults.arm(20 + case as u64, mode, errno);
        let acknowledged = write_until_refused(&mut connection, r#"{"a":["body"]}"#).await;
        assert!(!acknowledged.is_empty());
        says_so(&server, &log, advice).await;
        reads(&server, &acknowledged).await;
        says_so(&server, &log, advice).await;
        assert!(server.stop(), "it ends as always");
        mended(&data, &acknowledged).await;
    }
}

#[tokio::test]
async fn the_limit_on_the_size_of_files_is_reached() {
    if !has_engine() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (data, log) = (directory.path().join("data"), directory.path().join("log"));
    let mut command = flatbed();
    command.stderr(File::create(&log).unwrap());
    let limit = libc::rlimit { rlim_cur: 5 << 20, rlim_max: 5 << 20 };
    // SAFETY: setrlimit takes plain values and may be called between fork and exec.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_FSIZE, &limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let server = Server::start_as(&mut command, &["--data-dir", data.to_str().unwrap()]);
    let mut connection = server.connect().await;
    assert_eq!(call(&mut connection, Method::PUT, "/db", "").await.0, 201);
    // Data that hardly compresses.
    let number = |at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let text: String = (0..20_000).map(|at| format!("{:016x}", number(at))).collect();
    let body = format!("{{\"text\":\"{text}\"}}");
    let acknowledged = write_until_refused(&mut connection, &body).await;
    assert!(!acknowledged.is_empty());
    says_so(&server, &log, "ulimit -f").await;
    reads(&server, &acknowledged).await;
    assert!(server.stop());
    mended(&data, &acknowledged).await;
}

/// Flips a byte of each occurrence of `needle` in the data file. Returns their number.
fn damage(data: &Path, needle: &[u8]) -> usize {
    let path = data.join("data.mdb");
    let bytes = fs::read(&path).expect("the file");
    let file = File::options().write(true).open(&path).expect("the file");
    let windows = bytes.windows(needle.len()).enumerate();
    let places: Vec<usize> = windows.filter(|(_, window)| *window == needle).map(|(at, _)| at).collect();
    for &at in &places {
        file.write_all_at(&[bytes[at] ^ 1], at as u64).expect("a write");
    }
    places.len()
}

#[tokio::test]
async fn a_flipped_byte_is_named_and_not_served() {
    if !has_engine() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (data, log) = (directory.path().join("data"), directory.path().join("log"));
    let mut command = flatbed();
    command.stderr(File::create(&log).unwrap());
    let server = Server::start_as(&mut command, &["--data-dir", data.to_str().unwrap()]);
    let mut connection = server.connect().await;
    assert_eq!(call(&mut connection, Method::PUT, "/db", "").await.0, 201);
    for (id, text) in [("damaged", "a needle in it"), ("sound", "other")] {
        let (status, _) =
            call(&mut connection, Method::PUT, &format!("/db/{id}"), &format!("{{\"text\":\"{text}\"}}")).await;
        assert_eq!(status, 201);
    }
    assert!(damage(&data, b"a needle in it") > 0);
    let (status, answer) = call(&mut connection, Method::GET, "/db/damaged", "").await;
    refused(status, &answer, &up(&mut connection).await);
    let reason = answer["reason"].as_str().expect("a reason").to_owned();
    assert!(reason.contains("data.mdb is damaged") && reason.contains("restore a backup"), "{reason}");
    assert_eq!(call(&mut connection, Method::GET, "/db/sound", "").await.0, 200);
    let (status, answer) = call(&mut connection, Method::PUT, "/db/more", "{}").await;
    refused(status, &answer, &up(&mut connection).await);
    let log = fs::read_to_string(&log).expect("the log");
    assert_eq!(log.lines().filter(|line| line.contains("ERROR") && line.contains(&reason)).count(), 1, "{log}");
    assert!(server.stop());
    let output = run(&["serve", "--data-dir", data.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && text.contains("data.mdb is damaged (page "), "{text}");
}

#[tokio::test]
async fn a_file_that_is_cut_off_under_a_server_is_named_before_the_end() {
    if !has_engine() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (data, log) = (directory.path().join("data"), directory.path().join("log"));
    let mut command = flatbed();
    command.stderr(File::create(&log).unwrap());
    let server = Server::start_as(&mut command, &["--data-dir", data.to_str().unwrap()]);
    let mut connection = server.connect().await;
    assert_eq!(call(&mut connection, Method::PUT, "/db", "").await.0, 201);
    let file = File::options().write(true).open(data.join("data.mdb")).unwrap();
    file.set_len(8_192).unwrap();
    assert!(connection.call(Method::GET, "/db", "").await.is_err(), "the process ends in the middle of the request");
    assert_eq!(server.end("TERM"), None, "it ended by a signal");
    let log = fs::read_to_string(&log).expect("the log");
    assert!(log.contains("SIGBUS") && log.contains("restore a backup"), "{log}");
    let output = run(&["serve", "--data-dir", data.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && text.contains("is cut off"), "{text}");
}
