//! The input of a handler.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use flatbed_http::{Body, Memory};
use flatbed_service::configuration::ForwardingSettings;
use flatbed_service::{Context, Settings};

use crate::query::Query;

pub(crate) struct Request {
    of: flatbed_http::Request,
    pub query: Query,
    /// The principal, and the only access to databases.
    pub context: Context,
    /// The path that the client requested, if a design document has rewritten it.
    pub requested_path: Option<String>,
    pub rewrites: usize,
    /// The processor time that functions of `rewrites` have used for this request.
    pub rewrite_time: Duration,
    /// True if a list function reads these rows.
    pub is_of_list: bool,
    /// The settings when the request began.
    settings: Arc<Settings>,
}

impl Request {
    pub(crate) fn new(of: flatbed_http::Request, query: Query, context: Context, settings: Arc<Settings>) -> Request {
        Request {
            of,
            query,
            context,
            requested_path: None,
            rewrites: 0,
            rewrite_time: Duration::ZERO,
            is_of_list: false,
            settings,
        }
    }

    /// Returns `http://HOST` as the client sees it.
    pub(crate) fn base(&self) -> String {
        let ForwardingSettings { host_header, proto_header, ssl_header } = &self.settings.forwarding;
        self.of.base([host_header.as_str(), proto_header.as_str(), ssl_header.as_str()])
    }

    /// Returns the names of the headers that [`Request::base`] reads, in lower case.
    pub(crate) fn base_headers(&self) -> [String; 3] {
        let ForwardingSettings { host_header, proto_header, ssl_header } = &self.settings.forwarding;
        [host_header, proto_header, ssl_header].map(Clone::clone)
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
