//! What a handler is given.

use std::ops::{Deref, DerefMut};

use flatbed_auth::Principal;
pub(crate) use flatbed_http::{Body, Memory};

use crate::query::Query;

/// A request, and who makes it.
pub(crate) struct Request {
    of: flatbed_http::Request,
    pub query: Query,
    /// Who asks. All are administrators for now; users and per-database security look here.
    pub principal: Principal,
}

impl Request {
    pub(crate) fn new(of: flatbed_http::Request, query: Query, principal: Principal) -> Request {
        Request { of, query, principal }
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
