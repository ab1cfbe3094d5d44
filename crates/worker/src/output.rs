//! Targets.
//!
//! A target with transactions takes a batch and the checkpoint that follows from it, all or nothing; a target without
//! takes each document by itself. Both take [`Delivery`] values: a document's product, or its deletion.

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

/// The new state of a document in a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeliveryState {
    /// The document's product; [`Product::Nothing`] if it does not match.
    Is(Product),
    /// The document is deleted, or the job lost access to it.
    Gone,
}

/// A document's newest state, for a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The document's id.
    pub id: String,
    /// Its revision.
    pub rev: String,
    /// The change's position in the feed.
    pub seq: String,
    /// The new state.
    pub state: DeliveryState,
    /// The attachments that are delivered individually.
    pub attachments: Vec<Attachment>,
}

impl Delivery {
    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        match &self.state {
            DeliveryState::Is(Product::Rows(rows)) => rows.len(),
            DeliveryState::Is(Product::Nothing | Product::Json(_)) | DeliveryState::Gone => 0,
        }
    }

    /// Returns the approximate size in memory, in bytes.
    pub fn bytes(&self) -> usize {
        let product = match &self.state {
            DeliveryState::Is(product) => product.bytes(),
            DeliveryState::Gone => 0,
        };
        let attachments: usize = self.attachments.iter().map(Attachment::bytes).sum();
        size_of::<Delivery>() + self.id.len() + self.rev.len() + self.seq.len() + product + attachments
    }
}

/// The reason why a target refused a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeliveryError {
    /// The delivery failed.
    Failed {
        /// The cause.
        failure: Failure,
        /// The target's message, not redacted.
        error: String,
        /// The pause that the target requests.
        retry_after: Option<std::time::Duration>,
    },
    /// Another process runs the job: its epoch is higher than this one's.
    Superseded,
    /// The target does not fit the job's mapping or settings. An administrator must change one of them.
    Unfit(String),
}

impl DeliveryError {
    /// Creates a failure without a requested pause.
    pub fn failed(failure: Failure, error: impl ToString) -> DeliveryError {
        DeliveryError::Failed { failure, error: error.to_string(), retry_after: None }
    }

    pub(crate) fn is_of_unique_values(&self) -> bool {
        matches!(self, DeliveryError::Failed { failure: Failure::Sql(state), .. } if state == b"23505")
    }

    pub(crate) fn is_poison(&self) -> bool {
        matches!(self, DeliveryError::Failed { failure, .. } if failure.class() == crate::failure::Class::Poison)
    }

    pub(crate) fn is_of_foreign_keys(&self) -> bool {
        matches!(self, DeliveryError::Failed { failure: Failure::Sql(state), .. } if state == b"23503")
    }
}

/// The limits of a group of documents that are delivered together. The first limit that is reached ends the wait for
/// more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchLimits {
    /// The most documents.
    pub documents: usize,
    /// The most bytes.
    pub bytes: usize,
    /// The longest time that the oldest document waits.
    pub age: std::time::Duration,
}

/// A run's target.
pub trait Target: Send {
    /// Returns the job's checkpoint if the target has one. A target with transactions raises the job's epoch to
    /// `epoch`, so that an earlier process writes nothing more.
    fn begin(&mut self, _epoch: u64) -> impl Future<Output = Result<Option<Checkpoint>, DeliveryError>> + Send {
        std::future::ready(Ok(None))
    }

    /// Passes the memory of the next batch, released when its last holder drops it. A thread that cannot be stopped and
    /// continues a cancelled batch holds it until it ends.
    fn hold(&mut self, _room: Arc<Charge>) {}

    /// Delivers a batch that contains each document at most once. With transactions: the whole batch and its
    /// checkpoint, or nothing. Without: possibly a part of it, and the caller retries the whole or parts.
    fn deliver(
        &mut self,
        batch: Vec<Delivery>,
        checkpoint: Option<Checkpoint>,
    ) -> impl Future<Output = Result<(), DeliveryError>> + Send;

    /// Returns whether the target already has an attachment with this digest. Failures count as no.
    fn holds(&mut self, _: &Delivery, _: &Stub) -> impl Future<Output = bool> + Send {
        std::future::ready(false)
    }

    /// Makes everything that was taken durable against power failure, before a checkpoint outside of the target passes
    /// it. Needed only by targets that acknowledge earlier.
    ///
    /// # Errors
    /// [`DeliveryError`]: any documents accepted since the last success may be lost.
    fn persist(&mut self) -> impl Future<Output = Result<(), DeliveryError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Returns the limits within which documents are grouped. `None`: documents are delivered as they come.
    fn window(&self) -> Option<BatchLimits> {
        None
    }

    /// Returns whether the target stores the checkpoint. Otherwise the source does.
    fn keeps_checkpoint(&self) -> bool {
        false
    }
}
