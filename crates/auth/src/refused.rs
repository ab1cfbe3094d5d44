//! Refusals in CouchDB's words.

use std::borrow::Cow;

/// The type of a refusal: a status and CouchDB's name of the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefusalKind {
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

impl RefusalKind {
    /// The status of the answer.
    pub fn status(self) -> u16 {
        match self {
            RefusalKind::BadRequest => 400,
            RefusalKind::Unauthorized => 401,
            RefusalKind::Forbidden => 403,
            RefusalKind::NotFound => 404,
            RefusalKind::Unavailable => 503,
        }
    }

    /// The answer's member `error`.
    pub fn error(self) -> &'static str {
        match self {
            RefusalKind::BadRequest => "bad_request",
            RefusalKind::Unauthorized => "unauthorized",
            RefusalKind::Forbidden => "forbidden",
            RefusalKind::NotFound => "not_found",
            RefusalKind::Unavailable => "service_unavailable",
        }
    }
}

/// A refusal. It never contains a secret, and quoted input is bounded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {reason}", kind.error())]
pub struct Refused {
    /// The type.
    pub kind: RefusalKind,
    /// The answer's member `reason`.
    pub reason: Cow<'static, str>,
}

impl Refused {
    /// Creates a refusal.
    pub fn new(kind: RefusalKind, reason: impl Into<Cow<'static, str>>) -> Refused {
        Refused { kind, reason: reason.into() }
    }

    pub(crate) fn bad_request(reason: impl Into<Cow<'static, str>>) -> Refused {
        Refused::new(RefusalKind::BadRequest, reason)
    }

    pub(crate) fn unauthorized(reason: impl Into<Cow<'static, str>>) -> Refused {
        Refused::new(RefusalKind::Unauthorized, reason)
    }

    pub(crate) fn forbidden(reason: impl Into<Cow<'static, str>>) -> Refused {
        Refused::new(RefusalKind::Forbidden, reason)
    }

    /// 404, as for a missing document.
    pub fn not_found() -> Refused {
        Refused::new(RefusalKind::NotFound, "missing")
    }

    /// A wrong name or password, without saying which.
    pub fn wrong_password() -> Refused {
        Refused::unauthorized("Name or password is incorrect.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_couchdbs_status_and_name() {
        let kinds = [RefusalKind::BadRequest, RefusalKind::Unauthorized, RefusalKind::Forbidden, RefusalKind::NotFound];
        let found = kinds.map(|kind| (kind.status(), kind.error()));
        assert_eq!(found, [(400, "bad_request"), (401, "unauthorized"), (403, "forbidden"), (404, "not_found")]);
        assert_eq!(Refused::not_found().to_string(), "not_found: missing");
        let wrong = Refused::wrong_password();
        assert_eq!((wrong.kind, &*wrong.reason), (RefusalKind::Unauthorized, "Name or password is incorrect."));
    }
}
