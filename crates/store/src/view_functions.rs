//! The interface to the functions of views: the layer calls them, but does not run them itself.
//!
//! The program gives the layer a [`ViewFunctions`]. Without it no group is built, and no group with a JavaScript reduce
//! can be read.

use std::sync::Arc;

use flatbed_flatten::json::tree_bytes;
use futures_util::future::BoxFuture;

use crate::view_bounds::ViewBounds;

/// Loads functions from their sources.
pub trait ViewFunctions: Send + Sync {
    /// Returns the functions of a group. `database` identifies the database, and distinguishes it from earlier ones of
    /// the same name. A document that emits more than `bounds` in one view may be answered with
    /// [`FunctionFailure::TooMuch`] instead of its rows. The call runs no function.
    fn load(&self, database: &str, source: &GroupSource, bounds: ViewBounds) -> Arc<dyn GroupFunctions>;
}

/// The sources of a group's functions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupSource {
    /// Modules for `require("views/lib/...")` in maps: JSON text.
    pub lib: Option<String>,
    /// The name of a view, for messages, and the source of its map.
    pub maps: Vec<(String, String)>,
    /// The same for JavaScript reduces.
    pub reduces: Vec<(String, String)>,
}

/// The functions of a group of views.
pub trait GroupFunctions: Send + Sync {
    /// Checks that all sources are functions.
    ///
    /// # Errors
    /// [`FunctionFailure::Compilation`], and those of any call.
    fn check(&self) -> BoxFuture<'_, Result<(), FunctionFailure>>;

    /// Maps documents, JSON texts with their special members, by all maps of the group.
    ///
    /// # Errors
    /// Failures that concern all documents: see [`GroupFunctions::check`].
    fn map(&self, documents: Vec<Vec<u8>>) -> BoxFuture<'_, Result<MapOutcome, FunctionFailure>>;

    /// Runs JavaScript reduces of the group. Returns, for each reduction and each of its functions, the result as JSON
    /// text.
    ///
    /// # Errors
    /// As [`GroupFunctions::map`].
    fn reduce<'a>(&'a self, reductions: &'a [Reduction<'a>]) -> BoxFuture<'a, Result<ReduceResults, FunctionFailure>>;
}

/// For each reduction and each of its functions: the result as JSON text, or the failure.
pub type ReduceResults = Vec<Vec<Result<String, FunctionFailure>>>;

/// A call of reduces.
#[derive(Debug, Clone)]
pub struct Reduction<'a> {
    /// The functions, as indexes into [`GroupSource::reduces`].
    pub functions: &'a [usize],
    /// The input of the functions.
    pub input: ReduceInput<'a>,
}

/// The input of a reduce.
#[derive(Debug, Clone, Copy)]
pub enum ReduceInput<'a> {
    /// Rows: key, document id, value; key and value as JSON text. CouchDB passes the last row first.
    Rows(&'a [(&'a str, &'a str, &'a str)]),
    /// Earlier results, as JSON text.
    Reductions(&'a [&'a str]),
}

/// The outcome of mapping a batch of documents.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MapOutcome {
    /// For each document in order, for each map of the group: its rows, or the failure.
    pub documents: Vec<Vec<Result<EmittedRows, FunctionFailure>>>,
    /// Why the next document and those after it have no answer. A function ended the whole query
    /// ([`FunctionFailure::Thrown`]) or broke a bound on the next document. [`FunctionFailure::Busy`] is not about the
    /// document, and the caller retries later. `None` with fewer documents than were requested, but at least one: the
    /// answer reached its size limit, and the caller requests the rest.
    pub stopped: Option<FunctionFailure>,
    /// The first lines that functions logged.
    pub logs: Vec<String>,
}

/// The rows of one document in one view, in the order in which they were emitted: keys and values as JSON text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EmittedRows {
    text: String,
    /// The ends of each row's key and value.
    cuts: Vec<(usize, usize)>,
}

impl EmittedRows {
    /// Makes an empty list with room for `rows` rows of `bytes` bytes in all.
    pub fn with_capacity(rows: usize, bytes: usize) -> EmittedRows {
        EmittedRows { text: String::with_capacity(bytes), cuts: Vec::with_capacity(rows) }
    }

    /// Appends a row.
    pub fn push(&mut self, key: &str, value: &str) {
        self.text.push_str(key);
        let key_end = self.text.len();
        self.text.push_str(value);
        self.cuts.push((key_end, self.text.len()));
    }

    /// Iterates over keys and values.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        let mut begin = 0;
        self.cuts.iter().map(move |&(key_end, end)| {
            let row = (self.text.get(begin..key_end), self.text.get(key_end..end));
            begin = end;
            (row.0.unwrap_or_default(), row.1.unwrap_or_default())
        })
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.cuts.len()
    }

    /// Returns whether no row was emitted.
    pub fn is_empty(&self) -> bool {
        self.cuts.is_empty()
    }

    /// Returns an upper bound of the JSON trees of all keys and values, in bytes.
    pub fn json_bytes(&self) -> usize {
        tree_bytes(self.text.as_bytes())
    }

    /// Returns the bytes of all keys and values.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }
}

/// A function that ended without a result. `Display` gives the reason for a client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FunctionFailure {
    /// The source is not a function.
    #[error("{0}")]
    Compilation(String),
    /// The function threw an exception.
    #[error("{name}: {reason}")]
    Thrown {
        /// The error's name, or the thrown object's first member.
        name: String,
        /// The error's message.
        reason: String,
    },
    /// The function exceeded its time limit.
    #[error("{0}")]
    TimedOut(String),
    /// The function exceeded its limit of memory or stack.
    #[error("{0}")]
    OutOfResources(String),
    /// The function emitted more for a document than a bound of [`ViewFunctions::load`] allows.
    #[error("{0}")]
    TooMuch(String),
    /// The function has not run: all threads are busy, or its group is suspended for a while. The caller may retry.
    #[error("{0}")]
    Busy(String),
    /// This process does not run functions.
    #[error("this process runs no functions of views")]
    NotRun,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_out_as_they_went_in() {
        let mut rows = EmittedRows::with_capacity(2, 8);
        assert!(rows.is_empty());
        let all = [("[1,2]", "null"), ("", ""), ("\"\u{e4}\"", "{\"a\":1}")];
        all.iter().for_each(|(key, value)| rows.push(key, value));
        assert_eq!(rows.iter().collect::<Vec<_>>(), all);
        assert_eq!((rows.len(), rows.bytes()), (3, 20));
    }
}
