//! One side of a replication: the requests of the protocol.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flatbed_admission::Grant;
use flatbed_client::{OutgoingBody, encode_segment};
use flatbed_clock::Clock;
use flatbed_flatten::json::{Limits, Value, parse_unique, tree_bytes};
use flatbed_outward::ConnectError;
use flatbed_revtree::{DESIGN, DocumentId, DocumentKind, LOCAL};
use hyper::header::{self, HeaderMap};
use hyper::{Method, Request, StatusCode};

use crate::checkpoint::Log;
use crate::endpoint::{Endpoint, EndpointPlace, PeerAccess};
use crate::error::{Error, Result};
use crate::memory::{Memory, NoRoom, Room, Share};
use crate::pool::{Answer, Pool, Server, whole};
use crate::signing_in::{Cookie, NextRequest, SessionReply, SignIn};

/// The largest answer that is read whole, in bytes: pages of changes, `_revs_diff`, replication logs.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// The largest short answer, in bytes: errors, and results of writes.
const SHORT_BYTES_MAX: usize = 16 << 10;

const LOG_BYTES_MAX: usize = 4 << 20;

/// The timeout of an answer that is read whole.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(600);

/// The most attempts of a request that failed in transit.
const TRIES: u32 = 5;

/// The pause before the second attempt, doubled for each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

pub(crate) struct Peer {
    pool: Arc<Pool>,
    path: String,
    headers: HeaderMap,
    signing_in: Option<SignIn>,
    pub(crate) memory: Memory,
    pub(crate) clock: Clock,
    /// The URL without credentials.
    pub(crate) shown: String,
}

pub(crate) struct WholeAnswer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
    share: Share,
}

/// A parsed text with the memory of its tree. Must be dropped before waiting for anything.
pub(crate) struct Tree<'t> {
    pub(crate) value: Value<'t>,
    _room: Option<Grant>,
}

impl WholeAnswer {
    /// Parses the body as JSON; `null` if it is malformed or has duplicate names, which no server sends.
    pub(crate) async fn json(&self) -> std::result::Result<Tree<'_>, NoRoom> {
        let room = self.share.memory().tree(tree_bytes(&self.body)).await?;
        Ok(Tree { value: self.parse(), _room: room })
    }

    fn parse(&self) -> Value<'_> {
        parse_unique(&self.body, &Limits::default()).unwrap_or(Value::Null)
    }

    /// Parses a short body as JSON; `null` if it is longer.
    fn short_json(&self) -> Value<'_> {
        if self.body.len() <= SHORT_BYTES_MAX { self.parse() } else { Value::Null }
    }
}

impl Peer {
    pub(crate) fn new(endpoint: &Endpoint, ways: &PeerAccess) -> Peer {
        let (server, host) = match &endpoint.place {
            EndpointPlace::Remote(url) => {
                (Server::Remote(url.clone(), ways.network.clone(), ways.tls.clone()), url.authority())
            }
            EndpointPlace::Local(_) => (Server::Local(ways.local.clone()), "localhost".to_owned()),
        };
        let mut headers = HeaderMap::new();
        if let Ok(host) = host.parse() {
            headers.insert(header::HOST, host);
        }
        headers.insert(header::ACCEPT, header::HeaderValue::from_static("application/json"));
        headers.extend(endpoint.headers.iter().cloned());
        let (memory, clock) = (ways.memory.clone(), ways.clock.clone());
        let (path, shown, signing_in) = (endpoint.path(), endpoint.to_string(), SignIn::of(endpoint));
        Peer { pool: Pool::new(server), path, headers, signing_in, memory, clock, shown }
    }

    pub(crate) fn no_room(&self, error: NoRoom) -> Error {
        match error {
            NoRoom::Now => Error::NoRoom(self.shown.clone()),
            NoRoom::Ever => Error::TooLarge(self.shown.clone(), "an answer takes more memory than there is"),
        }
    }

    pub(crate) fn broken(&self, reason: impl ToString) -> Error {
        Error::Connection(self.shown.clone(), reason.to_string())
    }

    fn unsent(&self, error: ConnectError) -> Error {
        match error {
            ConnectError::Broken(reason) => self.broken(reason),
            ConnectError::OutOfBounds => Error::OutOfBounds(self.shown.clone()),
        }
    }

    pub(crate) fn protocol(&self, what: &'static str) -> Error {
        Error::Protocol(self.shown.clone(), what)
    }

    /// Builds a request. `path` is appended to the database's and begins with a slash or question mark.
    pub(crate) fn request(
        &self,
        method: Method,
        path: &str,
        kind: Option<&str>,
        body: OutgoingBody,
    ) -> Result<Request<OutgoingBody>> {
        let mut builder = Request::builder().method(method).uri(format!("{}{path}", self.path));
        if let Some(kind) = kind {
            builder = builder.header(header::CONTENT_TYPE, kind);
        }
        let mut request = builder.body(body).map_err(|error| self.broken(error))?;
        request.headers_mut().extend(self.headers.clone());
        Ok(request)
    }

    pub(crate) async fn send_once(&self, method: Method, path: &str, body: Option<Bytes>) -> Result<Answer> {
        let kind = body.is_some().then_some("application/json");
        let mut request = self.request(method, path, kind, whole(body.unwrap_or_default()))?;
        self.sign_in(&mut request).await?;
        let answer = self.pool.send(request).await.map_err(|error| self.unsent(error))?;
        self.note_session(&answer).await;
        Ok(answer)
    }

    /// Sends a request with a streamed body, once.
    pub(crate) async fn send_pieces(&self, mut request: Request<OutgoingBody>) -> Result<Answer> {
        self.sign_in(&mut request).await?;
        let answer = self.pool.send_slowly(request).await.map_err(|error| self.unsent(error))?;
        self.note_session(&answer).await;
        Ok(answer)
    }

    /// Adds the session's cookie before the password, and requests a session unless there is one.
    async fn sign_in(&self, request: &mut Request<OutgoingBody>) -> Result<()> {
        let Some(signing_in) = &self.signing_in else { return Ok(()) };
        let mut state = signing_in.state().await;
        loop {
            match state.next(self.clock.now()) {
                NextRequest::Send(cookie) => {
                    if let Some(cookie) = cookie {
                        request.headers_mut().insert(header::COOKIE, cookie);
                    }
                    return Ok(());
                }
                NextRequest::Ask(with_password) => {
                    let answer = self.ask_for_session(signing_in, with_password).await?;
                    if state.answered(answer, self.clock.now()) == SessionReply::Refused {
                        return Err(Error::Unauthorized(self.shown.clone()));
                    }
                }
            }
        }
    }

    /// Requests a session. Returns the status, whether the server requires the password in the header, and the cookie.
    async fn ask_for_session(
        &self,
        signing_in: &SignIn,
        with_password: bool,
    ) -> Result<(StatusCode, bool, Option<Cookie>)> {
        let builder = Request::builder().method(Method::POST).uri(&signing_in.path);
        let mut request = builder.body(whole(signing_in.form.clone())).map_err(|error| self.broken(error))?;
        let headers = request.headers_mut();
        headers.extend(self.headers.clone());
        let kind = header::HeaderValue::from_static("application/x-www-form-urlencoded");
        headers.insert(header::CONTENT_TYPE, kind);
        if !with_password {
            headers.remove(header::AUTHORIZATION);
        }
        let mut answer = self.pool.send(request).await.map_err(|error| self.unsent(error))?;
        if matches!(answer.status.as_u16(), 408 | 429 | 502..=504) {
            return Err(self.status("signing in", answer.status.as_u16()));
        }
        // Reads a short answer to its end, so that the connection can be reused.
        let mut length = 0;
        while length < SHORT_BYTES_MAX {
            match answer.piece().await.map_err(|reason| self.broken(reason))? {
                None => break,
                Some(piece) => length += piece.len(),
            }
        }
        Ok((answer.status, answer.is_challenge, answer.cookie))
    }

    async fn note_session(&self, answer: &Answer) {
        if let (Some(signing_in), Some(cookie)) = (&self.signing_in, &answer.cookie)
            && answer.status.is_success()
        {
            signing_in.renewed(cookie.clone(), self.clock.now()).await;
        }
    }

    /// Sends a request and reads the whole answer. Retries if the connection breaks or the server is overloaded: all
    /// these requests are idempotent.
    pub(crate) async fn call(&self, method: Method, path: &str, body: Option<Bytes>) -> Result<WholeAnswer> {
        self.call_in(&self.memory.room(), method, path, body).await
    }

    /// As [`Peer::call`], with the answer's memory in a shared room.
    pub(crate) async fn call_in(
        &self,
        room: &Arc<Room>,
        method: Method,
        path: &str,
        body: Option<Bytes>,
    ) -> Result<WholeAnswer> {
        self.call_for(room, method, path, body, Some(ANSWER_MAX)).await
    }

    /// As [`Peer::call_in`]; without `answer_max` the answer may take any time as long as it makes progress.
    pub(crate) async fn call_for(
        &self,
        room: &Arc<Room>,
        method: Method,
        path: &str,
        body: Option<Bytes>,
        answer_max: Option<Duration>,
    ) -> Result<WholeAnswer> {
        let call_once = || async {
            let answer = async { self.whole(room, self.send_once(method.clone(), path, body.clone()).await?).await };
            match answer_max {
                None => answer.await,
                Some(answer_max) => tokio::time::timeout(answer_max, answer)
                    .await
                    .unwrap_or_else(|_| Err(self.broken("an answer did not end in time"))),
            }
        };
        let mut pause = FIRST_PAUSE;
        for _ in 1..TRIES {
            match call_once().await {
                Ok(answer) if (answer.status < 500 || matches!(answer.status, 501 | 507)) && answer.status != 429 => {
                    return Ok(answer);
                }
                Err(error) if !error.is_transient() => return Err(error),
                _ => {}
            }
            self.clock.sleep(pause).await;
            pause *= 2;
        }
        call_once().await
    }

    pub(crate) async fn whole(&self, room: &Arc<Room>, mut answer: Answer) -> Result<WholeAnswer> {
        let (mut body, mut share) = (Vec::new(), Share::new(room));
        let mut overdue = std::pin::pin!(room.overdue());
        loop {
            let piece = tokio::select! {
                biased;
                // Also while the peer sends nothing.
                () = &mut overdue => return Err(self.no_room(NoRoom::Now)),
                piece = answer.piece() => piece.map_err(|reason| self.broken(reason))?,
            };
            let Some(piece) = piece else { break };
            let length = body.len() + piece.len();
            if length > ANSWER_BYTES_MAX {
                return Err(Error::TooLarge(self.shown.clone(), "an answer is larger than 64 MB"));
            }
            // A growing vector has at most twice the needed capacity.
            share.set(2 * length).await.map_err(|error| self.no_room(error))?;
            body.extend_from_slice(&piece);
        }
        Ok(WholeAnswer { status: answer.status.as_u16(), body, share })
    }

    pub(crate) fn refused(&self, what: &str, answer: &WholeAnswer) -> Error {
        let json = answer.short_json();
        let text = |name: &str| json.get(name).and_then(Value::as_str).unwrap_or_default().chars().take(500).collect();
        let what = format!("{what} of {}", self.shown);
        Error::Status { what, status: answer.status, error: text("error"), reason: text("reason") }
    }

    /// Returns the error of an answer that is not read.
    pub(crate) fn status(&self, what: &str, status: u16) -> Error {
        let what = format!("{what} of {}", self.shown);
        Error::Status { what, status, error: String::new(), reason: String::new() }
    }

    /// Checks that the database exists; `create`: creates it with this query if it is missing.
    pub(crate) async fn open(&self, create: Option<&str>) -> Result<()> {
        let mut answer = self.call(Method::GET, "", None).await?;
        // Sync Gateway redirects (301) to the URL with a trailing slash.
        if matches!(answer.status, 301 | 308) {
            answer = self.call(Method::GET, "/", None).await?;
        }
        if answer.status == 404
            && let Some(query) = create
        {
            let made = self.call(Method::PUT, query, None).await?;
            // 412: another client created it meanwhile.
            if !matches!(made.status, 201 | 202 | 412) {
                return Err(self.of_database("creation", &made));
            }
            answer = self.call(Method::GET, "", None).await?;
        }
        if answer.status == 200 { Ok(()) } else { Err(self.of_database("information", &answer)) }
    }

    fn of_database(&self, what: &str, answer: &WholeAnswer) -> Error {
        match answer.status {
            404 => Error::DatabaseNotFound(self.shown.clone()),
            401 | 403 => Error::Unauthorized(self.shown.clone()),
            _ => self.refused(what, answer),
        }
    }

    /// Reads a replication log; empty if it is missing.
    pub(crate) async fn log(&self, id: &str) -> Result<Log> {
        let answer = self.call(Method::GET, &format!("/{LOCAL}/{id}"), None).await?;
        match answer.status {
            200 if answer.body.len() > LOG_BYTES_MAX => {
                Err(Error::TooLarge(self.shown.clone(), "a replication log is larger than 4 MB"))
            }
            200 => {
                let tree = self.memory.tree(tree_bytes(&answer.body)).await;
                let _tree = tree.map_err(|error| self.no_room(error))?;
                Ok(Log::read(Some(&answer.body)))
            }
            404 => Ok(Log::default()),
            _ => Err(self.refused("a replication log", &answer)),
        }
    }

    pub(crate) async fn put_log(&self, id: &str, body: Vec<u8>) -> Result<String> {
        let answer = self.call(Method::PUT, &format!("/{LOCAL}/{id}"), Some(body.into())).await?;
        if !matches!(answer.status, 200..=202) {
            return Err(self.refused("writing a replication log", &answer));
        }
        Ok(answer.short_json().get("rev").and_then(Value::as_str).unwrap_or_default().to_owned())
    }

    /// Returns the path of a document within the database.
    pub(crate) fn document_path(id: &str) -> String {
        let id = DocumentId::of(id);
        match id.kind() {
            DocumentKind::Design => format!("/{DESIGN}/{}", encode_segment(id.name())),
            DocumentKind::Ordinary | DocumentKind::Local => format!("/{}", encode_segment(id.text())),
        }
    }
}

#[cfg(test)]
mod tests {
    use flatbed_outward::{Network, Tls};
    use flatbed_testkit::pass;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;
    use crate::endpoint::LocalConnect;

    /// Answers with the beginning of a long body, and sends nothing more.
    async fn stall(mut stream: DuplexStream) {
        let mut request = [0; 4_096];
        assert!(stream.read(&mut request).await.unwrap() > 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10000000\r\n\r\n").await.unwrap();
        stream.write_all(&vec![b' '; 3_600 << 10]).await.unwrap();
        std::future::pending::<()>().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_answer_gives_way_to_another_owner() {
        let memory = Memory::of_parts(1 << 20, 8 << 20, 1 << 20);
        let local: LocalConnect = Arc::new(|| {
            let (ours, theirs) = tokio::io::duplex(64 << 10);
            tokio::spawn(stall(theirs));
            ours
        });
        let (network, tls, clock) = (Network::default(), Tls::default(), Clock::system());
        let ways = PeerAccess { local, network, tls, memory: memory.of_owner(Some("eve")), clock };
        let text = parse_unique(b"\"db\"", &Limits::default()).unwrap();
        let peer = Peer::new(&Endpoint::parse(Some(&text), "source").unwrap(), &ways);
        // Otherwise the other owner would take the reserve.
        let mut reserve = Share::new(&peer.memory.room());
        reserve.set(16 << 20).await.unwrap();
        let answer = peer.send_once(Method::GET, "", None).await.unwrap();
        let room = peer.memory.room();
        let of_nora = async {
            // The clock stands still until the answer stalls.
            pass(Duration::from_millis(1)).await;
            let mut share = Share::new(&memory.of_owner(Some("nora")).room());
            tokio::time::timeout(Duration::from_secs(5), share.set(2 << 20)).await
        };
        let (stalled, taken) = tokio::join!(peer.whole(&room, answer), of_nora);
        assert!(matches!(stalled, Err(Error::NoRoom(_))));
        assert_eq!(taken.ok(), Some(Ok(())));
    }
}
