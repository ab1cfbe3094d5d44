//! A database as it is handed about: its layer, its name, and on whose behalf it is written to.
//!
//! What can be done with one is in the folders above, each for itself, and for those above the layer in
//! [`crate::database`].

use std::ops::Deref;
use std::sync::Arc;

use crate::actor::Actor;
use crate::error::Result;
use crate::layer::{Inner, Layer};
use crate::store::transaction::{self, Operation};

/// A database by its name, to read from. Cheap to clone; it may not exist.
#[derive(Clone)]
pub struct Reader {
    pub(crate) inner: Arc<Inner>,
    pub(crate) name: Arc<str>,
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
        Reader { inner: self.inner.clone(), name: name.into() }
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

    pub(crate) async fn read<O: Operation>(&self, operation: &mut O) -> Result<O::Output> {
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
