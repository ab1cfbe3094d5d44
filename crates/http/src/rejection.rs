//! Requests that the shell refuses. A [`Surface`](crate::Surface) translates them into its own form.

use hyper::StatusCode;

/// The refusal of a request.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{status} {error}: {reason}")]
pub struct Rejection {
    /// 4xx or 5xx.
    pub status: StatusCode,
    /// A code with underscores.
    pub error: &'static str,
    /// A message for people.
    pub reason: String,
    /// When to retry, in seconds, if known.
    pub retry_after_seconds: Option<u32>,
}

/// The result of the shell's functions.
pub type Result<T> = std::result::Result<T, Rejection>;

impl Rejection {
    pub(crate) fn new(status: StatusCode, error: &'static str, reason: impl Into<String>) -> Rejection {
        Rejection { status, error, reason: reason.into(), retry_after_seconds: None }
    }

    /// 403: a page of another origin tries to change something.
    pub fn foreign() -> Rejection {
        let reason = "A page of another origin may not change anything on behalf of its user. If the page is trusted, \
                      its origin must be in [cors] origins; a proxy that changes Host must be in forwarded_from.";
        Rejection::new(StatusCode::FORBIDDEN, "forbidden", reason)
    }

    pub(crate) fn bad_request(reason: impl Into<String>) -> Rejection {
        Rejection::new(StatusCode::BAD_REQUEST, "bad_request", reason)
    }
}
