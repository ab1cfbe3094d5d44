//! From a selector's JSON to conditions.

use std::collections::HashMap;

use flatbed_flatten::json::Value;
use regex::{Regex, RegexBuilder};

use crate::{Comparison, Condition, Pattern, Type};

/// Conditions within each other, at most.
const DEPTH_MAX: usize = 100;

/// Values in a selector, its conditions and the items of its lists included.
const VALUES_MAX: usize = 50_000;

/// Text of its names, strings and numbers.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// What a compiled regular expression may take, in bytes. Each counts as the first of these that it fits into.
const REGEX_BYTES: [usize; 4] = [1 << 14, 1 << 16, 1 << 18, 1 << 20];

/// What all of a selector may take together; equal ones are compiled once.
const REGEXES_BYTES_MAX: usize = 4 << 20;

/// The selector breaks a rule; the text is CouchDB's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSelector {
    /// Not an object.
    #[error("Selector must be a JSON object")]
    NotAnObject,
    /// There is no such operator.
    #[error("Invalid operator: {0}")]
    Operator(String),
    /// The operator does not take this argument.
    #[error("Bad argument for operator {operator}: {argument}")]
    Argument {
        /// The operator.
        operator: String,
        /// Its argument, as JSON.
        argument: String,
    },
    /// Too many conditions within each other.
    #[error("The selector is nested too deeply")]
    TooDeep,
    /// It has too many values, or too much text.
    #[error("The selector is too large")]
    TooLarge,
    /// Its regular expressions take too much, each or together.
    #[error("The selector's regular expressions are too large")]
    RegexesTooLarge,
    /// Nobody waits for it.
    #[error("The selector is not waited for any more")]
    Stopped,
}

type Compiled = Result<Condition, InvalidSelector>;

/// A selector's condition; `stop` is asked before each regular expression.
pub(crate) fn selector(value: &Value<'_>, stop: &dyn Fn() -> bool) -> Compiled {
    bounded(value)?;
    Compiler { regexes: HashMap::new(), regex_bytes: 0, stop }.condition(value, DEPTH_MAX)
}

/// Whether it is an object that is not too large.
pub(crate) fn bounded(value: &Value<'_>) -> Result<(), InvalidSelector> {
    if !matches!(value, Value::Object(_)) {
        return Err(InvalidSelector::NotAnObject);
    }
    let (mut values, mut bytes) = (VALUES_MAX, TEXT_BYTES_MAX);
    measure(value, &mut values, &mut bytes).ok_or(InvalidSelector::TooLarge)
}

/// `None`: there is more than is left.
fn measure(value: &Value<'_>, values: &mut usize, bytes: &mut usize) -> Option<()> {
    *values = values.checked_sub(1)?;
    match value {
        Value::Null | Value::Bool(_) => {}
        Value::Number(text) | Value::String(text) => *bytes = bytes.checked_sub(text.len())?,
        Value::Array(items) => items.iter().try_for_each(|item| measure(item, values, bytes))?,
        Value::Object(members) => members.iter().try_for_each(|(name, value)| {
            *bytes = bytes.checked_sub(name.len())?;
            measure(value, values, bytes)
        })?,
    }
    Some(())
}

struct Compiler<'s> {
    regexes: HashMap<String, Pattern>,
    regex_bytes: usize,
    stop: &'s dyn Fn() -> bool,
}

impl Compiler<'_> {
    /// What a value in a selector says: an object its members, anything else that it is equal.
    fn condition(&mut self, value: &Value<'_>, depth: usize) -> Compiled {
        let depth = depth.checked_sub(1).ok_or(InvalidSelector::TooDeep)?;
        let Value::Object(members) = value else {
            return Ok(Condition::Compare(Comparison::Equal, value.clone().into_owned()));
        };
        if members.is_empty() && depth + 1 < DEPTH_MAX {
            // Within a selector it means the empty object.
            return Ok(Condition::Compare(Comparison::Equal, Value::Object(Vec::new())));
        }
        let each = |(name, value): &(std::borrow::Cow<'_, str>, Value<'_>)| match name.starts_with('$') {
            true => self.operator(name, value, depth),
            false => Ok(Condition::At(path(name), Box::new(self.condition(value, depth)?))),
        };
        let mut conditions: Vec<_> = members.iter().map(each).collect::<Result<_, _>>()?;
        Ok(match conditions.len() {
            1 => conditions.remove(0),
            _ => Condition::All(conditions),
        })
    }

    fn of_object(
        &mut self,
        argument: &Value<'_>,
        depth: usize,
        bad: impl Fn() -> InvalidSelector,
    ) -> Result<Box<Condition>, InvalidSelector> {
        match argument {
            Value::Object(_) => Ok(Box::new(self.condition(argument, depth)?)),
            _ => Err(bad()),
        }
    }

    fn regex(&mut self, pattern: &str) -> Result<Option<Pattern>, InvalidSelector> {
        if let Some(known) = self.regexes.get(pattern) {
            return Ok(Some(known.clone()));
        }
        for bytes in REGEX_BYTES {
            if (self.stop)() {
                return Err(InvalidSelector::Stopped);
            }
            if self.regex_bytes + bytes > REGEXES_BYTES_MAX {
                return Err(InvalidSelector::RegexesTooLarge);
            }
            let regex: Regex = match RegexBuilder::new(pattern).size_limit(bytes).build() {
                Ok(regex) => regex,
                Err(regex::Error::CompiledTooBig(_)) => continue,
                Err(_) => return Ok(None),
            };
            self.regex_bytes += bytes;
            let compiled = Pattern { regex, bytes };
            self.regexes.insert(pattern.to_owned(), compiled.clone());
            return Ok(Some(compiled));
        }
        Err(InvalidSelector::RegexesTooLarge)
    }

    fn operator(&mut self, name: &str, argument: &Value<'_>, depth: usize) -> Compiled {
        let bad = || {
            let mut text = Vec::new();
            flatbed_flatten::json::write(argument, &mut text);
            let argument = String::from_utf8_lossy(&text).into_owned();
            InvalidSelector::Argument { operator: name.to_owned(), argument }
        };
        let compare = |comparison| Ok(Condition::Compare(comparison, argument.clone().into_owned()));
        let list = || match argument {
            Value::Array(items) => Ok(items),
            _ => Err(bad()),
        };
        let mut conditions = || {
            list()?
                .iter()
                .map(|item| match item {
                    Value::Object(_) => self.condition(item, depth),
                    _ => Err(bad()),
                })
                .collect::<Result<Vec<_>, _>>()
        };
        let values =
            || Ok::<_, InvalidSelector>(list()?.iter().map(|item| item.clone().into_owned()).collect::<Vec<_>>());
        match name {
            "$and" => conditions().map(Condition::All),
            "$or" => conditions().map(Condition::Any),
            "$nor" => Ok(Condition::Not(Box::new(Condition::Any(conditions()?)))),
            "$not" => self.of_object(argument, depth, bad).map(Condition::Not),
            "$lt" => compare(Comparison::Less),
            "$lte" => compare(Comparison::LessOrEqual),
            "$eq" => compare(Comparison::Equal),
            "$ne" => compare(Comparison::NotEqual),
            "$gte" => compare(Comparison::GreaterOrEqual),
            "$gt" => compare(Comparison::Greater),
            "$exists" => match argument {
                Value::Bool(exists) => Ok(Condition::Exists(*exists)),
                _ => Err(bad()),
            },
            "$type" => Ok(Condition::Type(match argument.as_str() {
                Some("null") => Type::Null,
                Some("boolean") => Type::Boolean,
                Some("number") => Type::Number,
                Some("string") => Type::String,
                Some("array") => Type::Array,
                Some("object") => Type::Object,
                _ => return Err(bad()),
            })),
            "$in" => values().map(Condition::In),
            "$nin" => {
                Ok(Condition::All(vec![Condition::Exists(true), Condition::Not(Box::new(Condition::In(values()?)))]))
            }
            "$all" => values().map(Condition::Contains),
            "$elemMatch" => self.of_object(argument, depth, bad).map(Condition::Element),
            "$allMatch" => self.of_object(argument, depth, bad).map(Condition::Elements),
            "$keyMapMatch" => self.of_object(argument, depth, bad).map(Condition::Key),
            "$size" => match argument {
                Value::Number(size) => size.parse().map(Condition::Size).map_err(|_| bad()),
                _ => Err(bad()),
            },
            "$mod" => match argument {
                Value::Array(items) => match items.as_slice() {
                    [Value::Number(divisor), Value::Number(remainder)] => match (divisor.parse(), remainder.parse()) {
                        (Ok(divisor), Ok(remainder)) if divisor != 0 => Ok(Condition::Modulo(divisor, remainder)),
                        _ => Err(bad()),
                    },
                    _ => Err(bad()),
                },
                _ => Err(bad()),
            },
            "$regex" => {
                let pattern = argument.as_str().ok_or_else(bad)?;
                self.regex(pattern)?.map(Condition::Regex).ok_or_else(bad)
            }
            "$beginsWith" => argument.as_str().map(|prefix| Condition::BeginsWith(prefix.to_owned())).ok_or_else(bad),
            _ => Err(InvalidSelector::Operator(name.to_owned())),
        }
    }
}

/// Names between dots; `\.` is a dot in a name.
fn path(name: &str) -> Vec<String> {
    let (mut names, mut current) = (Vec::new(), String::new());
    let mut characters = name.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => current.push(characters.next().unwrap_or('\\')),
            '.' => names.push(std::mem::take(&mut current)),
            other => current.push(other),
        }
    }
    names.push(current);
    names
}
