//! Detects the HTTP version of a connection.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncReadExt;

use crate::stream::{Stream, Transport};
use crate::tls;

/// The first bytes of an HTTP/2 client (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The timeout from the first byte of an incomplete beginning until the version is known.
const BEGINNING_MAX: Duration = Duration::from_secs(5);

/// The most bytes of one read if the connection cannot be peeked.
const BEGINNING_BYTES: usize = 2_048;

#[derive(Debug)]
pub(crate) struct Preface {
    pub is_http2: bool,
    /// The bytes read during the detection, which come before all others; usually none.
    pub read: Bytes,
}

/// Detects whether a connection speaks HTTP/2. It peeks at the first bytes if they arrive together.
///
/// The detection precedes hyper, so that a silent connection is closed in time. hyper-util can detect the version
/// too, but passes the first 24 bytes on as a separate read, after which the buffer of an HTTP/1.1 connection grows
/// to 16 kB and stays so. An incomplete beginning is read, not peeked: peeked bytes keep the connection readable, so
/// no wait for more bytes or the end would be possible.
///
/// Over TLS, ALPN decides if the client supports it. Connections that cannot be peeked are read.
///
/// # Errors
/// Those of the connection; `UnexpectedEof` if it ends early, `TimedOut` if it stalls.
pub(crate) async fn beginning(stream: &mut Stream) -> io::Result<Preface> {
    let tcp = match stream {
        Stream::Plain(Transport::Tcp(tcp)) => tcp,
        Stream::Plain(Transport::Unix(_)) => return read(stream).await,
        Stream::Tls(tls) => {
            return match tls::is_http2(tls.get_ref().1.alpn_protocol()) {
                Some(is_http2) => Ok(Preface { is_http2, read: Bytes::new() }),
                None => read(stream).await,
            };
        }
    };
    let mut first = [0; PREFACE.len()];
    let count = tcp.peek(&mut first).await?;
    let seen = first.get(..count).unwrap_or_default();
    match speaks_http2(seen) {
        Some(is_http2) => Ok(Preface { is_http2, read: Bytes::new() }),
        None if seen.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
        None => read(stream).await,
    }
}

fn speaks_http2(seen: &[u8]) -> Option<bool> {
    if seen.len() >= PREFACE.len() {
        return Some(seen.starts_with(PREFACE));
    }
    (!PREFACE.starts_with(seen)).then_some(false)
}

async fn read(stream: &mut Stream) -> io::Result<Preface> {
    let mut read = BytesMut::new();
    // One read for all available bytes keeps a head in one piece.
    more(stream, &mut read).await?;
    let rest = async {
        loop {
            if let Some(is_http2) = speaks_http2(&read) {
                return Ok(Preface { is_http2, read: read.freeze() });
            }
            more(stream, &mut read).await?;
        }
    };
    tokio::time::timeout(BEGINNING_MAX, rest).await?
}

async fn more(stream: &mut Stream, read: &mut BytesMut) -> io::Result<()> {
    let mut space = [0; BEGINNING_BYTES];
    match stream.read(&mut space).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => {
            read.extend_from_slice(space.get(..count).unwrap_or_default());
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use flatbed_testkit::{pass, soon, until_some};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    async fn pair() -> (TcpStream, Stream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, Stream::Plain(Transport::Tcp(listener.accept().await.unwrap().0)))
    }

    async fn told_of(pieces: &[&[u8]]) -> io::Result<bool> {
        until_some("a beginning is told in time", async || match soon(told_once(pieces)).await {
            // A busy machine may use up the timeout.
            Err(error) if error.kind() == io::ErrorKind::TimedOut => None,
            told => Some(told),
        })
        .await
    }

    async fn told_once(pieces: &[&[u8]]) -> io::Result<bool> {
        let (mut client, mut stream) = pair().await;
        let sent = async {
            for piece in pieces {
                client.write_all(piece).await.unwrap();
                pass(Duration::from_millis(10)).await;
            }
            client.shutdown().await.unwrap();
        };
        let (told, ()) = tokio::join!(beginning(&mut stream), sent);
        let told = told?;
        let mut all = told.read.to_vec();
        stream.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, pieces.concat());
        Ok(told.is_http2)
    }

    #[tokio::test]
    async fn beginnings() {
        assert!(told_of(&[PREFACE]).await.unwrap());
        assert!(told_of(&[&PREFACE[..3], &PREFACE[3..20], &PREFACE[20..], b"more"]).await.unwrap());
        assert!(!told_of(&[b"P", b"OST / HTTP/1.1\r\n"]).await.unwrap());
        assert!(!told_of(&[b"GET / HTTP/1.1\r\n"]).await.unwrap());
    }

    #[tokio::test]
    async fn who_leaves_is_seen_to_leave() {
        let ended = |told: io::Result<bool>| assert_eq!(told.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        ended(told_of(&[]).await);
        ended(told_of(&[b"P"]).await);
        ended(told_of(&[&PREFACE[..10], &PREFACE[10..23]]).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_beginning_does_not_last() {
        let (mut client, mut stream) = pair().await;
        client.write_all(b"P").await.unwrap();
        assert_eq!(beginning(&mut stream).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
