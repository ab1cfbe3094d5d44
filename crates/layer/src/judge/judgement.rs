//! What judges writes, and what it says of them.
//!
//! The layer knows which design documents judge, and what their judgement rests on: they themselves and `_security`, as
//! of a version of the database's record. It runs none itself: whoever opens the layer gives it a [`Judge`].

use std::any::Any;
use std::sync::Arc;

use flatbed_channels::require::Writer;
use futures_util::future::{BoxFuture, join_all};

use crate::actor::User;
use crate::document::edit::{Document, Edit};
use crate::document::verdict::Verdict;
use crate::error::{NotJudged, Refusal};

/// What makes rules of design documents, and has the room that judging takes.
pub trait Judge: Send + Sync {
    /// The rule of a design document that judges; `database` tells its database from all others, those that had its name
    /// before included.
    fn load(&self, design: &Document, database: &str) -> Arc<dyn Rule>;

    /// What judges the documents of a database besides, whatever design documents it has: they are of a kind that the program
    /// gives a meaning to.
    fn of_database(&self, _name: &str) -> Option<Arc<dyn Rule>> {
        None
    }

    /// The sync function of a database that has channels; `database` as of [`Judge::load`]. `None`: none is run here, and no
    /// user writes.
    fn sync_function(&self, _database: &str, _source: &str) -> Option<Arc<dyn Rule>> {
        None
    }

    /// Whether a text is a sync function.
    ///
    /// # Errors
    /// [`Refusal::InvalidDesign`]: it is none. [`Refusal::NotJudged`]: that is not known.
    fn check_sync_function<'a>(
        &'a self,
        _database: &'a str,
        _source: &'a str,
    ) -> BoxFuture<'a, std::result::Result<(), Refusal>> {
        Box::pin(async { Err(Refusal::not_judged(NotJudged::Internal, NO_FUNCTIONS)) })
    }

    /// Another number than it gave before: on whose behalf a batch of edits is judged.
    fn caller(&self) -> u64;

    /// Room for what an edit of a database is judged with, of so many bytes in all, if it is there now.
    fn try_room(&self, _database: &str, _bytes: usize) -> Option<Room> {
        Some(Box::new(()))
    }

    /// Waits for it, some seconds at most.
    ///
    /// # Errors
    /// [`Refusal::NotJudged`]: there was none.
    fn room<'a>(&'a self, _database: &'a str, _bytes: usize) -> BoxFuture<'a, std::result::Result<Room, Refusal>> {
        Box::pin(async { Ok(Box::new(()) as Room) })
    }
}

/// Why nobody writes where nobody judges.
pub(crate) const NO_FUNCTIONS: &str = "no functions run here";

/// Room that is held until this is dropped.
pub type Room = Box<dyn Any + Send>;

/// What a design document makes of writes: a validator, for one.
pub trait Rule: Send + Sync {
    /// Resolves within seconds.
    ///
    /// # Errors
    /// [`Refusal::Forbidden`], [`Refusal::Unauthorized`], [`Refusal::Rejected`], [`Refusal::NotJudged`].
    fn judge<'a>(&'a self, write: Writing<'a>) -> BoxFuture<'a, Judgement>;

    /// The same of several of one request, which are small: as many answers, in their order, each as if it were judged alone.
    fn judge_all<'a>(&'a self, writes: Vec<Writing<'a>>) -> BoxFuture<'a, Vec<Judgement>> {
        Box::pin(join_all(writes.into_iter().map(|write| self.judge(write))))
    }
}

/// What is to be written.
#[derive(Debug, Clone, Copy)]
pub struct Writing<'a> {
    /// The edit.
    pub edit: &'a Edit<'a>,
    /// The revision that it replaces, if it does.
    pub old: Option<&'a Document>,
    /// Who writes: that of the request, whatever has become of the user since.
    pub user: &'a User,
    /// The database's name.
    pub database: &'a str,
    /// Of [`Judge::caller`]: what a rule leaves behind is seen by calls of the same caller alone.
    pub caller: u64,
    /// The database's `_security`, if it was set.
    pub security: Option<&'a [u8]>,
    /// In a database that has channels: who writes, with what they have. `None`: who meets whatever is required.
    pub writer: Option<&'a Arc<Writer>>,
    /// The present, in seconds of Unix time.
    pub now_s: u64,
}

/// What a rule says of an edit, or all of them together: why it may not be made, or what it means if it is.
pub type Judgement = std::result::Result<Verdict, Refusal>;
