//! The refusals of the token server, in its own form: a word, and the wrong part of the request.

use flatbed_flatten::json::Object;
use flatbed_http::Reply;
use flatbed_syncstorage::Error;
use flatbed_syncstorage::accounts::{Refusal, StateRefusal};
use hyper::StatusCode;

use crate::reply;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TokenFailure {
    pub status: StatusCode,
    /// The status word.
    word: &'static str,
    /// `header`, `url` or `body`.
    location: &'static str,
    /// The wrong name in it.
    name: String,
    description: &'static str,
    /// The reason, for the log.
    pub reason: String,
}

impl TokenFailure {
    /// Returns 401 without details.
    fn of(word: &'static str, reason: impl Into<String>) -> TokenFailure {
        TokenFailure {
            status: StatusCode::UNAUTHORIZED,
            word,
            location: "body",
            name: String::new(),
            description: "Unauthorized",
            reason: reason.into(),
        }
    }

    pub(super) fn unauthorized(reason: &str) -> TokenFailure {
        TokenFailure::of("error", reason)
    }

    pub(super) fn scheme() -> TokenFailure {
        TokenFailure {
            description: "Unsupported",
            ..TokenFailure::of("error", "the Authorization header is no bearer token")
        }
    }

    /// Returns the failure for an invalid bearer token or `X-KeyID`.
    pub(super) fn credentials(reason: impl Into<String>) -> TokenFailure {
        TokenFailure::of("invalid-credentials", reason)
    }

    /// Returns the failure for a missing `X-KeyID`.
    pub(super) fn no_key_id() -> TokenFailure {
        let description = "Missing X-KeyID header";
        TokenFailure { location: "header", description, ..TokenFailure::of("invalid-key-id", description) }
    }

    /// Returns the failure for an `X-Client-State` that is no hexadecimal text.
    pub(super) fn malformed_client_state() -> TokenFailure {
        let description = "Invalid client state value";
        TokenFailure {
            status: StatusCode::BAD_REQUEST,
            location: "header",
            name: "X-Client-State".to_owned(),
            description,
            ..TokenFailure::of("error", description)
        }
    }

    /// Returns the failure for an `X-Client-State` that differs from that of `X-KeyID`.
    pub(super) fn other_client_state() -> TokenFailure {
        TokenFailure::of("invalid-client-state", "X-Client-State is not that of X-KeyID")
    }

    /// Returns 404 for another service.
    pub(super) fn unsupported(name: &str, description: &'static str) -> TokenFailure {
        let name = name.to_owned();
        let location = "url";
        TokenFailure {
            status: StatusCode::NOT_FOUND,
            location,
            name,
            description,
            ..TokenFailure::of("error", description)
        }
    }

    /// Returns 400.
    pub(super) fn bad_request(reason: &str) -> TokenFailure {
        let description = "Bad request";
        TokenFailure { status: StatusCode::BAD_REQUEST, description, ..TokenFailure::of("error", reason) }
    }

    /// Returns 500.
    pub(super) fn internal(reason: impl Into<String>) -> TokenFailure {
        let (status, description) = (StatusCode::INTERNAL_SERVER_ERROR, "Server error");
        TokenFailure { status, location: "internal", description, ..TokenFailure::of("internal-error", reason) }
    }

    /// Returns 503.
    pub(super) fn unavailable(reason: impl Into<String>) -> TokenFailure {
        TokenFailure { status: StatusCode::SERVICE_UNAVAILABLE, ..TokenFailure::internal(reason) }
    }

    pub(super) fn refused(refusal: Refusal) -> TokenFailure {
        let reason = refusal.to_string();
        match refusal {
            Refusal::Generation => TokenFailure::of("invalid-generation", reason),
            Refusal::KeysChangedAt | Refusal::KeysBeyondGeneration => TokenFailure::of("invalid-keysChangedAt", reason),
            Refusal::Closed => TokenFailure {
                status: StatusCode::FORBIDDEN,
                description: "New users are not allowed",
                ..TokenFailure::of("new-users-disabled", reason)
            },
            Refusal::ClientState(refusal) => TokenFailure {
                location: "header",
                name: "X-Client-State".to_owned(),
                description: match refusal {
                    StateRefusal::Stale => "Unacceptable client-state value stale value",
                    StateRefusal::Empty => "Unacceptable client-state value empty string",
                    StateRefusal::SameGeneration => {
                        "Unacceptable client-state value new value with no generation change"
                    }
                    StateRefusal::SameKeysChangedAt => {
                        "Unacceptable client-state value new value with no keys_changed_at change"
                    }
                },
                ..TokenFailure::of("invalid-client-state", reason)
            },
        }
    }

    /// Returns the failure for an error of the storage, or for stored data of an unknown format.
    pub(super) fn of_storage(error: &Error) -> TokenFailure {
        match error {
            Error::OutOfBounds(_) => TokenFailure::credentials(error.to_string()),
            Error::Storage(_) | Error::Busy | Error::Unknown | Error::Changed => {
                TokenFailure::unavailable(error.to_string())
            }
            error => TokenFailure::internal(error.to_string()),
        }
    }

    pub(super) fn reply(&self) -> Reply {
        let text = Object::text(|text| {
            text.string("status", self.word);
            let mut errors = text.array("errors");
            let mut error = errors.object();
            error.string("location", self.location).string("name", &self.name).string("description", self.description);
            error.end();
            errors.end();
        });
        let mut reply = reply::json(text);
        reply.status = self.status;
        reply
    }
}
