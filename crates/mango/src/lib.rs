//! Mango selectors (CouchDB's `_find` and `filter=_selector`): read from JSON, checked, compiled once, matched against
//! documents.
//!
//! A selector is an object of conditions on fields, all of which must hold; `{"a.b":{"$gt":1}}` and
//! `{"a":{"b":{"$gt":1}}}` mean the same field. What each operator means is CouchDB's documentation of selectors.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod compile;
mod order;
mod steps;

use std::cmp::Ordering;

use flatbed_flatten::json::Value;
use regex::Regex;

pub use compile::InvalidSelector;
pub use order::compare;
use order::within;
pub use steps::Exhausted;
use steps::Steps;

/// A regular expression that takes so many bytes is tried on strings of so many, at most as many as this divided by the
/// former: all of its states may be alive at each byte. On a longer one it does not match, as in CouchDB where PCRE reaches
/// its limit.
const REGEX_WORK_MAX: usize = 1 << 34;

/// So much of this work is a step.
const REGEX_STEP_WORK: usize = 1 << 10;

/// A compiled selector.
#[derive(Debug, Clone)]
pub struct Selector(Condition);

impl Selector {
    /// Reads a selector.
    ///
    /// # Errors
    /// [`InvalidSelector`], in CouchDB's words.
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

    /// Whether a document, an object with its special members, is selected. `stop` is asked now and then.
    ///
    /// # Errors
    /// [`Exhausted`]: after some tenths of a second of work, or when `stop` says so. One regular expression on one string is not
    /// stopped in between; it takes two seconds at the very worst.
    pub fn matches_unless(&self, document: &Value<'_>, stop: &dyn Fn() -> bool) -> Result<bool, Exhausted> {
        self.0.holds(Some(document), &mut Steps::new(stop))
    }

    /// As [`Selector::matches_unless`], without end.
    pub fn matches(&self, document: &Value<'_>) -> bool {
        self.0.holds(Some(document), &mut Steps::endless()).unwrap_or(false)
    }

    /// About how much is done for a byte of a document, at least 1.
    pub fn weight(&self) -> usize {
        self.0.weight()
    }
}

/// A compiled regular expression, and what it takes at most.
#[derive(Debug, Clone)]
struct Pattern {
    regex: Regex,
    bytes: usize,
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
    Regex(Pattern),
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
    fn weight(&self) -> usize {
        let sum = |conditions: &[Condition]| conditions.iter().map(Condition::weight).sum();
        let weight: usize = match self {
            Condition::All(conditions) | Condition::Any(conditions) => sum(conditions),
            Condition::Not(condition)
            | Condition::At(_, condition)
            | Condition::Element(condition)
            | Condition::Elements(condition)
            | Condition::Key(condition) => condition.weight(),
            Condition::In(list) | Condition::Contains(list) => list.len(),
            Condition::Regex(pattern) => pattern.bytes >> 10,
            _ => 0,
        };
        weight.saturating_add(1)
    }

    fn holds(&self, value: Option<&Value<'_>>, steps: &mut Steps<'_>) -> Result<bool, Exhausted> {
        steps.take(1)?;
        match self {
            Condition::All(conditions) => all(conditions, |condition| condition.holds(value, steps)),
            Condition::Any(conditions) => any(conditions, |condition| condition.holds(value, steps)),
            Condition::Not(condition) => Ok(!condition.holds(value, steps)?),
            Condition::At(path, condition) => {
                let value = match value {
                    Some(value) => at(value, path, steps)?,
                    None => None,
                };
                condition.holds(value, steps)
            }
            Condition::Exists(exists) => Ok(value.is_some() == *exists),
            // What is not there fulfils no other condition.
            other => value.map_or(Ok(false), |value| other.holds_of(value, steps)),
        }
    }

    fn holds_of(&self, value: &Value<'_>, steps: &mut Steps<'_>) -> Result<bool, Exhausted> {
        Ok(match (self, value) {
            (Condition::Compare(comparison, argument), value) => comparison.holds(within(value, argument, steps)?),
            (Condition::Type(kind), value) => *kind == type_of(value),
            // An array is in the list if one of its elements is, too.
            (Condition::In(list), Value::Array(items)) => {
                let mut is_in = |value: &Value<'_>| any(list, |other| Ok(within(value, other, steps)?.is_eq()));
                is_in(value)? || any(items, is_in)?
            }
            (Condition::In(list), value) => any(list, |other| Ok(within(value, other, steps)?.is_eq()))?,
            (Condition::Contains(wanted), Value::Array(items)) => {
                // A list in a list means the whole array.
                let is_whole = match wanted.as_slice() {
                    [only @ Value::Array(_)] => within(value, only, steps)?.is_eq(),
                    _ => false,
                };
                let mut has = |wanted: &Value<'_>| any(items, |item| Ok(within(item, wanted, steps)?.is_eq()));
                is_whole || (!wanted.is_empty() && all(wanted, &mut has)?)
            }
            (Condition::Element(condition), Value::Array(items)) => {
                any(items, |item| condition.holds(Some(item), steps))?
            }
            (Condition::Elements(condition), Value::Array(items)) => {
                !items.is_empty() && all(items, |item| condition.holds(Some(item), steps))?
            }
            (Condition::Key(condition), Value::Object(members)) => any(members, |(name, _)| {
                let name = Value::String(name.as_ref().into());
                condition.holds(Some(&name), steps)
            })?,
            (Condition::Size(size), Value::Array(items)) => items.len() as u64 == *size,
            (Condition::Modulo(divisor, remainder), Value::Number(text)) => {
                text.parse::<i64>().ok().and_then(|number| number.checked_rem(*divisor)) == Some(*remainder)
            }
            (Condition::Regex(pattern), Value::String(text)) => {
                let may_match = text.len() <= REGEX_WORK_MAX / pattern.bytes;
                steps.take(if may_match { text.len() * pattern.bytes / REGEX_STEP_WORK } else { 1 })?;
                may_match && pattern.regex.is_match(text)
            }
            (Condition::BeginsWith(prefix), Value::String(text)) => {
                steps.take_bytes(prefix.len())?;
                text.starts_with(prefix.as_str())
            }
            _ => false,
        })
    }
}

fn any<T>(items: &[T], mut holds: impl FnMut(&T) -> Result<bool, Exhausted>) -> Result<bool, Exhausted> {
    for item in items {
        if holds(item)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn all<T>(items: &[T], mut holds: impl FnMut(&T) -> Result<bool, Exhausted>) -> Result<bool, Exhausted> {
    Ok(!any(items, |item| Ok(!holds(item)?))?)
}

/// The value at a path; a number is a place in an array. Each member passed on the way is a step.
fn at<'v, 't>(
    value: &'v Value<'t>,
    path: &[String],
    steps: &mut Steps<'_>,
) -> Result<Option<&'v Value<'t>>, Exhausted> {
    let mut value = value;
    for name in path {
        let found = match value {
            Value::Array(items) => name.parse::<usize>().ok().and_then(|place| items.get(place)),
            Value::Object(members) => {
                steps.take(members.len())?;
                value.get(name)
            }
            _ => None,
        };
        match found {
            Some(found) => value = found,
            None => return Ok(None),
        }
    }
    Ok(Some(value))
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
