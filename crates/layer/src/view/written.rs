//! Reduces that are functions of design documents: the layer runs none itself.

use futures_util::future::BoxFuture;

use crate::error::Result;
use crate::store::proto;

/// Runs the written reduces of a group.
pub(crate) trait WrittenReduces: Send + Sync {
    /// Makes one answer of each, with one result of each of its functions. All that is needed at once is asked for at once;
    /// it resolves within a second or two.
    ///
    /// # Errors
    /// What says nothing of the functions, such as that there is no room for them now: what asked is done again, later.
    fn reduce<'a>(&'a self, asks: &'a [ReduceAsk]) -> BoxFuture<'a, Result<Vec<Vec<WrittenResult>>>>;
}

/// What is to be reduced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReduceAsk {
    /// By which of the group's written reduces.
    pub functions: Vec<usize>,
    /// What they are given.
    pub input: ReduceInput,
}

/// What a reduce is given: at least one of them, in the order of the view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReduceInput {
    /// Rows.
    Rows(Vec<WrittenRow>),
    /// What the function has given before, as JSON: for one function alone.
    Reductions(Vec<String>),
}

/// A row for a reduce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WrittenRow {
    /// JSON.
    pub key: String,
    /// The document's id.
    pub id: String,
    /// JSON.
    pub value: String,
}

/// What a reduce gives, as JSON; what it throws is `null`, as in CouchDB.
pub(crate) type WrittenResult = std::result::Result<String, ReduceFailure>;

/// Why there is no reduction: what a query is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReduceFailure {
    /// CouchDB's word for it.
    pub error: String,
    /// What is wrong.
    pub reason: String,
}

impl From<&ReduceFailure> for proto::ViewFailure {
    fn from(failure: &ReduceFailure) -> Self {
        proto::ViewFailure { error: failure.error.clone(), reason: failure.reason.clone() }
    }
}

impl From<proto::ViewFailure> for ReduceFailure {
    fn from(failure: proto::ViewFailure) -> Self {
        ReduceFailure { error: failure.error, reason: failure.reason }
    }
}
