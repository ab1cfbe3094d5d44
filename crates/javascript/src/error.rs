//! How a call ends without a result.

use std::time::Duration;

/// What a function, or its surroundings, answered instead of a result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// `throw({forbidden: ...})`
    #[error("forbidden: {0}")]
    Forbidden(String),
    /// `throw({unauthorized: ...})`
    #[error("unauthorized: {0}")]
    Unauthorized(String),
    /// There is no such function in the design document.
    #[error("missing function")]
    Missing,
    /// The design document is of this language, whose functions nobody runs.
    #[error("{0}")]
    Language(String),
    /// Its text is no function.
    #[error("{0}")]
    Compilation(String),
    /// Anything else that was thrown.
    #[error("{name}: {reason}")]
    Thrown {
        /// The error's name, or the thrown object's first member.
        name: String,
        /// What it says.
        reason: String,
    },
    /// It used the processor for too long.
    #[error("a function of a design document ran for more than {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// It took more memory or stack than it may.
    #[error("a function of a design document took more memory than it may")]
    OutOfResources,
    /// It has not run, or not to its end: too many calls are waiting, or waited for too long, or have too much memory, or others had
    /// the processor until its time was over. The same call may succeed later.
    #[error("too many functions of design documents are running or waiting to run")]
    Busy,
}

/// A result, or how a call ended without one.
pub type Result<T> = std::result::Result<T, Error>;
