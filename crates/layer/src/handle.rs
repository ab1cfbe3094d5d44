//! A database as it is handed about: its layer, its name, and on whose behalf it is written to.
//!
//! What can be done with one is in the folders above, each for itself, and for those above the layer in
//! [`crate::database`].

use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;

use crate::actor::Actor;
use crate::error::{Refusal, Result};
use crate::layer::{Inner, Layer};
use crate::store::transaction::{self, Operation};

/// A database by its name, to read from. Cheap to clone; it may not exist.
#[derive(Clone)]
pub struct Reader {
    pub(crate) inner: Arc<Inner>,
    pub(crate) name: Arc<str>,
    seen: Option<Arc<dyn Seen>>,
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
        Reader { inner: self.inner.clone(), name: name.into(), seen: None }
    }

    /// A database by its name, to write to on somebody's behalf. Nothing is read here, either.
    pub fn database(&self, name: &str, actor: impl Into<Actor>) -> Database {
        Database { reader: self.reader(name), actor: actor.into() }
    }
}

impl Reader {
    /// The name that was asked for.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same database, of which somebody sees what this says.
    pub fn seen_by(&self, seen: Arc<dyn Seen>) -> Reader {
        Reader { seen: Some(seen), ..self.clone() }
    }

    pub(crate) fn seen(&self) -> Option<&dyn Seen> {
        self.seen.as_deref()
    }

    /// The same, of which everything is seen: for who has asked [`Reader::seen`].
    pub(crate) fn unseen(&self) -> Reader {
        Reader { seen: None, ..self.clone() }
    }

    /// Reads what is of documents, for who sees all of them.
    pub(crate) async fn read<O: Operation>(&self, operation: &mut O) -> Result<O::Output> {
        if self.seen.is_some() {
            return Err(Refusal::Forbidden("Only administrators may read this.".to_owned()).into());
        }
        self.read_about(operation).await
    }

    /// Reads what everyone may know who reads in the database at all.
    pub(crate) async fn read_about<O: Operation>(&self, operation: &mut O) -> Result<O::Output> {
        transaction::read(&self.inner.db, &self.inner.metrics, operation).await
    }
}

impl Database {
    /// The same database, to read from alone.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// On whose behalf it writes.
    pub fn actor(&self) -> &Actor {
        &self.actor
    }
}
