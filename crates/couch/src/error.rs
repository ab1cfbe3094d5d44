//! Maps every failure to a status and CouchDB's `{"error","reason"}`. No other module does.

use std::borrow::Cow;

use flatbed_documents::DocumentError;
use flatbed_http::Rejection;
use flatbed_http::multipart::MultipartError;
use flatbed_javascript::{Error as FunctionError, InvalidResponse};
use flatbed_layer::json::{self, Limits, Object, Value};
use flatbed_layer::{
    DefinitionError, DesignFault, Error as LayerError, FunctionFailure, IndexFailure, Invalid, NotJudged, Refusal,
    RevId, ViewFailure,
};
use flatbed_service::{AccessError, AnswerError, FeedError, QueryError, SelectorError, SignInError};
use hyper::StatusCode;

use crate::term::write_term;

/// FoundationDB's `transaction_too_large`.
const TRANSACTION_TOO_LARGE: i32 = 2101;

/// A failed request, as the client sees it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{status} {error}: {reason}")]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    /// CouchDB's error word, or the name that a function threw.
    pub(crate) error: Cow<'static, str>,
    pub(crate) reason: String,
    /// The value of the `allow` header of a 405.
    pub(crate) allow: Option<&'static str>,
    /// Seconds after which a retry may succeed; sent as `retry-after`.
    pub(crate) retry_after_seconds: Option<u32>,
    /// True if the storage did not answer. If it has failed, the client is told what `/_up` tells.
    pub(crate) is_of_storage: bool,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(status: StatusCode, error: impl Into<Cow<'static, str>>, reason: impl Into<String>) -> Self {
        let (error, reason) = (error.into(), reason.into());
        Failure { status, error, reason, allow: None, retry_after_seconds: None, is_of_storage: false }
    }

    pub(crate) fn bad_request(reason: impl Into<String>) -> Self {
        Failure::new(StatusCode::BAD_REQUEST, "bad_request", reason)
    }

    pub(crate) fn query(reason: impl Into<String>) -> Self {
        Failure::new(StatusCode::BAD_REQUEST, "query_parse_error", reason)
    }

    pub(crate) fn not_found(reason: impl Into<String>) -> Self {
        Failure::new(StatusCode::NOT_FOUND, "not_found", reason)
    }

    /// 405; `allow` lists the allowed methods, such as `GET,HEAD`.
    pub(crate) fn method(allow: &'static str) -> Self {
        let reason = format!("Only {allow} allowed");
        Failure { allow: Some(allow), ..Failure::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", reason) }
    }

    /// 501 for a feature that CouchDB has and this version lacks.
    pub(crate) fn not_implemented(what: &str) -> Self {
        let reason = format!("{what}: not in this version of Flatbed.");
        Failure::new(StatusCode::NOT_IMPLEMENTED, "not_implemented", reason)
    }

    pub(crate) fn unauthorized(reason: &str) -> Self {
        Failure::new(StatusCode::UNAUTHORIZED, "unauthorized", reason)
    }

    /// 500 for a function whose response HTTP does not allow.
    pub(crate) fn invalid_response(reason: impl Into<String>) -> Self {
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "external_response_error", reason)
    }

    pub(crate) fn text(&self) -> Vec<u8> {
        Object::text(|object| {
            object.string("error", &self.error).string("reason", &self.reason);
        })
    }

    /// CouchDB's answer to a body that is not JSON.
    pub(crate) fn invalid_json() -> Self {
        Failure::bad_request("invalid UTF-8 JSON")
    }
}

impl From<Rejection> for Failure {
    fn from(refused: Rejection) -> Self {
        let Rejection { status, error, reason, retry_after_seconds } = refused;
        Failure { retry_after_seconds, ..Failure::new(status, error, reason) }
    }
}

impl From<DocumentError> for Failure {
    fn from(error: DocumentError) -> Self {
        match error {
            DocumentError::Malformed(reason) => Failure::bad_request(reason),
            DocumentError::WrongDigest => {
                Failure::new(StatusCode::BAD_REQUEST, "content_md5_mismatch", error.to_string())
            }
            DocumentError::Unsatisfiable => {
                Failure::new(StatusCode::RANGE_NOT_SATISFIABLE, "requested_range_not_satisfiable", error.to_string())
            }
            DocumentError::Refused(refused) => refused.into(),
            DocumentError::Layer(error) => error.into(),
        }
    }
}

impl From<AccessError> for Failure {
    fn from(denied: AccessError) -> Self {
        match denied {
            AccessError::Refused(refused) => refused.into(),
            AccessError::Layer(error) => error.into(),
        }
    }
}

impl From<flatbed_auth::AuthError> for Failure {
    fn from(refused: flatbed_auth::AuthError) -> Self {
        let status = StatusCode::from_u16(refused.kind.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Failure::new(status, refused.kind.error(), refused.reason)
    }
}

impl From<SignInError> for Failure {
    fn from(error: SignInError) -> Self {
        match error {
            SignInError::Refused(refused) => refused.into(),
            SignInError::TooMany => Failure::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", error.to_string()),
            SignInError::Layer(error) => error.into(),
        }
    }
}

impl From<FeedError> for Failure {
    fn from(error: FeedError) -> Self {
        match error {
            FeedError::Layer(error) => error.into(),
            FeedError::Function(error) => error.into(),
            FeedError::Selector(error) => error.into(),
            FeedError::MissingMember(_) => Failure::not_found(error.to_string()),
            FeedError::Lost(refused) => refused.into(),
        }
    }
}

impl From<FunctionError> for Failure {
    fn from(error: FunctionError) -> Failure {
        let reason = error.to_string();
        let internal = |word| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, word, reason.clone());
        match error {
            FunctionError::Forbidden(reason) => Failure::new(StatusCode::FORBIDDEN, "forbidden", reason),
            FunctionError::Unauthorized(reason) => Failure::unauthorized(&reason),
            FunctionError::Missing => Failure::not_found(reason),
            FunctionError::Language(_) => internal("unknown_query_language"),
            FunctionError::Compilation(_) => internal("compilation_error"),
            FunctionError::Thrown { .. } => internal("unknown_error"),
            FunctionError::TimedOut(_) => internal("timeout"),
            FunctionError::OutOfResources => internal("os_process_error"),
            FunctionError::Busy => Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason),
        }
    }
}

/// Characters of an invalid response member that the error text shows.
const TERM_SHOWN_MAX: usize = 1_000;

impl From<AnswerError> for Failure {
    fn from(error: AnswerError) -> Failure {
        match error {
            AnswerError::Layer(error) => error.into(),
            AnswerError::Function(FunctionError::Thrown { name, reason }) => {
                Failure::new(thrown_status(&name), name, reason)
            }
            AnswerError::Function(error) => error.into(),
            AnswerError::MissingMember(_) => Failure::not_found(error.to_string()),
            AnswerError::Response(InvalidResponse::Member { name, value }) => {
                let value = json::parse(value.as_bytes(), &Limits::default()).unwrap_or(Value::Null);
                let mut term = String::new();
                write_term(&Value::String(name.into()), &mut term);
                term.push(',');
                write_term(&value, &mut term);
                // A function may have returned a response of megabytes.
                let shown: String = term.chars().take(TERM_SHOWN_MAX).collect();
                Failure::invalid_response(format!("Invalid data from external server: {{{shown}}}"))
            }
            AnswerError::Response(error) => Failure::invalid_response(error.to_string()),
        }
    }
}

/// Maps the name of an error thrown by a show, list or update function to its status: CouchDB's status for CouchDB's
/// own names, else 500.
fn thrown_status(name: &str) -> StatusCode {
    match name {
        "bad_request" | "query_parse_error" | "illegal_docid" | "doc_validation" | "invalid_design_doc" => {
            StatusCode::BAD_REQUEST
        }
        "not_found" => StatusCode::NOT_FOUND,
        "method_not_allowed" => StatusCode::METHOD_NOT_ALLOWED,
        "not_acceptable" => StatusCode::NOT_ACCEPTABLE,
        "conflict" => StatusCode::CONFLICT,
        "gone" => StatusCode::GONE,
        "missing_stub" => StatusCode::PRECONDITION_FAILED,
        "request_entity_too_large" => StatusCode::PAYLOAD_TOO_LARGE,
        "bad_content_type" => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl From<SelectorError> for Failure {
    fn from(error: SelectorError) -> Self {
        let reason = error.to_string();
        match error {
            SelectorError::Invalid(_) | SelectorError::Exhausted(_) => Failure::bad_request(reason),
            SelectorError::Busy => Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason),
            SelectorError::ShuttingDown => LayerError::ShuttingDown.into(),
            SelectorError::BrokenOff(_) => {
                Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error", reason)
            }
        }
    }
}

impl From<QueryError> for Failure {
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::Refused(refused) => {
                let status = StatusCode::from_u16(refused.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                Failure::new(status, refused.error, refused.reason)
            }
            QueryError::Selector(error) => error.into(),
            QueryError::Layer(error) => error.into(),
        }
    }
}

impl From<MultipartError> for Failure {
    fn from(error: MultipartError) -> Self {
        Failure::bad_request(error.to_string())
    }
}

impl From<LayerError> for Failure {
    fn from(error: LayerError) -> Self {
        let reason = error.to_string();
        match error {
            LayerError::Refused(refusal) => refusal.into(),
            LayerError::View(failure) => failure.into(),
            LayerError::Index(IndexFailure::Building) => {
                let failure = Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason);
                Failure { retry_after_seconds: Some(1), ..failure }
            }
            LayerError::Index(_) => Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason),
            LayerError::DatabaseNotFound => Failure::not_found(reason),
            LayerError::DatabaseExists => Failure::new(StatusCode::PRECONDITION_FAILED, "file_exists", reason),
            LayerError::ShuttingDown => Failure::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", reason),
            // A retry cannot make the transaction smaller.
            LayerError::Storage(code) if code.code() == TRANSACTION_TOO_LARGE => {
                Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", reason)
            }
            LayerError::FormatTooNew { .. } | LayerError::FeatureUnknown { .. } => {
                tracing::error!(error = reason, "data of a newer version");
                Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "format_too_new", reason)
            }
            LayerError::FormatTooOld { .. } => {
                tracing::error!(error = reason, "data of an older version");
                Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "format_too_old", reason)
            }
            LayerError::Storage(_) => {
                tracing::warn!(error = reason, "the storage did not answer");
                let failure = Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason);
                Failure { is_of_storage: true, ..failure }
            }
            // The log has the internal error; the client does not see it.
            other => {
                tracing::error!(error = %other, "internal error");
                Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error", "see the server's log")
            }
        }
    }
}

impl From<ViewFailure> for Failure {
    fn from(failure: ViewFailure) -> Self {
        let reason = failure.to_string();
        let internal = |word: &'static str, reason| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, word, reason);
        let busy = |reason| Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason);
        match failure {
            ViewFailure::Missing => Failure::not_found(reason),
            ViewFailure::Definition(DefinitionError::Language(language)) => {
                internal("unknown_query_language", language)
            }
            ViewFailure::Definition(DefinitionError::Reduce(_) | DefinitionError::WrittenReduce(_)) => {
                Failure::new(StatusCode::BAD_REQUEST, "invalid_design_doc", reason)
            }
            ViewFailure::Function(failure) => match failure {
                FunctionFailure::Compilation(_) => Failure::new(StatusCode::BAD_REQUEST, "compilation_error", reason),
                FunctionFailure::Thrown { name, reason } => {
                    Failure::new(StatusCode::INTERNAL_SERVER_ERROR, name, reason)
                }
                FunctionFailure::TimedOut(_) => internal("timeout", reason),
                FunctionFailure::OutOfResources(_) => internal("os_process_error", reason),
                FunctionFailure::Busy(_) => busy(reason),
                FunctionFailure::TooMuch(_) | FunctionFailure::NotRun => internal("internal_server_error", reason),
            },
            ViewFailure::DatabaseFull { .. } => {
                Failure::new(StatusCode::INSUFFICIENT_STORAGE, "insufficient_storage", reason)
            }
            ViewFailure::TooManyGroups => Failure::new(StatusCode::FORBIDDEN, "forbidden", reason),
            // The design document changed during the query.
            ViewFailure::Changed => Failure::not_found(reason),
            _ => busy(reason),
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let reason = refusal.to_string();
        match refusal {
            Refusal::DocumentNotFound(_) | Refusal::AttachmentNotFound => Failure::not_found(reason),
            Refusal::Conflict => Failure::new(StatusCode::CONFLICT, "conflict", reason),
            Refusal::InvalidDocument { what, .. } => {
                let error = match what {
                    Invalid::Id => "illegal_docid",
                    Invalid::Partition => "illegal_partition",
                    Invalid::Member => "doc_validation",
                    Invalid::Document => "bad_request",
                };
                Failure::new(StatusCode::BAD_REQUEST, error, reason)
            }
            Refusal::InvalidDesign { what, .. } => match what {
                DesignFault::Member => Failure::new(StatusCode::BAD_REQUEST, "invalid_design_doc", reason),
                DesignFault::NoFunction => Failure::not_found(reason),
                DesignFault::Selector(error) => Failure::new(StatusCode::BAD_REQUEST, error, reason),
                DesignFault::Compilation => Failure::new(StatusCode::BAD_REQUEST, "compilation_error", reason),
            },
            Refusal::InvalidSetting(_)
            | Refusal::InvalidRevision
            | Refusal::InvalidSequence
            | Refusal::NoSuchFeed(_)
            | Refusal::InvalidAttachment => Failure::bad_request(reason),
            Refusal::IllegalDatabaseName(_) => Failure::new(StatusCode::BAD_REQUEST, "illegal_database_name", reason),
            Refusal::MissingStub { .. } => Failure::new(StatusCode::PRECONDITION_FAILED, "missing_stub", reason),
            Refusal::DocumentTooLarge { .. } => {
                Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "document_too_large", reason)
            }
            Refusal::AttachmentTooLarge { bytes_max } => {
                let reason = format!("attachments are larger than {bytes_max} bytes");
                Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "attachment_too_large", reason)
            }
            Refusal::DatabaseFull { .. } | Refusal::LocalDocumentsFull => {
                Failure::new(StatusCode::INSUFFICIENT_STORAGE, "insufficient_storage", reason)
            }
            Refusal::PartitionFull { .. } => Failure::new(StatusCode::FORBIDDEN, "partition_overflow", reason),
            Refusal::Closed => Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason),
            Refusal::UploadSwept => Failure::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", reason),
            // A replicator counts 403 as the refusal of this document and continues.
            Refusal::TooManyLeaves { .. } => Failure::new(StatusCode::FORBIDDEN, "forbidden", reason),
            // Replicators halve the batch after this status.
            Refusal::TooManyEdits => Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", reason),
            Refusal::Forbidden(_) => Failure::new(StatusCode::FORBIDDEN, "forbidden", reason),
            Refusal::Unauthorized(_) => Failure::unauthorized(&reason),
            Refusal::Rejected { status: 401, .. } => Failure::unauthorized(&reason),
            Refusal::Rejected { status, .. } => {
                let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                Failure::new(status, word_of(status), reason)
            }
            Refusal::NotJudged { because, .. } => {
                let internal = StatusCode::INTERNAL_SERVER_ERROR;
                let (status, error) = match because {
                    NotJudged::Busy => (StatusCode::SERVICE_UNAVAILABLE, "service_unavailable"),
                    NotJudged::TooMany => (StatusCode::TOO_MANY_REQUESTS, "too_many_requests"),
                    NotJudged::Language => (internal, "unknown_query_language"),
                    NotJudged::Compilation => (internal, "compilation_error"),
                    NotJudged::Thrown => (internal, "unknown_error"),
                    NotJudged::TimedOut => (internal, "timeout"),
                    NotJudged::OutOfResources => (internal, "os_process_error"),
                    NotJudged::Internal => (internal, "internal_server_error"),
                };
                Failure::new(status, error, reason)
            }
            Refusal::SelectorExhausted | Refusal::AmbiguousIndex => Failure::bad_request(reason),
            Refusal::NoSelectorIndex => Failure::not_found(reason),
            // The indexes change faster than the query can be planned, the index of a running query was deleted, or
            // the user's rights change faster than the write can commit.
            Refusal::IndexGone | Refusal::UserChanged => {
                Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason)
            }
            // Only the server's own calls cause these refusals, and their callers handle them.
            other => {
                tracing::error!(error = %other, "internal error");
                Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error", "see the server's log")
            }
        }
    }
}

/// Returns the error word for a status without a more specific one.
fn word_of(status: StatusCode) -> &'static str {
    match status {
        StatusCode::BAD_REQUEST => "bad_request",
        StatusCode::FORBIDDEN => "forbidden",
        StatusCode::NOT_FOUND => "not_found",
        StatusCode::CONFLICT => "conflict",
        StatusCode::PRECONDITION_FAILED => "precondition_failed",
        StatusCode::PAYLOAD_TOO_LARGE => "too_large",
        StatusCode::TOO_MANY_REQUESTS => "too_many_requests",
        StatusCode::SERVICE_UNAVAILABLE => "service_unavailable",
        status if status.is_server_error() => "internal_server_error",
        _ => "rejected",
    }
}

pub(crate) fn parse_rev(text: &str) -> Result<RevId> {
    text.parse().map_err(|_| Failure::bad_request("Invalid rev format"))
}
