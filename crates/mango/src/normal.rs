//! Selectors in CouchDB's normal form: members of an object are an `$and`, fields stand next to their operators, and
//! negations are moved down to the operators.

use std::borrow::Cow;

use flatbed_flatten::json::Value;

use crate::field::Field;
use crate::pattern::Pattern;

/// Bytes of an argument that weigh 1: a long argument is scanned for each document, however small the document is.
const WEIGHT_BYTES: usize = 16;

#[derive(Debug, Clone)]
pub(crate) enum Normal {
    /// `{}`
    Everything,
    All(Vec<Normal>),
    Any(Vec<Normal>),
    /// `$not` and `$nor` remain only below `$elemMatch`, `$allMatch` and `$keyMapMatch`.
    Not(Box<Normal>),
    None(Vec<Normal>),
    /// A text search with its argument. Flatbed has no index for it; as in CouchDB it then matches everything.
    Text(Value<'static>),
    At(Field, Term),
}

#[derive(Debug, Clone)]
pub(crate) enum Term {
    Compare(Comparison, Value<'static>),
    Exists(bool),
    /// The value's type. An unknown type matches no value.
    Type(String),
    In(Vec<Value<'static>>),
    NotIn(Vec<Value<'static>>),
    Contains(Vec<Value<'static>>),
    Size(u64),
    /// An integer with this divisor and remainder.
    Modulo(i64, i64),
    Regex(Pattern),
    BeginsWith(String),
    Element(Box<Normal>),
    Elements(Box<Normal>),
    Key(Box<Normal>),
    Not(Box<Term>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    Less,
    LessOrEqual,
    Equal,
    NotEqual,
    GreaterOrEqual,
    Greater,
}

impl Comparison {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Comparison::Less => "$lt",
            Comparison::LessOrEqual => "$lte",
            Comparison::Equal => "$eq",
            Comparison::NotEqual => "$ne",
            Comparison::GreaterOrEqual => "$gte",
            Comparison::Greater => "$gt",
        }
    }

    fn negated(self) -> Comparison {
        match self {
            Comparison::Less => Comparison::GreaterOrEqual,
            Comparison::LessOrEqual => Comparison::Greater,
            Comparison::Equal => Comparison::NotEqual,
            Comparison::NotEqual => Comparison::Equal,
            Comparison::GreaterOrEqual => Comparison::Less,
            Comparison::Greater => Comparison::LessOrEqual,
        }
    }
}

impl Normal {
    /// Moves negations down. Fails with the argument of a negated text search, which is not supported.
    pub(crate) fn positive(self) -> Result<Normal, Value<'static>> {
        Ok(match self {
            Normal::Not(condition) => condition.negated()?,
            Normal::None(conditions) => Normal::All(each(conditions, Normal::negated)?),
            Normal::All(conditions) => Normal::All(each(conditions, Normal::positive)?),
            Normal::Any(conditions) => Normal::Any(each(conditions, Normal::positive)?),
            other => other,
        })
    }

    fn negated(self) -> Result<Normal, Value<'static>> {
        Ok(match self {
            Normal::Not(condition) => condition.positive()?,
            Normal::None(conditions) => Normal::Any(each(conditions, Normal::positive)?),
            Normal::All(conditions) => Normal::Any(each(conditions, Normal::negated)?),
            Normal::Any(conditions) => Normal::All(each(conditions, Normal::negated)?),
            Normal::At(field, term) => Normal::At(field, term.negated()),
            Normal::Text(argument) => return Err(argument),
            // Only a whole selector can be `Everything`.
            Normal::Everything => Normal::Not(Box::new(Normal::Everything)),
        })
    }

    /// Returns CouchDB's JSON of the normal form.
    pub(crate) fn to_json(&self) -> Value<'static> {
        let list = |conditions: &[Normal]| Value::Array(conditions.iter().map(Normal::to_json).collect());
        match self {
            Normal::Everything => Value::Object(Vec::new()),
            Normal::All(conditions) => member("$and", list(conditions)),
            Normal::Any(conditions) => member("$or", list(conditions)),
            Normal::None(conditions) => member("$nor", list(conditions)),
            Normal::Not(condition) => member("$not", condition.to_json()),
            Normal::Text(argument) => member("$default", member("$text", argument.clone())),
            Normal::At(field, term) => member(field.name().to_owned(), term.to_json()),
        }
    }

    /// Returns the conditions that must all hold: those of an `$and`, and of nested `$and`s.
    pub(crate) fn conjuncts(&self) -> Vec<&Normal> {
        let mut all = Vec::new();
        self.add_conjuncts(&mut all);
        all
    }

    fn add_conjuncts<'n>(&'n self, all: &mut Vec<&'n Normal>) {
        match self {
            Normal::Everything => {}
            Normal::All(conditions) => conditions.iter().for_each(|condition| condition.add_conjuncts(all)),
            other => {
                #[cfg(test)]
                CONJUNCTS.set(CONJUNCTS.get() + 1);
                all.push(other);
            }
        }
    }

    pub(crate) fn weight(&self) -> usize {
        let sum = |conditions: &[Normal]| conditions.iter().map(Normal::weight).sum();
        let weight: usize = match self {
            Normal::All(conditions) | Normal::Any(conditions) | Normal::None(conditions) => sum(conditions),
            Normal::Not(condition) => condition.weight(),
            Normal::At(field, term) if field.is_whole() => return term.weight(),
            Normal::At(_, term) => term.weight(),
            Normal::Everything | Normal::Text(_) => 0,
        };
        weight.saturating_add(1)
    }
}

impl Term {
    fn negated(self) -> Term {
        match self {
            Term::Compare(comparison, argument) => Term::Compare(comparison.negated(), argument),
            Term::In(list) => Term::NotIn(list),
            Term::NotIn(list) => Term::In(list),
            Term::Exists(exists) => Term::Exists(!exists),
            other => Term::Not(Box::new(other)),
        }
    }

    pub(crate) fn to_json(&self) -> Value<'static> {
        let number = |number: i128| Value::Number(number.to_string().into());
        let text = |text: &str| Value::String(text.to_owned().into());
        match self {
            Term::Compare(comparison, argument) => member(comparison.name(), argument.clone()),
            Term::Exists(exists) => member("$exists", Value::Bool(*exists)),
            Term::Type(kind) => member("$type", text(kind)),
            Term::In(list) => member("$in", Value::Array(list.clone())),
            Term::NotIn(list) => member("$nin", Value::Array(list.clone())),
            Term::Contains(list) => member("$all", Value::Array(list.clone())),
            Term::Size(size) => member("$size", number(i128::from(*size))),
            Term::Modulo(divisor, remainder) => {
                member("$mod", Value::Array(vec![number(i128::from(*divisor)), number(i128::from(*remainder))]))
            }
            Term::Regex(pattern) => member("$regex", text(pattern.text())),
            Term::BeginsWith(prefix) => member("$beginsWith", text(prefix)),
            Term::Element(condition) => member("$elemMatch", condition.to_json()),
            Term::Elements(condition) => member("$allMatch", condition.to_json()),
            Term::Key(condition) => member("$keyMapMatch", condition.to_json()),
            Term::Not(term) => member("$not", term.to_json()),
        }
    }

    fn weight(&self) -> usize {
        let text = |value: &Value<'_>| text_bytes(value) / WEIGHT_BYTES;
        let weight = match self {
            Term::Compare(_, argument) => text(argument),
            Term::In(list) | Term::NotIn(list) | Term::Contains(list) => {
                list.len() + list.iter().map(text).sum::<usize>()
            }
            Term::Regex(pattern) => pattern.weight(),
            Term::Element(condition) | Term::Elements(condition) | Term::Key(condition) => condition.weight(),
            Term::Not(term) => term.weight(),
            _ => 0,
        };
        weight.saturating_add(1)
    }
}

#[cfg(test)]
thread_local! {
    /// The number of conditions on this thread that [`Normal::conjuncts`] collected or that were sorted by field.
    pub(crate) static CONJUNCTS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

fn text_bytes(value: &Value<'_>) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 0,
        Value::Number(text) | Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(text_bytes).sum(),
        Value::Object(members) => members.iter().map(|(name, value)| name.len() + text_bytes(value)).sum(),
    }
}

fn each(
    conditions: Vec<Normal>,
    with: fn(Normal) -> Result<Normal, Value<'static>>,
) -> Result<Vec<Normal>, Value<'static>> {
    conditions.into_iter().map(with).collect()
}

pub(crate) fn member(name: impl Into<Cow<'static, str>>, value: Value<'static>) -> Value<'static> {
    Value::Object(vec![(name.into(), value)])
}
