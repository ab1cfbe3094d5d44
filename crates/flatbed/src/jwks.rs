//! The keys of Mozilla's accounts, read from a file or a URL.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flatbed_auth::jwt::JWKS_BYTES_MAX;
use flatbed_firefox::Fetch;
use flatbed_replicator::Tls;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// The time limit for connecting to one address.
const CONNECT_MAX: Duration = Duration::from_secs(3);

/// The largest file of authorities, in bytes.
const AUTHORITIES_BYTES_MAX: u64 = 16_000_000;

/// Returns whether a text is a URL of a supported scheme.
pub(crate) fn is_url(text: &str) -> bool {
    text.parse().is_ok_and(|url: Uri| matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some())
}

/// Returns a function that reads a file.
pub(crate) fn from_file(path: &Path) -> Fetch {
    let path = path.to_owned();
    Arc::new(move || {
        let path = path.clone();
        Box::pin(async move {
            // One byte more than the limit, so that a longer file is noticed.
            read(&path, JWKS_BYTES_MAX as u64 + 1).await
        })
    })
}

/// Reads the beginning of a file.
async fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    let path = path.to_owned();
    let read = tokio::task::spawn_blocking(move || {
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let mut text = Vec::new();
        let file = std::fs::File::open(&path).map_err(failed)?;
        file.take(bytes_max).read_to_end(&mut text).map_err(failed)?;
        Ok(text)
    });
    read.await.unwrap_or_else(|error| Err(error.to_string()))
}

/// Returns a function that requests a URL. Over https it trusts Mozilla's list of authorities, and those of a file.
pub(crate) fn from_url(url: &str, authorities: Option<&Path>) -> Fetch {
    let (url, authorities) = (url.to_owned(), authorities.map(Path::to_owned));
    Arc::new(move || {
        let (url, authorities) = (url.clone(), authorities.clone());
        Box::pin(async move { ask(&url, authorities.as_deref()).await.map_err(|reason| format!("{url}: {reason}")) })
    })
}

async fn ask(url: &str, authorities: Option<&Path>) -> Result<Vec<u8>, String> {
    let url: Uri = url.parse().map_err(|_| "no URL".to_owned())?;
    let host = url.host().unwrap_or_default();
    let is_secure = url.scheme_str() == Some("https");
    let port = url.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let stream = connect(bare, port).await?;
    if !is_secure {
        return get(&url, TokioIo::new(stream)).await;
    }
    let tls = match authorities {
        None => Tls::default(),
        // Read each time, since the file may have been replaced.
        Some(path) => {
            Tls::with_authorities(&read(path, AUTHORITIES_BYTES_MAX).await?).map_err(|error| error.to_string())?
        }
    };
    get(&url, TokioIo::new(tls.connect(host, stream).await?)).await
}

/// Connects to the first address of a name that answers. An unreachable address, such as one of another network, does
/// not use up the time of the others.
async fn connect(host: &str, port: u16) -> Result<TcpStream, String> {
    let addresses = tokio::net::lookup_host((host, port)).await.map_err(|error| error.to_string())?;
    let mut last = "there is no such host".to_owned();
    for address in addresses {
        match tokio::time::timeout(CONNECT_MAX, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = format!("{address}: {error}"),
            Err(_) => last = format!("{address}: no answer"),
        }
    }
    Err(last)
}

/// Sends a GET request, without following redirects. Dropping the future ends the connection.
async fn get<S>(url: &Uri, stream: TokioIo<S>) -> Result<Vec<u8>, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(stream).await.map_err(|error| error.to_string())?;
    let mut connections = JoinSet::new();
    connections.spawn(connection);
    let authority = url.authority().map_or("", |authority| authority.as_str());
    let request = Request::get(url.path_and_query().map_or("/", |target| target.as_str()))
        .header(header::HOST, authority)
        .header(header::ACCEPT, "application/json")
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    if response.status() != StatusCode::OK {
        return Err(format!("status {}", response.status()));
    }
    let body = Limited::new(response.into_body(), JWKS_BYTES_MAX).collect().await;
    body.map(|body| body.to_bytes().to_vec()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use flatbed_testkit::{pass, soon};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::sync::watch;

    use super::*;

    #[tokio::test]
    async fn files() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys.json");
        let fetch = from_file(&path);
        assert!(fetch().await.unwrap_err().contains("keys.json"));
        std::fs::write(&path, "a").unwrap();
        assert_eq!(fetch().await.unwrap(), b"a");
        std::fs::write(&path, "b").unwrap();
        assert_eq!(fetch().await.unwrap(), b"b");
    }

    #[tokio::test]
    async fn urls() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            for answer in
                ["200 OK\r\ncontent-length: 2\r\n\r\nab", "302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n"]
            {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = [0; 1_024];
                let read = stream.read(&mut head).await.unwrap();
                assert!(head[..read].starts_with(b"GET /v1/jwks HTTP/1.1\r\n"));
                stream.write_all(format!("HTTP/1.1 {answer}").as_bytes()).await.unwrap();
            }
        });
        let fetch = from_url(&format!("http://{address}/v1/jwks"), None);
        assert_eq!(fetch().await.unwrap(), b"ab");
        assert!(fetch().await.unwrap_err().contains("302"));
        assert!(fetch().await.is_err());
        assert!(from_url("http://no-such-host.invalid/", None)().await.is_err());
        assert!(is_url("https://a.example/x") && !is_url("a.json") && !is_url("file:///a") && !is_url("http:///"));
    }

    /// Answers one request with a head, and then repeats `piece` until the client closes. Returns the count of bytes
    /// sent so far, and the final one.
    async fn endless(
        head: &'static str,
        piece: Vec<u8>,
        pause: Duration,
    ) -> (Fetch, watch::Receiver<usize>, tokio::task::JoinHandle<usize>) {
        let (by_now, taken) = watch::channel(0);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 1_024]).await.unwrap() > 0);
            stream.write_all(head.as_bytes()).await.unwrap();
            while stream.write_all(&piece).await.is_ok() {
                by_now.send_modify(|taken| *taken += piece.len());
                pass(pause).await;
            }
            *by_now.borrow()
        });
        (from_url(&format!("http://{address}/"), None), taken, served)
    }

    #[tokio::test]
    async fn what_has_no_end() {
        // Neither a body nor a head is read beyond its limit, and the connection ends with the answer.
        let (fetch, _, served) = endless("HTTP/1.1 200 OK\r\n\r\n", vec![b' '; 10_000], Duration::ZERO).await;
        assert!(fetch().await.unwrap_err().contains("length limit"));
        assert!(served.await.unwrap() < 64_000_000);
        let (fetch, _, served) = endless("HTTP/1.1 200 OK\r\nx: ", vec![b'y'; 10_000], Duration::ZERO).await;
        assert!(fetch().await.is_err());
        assert!(served.await.unwrap() < 64_000_000);
        // A dropped request leaves no connection behind.
        let pause = Duration::from_millis(10);
        let (fetch, mut taken, served) = endless("HTTP/1.1 200 OK\r\n\r\n", vec![b' '], pause).await;
        tokio::select! {
            answer = fetch() => panic!("it has an end: {answer:?}"),
            some = soon(taken.wait_for(|taken| *taken > 3)) => drop(some.unwrap()),
        }
        soon(served).await.unwrap();
    }
}
