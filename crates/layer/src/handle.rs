//! Handles for code above the layer: a server, and its databases for reads and for an actor's writes.
//!
//! The files beside this one and [`crate::database`] have their operations.

use std::ops::Deref;
use std::sync::Arc;

use flatbed_databases::actor::Actor;
use flatbed_databases::asker::ReadPrincipal;
use flatbed_databases::handles::{DocumentFilter, ReadHandle, WriteHandle};
use flatbed_databases::server::Inner;

/// The document layer of one server. Cheap to clone; it holds all state, and none is process-wide.
#[derive(Clone)]
pub struct Layer {
    pub(crate) inner: Arc<Inner>,
}

/// A handle of a database for reads. Cheap to clone; the database may not exist.
#[derive(Clone)]
pub struct Reader(ReadHandle);

/// A handle of a database for an actor's reads and writes. Cheap to clone; the database may not exist.
#[derive(Clone)]
pub struct Database {
    reader: Reader,
    pub(crate) handle: WriteHandle,
}

impl Deref for Reader {
    type Target = ReadHandle;

    fn deref(&self) -> &ReadHandle {
        &self.0
    }
}

impl Deref for Database {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        &self.reader
    }
}

impl Layer {
    /// Returns a handle of a database for reads. Reads nothing: the operations of the handle return
    /// [`DatabaseNotFound`](crate::Error::DatabaseNotFound).
    pub fn reader(&self, name: &str) -> Reader {
        Reader(ReadHandle::new(Arc::clone(&self.inner), name))
    }

    /// Returns a handle of a database for an actor. Reads nothing.
    pub fn database(&self, name: &str, actor: impl Into<Actor>) -> Database {
        let reader = self.reader(name);
        Database { handle: WriteHandle::new(reader.0.clone(), actor.into()), reader }
    }
}

impl Reader {
    /// Restricts the handle to the documents that these rules show.
    pub fn seen_by(&self, seen: Arc<dyn DocumentFilter>) -> Reader {
        Reader(self.0.seen_by(seen))
    }

    /// Sets the principal of reads: in a database with channels they are shown the visible part of documents, and all
    /// other reads of document data are refused.
    pub fn asked_by(&self, asker: ReadPrincipal) -> Reader {
        Reader(self.0.asked_by(asker))
    }

    /// Returns a reader that reads the database only while it is no replicator database: a replicator database that is
    /// created under this name meanwhile is not read.
    pub fn as_ordinary(&self) -> Reader {
        Reader(self.0.as_ordinary())
    }
}

impl Database {
    /// Sets the principal of writes in a database with channels. The write's own reads are unrestricted.
    pub fn asked_by(&self, asker: ReadPrincipal) -> Database {
        Database { handle: self.handle.asked_by(asker), reader: self.reader.clone() }
    }

    /// Returns the principal of writes in a database with channels.
    pub fn asker(&self) -> &ReadPrincipal {
        self.handle.asker()
    }

    /// Returns the handle for reads.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Returns the actor of its writes.
    pub fn actor(&self) -> &Actor {
        self.handle.actor()
    }
}
