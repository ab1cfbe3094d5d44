//! Passes a request to its surface, and the surface's answer to the connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::upgrade::OnUpgrade;
use hyper::{HeaderMap, Method, Response, StatusCode};

use crate::arriving::{BodyTime, RequestBody};
use crate::cors::PageRequest;
use crate::host;
use crate::inside::InsidePrincipal;
use crate::metrics::{Bound, Verb};
use crate::outlet::Outlet;
use crate::peer::{Peer, RequestScheme};
use crate::rejection::Rejection;
use crate::reply::ReplyBody;
use crate::request::Request;
use crate::server::ServedSurface;
use crate::surface::{Answer, Origin, Surface};
use crate::tracked::{TrackedBody, TrackedRequest};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-couch-request-id");

const BODY_TIME: HeaderName = HeaderName::from_static("x-couchdb-body-time");

/// The longest `X-Couch-Request-ID` accepted from a client, in characters; a longer one is ignored.
const REQUEST_ID_MAX: usize = 36;

/// The header with which a client that can only send `POST` names another method.
const METHOD_OVERRIDE: HeaderName = HeaderName::from_static("x-http-method-override");

/// The source of request ids: ten hexadecimal digits that identify a request in the log.
#[derive(Debug, Default)]
pub(crate) struct RequestIds(AtomicU64);

impl RequestIds {
    /// Returns the client's request id if it consists of letters, digits, `-` and `_`, else a new one.
    fn of(&self, headers: &HeaderMap) -> String {
        let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok());
        let is_id = |id: &&str| {
            let is_known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            (1..=REQUEST_ID_MAX).contains(&id.len()) && id.bytes().all(is_known)
        };
        given.filter(is_id).map_or_else(|| self.next(), str::to_owned)
    }

    fn next(&self) -> String {
        let number = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        format!("{:010x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24)
    }
}

/// Returns the method that a `POST` with `X-HTTP-Method-Override` names, `None` for other requests. `HEAD` becomes
/// `GET`, since the answer to a `POST` has a body.
fn meant(method: &Method, headers: &HeaderMap) -> Option<Method> {
    if *method != Method::POST {
        return None;
    }
    match headers.get(METHOD_OVERRIDE)?.to_str().ok()?.trim() {
        "GET" | "HEAD" => Some(Method::GET),
        "PUT" => Some(Method::PUT),
        "DELETE" => Some(Method::DELETE),
        "TRACE" => Some(Method::TRACE),
        "CONNECT" => Some(Method::CONNECT),
        "COPY" => Method::from_bytes(b"COPY").ok(),
        _ => None,
    }
}

/// Joins cookie headers into one: over HTTP/2 a browser sends each cookie separately (RFC 9113, 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let mut lines = headers.get_all(header::COOKIE).iter();
    let (Some(first), Some(second)) = (lines.next(), lines.next()) else { return };
    let mut joined = first.as_bytes().to_vec();
    for line in std::iter::once(second).chain(lines) {
        joined.extend_from_slice(b"; ");
        joined.extend_from_slice(line.as_bytes());
    }
    if let Ok(joined) = HeaderValue::from_bytes(&joined) {
        headers.insert(header::COOKIE, joined);
    }
}

/// Answers one request at its outlet. `peer` is `None` for a request from within the process.
pub(crate) async fn answer<S: Surface>(
    served: Arc<ServedSurface<S>>,
    mut request: hyper::Request<Incoming>,
    peer: Option<Peer>,
    outlet: Arc<Outlet>,
) -> Response<TrackedBody> {
    // Before anything else: rights, cross-origin rules and metrics use the overriding method.
    if S::TAKES_METHOD_OVERRIDE
        && let Some(method) = meant(request.method(), request.headers())
    {
        *request.method_mut() = method;
    }
    let shell = &served.shell;
    let sender = peer;
    let peer = sender.map(|sender| shell.proxies.client(sender, request.headers()));
    let id = shell.request_ids.of(request.headers());
    let (target, label) = served.surface.target(request.uri().path());
    let tracking =
        TrackedRequest::begin(&shell.traffic, &id, request.method(), request.uri(), label, peer, outlet.clone());
    if let Some(continue_trace) = shell.continue_trace {
        tracking.continue_trace(continue_trace, request.headers());
    }
    // Boxed: each wrapping future would reserve its state again.
    let spans = tracking.spans();
    spans.within(Box::pin(answer_within(served, request, id, (target, label), (sender, peer), tracking, outlet))).await
}

async fn answer_within<S: Surface>(
    served: Arc<ServedSurface<S>>,
    request: hyper::Request<Incoming>,
    id: String,
    (target, mut label): (S::Target, S::Label),
    (sender, peer): (Option<Peer>, Option<Peer>),
    tracking: TrackedRequest,
    outlet: Arc<Outlet>,
) -> Response<TrackedBody> {
    let is_inside = peer.is_none();
    outlet.connection().unblocked().await;
    // Answers are not made while the outlet has no room; they would only wait in memory.
    outlet.until_there_is_room().await;
    let (shell, surface) = (&served.shell, &served.surface);
    let cors = shell.cors();
    let (mut parts, body) = request.into_parts();
    let (version, upgrade) = (parts.version, parts.extensions.remove::<OnUpgrade>());
    let on_behalf = parts.extensions.remove::<InsidePrincipal>();
    let (method, uri, mut headers) = (parts.method, parts.uri, parts.headers);
    join_cookies(&mut headers);
    let is_head = method == Method::HEAD;
    let verb = Verb::from(&method);
    let request_headers = if headers.contains_key(header::ORIGIN) { headers.clone() } else { Default::default() };
    // Requests from within the process have no host and no origin, and are always the server's own.
    let check = |peer: &Peer| {
        host::check(version, &uri, &headers, surface.is_open())?;
        if let Some(from) = shell.admission.ask(peer)? {
            outlet.is_from(from);
        }
        if let Some(sender) = shell.admission.sender(peer) {
            outlet.shares(outlet.connection().share(sender.who, sender.percent));
        }
        let host = sender.and_then(|sender| shell.proxies.host(&sender, &headers));
        let scheme = sender.map_or(RequestScheme::Unknown, |sender| shell.proxies.scheme(&sender, &headers));
        let page = PageRequest { uri: &uri, headers: &headers, host, scheme };
        let has_session = page.has_session_or(S::begins_session(&target));
        let is_foreign = (has_session && !cors.is_own_or_listed(&page)) || !cors.may_change(&page, &method);
        if is_foreign && S::changes(&target, &method) {
            shell.traffic.refused.of(Bound::Origin).add(1);
            return Err(Rejection::foreign());
        }
        Ok(is_foreign)
    };
    let checked = peer.as_ref().map_or(Ok(false), check);
    let mut body_time = BodyTime::default();
    let preflight = if checked.is_ok() { cors.preflight(&method, &headers) } else { None };
    let Answer { mut reply, user } = match (checked, preflight) {
        (Err(refused), _) => {
            let mut reply = surface.refused(&refused);
            if let Some(seconds) = refused.retry_after_seconds {
                reply.header(header::RETRY_AFTER, &seconds.to_string());
            }
            Answer { reply, user: None }
        }
        (Ok(_), Some(reply)) => {
            label = S::PREFLIGHT;
            Answer { reply, user: None }
        }
        (Ok(is_foreign), None) => {
            let memory = shell.memory.clone();
            let from = sender.and_then(|sender| sender.ip());
            let forwarded_host = sender.and_then(|sender| shell.proxies.host(&sender, &headers)).map(str::to_owned);
            let (limits, sender) = (shell.admission.limits(), peer.and_then(|peer| shell.admission.sender(&peer)));
            let body = RequestBody::new(body, &memory, &limits, sender, outlet.connection());
            body_time = body.time();
            let (peer, is_secure) = (peer.and_then(|peer| peer.ip()), peer.is_none_or(|peer| peer.is_secure));
            let request = Request {
                method,
                uri,
                version,
                headers,
                body,
                upgrade,
                memory,
                client: None,
                peer,
                sender: from,
                forwarded_host,
                is_secure,
                is_foreign,
            };
            let origin =
                Origin { is_inside, on_behalf: on_behalf.as_ref(), outlet: &outlet, admission: &shell.admission };
            surface.answer(request, target, origin).await
        }
    };
    if is_head {
        if let Some(length) = reply.body.whole_bytes() {
            reply.header(header::CONTENT_LENGTH, &length.to_string());
        }
        reply.body = ReplyBody::Full(None);
    }
    if let Err(refused) = reply.find_room(&outlet).await {
        reply = surface.refused(&refused);
    }
    if reply.status == StatusCode::TOO_MANY_REQUESTS && !reply.headers.contains_key(header::RETRY_AFTER) {
        reply.header(header::RETRY_AFTER, "1");
    }
    if reply.status == StatusCode::SWITCHING_PROTOCOLS {
        outlet.connection().speak_on();
    }
    cors.decorate(&request_headers, &mut reply.headers);
    reply.header(REQUEST_ID, &id);
    if S::TELLS_BODY_TIME {
        reply.headers.insert(BODY_TIME, HeaderValue::from(body_time.millis()));
    }
    reply.headers.insert(header::SERVER, shell.server_header.clone());
    // Requests from within the process are not counted.
    if !is_inside {
        shell.requests.answered(label, verb, reply.status.as_u16(), tracking.elapsed());
    }
    tracking.respond(reply, user, version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_may_name_its_request() {
        let ids = RequestIds::default();
        let of = |text: &'static [u8]| {
            let value = HeaderValue::from_bytes(text).unwrap();
            ids.of(&HeaderMap::from_iter([(REQUEST_ID, value)]))
        };
        for id in ["a", "Trace_1-b", "123456789012345678901234567890123456"] {
            assert_eq!(of(id.as_bytes()), id);
        }
        for id in ["", "a b", "a\"", "a:b", "\u{e9}", "1234567890123456789012345678901234567"] {
            let own = of(id.as_bytes());
            assert!(own != id && own.len() == 10, "{id}: {own}");
        }
        assert_ne!(ids.of(&HeaderMap::new()), ids.of(&HeaderMap::new()));
    }

    #[test]
    fn only_a_post_means_another_method() {
        let of = |method: Method, meaning: &'static str| {
            let value = HeaderValue::from_static(meaning);
            meant(&method, &HeaderMap::from_iter([(METHOD_OVERRIDE, value)]))
        };
        for (meaning, method) in
            [("PUT", "PUT"), ("DELETE", "DELETE"), ("GET", "GET"), ("HEAD", "GET"), ("COPY", "COPY")]
        {
            let found = of(Method::POST, meaning);
            assert_eq!(found.as_ref().map(Method::as_str), Some(method));
            assert_eq!(of(Method::GET, meaning), None);
        }
        for meaning in ["", "delete", "OPTIONS", "PATCH", "POST"] {
            assert_eq!(of(Method::POST, meaning), None, "{meaning}");
        }
        assert_eq!(meant(&Method::POST, &HeaderMap::new()), None);
    }

    #[test]
    fn cookies_of_several_lines_are_one() {
        let mut headers = HeaderMap::new();
        join_cookies(&mut headers);
        assert!(headers.is_empty());
        for line in ["theme=x", "AuthSession=abc", "a=b; c=d"] {
            headers.append(header::COOKIE, HeaderValue::from_static(line));
        }
        join_cookies(&mut headers);
        assert_eq!(headers.get_all(header::COOKIE).iter().collect::<Vec<_>>(), ["theme=x; AuthSession=abc; a=b; c=d"]);
    }
}
