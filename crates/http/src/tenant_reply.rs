//! Replies that a tenant decides: a function of a design document, or a stored attachment.
//!
//! A browser treats such a reply as a page of this server, with the session of its user. [`TenantReply`] becomes a
//! [`Reply`] only through its conversion, which sets `Content-Security-Policy: sandbox` and `X-Content-Type-Options:
//! nosniff` last. A handler of such replies returns a [`TenantReply`], so that it does not compile without them.

use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, StatusCode};

use crate::reply::{PagePermit, Reply, ReplyBody};
use crate::tenant_headers::may_choose;

/// The policy that CouchDB sends: the page has an origin of its own, and runs no scripts.
const SANDBOX: HeaderValue = HeaderValue::from_static("sandbox");

/// Browsers give the reply only to pages of this origin. Requests with CORS are not affected by this header.
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

const SAME_ORIGIN: HeaderValue = HeaderValue::from_static("same-origin");

const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");

/// The parts of such a reply have their own headers, which are not checked.
const MIXED_REPLACE: &[u8] = b"multipart/x-mixed-replace";

const BINARY: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// A reply whose status, headers or body a tenant decides.
#[derive(Debug)]
pub struct TenantReply(Reply);

impl TenantReply {
    /// Returns the reply of a function with the headers that the function chose, as far as they are allowed: headers
    /// that describe the content, and `X-` headers that an application makes up. Others are dropped. The headers of
    /// `reply` are the server's. Pages of other origins cannot load the reply as a script, whose text may contain
    /// documents.
    pub fn new(mut reply: Reply, chosen: &HeaderMap) -> TenantReply {
        for name in chosen.keys().filter(|name| may_choose(name)) {
            reply.headers.remove(name);
            for value in chosen.get_all(name) {
                reply.headers.append(name, value.clone());
            }
        }
        reply.headers.insert(RESOURCE_POLICY, SAME_ORIGIN);
        TenantReply(reply)
    }

    /// Returns a reply with the server's headers and a tenant's body: an attachment, which pages of other origins may
    /// embed, as with CouchDB.
    pub fn of_body(reply: Reply) -> TenantReply {
        TenantReply(reply)
    }

    /// Sets a header of the server. Ignores invalid values.
    pub fn header(&mut self, name: HeaderName, value: &str) {
        self.0.header(name, value);
    }

    /// Returns the length of a whole body in bytes, 0 for a stream.
    pub fn whole_bytes(&self) -> usize {
        self.0.body.whole_bytes().unwrap_or_default()
    }

    /// Keeps the memory of a whole body until it is sent.
    pub fn hold(&mut self, room: PagePermit) {
        self.0.held = room;
    }

    /// Drops the body if the status allows none.
    #[must_use]
    pub fn without_forbidden_body(mut self) -> TenantReply {
        if matches!(self.0.status, StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED) {
            self.0.body = ReplyBody::Full(None);
        }
        self
    }
}

impl From<TenantReply> for Reply {
    fn from(TenantReply(mut reply): TenantReply) -> Reply {
        let is_mixed = |kind: &HeaderValue| {
            let kind = kind.as_bytes().trim_ascii_start();
            kind.get(..MIXED_REPLACE.len()).is_some_and(|start| start.eq_ignore_ascii_case(MIXED_REPLACE))
        };
        if reply.headers.get(header::CONTENT_TYPE).is_some_and(is_mixed) {
            reply.headers.insert(header::CONTENT_TYPE, BINARY);
        }
        reply.headers.insert(header::CONTENT_SECURITY_POLICY, SANDBOX);
        reply.headers.insert(header::X_CONTENT_TYPE_OPTIONS, NOSNIFF);
        reply
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn every_reply_is_sandboxed() {
        let own = [("content-security-policy", "default-src *"), ("x-content-type-options", "none")];
        for reply in [Reply::json(StatusCode::OK, Vec::new()), Reply::stream().0, Reply::not_modified("\"a\"")] {
            let mut reply = TenantReply::new(reply, &chosen(&own));
            // The server's own handlers cannot remove it either.
            reply.header(header::CONTENT_SECURITY_POLICY, "default-src *");
            let reply = Reply::from(reply);
            let all =
                |name: HeaderName| reply.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect::<Vec<_>>();
            assert_eq!(all(header::CONTENT_SECURITY_POLICY), [b"sandbox"]);
            assert_eq!(all(header::X_CONTENT_TYPE_OPTIONS), [b"nosniff"]);
        }
    }

    #[test]
    fn headers_are_taken_by_name() {
        let html = chosen(&[("content-type", "text/html"), ("x-mine", "1"), ("set-cookie", "a=b")]);
        let reply = Reply::from(TenantReply::new(Reply::json(StatusCode::OK, Vec::new()), &html));
        assert_eq!(reply.headers.get_all(header::CONTENT_TYPE).iter().collect::<Vec<_>>(), ["text/html"]);
        assert_eq!((reply.headers.contains_key("x-mine"), reply.headers.contains_key("set-cookie")), (true, false));
    }

    #[test]
    fn what_functions_answer_is_no_script_of_other_pages() {
        let policy = |reply: TenantReply| Reply::from(reply).headers.get(RESOURCE_POLICY).cloned();
        let json = || Reply::json(StatusCode::OK, Vec::new());
        let other = chosen(&[("cross-origin-resource-policy", "cross-origin"), ("content-type", "text/javascript")]);
        assert_eq!(policy(TenantReply::new(json(), &other)).unwrap(), "same-origin");
        assert_eq!(policy(TenantReply::of_body(json())), None, "attachments are embedded by other pages");
    }

    #[test]
    fn no_part_has_headers_of_its_own() {
        for kind in ["multipart/x-mixed-replace; boundary=a", " Multipart/X-Mixed-Replace"] {
            let reply = TenantReply::new(Reply::json(StatusCode::OK, Vec::new()), &chosen(&[("content-type", kind)]));
            assert_eq!(Reply::from(reply).headers[header::CONTENT_TYPE], "application/octet-stream");
        }
    }
}
