//! A server that answers by a function, and the parts that connect a job to it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use flatbed_client::Url;
use flatbed_clock::Clock;
use flatbed_testkit::http::listen;
use flatbed_worker::connect::{Reach, Secrets};
use flatbed_worker::output::lines::turns::Turns;
use flatbed_worker::peer::{Addresses, Dial, Stream};
use tokio::net::TcpStream;

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
    let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
    let (answer, kept) = (Arc::new(answer), requests.clone());
    let address = listen(move |mut connection| {
        let (answer, kept) = (answer.clone(), kept.clone());
        async move {
            while let Some(request) = connection.read().await {
                let body = request.text();
                let request = Request { method: request.method, path: request.path, headers: request.headers, body };
                let (status, headers, body) = answer(&request);
                kept.lock().unwrap().push(request);
                connection.answer(status, headers, &body).await;
            }
        }
    });
    (format!("http://{}", address.await), requests)
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
