//! Two HTTP/1.1 clients for servers under test, and a server for clients under test. The clients show the bytes
//! received, without a pool or a retry.
//!
//! [`Client`] panics if a connection breaks: it is for servers that stay alive. [`Connection`] returns [`BrokenConnection`]: it
//! is for tortures that kill their servers.

#![allow(clippy::expect_used, reason = "a test whose server answers nonsense has failed")]

mod client;
mod connection;
mod server;

pub use client::Client;
pub use connection::{BrokenConnection, Connection};
use serde_json::Value;
pub use server::{Request, ServerConnection, listen};

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// Names and values, in the order received.
    pub headers: Vec<(String, String)>,
    /// The body, as far as it is read.
    pub body: String,
}

impl Answer {
    /// Parses the lines of a head, without their ends.
    fn of_head(mut lines: impl Iterator<Item = impl AsRef<str>>) -> Answer {
        let first = lines.next().expect("a line");
        let status = first.as_ref().split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let header = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()));
        let headers = lines.map_while(|line| header(line.as_ref())).collect();
        Answer { status, headers, body: String::new() }
    }

    /// Returns a header by its name in lower case, as servers of this project write it.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// Returns the body as JSON.
    ///
    /// # Panics
    /// The body is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns a string of the JSON object in the body.
    ///
    /// # Panics
    /// The member is missing or not a string.
    pub fn text(&self, member: &str) -> String {
        self.json()[member].as_str().unwrap_or_else(|| panic!("{member}: {self:?}")).to_owned()
    }

    /// Returns the value of CouchDB's session cookie, if the answer sets one.
    pub fn session(&self) -> Option<String> {
        let cookie = |value: &str| value.split_once("AuthSession=")?.1.split(';').next().map(str::to_owned);
        let mut set = self.headers.iter().filter(|(name, _)| name == "set-cookie");
        set.find_map(|(_, value)| cookie(value)).filter(|value| !value.is_empty())
    }
}

/// Returns the head of a request. Adds the headers that its body and CouchDB's answers need, unless they are in
/// `headers`.
fn request_head(method: &str, path: &str, headers: &[(&str, impl AsRef<str>)], body_bytes: usize) -> String {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n");
    let mut give = |name: &str, value: &str| {
        if !headers.iter().any(|(given, _)| *given == name) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
    };
    // Without it some answers are multipart, as CouchDB's are.
    give("accept", "application/json");
    if body_bytes > 0 {
        give("content-type", "application/json");
        give("content-length", &body_bytes.to_string());
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {}\r\n", value.as_ref()));
    }
    head.push_str("\r\n");
    head
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::soon;

    const CHUNKED: &str = "HTTP/1.1 200 OK\r\nset-cookie: a=b\r\nset-cookie: AuthSession=s3; Path=/\r\n\
                           transfer-encoding: chunked\r\n\r\n3\r\n{}\n\r\n4\r\n[]\n1\r\n0\r\n\r\n";

    const SIZED: &str = "HTTP/1.1 404 X\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";

    /// Starts a server for one connection. It answers each request, which has no body, with the next answer, and then
    /// ends. Returns the last request.
    async fn server(answers: Vec<String>) -> (std::net::SocketAddr, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            for answer in answers {
                request.clear();
                while !request.ends_with(b"\r\n\r\n") {
                    request.push(stream.read_u8().await.unwrap());
                }
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
            String::from_utf8(request).unwrap()
        });
        (address, served)
    }

    #[tokio::test]
    async fn a_client_reads_bodies_of_both_kinds() {
        let (address, served) = server(vec![CHUNKED.to_owned(), SIZED.to_owned()]).await;
        let mut client = Client::to(address).await;
        let answer = client.call("GET", "/a", &[], b"").await;
        assert_eq!((answer.status, answer.body.as_str()), (200, "{}\n[]\n1"));
        assert_eq!(answer.session().as_deref(), Some("s3"));
        let answer = client.call("GET", "/b", &[("accept", "*/*")], b"").await;
        assert_eq!((answer.status, answer.json(), answer.session()), (404, serde_json::json!({}), None));
        let request = soon(served).await.unwrap();
        assert_eq!(request, "GET /b HTTP/1.1\r\nhost: localhost\r\naccept: */*\r\n\r\n");
    }

    #[tokio::test]
    async fn a_server_reads_requests_and_answers() {
        let address = listen(|mut connection| async move {
            while let Some(request) = connection.read().await {
                let Request { method, path, .. } = &request;
                let body = format!("{method} {path} {} {}", request.header("a").unwrap_or("-"), request.text());
                connection.answer(201, "b: c\r\n", &body).await;
            }
        });
        let mut client = Client::to(address.await).await;
        let answer = client.call("PUT", "/x?y", &[("A", "1:2")], b"body").await;
        assert_eq!((answer.status, answer.header("b"), answer.body.as_str()), (201, Some("c"), "PUT /x?y 1:2 body"));
        assert_eq!(client.call("GET", "/z", &[], b"").await.body, "GET /z - ");
    }

    #[tokio::test]
    async fn a_connection_gives_lines_and_breaks() {
        let cut = CHUNKED[..CHUNKED.len() - 9].to_owned();
        let (address, _served) = server(vec![CHUNKED.to_owned(), cut]).await;
        let mut connection = Connection::open(address).await.unwrap();
        assert_eq!(connection.send("GET", "/", &[], "").await.unwrap(), 200);
        let mut lines = Vec::new();
        while let Some(line) = connection.line().await.unwrap() {
            lines.push(line);
        }
        assert_eq!(lines, ["{}", "[]", "1"]);
        assert!(!connection.is_last);
        assert!(connection.call("GET", "/", &[], "").await.is_err());
    }

    #[tokio::test]
    #[should_panic(expected = "a line without an end")]
    async fn a_line_without_an_end_is_found() {
        let (address, _served) = server(vec![CHUNKED.to_owned()]).await;
        let mut connection = Connection::open(address).await.unwrap();
        connection.send("GET", "/", &[], "").await.unwrap();
        while connection.ended_line().await.unwrap().is_some() {}
    }

    #[tokio::test]
    async fn the_last_answer_of_a_connection_says_so() {
        let (address, _served) = server(vec![SIZED.to_owned()]).await;
        let mut connection = Connection::open(address).await.unwrap();
        let answer = connection.call("GET", "/", &[("cookie", "a".to_owned())], "").await.unwrap();
        assert_eq!((answer.status, answer.body.as_str(), connection.is_last), (404, "{}", true));
    }
}
