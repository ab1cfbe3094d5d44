//! Refusals and failures: the only place where they get their status.
//!
//! As with Mozilla's server, a client gets a status and a number; the log has the reason.

use flatbed_http::Rejection;
use flatbed_syncstorage::{Error, Timestamp};
use hyper::StatusCode;

/// The time after which devices retry when the storage has failed.
const RETRY_AFTER_SECONDS: u32 = 10;

/// The numbers in the bodies of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// Any other error.
    Other = 0,
    /// A value that must be an object, or a list of objects.
    InvalidObject = 8,
    /// The quota is exceeded.
    OverQuota = 14,
    /// A limit is exceeded.
    OverLimit = 17,
}

/// A request that is refused or failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{status}: {reason}")]
pub(crate) struct Failure {
    /// 304, 4xx or 5xx.
    pub status: StatusCode,
    /// The number in the body; `None`: there is no body.
    pub code: Option<Code>,
    /// The reason, for the log.
    pub reason: String,
    /// The time of the requested object.
    pub modified: Option<Timestamp>,
    /// The user's time, if the storage returned it.
    pub now: Option<Timestamp>,
    /// The time after which a retry may succeed, if known.
    pub retry_after_seconds: Option<u32>,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(status: StatusCode, code: Code, reason: impl Into<String>) -> Failure {
        let reason = reason.into();
        Failure { status, code: Some(code), reason, modified: None, now: None, retry_after_seconds: None }
    }

    /// Returns 400 `0`.
    pub(crate) fn bad_request(reason: impl Into<String>) -> Failure {
        Failure::new(StatusCode::BAD_REQUEST, Code::Other, reason)
    }

    /// Returns 400 `8`.
    pub(crate) fn invalid_object(reason: impl Into<String>) -> Failure {
        Failure::new(StatusCode::BAD_REQUEST, Code::InvalidObject, reason)
    }

    /// Returns 400 `17`.
    pub(crate) fn over_limit(reason: impl Into<String>) -> Failure {
        Failure::new(StatusCode::BAD_REQUEST, Code::OverLimit, reason)
    }

    /// Returns 401 `0`.
    pub(crate) fn unauthorized(reason: impl Into<String>) -> Failure {
        Failure::new(StatusCode::UNAUTHORIZED, Code::Other, reason)
    }

    /// Returns 404 `0`.
    pub(crate) fn not_found() -> Failure {
        Failure::new(StatusCode::NOT_FOUND, Code::Other, "there is no such thing")
    }

    /// Returns 406 `0`.
    pub(crate) fn not_acceptable() -> Failure {
        Failure::new(StatusCode::NOT_ACCEPTABLE, Code::Other, "nothing of what is accepted is known here")
    }

    /// Returns 415 `0`.
    pub(crate) fn unsupported_media_type() -> Failure {
        Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, Code::Other, "the body has another type")
    }

    /// Returns 500 `0`.
    pub(crate) fn internal(reason: impl Into<String>) -> Failure {
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, Code::Other, reason)
    }

    /// Returns 304 or 412, which have no body.
    fn unmet(status: StatusCode, modified: Timestamp, now: Timestamp) -> Failure {
        let reason = "a condition does not hold".to_owned();
        Failure { status, code: None, reason, modified: Some(modified), now: Some(now), retry_after_seconds: None }
    }
}

impl From<&Rejection> for Failure {
    fn from(refused: &Rejection) -> Failure {
        let code = match refused.status {
            StatusCode::PAYLOAD_TOO_LARGE => Code::OverLimit,
            _ => Code::Other,
        };
        let is_unavailable = refused.status == StatusCode::SERVICE_UNAVAILABLE;
        let retry_after_seconds = refused.retry_after_seconds.or_else(|| is_unavailable.then_some(RETRY_AFTER_SECONDS));
        Failure { retry_after_seconds, ..Failure::new(refused.status, code, refused.reason.clone()) }
    }
}

impl From<Rejection> for Failure {
    fn from(refused: Rejection) -> Failure {
        Failure::from(&refused)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::NotFound { now } => Failure { now: Some(now), ..Failure::not_found() },
            Error::NotModified { modified, now } => Failure::unmet(StatusCode::NOT_MODIFIED, modified, now),
            Error::Modified { modified, now } => Failure::unmet(StatusCode::PRECONDITION_FAILED, modified, now),
            Error::BatchTooLarge => Failure::over_limit(error.to_string()),
            Error::OverQuota => Failure::new(StatusCode::FORBIDDEN, Code::OverQuota, error.to_string()),
            Error::BatchNotFound | Error::TooMany(_) | Error::OutOfBounds(_) | Error::BadOffset => {
                Failure::bad_request(error.to_string())
            }
            Error::Storage(_) | Error::Busy | Error::Unknown | Error::Changed => Failure {
                retry_after_seconds: Some(RETRY_AFTER_SECONDS),
                ..Failure::new(StatusCode::SERVICE_UNAVAILABLE, Code::Other, error.to_string())
            },
            Error::Corrupt(_) | Error::Format(_) | Error::NoRandomness => Failure::internal(error.to_string()),
        }
    }
}
