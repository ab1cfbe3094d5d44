//! The error of refused requests.

/// A refused request, in CouchDB's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct MangoError {
    /// The HTTP status.
    pub status: u16,
    /// The member `error`.
    pub error: &'static str,
    /// The member `reason`.
    pub reason: String,
}

impl MangoError {
    pub(crate) fn bad(error: &'static str, reason: impl Into<String>) -> MangoError {
        MangoError { status: 400, error, reason: reason.into() }
    }

    /// Returns an error for which CouchDB has no words, with status 500.
    pub(crate) fn unknown(module: &str, what: &str) -> MangoError {
        MangoError { status: 500, error: "unknown_error", reason: format!("Unknown Error: {module} :: {what}") }
    }
}
