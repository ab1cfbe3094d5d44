//! Plans: the reads that answer a query, as data.

use std::ops::Bound;

use flatbed_flatten::json::Value;

use crate::Selector;
use crate::bookmark::Bookmark;
use crate::choose::{Catalog, Choice, RankedIndex, choose};
use crate::error::MangoError;
use crate::find::Find;
use crate::index::Index;
use crate::invalid::InvalidSelector;
use crate::keys::{IdRange, KeyRange, RangePlan, has_no_value, id_ranges, reading};
use crate::normal::Normal;
use crate::ranges::Range;

/// The plan of a query.
///
/// The documents of the ranges are read in order, or from the last to the first if `reverse` is set, behind `after` if
/// it is set. Documents that the residual selector selects are answered. An index of fields has no design documents;
/// those in the index of all ids are skipped.
#[derive(Debug, Clone)]
pub struct Plan<'i> {
    /// The index to read.
    pub index: &'i Index,
    /// The part of the index to read.
    pub source: Source,
    /// The partition to read, for a partitioned json index.
    pub partition: Option<String>,
    /// True to read from the last row to the first.
    pub reverse: bool,
    /// True if keys and ids have all fields that are tested or answered, so that no document is read
    /// ([`Plan::document_of`]).
    pub covering: bool,
    /// The condition that documents in the ranges must still fulfil; `None`: all are answered.
    pub residual: Option<Selector>,
    /// The end of an earlier answer.
    pub after: Option<Bookmark>,
}

/// The part of an index that a plan reads.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    /// Nothing: CouchDB derives from the selector that it selects no document, and answers without bookmark, warning
    /// and statistics.
    Nothing,
    /// Ranges of the index of all ids: ascending and disjoint.
    Ids(Vec<IdRange>),
    /// Ranges of a json index: ascending and disjoint.
    Keys(Vec<KeyRange>),
}

/// Plans a `_find` or `_count`.
///
/// # Errors
/// In CouchDB's words: no index can be used, the bookmark is invalid, or the database has no partitions but the request
/// names one.
pub fn plan<'i>(find: &Find, catalog: &Catalog<'i>) -> Result<Plan<'i>, MangoError> {
    plan_unless(find, catalog, &|| false)
}

/// Like [`plan`], and stops when `stop` returns true before an index.
///
/// # Errors
/// As [`plan`], and if it was stopped.
pub fn plan_unless<'i>(find: &Find, catalog: &Catalog<'i>, stop: &dyn Fn() -> bool) -> Result<Plan<'i>, MangoError> {
    let choice = choose(find, catalog, false, stop)?;
    if find.partition.is_some() && !catalog.partitioned {
        return Err(MangoError::bad("query_parse_error", "`partition` parameter is not supported on this db"));
    }
    // An index was chosen: `choose` has otherwise failed.
    let Some(best) = choice.best() else {
        return Err(MangoError::bad("no_usable_index", "No index exists for this query."));
    };
    let selector = find.selector.normal();
    let (source, residual) = if selects_nothing(&choice, selector) {
        (Source::Nothing, None)
    } else if best.index.is_all_docs() {
        (
            Source::Ids(id_ranges(&selector.conjuncts())),
            Some(selector.clone()).filter(|normal| !matches!(normal, Normal::Everything)),
        )
    } else {
        let RangePlan { ranges, residual } = reading(best.index, selector, stop);
        if stop() {
            return Err(InvalidSelector::Stopped.refused());
        }
        (Source::Keys(ranges), residual)
    };
    let source = match (&find.partition, source) {
        (Some(partition), Source::Ids(ranges)) => Source::Ids(within(partition, ranges)),
        (_, source) => source,
    };
    let partition = find.partition.clone().filter(|_| matches!(source, Source::Keys(_)));
    let after = match &find.bookmark {
        Some(bookmark) if source != Source::Nothing => Some(Bookmark::decode(bookmark)?),
        _ => None,
    };
    let covering = covers(best.index, find);
    Ok(Plan {
        index: best.index,
        source,
        partition,
        reverse: find.sort.descending,
        covering,
        residual: residual.map(Selector::of_normal),
        after,
    })
}

fn within(partition: &str, ranges: Vec<IdRange>) -> Vec<IdRange> {
    let (first, behind) = (format!("{partition}:"), format!("{partition};"));
    let narrowed = ranges.into_iter().filter_map(|IdRange { start, end }| {
        let start = match start {
            Bound::Included(id) | Bound::Excluded(id) if id >= behind => return None,
            Bound::Included(id) if id >= first => Bound::Included(id),
            Bound::Excluded(id) if id >= first => Bound::Excluded(id),
            _ => Bound::Included(first.clone()),
        };
        let end = match end {
            Bound::Included(id) | Bound::Excluded(id) if id < first => return None,
            Bound::Included(id) if id < behind => Bound::Included(id),
            Bound::Excluded(id) if id < behind => Bound::Excluded(id),
            _ => Bound::Excluded(behind.clone()),
        };
        Some(IdRange { start, end })
    });
    narrowed.collect()
}

impl Plan<'_> {
    /// Returns the fields of an index row as a document, for a covering plan.
    pub fn document_of(&self, id: &str, key: &[Value<'_>]) -> Value<'static> {
        self.index.document_of(id, key)
    }

    /// Returns whether the number of rows in the ranges is the number of selected documents. A `_count` then reads no
    /// row.
    pub fn counts_rows(&self) -> bool {
        !self.index.is_all_docs() && self.residual.is_none()
    }
}

/// Returns whether CouchDB answers without reading: the range of the index's first field is empty, or the selector is
/// an `$and` or `$or` without conditions. CouchDB's range of a `$beginsWith` may lack matching strings, so the spans
/// that are read must be empty as well.
pub(crate) fn selects_nothing(choice: &Choice<'_>, selector: &Normal) -> bool {
    let joins_nothing = match selector {
        Normal::All(conditions) | Normal::Any(conditions) => conditions.is_empty(),
        _ => false,
    };
    let is_empty = |index: &Index| index.fields().first().is_some_and(|field| has_no_value(field.name(), selector));
    let best = choice.best().filter(|RankedIndex { ranges, .. }| ranges.as_slice() == [Range::Empty]);
    joins_nothing || best.is_some_and(|best| is_empty(best.index))
}

pub(crate) fn covers(index: &Index, find: &Find) -> bool {
    let Some(fields) = &find.fields else { return false };
    let has = |name: &str| name == "_id" || index.has(name);
    !index.is_all_docs()
        // A row does not show whether a part of the field was an array index.
        && fields.iter().all(|field| has(field.name()) && field.is_shown_as_written())
        && fields_of(find.selector.normal()).iter().all(|name| has(name))
}

/// Returns whether an index has all fields that a query answers; `_explain` reports this for indexes that were not
/// chosen.
pub(crate) fn covers_answer(index: &Index, find: &Find) -> bool {
    let has = |name: &str| name == "_id" || index.has(name);
    find.fields.as_ref().is_some_and(|fields| fields.iter().all(|field| has(field.name())))
}

pub(crate) fn fields_of(selector: &Normal) -> Vec<&str> {
    match selector {
        Normal::Everything => Vec::new(),
        Normal::All(conditions) | Normal::Any(conditions) | Normal::None(conditions) => {
            conditions.iter().flat_map(fields_of).collect()
        }
        Normal::Not(condition) => fields_of(condition),
        Normal::Text(_) => vec!["$default"],
        Normal::At(field, _) => vec![field.name()],
    }
}
