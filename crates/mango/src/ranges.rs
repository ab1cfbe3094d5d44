//! Ranges of the values of one field, as CouchDB derives them from a selector: they choose the index, and `_explain`
//! shows them.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use flatbed_flatten::json::Value;

use crate::normal::{Comparison, Normal, Term};
use crate::order::Order;

/// The range that CouchDB derives for a field.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Range {
    Empty,
    Between { low: Option<Edge>, high: Option<Edge> },
    Equal(Value<'static>),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Edge {
    pub(crate) value: Value<'static>,
    /// True if the bound itself is in the range.
    pub(crate) within: bool,
}

/// Returns the fields with conditions that an index can use, sorted by name, without duplicates.
pub(crate) fn indexable_fields(selector: &Normal) -> Vec<&str> {
    let indexable = |condition: &&Normal| match condition {
        Normal::At(_, term) => is_indexable(term),
        _ => false,
    };
    let mut names: Vec<&str> = selector.conjuncts().into_iter().filter(indexable).filter_map(name).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn name(condition: &Normal) -> Option<&str> {
    match condition {
        Normal::At(field, _) => Some(field.name()),
        _ => None,
    }
}

fn is_indexable(term: &Term) -> bool {
    match term {
        Term::Compare(comparison, _) => *comparison != Comparison::NotEqual,
        Term::BeginsWith(_) | Term::Exists(_) => true,
        _ => false,
    }
}

/// Returns the range of each field of [`indexable_fields`], in the same order. An empty range is the only one returned.
pub(crate) fn field_ranges(selector: &Normal) -> Vec<(&str, Range)> {
    let mut fields: BTreeMap<&str, OfField> = BTreeMap::new();
    for condition in selector.conjuncts() {
        if let Normal::At(field, term) = condition {
            let known = fields.entry(field.name()).or_default();
            known.is_indexable |= is_indexable(term);
            known.range = std::mem::take(&mut known.range).narrowed_by(field.name(), term);
        }
    }
    let ranges = fields.into_iter().filter(|(_, known)| known.is_indexable).map(|(name, known)| (name, known.range));
    let ranges: Vec<(&str, Range)> = ranges.collect();
    match ranges.iter().find(|(_, range)| *range == Range::Empty) {
        Some((name, _)) => vec![(*name, Range::Empty)],
        None => ranges,
    }
}

#[derive(Default)]
struct OfField {
    is_indexable: bool,
    range: Range,
}

impl Default for Range {
    fn default() -> Range {
        Range::Between { low: None, high: None }
    }
}

impl Range {
    fn narrowed_by(self, field: &str, term: &Term) -> Range {
        // CouchDB uses the collation for ids here, and loses ids that byte order sorts elsewhere.
        let order = if field == "_id" { Order::Raw } else { Order::Collated };
        match term {
            Term::Compare(comparison, argument) => self.narrowed(order, *comparison, argument),
            // U+FFFF is the last character in the order of strings.
            Term::BeginsWith(prefix) => self
                .narrowed(order, Comparison::GreaterOrEqual, &Value::String(prefix.clone().into()))
                .narrowed(order, Comparison::LessOrEqual, &Value::String(format!("{prefix}\u{ffff}").into())),
            _ => self,
        }
    }

    fn narrowed(self, order: Order, comparison: Comparison, argument: &Value<'static>) -> Range {
        let compare = |a: &Value<'_>, b: &Value<'_>| order.compare(a, b);
        let (mut low, mut high) = match self {
            Range::Empty => return Range::Empty,
            Range::Equal(value) => {
                let edge = Edge { value, within: true };
                (Some(edge.clone()), Some(edge))
            }
            Range::Between { low, high } => (low, high),
        };
        let edge = |within| Some(Edge { value: argument.clone(), within });
        if matches!(comparison, Comparison::Greater | Comparison::GreaterOrEqual | Comparison::Equal) {
            let within = comparison != Comparison::Greater;
            // The greater bound; of equal bounds the exclusive one.
            low = match low {
                Some(old) => match compare(argument, &old.value) {
                    Ordering::Less => Some(old),
                    Ordering::Equal if !old.within => Some(old),
                    _ => edge(within),
                },
                None => edge(within),
            };
        }
        if matches!(comparison, Comparison::Less | Comparison::LessOrEqual | Comparison::Equal) {
            let within = comparison != Comparison::Less;
            high = match high {
                Some(old) => match compare(argument, &old.value) {
                    Ordering::Greater => Some(old),
                    Ordering::Equal if !old.within => Some(old),
                    _ => edge(within),
                },
                None => edge(within),
            };
        }
        if let (Some(low), Some(high)) = (&low, &high) {
            match compare(&low.value, &high.value) {
                Ordering::Less => {}
                Ordering::Equal if low.within && high.within => {
                    let is_argument = compare(argument, &low.value).is_eq();
                    return Range::Equal(if is_argument { argument.clone() } else { low.value.clone() });
                }
                _ => return Range::Empty,
            }
        }
        Range::Between { low, high }
    }
}

/// Returns the first and last key of the read, as `_explain` shows them, from the ranges of the index's first fields.
pub(crate) fn shown_keys(ranges: &[Range]) -> (Value<'static>, Value<'static>) {
    let (mut start, mut end) = (Vec::new(), Vec::new());
    for range in ranges {
        match range {
            Range::Equal(value) => start.push(value.clone()),
            Range::Between { low: Some(low), .. } => start.push(low.value.clone()),
            _ => break,
        }
    }
    for range in ranges {
        match range {
            Range::Equal(value) => end.push(value.clone()),
            Range::Between { high: Some(high), .. } => end.push(high.value.clone()),
            _ => break,
        }
    }
    end.push(max());
    (Value::Array(start), Value::Array(end))
}

/// Like [`shown_keys`], for the index of all ids.
pub(crate) fn shown_ids(range: &Range) -> (Value<'static>, Value<'static>) {
    match range {
        Range::Equal(value) => (value.clone(), value.clone()),
        Range::Between { low, high } => {
            let low = low.as_ref().map_or(Value::String("".into()), |edge| edge.value.clone());
            (low, high.as_ref().map_or_else(max, |edge| edge.value.clone()))
        }
        Range::Empty => (Value::Null, Value::Null),
    }
}

/// Returns the value that sorts behind all others.
fn max() -> Value<'static> {
    Value::String("<MAX>".into())
}
