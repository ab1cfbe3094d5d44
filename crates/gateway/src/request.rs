//! The input of a handler.

use std::ops::{Deref, DerefMut};

use flatbed_http::Body;
use flatbed_layer::json::{self, Limits, Value};
use flatbed_service::Context;
use hyper::{StatusCode, header};

use crate::error::{Failure, Result};
use crate::query::Query;

pub(crate) struct Request {
    of: flatbed_http::Request,
    pub query: Query,
    /// The principal, and the only access to databases.
    pub context: Context,
}

impl Request {
    pub(crate) fn new(of: flatbed_http::Request, query: Query, context: Context) -> Request {
        Request { of, query, context }
    }

    /// Reads a body whose content type is JSON or absent; 415 otherwise.
    pub(crate) async fn json(&mut self) -> Result<Body> {
        self.check_json().await?;
        self.body().await
    }

    /// Returns 415 unless the content type is JSON or absent.
    pub(crate) async fn check_json(&mut self) -> Result<()> {
        let kind = self.header(header::CONTENT_TYPE).unwrap_or_default();
        let (kind, _) = kind.split_once(';').unwrap_or((kind, ""));
        let kind = kind.trim();
        if !kind.is_empty() && !kind.eq_ignore_ascii_case("application/json") {
            let reason = format!("Invalid content type {kind}");
            return self.refuse(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, reason)).await;
        }
        Ok(())
    }

    /// Reads the body with any content type; 415 for an unsupported content encoding.
    pub(crate) async fn body(&mut self) -> Result<Body> {
        match self.header(header::CONTENT_ENCODING).map(str::trim) {
            None | Some("" | "identity" | "gzip") => Ok(self.read_body().await?),
            Some(_) => {
                self.skip_body().await;
                let reason = "Unsupported Content-Encoding; use gzip";
                Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, reason))
            }
        }
    }
}

/// Parses a JSON object; 400 `Bad JSON` otherwise.
pub(crate) fn object(text: &[u8]) -> Result<Value<'_>> {
    match json::parse(text, &Limits::default()) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => Err(Failure::bad_request("Bad JSON: it is no object")),
        Err(error) => Err(Failure::bad_request(format!("Bad JSON: {error}"))),
    }
}

pub(crate) fn take<'v>(value: Value<'v>, name: &str) -> Option<Value<'v>> {
    match value {
        Value::Object(members) => members.into_iter().rev().find(|(found, _)| found == name).map(|(_, value)| value),
        _ => None,
    }
}

impl Deref for Request {
    type Target = flatbed_http::Request;

    fn deref(&self) -> &flatbed_http::Request {
        &self.of
    }
}

impl DerefMut for Request {
    fn deref_mut(&mut self) -> &mut flatbed_http::Request {
        &mut self.of
    }
}
