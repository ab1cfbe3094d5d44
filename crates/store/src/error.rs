//! The errors of the layer, in terms of documents and databases.

use flatbed_kit::{Corruption, NoRandomness, TransactionError, storage_error_text};
use foundationdb::FdbError;
use tokio::task::JoinError;

use crate::view_definition::DefinitionError;
use crate::view_functions::FunctionFailure;

/// The reason for which a document was not found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotFound {
    /// There is no such document, or no such revision of it. CouchDB's reason "missing".
    Missing,
    /// The winner is a tombstone. CouchDB's reason "deleted".
    Deleted,
}

/// The reason for which an operation of the layer failed: its object does not exist, the storage failed, or, as
/// [`Error::Refused`], the request was refused.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request was refused; the storage works.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A view cannot be read.
    #[error(transparent)]
    View(#[from] ViewFailure),
    /// A query does not wait for an index that is being built.
    #[error(transparent)]
    Index(#[from] IndexFailure),
    /// There is no database of that name.
    #[error("Database does not exist.")]
    DatabaseNotFound,
    /// A database of that name exists already.
    #[error("The database could not be created, the file already exists.")]
    DatabaseExists,
    /// The stored data was written by a newer Flatbed.
    #[error("{what} has format {found}, this flatbed knows up to {known}: use a newer flatbed")]
    FormatTooNew {
        /// The record.
        what: String,
        /// Its format version.
        found: u32,
        /// The newest version that this binary reads.
        known: u32,
    },
    /// The stored data was written by an older Flatbed, in a format that this one does not read.
    #[error(
        "{what} has format {found}, and this flatbed reads only {known}: dump the databases with the flatbed that wrote them, \
         and load them into a new store"
    )]
    FormatTooOld {
        /// The record.
        what: String,
        /// Its format version.
        found: u32,
        /// The version that this binary reads.
        known: u32,
    },
    /// A record names a feature that this program does not support.
    #[error("{what} uses {feature:?}, which this flatbed does not know: use a newer flatbed")]
    FeatureUnknown {
        /// The record.
        what: String,
        /// The feature's name.
        feature: String,
    },
    /// The store has versions that the cluster has not reached: it was restored from another cluster's backup.
    #[error(
        "the store's newest change is at version {newest}, and the cluster is at {now} only: it was restored, and must go \
         through `flatbed renew` first"
    )]
    StampsAhead {
        /// The version of the newest change.
        newest: u64,
        /// The version of the cluster.
        now: u64,
    },
    /// The root has no keys.
    #[error("there is nothing of Flatbed's under this root")]
    StoreNotFound,
    /// The stored data cannot be decoded.
    #[error("stored data cannot be read: {0}")]
    Corrupt(String),
    /// FoundationDB returned an error that retries do not mend, or the retry limit was reached.
    #[error("storage: {}", storage_error_text(.0))]
    Storage(FdbError),
    /// The server is stopping.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// A task panicked.
    #[error("an internal task failed: {0}")]
    BrokenOff(String),
    /// The system returned no random bytes.
    #[error("the system returned no random bytes")]
    NoRandomness,
}

/// The reason for which a view cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ViewFailure {
    /// The design document has no view of that name.
    #[error("missing_named_view")]
    Missing,
    /// The design document's definition of its views is invalid.
    #[error(transparent)]
    Definition(#[from] DefinitionError),
    /// A function of the group failed, so none of its views can be built.
    #[error(transparent)]
    Function(#[from] FunctionFailure),
    /// The database has reached its limit of view groups.
    #[error("the database has too many design documents with views")]
    TooManyGroups,
    /// The database has reached its bound, so the view gets no further rows.
    #[error("the view is not built: the database has reached its limit of {bytes_max} bytes")]
    DatabaseFull {
        /// See [`Refusal::DatabaseFull`].
        bytes_max: u64,
    },
    /// The limit of queries that wait for view groups is reached.
    #[error("too many queries are waiting for views")]
    TooManyWaiting,
    /// The group could not be brought up to date within the time limit.
    #[error("the view cannot be brought up to date now: {0}")]
    Stuck(String),
    /// The design document was changed or deleted since the query began, or its group is being rebuilt.
    #[error("the view was changed while it was read")]
    Changed,
}

/// The reason for which a query does not wait for an index.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IndexFailure {
    /// The limit of queries that wait for indexes is reached.
    #[error("too many queries are waiting for indexes")]
    TooManyWaiting,
    /// The index could not be built for some time; the builder keeps trying.
    #[error("the index cannot be built now: {0}")]
    Stuck(String),
    /// A feed reads the index, and feeds do not wait.
    #[error("the index is being built")]
    Building,
}

/// The reason for which a request was refused. The storage works, and no refused edit was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The edit's parent is not the current leaf.
    #[error("Document update conflict.")]
    Conflict,
    /// There is no such document or revision.
    #[error("{}", match .0 { NotFound::Missing => "missing", NotFound::Deleted => "deleted" })]
    DocumentNotFound(NotFound),
    /// The revision has no attachment of that name.
    #[error("Document is missing attachment")]
    AttachmentNotFound,
    /// The document breaks a rule for documents.
    #[error("{reason}")]
    InvalidDocument {
        /// The part that breaks the rule.
        what: Invalid,
        /// The reason, for the client.
        reason: String,
    },
    /// The text is not a revision id.
    #[error("Invalid rev format")]
    InvalidRevision,
    /// The text is not a sequence of this service.
    #[error("Malformed sequence supplied in 'since' parameter.")]
    InvalidSequence,
    /// The feed cannot be read in the requested way.
    #[error("{0}")]
    NoSuchFeed(&'static str),
    /// The name breaks CouchDB's rule for names of databases.
    #[error(
        "Name: '{0}'. Only lowercase characters (a-z), digits (0-9), and any of the characters _, $, (, ), +, -, and / \
         are allowed. Must begin with a letter."
    )]
    IllegalDatabaseName(String),
    /// The local documents of the database or the user have reached their limit of bytes.
    #[error("There is no room for more local documents: delete some.")]
    LocalDocumentsFull,
    /// A setting is out of its range.
    #[error("{0}")]
    InvalidSetting(String),
    /// The document is large, but the request was for a small one.
    #[error("the document is large")]
    LargeDocument,
    /// The body exceeds the limit of a document.
    #[error("{document_id}")]
    DocumentTooLarge {
        /// The document's id, which CouchDB returns as the reason.
        document_id: String,
        /// The limit.
        bytes_max: u64,
    },
    /// An attachment exceeds its limit, or there are too many.
    #[error("attachment")]
    AttachmentTooLarge {
        /// The limit.
        bytes_max: u64,
    },
    /// The data is not gzip as the client said.
    #[error("The attachment's data is no gzip")]
    InvalidAttachment,
    /// A stub names an attachment that the document does not have.
    #[error("Invalid attachment stub in {id} for {name}")]
    MissingStub {
        /// The document's id.
        id: String,
        /// The attachment's name.
        name: String,
    },
    /// The upload exceeded its lifetime and was removed.
    #[error("the upload was removed before it was committed: try again")]
    UploadSwept,
    /// The document has reached its limit of conflicting leaves, or one transaction cannot change as many.
    #[error("The document has too many conflicting revisions: at most {leaves_max}, resolve some.")]
    TooManyLeaves {
        /// The limit of leaves.
        leaves_max: usize,
    },
    /// The edits of one operation read more leaves than allowed. Some of them may have been applied; several smaller
    /// operations are accepted.
    #[error("The request edits documents with many conflicting revisions too often: send it in parts")]
    TooManyEdits,
    /// The design document has an invalid definition.
    #[error("{reason}")]
    InvalidDesign {
        /// The kind of the fault.
        what: DesignFault,
        /// The reason, for the client.
        reason: String,
    },
    /// The index of the query's plan was removed, or the indexes have changed.
    #[error("the indexes of the database have changed")]
    IndexGone,
    /// The database has no selector index of this name.
    #[error("The database has no selector index of this name")]
    NoSelectorIndex,
    /// Several design documents define a selector index of this name, and the request does not name one.
    #[error("Several design documents have a selector index of this name: name one as `_index/DESIGN/NAME`")]
    AmbiguousIndex,
    /// A selector takes too long for a document, or its caller is gone.
    #[error("the selector takes too long")]
    SelectorExhausted,
    /// A rule or the gate forbids the edit, for this reason.
    #[error("{0}")]
    Forbidden(String),
    /// A rule or the gate forbids the edit to this user, for this reason.
    #[error("{0}")]
    Unauthorized(String),
    /// The sync function refuses the edit, or returned a routing over the limits.
    #[error("{reason}")]
    Rejected {
        /// The HTTP status, from 400 to 599.
        status: u16,
        /// The reason that the function gives.
        reason: String,
    },
    /// The database has reached its limit of bytes. Deletions still succeed.
    #[error("the database has reached its limit of {bytes_max} bytes: delete or purge documents, or compact it")]
    DatabaseFull {
        /// The limit: `database_bytes_max` of the layer's options.
        bytes_max: u64,
    },
    /// The partition of the document has reached its bound.
    #[error("Partition limit exceeded due to update on '{document_id}'")]
    PartitionFull {
        /// The document's id.
        document_id: String,
    },
    /// The database is closed to all but its administrators for a while.
    #[error("The database is closed to its users for the moment.")]
    Closed,
    /// The user's document has changed since it was judged: the client must be authenticated again.
    #[error("the user was changed meanwhile")]
    UserChanged,
    /// A rule could not judge the edit.
    #[error("{reason}")]
    NotJudged {
        /// The cause.
        because: NotJudged,
        /// The reason, for people.
        reason: String,
    },
}

impl Refusal {
    pub fn not_judged(because: NotJudged, reason: &str) -> Refusal {
        Refusal::NotJudged { because, reason: reason.to_owned() }
    }

    /// Returns the refusal of an edit whose judged state changes faster than it can be judged.
    pub fn stale() -> Refusal {
        Refusal::not_judged(NotJudged::Busy, "the document, or what you may do, changes all the time")
    }

    pub fn invalid(what: Invalid, reason: impl Into<String>) -> Refusal {
        Refusal::InvalidDocument { what, reason: reason.into() }
    }
}

/// The part of a document that breaks a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Invalid {
    /// Its id.
    Id,
    /// The partition in its id.
    Partition,
    /// A special member, whose name begins with an underscore.
    Member,
    /// The whole document: it is not an object, or it occurs twice.
    Document,
}

/// The fault of a design document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DesignFault {
    /// A member: its type or value.
    Member,
    /// A function without text.
    NoFunction,
    /// A text that is not a function.
    Compilation,
    /// A selector, with CouchDB's word for the fault.
    Selector(&'static str),
}

/// The cause for which a rule did not judge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotJudged {
    /// No capacity within the time limit: a retry may succeed.
    Busy,
    /// The client, or all clients together, have reached a limit: retries at a lower rate may succeed.
    TooMany,
    /// The language is not supported.
    Language,
    /// The text is not a function, or does not compile.
    Compilation,
    /// The function threw a value that is not a refusal.
    Thrown,
    /// The function exceeded its time limit.
    TimedOut,
    /// The function exceeded its memory limit.
    OutOfResources,
    /// The rules of the database are too large, or this program does not run functions.
    Internal,
}

/// The result of an operation of the layer.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Returns the error of a storage that did not answer within the caller's time limit: `transaction_timed_out`.
    pub fn timed_out() -> Error {
        Error::Storage(FdbError::from_code(1031))
    }

    /// Returns the error of a task without a result: it panicked ([`Error::BrokenOff`]), or ended with the runtime, and
    /// so with the server ([`Error::ShuttingDown`]).
    pub fn of_task(error: JoinError) -> Error {
        if error.is_cancelled() { Error::ShuttingDown } else { Error::BrokenOff(error.to_string()) }
    }
}

impl From<FdbError> for Error {
    fn from(error: FdbError) -> Self {
        Error::Storage(error)
    }
}

impl From<Corruption> for Error {
    fn from(corruption: Corruption) -> Self {
        Error::Corrupt(corruption.to_string())
    }
}

impl From<NoRandomness> for Error {
    fn from(_: NoRandomness) -> Self {
        Error::NoRandomness
    }
}

impl TransactionError for Error {
    fn fdb(&self) -> Option<FdbError> {
        match self {
            Error::Storage(error) => Some(*error),
            _ => None,
        }
    }
}

impl From<prost::DecodeError> for Error {
    fn from(error: prost::DecodeError) -> Self {
        Error::Corrupt(error.to_string())
    }
}

impl From<flatbed_revtree::InvalidRevision> for Refusal {
    fn from(_: flatbed_revtree::InvalidRevision) -> Self {
        Refusal::InvalidRevision
    }
}

impl From<FunctionFailure> for Error {
    fn from(failure: FunctionFailure) -> Self {
        Error::View(failure.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_ended_with_its_runtime_is_no_fault() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let task = runtime.spawn(std::future::pending::<()>());
        runtime.shutdown_background();
        assert!(matches!(Error::of_task(task.await.unwrap_err()), Error::ShuttingDown));
        let task = tokio::spawn(async { panic!("broken") });
        let error = Error::of_task(task.await.unwrap_err());
        assert!(matches!(&error, Error::BrokenOff(reason) if reason.contains("broken")), "{error}");
    }
}
