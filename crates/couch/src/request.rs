//! What a handler is given.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

pub(crate) use flatbed_http::{Body, Memory};
use flatbed_service::Context;

use crate::query::Query;

/// A request, and who makes it.
pub(crate) struct Request {
    of: flatbed_http::Request,
    pub query: Query,
    /// Who asks, and the only way to what they have a right to.
    pub context: Context,
    /// Which path the client asked for, where a design document has rewritten it.
    pub requested_path: Option<String>,
    /// How often that has happened.
    pub rewrites: usize,
    /// The processor time that functions of `rewrites` have taken for it.
    pub rewrite_time: Duration,
    /// A list asks for its rows.
    pub is_of_list: bool,
}

impl Request {
    pub(crate) fn new(of: flatbed_http::Request, query: Query, context: Context) -> Request {
        Request {
            of,
            query,
            context,
            requested_path: None,
            rewrites: 0,
            rewrite_time: Duration::ZERO,
            is_of_list: false,
        }
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
