//! Errors of replications.

use flatbed_client::UrlError;

/// The reason why a replication did not begin or ended. No message contains a password or a header's value.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The description of the replication is invalid.
    #[error("{0}")]
    InvalidSpec(String),
    /// The URL of an endpoint is invalid.
    #[error("`{0}`: {1}")]
    Url(&'static str, UrlError),
    /// A database does not exist.
    #[error("could not open {0}")]
    DatabaseNotFound(String),
    /// A peer denies access.
    #[error("unauthorized to access or create database {0}")]
    Unauthorized(String),
    /// A peer is unreachable, or a connection broke. A retry may succeed.
    #[error("{0}: {1}")]
    Connection(String, String),
    /// A peer's host has no address that this replication may reach, or none at all. The error does not tell which.
    #[error("{0}: the host has no address that replications of users may reach")]
    OutOfBounds(String),
    /// The rights of the replication's owner are unknown, or have changed since it began.
    #[error("{0}")]
    Owner(&'static str),
    /// The account of the replication's owner does not exist, or no longer.
    #[error("the account of the replication's owner does not exist")]
    OwnerGone,
    /// The replication was requested while everyone was an administrator, and no administrator has confirmed it since.
    #[error("it was requested while everyone was an administrator: an administrator must write it again")]
    OwnerUnknown,
    /// A peer answered with an error.
    #[error("{what}: {status} {error}: {reason}")]
    Status {
        /// The request and the peer.
        what: String,
        /// The HTTP status.
        status: u16,
        /// `error` of the answer.
        error: String,
        /// `reason` of the answer.
        reason: String,
    },
    /// A peer's answer violates the protocol.
    #[error("{0}: {1}")]
    Protocol(String, &'static str),
    /// A peer's answer exceeds its limit.
    #[error("{0}: {1}")]
    TooLarge(String, &'static str),
    /// Other replications occupy the memory for answers. A retry may succeed.
    #[error("{0}: other replications occupy the memory for answers")]
    NoRoom(String),
    /// The process cannot tell if it still owns the replication. A retry may succeed.
    #[error("it is unknown whether another process has taken over this replication: {0}")]
    Unsure(String),
    /// Another process runs this replication now.
    #[error("another process has taken over this replication")]
    Superseded,
    /// The system provides no random numbers.
    #[error("the operating system provides no random numbers")]
    NoRandomness,
}

/// A result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Returns whether a retry may succeed soon.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Connection(..) | Error::NoRoom(_) => true,
            Error::Status { status, .. } => {
                *status >= 500 && !matches!(status, 501 | 507) || matches!(status, 408 | 429)
            }
            _ => false,
        }
    }

    pub(crate) fn is_storage_full(&self) -> bool {
        matches!(self, Error::Status { status: 507, .. })
    }

    /// Returns whether no retry can succeed: the description is invalid, or its owner is gone.
    pub fn is_permanent(&self) -> bool {
        matches!(self, Error::InvalidSpec(_) | Error::Url(..) | Error::OwnerUnknown)
    }

    /// Returns CouchDB's `error` for answers.
    pub fn error_name(&self) -> &'static str {
        match self {
            Error::InvalidSpec(_) | Error::Url(..) => "bad_request",
            Error::DatabaseNotFound(_) => "db_not_found",
            Error::Unauthorized(_) | Error::Owner(_) | Error::OwnerGone | Error::OwnerUnknown => "unauthorized",
            Error::OutOfBounds(_) => "forbidden",
            Error::Connection(..) => "replication_connection_failed",
            _ => "replication_failed",
        }
    }
}
