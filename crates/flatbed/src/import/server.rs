//! Requests to one of both servers of an import.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flatbed_client::{Answer, Connection, Connector, Url, encode_segment};
use flatbed_layer::json::{self as exact, Limits};
use flatbed_outward::{ConnectError, Network, Tls};
use flatbed_service::shown_address;
use hyper::body::Incoming;
use hyper::{Method, Response};
use serde_json::{Value, json};

/// The timeout of an answer that is read whole.
const ANSWER_MAX: Duration = Duration::from_secs(600);

/// The most attempts of a request.
const TRIES: u32 = 6;

/// The pause after the first attempt, doubled after each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// The reason why an import, or that of one database, failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImportError {
    /// A URL is invalid; without its secrets.
    #[error("{0:?}: {1}")]
    Url(String, flatbed_client::UrlError),
    /// A file cannot be read.
    #[error("{path}: {reason}", path = .0.display(), reason = .1)]
    File(std::path::PathBuf, String),
    /// A server cannot be reached.
    #[error(transparent)]
    Client(#[from] flatbed_client::Error),
    /// A server refuses a request.
    #[error("{what}: {status} {text}")]
    Refused {
        /// The request.
        what: String,
        /// The HTTP status.
        status: u16,
        /// The answer's text.
        text: String,
    },
    /// The answer to a request is not as CouchDB's API has it.
    #[error("{0}: the answer is not one of CouchDB's API")]
    Answer(String),
    /// The replication of a database failed.
    #[error(transparent)]
    Replication(#[from] flatbed_replicate::Error),
    /// A database cannot be moved as it is.
    #[error("{0}")]
    Database(String),
}

/// The address of a server, and the way to it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) url: Url,
    connector: Connector,
}

impl Place {
    pub(crate) fn new(url: &str, network: &Network, tls: &Tls) -> Result<Place, ImportError> {
        let parsed = Url::parse_either(url).and_then(Url::of_server);
        let url = parsed.map_err(|error| ImportError::Url(shown_address(url), error))?;
        let (network, tls) = (network.clone(), tls.clone());
        let connector: Connector = Arc::new(move |url: Url| {
            let (network, tls) = (network.clone(), tls.clone());
            Box::pin(async move {
                let connected = flatbed_outward::connect(&url, &network, &tls).await;
                connected.map_err(|error: ConnectError| io::Error::other(error.to_string()))
            })
        });
        Ok(Place { url, connector })
    }

    /// Returns requests to this server over a connection of their own, which is made for the first request.
    pub(crate) fn open(&self) -> Server {
        Server { place: self.clone(), connection: None }
    }

    /// Returns the specification of a replication's endpoint.
    pub(crate) fn endpoint(&self, database: &str) -> Value {
        let mut endpoint = json!({ "url": format!("{}/{}", self.url, encode_segment(database)) });
        if let Some(authorization) = self.url.authorization() {
            endpoint["headers"] = json!({ "authorization": authorization });
        }
        endpoint
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.url, f)
    }
}

/// One connection to a server.
pub(crate) struct Server {
    place: Place,
    connection: Option<Connection>,
}

impl Server {
    async fn connection(&mut self) -> Result<&mut Connection, flatbed_client::Error> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::over(&self.place.url, self.place.connector.clone()).await?,
        };
        Ok(self.connection.insert(connection))
    }

    /// Checks, once, that a server answers and lets the client in.
    pub(crate) async fn greet(&mut self) -> Result<(), ImportError> {
        let answer = Answer::read(self.send("/").await?).await?;
        if answer.status == 200 { Ok(()) } else { Err(self.refused(&Method::GET, "/", &answer)) }
    }

    /// Sends an idempotent request and reads the whole answer. Retries if the connection breaks or the server is
    /// overloaded.
    pub(crate) async fn call(&mut self, method: Method, path: &str, body: &str) -> Result<Answer, ImportError> {
        let mut pause = FIRST_PAUSE;
        for attempt in 1.. {
            let url = self.place.url.clone();
            let answer = match self.connection().await {
                Ok(connection) => {
                    let answer = connection.call(method.clone(), path, body.to_owned());
                    let late = |_| Err(flatbed_client::Error::Connect { url, source: io::ErrorKind::TimedOut.into() });
                    tokio::time::timeout(ANSWER_MAX, answer).await.unwrap_or_else(late)
                }
                Err(error) => Err(error),
            };
            let is_last = attempt >= TRIES;
            match answer {
                Ok(answer) if is_last || !matches!(answer.status, 429 | 502..=504) => return Ok(answer),
                Err(error @ (flatbed_client::Error::Request(_) | flatbed_client::Error::TooLarge)) => {
                    self.connection = None;
                    return Err(error.into());
                }
                Err(error) if is_last => return Err(error.into()),
                Err(_) => self.connection = None,
                Ok(_) => {}
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        Err(ImportError::Answer(path.to_owned()))
    }

    /// Sends a request and returns the answer before its body is read, once.
    pub(crate) async fn send(&mut self, path: &str) -> Result<Response<Incoming>, ImportError> {
        Ok(self.connection().await?.send(Method::GET, path, Bytes::new()).await?)
    }

    /// Closes the connection: an answer was not read to its end.
    pub(crate) fn close(&mut self) {
        self.connection = None;
    }

    fn refused(&self, method: &Method, path: &str, answer: &Answer) -> ImportError {
        let what = format!("{method} {}{path}", self.place);
        ImportError::Refused { what, status: answer.status, text: answer.text() }
    }

    /// Sends a request and returns the text of its answer.
    pub(crate) async fn text(&mut self, method: Method, path: &str, body: &str) -> Result<Bytes, ImportError> {
        let answer = self.call(method.clone(), path, body).await?;
        if matches!(answer.status, 200..=202) { Ok(answer.body) } else { Err(self.refused(&method, path, &answer)) }
    }

    fn unreadable(&self, path: &str) -> ImportError {
        ImportError::Answer(format!("{}{path}", self.place))
    }

    /// Sends a request and returns its JSON.
    pub(crate) async fn json(&mut self, method: Method, path: &str, body: &str) -> Result<Value, ImportError> {
        let text = self.text(method, path, body).await?;
        serde_json::from_slice(&text).map_err(|_| self.unreadable(path))
    }

    pub(crate) async fn get(&mut self, path: &str) -> Result<Value, ImportError> {
        self.json(Method::GET, path, "").await
    }

    /// As [`Server::get`]; `None` if it does not exist.
    pub(crate) async fn find(&mut self, path: &str) -> Result<Option<Value>, ImportError> {
        match self.get(path).await {
            Ok(value) => Ok(Some(value)),
            Err(ImportError::Refused { status: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// As [`Server::find`], as text.
    pub(crate) async fn find_text(&mut self, path: &str) -> Result<Option<Bytes>, ImportError> {
        match self.text(Method::GET, path, "").await {
            Ok(text) => Ok(Some(text)),
            Err(ImportError::Refused { status: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// As [`Server::get`], with members in their order and numbers as written: a float rounds large ones.
    pub(crate) async fn get_exact(&mut self, path: &str) -> Result<exact::Value<'static>, ImportError> {
        let text = self.text(Method::GET, path, "").await?;
        let value = exact::parse(&text, &Limits::default()).map_err(|_| self.unreadable(path))?;
        Ok(value.into_owned())
    }

    /// Writes a value of [`Server::get_exact`].
    pub(crate) async fn put_exact(&mut self, path: &str, body: &exact::Value<'_>) -> Result<(), ImportError> {
        let mut text = Vec::new();
        exact::write(body, &mut text);
        self.text(Method::PUT, path, &String::from_utf8_lossy(&text)).await.map(drop)
    }

    pub(crate) async fn put(&mut self, path: &str, body: &Value) -> Result<Value, ImportError> {
        self.json(Method::PUT, path, &body.to_string()).await
    }
}

/// Encodes a JSON string for a query, as `startkey` has it.
pub(crate) fn json_key(text: &str) -> String {
    encode_segment(&Value::from(text).to_string())
}
