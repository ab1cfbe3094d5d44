//! What is answered to a request that cannot be done.

/// A request is refused, in CouchDB's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refused {
    /// The status of HTTP.
    pub status: u16,
    /// The member `error`.
    pub error: &'static str,
    /// The member `reason`.
    pub reason: String,
}

impl Refused {
    /// With status 400.
    pub(crate) fn bad(error: &'static str, reason: impl Into<String>) -> Refused {
        Refused { status: 400, error, reason: reason.into() }
    }

    /// What CouchDB has no words for, with status 500.
    pub(crate) fn unknown(module: &str, what: &str) -> Refused {
        Refused { status: 500, error: "unknown_error", reason: format!("Unknown Error: {module} :: {what}") }
    }
}
