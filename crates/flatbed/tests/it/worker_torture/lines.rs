//! Lines of JSON in a file, or in objects of a store. The line of a document with the highest sequence counts, wherever
//! it is.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use flatbed_testkit::PATIENCE;
use serde_json::{Value, json};

use super::gate::{Gate, Mode};
use super::model::{Rows, add_sent_rows};
use super::target::{Fault, Target};

fn rows_of<'t>(texts: impl IntoIterator<Item = &'t [u8]>) -> Rows {
    let mut newest: HashMap<String, (u64, Value)> = HashMap::new();
    for line in texts.into_iter().flat_map(|text| text.split(|byte| *byte == b'\n')) {
        // A full disk or a killed process leaves an incomplete line.
        let Ok(line) = serde_json::from_slice::<Value>(line) else { continue };
        let number = line["seq"].as_str().unwrap().split('-').next().unwrap().parse().unwrap();
        let before = newest.entry(line["id"].as_str().unwrap().to_owned()).or_default();
        if before.0 <= number {
            *before = (number, line["doc"].clone());
        }
    }
    let mut rows = Rows::new();
    for (_, sent) in newest.values() {
        add_sent_rows(sent, &mut rows);
    }
    rows
}

pub(super) struct LinesFile(pub(super) PathBuf);

impl Target for LinesFile {
    fn id(&self) -> &'static str {
        "file"
    }

    fn output(&self) -> (&'static str, Value) {
        ("cloud", json!({"provider": "file", "file": self.0.file_name().unwrap().to_str().unwrap()}))
    }

    fn judges(&self) -> bool {
        false
    }

    fn keeps_what_it_has(&self) -> bool {
        true
    }

    fn relents(&self) {}

    fn rows(&self) -> Rows {
        rows_of([std::fs::read(&self.0).unwrap_or_default().as_slice()])
    }

    /// It shares the disk, which has faults of its own.
    fn faults(&self) -> &'static [Fault] {
        &[]
    }

    fn suffers(&self, _: Fault, _: bool) {}
}

/// moto's server, which does not check signatures here; `crates/worker/tests/it/s3.rs` makes it do so.
pub(super) struct Store {
    process: Child,
    port: u16,
    gate: Gate,
}

impl Store {
    /// Starts the server that `FLATBED_MOTO_SERVER` names. `None`: the variable is not set.
    pub(super) async fn new() -> Option<Store> {
        let Ok(program) = std::env::var("FLATBED_MOTO_SERVER") else {
            println!("skipped: FLATBED_MOTO_SERVER is not set");
            return None;
        };
        let mut process = Command::new(program)
            .args(["-H", "127.0.0.1", "-p", "0"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap());
        let port = loop {
            let mut line = String::new();
            assert!(lines.read_line(&mut line).unwrap() > 0, "it does not say where it listens");
            if let Some((_, url)) = line.split_once("Running on ") {
                break url.trim().rsplit(':').next().unwrap().parse().unwrap();
            }
        };
        // A full pipe would block the server, so its log is read.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        let store = Store { process, port, gate: Gate::to(port).await };
        store.ask("PUT", "/bucket");
        Some(store)
    }

    fn ask(&self, method: &str, path: &str) -> Vec<u8> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let credential =
            "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x";
        let head = format!(
            "{method} {path} HTTP/1.0\r\nhost: 127.0.0.1\r\nauthorization: {credential}\r\ncontent-length: 0\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        assert!(head.split(' ').nth(1) == Some("200"), "{path}: {head}");
        answer.split_off(end + 4)
    }

    fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = Vec::new();
        loop {
            let after = keys.last().map(|last| format!("&start-after={last}")).unwrap_or_default();
            let page = String::from_utf8(self.ask("GET", &format!("/bucket?list-type=2{after}"))).unwrap();
            let before = keys.len();
            keys.extend(page.split("<Key>").skip(1).map(|rest| rest.split("</Key>").next().unwrap().to_owned()));
            if keys.len() == before {
                return keys;
            }
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Target for Store {
    fn id(&self) -> &'static str {
        "s3"
    }

    fn output(&self) -> (&'static str, Value) {
        let output = json!({"provider": "s3", "bucket": "bucket", "endpoint_url": format!("http://127.0.0.1:{}", self.gate.port),
            "access_key_id": "file:sql", "secret_access_key": "file:sql", "format": "json_lines",
            "key_template": "{epoch}-{seq}.jsonl", "batch": {"max_docs": 200, "max_seconds": 1}, "timeout_seconds": 3});
        ("cloud", output)
    }

    fn judges(&self) -> bool {
        false
    }

    fn relents(&self) {}

    fn rows(&self) -> Rows {
        let texts: Vec<Vec<u8>> = self.keys().iter().map(|key| self.ask("GET", &format!("/bucket/{key}"))).collect();
        rows_of(texts.iter().map(Vec::as_slice))
    }

    fn faults(&self) -> &'static [Fault] {
        &[Fault::Refuses, Fault::Hangs]
    }

    fn suffers(&self, fault: Fault, is_on: bool) {
        match fault {
            Fault::Refuses if is_on => self.gate.set(Mode::Refuses),
            Fault::Hangs if is_on => self.gate.set(Mode::Hangs),
            _ => self.gate.set(Mode::Passes),
        }
    }
}
