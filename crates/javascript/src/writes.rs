//! The writes that a validation judges, as the server and its processes of functions pass them.

use std::sync::Arc;

/// The longest text that says what a function has thrown, in bytes: a name and a reason of 4,000 characters, all
/// escaped.
pub(crate) const TOLD_BYTES_MAX: usize = 64 << 10;

/// The arguments of `validate_doc_update` that all writes of a request share, as JSON texts. Cheap to clone.
#[derive(Debug, Clone)]
pub struct WriteContext {
    /// The writer: `{"db":...,"name":...,"roles":[...]}`.
    pub user: Arc<str>,
    /// The database's `_security`.
    pub security: Arc<str>,
}

/// The other arguments, as JSON texts.
#[derive(Debug, Clone)]
pub struct WriteTexts {
    /// The new document.
    pub document: String,
    /// The revision that it replaces, if any.
    pub old: Option<String>,
}
