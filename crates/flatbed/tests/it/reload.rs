//! SIGHUP and SIGTERM while clients work: no request is lost.

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use crate::support::{Server, call, counters, flatbed, signal, storage};
use flatbed_client::{Connection, Url};
use flatbed_testkit::{until, until_wanted};
use hyper::Method;
use serde_json::Value;

const CLIENTS: usize = 4;

/// A server with a configuration file, and its log.
struct Configured {
    server: Server,
    config: PathBuf,
    log: PathBuf,
}

impl Configured {
    fn start(directory: &Path, text: &str, arguments: &[&str]) -> Configured {
        let (config, log) = (directory.join("flatbed.toml"), directory.join("log"));
        fs::write(&config, text).unwrap();
        let mut command = flatbed();
        command.stderr(File::create(&log).expect("a file"));
        let storage = storage(&directory.join("data"));
        let own = ["--config", config.to_str().unwrap(), "--log-level", "info"];
        let arguments: Vec<&str> =
            storage.iter().map(String::as_str).chain(own).chain(arguments.iter().copied()).collect();
        Configured { server: Server::start_as(&mut command, &arguments), config, log }
    }

    /// Replaces the file by a rename, and sends SIGHUP.
    fn reload(&self, text: &str) {
        let new = self.config.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(&new, &self.config).unwrap();
        signal(self.server.pid(), "HUP");
    }

    async fn until_logged(&self, line: &str) {
        let log = async || fs::read_to_string(&self.log).expect("the log");
        until_wanted(line, log, |log| log.contains(line)).await;
    }

    async fn timeout(&self) -> Value {
        let path = "/_node/_local/_config/chttpd_auth/timeout";
        call(&mut self.server.connect().await, Method::GET, path, "").await.1
    }
}

fn with_timeout(seconds: u32) -> String {
    format!("[chttpd_auth]\ntimeout = {seconds}\n")
}

/// Writes documents on one connection and on new ones until told to stop. Each must be stored.
async fn write(url: Url, client: usize, written: Arc<AtomicU64>, is_over: Arc<AtomicBool>) {
    let mut kept = Connection::open(&url).await.expect("the server answers");
    for number in 0.. {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let path = format!("/db/{client}-{number}");
        let status = if number % 2 == 0 {
            call(&mut kept, Method::PUT, &path, "{}").await.0
        } else {
            let mut new = Connection::open(&url).await.expect("the server accepts connections");
            call(&mut new, Method::PUT, &path, "{}").await.0
        };
        assert_eq!(status, 201, "{path}");
        written.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_under_load_loses_no_request() {
    let directory = tempfile::tempdir().unwrap();
    let configured = Configured::start(directory.path(), &with_timeout(600), &[]);
    assert_eq!(call(&mut configured.server.connect().await, Method::PUT, "/db", "").await.0, 201);
    let (written, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| tokio::spawn(write(configured.server.url.clone(), client, written.clone(), is_over.clone())))
        .collect();
    let more = async || {
        let from = written.load(Ordering::Relaxed);
        until("documents are written", async || written.load(Ordering::Relaxed) >= from + 20).await;
    };
    for seconds in 601..=610 {
        more().await;
        configured.reload(&with_timeout(seconds));
        let expected = seconds.to_string();
        until_wanted("the new timeout", async || configured.timeout().await, |found| *found == expected).await;
    }
    // A change that needs a restart is named, and the rest applies.
    configured.reload(&format!("run_bytes = 1\n{}", with_timeout(700)));
    configured.until_logged("take effect after a restart: run_bytes").await;
    assert_eq!(configured.timeout().await, "700");
    // A broken configuration changes nothing.
    for (broken, reason) in [
        ("[chttpd_auth]\ntimeout = = 1\n", "is not TOML"),
        ("timout = 1\n", "unknown key"),
        ("[chttpd_auth]\ntimeout = \"soon\"\n", "chttpd_auth/timeout"),
    ] {
        let refused = async || {
            let log = fs::read_to_string(&configured.log).expect("the log");
            log.lines().any(|line| line.contains("the new configuration is refused") && line.contains(reason))
        };
        assert!(!refused().await, "{reason}");
        configured.reload(broken);
        until(reason, refused).await;
        assert_eq!(configured.timeout().await, "700");
    }
    more().await;
    is_over.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.expect("no request is lost");
    }
    assert!(configured.server.stop());
}

#[tokio::test]
async fn administrators_of_the_file_change() {
    let directory = tempfile::tempdir().unwrap();
    let configured = Configured::start(directory.path(), "", &[]);
    let status = async || call(&mut configured.server.connect().await, Method::PUT, "/db", "").await.0;
    assert_eq!(status().await, 201);
    configured.reload("[admins]\nanna = \"plain secret\"\n");
    until("the server is closed", async || status().await == 401).await;
    assert!(!fs::read_to_string(&configured.config).unwrap().contains("plain secret"), "the password is hashed");
    // A server that had an administrator does not open while it runs.
    configured.reload("run_bytes = 1\n");
    configured.until_logged("take effect after a restart").await;
    assert_eq!(status().await, 401);
    assert!(configured.server.stop());
}

#[tokio::test]
async fn the_log_file_is_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let (path, moved) = (directory.path().join("flatbed.log"), directory.path().join("moved"));
    let configured = Configured::start(directory.path(), "", &["--log-file", path.to_str().unwrap()]);
    fs::rename(&path, &moved).unwrap();
    signal(configured.server.pid(), "HUP");
    let text = async || fs::read_to_string(&path).unwrap_or_default();
    until_wanted("a new file", text, |text| text.contains("the log is open again")).await;
    assert!(fs::read_to_string(&moved).unwrap().contains("SIGHUP"));
    assert!(configured.server.stop());
    assert!(fs::read_to_string(&path).unwrap().contains("stopped"));
}

#[tokio::test]
async fn a_request_under_way_ends_before_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path());
    assert_eq!(call(&mut server.connect().await, Method::PUT, "/db", "").await.0, 201);
    let mut request = TcpStream::connect(server.url.authority()).unwrap();
    request.write_all(b"PUT /db/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n{").unwrap();
    // The waiting request, and the one that reads the metrics.
    until("the request is under way", async || counters(&server, "flatbed_requests_in_flight").await >= 2.0).await;
    signal(server.pid(), "TERM");
    until("no connection is accepted", async || TcpStream::connect(server.url.authority()).is_err()).await;
    request.write_all(b"\"a\":\"bc\"}").unwrap();
    let mut answer = String::new();
    request.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    assert_eq!(server.wait(), Some(0));
    let server = Server::start(directory.path());
    assert_eq!(call(&mut server.connect().await, Method::GET, "/db/a", "").await.0, 200);
    assert!(server.stop());
}
