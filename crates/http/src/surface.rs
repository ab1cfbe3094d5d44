//! What the shell serves.

use std::sync::Arc;

use async_trait::async_trait;
use flatbed_metrics::Label;
use hyper::Method;

use crate::inside::OnBehalf;
use crate::limits::Admission;
use crate::outlet::Outlet;
use crate::refused::{Refused, Result};
use crate::reply::Reply;
use crate::request::Request;

/// An API: what its paths are, what it answers, and how it says that something is refused. Whoever puts a program together
/// gives each of its listeners one.
#[async_trait]
pub trait Surface: Sized + Send + Sync + 'static {
    /// What a path names.
    type Target: Send;

    /// What requests are told apart by in metrics and traces: a form of path, never the name of a database or document.
    type Label: Label + Send + Sync + std::fmt::Debug;

    /// The label of a preflight request (CORS), which the shell answers.
    const PREFLIGHT: Self::Label;

    /// Whether a `POST` with `X-HTTP-Method-Override` is handled as a request of that method.
    const TAKES_METHOD_OVERRIDE: bool = false;

    /// Whether answers have CouchDB's `X-CouchDB-Body-Time`: the time spent waiting for the request's body, in milliseconds.
    const TELLS_BODY_TIME: bool = false;

    /// Reads a path, without its query: once for each request, before anything else of it is looked at.
    fn target(&self, path: &str) -> (Self::Target, Self::Label);

    /// Whether everyone may do everything. Then it is served on loopback addresses and under loopback names alone.
    fn is_open(&self) -> bool;

    /// Whether a request may change something. Pages of origins that CORS does not allow may not make such a request, and pages of
    /// origins that are not listed by name may not make it with the session of their user. The default holds for new routes.
    fn changes(_target: &Self::Target, method: &Method) -> bool {
        !method.is_safe()
    }

    /// Whether what is changed there begins a session, which a page of another origin must not do for its user.
    fn begins_session(_target: &Self::Target) -> bool {
        false
    }

    /// Answers a request, refusals included. A request that changes something goes on when this is dropped.
    async fn answer(self: &Arc<Self>, request: Request, target: Self::Target, origin: Origin<'_>) -> Answer;

    /// The answer to what the shell refuses.
    fn refused(&self, refused: &Refused) -> Reply;
}

/// Where a request comes from.
#[derive(Debug, Clone, Copy)]
pub struct Origin<'r> {
    /// From this process: see [`inside`](crate::inside()).
    pub is_inside: bool,
    /// From this process: on whose behalf.
    pub on_behalf: Option<&'r OnBehalf>,
    pub(crate) outlet: &'r Outlet,
    pub(crate) admission: &'r Arc<Admission>,
}

impl Origin<'_> {
    /// A user asks who is bounded, as all are but administrators: it is one of this user's requests until it is answered.
    ///
    /// # Errors
    /// 429 where there are too many.
    pub fn admit(&self, user: &str) -> Result<()> {
        if !self.is_inside {
            self.outlet.is_of(self.admission.ask_as(user)?);
        }
        Ok(())
    }

    /// Who asks is known: its connection may have more requests at once than a stranger's.
    pub fn know(&self) {
        self.outlet.connection().know();
    }
}

/// What a surface answers.
#[derive(Debug)]
pub struct Answer {
    /// The answer.
    pub reply: Reply,
    /// Who asked, for the log.
    pub user: Option<String>,
}
