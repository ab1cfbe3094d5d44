//! JavaScript reduces of design documents. The layer does not run them itself.

use flatbed_store::error::Result;
use flatbed_store::proto;
use futures_util::future::BoxFuture;

pub trait WrittenReduces: Send + Sync {
    /// Answers each request with one result for each of its functions. The caller sends concurrent requests in one
    /// call. It resolves within a second or two.
    ///
    /// # Errors
    /// Failures that do not depend on the functions, such as a lack of free threads. The caller retries later.
    fn reduce<'a>(&'a self, asks: &'a [ReduceAsk]) -> BoxFuture<'a, Result<Vec<Vec<WrittenResult>>>>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReduceAsk {
    pub functions: Vec<usize>,
    pub input: ReduceInput,
}

/// The input of a reduce: at least one item, in the order of the view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReduceInput {
    Rows(Vec<WrittenRow>),
    /// Earlier results as JSON, for a single function.
    Reductions(Vec<String>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenRow {
    pub key: String,
    pub id: String,
    pub value: String,
}

/// The result of a reduce as JSON; an exception becomes `null`, as in CouchDB.
pub type WrittenResult = std::result::Result<String, ReduceFailure>;

/// The reason why a reduction failed, for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReduceFailure {
    /// CouchDB's error name.
    pub error: String,
    /// The reason in words.
    pub reason: String,
}

impl From<&ReduceFailure> for proto::ViewReduceFailure {
    fn from(failure: &ReduceFailure) -> Self {
        proto::ViewReduceFailure { error: failure.error.clone(), reason: failure.reason.clone() }
    }
}

impl From<proto::ViewReduceFailure> for ReduceFailure {
    fn from(failure: proto::ViewReduceFailure) -> Self {
        ReduceFailure { error: failure.error, reason: failure.reason }
    }
}
