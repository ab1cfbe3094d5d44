//! `flatbed import` from a server that is no CouchDB.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use crate::support::run;

/// Answers each request with an empty object.
fn answer_objects(stream: &TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let mut stream = stream;
    while let Some(line) = lines.next().transpose()? {
        if line.is_empty() {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")?;
        }
    }
    Ok(())
}

#[test]
fn a_server_without_a_list_of_databases_is_no_source() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            // Source and target have a connection each.
            thread::spawn(move || {
                let _ = answer_objects(&stream);
            });
        }
    });
    let moved = run(&["import", &url, "--to", &url]);
    assert_eq!(moved.status.code(), Some(2), "{}", String::from_utf8_lossy(&moved.stdout));
    assert!(String::from_utf8_lossy(&moved.stderr).contains("the answer is not one of CouchDB's API"));
}
