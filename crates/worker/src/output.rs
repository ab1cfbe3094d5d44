//! Where documents go.
//!
//! A target with transactions takes a batch with the checkpoint that is reached by it, all or nothing; one without takes each
//! document by itself. What a target is given is a [`Delivery`]: what the document produces, or that it is gone.

pub mod body;
pub mod http;
pub mod lines;
pub mod mysql;
pub mod postgres;
pub mod s3;
pub mod sqlite;
pub mod tables;

use std::sync::Arc;

use crate::attachments::{Attachment, Stub};
use crate::checkpoint::Checkpoint;
use crate::failure::Failure;
use crate::memory::Charge;
use crate::rows::Product;

/// What is to become of a document in a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It produces this; [`Product::Nothing`] where it does not match.
    Is(Product),
    /// It is deleted, or not to be seen any more.
    Gone,
}

/// A document's newest state, for a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The document's id.
    pub id: String,
    /// Its revision.
    pub rev: String,
    /// The change's place in the feed.
    pub seq: String,
    /// What is to become of it.
    pub state: State,
    /// Those of its attachments that are delivered by themselves.
    pub attachments: Vec<Attachment>,
}

impl Delivery {
    /// How many rows of tables it has.
    pub fn rows(&self) -> usize {
        match &self.state {
            State::Is(Product::Rows(rows)) => rows.len(),
            State::Is(Product::Nothing | Product::Json(_)) | State::Gone => 0,
        }
    }

    /// How large it is in memory, about.
    pub fn bytes(&self) -> usize {
        let product = match &self.state {
            State::Is(product) => product.bytes(),
            State::Gone => 0,
        };
        let attachments: usize = self.attachments.iter().map(Attachment::bytes).sum();
        size_of::<Delivery>() + self.id.len() + self.rev.len() + self.seq.len() + product + attachments
    }
}

/// Why a target took nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// Something failed.
    Failed {
        /// What.
        failure: Failure,
        /// What the target said, with secrets if it said any.
        error: String,
        /// For how long it asks to be left alone.
        retry_after: Option<std::time::Duration>,
    },
    /// Another process has the job now: its epoch is higher than this one's.
    Superseded,
    /// The target is not made for what the job brings, and somebody must mend one or the other.
    Unfit(String),
}

impl Refused {
    /// Without a wish for a pause.
    pub fn failed(failure: Failure, error: impl ToString) -> Refused {
        Refused::Failed { failure, error: error.to_string(), retry_after: None }
    }

    /// Whether a row has a value that another row has, and only one may have.
    pub(crate) fn is_of_unique_values(&self) -> bool {
        matches!(self, Refused::Failed { failure: Failure::Sql(state), .. } if state == b"23505")
    }

    /// Whether a document is to blame.
    pub(crate) fn is_poison(&self) -> bool {
        matches!(self, Refused::Failed { failure, .. } if failure.class() == crate::failure::Class::Poison)
    }

    /// Whether rows refer to one that is to go.
    pub(crate) fn is_of_foreign_keys(&self) -> bool {
        matches!(self, Refused::Failed { failure: Failure::Sql(state), .. } if state == b"23503")
    }
}

/// Documents that are delivered together, also where they come one by one: whatever is reached first ends the wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// So many.
    pub documents: usize,
    /// Of so many bytes.
    pub bytes: usize,
    /// The oldest has waited for so long.
    pub age: std::time::Duration,
}

/// What a run brings documents to.
pub trait Target: Send {
    /// Where the job stands, as the target has it; `None` where it has none (yet). A target with transactions raises its epoch to
    /// `epoch`, so that who had the job before writes nothing from now on.
    ///
    /// # Errors
    /// [`Refused`].
    fn begin(&mut self, epoch: u64) -> impl Future<Output = Result<Option<Checkpoint>, Refused>> + Send;

    /// The room of the batch that is delivered next, which is given back once nobody has it. Who goes on with a batch that is no longer
    /// waited for, on a thread that cannot be stopped, keeps it until then.
    fn hold(&mut self, _room: Arc<Charge>) {}

    /// Takes a batch, in which no document stands twice. With transactions: all of it and the checkpoint that is reached by it,
    /// or nothing. Without: it may have taken a part of it, and is asked again for the whole or for parts.
    ///
    /// # Errors
    /// [`Refused`].
    fn deliver(
        &mut self,
        batch: Vec<Delivery>,
        checkpoint: Option<Checkpoint>,
    ) -> impl Future<Output = Result<(), Refused>> + Send;

    /// Whether it has an attachment of a document already, as its digest says. Whatever goes wrong: no.
    fn holds(&mut self, _: &Delivery, _: &Stub) -> impl Future<Output = bool> + Send {
        std::future::ready(false)
    }

    /// Sees to it that what it has taken is still there after the machine's power has failed: a checkpoint elsewhere is to pass it. Only
    /// what answers before that has something to do.
    ///
    /// # Errors
    /// [`Refused`]: of what it took since this was last done, any part may be lost.
    fn persist(&mut self) -> impl Future<Output = Result<(), Refused>> + Send {
        std::future::ready(Ok(()))
    }

    /// Until when documents are waited for that it takes together. `None`: it takes what there is.
    fn window(&self) -> Option<Window> {
        None
    }

    /// Whether it keeps the checkpoint; else it is kept at the source.
    fn keeps_checkpoint(&self) -> bool {
        false
    }
}
