//! A server whose answers the test writes: a peer, an endpoint or a target of the code under test.

use std::net::SocketAddr;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A received request.
#[derive(Debug, Clone)]
pub struct Request {
    /// The method.
    pub method: String,
    /// The path with the query.
    pub path: String,
    /// Names in lower case and values, in the order received.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Request {
    /// Returns a header by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// Returns the body as text; invalid UTF-8 is replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// The server's side of a connection.
#[derive(Debug)]
pub struct ServerConnection(BufReader<TcpStream>);

impl ServerConnection {
    /// Waits for a client.
    pub async fn accept(listener: &TcpListener) -> Option<ServerConnection> {
        let (stream, _) = listener.accept().await.ok()?;
        Some(ServerConnection(BufReader::new(stream)))
    }

    /// Reads the next request. `None`: the client has closed the connection.
    pub async fn read(&mut self) -> Option<Request> {
        let first = self.line().await?;
        let mut words = first.split(' ').map(str::to_owned);
        let (method, path) = (words.next()?, words.next()?);
        let (mut headers, mut length) = (Vec::new(), 0);
        while let Some((name, value)) = self.line().await?.trim().split_once(':') {
            let (name, value) = (name.to_ascii_lowercase(), value.trim().to_owned());
            if name == "content-length" {
                length = value.parse().ok()?;
            }
            headers.push((name, value));
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await.ok()?;
        Some(Request { method, path, headers, body })
    }

    async fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).await.ok().filter(|read| *read > 0)?;
        Some(line)
    }

    /// Sends a whole answer; each line of `headers` ends with CRLF. `None`: the client is gone.
    pub async fn answer(&mut self, status: u16, headers: &str, body: &str) -> Option<()> {
        let head = format!("HTTP/1.1 {status} X\r\n{headers}content-length: {}\r\n\r\n", body.len());
        self.send(&(head + body)).await
    }

    /// Sends a text as it is. `None`: the client is gone.
    pub async fn send(&mut self, text: &str) -> Option<()> {
        self.0.write_all(text.as_bytes()).await.ok()
    }
}

/// Serves each connection to a free port of this machine in a task of its own, and returns the address.
///
/// # Panics
/// No port is free.
pub async fn listen<F>(serve: impl Fn(ServerConnection) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Some(connection) = ServerConnection::accept(&listener).await {
            tokio::spawn(serve(connection));
        }
    });
    address
}
