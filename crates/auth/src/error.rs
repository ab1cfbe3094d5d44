//! Refusals in CouchDB's words.

use std::borrow::Cow;

/// The type of a refusal: a status and CouchDB's name of the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AuthErrorKind {
    /// 400 `bad_request`
    BadRequest,
    /// 401 `unauthorized`
    Unauthorized,
    /// 403 `forbidden`
    Forbidden,
    /// 404 `not_found`
    NotFound,
    /// 503 `service_unavailable`
    Unavailable,
}

impl AuthErrorKind {
    /// The status of the answer.
    pub fn status(self) -> u16 {
        match self {
            AuthErrorKind::BadRequest => 400,
            AuthErrorKind::Unauthorized => 401,
            AuthErrorKind::Forbidden => 403,
            AuthErrorKind::NotFound => 404,
            AuthErrorKind::Unavailable => 503,
        }
    }

    /// The answer's member `error`.
    pub fn error(self) -> &'static str {
        match self {
            AuthErrorKind::BadRequest => "bad_request",
            AuthErrorKind::Unauthorized => "unauthorized",
            AuthErrorKind::Forbidden => "forbidden",
            AuthErrorKind::NotFound => "not_found",
            AuthErrorKind::Unavailable => "service_unavailable",
        }
    }
}

/// A refusal. It never contains a secret, and quoted input is bounded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {reason}", kind.error())]
pub struct AuthError {
    /// The type.
    pub kind: AuthErrorKind,
    /// The answer's member `reason`.
    pub reason: Cow<'static, str>,
}

impl AuthError {
    /// Creates a refusal.
    pub fn new(kind: AuthErrorKind, reason: impl Into<Cow<'static, str>>) -> AuthError {
        AuthError { kind, reason: reason.into() }
    }

    pub(crate) fn bad_request(reason: impl Into<Cow<'static, str>>) -> AuthError {
        AuthError::new(AuthErrorKind::BadRequest, reason)
    }

    pub(crate) fn unauthorized(reason: impl Into<Cow<'static, str>>) -> AuthError {
        AuthError::new(AuthErrorKind::Unauthorized, reason)
    }

    pub(crate) fn forbidden(reason: impl Into<Cow<'static, str>>) -> AuthError {
        AuthError::new(AuthErrorKind::Forbidden, reason)
    }

    /// 404, as for a missing document.
    pub fn not_found() -> AuthError {
        AuthError::new(AuthErrorKind::NotFound, "missing")
    }

    /// A wrong name or password, without saying which.
    pub fn wrong_password() -> AuthError {
        AuthError::unauthorized("Name or password is incorrect.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_couchdbs_status_and_name() {
        let kinds =
            [AuthErrorKind::BadRequest, AuthErrorKind::Unauthorized, AuthErrorKind::Forbidden, AuthErrorKind::NotFound];
        let found = kinds.map(|kind| (kind.status(), kind.error()));
        assert_eq!(found, [(400, "bad_request"), (401, "unauthorized"), (403, "forbidden"), (404, "not_found")]);
        assert_eq!(AuthError::not_found().to_string(), "not_found: missing");
        let wrong = AuthError::wrong_password();
        assert_eq!((wrong.kind, &*wrong.reason), (AuthErrorKind::Unauthorized, "Name or password is incorrect."));
    }
}
