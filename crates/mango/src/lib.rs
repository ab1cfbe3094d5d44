//! Mango without I/O: CouchDB's `_find`, `_index`, `_explain` and `filter=_selector`. Selectors are parsed, checked,
//! brought into CouchDB's normal form and matched against documents.
//!
//! A selector is an object of conditions on fields, all of which must hold; `{"a.b":{"$gt":1}}` and
//! `{"a":{"b":{"$gt":1}}}` mean the same field. CouchDB's documentation of selectors defines the operators.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod answer;
mod bookmark;
mod choose;
mod compile;
mod erlang;
mod error;
mod etf;
mod explain;
mod field;
mod find;
mod index;
mod index_request;
mod invalid;
mod keys;
mod listing;
mod matching;
mod normal;
mod options;
mod order;
mod pattern;
mod pcre;
mod plan;
mod projection;
mod ranges;
mod readings;
mod rows;
mod search;
mod sort;
mod spans;
mod steps;

use flatbed_flatten::json::Value;

pub use answer::{ExecutionStats, HEAD, count_answer, tail, warning, write_tail};
pub use bookmark::Bookmark;
pub use choose::Catalog;
pub use error::MangoError;
pub use explain::{explain, explain_unless};
pub use field::{Field, InvalidFieldName};
pub use find::{Find, fields};
pub use index::Index;
pub use index_request::{IndexRequest, without_index};
pub use invalid::InvalidSelector;
pub use keys::{IdRange, KeyEdge, KeyRange};
pub use listing::{Listing, bulk_delete_answer, design_id, find_index, parse_bulk_delete};
use normal::Normal;
pub use order::compare;
pub use plan::{Plan, Source, plan, plan_unless};
pub use projection::Projector;
pub use rows::{IndexReader, RowIndex, RowSelector, RowsError, SelectorReader};
pub use sort::Sort;
use steps::Steps;
pub use steps::{Interrupts, MatchInterrupted, Progress, slice_steps};

/// Members of documents that are not derived from bodies, ids or revisions. A selector may test them, but indexes are
/// maintained from bodies, ids and revisions alone, so no index covers them ([`Index::is_of_bodies`]). Members that
/// `_find` never sees (`_deleted_conflicts`, `_local_seq`, `_revisions` and the like) are in no index, either.
pub const BESIDE: [&str; 2] = ["_attachments", "_conflicts"];

/// A compiled selector.
#[derive(Debug, Clone)]
pub struct Selector(Normal);

impl Selector {
    /// Compiles a selector.
    ///
    /// # Errors
    /// [`InvalidSelector`]
    pub fn new(selector: &Value<'_>) -> Result<Selector, InvalidSelector> {
        Selector::new_unless(selector, &|| false)
    }

    /// Compiles a selector until `stop` returns true: regular expressions take time to compile.
    ///
    /// # Errors
    /// As [`Selector::new`], and [`InvalidSelector::Stopped`].
    pub fn new_unless(selector: &Value<'_>, stop: &dyn Fn() -> bool) -> Result<Selector, InvalidSelector> {
        compile::selector(selector, stop).map(Selector)
    }

    /// Checks the size of a selector without compiling it.
    ///
    /// # Errors
    /// [`InvalidSelector::NotAnObject`], [`InvalidSelector::TooLarge`].
    pub fn measure(selector: &Value<'_>) -> Result<(), InvalidSelector> {
        compile::bounded(selector)
    }

    /// Returns whether a selector, or a request with one, compiles within a millisecond: it is small and has no regular
    /// expression.
    pub fn is_quick(request: &Value<'_>) -> bool {
        compile::is_quick(request)
    }

    /// Returns whether a document, an object with its special members, is selected. `stop` is called about every 10,000
    /// steps.
    ///
    /// # Errors
    /// [`MatchInterrupted`]: after some tenths of a second of work, at the very worst two seconds, or if `stop` returns
    /// true.
    pub fn matches_unless(&self, document: &Value<'_>, stop: &dyn Fn() -> bool) -> Result<bool, MatchInterrupted> {
        self.0.holds(document, &mut Steps::new(stop))
    }

    /// Like [`Selector::matches_unless`], for one slice, which begins at `progress`.
    ///
    /// # Errors
    /// As there, and [`MatchInterrupted::Paused`]: `progress` is then the start of the next slice. No match pauses
    /// inside one comparison of a value with an argument.
    pub fn matches_in_slices(
        &self,
        document: &Value<'_>,
        progress: &mut Progress,
        interrupts: Interrupts<'_>,
    ) -> Result<bool, MatchInterrupted> {
        self.0.holds_in_slices(document, progress, interrupts)
    }

    /// Like [`Selector::matches_unless`], without a bound.
    pub fn matches(&self, document: &Value<'_>) -> bool {
        self.0.holds(document, &mut Steps::endless()).unwrap_or(false)
    }

    /// Returns whether the selector tests a member of documents, or a field within it. A condition on the document as a
    /// whole (`{"$and":[{"$keyMapMatch":...}]}`) tests every member.
    pub fn asks_about(&self, member: &str) -> bool {
        let is_about = |name: &str| Field::new(name).is_ok_and(|field| field.parts().next() == Some(member));
        plan::fields_of(self.normal()).into_iter().any(|name| name.is_empty() || is_about(name))
    }

    /// Returns the approximate work for a byte of a document, at least 1.
    pub fn weight(&self) -> usize {
        self.0.weight()
    }

    /// Returns the normal form, as CouchDB shows it in `_explain`.
    pub fn to_json(&self) -> Value<'static> {
        self.0.to_json()
    }

    pub(crate) fn normal(&self) -> &Normal {
        &self.0
    }

    pub(crate) fn of_normal(normal: Normal) -> Selector {
        Selector(normal)
    }
}
