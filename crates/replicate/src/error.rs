//! Why a replication does not begin, or does not go on.

use flatbed_client::UrlError;

/// What went wrong. No message holds a password or a header's value.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The description of the replication makes no sense.
    #[error("{0}")]
    InvalidSpec(String),
    /// An endpoint's address is none.
    #[error("`{0}`: {1}")]
    Url(&'static str, UrlError),
    /// A database is not there.
    #[error("could not open {0}")]
    DatabaseNotFound(String),
    /// A peer does not let us.
    #[error("unauthorized to access or create database {0}")]
    Unauthorized(String),
    /// A peer cannot be reached, or a connection broke. Trying again may help.
    #[error("{0}: {1}")]
    Connection(String, String),
    /// A peer's host has no address that this replication may reach, or none at all: which of them is not told.
    #[error("{0}: the host has no address that replications of users may reach")]
    OutOfBounds(String),
    /// It is not known what rights who asked for the replication has, or they are others than when it began.
    #[error("{0}")]
    Owner(&'static str),
    /// Who asked for the replication has not, or not any more, the account that it runs with.
    #[error("nobody has the account of who asked for it")]
    OwnerGone,
    /// Anybody may have asked for it, as everyone was an administrator, and nobody says now that it is to go on.
    #[error("it was asked for while everyone was an administrator: one of those there are now has to write it again")]
    OwnerUnknown,
    /// A peer answered with an error.
    #[error("{what}: {status} {error}: {reason}")]
    Status {
        /// What was asked of whom.
        what: String,
        /// HTTP's.
        status: u16,
        /// `error` of the answer.
        error: String,
        /// `reason` of the answer.
        reason: String,
    },
    /// A peer's answer is not what the protocol says.
    #[error("{0}: {1}")]
    Protocol(String, &'static str),
    /// A peer's answer is larger than is taken.
    #[error("{0}: {1}")]
    TooLarge(String, &'static str),
    /// Other replications hold what memory there is for peers' answers. Trying again may help.
    #[error("{0}: there is no memory left for answers, as other replications need it")]
    NoRoom(String),
    /// Whether this replication is still ours could not be found out. Trying again may help.
    #[error("whether another process has taken over this replication is not known: {0}")]
    Unsure(String),
    /// Another process runs this replication now.
    #[error("another process has taken over this replication")]
    Superseded,
    /// The system gives no randomness.
    #[error("the operating system gives no randomness")]
    NoRandomness,
}

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Whether another attempt soon may go better.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Connection(..) | Error::NoRoom(_) => true,
            Error::Status { status, .. } => {
                *status >= 500 && !matches!(status, 501 | 507) || matches!(status, 408 | 429)
            }
            _ => false,
        }
    }

    /// Whether a peer has no storage left.
    pub(crate) fn is_storage_full(&self) -> bool {
        matches!(self, Error::Status { status: 507, .. })
    }

    /// Whether no attempt will ever go better: the description itself is wrong, or nobody's.
    pub fn is_permanent(&self) -> bool {
        matches!(self, Error::InvalidSpec(_) | Error::Url(..) | Error::OwnerUnknown)
    }

    /// CouchDB's word for it in answers.
    pub fn word(&self) -> &'static str {
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
