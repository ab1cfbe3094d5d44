//! Chooses the index of a query as CouchDB does.

use std::cmp::Ordering;

use flatbed_flatten::json::Value;

use crate::error::MangoError;
use crate::find::Find;
use crate::index::Index;
use crate::invalid::InvalidSelector;
use crate::listing::design_id;
use crate::normal::{Comparison, Normal, Term};
use crate::ranges::{Edge, Range, field_ranges, indexable_fields};

/// The parts of a database that a plan depends on.
#[derive(Debug, Clone, Copy)]
pub struct Catalog<'i> {
    /// The database's name.
    pub database: &'i str,
    /// True if the database is partitioned.
    pub partitioned: bool,
    /// All indexes of the database, including the index of all ids.
    pub indexes: &'i [Index],
}

/// Why an index is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unusable {
    TextSearch,
    Fields,
    SortOrder,
}

impl Unusable {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Unusable::TextSearch => "needs_text_search",
            Unusable::Fields => "field_mismatch",
            Unusable::SortOrder => "sort_order_mismatch",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Choice<'i> {
    pub(crate) all: Vec<&'i Index>,
    /// The examined indexes, each with the reason why it cannot be used, if any.
    pub(crate) usable: Vec<(&'i Index, Option<Unusable>)>,
    /// The usable indexes that the request permits.
    pub(crate) left: Vec<&'i Index>,
    /// Those of the preferred type, the best first.
    pub(crate) ranked: Vec<RankedIndex<'i>>,
}

#[derive(Debug)]
pub(crate) struct RankedIndex<'i> {
    pub(crate) index: &'i Index,
    pub(crate) ranges: Vec<Range>,
    /// The number of the selector's range fields that are not a prefix of the index.
    pub(crate) distance: usize,
}

impl<'i> Choice<'i> {
    /// Returns the best index. `None` occurs only for `_explain`.
    pub(crate) fn best(&self) -> Option<&RankedIndex<'i>> {
        self.ranked.first()
    }
}

/// Chooses an index. `stop` is checked before each index.
///
/// # Errors
/// No index can be used; with `for_explain` only if the named index cannot be used and no other may be. `stop` returned
/// true.
pub(crate) fn choose<'i>(
    find: &Find,
    catalog: &Catalog<'i>,
    for_explain: bool,
    stop: &dyn Fn() -> bool,
) -> Result<Choice<'i>, MangoError> {
    let selector = find.selector.normal();
    let mut all: Vec<&Index> = catalog.indexes.iter().collect();
    all.sort_by(|a, b| a.compare(b));
    all.dedup();
    let seen = all.iter().filter(|index| index.partial().is_none() || is_named(find, index));
    let kept = seen.filter(|index| index.is_of_bodies());
    let in_scope = kept.filter(|index| index.is_all_docs() || index.is_partitioned() == find.partition.is_some());
    let mut usable = Vec::new();
    for index in in_scope {
        if stop() {
            return Err(InvalidSelector::Stopped.refused());
        }
        usable.push((*index, unusable(index, selector, &find.sort.fields)));
    }
    let can: Vec<&Index> = usable.iter().filter(|(_, why)| why.is_none()).map(|(index, _)| *index).collect();
    if can.is_empty() && !for_explain {
        return Err(no_index_for_sort(find, catalog));
    }
    let mut left: Vec<&Index> = can.iter().filter(|index| is_named(find, index)).copied().collect();
    if left.is_empty() {
        if !find.allow_fallback && (!find.use_index.is_empty() || can.len() <= 1) {
            return Err(named_is_unusable(find));
        }
        left = can;
    }
    let has_json = left.iter().any(|index| !index.is_all_docs());
    let preferred = left.iter().copied().filter(|index| index.is_all_docs() != has_json);
    let ranked = ranked(preferred.collect(), selector);
    Ok(Choice { all, usable, left, ranked })
}

pub(crate) fn is_named(find: &Find, index: &Index) -> bool {
    match find.use_index.as_slice() {
        [ddoc] => index.ddoc() == Some(&design_id(ddoc)),
        [ddoc, name] => index.ddoc() == Some(&design_id(ddoc)) && index.name() == name,
        _ => false,
    }
}

fn no_index_for_sort(find: &Find, catalog: &Catalog<'_>) -> MangoError {
    let kind = match (catalog.partitioned, find.partition.is_some()) {
        (false, _) => "",
        (true, true) => "partitioned ",
        (true, false) => "global ",
    };
    let reason = format!("No {kind}index exists for this sort, try indexing by the sort fields.");
    MangoError::bad("no_usable_index", reason)
}

fn named_is_unusable(find: &Find) -> MangoError {
    let suffix = "specified by `use_index` could not be found or it is not suitable.";
    let reason = match find.use_index.as_slice() {
        [ddoc] => format!("{} {suffix}", design_id(ddoc)),
        [ddoc, name] => format!("{}, {name} {suffix}", design_id(ddoc)),
        _ => "You must specify an index with the `use_index` parameter.".to_owned(),
    };
    MangoError::bad("invalid_index", reason)
}

/// Returns why an index cannot answer a query; `None`: it can.
fn unusable(index: &Index, selector: &Normal, sort: &[String]) -> Option<Unusable> {
    let columns: Vec<&str> = index.fields().iter().map(|field| field.name()).collect();
    if index.is_all_docs() {
        if sort.is_empty() {
            return None;
        }
        if !indexable_fields(selector).contains(&"_id") {
            return Some(Unusable::Fields);
        }
        let is_by_id = matches!(sort, [field] if field == "_id");
        return (!is_by_id).then_some(Unusable::SortOrder);
    }
    if has_text(selector) {
        return Some(Unusable::TextSearch);
    }
    // Every document has an id and a revision, and a sort excludes documents without its fields.
    let required =
        columns.iter().filter(|name| !matches!(**name, "_id" | "_rev") && !sort.iter().any(|field| field == **name));
    let mut required: Vec<&str> = required.copied().collect();
    remove_required(&[selector], &mut required);
    if !required.is_empty() {
        return Some(Unusable::Fields);
    }
    (!can_sort(&columns, sort, selector)).then_some(Unusable::SortOrder)
}

fn has_text(selector: &Normal) -> bool {
    match selector {
        Normal::Text(_) => true,
        Normal::All(conditions) | Normal::Any(conditions) | Normal::None(conditions) => conditions.iter().any(has_text),
        Normal::Not(condition) => has_text(condition),
        Normal::Everything | Normal::At(..) => false,
    }
}

/// Removes from `fields` those that a document needs to match all of these conditions.
fn remove_required(conditions: &[&Normal], fields: &mut Vec<&str>) {
    for condition in conditions {
        match condition {
            Normal::All(conditions) => remove_required(&conditions.iter().collect::<Vec<_>>(), fields),
            // Every alternative must need the field. CouchDB requires no field if there are no alternatives, which
            // loses documents.
            Normal::Any(alternatives) if alternatives.is_empty() => {}
            Normal::Any(alternatives) => {
                let left = |alternative: &Normal| {
                    let mut left = fields.clone();
                    remove_required(&[alternative], &mut left);
                    left
                };
                let left: Vec<&str> = alternatives.iter().flat_map(left).collect();
                fields.retain(|field| left.contains(field));
            }
            Normal::At(_, Term::Exists(false)) => {}
            Normal::At(field, _) => fields.retain(|name| *name != field.name()),
            Normal::Everything | Normal::Not(_) | Normal::None(_) | Normal::Text(_) => {}
        }
    }
}

/// Returns whether an index has the order of a sort: the sort's fields are adjacent in it, and all fields before them
/// have one value.
fn can_sort(columns: &[&str], sort: &[String], selector: &Normal) -> bool {
    let Some(first) = sort.first() else { return true };
    let conjuncts = selector.conjuncts();
    let is_constant = |name: &str| {
        conjuncts.iter().any(|condition| match condition {
            Normal::At(field, Term::Compare(Comparison::Equal, _)) => field.name() == name,
            _ => false,
        })
    };
    let Some(from) = columns.iter().position(|column| column == first) else { return false };
    let (before, behind) = columns.split_at_checked(from).unwrap_or((columns, &[]));
    before.iter().all(|column| is_constant(column))
        && behind.len() >= sort.len()
        && behind.iter().zip(sort).all(|(column, field)| column == field)
}

/// Sorts by unused ranges, then by the number of fields, then by name.
fn ranked<'i>(indexes: Vec<&'i Index>, selector: &Normal) -> Vec<RankedIndex<'i>> {
    let ranges = field_ranges(selector);
    let rank = |index: &'i Index| {
        let of = |name: &str| {
            let at = ranges.binary_search_by(|(field, _)| (*field).cmp(name)).ok()?;
            ranges.get(at).map(|(_, range)| range.clone())
        };
        // Reading all ids is the last resort.
        let low = Some(Edge { value: Value::Null, within: false });
        let all_ids = index.is_all_docs().then_some(Range::Between { low, high: None });
        let count = ranges.len() + usize::from(index.is_all_docs());
        let first = index.fields().iter().map_while(|field| of(field.name()).or_else(|| all_ids.clone()));
        let first: Vec<Range> = first.collect();
        let distance = count - first.len();
        RankedIndex { index, ranges: first, distance }
    };
    let mut ranked: Vec<RankedIndex<'i>> = indexes.into_iter().map(rank).collect();
    let order = |a: &RankedIndex<'_>, b: &RankedIndex<'_>| -> Ordering {
        let fields = |ranked: &RankedIndex<'_>| ranked.index.fields().len();
        (a.distance.cmp(&b.distance)).then(fields(a).cmp(&fields(b))).then_with(|| a.index.compare(b.index))
    };
    ranked.sort_by(order);
    ranked
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use flatbed_flatten::json::{Limits, parse};

    use super::*;
    use crate::explain::{explain, explain_unless};
    use crate::normal::CONJUNCTS;
    use crate::plan::{plan, plan_unless};

    fn find(selector: &str) -> Find {
        let body = format!(r#"{{"selector":{selector}}}"#);
        Find::parse(&parse(body.as_bytes(), &Limits::default()).unwrap(), None, &|| false).unwrap()
    }

    fn index(design: &str, field: &str) -> Index {
        let map = format!(r#"{{"map":{{"fields":{{"{field}":"asc"}}}},"options":{{"def":{{}}}}}}"#);
        let body = format!(r#"{{"language":"query","views":{{"i":{map}}}}}"#);
        let body = parse(body.as_bytes(), &Limits::default()).unwrap();
        Index::of_design_document(&format!("_design/{design}"), &body, false).remove(0)
    }

    /// Counts the conditions visited to plan and explain a query with `count` conditions.
    fn gone_through(condition: impl Fn(usize) -> String, count: usize, indexes: &[Index]) -> usize {
        let conditions: Vec<String> = (0..count).map(condition).collect();
        let find = find(&format!(r#"{{"$and":[{{"a":1}},{}]}}"#, conditions.join(",")));
        let catalog = Catalog { database: "db", partitioned: false, indexes };
        CONJUNCTS.set(0);
        plan(&find, &catalog).unwrap();
        explain(&find, &catalog).unwrap();
        CONJUNCTS.get()
    }

    #[test]
    fn a_plan_takes_little_more_for_each_condition() {
        let field = |n: usize| format!(r#"{{"f{n}":1}}"#);
        // The alternatives narrow the query as much as the other condition.
        let either = |_: usize| r#"{"$or":[{"a":1},{"b":1}]}"#.to_owned();
        let ids = [Index::all_docs()];
        let both = [Index::all_docs(), index("d", "a")];
        for indexes in [&ids[..], &both[..]] {
            for condition in [&field as &dyn Fn(usize) -> String, &either] {
                let (few, many) = (gone_through(condition, 50, indexes), gone_through(condition, 800, indexes));
                assert!(many < 16 * few * 2, "{few} of 50 conditions, {many} of 800");
            }
        }
    }

    #[test]
    fn what_nobody_waits_for_is_not_planned() {
        let mut indexes = vec![Index::all_docs()];
        indexes.extend((0..50).map(|n| index(&format!("d{n}"), "a")));
        let (find, asked) = (find(r#"{"a":1}"#), Cell::new(0));
        let catalog = Catalog { database: "db", partitioned: false, indexes: &indexes };
        let stop = || {
            asked.set(asked.get() + 1);
            asked.get() == 3
        };
        assert!(plan_unless(&find, &catalog, &stop).is_err());
        assert_eq!(asked.replace(0), 3);
        assert!(explain_unless(&find, &catalog, &stop).is_err());
        assert_eq!(asked.get(), 3);
    }
}
