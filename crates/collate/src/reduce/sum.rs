//! `_sum`: numbers, arrays item by item, objects member by member.
//!
//! As in CouchDB, a number is added to an array's first item. The members of a sum of two objects are sorted; those of
//! only one object stay as written, whatever they are. An object can only be added to an object or to zero.

use std::collections::BTreeMap;

use flatbed_flatten::json::{self, Value};

use super::state::{LEVELS_MAX, STATE_BYTES_MAX, is_deep, put_value, take_value};
use crate::codec;
use crate::number::Number;

const IMPOSSIBLE: &str = "The _sum function requires that map values be numbers, arrays of numbers, or objects. Objects \
    cannot be mixed with other data structures. Objects can be arbitrarily nested, provided that the values for all fields \
    are themselves numbers, arrays of numbers, or objects.";

const ERROR: &str = "builtin_reduce_error";

/// The longest text of a value that is given as an error's cause, in bytes.
const CAUSE_BYTES_MAX: usize = 1_024;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Sum {
    Of(Slot),
    Failed(Failure),
}

/// The reason for a missing sum.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Failure {
    /// This value cannot be added.
    Invalid(Value<'static>),
    /// A row's value is itself the error of a reduction.
    Given(Value<'static>),
    /// The sum exceeds [`STATE_BYTES_MAX`].
    TooLarge,
    /// A float exceeds the greatest.
    OutOfRange,
}

/// The content of one position of a sum.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Slot {
    /// A single value, as it was written.
    One(Value<'static>),
    /// Several summands, or one of the whole sum.
    Many(Parts),
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Parts {
    number: Option<Number>,
    array: Option<Vec<Slot>>,
    object: Option<BTreeMap<String, Slot>>,
}

impl Sum {
    pub(super) fn of(value: &Value<'_>) -> Sum {
        let sum = match value {
            // The fast path of nearly all values, without a tree.
            Value::Number(text) => return Sum::Of(Slot::Many(Parts::of_number(Number::of_text(text)))),
            Value::Null | Value::Bool(_) | Value::String(_) => Err(invalid(value)),
            _ if json::text_len(value) > STATE_BYTES_MAX || is_deep(value, LEVELS_MAX) => Err(Failure::TooLarge),
            Value::Array(items) if items.first().is_some_and(|first| !matches!(first, Value::Number(_))) => {
                // The first item is added to 0, the others to nothing.
                Err(Failure::Invalid(Value::Array(vec![Value::Number("0".into())])))
            }
            Value::Array(_) => parts(value.clone().into_owned()).map(Slot::Many),
            Value::Object(_) => {
                let value = value.clone().into_owned();
                parts(value.clone()).map(|_| Slot::One(value))
            }
        };
        Sum::bounded(sum)
    }

    pub(super) fn add(&mut self, value: &Value<'_>) {
        if let (Sum::Of(Slot::Many(Parts { number: Some(number), array: None, object: None })), Value::Number(text)) =
            (&mut *self, value)
        {
            *number = number.plus(&Number::of_text(text));
            return;
        }
        self.merge(&Sum::of(value));
    }

    pub(super) fn merge(&mut self, other: &Sum) {
        match (&mut *self, other) {
            (Sum::Failed(_), _) => {}
            (Sum::Of(_), Sum::Failed(_)) => *self = other.clone(),
            (Sum::Of(slot), Sum::Of(other)) => {
                let own = std::mem::replace(slot, Slot::One(Value::Null));
                *self = Sum::bounded(combine(own, other.clone()));
            }
        }
    }

    /// Returns the sum after some values are replaced, if all are numbers.
    pub(super) fn replaced(&self, gone: &[&Value<'_>], come: &[&Value<'_>]) -> Option<Sum> {
        let Sum::Of(slot @ Slot::Many(_)) = self else { return None };
        let mut number = slot.number()?;
        for value in gone {
            let Value::Number(text) = value else { return None };
            number = number.minus(&Number::of_text(text))?;
        }
        for value in come {
            let Value::Number(text) = value else { return None };
            number = number.plus(&Number::of_text(text));
        }
        Some(Sum::Of(Slot::Many(Parts::of_number(number))))
    }

    fn bounded(sum: Result<Slot, Failure>) -> Sum {
        match sum {
            Ok(slot) if slot.bytes() > STATE_BYTES_MAX => Sum::Failed(Failure::TooLarge),
            Ok(slot) => Sum::Of(slot),
            Err(failure) => Sum::Failed(failure),
        }
    }

    /// Returns the sum, or an object with the reason for its failure.
    pub(super) fn finish(&self) -> Value<'static> {
        let sum = match self {
            Sum::Of(Slot::Many(Parts { number, array: Some(array), object: None })) => {
                // The sum begins with 0, so an array has a first item.
                let zero = number.clone().unwrap_or_default();
                Slot::Many(Parts { number: Some(zero), array: Some(array.clone()), object: None }).finish()
            }
            Sum::Of(slot) => slot.finish(),
            Sum::Failed(failure) => Err(failure.clone()),
        };
        sum.unwrap_or_else(|failure| failure.into_value())
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Sum::Of(slot) => {
                out.push(0);
                slot.encode(out);
            }
            Sum::Failed(Failure::Invalid(cause)) => {
                out.push(1);
                put_value(out, cause);
            }
            Sum::Failed(Failure::Given(error)) => {
                out.push(2);
                put_value(out, error);
            }
            Sum::Failed(Failure::TooLarge) => out.push(3),
            Sum::Failed(Failure::OutOfRange) => out.push(4),
        }
    }

    pub(super) fn decode(bytes: &mut &[u8]) -> Option<Sum> {
        let (tag, rest) = bytes.split_first()?;
        *bytes = rest;
        Some(match tag {
            0 => Sum::Of(Slot::decode(bytes, LEVELS_MAX)?),
            1 => Sum::Failed(Failure::Invalid(take_value(bytes)?)),
            2 => Sum::Failed(Failure::Given(take_value(bytes)?)),
            3 => Sum::Failed(Failure::TooLarge),
            4 => Sum::Failed(Failure::OutOfRange),
            _ => return None,
        })
    }
}

impl Failure {
    fn into_value(self) -> Value<'static> {
        let reason = match &self {
            Failure::Given(error) => return error.clone(),
            Failure::Invalid(_) => IMPOSSIBLE.to_owned(),
            Failure::TooLarge => {
                format!("Reduce output must shrink more rapidly: it is larger than {STATE_BYTES_MAX} bytes")
            }
            Failure::OutOfRange => "The sum is beyond the greatest float.".to_owned(),
        };
        let mut members =
            vec![("error".into(), Value::String(ERROR.into())), ("reason".into(), Value::String(reason.into()))];
        if let Failure::Invalid(cause) = self {
            members.push(("caused_by".into(), cause));
        }
        Value::Object(members)
    }
}

/// A value that cannot be added; a long one is truncated.
fn invalid(value: &Value<'_>) -> Failure {
    if json::text_len(value) <= CAUSE_BYTES_MAX {
        return Failure::Invalid(value.clone().into_owned());
    }
    let mut text = Vec::new();
    match value {
        Value::String(string) => text.extend_from_slice(string.as_bytes()),
        _ => json::write(value, &mut text),
    }
    text.truncate(CAUSE_BYTES_MAX);
    Failure::Invalid(Value::String((String::from_utf8_lossy(&text).into_owned() + "...").into()))
}

/// Converts a value to a summand.
fn parts(value: Value<'static>) -> Result<Parts, Failure> {
    match value {
        Value::Number(text) => Ok(Parts::of_number(Number::of_text(&text))),
        Value::Array(items) => {
            Ok(Parts { array: Some(items.into_iter().map(Slot::One).collect()), ..Parts::default() })
        }
        Value::Object(members) => {
            let is_error = |(name, value): &(std::borrow::Cow<'_, str>, Value<'_>)| {
                name == "error" && value.as_str() == Some(ERROR)
            };
            if members.iter().any(is_error) {
                return Err(Failure::Given(Value::Object(members)));
            }
            let members = members.into_iter().map(|(name, value)| (name.into_owned(), Slot::One(value)));
            Ok(Parts { object: Some(members.collect()), ..Parts::default() })
        }
        other => Err(invalid(&other)),
    }
}

/// Combines an earlier content with a later one.
fn combine(before: Slot, behind: Slot) -> Result<Slot, Failure> {
    let behind = behind.into_parts()?;
    let mut sum = before.into_parts()?;
    sum.number = match (sum.number, behind.number) {
        (Some(a), Some(b)) => Some(a.plus(&b)),
        (a, b) => a.or(b),
    };
    sum.array = match (sum.array, behind.array) {
        (Some(a), Some(b)) => Some(combine_arrays(a, b)?),
        (a, b) => a.or(b),
    };
    sum.object = match (sum.object, behind.object) {
        (Some(a), Some(b)) => Some(combine_objects(a, b)?),
        (a, b) => a.or(b),
    };
    Ok(Slot::Many(sum))
}

/// The items that both have must be numbers. The reported cause is, as in CouchDB, the sum from there on.
fn combine_arrays(mut before: Vec<Slot>, behind: Vec<Slot>) -> Result<Vec<Slot>, Failure> {
    let mut behind = behind.into_iter();
    let mut failed = None;
    for (at, (slot, other)) in before.iter_mut().zip(&mut behind).enumerate() {
        match (slot.number(), other.number()) {
            (Some(a), Some(b)) => *slot = Slot::Many(Parts::of_number(a.plus(&b))),
            _ => {
                failed = Some(at);
                break;
            }
        }
    }
    if let Some(at) = failed {
        let rest = before.iter().skip(at).map(|slot| slot.finish().unwrap_or(Value::Null));
        return Err(invalid(&Value::Array(rest.collect())));
    }
    before.extend(behind);
    Ok(before)
}

fn combine_objects(
    mut before: BTreeMap<String, Slot>,
    behind: BTreeMap<String, Slot>,
) -> Result<BTreeMap<String, Slot>, Failure> {
    for (name, slot) in behind {
        let sum = match before.remove(&name) {
            Some(other) => combine(other, slot)?,
            None => slot,
        };
        before.insert(name, sum);
    }
    Ok(before)
}

impl Parts {
    fn of_number(number: Number) -> Parts {
        Parts { number: Some(number), ..Parts::default() }
    }
}

impl Slot {
    fn into_parts(self) -> Result<Parts, Failure> {
        match self {
            Slot::One(value) => parts(value),
            Slot::Many(parts) => Ok(parts),
        }
    }

    fn number(&self) -> Option<Number> {
        match self {
            Slot::One(Value::Number(text)) => Some(Number::of_text(text)),
            Slot::Many(Parts { number: Some(number), array: None, object: None }) => Some(number.clone()),
            _ => None,
        }
    }

    fn finish(&self) -> Result<Value<'static>, Failure> {
        let Parts { number, array, object } = match self {
            Slot::One(value) => return Ok(value.clone()),
            Slot::Many(parts) => parts,
        };
        let number_value = |number: &Number| match number.to_text() {
            Some(text) => Ok(Value::Number(text.into())),
            None => Err(Failure::OutOfRange),
        };
        if let Some(members) = object {
            if let Some(items) = array {
                let items: Result<Vec<_>, _> = items.iter().map(Slot::finish).collect();
                return Err(invalid(&Value::Array(items?)));
            }
            if let Some(number) = number.as_ref().filter(|number| !number.value.is_zero()) {
                return Err(invalid(&number_value(number)?));
            }
            let members = members.iter().map(|(name, slot)| Ok((name.clone().into(), slot.finish()?)));
            return Ok(Value::Object(members.collect::<Result<_, _>>()?));
        }
        match (array, number) {
            (Some(items), Some(number)) => {
                let first = vec![Slot::Many(Parts::of_number(number.clone()))];
                let items = combine_arrays(first, items.clone())?;
                Ok(Value::Array(items.iter().map(Slot::finish).collect::<Result<_, _>>()?))
            }
            (Some(items), None) => Ok(Value::Array(items.iter().map(Slot::finish).collect::<Result<_, _>>()?)),
            (None, Some(number)) => number_value(number),
            (None, None) => Ok(Value::Null),
        }
    }

    /// The approximate length of its encoding.
    fn bytes(&self) -> usize {
        match self {
            Slot::One(value) => json::text_len(value) + 3,
            Slot::Many(Parts { number, array, object }) => {
                let number = number.as_ref().map_or(0, |number| number.bytes());
                let array: usize = array.iter().flatten().map(Slot::bytes).sum();
                let object: usize = object.iter().flatten().map(|(name, slot)| name.len() + 2 + slot.bytes()).sum();
                number + array + object + 8
            }
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Slot::One(value) => {
                out.push(0);
                put_value(out, value);
            }
            Slot::Many(Parts { number, array, object }) => {
                let flag = |bit: u8, is_there: bool| u8::from(is_there) << bit;
                out.push(1 | flag(1, number.is_some()) | flag(2, array.is_some()) | flag(3, object.is_some()));
                if let Some(number) = number {
                    number.encode(out);
                }
                if let Some(items) = array {
                    codec::put(out, items.len() as u64);
                    items.iter().for_each(|item| item.encode(out));
                }
                if let Some(members) = object {
                    codec::put(out, members.len() as u64);
                    for (name, slot) in members {
                        codec::put_bytes(out, name.as_bytes());
                        slot.encode(out);
                    }
                }
            }
        }
    }

    fn decode(bytes: &mut &[u8], depth_left: usize) -> Option<Slot> {
        let depth_left = depth_left.checked_sub(1)?;
        let (flags, rest) = bytes.split_first()?;
        *bytes = rest;
        if flags & 1 == 0 {
            return Some(Slot::One(take_value(bytes)?));
        }
        let mut parts = Parts::default();
        if flags & 2 != 0 {
            parts.number = Some(Number::decode(bytes)?);
        }
        if flags & 4 != 0 {
            let count = codec::take(bytes)?;
            parts.array = Some((0..count).map(|_| Slot::decode(bytes, depth_left)).collect::<Option<_>>()?);
        }
        if flags & 8 != 0 {
            let count = codec::take(bytes)?;
            let mut member = || {
                let name = std::str::from_utf8(codec::take_bytes(bytes)?).ok()?.to_owned();
                Some((name, Slot::decode(bytes, depth_left)?))
            };
            parts.object = Some((0..count).map(|_| member()).collect::<Option<_>>()?);
        }
        Some(Slot::Many(parts))
    }
}
