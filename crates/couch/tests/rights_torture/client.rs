//! A connection that breaks without ado when its server dies, and whose bodies can be read line by line, beside anything else.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The connection broke: refused, reset, or ended before the answer did.
#[derive(Debug)]
pub struct Broken;

/// What was answered.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: String,
    /// The value of the session's cookie that came with it.
    pub cookie: Option<String>,
}

pub struct Connection {
    stream: TcpStream,
    raw: Vec<u8>,
    /// What of the body is not given out yet.
    body: Vec<u8>,
    state: State,
    cookie: Option<String>,
    /// The server closes it behind this answer.
    pub is_last: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// A chunk's length comes next.
    Length,
    /// So many bytes, and a line's end behind them.
    Chunk(usize),
    /// So many bytes, and nothing behind them.
    Bytes(usize),
    Done,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> Result<Connection, Broken> {
        let stream = TcpStream::connect(address).await.map_err(|_| Broken)?;
        stream.set_nodelay(true).map_err(|_| Broken)?;
        Ok(Connection { stream, raw: Vec::new(), body: Vec::new(), state: State::Done, cookie: None, is_last: false })
    }

    pub async fn call(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&'static str, String)],
        body: &str,
    ) -> Result<Answer, Broken> {
        let status = self.send(method, path, headers, body).await?;
        while self.state != State::Done {
            self.more().await?;
        }
        let body = String::from_utf8(std::mem::take(&mut self.body)).expect("UTF-8");
        Ok(Answer { status, body, cookie: self.cookie.take() })
    }

    /// Sends a request and reads the head of its answer, whose status this is.
    pub async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&'static str, String)],
        body: &str,
    ) -> Result<u16, Broken> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\naccept: application/json\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() {
            head += &format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
        }
        head += "\r\n";
        head += body;
        self.stream.write_all(head.as_bytes()).await.map_err(|_| Broken)?;
        let end = loop {
            if let Some(at) = self.raw.windows(4).position(|four| four == b"\r\n\r\n") {
                break at;
            }
            self.read().await?;
        };
        let head = String::from_utf8(self.raw.drain(..end + 4).collect()).expect("UTF-8");
        let cookie = head.split_once("AuthSession=").and_then(|(_, rest)| rest.split(';').next());
        self.cookie = cookie.filter(|value| !value.is_empty()).map(str::to_owned);
        let head = head.to_ascii_lowercase();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        self.state = match (header("transfer-encoding:"), header("content-length:")) {
            (Some("chunked"), _) => State::Length,
            (_, Some(length)) => State::Bytes(length.parse().expect("a length")),
            _ => State::Done,
        };
        self.is_last = header("connection:") == Some("close");
        self.take();
        Ok(status)
    }

    /// The next line of the body, without its end; `None` at the body's proper end. Loses nothing if it is dropped.
    pub async fn line(&mut self) -> Result<Option<String>, Broken> {
        loop {
            if let Some(end) = self.body.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.body.drain(..=end).collect();
                return Ok(Some(String::from_utf8(line).expect("UTF-8").trim_end().to_owned()));
            }
            if self.state == State::Done {
                let rest = String::from_utf8(std::mem::take(&mut self.body)).expect("UTF-8");
                return Ok((!rest.is_empty()).then_some(rest));
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> Result<(), Broken> {
        self.read().await?;
        self.take();
        Ok(())
    }

    async fn read(&mut self) -> Result<(), Broken> {
        let mut piece = [0; 16 * 1024];
        match self.stream.read(&mut piece).await {
            Ok(0) | Err(_) => Err(Broken),
            Ok(length) => {
                self.raw.extend_from_slice(&piece[..length]);
                Ok(())
            }
        }
    }

    /// Takes what has come of the body.
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
