//! Compiles a selector's JSON to its normal form.

use flatbed_flatten::json::Value;

use crate::field::Field;
use crate::invalid::InvalidSelector;
use crate::normal::{Comparison, Normal, Term, member};
use crate::order::is_integer;
use crate::pattern::Patterns;

/// The largest depth of nested conditions.
const DEPTH_MAX: usize = 100;

/// The largest number of values in a selector, conditions and list items included.
const VALUES_MAX: usize = 50_000;

/// The most text in names, strings and numbers, in bytes.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// The most text in full names of fields, each with its parents' names, in bytes.
const FIELD_BYTES_MAX: usize = TEXT_BYTES_MAX;

/// Compiles a selector. `stop` is checked before each regular expression.
pub(crate) fn selector(value: &Value<'_>, stop: &dyn Fn() -> bool) -> Result<Normal, InvalidSelector> {
    bounded(value)?;
    if matches!(value, Value::Object(members) if members.is_empty()) {
        return Ok(Normal::Everything);
    }
    let mut compiler = Compiler { patterns: Patterns::new(stop), field_bytes: FIELD_BYTES_MAX };
    let condition = compiler.condition(value, &Field::whole(), DEPTH_MAX)?;
    let normal = condition.positive().map_err(|argument| InvalidSelector::Argument {
        operator: "$not".to_owned(),
        argument: member("$default", member("$text", argument)),
    })?;
    match &normal {
        Normal::At(field, _) if field.is_whole() => Err(InvalidSelector::MissingFieldName),
        _ => Ok(normal),
    }
}

/// Checks that a value is an object within the limits.
pub(crate) fn bounded(value: &Value<'_>) -> Result<(), InvalidSelector> {
    if !matches!(value, Value::Object(_)) {
        return Err(InvalidSelector::NotAnObject);
    }
    let (mut values, mut bytes) = (VALUES_MAX, TEXT_BYTES_MAX);
    measure(value, &mut values, &mut bytes).ok_or(InvalidSelector::TooLarge)
}

/// The most values of a quick selector, conditions and list items included.
const QUICK_VALUES_MAX: usize = 1_000;

/// The most bytes of text of a quick selector.
const QUICK_TEXT_BYTES_MAX: usize = 16 << 10;

/// Returns whether a request is small and has no regular expression. It then compiles within a millisecond.
pub(crate) fn is_quick(value: &Value<'_>) -> bool {
    let (mut values, mut bytes) = (QUICK_VALUES_MAX, QUICK_TEXT_BYTES_MAX);
    measure(value, &mut values, &mut bytes).is_some() && !has_regex(value)
}

/// Returns whether a value contains a `$regex`. The parser bounds the depth of the recursion.
fn has_regex(value: &Value<'_>) -> bool {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
        Value::Array(items) => items.iter().any(has_regex),
        Value::Object(members) => members.iter().any(|(name, value)| name == "$regex" || has_regex(value)),
    }
}

/// Subtracts the size of a value from the limits. `None`: a limit is exceeded.
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
    patterns: Patterns<'s>,
    field_bytes: usize,
}

type CompileResult = Result<Normal, InvalidSelector>;

impl Compiler<'_> {
    /// Compiles the condition of a field: the members of an object, or equality with any other value.
    fn condition(&mut self, value: &Value<'_>, field: &Field, depth: usize) -> CompileResult {
        let depth = depth.checked_sub(1).ok_or(InvalidSelector::TooDeep)?;
        match value {
            Value::Object(members) if !members.is_empty() => {
                let mut conditions: Vec<_> = members
                    .iter()
                    .map(|(name, value)| self.member(name, value, field, depth))
                    .collect::<Result<_, _>>()?;
                Ok(match conditions.len() {
                    1 => conditions.remove(0),
                    _ => Normal::All(conditions),
                })
            }
            other => Ok(Normal::At(field.clone(), Term::Compare(Comparison::Equal, other.clone().into_owned()))),
        }
    }

    fn member(&mut self, name: &str, argument: &Value<'_>, field: &Field, depth: usize) -> CompileResult {
        if name.starts_with('$') {
            return self.operator(name, argument, field, depth);
        }
        // An empty name at the beginning of a path is ignored.
        if name.is_empty() && field.is_whole() {
            return self.condition(argument, field, depth);
        }
        let bytes = field.name().len() + name.len();
        self.field_bytes = self.field_bytes.checked_sub(bytes).ok_or(InvalidSelector::TooLarge)?;
        let inner = match field.is_whole() {
            true => Field::new(name)?,
            false => Field::new(&format!("{}.{name}", field.name()))?,
        };
        self.condition(argument, &inner, depth)
    }

    fn operator(&mut self, name: &str, argument: &Value<'_>, field: &Field, depth: usize) -> CompileResult {
        let bad = || InvalidSelector::Argument { operator: name.to_owned(), argument: argument.clone().into_owned() };
        match (name, argument) {
            ("$and" | "$or" | "$nor", Value::Array(items)) => {
                let conditions =
                    items.iter().map(|item| self.condition(item, field, depth)).collect::<Result<Vec<_>, _>>()?;
                Ok(match name {
                    "$and" => Normal::All(conditions),
                    "$or" => Normal::Any(conditions),
                    _ => Normal::None(conditions),
                })
            }
            ("$not", Value::Object(_)) => Ok(Normal::Not(Box::new(self.condition(argument, field, depth)?))),
            ("$elemMatch" | "$allMatch" | "$keyMapMatch", Value::Object(_)) => {
                let inner = Box::new(self.condition(argument, &Field::whole(), depth)?);
                Ok(Normal::At(
                    field.clone(),
                    match name {
                        "$elemMatch" => Term::Element(inner),
                        "$allMatch" => Term::Elements(inner),
                        _ => Term::Key(inner),
                    },
                ))
            }
            ("$and" | "$or" | "$nor" | "$not" | "$elemMatch" | "$allMatch" | "$keyMapMatch", _) => Err(bad()),
            ("$text", Value::String(_) | Value::Number(_) | Value::Bool(_)) => {
                self.operator("$default", &member("$text", argument.clone().into_owned()), field, depth)
            }
            ("$text", _) => Err(bad()),
            ("$default", _) => match argument {
                Value::Object(members) if field.is_whole() => match members.as_slice() {
                    [(text, argument)] if text == "$text" => Ok(Normal::Text(argument.clone().into_owned())),
                    _ => Err(bad_field(argument)),
                },
                _ => Err(bad_field(argument)),
            },
            _ => Ok(Normal::At(field.clone(), self.term(name, argument, bad)?)),
        }
    }

    fn term(
        &mut self,
        name: &str,
        argument: &Value<'_>,
        bad: impl Fn() -> InvalidSelector,
    ) -> Result<Term, InvalidSelector> {
        let compare = |comparison| Ok(Term::Compare(comparison, argument.clone().into_owned()));
        let list = || match argument {
            Value::Array(items) => Ok(items.iter().map(|item| item.clone().into_owned()).collect()),
            _ => Err(bad()),
        };
        match name {
            "$lt" => compare(Comparison::Less),
            "$lte" => compare(Comparison::LessOrEqual),
            "$eq" => compare(Comparison::Equal),
            "$ne" => compare(Comparison::NotEqual),
            "$gte" => compare(Comparison::GreaterOrEqual),
            "$gt" => compare(Comparison::Greater),
            "$exists" => match argument {
                Value::Bool(exists) => Ok(Term::Exists(*exists)),
                _ => Err(bad()),
            },
            "$type" => argument.as_str().map(|kind| Term::Type(kind.to_owned())).ok_or_else(bad),
            "$in" => list().map(Term::In),
            "$nin" => list().map(Term::NotIn),
            "$all" => list().map(Term::Contains),
            "$size" => size(argument).map(Term::Size).ok_or_else(bad),
            "$mod" => modulo(argument).map(|(divisor, remainder)| Term::Modulo(divisor, remainder)).ok_or_else(bad),
            "$regex" => match argument.as_str() {
                Some(pattern) => self.patterns.compile(pattern)?.map(Term::Regex).ok_or_else(bad),
                // As CouchDB does.
                None => Err(InvalidSelector::Operator(name.to_owned())),
            },
            "$beginsWith" => match argument.as_str() {
                Some(prefix) => Ok(Term::BeginsWith(prefix.to_owned())),
                None => Err(InvalidSelector::Operator(name.to_owned())),
            },
            "$where" | "$geoWithin" | "$geoIntersects" | "$near" | "$nearSphere" => {
                Err(InvalidSelector::Unsupported(name.to_owned()))
            }
            _ => Err(InvalidSelector::Operator(name.to_owned())),
        }
    }
}

fn bad_field(argument: &Value<'_>) -> InvalidSelector {
    InvalidSelector::BadField(member("$default", argument.clone().into_owned()))
}

/// Parses an integer from 0 up. Longer integers count as the maximum, which no array reaches.
fn size(argument: &Value<'_>) -> Option<u64> {
    match argument {
        Value::Number(text) if text == "-0" => Some(0),
        Value::Number(text) if is_integer(text) && !text.starts_with('-') => Some(text.parse().unwrap_or(u64::MAX)),
        _ => None,
    }
}

/// Parses divisor and remainder. The divisor 0 is refused; CouchDB fails when it reads a document.
fn modulo(argument: &Value<'_>) -> Option<(i64, i64)> {
    let integer = |value: &Value<'_>| match value {
        Value::Number(text) if is_integer(text) => text.parse::<i64>().ok(),
        _ => None,
    };
    match argument {
        Value::Array(items) => match items.as_slice() {
            [divisor, remainder] => Some((integer(divisor).filter(|divisor| *divisor != 0)?, integer(remainder)?)),
            _ => None,
        },
        _ => None,
    }
}
