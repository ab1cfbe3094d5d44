//! What is wrong with a document's attachments.

use flatbed_http::Refused;

/// Why attachments cannot be taken.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DocumentError {
    /// They are not in the form that they should have.
    #[error("{0}")]
    Malformed(String),
    /// Data has another digest than was said.
    #[error("Possible message corruption.")]
    WrongDigest,
    /// Of an attachment no such range of bytes is there.
    #[error("Requested range not satisfiable")]
    Unsatisfiable,
    /// What the shell refuses.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// What the layer says.
    #[error(transparent)]
    Layer(#[from] flatbed_layer::Error),
}

impl From<flatbed_layer::Refusal> for DocumentError {
    fn from(refusal: flatbed_layer::Refusal) -> DocumentError {
        DocumentError::Layer(refusal.into())
    }
}

/// Result of taking attachments.
pub type Result<T> = std::result::Result<T, DocumentError>;

impl DocumentError {
    pub(crate) fn malformed(reason: impl Into<String>) -> DocumentError {
        DocumentError::Malformed(reason.into())
    }
}
