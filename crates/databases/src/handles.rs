//! Handles that operations take: a server's state, a database's name, and the principal or actor.
//!
//! The handles for code above the layer, `Reader` and `Database` of the crate `layer`, wrap these.

use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;

use flatbed_clock::Clock;
use flatbed_store::error::{Refusal, Result};
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};

use crate::actor::Actor;
use crate::asker::ReadPrincipal;
use crate::server::Inner;

/// A database that is read, by a principal. Cheap to clone; it may not exist.
#[derive(Clone)]
pub struct ReadHandle {
    pub inner: Arc<Inner>,
    pub name: Arc<str>,
    seen: Option<Arc<dyn DocumentFilter>>,
    asker: ReadPrincipal,
    /// The handle is for an ordinary database, not a replicator database.
    is_ordinary: bool,
}

/// The rules of a reader who may see only some documents. They judge each document that such a reader reads, and all
/// other reads of document data are refused.
pub trait DocumentFilter: Send + Sync + Debug {
    /// Checks before the read whether the reader may request a document of this id.
    ///
    /// # Errors
    /// The refusal.
    fn asks(&self, id: &str) -> std::result::Result<(), Refusal>;

    /// Returns whether the reader sees all of a document, including its attachments.
    fn is_whole(&self, id: &str) -> bool;

    /// Returns whether the existence of this document is hidden from the reader.
    fn hides(&self, _id: &str) -> bool {
        false
    }

    /// Returns those of a document's members that the reader sees. Both are JSON text without braces.
    /// Such a document has no attachments for the reader.
    ///
    /// # Errors
    /// The refusal, if they see nothing of it.
    fn part(&self, id: &str, members: &[u8]) -> std::result::Result<Vec<u8>, Refusal>;
}

/// A database that an actor reads and writes. Cheap to clone; it may not exist.
#[derive(Clone)]
pub struct WriteHandle {
    reader: ReadHandle,
    pub actor: Actor,
    asker: ReadPrincipal,
}

impl Deref for WriteHandle {
    type Target = ReadHandle;

    fn deref(&self) -> &ReadHandle {
        &self.reader
    }
}

impl ReadHandle {
    /// Returns a handle of an unrestricted reader. Reads nothing.
    pub fn new(inner: Arc<Inner>, name: &str) -> ReadHandle {
        ReadHandle { inner, name: name.into(), seen: None, asker: ReadPrincipal::All, is_ordinary: false }
    }

    /// Returns the name in the request.
    #[inline]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the clock of its layer.
    #[inline]
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// Restricts the handle to the documents that these rules show.
    pub fn seen_by(&self, seen: Arc<dyn DocumentFilter>) -> ReadHandle {
        ReadHandle { seen: Some(seen), ..self.clone() }
    }

    /// Sets the principal of reads: in a database with channels, reads of documents return the part that the principal
    /// sees, and all other reads of document data are refused.
    pub fn asked_by(&self, asker: ReadPrincipal) -> ReadHandle {
        ReadHandle { asker, ..self.clone() }
    }

    /// Returns the principal of reads in a database with channels.
    #[inline]
    pub fn asker(&self) -> &ReadPrincipal {
        &self.asker
    }

    /// Returns a reader that reads the database only while it is no replicator database: a replicator database that is
    /// created under this name meanwhile is not read.
    pub fn as_ordinary(&self) -> ReadHandle {
        ReadHandle { is_ordinary: true, ..self.clone() }
    }

    #[inline]
    pub fn seen(&self) -> Option<&dyn DocumentFilter> {
        self.seen.as_deref()
    }

    /// Returns an unrestricted handle, for code that applies [`ReadHandle::seen`] itself.
    pub fn unrestricted(&self) -> ReadHandle {
        ReadHandle { seen: None, asker: ReadPrincipal::All, ..self.clone() }
    }

    /// Reads document data, for unrestricted readers only.
    pub async fn read<O: Operation>(&self, operation: &mut O) -> Result<O::Output> {
        if self.seen.is_some() {
            return Err(only_for_administrators().into());
        }
        self.read_whole(operation).await
    }

    /// As [`ReadHandle::read`], also for readers with a [`DocumentFilter`].
    pub async fn read_whole<O: Operation>(&self, operation: &mut O) -> Result<O::Output> {
        if self.asker == ReadPrincipal::All {
            return self.read_about(operation).await;
        }
        self.read_about(&mut UnrestrictedOnly { inner: &self.inner, name: &self.name, operation }).await
    }

    /// Reads for an unrestricted reader, or with an operation that itself restricts the principal.
    pub async fn read_judged<O: Operation>(&self, operation: &mut O) -> Result<O::Output> {
        if self.seen.is_some() {
            return Err(only_for_administrators().into());
        }
        self.read_about(operation).await
    }

    /// Reads data that every reader of the database may see, or with an operation that itself restricts the principal.
    /// Refuses no principal.
    pub async fn read_about<O: Operation>(&self, operation: &mut O) -> Result<O::Output> {
        let inner = &*self.inner;
        if self.is_ordinary {
            let mut operation = OrdinaryOnly { inner, name: &self.name, operation };
            return transaction::read(&inner.db, &inner.metrics, &mut operation).await;
        }
        transaction::read(&inner.db, &inner.metrics, operation).await
    }
}

/// Returns the refusal of operations that need unrestricted access.
pub fn only_for_administrators() -> Refusal {
    Refusal::Forbidden("Only administrators may read this.".to_owned())
}

/// Runs an operation, unless the database has channels and the principal is restricted, as of its own transaction.
struct UnrestrictedOnly<'a, O> {
    inner: &'a Inner,
    name: &'a str,
    operation: &'a mut O,
}

impl<O: Operation> Operation for UnrestrictedOnly<'_, O> {
    type Output = O::Output;

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<O::Output> {
        if self.inner.resolve(trx, self.name).await?.channels() > 0 {
            return Err(only_for_administrators().into());
        }
        self.operation.attempt(trx, attempt).await
    }
}

/// Runs an operation unless the database is a replicator database, as of the operation's own transaction.
struct OrdinaryOnly<'a, O> {
    inner: &'a Inner,
    name: &'a str,
    operation: &'a mut O,
}

impl<O: Operation> Operation for OrdinaryOnly<'_, O> {
    type Output = O::Output;

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<O::Output> {
        if self.inner.resolve(trx, self.name).await?.security.is_replicator() {
            return Err(only_for_administrators().into());
        }
        self.operation.attempt(trx, attempt).await
    }
}

impl WriteHandle {
    /// Returns a handle of an actor. Reads nothing.
    pub fn new(reader: ReadHandle, actor: Actor) -> WriteHandle {
        // The caller sets the rights of a user in the database.
        let asker = if actor.user().is_some() { ReadPrincipal::Guest } else { ReadPrincipal::All };
        WriteHandle { reader, actor, asker }
    }

    /// Sets the principal of writes in a database with channels. The write's own reads are unrestricted.
    pub fn asked_by(&self, asker: ReadPrincipal) -> WriteHandle {
        WriteHandle { asker, ..self.clone() }
    }

    /// Returns the principal of writes in a database with channels.
    #[inline]
    pub fn asker(&self) -> &ReadPrincipal {
        &self.asker
    }

    /// Returns the handle for reads.
    #[inline]
    pub fn reader(&self) -> &ReadHandle {
        &self.reader
    }

    /// Returns the actor of its writes.
    #[inline]
    pub fn actor(&self) -> &Actor {
        &self.actor
    }
}
