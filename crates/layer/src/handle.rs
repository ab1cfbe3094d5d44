//! A database as it is handed about: its layer, its name, and on whose behalf it is written to.
//!
//! What can be done with one is in the folders above, each for itself, and for those above the layer in
//! [`crate::database`].

use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;

use flatbed_clock::Clock;

use crate::actor::Actor;
use crate::asker::Asker;
use crate::error::{Refusal, Result};
use crate::layer::{Inner, Layer};
use crate::store::transaction::{self, Attempt, Operation, Transaction};

/// A database by its name, to read from. Cheap to clone; it may not exist.
#[derive(Clone)]
pub struct Reader {
    pub(crate) inner: Arc<Inner>,
    pub(crate) name: Arc<str>,
    seen: Option<Arc<dyn Seen>>,
    asker: Asker,
    /// The handle is for an ordinary database, not a replicator database.
    is_ordinary: bool,
}

/// What somebody sees of a database whose documents they may not all see. Whoever reads through one is shown documents one by
/// one, and refused whatever else has something of documents in it.
pub trait Seen: Send + Sync + Debug {
    /// Whether they may ask for a document of this id, before it is looked for.
    ///
    /// # Errors
    /// Why not.
    fn asks(&self, id: &str) -> std::result::Result<(), Refusal>;

    /// Whether they see all of a document, attachments too.
    fn is_whole(&self, id: &str) -> bool;

    /// Whether the existence of this document is hidden from the reader.
    fn hides(&self, _id: &str) -> bool {
        false
    }

    /// What they see of another one: members of its body, as JSON text without braces, as are those that are left. It has no
    /// attachments then.
    ///
    /// # Errors
    /// Why they see nothing of it.
    fn part(&self, id: &str, members: &[u8]) -> std::result::Result<Vec<u8>, Refusal>;
}

/// A database by its name, to read from and to write to on somebody's behalf. Cheap to clone; it may not exist.
#[derive(Clone)]
pub struct Database {
    reader: Reader,
    pub(crate) actor: Actor,
    asker: Asker,
}

impl Deref for Database {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        &self.reader
    }
}

impl Layer {
    /// A database by its name, to read from. Nothing is read here: its operations answer
    /// [`DatabaseNotFound`](crate::Error::DatabaseNotFound).
    pub fn reader(&self, name: &str) -> Reader {
        let (inner, name) = (self.inner.clone(), name.into());
        Reader { inner, name, seen: None, asker: Asker::All, is_ordinary: false }
    }

    /// A database by its name, to write to on somebody's behalf. Nothing is read here, either.
    pub fn database(&self, name: &str, actor: impl Into<Actor>) -> Database {
        let actor = actor.into();
        // A user's right to all of a database is said by whoever knows it.
        let asker = if actor.user().is_some() { Asker::Guest } else { Asker::All };
        Database { reader: self.reader(name), actor, asker }
    }
}

impl Reader {
    /// The name that was asked for.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its layer takes the time from.
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// The same database, of which somebody sees what this says.
    pub fn seen_by(&self, seen: Arc<dyn Seen>) -> Reader {
        Reader { seen: Some(seen), ..self.clone() }
    }

    /// The same database, read on somebody's behalf: where it has channels, they are shown what they see of its documents, and
    /// refused whatever else has something of documents in it.
    pub fn asked_by(&self, asker: Asker) -> Reader {
        Reader { asker, ..self.clone() }
    }

    /// On whose behalf it is read, where it has channels.
    pub fn asker(&self) -> &Asker {
        &self.asker
    }

    /// Returns a reader that reads the database only while it is no replicator database: a replicator database that is created under
    /// this name meanwhile is not read.
    pub fn as_ordinary(&self) -> Reader {
        Reader { is_ordinary: true, ..self.clone() }
    }

    pub(crate) fn seen(&self) -> Option<&dyn Seen> {
        self.seen.as_deref()
    }

    /// The same, of which everything is seen: for who has asked [`Reader::seen`], and judged what the asker sees.
    pub(crate) fn unseen(&self) -> Reader {
        Reader { seen: None, asker: Asker::All, ..self.clone() }
    }

    /// Reads what is of documents, for who sees all of them.
    pub(crate) async fn read<O: Operation>(&self, operation: &mut O) -> Result<O::Output> {
        if self.seen.is_some() {
            return Err(only_for_administrators().into());
        }
        self.read_whole(operation).await
    }

    /// The same of what those are shown, too, who see documents one by one ([`Seen`]).
    pub(crate) async fn read_whole<O: Operation>(&self, operation: &mut O) -> Result<O::Output> {
        if self.asker == Asker::All {
            return self.read_about(operation).await;
        }
        self.read_about(&mut Whole { inner: &self.inner, name: &self.name, operation }).await
    }

    /// Reads for who sees all of them, or by an operation that itself judges what the asker sees.
    pub(crate) async fn read_judged<O: Operation>(&self, operation: &mut O) -> Result<O::Output> {
        if self.seen.is_some() {
            return Err(only_for_administrators().into());
        }
        self.read_about(operation).await
    }

    /// Reads what everyone may know who reads in the database at all, or by an operation that judges: nobody is refused here.
    pub(crate) async fn read_about<O: Operation>(&self, operation: &mut O) -> Result<O::Output> {
        let inner = &*self.inner;
        if self.is_ordinary {
            let mut operation = Ordinary { inner, name: &self.name, operation };
            return transaction::read(&inner.db, &inner.metrics, &mut operation).await;
        }
        transaction::read(&inner.db, &inner.metrics, operation).await
    }
}

/// What is for those alone who see all of a database.
pub(crate) fn only_for_administrators() -> Refusal {
    Refusal::Forbidden("Only administrators may read this.".to_owned())
}

/// An operation that nobody carries out for whom the database has channels, as of its own transaction.
struct Whole<'a, O> {
    inner: &'a Inner,
    name: &'a str,
    operation: &'a mut O,
}

impl<O: Operation> Operation for Whole<'_, O> {
    type Output = O::Output;

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<O::Output> {
        if self.inner.resolve(trx, self.name).await?.channels() > 0 {
            return Err(only_for_administrators().into());
        }
        self.operation.attempt(trx, attempt).await
    }
}

/// Runs an operation unless the database is a replicator database, as of the operation's own transaction.
struct Ordinary<'a, O> {
    inner: &'a Inner,
    name: &'a str,
    operation: &'a mut O,
}

impl<O: Operation> Operation for Ordinary<'_, O> {
    type Output = O::Output;

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<O::Output> {
        if self.inner.resolve(trx, self.name).await?.security.is_replicator() {
            return Err(only_for_administrators().into());
        }
        self.operation.attempt(trx, attempt).await
    }
}

impl Database {
    /// The same database, written to on somebody's behalf as users of a database with channels are known. What it reads for itself it
    /// sees whole.
    pub fn asked_by(&self, asker: Asker) -> Database {
        Database { asker, ..self.clone() }
    }

    /// On whose behalf it is written to, where it has channels.
    pub fn asker(&self) -> &Asker {
        &self.asker
    }

    /// The same database, to read from alone.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// On whose behalf it writes.
    pub fn actor(&self) -> &Actor {
        &self.actor
    }
}
