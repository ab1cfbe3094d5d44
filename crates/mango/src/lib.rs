//! Mango (CouchDB's `_find`, `_index`, `_explain` and `filter=_selector`), as far as it needs no I/O: selectors are read
//! from JSON, checked, brought into CouchDB's normal form and matched against documents.
//!
//! A selector is an object of conditions on fields, all of which must hold; `{"a.b":{"$gt":1}}` and
//! `{"a":{"b":{"$gt":1}}}` mean the same field. What each operator means is CouchDB's documentation of selectors.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod answer;
mod bookmark;
mod choose;
mod compile;
mod erlang;
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
mod refused;
mod rows;
mod search;
mod sort;
mod spans;
mod steps;

use flatbed_flatten::json::Value;

pub use answer::{ExecutionStats, HEAD, count_answer, tail, warning, write_tail};
pub use bookmark::Bookmark;
pub use choose::Catalog;
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
pub use projection::project;
pub use refused::Refused;
pub use rows::{IndexReader, RowIndex, RowSelector, RowsError, SelectorReader};
pub use sort::Sort;
use steps::Steps;
pub use steps::{Exhausted, Interrupts, Progress, slice_steps};

/// Members of documents that come from neither their bodies nor their ids and revisions. A selector may test them, but indexes are
/// maintained from bodies, ids and revisions alone, so no index covers them ([`Index::is_of_bodies`]). Members that `_find` never sees
/// (`_deleted_conflicts`, `_local_seq`, `_revisions` and the like) are in no index, either.
pub const BESIDE: [&str; 2] = ["_attachments", "_conflicts"];

/// A compiled selector.
#[derive(Debug, Clone)]
pub struct Selector(Normal);

impl Selector {
    /// Reads a selector.
    ///
    /// # Errors
    /// [`InvalidSelector`]
    pub fn new(selector: &Value<'_>) -> Result<Selector, InvalidSelector> {
        Selector::new_unless(selector, &|| false)
    }

    /// Reads a selector, for as long as `stop` does not say otherwise: regular expressions take their time.
    ///
    /// # Errors
    /// As [`Selector::new`], and [`InvalidSelector::Stopped`].
    pub fn new_unless(selector: &Value<'_>, stop: &dyn Fn() -> bool) -> Result<Selector, InvalidSelector> {
        compile::selector(selector, stop).map(Selector)
    }

    /// Whether a selector is small enough to be read at all: this takes no longer than to look through it.
    ///
    /// # Errors
    /// [`InvalidSelector::NotAnObject`], [`InvalidSelector::TooLarge`].
    pub fn measure(selector: &Value<'_>) -> Result<(), InvalidSelector> {
        compile::bounded(selector)
    }

    /// Whether a selector, or a request with one, compiles within a millisecond: it is small and has no regular expression.
    pub fn is_quick(request: &Value<'_>) -> bool {
        compile::is_quick(request)
    }

    /// Whether a document, an object with its special members, is selected. `stop` is asked now and then.
    ///
    /// # Errors
    /// [`Exhausted`]: after some tenths of a second of work, at the very worst two seconds, or when `stop` says so.
    pub fn matches_unless(&self, document: &Value<'_>, stop: &dyn Fn() -> bool) -> Result<bool, Exhausted> {
        self.0.holds(document, &mut Steps::new(stop))
    }

    /// As [`Selector::matches_unless`], for one slice, which begins at `progress`.
    ///
    /// # Errors
    /// As there, and [`Exhausted::Paused`]: then `progress` is where the next slice begins. No match pauses inside one comparison of a value
    /// with an argument.
    pub fn matches_in_slices(
        &self,
        document: &Value<'_>,
        progress: &mut Progress,
        interrupts: Interrupts<'_>,
    ) -> Result<bool, Exhausted> {
        self.0.holds_in_slices(document, progress, interrupts)
    }

    /// As [`Selector::matches_unless`], without end.
    pub fn matches(&self, document: &Value<'_>) -> bool {
        self.0.holds(document, &mut Steps::endless()).unwrap_or(false)
    }

    /// Whether the selector tests a member of documents, or a field within it. A condition on the document as a whole
    /// (`{"$and":[{"$keyMapMatch":...}]}`) tests every member.
    pub fn asks_about(&self, member: &str) -> bool {
        let is_about = |name: &str| Field::new(name).is_ok_and(|field| field.parts().next() == Some(member));
        plan::fields_of(self.normal()).into_iter().any(|name| name.is_empty() || is_about(name))
    }

    /// About how much is done for a byte of a document, at least 1.
    pub fn weight(&self) -> usize {
        self.0.weight()
    }

    /// In normal form, as CouchDB shows it in `_explain`.
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
