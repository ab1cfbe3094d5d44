//! A client for servers that stay alive.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Answer, request_head};
use crate::soon;

/// A connection that shows every byte. Each method panics if the connection ends too early or the data are not
/// HTTP/1.1.
///
/// [`Client::call`] is a whole request. A feed is read in parts: [`Client::send`], [`Client::head`], then
/// [`Client::feed_line`] or [`Client::chunk`].
#[derive(Debug)]
pub struct Client {
    /// The connection, for bytes that are not a whole request.
    pub stream: TcpStream,
    /// Bytes received and not returned yet.
    read: Vec<u8>,
}

impl Client {
    /// Connects to a server.
    pub async fn to(address: SocketAddr) -> Client {
        Client { stream: TcpStream::connect(address).await.expect("connected"), read: Vec::new() }
    }

    /// Sends a request, and reads its answer.
    pub async fn call(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.send(method, path, headers, body).await;
        soon(self.answer(method == "HEAD")).await
    }

    /// Sends a request. A body is JSON unless `headers` say otherwise.
    pub async fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let head = request_head(method, path, headers, body.len());
        self.stream.write_all(head.as_bytes()).await.expect("sent");
        self.stream.write_all(body).await.expect("sent");
    }

    /// Reads more bytes; false at the end of the connection.
    async fn more(&mut self) -> bool {
        let mut piece = [0; 16 * 1024];
        let length = self.stream.read(&mut piece).await.expect("read");
        self.read.extend_from_slice(&piece[..length]);
        length > 0
    }

    async fn line(&mut self) -> String {
        loop {
            if let Some(at) = self.read.windows(2).position(|pair| pair == b"\r\n") {
                let line: Vec<u8> = self.read.drain(..at + 2).collect();
                return String::from_utf8(line[..at].to_vec()).expect("UTF-8");
            }
            assert!(self.more().await, "the connection ended within a line");
        }
    }

    /// Reads a number of bytes of a body.
    pub async fn bytes(&mut self, count: usize) -> Vec<u8> {
        while self.read.len() < count {
            assert!(self.more().await, "the connection ended within a body");
        }
        self.read.drain(..count).collect()
    }

    /// Reads status and headers. The body is empty.
    pub async fn head(&mut self) -> Answer {
        let mut lines = vec![self.line().await];
        loop {
            let line = self.line().await;
            if !line.contains(": ") {
                return Answer::of_head(lines.iter());
            }
            lines.push(line);
        }
    }

    /// Reads one chunk of a body. The last one is empty.
    pub async fn chunk(&mut self) -> String {
        let length = self.line().await;
        let length = usize::from_str_radix(&length, 16).expect("a chunk's length");
        let chunk = self.bytes(length).await;
        self.line().await;
        String::from_utf8(chunk).expect("UTF-8")
    }

    /// Reads chunks up to one that ends with `end`, and returns their text.
    pub async fn chunks_until(&mut self, end: &str) -> String {
        let mut text = String::new();
        while !text.ends_with(end) {
            let chunk = soon(self.chunk()).await;
            assert!(!chunk.is_empty(), "the body ended: {text}");
            text.push_str(&chunk);
        }
        text
    }

    /// Reads a whole answer. An answer to `HEAD` has no body.
    pub async fn answer(&mut self, is_head: bool) -> Answer {
        let mut answer = self.head().await;
        if is_head || answer.status == 304 || answer.status == 204 {
            return answer;
        }
        if answer.header("transfer-encoding") == Some("chunked") {
            loop {
                let chunk = self.chunk().await;
                if chunk.is_empty() {
                    return answer;
                }
                answer.body.push_str(&chunk);
            }
        }
        let length = answer.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        answer.body = String::from_utf8(self.bytes(length).await).expect("UTF-8");
        answer
    }

    /// Reads everything until a chunked answer or the connection ends, at any point.
    pub async fn rest(&mut self) -> String {
        let mut piece = [0; 16 * 1024];
        while !self.read.ends_with(b"0\r\n\r\n")
            && let Ok(length @ 1..) = self.stream.read(&mut piece).await
        {
            self.read.extend_from_slice(&piece[..length]);
        }
        String::from_utf8_lossy(&std::mem::take(&mut self.read)).into_owned()
    }

    /// Reads the next line of a feed, without heartbeats. Returns `None` at its end. `rest` keeps the data read behind
    /// the line, and is empty at first.
    pub async fn feed_line(&mut self, rest: &mut String) -> Option<String> {
        loop {
            while let Some(at) = rest.find('\n') {
                let line: String = rest.drain(..=at).collect();
                if line.len() > 1 {
                    return Some(line.trim_end().to_owned());
                }
            }
            let chunk = soon(self.chunk()).await;
            if chunk.is_empty() {
                return None;
            }
            rest.push_str(&chunk);
        }
    }
}
