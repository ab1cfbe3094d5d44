//! From a selector's JSON to conditions.

use flatbed_flatten::json::Value;
use regex::RegexBuilder;

use crate::{Comparison, Condition, Type};

/// Conditions within each other, at most.
const DEPTH_MAX: usize = 100;

/// What a compiled regular expression may take, in bytes.
const REGEX_BYTES_MAX: usize = 1 << 20;

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
}

type Compiled = Result<Condition, InvalidSelector>;

pub(crate) fn selector(value: &Value<'_>) -> Compiled {
    match value {
        Value::Object(_) => condition(value, DEPTH_MAX),
        _ => Err(InvalidSelector::NotAnObject),
    }
}

/// What a value in a selector says: an object its members, anything else that it is equal.
fn condition(value: &Value<'_>, depth: usize) -> Compiled {
    let depth = depth.checked_sub(1).ok_or(InvalidSelector::TooDeep)?;
    let Value::Object(members) = value else {
        return Ok(Condition::Compare(Comparison::Equal, value.clone().into_owned()));
    };
    if members.is_empty() && depth + 1 < DEPTH_MAX {
        // Within a selector it means the empty object.
        return Ok(Condition::Compare(Comparison::Equal, Value::Object(Vec::new())));
    }
    let each = |(name, value): &(std::borrow::Cow<'_, str>, Value<'_>)| match name.starts_with('$') {
        true => operator(name, value, depth),
        false => Ok(Condition::At(path(name), Box::new(condition(value, depth)?))),
    };
    let mut conditions: Vec<_> = members.iter().map(each).collect::<Result<_, _>>()?;
    Ok(match conditions.len() {
        1 => conditions.remove(0),
        _ => Condition::All(conditions),
    })
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

fn operator(name: &str, argument: &Value<'_>, depth: usize) -> Compiled {
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
    let conditions = || {
        list()?
            .iter()
            .map(|item| match item {
                Value::Object(_) => condition(item, depth),
                _ => Err(bad()),
            })
            .collect::<Result<Vec<_>, _>>()
    };
    let values = || Ok::<_, InvalidSelector>(list()?.iter().map(|item| item.clone().into_owned()).collect::<Vec<_>>());
    let of_elements = || match argument {
        Value::Object(_) => Ok(Box::new(condition(argument, depth)?)),
        _ => Err(bad()),
    };
    match name {
        "$and" => conditions().map(Condition::All),
        "$or" => conditions().map(Condition::Any),
        "$nor" => Ok(Condition::Not(Box::new(Condition::Any(conditions()?)))),
        "$not" => match argument {
            Value::Object(_) => Ok(Condition::Not(Box::new(condition(argument, depth)?))),
            _ => Err(bad()),
        },
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
        "$nin" => Ok(Condition::All(vec![Condition::Exists(true), Condition::Not(Box::new(Condition::In(values()?)))])),
        "$all" => values().map(Condition::Contains),
        "$elemMatch" => of_elements().map(Condition::Element),
        "$allMatch" => of_elements().map(Condition::Elements),
        "$keyMapMatch" => of_elements().map(Condition::Key),
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
            let regex = RegexBuilder::new(argument.as_str().ok_or_else(bad)?).size_limit(REGEX_BYTES_MAX).build();
            regex.map(Condition::Regex).map_err(|_| bad())
        }
        "$beginsWith" => argument.as_str().map(|prefix| Condition::BeginsWith(prefix.to_owned())).ok_or_else(bad),
        _ => Err(InvalidSelector::Operator(name.to_owned())),
    }
}
