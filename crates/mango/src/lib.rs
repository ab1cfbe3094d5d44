//! Mango selectors (CouchDB's `_find` and `filter=_selector`): read from JSON, checked, compiled once, matched against
//! documents.
//!
//! A selector is an object of conditions on fields, all of which must hold; `{"a.b":{"$gt":1}}` and
//! `{"a":{"b":{"$gt":1}}}` mean the same field. What each operator means is CouchDB's documentation of selectors.
#![forbid(unsafe_code)]

mod compile;
mod order;

use std::cmp::Ordering;

use flatbed_flatten::json::Value;
use regex::Regex;

pub use compile::InvalidSelector;
pub use order::compare;

/// A compiled selector.
#[derive(Debug, Clone)]
pub struct Selector(Condition);

impl Selector {
    /// Reads a selector.
    ///
    /// # Errors
    /// [`InvalidSelector`], in CouchDB's words.
    pub fn new(selector: &Value<'_>) -> Result<Selector, InvalidSelector> {
        compile::selector(selector).map(Selector)
    }

    /// Whether a document, an object with its special members, is selected.
    pub fn matches(&self, document: &Value<'_>) -> bool {
        self.0.holds(Some(document))
    }
}

/// What must hold of a value, which may not be there.
#[derive(Debug, Clone)]
enum Condition {
    All(Vec<Condition>),
    Any(Vec<Condition>),
    Not(Box<Condition>),
    /// Of the value at a path of member names.
    At(Vec<String>, Box<Condition>),
    Compare(Comparison, Value<'static>),
    Exists(bool),
    Type(Type),
    In(Vec<Value<'static>>),
    /// An array with all of these.
    Contains(Vec<Value<'static>>),
    /// An array with an element for which it holds.
    Element(Box<Condition>),
    /// An array, not empty, for whose elements it holds.
    Elements(Box<Condition>),
    /// An object with a name for which it holds.
    Key(Box<Condition>),
    Size(u64),
    /// An integer that leaves this remainder.
    Modulo(i64, i64),
    Regex(Regex),
    BeginsWith(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Less,
    LessOrEqual,
    Equal,
    NotEqual,
    GreaterOrEqual,
    Greater,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    Null,
    Boolean,
    Number,
    String,
    Array,
    Object,
}

impl Comparison {
    fn holds(self, order: Ordering) -> bool {
        match self {
            Comparison::Less => order.is_lt(),
            Comparison::LessOrEqual => order.is_le(),
            Comparison::Equal => order.is_eq(),
            Comparison::NotEqual => order.is_ne(),
            Comparison::GreaterOrEqual => order.is_ge(),
            Comparison::Greater => order.is_gt(),
        }
    }
}

impl Condition {
    fn holds(&self, value: Option<&Value<'_>>) -> bool {
        match self {
            Condition::All(conditions) => conditions.iter().all(|condition| condition.holds(value)),
            Condition::Any(conditions) => conditions.iter().any(|condition| condition.holds(value)),
            Condition::Not(condition) => !condition.holds(value),
            Condition::At(path, condition) => condition.holds(value.and_then(|value| at(value, path))),
            Condition::Exists(exists) => value.is_some() == *exists,
            // What is not there fulfils no other condition.
            other => value.is_some_and(|value| other.holds_of(value)),
        }
    }

    fn holds_of(&self, value: &Value<'_>) -> bool {
        match (self, value) {
            (Condition::Compare(comparison, argument), value) => comparison.holds(compare(value, argument)),
            (Condition::Type(kind), value) => *kind == type_of(value),
            // An array is in the list if one of its elements is, too.
            (Condition::In(list), Value::Array(items)) => {
                let is_in = |value: &Value<'_>| list.iter().any(|other| compare(value, other).is_eq());
                is_in(value) || items.iter().any(is_in)
            }
            (Condition::In(list), value) => list.iter().any(|other| compare(value, other).is_eq()),
            (Condition::Contains(wanted), Value::Array(items)) => {
                let has = |wanted: &Value<'_>| items.iter().any(|item| compare(item, wanted).is_eq());
                // A list in a list means the whole array.
                let is_whole = matches!(wanted.as_slice(), [only @ Value::Array(_)] if compare(value, only).is_eq());
                is_whole || (!wanted.is_empty() && wanted.iter().all(has))
            }
            (Condition::Element(condition), Value::Array(items)) => {
                items.iter().any(|item| condition.holds(Some(item)))
            }
            (Condition::Elements(condition), Value::Array(items)) => {
                !items.is_empty() && items.iter().all(|item| condition.holds(Some(item)))
            }
            (Condition::Key(condition), Value::Object(members)) => {
                members.iter().any(|(name, _)| condition.holds(Some(&Value::String(name.as_ref().into()))))
            }
            (Condition::Size(size), Value::Array(items)) => items.len() as u64 == *size,
            (Condition::Modulo(divisor, remainder), Value::Number(text)) => {
                text.parse::<i64>().ok().and_then(|number| number.checked_rem(*divisor)) == Some(*remainder)
            }
            (Condition::Regex(regex), Value::String(text)) => regex.is_match(text),
            (Condition::BeginsWith(prefix), Value::String(text)) => text.starts_with(prefix.as_str()),
            _ => false,
        }
    }
}

/// The value at a path; a number is a place in an array.
fn at<'v, 't>(value: &'v Value<'t>, path: &[String]) -> Option<&'v Value<'t>> {
    path.iter().try_fold(value, |value, name| match value {
        Value::Array(items) => items.get(name.parse::<usize>().ok()?),
        value => value.get(name),
    })
}

fn type_of(value: &Value<'_>) -> Type {
    match value {
        Value::Null => Type::Null,
        Value::Bool(_) => Type::Boolean,
        Value::Number(_) => Type::Number,
        Value::String(_) => Type::String,
        Value::Array(_) => Type::Array,
        Value::Object(_) => Type::Object,
    }
}
