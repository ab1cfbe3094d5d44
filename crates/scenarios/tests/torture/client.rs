//! A follower's connection over HTTP/1.1, with a receive buffer so small that the server notices a slow reader.

use std::net::SocketAddr;

use flatbed_testkit::http::Connection;
use tokio::net::TcpSocket;

pub use flatbed_testkit::http::BrokenConnection;

pub struct Feed(Connection);

impl Feed {
    /// Sends a request with an optional JSON body and reads the answer's head. Returns the status, too.
    pub async fn open(
        address: SocketAddr,
        path: &str,
        last_event_id: Option<&str>,
        body: &str,
        receive_bytes: u32,
    ) -> Result<(u16, Feed), BrokenConnection> {
        let socket = TcpSocket::new_v4().map_err(|_| BrokenConnection)?;
        socket.set_recv_buffer_size(receive_bytes).map_err(|_| BrokenConnection)?;
        let mut connection = Connection::over(socket.connect(address).await.map_err(|_| BrokenConnection)?);
        let method = if body.is_empty() { "GET" } else { "POST" };
        let headers: Vec<_> = last_event_id.map(|id| ("last-event-id", id.to_owned())).into_iter().collect();
        let status = connection.send(method, path, &headers, body).await?;
        Ok((status, Feed(connection)))
    }

    /// Returns the next line of the body, or `None` at its proper end.
    pub async fn line(&mut self) -> Result<Option<String>, BrokenConnection> {
        self.0.ended_line().await
    }
}
