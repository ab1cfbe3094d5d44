//! Which version of HTTP a connection speaks.

use std::io;
use std::time::Duration;

use tokio::net::TcpStream;

/// What a client of HTTP/2 sends first (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Between two looks at a beginning that came in part.
const PAUSE: Duration = Duration::from_millis(5);

/// Whether a connection speaks HTTP/2: told from its first bytes, which are left to be read.
///
/// Asked before hyper has the connection, so that one that sends nothing is closed in time. hyper-util can tell too, but
/// hands the first 24 bytes over as a read of their own: the buffer of a connection of HTTP/1.1 then grows to 16 kB, and
/// stays so.
///
/// # Errors
/// Those of the connection, and `UnexpectedEof` where it ends before it is clear.
pub(crate) async fn speaks_http2(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0; PREFACE.len()];
    loop {
        let count = stream.peek(&mut first).await?;
        let seen = first.get(..count).unwrap_or_default();
        if seen.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if !PREFACE.starts_with(seen) {
            return Ok(false);
        }
        if seen.len() == PREFACE.len() {
            return Ok(true);
        }
        // What is not read keeps the connection readable: there is nothing to wait for but time.
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn told_of(pieces: &[&[u8]]) -> io::Result<bool> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        let told = speaks_http2(&stream);
        let sent = async {
            for piece in pieces {
                client.write_all(piece).await.unwrap();
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            client.shutdown().await.unwrap();
        };
        let (told, ()) = tokio::join!(told, sent);
        if told.is_ok() {
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await.unwrap();
            assert_eq!(all, pieces.concat());
        }
        told
    }

    #[tokio::test]
    async fn beginnings() {
        assert!(told_of(&[PREFACE]).await.unwrap());
        assert!(told_of(&[&PREFACE[..3], &PREFACE[3..20], &PREFACE[20..], b"more"]).await.unwrap());
        assert!(!told_of(&[b"P", b"OST / HTTP/1.1\r\n"]).await.unwrap());
        assert!(!told_of(&[b"GET / HTTP/1.1\r\n"]).await.unwrap());
        assert!(told_of(&[]).await.is_err());
    }
}
