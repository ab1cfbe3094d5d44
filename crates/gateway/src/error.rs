//! Maps every failure to a status and Sync Gateway's `{"error","reason"}`. No other module does.

use flatbed_documents::DocumentError;
use flatbed_http::Rejection;
use flatbed_layer::json::Object;
use flatbed_layer::{Error as LayerError, Invalid, NotJudged, Refusal};
use flatbed_service::{AccessError, FeedError, SignInError};
use hyper::StatusCode;

/// FoundationDB's `transaction_too_large`.
const TRANSACTION_TOO_LARGE: i32 = 2101;

/// A failed request, as the client sees it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{status}: {reason}")]
pub(crate) struct Failure {
    pub status: StatusCode,
    pub reason: String,
    /// The value of the `allow` header of a 405.
    pub allow: Option<&'static str>,
    /// True to send a challenge for a name and a password.
    pub asks: bool,
    /// Seconds after which a retry may succeed; sent as `retry-after`.
    pub retry_after_seconds: Option<u32>,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(status: StatusCode, reason: impl Into<String>) -> Failure {
        Failure { status, reason: reason.into(), allow: None, asks: false, retry_after_seconds: None }
    }

    pub(crate) fn bad_request(reason: impl Into<String>) -> Failure {
        Failure::new(StatusCode::BAD_REQUEST, reason)
    }

    pub(crate) fn not_found(reason: impl Into<String>) -> Failure {
        Failure::new(StatusCode::NOT_FOUND, reason)
    }

    pub(crate) fn unknown() -> Failure {
        Failure::not_found("unknown URL")
    }

    pub(crate) fn no_database(name: &str) -> Failure {
        Failure::not_found(format!("no such database \"{name}\""))
    }

    /// 405; `allow` lists the allowed methods, such as `GET, HEAD`.
    pub(crate) fn method(allow: &'static str) -> Failure {
        Failure { allow: Some(allow), ..Failure::new(StatusCode::METHOD_NOT_ALLOWED, "") }
    }

    pub(crate) fn conflict(reason: impl Into<String>) -> Failure {
        Failure::new(StatusCode::CONFLICT, reason)
    }

    pub(crate) fn login_required() -> Failure {
        Failure { asks: true, ..Failure::new(StatusCode::UNAUTHORIZED, "Login required") }
    }

    /// 503 for a database that is closed for a while.
    pub(crate) fn closed() -> Failure {
        Failure::new(StatusCode::SERVICE_UNAVAILABLE, "DB is currently under maintenance")
    }

    /// 501 for a feature that Sync Gateway has and this version lacks.
    pub(crate) fn not_implemented(what: &str) -> Failure {
        Failure::new(StatusCode::NOT_IMPLEMENTED, format!("{what}: not in this version of Flatbed"))
    }

    /// Returns the error word of an answer.
    pub(crate) fn error(&self) -> &'static str {
        match self.status {
            StatusCode::NOT_FOUND => "not_found",
            StatusCode::CONFLICT => "conflict",
            StatusCode::RANGE_NOT_SATISFIABLE => "Requested Range Not Satisfiable",
            status => status.canonical_reason().unwrap_or("Error"),
        }
    }

    /// Returns the error word of a row, or the status number if there is none.
    pub(crate) fn row_error(&self) -> String {
        match self.status {
            StatusCode::BAD_REQUEST => "bad_request",
            StatusCode::UNAUTHORIZED => "unauthorized",
            StatusCode::FORBIDDEN => "forbidden",
            StatusCode::NOT_FOUND => "not_found",
            StatusCode::NOT_ACCEPTABLE => "not_acceptable",
            StatusCode::CONFLICT => "conflict",
            StatusCode::PRECONDITION_FAILED => "file_exists",
            StatusCode::UNSUPPORTED_MEDIA_TYPE => "bad_content_type",
            status => return status.as_u16().to_string(),
        }
        .to_owned()
    }

    /// `{"error":...,"reason":...}`
    pub(crate) fn text(&self) -> Vec<u8> {
        Object::text(|object| {
            object.string("error", self.error()).string("reason", &self.reason);
        })
    }

    /// Maps a failed write. `names_parent`: the edit named a parent revision.
    pub(crate) fn of_write(error: LayerError, names_parent: bool) -> Failure {
        match error {
            LayerError::Refused(refusal) => Failure::of_refused_write(refusal, names_parent),
            error => error.into(),
        }
    }

    /// Maps a refused write as [`Failure::of_write`] does.
    pub(crate) fn of_refused_write(refusal: Refusal, names_parent: bool) -> Failure {
        match refusal {
            Refusal::Conflict if !names_parent => Failure::conflict("Document exists"),
            refusal => refusal.into(),
        }
    }
}

impl From<Rejection> for Failure {
    fn from(refused: Rejection) -> Failure {
        let Rejection { status, reason, retry_after_seconds, .. } = refused;
        Failure { retry_after_seconds, ..Failure::new(status, reason) }
    }
}

impl From<DocumentError> for Failure {
    fn from(error: DocumentError) -> Failure {
        match error {
            DocumentError::Malformed(reason) => Failure::bad_request(reason),
            DocumentError::WrongDigest => Failure::bad_request(error.to_string()),
            DocumentError::Unsatisfiable => Failure::new(StatusCode::RANGE_NOT_SATISFIABLE, ""),
            DocumentError::Refused(refused) => refused.into(),
            DocumentError::Layer(error) => error.into(),
        }
    }
}

impl From<AccessError> for Failure {
    fn from(denied: AccessError) -> Failure {
        match denied {
            AccessError::Refused(refused) => refused.into(),
            AccessError::Layer(error) => error.into(),
        }
    }
}

impl From<flatbed_auth::AuthError> for Failure {
    fn from(refused: flatbed_auth::AuthError) -> Failure {
        match StatusCode::from_u16(refused.kind.status()) {
            Ok(StatusCode::FORBIDDEN) => Failure::new(StatusCode::FORBIDDEN, "forbidden"),
            Ok(StatusCode::UNAUTHORIZED) => Failure::login_required(),
            Ok(StatusCode::SERVICE_UNAVAILABLE) => Failure::closed(),
            Ok(status) => Failure::new(status, refused.reason),
            Err(_) => Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "see the server's log"),
        }
    }
}

impl From<SignInError> for Failure {
    fn from(error: SignInError) -> Failure {
        match error {
            SignInError::Refused(_) => {
                Failure { asks: true, ..Failure::new(StatusCode::UNAUTHORIZED, "Invalid login") }
            }
            SignInError::TooMany => Failure::new(StatusCode::TOO_MANY_REQUESTS, error.to_string()),
            SignInError::Layer(error) => error.into(),
        }
    }
}

impl From<FeedError> for Failure {
    fn from(error: FeedError) -> Failure {
        match error {
            FeedError::Layer(error) => error.into(),
            FeedError::Lost(refused) => refused.into(),
            // Feeds of this surface have no filter functions.
            FeedError::Function(_) | FeedError::Selector(_) | FeedError::MissingMember(_) => internal(&error),
        }
    }
}

impl From<LayerError> for Failure {
    fn from(error: LayerError) -> Failure {
        let reason = error.to_string();
        let unavailable = |reason| Failure::new(StatusCode::SERVICE_UNAVAILABLE, reason);
        match error {
            LayerError::Refused(refusal) => refusal.into(),
            LayerError::DatabaseNotFound => Failure::not_found("no such database"),
            LayerError::DatabaseExists => Failure::new(StatusCode::PRECONDITION_FAILED, "Duplicate database name"),
            LayerError::ShuttingDown | LayerError::Index(_) => unavailable(reason),
            // No retry makes it smaller.
            LayerError::Storage(code) if code.code() == TRANSACTION_TOO_LARGE => {
                Failure::new(StatusCode::PAYLOAD_TOO_LARGE, reason)
            }
            LayerError::Storage(_) => {
                tracing::warn!(error = reason, "the storage did not answer");
                unavailable(reason)
            }
            other => internal(&other),
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        let reason = refusal.to_string();
        match refusal {
            Refusal::DocumentNotFound(_) => Failure::not_found(reason),
            Refusal::AttachmentNotFound => Failure::not_found("missing attachment"),
            Refusal::Conflict => Failure::conflict("Document revision conflict"),
            Refusal::InvalidRevision => Failure::bad_request("Invalid revision ID"),
            Refusal::InvalidSequence => Failure::bad_request("Invalid sequence"),
            Refusal::InvalidDocument { what: Invalid::Member, .. } => Failure::bad_request(
                "user defined top level properties beginning with '_' are not allowed in document body",
            ),
            Refusal::InvalidDocument { what: Invalid::Id, .. } => Failure::bad_request("Invalid doc ID"),
            Refusal::InvalidDocument { .. }
            | Refusal::InvalidDesign { .. }
            | Refusal::InvalidSetting(_)
            | Refusal::InvalidAttachment => Failure::bad_request(reason),
            Refusal::IllegalDatabaseName(name) => Failure::bad_request(format!("Illegal database name: {name}")),
            Refusal::MissingStub { .. } => Failure::new(StatusCode::PRECONDITION_FAILED, reason),
            Refusal::DocumentTooLarge { .. } | Refusal::AttachmentTooLarge { .. } | Refusal::TooManyEdits => {
                Failure::new(StatusCode::PAYLOAD_TOO_LARGE, reason)
            }
            Refusal::Rejected { status, .. } => {
                Failure::new(StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), reason)
            }
            Refusal::DatabaseFull { .. } | Refusal::LocalDocumentsFull => {
                Failure::new(StatusCode::INSUFFICIENT_STORAGE, reason)
            }
            Refusal::Closed => Failure::closed(),
            Refusal::UploadSwept | Refusal::UserChanged => Failure::new(StatusCode::SERVICE_UNAVAILABLE, reason),
            Refusal::TooManyLeaves { .. } | Refusal::Forbidden(_) => Failure::new(StatusCode::FORBIDDEN, reason),
            Refusal::Unauthorized(_) => Failure::new(StatusCode::UNAUTHORIZED, reason),
            Refusal::NotJudged { because: NotJudged::Busy, .. } => {
                Failure::new(StatusCode::SERVICE_UNAVAILABLE, reason)
            }
            Refusal::NotJudged { because: NotJudged::TooMany, .. } => {
                Failure::new(StatusCode::TOO_MANY_REQUESTS, reason)
            }
            // The sync function's error text is for its author, who can test the function with `_sync`.
            Refusal::NotJudged { .. } => {
                Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "Exception in JS sync function")
            }
            // Only the server's own calls cause these refusals.
            other => internal(&other),
        }
    }
}

/// Logs an internal error, which the client does not see.
fn internal(error: &(dyn std::error::Error + 'static)) -> Failure {
    tracing::error!(error, "internal error");
    Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "see the server's log")
}
