//! A small HTTP/1.1 server that answers by a function, one connection after another.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use flatbed_client::Url;
use flatbed_clock::Clock;
use flatbed_worker::connect::{Reach, Secrets};
use flatbed_worker::output::lines::turns::Turns;
use flatbed_worker::peer::{Addresses, Dial, Stream};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A request: method, path, headers in lower case, body (as text; invalid UTF-8 is replaced).
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

pub(crate) type Response = (u16, &'static str, String);

/// Starts a server that answers by a function and records all requests. Returns its address.
pub(crate) async fn serve(
    answer: impl Fn(&Request) -> Response + Send + Sync + 'static,
) -> (String, Arc<Mutex<Vec<Request>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
    let (answer, kept) = (Arc::new(answer), requests.clone());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (answer, kept) = (answer.clone(), kept.clone());
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                while let Some(request) = read(&mut stream).await {
                    let (status, headers, body) = answer(&request);
                    kept.lock().unwrap().push(request);
                    let head = format!("HTTP/1.1 {status} X\r\n{headers}content-length: {}\r\n\r\n", body.len());
                    if stream.write_all(format!("{head}{body}").as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, requests)
}

async fn read(stream: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok().filter(|read| *read > 0)?;
    let mut words = line.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let (mut headers, mut length) = (Vec::new(), 0);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        let (name, value) = (name.to_ascii_lowercase(), value.trim().to_owned());
        if name == "content-length" {
            length = value.parse().ok()?;
        }
        headers.push((name, value));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(Request { method, path, headers, body: String::from_utf8_lossy(&body).into_owned() })
}

/// Resolves every name to this host.
pub(crate) fn local() -> Addresses {
    Arc::new(|_| Box::pin(async { Ok(vec![std::net::Ipv4Addr::LOCALHOST.into()]) }))
}

/// Connects to any address without TLS.
pub(crate) fn plain() -> Dial {
    Arc::new(|url: &Url| {
        let authority = url.authority();
        Box::pin(async move {
            let stream = TcpStream::connect(authority).await.map_err(|error| error.to_string())?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    })
}

/// Returns the servers of this machine, without TLS.
pub(crate) fn reach(secrets: Secrets, files: Option<PathBuf>) -> Reach {
    Reach {
        secrets,
        files,
        turns: Turns::default(),
        dial: plain(),
        secure: Arc::new(|_, stream| Box::pin(async { Ok(stream) })),
        addresses: local(),
        authorities: Vec::new(),
        local: None,
        clock: Clock::system(),
    }
}
