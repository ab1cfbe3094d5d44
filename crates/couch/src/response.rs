//! Converts responses of design functions to replies; no other module does. A tenant wrote the function, so this module
//! refuses or drops headers that belong to the connection or would break its framing. A [`TenantReply`] allows only
//! headers that describe content. A function whose response HTTP does not allow gets a 500.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use flatbed_http::{Reply, ReplyBody, TenantReply};
use flatbed_javascript::{Response, ResponseBody};
use hyper::StatusCode;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};

use crate::error::{Failure, Result};

/// The largest total of header names and values in bytes; clients accept no more.
const HEADERS_BYTES_MAX: usize = 32 * 1024;

const TEXT: &str = "text/html; charset=utf-8";
const BINARY: &str = "application/binary";
const JSON: &str = "application/json";

/// Returns whether a header concerns the connection or the body's length. Functions cannot set these.
fn is_of_connection(name: &HeaderName) -> bool {
    const NAMES: [HeaderName; 7] = [
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::PROXY_AUTHENTICATE,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ];
    NAMES.contains(name) || matches!(name.as_str(), "keep-alive" | "proxy-connection")
}

/// Returns the status, or `without` if the function gave none.
fn status(code: Option<u16>, without: StatusCode) -> Result<StatusCode> {
    let Some(code) = code else { return Ok(without) };
    let status = StatusCode::from_u16(code).ok().filter(|_| (200..600).contains(&code));
    status.ok_or_else(|| Failure::invalid_response("Invalid data from external server: code"))
}

/// Converts the headers that a function sets on a rewritten request. Headers of a reply go through [`TenantReply`].
pub(crate) fn request_headers(given: &[(String, String)]) -> Result<HeaderMap> {
    headers(given)
}

fn headers(given: &[(String, String)]) -> Result<HeaderMap> {
    let invalid = |name: &str| Failure::invalid_response(format!("Invalid header from external server: {name:?}"));
    let bytes: usize = given.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > HEADERS_BYTES_MAX {
        return Err(Failure::invalid_response(format!("Headers of more than {HEADERS_BYTES_MAX} bytes")));
    }
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid(name))?;
        // The value cannot contain line ends or other control characters.
        let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| invalid(name))?;
        if !is_of_connection(&parsed) {
            headers.insert(parsed, value);
        }
    }
    Ok(headers)
}

/// Builds a reply with content type `kind` unless the function chose one.
fn text(status: StatusCode, body: ReplyBody, chosen: &HeaderMap, kind: Option<&'static str>) -> TenantReply {
    let mut reply = Reply { status, headers: HeaderMap::new(), body, held: None };
    if let Some(kind) = kind {
        reply.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    TenantReply::new(reply, chosen)
}

/// Builds the reply of a list, whose text `body` sends.
pub(crate) fn list(started: &Response, body: ReplyBody) -> Result<TenantReply> {
    let status = status(started.code, StatusCode::OK)?;
    Ok(text(status, body, &headers(&started.headers)?, Some(LIST_KIND)))
}

/// Builds the reply of a list that failed after it had read a row.
pub(crate) fn failed_list(failed: StatusCode, started: &Response, body: ReplyBody) -> Result<TenantReply> {
    let mut chosen = headers(&started.headers)?;
    chosen.remove(header::ETAG);
    Ok(text(failed, body, &chosen, Some(LIST_KIND)))
}

/// Builds the reply of a rewrite function that answers the request itself.
pub(crate) fn rewritten(code: u16, given: &[(String, String)], body: Option<Bytes>) -> Result<TenantReply> {
    let status = status(Some(code), StatusCode::OK)?;
    Ok(text(status, ReplyBody::Full(body), &headers(given)?, None).without_forbidden_body())
}

/// Builds a complete reply; `without` is the status if the function gave none.
pub(crate) fn whole(response: Response, without: StatusCode) -> Result<TenantReply> {
    let Response { code, headers: given, body } = response;
    let (status, chosen) = (status(code, without)?, headers(&given)?);
    let (body, kind) = match body {
        ResponseBody::None => (Vec::new(), JSON),
        ResponseBody::Text(text) => (text.into_bytes(), TEXT),
        ResponseBody::Base64(text) => {
            let invalid = |_| Failure::invalid_response("Invalid data from external server: base64");
            (BASE64.decode(text.trim()).map_err(invalid)?, BINARY)
        }
        ResponseBody::Json(text) => {
            let reply = Reply::json(status, text.into_bytes());
            return Ok(TenantReply::new(reply, &chosen).without_forbidden_body());
        }
    };
    let body = ReplyBody::Full(Some(body.into()));
    Ok(text(status, body, &chosen, Some(kind)).without_forbidden_body())
}

/// The default content type of a list's answer.
const LIST_KIND: &str = JSON;

#[cfg(test)]
mod tests {
    use super::*;

    fn header(name: &str, value: &str) -> Vec<(String, String)> {
        vec![(name.to_owned(), value.to_owned())]
    }

    #[test]
    fn what_http_does_not_allow_is_refused() {
        for (name, value) in [
            ("X-A", "a\r\nSet-Cookie: b"),
            ("X-A", "a\nb"),
            ("X-A", "a\0b"),
            ("X-A: b\r\nX-C", "d"),
            ("X A", "b"),
            ("", "b"),
            ("é", "b"),
        ] {
            let failure = headers(&header(name, value)).unwrap_err();
            assert_eq!((failure.status.as_u16(), &*failure.error), (500, "external_response_error"), "{name} {value}");
        }
        assert!(headers(&header("x", &"y".repeat(HEADERS_BYTES_MAX))).is_err());
        for code in [0, 100, 101, 199, 600, 999, 1000, 65_535] {
            assert!(status(Some(code), StatusCode::OK).is_err(), "{code}");
        }
        for code in [200, 299, 418, 599] {
            assert_eq!(status(Some(code), StatusCode::OK).unwrap().as_u16(), code);
        }
    }

    #[test]
    fn what_is_the_connections_is_left_out() {
        for name in [
            "Connection",
            "content-length",
            "Transfer-Encoding",
            "Upgrade",
            "TE",
            "Trailer",
            "Keep-Alive",
            "Proxy-Authenticate",
            "Proxy-Connection",
        ] {
            assert!(headers(&header(name, "1")).unwrap().is_empty(), "{name}");
        }
        assert_eq!(headers(&header("X-A", "é\tb")).unwrap()["x-a"].as_bytes(), "é\tb".as_bytes());
    }

    #[test]
    fn browsers_run_nothing_of_it() {
        for body in [
            ResponseBody::None,
            ResponseBody::Text("x".into()),
            ResponseBody::Json("{}".into()),
            ResponseBody::Base64("aGk=".into()),
        ] {
            let own =
                [header("Content-Security-Policy", "default-src *"), header("Content-Type", "text/html")].concat();
            let response = Response { body, headers: own, ..Response::default() };
            let reply = Reply::from(whole(response, StatusCode::OK).unwrap());
            let all = |name: HeaderName| reply.headers.get_all(name).iter().collect::<Vec<_>>();
            assert_eq!(all(header::CONTENT_SECURITY_POLICY), ["sandbox"]);
            assert_eq!(all(header::X_CONTENT_TYPE_OPTIONS), ["nosniff"]);
            assert_eq!(all(header::CONTENT_TYPE), ["text/html"]);
        }
    }
}
