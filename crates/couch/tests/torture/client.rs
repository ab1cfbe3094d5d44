//! A follower's connection: HTTP/1.1 with a receive buffer so small that a reader who is slow is felt by the server.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// The connection broke: refused, reset, or ended before the body did.
#[derive(Debug)]
pub struct Broken;

/// A feed under way.
pub struct Feed {
    stream: TcpStream,
    /// Bytes as they came, from `at` on.
    raw: Vec<u8>,
    at: usize,
    /// What of the body is not given out yet.
    body: Vec<u8>,
    is_complete: bool,
}

impl Feed {
    /// Sends a request with a JSON body, or none, and reads the answer's head. Returns the status, too.
    pub async fn open(
        address: SocketAddr,
        path: &str,
        last_event_id: Option<&str>,
        body: &str,
        receive_bytes: u32,
    ) -> Result<(u16, Feed), Broken> {
        let socket = TcpSocket::new_v4().map_err(|_| Broken)?;
        socket.set_recv_buffer_size(receive_bytes).map_err(|_| Broken)?;
        let stream = socket.connect(address).await.map_err(|_| Broken)?;
        let mut feed = Feed { stream, raw: Vec::new(), at: 0, body: Vec::new(), is_complete: false };
        let method = if body.is_empty() { "GET" } else { "POST" };
        let mut request = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\naccept: application/json\r\n");
        if let Some(id) = last_event_id {
            request += &format!("last-event-id: {id}\r\n");
        }
        if !body.is_empty() {
            request += &format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
        }
        request += "\r\n";
        request += body;
        feed.stream.write_all(request.as_bytes()).await.map_err(|_| Broken)?;
        let head = feed.raw_line().await?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or(Broken)?;
        while !feed.raw_line().await?.is_empty() {}
        Ok((status, feed))
    }

    /// The next line of the body; `None` at its proper end.
    pub async fn line(&mut self) -> Result<Option<String>, Broken> {
        loop {
            if let Some(end) = self.body.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.body.drain(..=end).collect();
                return Ok(Some(String::from_utf8(line).expect("UTF-8").trim_end().to_owned()));
            }
            if self.is_complete {
                assert!(self.body.is_empty(), "a line without an end");
                return Ok(None);
            }
            let length = usize::from_str_radix(&self.raw_line().await?, 16).expect("a chunk's length");
            let chunk = self.raw_bytes(length).await?;
            self.body.extend_from_slice(&chunk);
            self.raw_line().await?;
            self.is_complete = length == 0;
        }
    }

    async fn raw_line(&mut self) -> Result<String, Broken> {
        loop {
            let found = self.raw[self.at..].windows(2).position(|pair| pair == b"\r\n");
            if let Some(length) = found {
                let line = String::from_utf8(self.raw[self.at..self.at + length].to_vec()).expect("UTF-8");
                self.at += length + 2;
                return Ok(line);
            }
            self.more().await?;
        }
    }

    async fn raw_bytes(&mut self, count: usize) -> Result<Vec<u8>, Broken> {
        while self.raw.len() - self.at < count {
            self.more().await?;
        }
        self.at += count;
        Ok(self.raw[self.at - count..self.at].to_vec())
    }

    async fn more(&mut self) -> Result<(), Broken> {
        self.raw.drain(..self.at);
        self.at = 0;
        let mut piece = [0; 8 * 1024];
        match self.stream.read(&mut piece).await {
            Ok(0) | Err(_) => Err(Broken),
            Ok(length) => {
                self.raw.extend_from_slice(&piece[..length]);
                Ok(())
            }
        }
    }
}
