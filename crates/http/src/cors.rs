//! Cross-origin requests from browsers, off unless configured.

use hyper::header::{self, HeaderName};
use hyper::{HeaderMap, Method, StatusCode};

use crate::reply::{Reply, ReplyBody};

const METHODS: &str = "GET, PUT, POST, HEAD, DELETE, COPY, OPTIONS";
const HEADERS: &str = "accept, authorization, content-type, origin, referer, if-match, if-none-match, destination, \
                       x-couch-full-commit, x-requested-with, last-event-id, content-encoding";
const EXPOSED: &str = "content-type, cache-control, etag, location, server, x-couch-request-id, x-couch-update-newrev";

/// What browsers are answered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cors {
    /// Origins that may call, such as `https://app.example`; `*` for all.
    pub origins: Vec<String>,
    /// Whether credentials may be sent along.
    pub credentials: bool,
    /// Further header names that requests may have.
    pub headers: Vec<String>,
    /// How long a browser may keep the answer to a preflight request, in seconds.
    pub max_age_seconds: u32,
}

impl Cors {
    /// The request's origin, if it may call.
    fn allowed<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        let origin = headers.get(header::ORIGIN)?.to_str().ok()?;
        self.origins.iter().any(|allowed| allowed == "*" || allowed == origin).then_some(origin)
    }

    /// Whether a page may open what no preflight request guards: one of the same host, of an origin that may call, or
    /// no page at all.
    pub(crate) fn is_own_or_allowed(&self, headers: &HeaderMap) -> bool {
        let Some(origin) = headers.get(header::ORIGIN) else { return true };
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let of_origin = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
        self.allowed(headers).is_some() || (host.is_some() && of_origin == host)
    }

    /// The answer to a preflight request; `None`: it is none, or the origin may not call.
    pub(crate) fn preflight(&self, method: &Method, headers: &HeaderMap) -> Option<Reply> {
        if *method != Method::OPTIONS || !headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD) {
            return None;
        }
        self.allowed(headers)?;
        let mut reply = Reply {
            status: StatusCode::NO_CONTENT,
            headers: HeaderMap::new(),
            body: ReplyBody::Full(None),
            held: None,
        };
        self.decorate(headers, &mut reply.headers);
        let mut allowed = HEADERS.to_owned();
        for name in &self.headers {
            allowed.push_str(", ");
            allowed.push_str(&name.to_ascii_lowercase());
        }
        reply.header(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        reply.header(header::ACCESS_CONTROL_ALLOW_HEADERS, &allowed);
        reply.header(header::ACCESS_CONTROL_MAX_AGE, &self.max_age_seconds.to_string());
        Some(reply)
    }

    /// Adds what a browser needs to hand the answer on.
    pub(crate) fn decorate(&self, request: &HeaderMap, reply: &mut HeaderMap) {
        if self.origins.is_empty() {
            return;
        }
        reply.insert(header::VARY, header::HeaderValue::from_static("Origin"));
        let Some(origin) = self.allowed(request) else { return };
        let mut put = |name: HeaderName, value: &str| {
            if let Ok(value) = header::HeaderValue::from_str(value) {
                reply.insert(name, value);
            }
        };
        let any = self.origins.iter().any(|allowed| allowed == "*");
        // With credentials a browser does not take the star.
        put(header::ACCESS_CONTROL_ALLOW_ORIGIN, if any && !self.credentials { "*" } else { origin });
        put(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        if self.credentials {
            put(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, "true");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_pages_open_nothing() {
        let may = |cors: &Cors, origin: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, "db.example:5984".parse().unwrap());
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().unwrap());
            }
            cors.is_own_or_allowed(&headers)
        };
        let none = Cors::default();
        assert!(may(&none, None) && may(&none, Some("https://db.example:5984")));
        for origin in ["https://evil.example", "https://db.example", "null", "", "://", "https://db.example:5984.evil"]
        {
            assert!(!may(&none, Some(origin)), "{origin}");
        }
        let some = Cors { origins: vec!["https://app.example".into()], ..Cors::default() };
        assert!(may(&some, Some("https://app.example")) && !may(&some, Some("https://evil.example")));
    }

    #[test]
    fn only_configured_origins_are_answered() {
        let mut headers = HeaderMap::new();
        headers.insert(header::ORIGIN, "https://a.example".parse().unwrap());
        headers.insert(header::ACCESS_CONTROL_REQUEST_METHOD, "PUT".parse().unwrap());
        assert!(Cors::default().preflight(&Method::OPTIONS, &headers).is_none());
        let other = Cors { origins: vec!["https://b.example".into()], ..Cors::default() };
        assert!(other.preflight(&Method::OPTIONS, &headers).is_none());
        let all = Cors { origins: vec!["*".into()], credentials: true, ..Cors::default() };
        let reply = all.preflight(&Method::OPTIONS, &headers).unwrap();
        assert_eq!(reply.headers[header::ACCESS_CONTROL_ALLOW_ORIGIN], "https://a.example");
        assert!(all.preflight(&Method::GET, &headers).is_none());
    }
}
