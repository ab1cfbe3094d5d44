//! What can go wrong in the layer, in the words of documents and databases.

use flatbed_kit::{Corruption, NoRandomness, TransactionError};
use foundationdb::FdbError;
use tokio::task::JoinError;

use crate::view_definition::DefinitionError;
use crate::view_functions::FunctionFailure;

/// Why a document was not found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotFound {
    /// No such document, or no such revision of it. CouchDB's reason "missing".
    Missing,
    /// The winner is a tombstone. CouchDB's reason "deleted".
    Deleted,
}

/// Why an operation of the layer gave no result: what it was to work on is not there, the storage did not do it, or, as
/// [`Error::Refused`], what the client asked for cannot be had.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What the client asked for is refused; the storage is well.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A view cannot be read.
    #[error(transparent)]
    View(#[from] ViewFailure),
    /// An index that is being built is not waited for.
    #[error(transparent)]
    Index(#[from] IndexFailure),
    /// Of edits that are made all or not at all some are refused: their documents, and why. None is made.
    #[error("none of the documents was written: {} of them refused", .0.len())]
    NoneWritten(Vec<(String, Refusal)>),
    /// No database of that name.
    #[error("Database does not exist.")]
    DatabaseNotFound,
    /// A database of that name is there already.
    #[error("The database could not be created, the file already exists.")]
    DatabaseExists,
    /// What lies in FoundationDB was written by a newer Flatbed.
    #[error("{what} has format {found}, this flatbed knows up to {known}: use a newer flatbed")]
    FormatTooNew {
        /// Which record.
        what: String,
        /// Its format version.
        found: u32,
        /// The newest that this binary reads.
        known: u32,
    },
    /// What lies in FoundationDB was written by an older Flatbed, in a format that this one does not read.
    #[error(
        "{what} has format {found}, and this flatbed reads only {known}: dump the databases with the flatbed that wrote them, \
         and load them into a new store"
    )]
    FormatTooOld {
        /// Which record.
        what: String,
        /// Its format version.
        found: u32,
        /// The one that this binary reads.
        known: u32,
    },
    /// A record names a feature that this program does not know.
    #[error("{what} uses {feature:?}, which this flatbed does not know: use a newer flatbed")]
    FeatureUnknown {
        /// Which record.
        what: String,
        /// The feature's name.
        feature: String,
    },
    /// The store was restored and is being renewed, or that was interrupted.
    #[error("the store is being renewed after a restore, or that was interrupted: run `flatbed renew` to its end")]
    Renewing,
    /// The store holds versions that the cluster has not come to: it was restored from another cluster's backup.
    #[error(
        "the store's newest change is at version {newest}, and the cluster is at {now} only: it was restored, and must go \
         through `flatbed renew` first"
    )]
    StampsAhead {
        /// The version of the newest change.
        newest: u64,
        /// The cluster's.
        now: u64,
    },
    /// There is nothing under the root.
    #[error("there is nothing of Flatbed's under this root")]
    StoreNotFound,
    /// Another renewal has begun.
    #[error("another renewal goes on: let that one end")]
    RenewedElsewhere,
    /// What lies in FoundationDB cannot be read.
    #[error("stored data cannot be read: {0}")]
    Corrupt(String),
    /// FoundationDB answered an error that a retry does not mend, or retries took too long.
    #[error("storage: {} (FoundationDB error {})", .0.message(), .0.code())]
    Storage(FdbError),
    /// The server is stopping.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// Work in a task of its own panicked.
    #[error("work inside broke off: {0}")]
    BrokenOff(String),
    /// The system has no randomness to give.
    #[error("no randomness from the system")]
    NoRandomness,
}

/// Why a view cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ViewFailure {
    /// The design document has no view of that name.
    #[error("missing_named_view")]
    Missing,
    /// What the design document says of its views cannot be.
    #[error(transparent)]
    Definition(#[from] DefinitionError),
    /// A function of its group failed, so that none of its views can be built.
    #[error(transparent)]
    Function(#[from] FunctionFailure),
    /// The database has as many groups of views as it may have.
    #[error("the database has too many design documents with views")]
    TooManyGroups,
    /// The database has reached its bound, so the view gets no further rows.
    #[error("the view is not built: the database holds as much as it may ({bytes_max} bytes)")]
    DatabaseFull {
        /// See [`Refusal::DatabaseFull`].
        bytes_max: u64,
    },
    /// So many queries wait for groups to be built already.
    #[error("too many queries are waiting for views")]
    TooManyWaiting,
    /// It has been tried for a while to bring its group up to date.
    #[error("the view cannot be brought up to date now: {0}")]
    Stuck(String),
    /// The design document was changed or deleted since the query began, or its group is being built anew.
    #[error("the view was changed while it was read")]
    Changed,
}

/// Why an index that is being built is not waited for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IndexFailure {
    /// So many queries wait for indexes already.
    #[error("too many queries are waiting for indexes")]
    TooManyWaiting,
    /// It has been tried for a while to build it, and is tried on.
    #[error("the index cannot be built now: {0}")]
    Stuck(String),
    /// A feed is to be read of it, which does not wait.
    #[error("the index is being built")]
    Building,
}

/// What a client did that cannot be, or what its edit or its question met: nothing is wrong with the storage, and
/// nothing that it refuses was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The edit's parent is not the current leaf.
    #[error("Document update conflict.")]
    Conflict,
    /// No such document or revision.
    #[error("{}", match .0 { NotFound::Missing => "missing", NotFound::Deleted => "deleted" })]
    DocumentNotFound(NotFound),
    /// The revision has no attachment of that name.
    #[error("Document is missing attachment")]
    AttachmentNotFound,
    /// The document breaks a rule for documents.
    #[error("{reason}")]
    InvalidDocument {
        /// What of it breaks the rule.
        what: Invalid,
        /// What is wrong, for the client.
        reason: String,
    },
    /// Not a revision id.
    #[error("Invalid rev format")]
    InvalidRevision,
    /// Not a sequence of this service.
    #[error("Malformed sequence supplied in 'since' parameter.")]
    InvalidSequence,
    /// A feed cannot be read as it is asked for.
    #[error("{0}")]
    NoSuchFeed(&'static str),
    /// The name breaks CouchDB's rule for names of databases.
    #[error(
        "Name: '{0}'. Only lowercase characters (a-z), digits (0-9), and any of the characters _, $, (, ), +, -, and / \
         are allowed. Must begin with a letter."
    )]
    IllegalDatabaseName(String),
    /// The local documents of the database or of the user have reached their bound of bytes.
    #[error("There is no room for more local documents: delete some.")]
    LocalDocumentsFull,
    /// A setting is out of its bounds.
    #[error("{0}")]
    InvalidSetting(String),
    /// The document is not small, where only a small one was asked for.
    #[error("the document is large")]
    LargeDocument,
    /// The body is larger than a document may be.
    #[error("{document_id}")]
    DocumentTooLarge {
        /// The document's id: CouchDB gives it as the reason.
        document_id: String,
        /// The bound that it passes.
        bytes_max: u64,
    },
    /// An attachment is larger than one may be, or there are too many of them.
    #[error("attachment")]
    AttachmentTooLarge {
        /// The bound that it passes.
        bytes_max: u64,
    },
    /// What was said to be gzip is not.
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
    /// The body's upload took so long that it counted as broken, and was removed.
    #[error("the upload was removed before it was committed: try again")]
    UploadSwept,
    /// The document has as many conflicting leaves as it may have, or as one transaction can change.
    #[error("The document has too many conflicting revisions: at most {leaves_max}, resolve some.")]
    TooManyLeaves {
        /// How many there may be.
        leaves_max: usize,
    },
    /// The edits of one operation go through more leaves than they may. Some of them may have been made; the same edits
    /// are taken in several operations.
    #[error("The request edits documents with many conflicting revisions too often: send it in parts")]
    TooManyEdits,
    /// The edits, to be made all or not at all, are more than one transaction takes. None is made.
    #[error("too much to write at once: at most {documents_max} documents, and about {bytes_max} bytes of them")]
    TooMuchAtOnce {
        /// How many documents one transaction takes.
        documents_max: usize,
        /// And how many bytes, with what the edits supersede.
        bytes_max: u64,
    },
    /// The design document defines something in a way that cannot be.
    #[error("{reason}")]
    InvalidDesign {
        /// What of it is wrong.
        what: DesignFault,
        /// For the client.
        reason: String,
    },
    /// The index that a query was planned with is no longer there, or others are.
    #[error("the database has other indexes now")]
    IndexGone,
    /// The database has no selector index of this name.
    #[error("The database has no selector index of this name")]
    NoSelectorIndex,
    /// Several design documents define a selector index of this name, and it was not said whose is meant.
    #[error("Several design documents have a selector index of this name: name one as `_index/DESIGN/NAME`")]
    AmbiguousIndex,
    /// A selector takes too long on a document, or nobody waits for what it selects.
    #[error("the selector takes too long")]
    SelectorExhausted,
    /// A rule or the database's gate forbids the edit, and says why.
    #[error("{0}")]
    Forbidden(String),
    /// A rule or the database's gate forbids the edit to this user, and says why.
    #[error("{0}")]
    Unauthorized(String),
    /// The database's sync function lets the edit not be, or says what may not be kept.
    #[error("{reason}")]
    Rejected {
        /// What it is answered with: from 400 to 599.
        status: u16,
        /// In its words.
        reason: String,
    },
    /// The database has reached its bound. Deletions still succeed.
    #[error("the database holds as much as it may ({bytes_max} bytes): delete or purge documents, or compact it")]
    DatabaseFull {
        /// The bound: [`crate::LayerOptions::database_bytes_max`].
        bytes_max: u64,
    },
    /// The database is closed to all but its administrators for a while.
    #[error("The database is closed to its users for the moment.")]
    Closed,
    /// The user's own document is another one than that which was judged: who asked is to be identified anew.
    #[error("the user was changed meanwhile")]
    UserChanged,
    /// A rule could not be asked about the edit.
    #[error("{reason}")]
    NotJudged {
        /// What kept it.
        because: NotJudged,
        /// For people.
        reason: String,
    },
}

impl Refusal {
    pub(crate) fn not_judged(because: NotJudged, reason: &str) -> Refusal {
        Refusal::NotJudged { because, reason: reason.to_owned() }
    }

    /// What an edit was judged with changes faster than it can be judged.
    pub(crate) fn stale() -> Refusal {
        Refusal::not_judged(NotJudged::Busy, "the document, or what you may do, changes all the time")
    }

    pub(crate) fn invalid(what: Invalid, reason: impl Into<String>) -> Refusal {
        Refusal::InvalidDocument { what, reason: reason.into() }
    }
}

/// What of a document breaks a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Invalid {
    /// Its id.
    Id,
    /// The partition that its id begins with.
    Partition,
    /// A special member: one whose name begins with an underscore.
    Member,
    /// The whole of it: it is no object, or it is there twice.
    Document,
}

/// What is wrong with a design document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DesignFault {
    /// A member: its type, or what it says.
    Member,
    /// A function without a text.
    NoFunction,
    /// A function's text is not a function.
    Compilation,
    /// A selector, with CouchDB's word for what is wrong with it.
    Selector(&'static str),
}

/// What kept a rule from judging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotJudged {
    /// There was no room for it in time: another try may find some.
    Busy,
    /// There was no room in time for one more of who asks, or of all: less often, there may be.
    TooMany,
    /// It is in a language that nobody runs.
    Language,
    /// It is no function, or its code is none.
    Compilation,
    /// It threw something that is no refusal.
    Thrown,
    /// It took too long.
    TimedOut,
    /// It took too much memory.
    OutOfResources,
    /// The database's rules are too large, or this program runs none.
    Internal,
}

/// Result of the layer's operations.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// That of a storage that did not answer in the time that somebody waited for it: `transaction_timed_out`.
    pub fn timed_out() -> Error {
        Error::Storage(FdbError::from_code(1031))
    }

    /// That of work in a task of its own that gave no result: it panicked ([`Error::BrokenOff`]), or ended with the
    /// runtime, and so with the server ([`Error::ShuttingDown`]).
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
