//! The interface between the shell and the API that it serves.

use std::sync::Arc;

use async_trait::async_trait;
use flatbed_metrics::Label;
use hyper::Method;

use crate::inside::InsidePrincipal;
use crate::limits::Admission;
use crate::outlet::Outlet;
use crate::rejection::{Rejection, Result};
use crate::reply::Reply;
use crate::request::Request;

/// An API: its paths, answers, and form of refusals. The program assigns a surface to each listener.
#[async_trait]
pub trait Surface: Sized + Send + Sync + 'static {
    /// The parsed path.
    type Target: Send;

    /// The label of a request in metrics and traces: a form of path, never the name of a database or document.
    type Label: Label + Send + Sync + std::fmt::Debug;

    /// The label of preflight requests (CORS), which the shell answers.
    const PREFLIGHT: Self::Label;

    /// True if a `POST` with `X-HTTP-Method-Override` is handled as a request of that method.
    const TAKES_METHOD_OVERRIDE: bool = false;

    /// True if answers have CouchDB's `X-CouchDB-Body-Time`: the time spent waiting for the request's body, in
    /// milliseconds.
    const TELLS_BODY_TIME: bool = false;

    /// Parses a path without its query, once per request and before any other part of it.
    fn target(&self, path: &str) -> (Self::Target, Self::Label);

    /// Returns true if every client has all rights. Then the shell serves only loopback addresses and loopback names.
    fn is_open(&self) -> bool;

    /// Returns true if a request may change something. Pages of origins that CORS does not allow may not make such a
    /// request, and pages of origins that are not listed by name may not make it with their user's session. The
    /// default is safe for new routes.
    fn changes(_target: &Self::Target, method: &Method) -> bool {
        !method.is_safe()
    }

    /// Returns true if the request begins a session, which a page of another origin must not do for its user.
    fn begins_session(_target: &Self::Target) -> bool {
        false
    }

    /// Answers a request, also with refusals. A request that changes something continues if this future is dropped.
    async fn answer(self: &Arc<Self>, request: Request, target: Self::Target, origin: Origin<'_>) -> Answer;

    /// Returns the answer for a refusal of the shell.
    fn refused(&self, refused: &Rejection) -> Reply;
}

/// The origin of a request.
#[derive(Debug, Clone, Copy)]
pub struct Origin<'r> {
    /// True if the request comes from within the process: see [`inside`](crate::inside()).
    pub is_inside: bool,
    /// The principal of a request from within the process.
    pub on_behalf: Option<&'r InsidePrincipal>,
    pub(crate) outlet: &'r Outlet,
    pub(crate) admission: &'r Arc<Admission>,
}

impl Origin<'_> {
    /// Counts the request as one of a user with limits, which all but administrators have, until it is answered.
    ///
    /// # Errors
    /// 429 if a limit is reached.
    pub fn admit(&self, user: &str) -> Result<()> {
        if !self.is_inside {
            self.outlet.is_of(self.admission.ask_as(user)?);
        }
        Ok(())
    }

    /// Notes that the client is authenticated as administrator: its connection may have more concurrent requests.
    pub fn know(&self) {
        self.outlet.connection().know();
    }
}

/// The answer of a surface.
#[derive(Debug)]
pub struct Answer {
    /// The answer.
    pub reply: Reply,
    /// The user, for the log.
    pub user: Option<String>,
}
