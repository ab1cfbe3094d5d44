//! The interface to the functions that judge writes, and their verdicts.
//!
//! The layer knows which design documents have such functions, and on what a judgement depends: these documents and
//! `_security`, at a version of the database's record. It runs no functions itself: the program that opens the layer
//! gives it a [`Judge`].

use std::any::Any;
use std::sync::Arc;

use flatbed_channels::require::Writer;
use flatbed_databases::actor::User;
use flatbed_databases::confirmed::DatabaseSecurity;
use flatbed_databases::document::edit::{Document, Edit};
use flatbed_databases::document::verdict::Verdict;
use flatbed_databases::server::Inner;
use flatbed_databases::slots::State;
use flatbed_store::error::{NotJudged, Refusal};
use futures_util::future::{BoxFuture, join_all};

/// Loads rules from design documents, and bounds the memory of judging.
pub trait Judge: Send + Sync {
    /// Returns the rule of a design document. `database` identifies the database, and distinguishes it from earlier
    /// ones of the same name.
    fn load(&self, design: &Document, database: &str) -> Arc<dyn Rule>;

    /// Notes the `_security` of a database that this process reads for the first time, or that has changed; `database`
    /// as of [`Judge::load`]. Must not block.
    fn note_security(&self, _database: &str, _security: &DatabaseSecurity) {}

    /// Returns a further rule for a database with special meaning to the program, in addition to its design documents.
    fn of_database(&self, _name: &str) -> Option<Arc<dyn Rule>> {
        None
    }

    /// Returns the sync function of a database with channels; `database` as of [`Judge::load`]. `None`: this process
    /// runs no functions, and refuses writes of users.
    fn sync_function(&self, _database: &str, _source: &str) -> Option<Arc<dyn Rule>> {
        None
    }

    /// Checks whether a text is a sync function.
    ///
    /// # Errors
    /// [`Refusal::InvalidDesign`]: it is not. [`Refusal::NotJudged`]: it could not be checked.
    fn check_sync_function<'a>(
        &'a self,
        _database: &'a str,
        _source: &'a str,
    ) -> BoxFuture<'a, std::result::Result<(), Refusal>> {
        Box::pin(async { Err(Refusal::not_judged(NotJudged::Internal, NO_FUNCTIONS)) })
    }

    /// Returns a unique number for a request with edits.
    fn caller(&self) -> u64;

    /// Returns a permit of `bytes` for the texts of an edit, if one is available now.
    fn try_room(&self, _database: &str, _bytes: usize) -> Option<Room> {
        Some(Box::new(()))
    }

    /// Waits some seconds at most for a permit.
    ///
    /// # Errors
    /// [`Refusal::NotJudged`]: no permit became available.
    fn room<'a>(&'a self, _database: &'a str, _bytes: usize) -> BoxFuture<'a, std::result::Result<Room, Refusal>> {
        Box::pin(async { Ok(Box::new(()) as Room) })
    }
}

/// The judge that the program gave the layer.
pub struct AppointedJudge(pub Option<Arc<dyn Judge>>);

impl State<Inner> for AppointedJudge {
    fn new_of(_: &Inner) -> AppointedJudge {
        AppointedJudge(None)
    }
}

/// Returns the judge, if the program gave the layer one.
pub fn judge_of(inner: &Inner) -> Option<&Arc<dyn Judge>> {
    inner.state::<AppointedJudge>().0.as_ref()
}

/// The reason of refusals in a process without functions.
pub const NO_FUNCTIONS: &str = "no functions run here";

/// A memory permit, held until it is dropped.
pub type Room = Box<dyn Any + Send>;

/// A rule for writes, such as a validator.
pub trait Rule: Send + Sync {
    /// Judges a write within seconds.
    ///
    /// # Errors
    /// [`Refusal::Forbidden`], [`Refusal::Unauthorized`], [`Refusal::Rejected`], [`Refusal::NotJudged`].
    fn judge<'a>(&'a self, write: ProposedWrite<'a>) -> BoxFuture<'a, Judgement>;

    /// Judges several small writes of one request, by one user to one state of a database: returns as many answers, in
    /// their order, each as if the write were judged alone.
    fn judge_all<'a>(&'a self, writes: Vec<ProposedWrite<'a>>) -> BoxFuture<'a, Vec<Judgement>> {
        Box::pin(join_all(writes.into_iter().map(|write| self.judge(write))))
    }
}

/// A write to be judged.
#[derive(Debug, Clone, Copy)]
pub struct ProposedWrite<'a> {
    /// The edit.
    pub edit: &'a Edit<'a>,
    /// The revision that it replaces, if any.
    pub old: Option<&'a Document>,
    /// The user of the request, whatever has changed about the user since.
    pub user: &'a User,
    /// The database's name.
    pub database: &'a str,
    /// See [`Judge::caller`]. Only calls with the same caller share the state of a rule.
    pub caller: u64,
    /// The database's `_security`, if it was set.
    pub security: Option<&'a [u8]>,
    /// The author and the author's access, in a database with channels. `None`: an author who meets all requirements.
    pub writer: Option<&'a Arc<Writer>>,
    /// The current time, in seconds of Unix time.
    pub now_s: u64,
}

/// The judgement of one rule or of all: the refusal, or the effects of the edit.
pub type Judgement = std::result::Result<Verdict, Refusal>;
