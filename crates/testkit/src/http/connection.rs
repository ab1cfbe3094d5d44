//! A connection that returns an error when its server dies, and whose bodies can be read line by line, concurrently
//! with other work.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Answer, request_head};

/// The connection broke: refused, reset, or ended before the answer did.
#[derive(Debug)]
pub struct BrokenConnection;

/// A connection to a server that may die. It reads only when data are requested that have not arrived yet, so that the
/// server meets a slow reader.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    raw: Vec<u8>,
    /// The bytes of the body that are not returned yet.
    body: Vec<u8>,
    state: State,
    /// The headers of the current answer.
    headers: Vec<(String, String)>,
    /// True if the server closes the connection behind this answer.
    pub is_last: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A chunk's length is next.
    Length,
    /// This many bytes and a line end are next.
    Chunk(usize),
    /// This many bytes are next, without a line end.
    Bytes(usize),
    Done,
}

impl Connection {
    /// Connects to a server.
    ///
    /// # Errors
    /// The server is gone.
    pub async fn open(address: SocketAddr) -> Result<Connection, BrokenConnection> {
        let stream = TcpStream::connect(address).await.map_err(|_| BrokenConnection)?;
        stream.set_nodelay(true).map_err(|_| BrokenConnection)?;
        Ok(Connection::over(stream))
    }

    /// Wraps a connection with options of its own, such as a small receive buffer.
    pub fn over(stream: TcpStream) -> Connection {
        let (raw, body, headers) = (Vec::new(), Vec::new(), Vec::new());
        Connection { stream, raw, body, state: State::Done, headers, is_last: false }
    }

    /// Sends a request, whose body is JSON or empty, and reads its answer.
    ///
    /// # Errors
    /// The connection broke. Whether the request was executed is unknown.
    pub async fn call(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&'static str, String)],
        body: &str,
    ) -> Result<Answer, BrokenConnection> {
        let status = self.send(method, path, headers, body).await?;
        while self.state != State::Done {
            self.more().await?;
        }
        let body = String::from_utf8(std::mem::take(&mut self.body)).expect("UTF-8");
        Ok(Answer { status, headers: std::mem::take(&mut self.headers), body })
    }

    /// Sends a request and reads the head of its answer. Returns the status.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&'static str, String)],
        body: &str,
    ) -> Result<u16, BrokenConnection> {
        let head = request_head(method, path, headers, body.len()) + body;
        self.stream.write_all(head.as_bytes()).await.map_err(|_| BrokenConnection)?;
        let end = loop {
            if let Some(at) = self.raw.windows(4).position(|four| four == b"\r\n\r\n") {
                break at;
            }
            self.read().await?;
        };
        let head = String::from_utf8(self.raw.drain(..end + 4).collect()).expect("UTF-8");
        let answer = Answer::of_head(head.lines());
        self.state = match (answer.header("transfer-encoding"), answer.header("content-length")) {
            (Some("chunked"), _) => State::Length,
            (_, Some(length)) => State::Bytes(length.parse().expect("a length")),
            _ => State::Done,
        };
        self.is_last = answer.header("connection") == Some("close");
        self.headers = answer.headers;
        self.take();
        Ok(answer.status)
    }

    /// Reads the next line of the body, without its end. Returns `None` at the body's regular end. Loses no data if it
    /// is dropped.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn line(&mut self) -> Result<Option<String>, BrokenConnection> {
        if let Some(line) = self.whole_line().await? {
            return Ok(Some(line));
        }
        let rest = String::from_utf8(std::mem::take(&mut self.body)).expect("UTF-8");
        Ok((!rest.is_empty()).then_some(rest))
    }

    /// Reads a line as [`Connection::line`], of a body whose last line also has an end.
    ///
    /// # Errors
    /// The connection broke.
    ///
    /// # Panics
    /// The body ended within a line.
    pub async fn ended_line(&mut self) -> Result<Option<String>, BrokenConnection> {
        let line = self.whole_line().await?;
        assert!(line.is_some() || self.body.is_empty(), "a line without an end");
        Ok(line)
    }

    /// Returns a line with an end; `None`: the body has ended, and its rest has no line end.
    async fn whole_line(&mut self) -> Result<Option<String>, BrokenConnection> {
        loop {
            if let Some(end) = self.body.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.body.drain(..=end).collect();
                return Ok(Some(String::from_utf8(line).expect("UTF-8").trim_end().to_owned()));
            }
            if self.state == State::Done {
                return Ok(None);
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> Result<(), BrokenConnection> {
        self.read().await?;
        self.take();
        Ok(())
    }

    async fn read(&mut self) -> Result<(), BrokenConnection> {
        let mut piece = [0; 16 * 1024];
        match self.stream.read(&mut piece).await {
            Ok(0) | Err(_) => Err(BrokenConnection),
            Ok(length) => {
                self.raw.extend_from_slice(&piece[..length]);
                Ok(())
            }
        }
    }

    /// Parses the body data received.
    fn take(&mut self) {
        loop {
            match self.state {
                State::Done => return,
                State::Length => {
                    let Some(end) = self.raw.windows(2).position(|pair| pair == b"\r\n") else { return };
                    let line = String::from_utf8(self.raw.drain(..end + 2).collect()).expect("UTF-8");
                    self.state = State::Chunk(usize::from_str_radix(line.trim(), 16).expect("a chunk's length"));
                }
                State::Chunk(length) => {
                    if self.raw.len() < length + 2 {
                        return;
                    }
                    self.body.extend(self.raw.drain(..length));
                    self.raw.drain(..2);
                    self.state = if length == 0 { State::Done } else { State::Length };
                }
                State::Bytes(length) => {
                    let count = length.min(self.raw.len());
                    self.body.extend(self.raw.drain(..count));
                    self.state = if count == length { State::Done } else { State::Bytes(length - count) };
                    if count < length {
                        return;
                    }
                }
            }
        }
    }
}
