//! Handles for code above the layer: a server, and its databases for reads and for an actor's writes.
//!
//! The files beside this one and [`crate::database`] have their operations.
//!
//! A database for writing needs an actor:
//!
//! ```compile_fail,E0061
//! fn handler(layer: &flatbed_layer::Layer) -> flatbed_layer::Database {
//!     layer.database("db")
//! }
//! ```
//!
//! A reader cannot write:
//!
//! ```compile_fail,E0599
//! async fn handler(layer: &flatbed_layer::Layer, edit: &flatbed_layer::Edit<'_>) {
//!     let _ = layer.reader("db").update(edit).await;
//! }
//! ```
//!
//! The inner handle is private:
//!
//! ```compile_fail,E0616
//! fn handler(layer: &flatbed_layer::Layer) {
//!     let _ = &layer.reader("db").handle;
//! }
//! ```
//!
//! A surface cannot make an actor of the server:
//!
//! ```compile_fail,E0451
//! fn handler(layer: &flatbed_layer::Layer) -> flatbed_layer::Database {
//!     layer.database("db", flatbed_layer::ServerActor { job: "handler" })
//! }
//! ```
//!
//! A surface can neither make nor copy an authority:
//!
//! ```compile_fail,E0451
//! fn handler() -> flatbed_layer::Authority {
//!     flatbed_layer::Authority { made: () }
//! }
//! ```
//!
//! ```compile_fail,E0599
//! fn surface(authority: flatbed_layer::Authority) -> flatbed_layer::Authority {
//!     authority.clone()
//! }
//! ```
//!
//! The database's `_security` judges each user in the transaction that writes, so a user needs a [`Gate`](crate::Gate):
//!
//! ```compile_fail,E0277
//! fn handler(layer: &flatbed_layer::Layer, user: flatbed_layer::User) -> flatbed_layer::Database {
//!     layer.database("db", user)
//! }
//! ```
//!
//! A user writes through a gate, and a job as the server with its own actor:
//!
//! ```
//! use std::sync::Arc;
//!
//! use flatbed_layer::{Authority, Database, Gate, Layer, User};
//!
//! fn handler(layer: &Layer, user: User, gate: Arc<dyn Gate>) -> Database {
//!     layer.database("db", user.through(gate))
//! }
//!
//! fn together(layer: &Layer, authority: &Authority) -> Database {
//!     layer.database("db", authority.for_job("replicator"))
//! }
//! ```

use std::ops::Deref;
use std::sync::Arc;

use flatbed_clock::Clock;
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
pub struct Reader {
    pub(crate) handle: ReadHandle,
}

/// A handle of a database for an actor's reads and writes. Cheap to clone; the database may not exist.
#[derive(Clone)]
pub struct Database {
    reader: Reader,
    pub(crate) handle: WriteHandle,
}

/// Gives tests the inner handle, which code above the layer must not use.
#[cfg(test)]
impl Deref for Reader {
    type Target = ReadHandle;

    fn deref(&self) -> &ReadHandle {
        &self.handle
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
        Reader { handle: ReadHandle::new(Arc::clone(&self.inner), name) }
    }

    /// Returns a handle of a database for an actor. Reads nothing.
    pub fn database(&self, name: &str, actor: impl Into<Actor>) -> Database {
        let reader = self.reader(name);
        Database { handle: WriteHandle::new(reader.handle.clone(), actor.into()), reader }
    }
}

impl Reader {
    /// Returns the name in the request.
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// Returns the clock of its layer.
    pub fn clock(&self) -> &Clock {
        self.handle.clock()
    }

    /// Restricts the handle to the documents that these rules show.
    pub fn seen_by(&self, seen: Arc<dyn DocumentFilter>) -> Reader {
        Reader { handle: self.handle.seen_by(seen) }
    }

    /// Sets the principal of reads: in a database with channels they are shown the visible part of documents, and all
    /// other reads of document data are refused.
    pub fn asked_by(&self, asker: ReadPrincipal) -> Reader {
        Reader { handle: self.handle.asked_by(asker) }
    }

    /// Returns the principal of reads in a database with channels.
    pub fn asker(&self) -> &ReadPrincipal {
        self.handle.asker()
    }

    /// Returns a reader that reads the database only while it is no replicator database: a replicator database that is
    /// created under this name meanwhile is not read.
    pub fn as_ordinary(&self) -> Reader {
        Reader { handle: self.handle.as_ordinary() }
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
