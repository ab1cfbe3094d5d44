//! What the shell itself refuses, whatever the surface: a [`Surface`](crate::Surface) puts it into its own words.

use hyper::StatusCode;

/// A request that is refused.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{status} {error}: {reason}")]
pub struct Refused {
    /// 4xx or 5xx.
    pub status: StatusCode,
    /// What it is, in one word with underscores.
    pub error: &'static str,
    /// For people.
    pub reason: String,
    /// When to ask again, where that is known.
    pub retry_after_seconds: Option<u32>,
}

/// What the shell gives, or why not.
pub type Result<T> = std::result::Result<T, Refused>;

impl Refused {
    pub(crate) fn new(status: StatusCode, error: &'static str, reason: impl Into<String>) -> Refused {
        Refused { status, error, reason: reason.into(), retry_after_seconds: None }
    }

    /// 403: a request that changes something comes from a page of another origin.
    pub fn foreign() -> Refused {
        let reason = "A page of another origin may not change anything on behalf of its user. If the page is trusted, \
                      its origin must be in [cors] origins; a proxy that changes Host must be in forwarded_from.";
        Refused::new(StatusCode::FORBIDDEN, "forbidden", reason)
    }

    pub(crate) fn bad_request(reason: impl Into<String>) -> Refused {
        Refused::new(StatusCode::BAD_REQUEST, "bad_request", reason)
    }
}
