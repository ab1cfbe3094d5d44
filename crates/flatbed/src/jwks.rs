//! The keys of Mozilla's accounts, from a file or from where they are published.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use flatbed_auth::jwt::JWKS_BYTES_MAX;
use flatbed_firefox::Fetch;
use flatbed_replicator::Tls;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper::{Request, Uri, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// Whether a text is a URL that can be asked.
pub(crate) fn is_url(text: &str) -> bool {
    text.parse().is_ok_and(|url: Uri| matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some())
}

/// Reads a file.
pub(crate) fn from_file(path: &Path) -> Fetch {
    let path = path.to_owned();
    Arc::new(move || {
        let path = path.clone();
        Box::pin(async move {
            let read = tokio::task::spawn_blocking(move || read_file(&path)).await;
            read.unwrap_or_else(|error| Err(error.to_string()))
        })
    })
}

fn read_file(path: &PathBuf) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut text = Vec::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(JWKS_BYTES_MAX as u64 + 1).read_to_end(&mut text).map_err(failed)?;
    Ok(text)
}

/// Asks a URL. Over https Mozilla's list of authorities is trusted, and those of a file, too.
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
    let stream = TcpStream::connect((bare, port)).await.map_err(|error| error.to_string())?;
    if !is_secure {
        return get(&url, TokioIo::new(stream)).await;
    }
    let tls = match authorities {
        None => Tls::default(),
        Some(path) => {
            let pem = std::fs::read(path).map_err(|error| error.to_string())?;
            Tls::with_authorities(&pem).map_err(|error| error.to_string())?
        }
    };
    get(&url, TokioIo::new(tls.connect(host, stream).await?)).await
}

/// Redirects are not followed.
async fn get<S>(url: &Uri, stream: TokioIo<S>) -> Result<Vec<u8>, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(stream).await.map_err(|error| error.to_string())?;
    let connection = tokio::spawn(connection);
    let authority = url.authority().map_or("", |authority| authority.as_str());
    let request = Request::get(url.path_and_query().map_or("/", |target| target.as_str()))
        .header(header::HOST, authority)
        .header(header::ACCEPT, "application/json")
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        if !response.status().is_success() {
            return Err(format!("status {}", response.status()));
        }
        let body = Limited::new(response.into_body(), JWKS_BYTES_MAX).collect().await;
        body.map(|body| body.to_bytes().to_vec()).map_err(|error| error.to_string())
    };
    let answer = answer.await;
    connection.abort();
    answer
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

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
        assert!(is_url("https://a.example/x") && !is_url("a.json") && !is_url("file:///a") && !is_url("http:///"));
    }
}
