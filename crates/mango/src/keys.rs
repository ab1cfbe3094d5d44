//! The ranges of index keys that a plan reads.

use std::collections::{HashMap, HashSet};
use std::ops::Bound;

use flatbed_flatten::json::Value;

use crate::field::Field;
use crate::index::Index;
use crate::normal::{Comparison, Normal, Term};
use crate::order::{Order, compare};
use crate::spans::{RANGES_MAX, Spans};

/// The largest total number of `$or` alternatives that are examined for narrower ranges.
const ALTERNATIVES_MAX: usize = RANGES_MAX;

/// A position in an index: before or behind all keys with this prefix. Without values it is before or behind all keys.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyEdge {
    /// Values of the index's first fields.
    pub values: Vec<Value<'static>>,
    /// True if the position is behind the keys with the prefix, false if before.
    pub behind: bool,
}

/// The keys between two positions. Keys are the values of an index's fields, in CouchDB's order of arrays.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyRange {
    /// The position before the first key.
    pub start: KeyEdge,
    /// The position behind the last key.
    pub end: KeyEdge,
}

/// A range of ids, in byte order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdRange {
    /// The lower bound.
    pub start: Bound<String>,
    /// The upper bound.
    pub end: Bound<String>,
}

impl KeyEdge {
    fn is_before(&self, key: &[Value<'_>]) -> bool {
        for (at, value) in self.values.iter().enumerate() {
            let Some(other) = key.get(at) else { return false };
            match compare(value, other) {
                std::cmp::Ordering::Equal => {}
                order => return order.is_lt(),
            }
        }
        !self.behind
    }
}

impl KeyRange {
    fn all() -> KeyRange {
        let edge = |behind| KeyEdge { values: Vec::new(), behind };
        KeyRange { start: edge(false), end: edge(true) }
    }

    /// Returns whether a key is in the range.
    pub fn has(&self, key: &[Value<'_>]) -> bool {
        self.start.is_before(key) && !self.end.is_before(key)
    }
}

pub(crate) fn id_ranges(conditions: &[&Normal]) -> Vec<IdRange> {
    // All other types sort before strings.
    let low = |bound: Bound<Value<'static>>| match bound {
        Bound::Included(Value::String(id)) => Bound::Included(id.into_owned()),
        Bound::Excluded(Value::String(id)) => Bound::Excluded(id.into_owned()),
        _ => Bound::Unbounded,
    };
    let high = |bound: Bound<Value<'static>>| match bound {
        Bound::Included(Value::String(id)) => Some(Bound::Included(id.into_owned())),
        Bound::Excluded(Value::String(id)) => Some(Bound::Excluded(id.into_owned())),
        Bound::Unbounded => Some(Bound::Unbounded),
        _ => None,
    };
    let spans = Spans::of(Fields::of(conditions).terms("_id"), Order::Raw).list.into_iter();
    spans.filter_map(|span| Some(IdRange { start: low(span.low), end: high(span.high)? })).collect()
}

pub(crate) fn has_no_value(field: &str, selector: &Normal) -> bool {
    Fields::of(&selector.conjuncts()).spans(field).list.is_empty()
}

/// Conditions that must all hold, by field name.
struct Fields<'n>(HashMap<&'n str, Vec<&'n Term>>);

impl<'n> Fields<'n> {
    fn of(conditions: &[&'n Normal]) -> Fields<'n> {
        #[cfg(test)]
        crate::normal::CONJUNCTS.set(crate::normal::CONJUNCTS.get() + conditions.len());
        let mut fields: HashMap<&str, Vec<&Term>> = HashMap::new();
        for condition in conditions {
            if let Normal::At(field, term) = condition {
                fields.entry(field.name()).or_default().push(term);
            }
        }
        Fields(fields)
    }

    fn terms(&self, field: &str) -> &[&'n Term] {
        self.0.get(field).map_or(&[], Vec::as_slice)
    }

    /// Ids are compared by their bytes.
    fn spans(&self, field: &str) -> Spans {
        Spans::of(self.terms(field), if field == "_id" { Order::Raw } else { Order::Collated })
    }
}

pub(crate) struct RangePlan {
    /// Disjoint ranges in ascending order.
    pub(crate) ranges: Vec<KeyRange>,
    /// The condition that documents of these keys must still fulfil; `None`: no condition.
    pub(crate) residual: Option<Normal>,
}

/// Returns the keys that may fulfil a selector. They are no longer narrowed once `stop` returns true.
pub(crate) fn reading(index: &Index, selector: &Normal, stop: &dyn Fn() -> bool) -> RangePlan {
    let conjuncts = selector.conjuncts();
    let fields = Fields::of(&conjuncts);
    let spans: Vec<Spans> = index.fields().iter().map(|field| fields.spans(field.name())).collect();
    let Some(plain) = ranges_of(index, &spans) else {
        return RangePlan { ranges: vec![KeyRange::all()], residual: Some(selector.clone()) };
    };
    let alternatives = conjuncts.iter().filter_map(|condition| match condition {
        Normal::Any(alternatives) => Some(alternatives),
        _ => None,
    });
    let mut left = ALTERNATIVES_MAX;
    let mut narrower = alternatives.filter_map(|alternatives| {
        left = left.checked_sub(alternatives.len())?;
        alternatives_of(index, alternatives, &spans, stop).filter(|ranges| *ranges != plain)
    });
    let ranges = narrower.next().unwrap_or_else(|| plain.clone());
    RangePlan { ranges, residual: residual(index, &conjuncts, &spans) }
}

/// Returns the ranges of all alternatives of an `$or`, each intersected with the other conditions. `None`: there are
/// too many or no alternatives, or `stop` returned true.
fn alternatives_of(
    index: &Index,
    alternatives: &[Normal],
    beside: &[Spans],
    stop: &dyn Fn() -> bool,
) -> Option<Vec<KeyRange>> {
    let mut ranges = Vec::new();
    for alternative in alternatives {
        if stop() {
            return None;
        }
        let fields = Fields::of(&alternative.conjuncts());
        let both = index.fields().iter().zip(beside);
        let spans: Vec<Spans> = both.map(|(field, beside)| fields.spans(field.name()).intersection(beside)).collect();
        ranges.extend(ranges_of(index, &spans)?);
        if ranges.len() > RANGES_MAX {
            return None;
        }
    }
    (!alternatives.is_empty()).then(|| joined(ranges))
}

/// Returns the ranges of these values of the index's fields. `None`: there are too many.
fn ranges_of(index: &Index, spans: &[Spans]) -> Option<Vec<KeyRange>> {
    let spans: Vec<Spans> = index.fields().iter().zip(spans).map(|(field, spans)| of_keys(field, spans)).collect();
    // No index has an entry for a missing value.
    if spans.iter().any(|spans| spans.list.is_empty()) {
        return Some(Vec::new());
    }
    let mut ranges = Vec::new();
    extend(&mut Vec::new(), &spans, &mut ranges).then(|| joined(ranges))
}

/// Ids are compared by bytes but sorted as strings in an index of keys, so only single ids narrow the range.
fn of_keys(field: &Field, spans: &Spans) -> Spans {
    if field.name() != "_id" || spans.are_points() { spans.clone() } else { Spans::all(Order::Collated) }
}

/// Adds the ranges behind a key prefix. Returns `false` if there are too many.
fn extend(prefix: &mut Vec<Value<'static>>, spans: &[Spans], ranges: &mut Vec<KeyRange>) -> bool {
    let edge = |prefix: &[Value<'static>], value: Option<&Value<'static>>, behind| {
        let values = prefix.iter().chain(value).cloned().collect();
        KeyEdge { values, behind }
    };
    let Some((first, rest)) = spans.split_first().filter(|(first, _)| !first.is_all()) else {
        ranges.push(KeyRange { start: edge(prefix, None, false), end: edge(prefix, None, true) });
        return ranges.len() <= RANGES_MAX;
    };
    for span in &first.list {
        if let Some(value) = span.single(Order::Collated) {
            prefix.push(value.clone());
            let fits = extend(prefix, rest, ranges);
            prefix.pop();
            if !fits {
                return false;
            }
            continue;
        }
        let start = match &span.low {
            Bound::Unbounded => edge(prefix, None, false),
            Bound::Included(value) => edge(prefix, Some(value), false),
            Bound::Excluded(value) => edge(prefix, Some(value), true),
        };
        let end = match &span.high {
            Bound::Unbounded => edge(prefix, None, true),
            Bound::Included(value) => edge(prefix, Some(value), true),
            Bound::Excluded(value) => edge(prefix, Some(value), false),
        };
        ranges.push(KeyRange { start, end });
    }
    ranges.len() <= RANGES_MAX
}

fn joined(mut ranges: Vec<KeyRange>) -> Vec<KeyRange> {
    ranges.sort_by(|a, b| edges(&a.start, &b.start));
    let mut joined: Vec<KeyRange> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if edges(&range.start, &last.end).is_le() => {
                if edges(&last.end, &range.end).is_lt() {
                    last.end = range.end;
                }
            }
            _ => joined.push(range),
        }
    }
    joined
}

fn edges(a: &KeyEdge, b: &KeyEdge) -> std::cmp::Ordering {
    use std::cmp::Ordering;
    for (x, y) in a.values.iter().zip(&b.values) {
        match compare(x, y) {
            Ordering::Equal => {}
            order => return order,
        }
    }
    // The shorter prefix is before or behind all longer keys.
    let side = |edge: &KeyEdge| if edge.behind { Ordering::Greater } else { Ordering::Less };
    match a.values.len().cmp(&b.values.len()) {
        Ordering::Equal => a.behind.cmp(&b.behind),
        Ordering::Less => side(a),
        Ordering::Greater => side(b).reverse(),
    }
}

/// Returns the conditions that the ranges do not cover, which documents of these keys must still fulfil. `None`: no
/// condition.
fn residual(index: &Index, conjuncts: &[&Normal], spans: &[Spans]) -> Option<Normal> {
    let mut said: HashSet<&str> = HashSet::new();
    for (field, spans) in index.fields().iter().zip(spans) {
        said.insert(field.name());
        // The next field's range is exact only if this field has single values.
        if !of_keys(field, spans).are_points() {
            break;
        }
    }
    let is_said = |condition: &Normal| match condition {
        Normal::At(field, term) => said.contains(field.name()) && is_exact(term, field.name()),
        _ => false,
    };
    // Every indexed document has all fields of the index.
    let exists = |condition: &Normal| match condition {
        Normal::At(field, Term::Exists(true)) => index.has(field.name()),
        _ => false,
    };
    let left: Vec<Normal> = conjuncts
        .iter()
        .filter(|condition| !is_said(condition) && !exists(condition))
        .map(|condition| (*condition).clone())
        .collect();
    match left.len() {
        0 => None,
        1 => left.into_iter().next(),
        _ => Some(Normal::All(left)),
    }
}

fn is_exact(term: &Term, field: &str) -> bool {
    match term {
        Term::Compare(Comparison::NotEqual, _) => false,
        Term::Compare(..) => field != "_id",
        _ => false,
    }
}
