//! Who runs the functions of views: the layer knows what they are asked and runs none itself.
//!
//! Whoever puts the program together gives the layer a [`ViewFunctions`]. Where nobody does, no group is built and none that
//! is reduced by a written function can be read.

use std::sync::Arc;

use flatbed_flatten::json::tree_bytes;
use futures_util::future::BoxFuture;

use crate::view_bounds::ViewBounds;

/// What makes functions of their sources.
pub trait ViewFunctions: Send + Sync {
    /// The functions of a group of views. `database` tells its database from all others, those that had its name before
    /// included. Of a document that emits more than `bounds` in one view, no rows need be given:
    /// [`FunctionFailure::TooMuch`]. Nothing is run here.
    fn load(&self, database: &str, source: &GroupSource, bounds: ViewBounds) -> Arc<dyn GroupFunctions>;
}

/// The sources of a group's functions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupSource {
    /// What maps can `require` as `views/lib/...`: JSON text.
    pub lib: Option<String>,
    /// A view's name for messages, and the source of its map.
    pub maps: Vec<(String, String)>,
    /// The same of reduces that are written, not built in.
    pub reduces: Vec<(String, String)>,
}

/// The functions of a group of views.
pub trait GroupFunctions: Send + Sync {
    /// Whether all are functions.
    ///
    /// # Errors
    /// [`FunctionFailure::Compilation`], and those that any call may have.
    fn check(&self) -> BoxFuture<'_, Result<(), FunctionFailure>>;

    /// Maps documents, JSON texts with their special members, by all maps of the group.
    ///
    /// # Errors
    /// Nothing can be said of any document: see [`GroupFunctions::check`].
    fn map(&self, documents: Vec<Vec<u8>>) -> BoxFuture<'_, Result<Mapped, FunctionFailure>>;

    /// Reduces, by written reduces of the group. For each reduction, for each of its functions: the result as JSON text.
    ///
    /// # Errors
    /// As [`GroupFunctions::map`].
    fn reduce<'a>(&'a self, reductions: &'a [Reduction<'a>]) -> BoxFuture<'a, Result<Reduced, FunctionFailure>>;
}

/// For each reduction, for each of its functions: the result as JSON text, or why there is none.
pub type Reduced = Vec<Vec<Result<String, FunctionFailure>>>;

/// What is to be reduced.
#[derive(Debug, Clone)]
pub struct Reduction<'a> {
    /// By which functions: places in [`GroupSource::reduces`].
    pub functions: &'a [usize],
    /// What they are given.
    pub input: ReduceInput<'a>,
}

/// What a reduce is given.
#[derive(Debug, Clone, Copy)]
pub enum ReduceInput<'a> {
    /// Rows: key, document id, value; all but the id as JSON text. CouchDB gives the last row first.
    Rows(&'a [(&'a str, &'a str, &'a str)]),
    /// What it has given before, as JSON text.
    Reductions(&'a [&'a str]),
}

/// The outcome of mapping a batch of documents.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Mapped {
    /// For each document in turn, for each map of the group: its rows, or why it has none.
    pub documents: Vec<Vec<Result<EmittedRows, FunctionFailure>>>,
    /// Why the next document and those after it have no answer. A function ended the whole query ([`FunctionFailure::Thrown`]) or
    /// broke a bound on the next document. [`FunctionFailure::Busy`] is not about the document, and the caller retries later.
    /// `None` with fewer documents than were requested, but at least one: the answer reached its size limit, and the caller requests
    /// the rest.
    pub stopped: Option<FunctionFailure>,
    /// The first lines that functions logged.
    pub logs: Vec<String>,
}

/// The rows of one document in one view, in the order in which they were emitted: keys and values as JSON text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EmittedRows {
    text: String,
    /// Where each row's key ends, and its value.
    cuts: Vec<(usize, usize)>,
}

impl EmittedRows {
    /// No rows yet, with room for so many of so many bytes in all.
    pub fn with_capacity(rows: usize, bytes: usize) -> EmittedRows {
        EmittedRows { text: String::with_capacity(bytes), cuts: Vec::with_capacity(rows) }
    }

    /// Adds a row.
    pub fn push(&mut self, key: &str, value: &str) {
        self.text.push_str(key);
        let key_end = self.text.len();
        self.text.push_str(value);
        self.cuts.push((key_end, self.text.len()));
    }

    /// Keys and values.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        let mut begin = 0;
        self.cuts.iter().map(move |&(key_end, end)| {
            let row = (self.text.get(begin..key_end), self.text.get(key_end..end));
            begin = end;
            (row.0.unwrap_or_default(), row.1.unwrap_or_default())
        })
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.cuts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.cuts.is_empty()
    }

    /// The upper bound of the JSON trees of all keys and values, in bytes.
    pub(crate) fn json_bytes(&self) -> usize {
        tree_bytes(self.text.as_bytes())
    }

    /// Bytes of all keys and values.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }
}

/// How a function ended without a result. Each says what is wrong in words for a client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FunctionFailure {
    /// Its text is no function.
    #[error("{0}")]
    Compilation(String),
    /// It threw.
    #[error("{name}: {reason}")]
    Thrown {
        /// The error's name, or the thrown object's first member.
        name: String,
        /// What it says.
        reason: String,
    },
    /// It ran for too long.
    #[error("{0}")]
    TimedOut(String),
    /// It took more memory or stack than it may.
    #[error("{0}")]
    OutOfResources(String),
    /// It emitted more for a document than a bound of [`ViewFunctions::load`] allows.
    #[error("{0}")]
    TooMuch(String),
    /// It has not run: others keep all threads, or none of its group is run for a while. It may be asked for again.
    #[error("{0}")]
    Busy(String),
    /// This process has nobody who runs functions.
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
