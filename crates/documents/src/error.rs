//! Errors of attachments.

use flatbed_http::Rejection;

/// The reasons why attachments are refused.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DocumentError {
    /// Malformed attachments.
    #[error("{0}")]
    Malformed(String),
    /// The data does not match its digest.
    #[error("Possible message corruption.")]
    WrongDigest,
    /// The requested byte range does not exist.
    #[error("Requested range not satisfiable")]
    Unsatisfiable,
    /// A refusal of the shell.
    #[error(transparent)]
    Refused(#[from] Rejection),
    /// An error of the layer.
    #[error(transparent)]
    Layer(#[from] flatbed_layer::Error),
}

impl From<flatbed_layer::Refusal> for DocumentError {
    fn from(refusal: flatbed_layer::Refusal) -> DocumentError {
        DocumentError::Layer(refusal.into())
    }
}

/// The result of handling attachments.
pub type Result<T> = std::result::Result<T, DocumentError>;

impl DocumentError {
    pub(crate) fn malformed(reason: impl Into<String>) -> DocumentError {
        DocumentError::Malformed(reason.into())
    }
}
