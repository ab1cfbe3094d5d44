//! Errors of calls.

use std::time::Duration;

/// The error of a function or of the system that runs it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// `throw({forbidden: ...})`
    #[error("forbidden: {0}")]
    Forbidden(String),
    /// `throw({unauthorized: ...})`
    #[error("unauthorized: {0}")]
    Unauthorized(String),
    /// The design document has no such function.
    #[error("missing function")]
    Missing,
    /// The design document has a language that the server does not run.
    #[error("{0}")]
    Language(String),
    /// The source is not a function.
    #[error("{0}")]
    Compilation(String),
    /// The function threw any other value.
    #[error("{name}: {reason}")]
    Thrown {
        /// The error's name, or the thrown object's first member.
        name: String,
        /// The error's message.
        reason: String,
    },
    /// The function exceeded its time limit.
    #[error("a function of a design document ran for more than {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// The function exceeded its limit of memory or stack.
    #[error("a function of a design document took more memory than it may")]
    OutOfResources,
    /// The call did not run, or not to its end: too many calls wait, the call waited too long, memory is short, or
    /// other calls used the processor until its time was over. The same call may succeed later.
    #[error("too many functions of design documents are running or waiting to run")]
    Busy,
}

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;
