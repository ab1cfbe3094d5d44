//! `_stats`: sum, count, minimum, maximum and sum of squares, of numbers, of arrays item by item, and of earlier
//! statistics.

use flatbed_flatten::json::{self, Value};

use super::erlang;
use super::state::{LEVELS_MAX, ReduceError, STATE_BYTES_MAX, is_deep};
use crate::codec;
use crate::number::Number;

const INVALID_VALUE: &str = "invalid_value";

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Stats {
    Of(Shape),
    Failed(Failure),
}

/// The reason for missing statistics. CouchDB words it differently for the first row's value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Failure {
    kind: FailureKind,
    if_first: String,
    if_later: String,
    is_first: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FailureKind {
    InvalidValue,
    /// Arrays of different lengths, which match no function clause in CouchDB.
    Lengths,
    TooLarge,
}

/// Statistics, or an array of them.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shape {
    Number(Box<Five>),
    Array(Vec<Shape>),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Five {
    sum: Number,
    count: Number,
    min: Number,
    max: Number,
    sumsqr: Number,
}

const NAMES: [&str; 5] = ["sum", "count", "min", "max", "sumsqr"];

impl Stats {
    pub(super) fn of(value: &Value<'_>) -> Stats {
        if !matches!(value, Value::Number(_)) && (json::text_len(value) > STATE_BYTES_MAX || is_deep(value, LEVELS_MAX))
        {
            return Stats::Failed(Failure::too_large());
        }
        Stats::bounded(shape(value))
    }

    pub(super) fn add(&mut self, value: &Value<'_>) {
        let Stats::Of(shape) = self else { return };
        match (shape, value) {
            (Shape::Number(five), Value::Number(text)) => five.add(&Five::of(&Number::of_text(text))),
            // CouchDB's error names this value.
            (Shape::Number(_), Value::Array(_)) if !is_deep(value, LEVELS_MAX) => {
                *self = Stats::Failed(Failure::mixed(erlang::pretty(value)));
            }
            _ => self.merge(&Stats::of(value)),
        }
    }

    pub(super) fn merge(&mut self, other: &Stats) {
        match (&mut *self, other) {
            (Stats::Failed(_), _) => {}
            (_, Stats::Failed(failure)) => *self = Stats::Failed(Failure { is_first: false, ..failure.clone() }),
            (Stats::Of(shape), Stats::Of(other)) => {
                let merged = shape.merge(other);
                if let Err(failure) = merged {
                    *self = Stats::Failed(failure);
                }
            }
        }
    }

    /// Returns the statistics after some values are replaced, if all are numbers and no removed one is the minimum or
    /// the maximum.
    pub(super) fn replaced(&self, gone: &[&Value<'_>], come: &[&Value<'_>]) -> Option<Stats> {
        let Stats::Of(Shape::Number(five)) = self else { return None };
        let mut five = five.clone();
        for value in gone {
            let Value::Number(text) = value else { return None };
            let number = Number::of_text(text);
            if number.value <= five.min.value || number.value >= five.max.value {
                return None;
            }
            five.sum = five.sum.minus(&number)?;
            five.count = five.count.minus(&Number::of_text("1"))?;
            five.sumsqr = five.sumsqr.minus(&number.squared())?;
        }
        for value in come {
            let Value::Number(text) = value else { return None };
            five.add(&Five::of(&Number::of_text(text)));
        }
        Some(Stats::Of(Shape::Number(five)))
    }

    fn bounded(shape: Result<Shape, Failure>) -> Stats {
        match shape {
            Ok(shape) if shape.bytes() > STATE_BYTES_MAX => Stats::Failed(Failure::too_large()),
            Ok(shape) => Stats::Of(shape),
            Err(failure) => Stats::Failed(failure),
        }
    }

    pub(super) fn finish(&self) -> Result<Value<'static>, ReduceError> {
        match self {
            Stats::Of(shape) => shape.finish().ok_or_else(|| ReduceError {
                error: INVALID_VALUE,
                reason: "A sum or a sum of squares is beyond the greatest float.".to_owned(),
            }),
            Stats::Failed(failure) => Err(ReduceError {
                error: match failure.kind {
                    FailureKind::InvalidValue => INVALID_VALUE,
                    FailureKind::Lengths => "function_clause",
                    FailureKind::TooLarge => "reduce_overflow_error",
                },
                reason: if failure.is_first { failure.if_first.clone() } else { failure.if_later.clone() },
            }),
        }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Stats::Of(shape) => shape.encode(out),
            Stats::Failed(failure) => {
                let kind = match failure.kind {
                    FailureKind::InvalidValue => 2,
                    FailureKind::Lengths => 3,
                    FailureKind::TooLarge => 4,
                };
                out.extend_from_slice(&[kind, u8::from(failure.is_first)]);
                codec::put_bytes(out, failure.if_first.as_bytes());
                codec::put_bytes(out, failure.if_later.as_bytes());
            }
        }
    }

    pub(super) fn decode(bytes: &mut &[u8]) -> Option<Stats> {
        let kind = match bytes.first()? {
            2 => FailureKind::InvalidValue,
            3 => FailureKind::Lengths,
            4 => FailureKind::TooLarge,
            _ => return Some(Stats::Of(Shape::decode(bytes, LEVELS_MAX)?)),
        };
        let (is_first, mut rest) = (*bytes.get(1)? != 0, bytes.get(2..)?);
        let mut text = || Some(std::str::from_utf8(codec::take_bytes(&mut rest)?).ok()?.to_owned());
        let failure = Failure { kind, if_first: text()?, if_later: text()?, is_first };
        *bytes = rest;
        Some(Stats::Failed(failure))
    }
}

impl Failure {
    fn invalid(reason: String) -> Failure {
        Failure { kind: FailureKind::InvalidValue, if_first: reason.clone(), if_later: reason, is_first: true }
    }

    /// A mix of a number and an array, or another type; in Erlang's words.
    fn mixed(printed: String) -> Failure {
        Failure::invalid(format!(
            "The _stats function requires that map values be numbers or arrays of numbers, not '{printed}'"
        ))
    }

    fn too_large() -> Failure {
        let reason = format!("Reduce output must shrink more rapidly: it is larger than {STATE_BYTES_MAX} bytes");
        Failure { kind: FailureKind::TooLarge, ..Failure::invalid(reason) }
    }
}

fn shape(value: &Value<'_>) -> Result<Shape, Failure> {
    match value {
        Value::Number(text) => Ok(Shape::Number(Box::new(Five::of(&Number::of_text(text))))),
        Value::Array(items) => Ok(Shape::Array(items.iter().map(shape).collect::<Result<_, _>>()?)),
        Value::Object(members) => {
            let number = |name: &str| match value.get(name) {
                Some(Value::Number(text)) => Ok(Number::of_text(text)),
                Some(other) => Err(Failure::invalid(format!(
                    "non-numeric _stats input received for {name}: {}",
                    erlang::plain(other)
                ))),
                None => Err(Failure::invalid(format!(
                    "user _stats input missing required field {name} ({})",
                    erlang::pretty_members(members)
                ))),
            };
            let [sum, count, min, max, sumsqr] = NAMES;
            Ok(Shape::Number(Box::new(Five {
                sum: number(sum)?,
                count: number(count)?,
                min: number(min)?,
                max: number(max)?,
                sumsqr: number(sumsqr)?,
            })))
        }
        other => Err(Failure {
            if_first: format!("non-numeric _stats input: {}", erlang::plain(other)),
            ..Failure::mixed(erlang::pretty(other))
        }),
    }
}

impl Five {
    fn of(number: &Number) -> Five {
        let one = Number::of_text("1");
        Five { sum: number.clone(), count: one, min: number.clone(), max: number.clone(), sumsqr: number.squared() }
    }

    fn add(&mut self, other: &Five) {
        self.sum = self.sum.plus(&other.sum);
        self.count = self.count.plus(&other.count);
        // The integer of two equal numbers, so that the rows' order has no effect.
        let weight = |number: &Number, is_max: bool| number.is_float != is_max;
        let order = |a: &Number, b: &Number, is_max| {
            a.value.cmp(&b.value).then_with(|| weight(a, is_max).cmp(&weight(b, is_max)))
        };
        if order(&other.min, &self.min, false).is_lt() {
            self.min = other.min.clone();
        }
        if order(&other.max, &self.max, true).is_gt() {
            self.max = other.max.clone();
        }
        self.sumsqr = self.sumsqr.plus(&other.sumsqr);
    }

    fn numbers(&self) -> [&Number; 5] {
        [&self.sum, &self.count, &self.min, &self.max, &self.sumsqr]
    }
}

impl Shape {
    fn merge(&mut self, other: &Shape) -> Result<(), Failure> {
        match (self, other) {
            (Shape::Number(five), Shape::Number(other)) => five.add(other),
            (Shape::Array(items), Shape::Array(others)) if items.len() == others.len() => {
                items.iter_mut().zip(others).try_for_each(|(item, other)| item.merge(other))?;
            }
            (Shape::Array(_), Shape::Array(_)) => {
                let reason = "The _stats function requires that arrays have the same length.".to_owned();
                return Err(Failure { kind: FailureKind::Lengths, ..Failure::invalid(reason) });
            }
            (Shape::Number(_), _) | (_, Shape::Number(_)) => return Err(Failure::mixed(other.printed())),
        }
        Ok(())
    }

    /// CouchDB's internal form, as Erlang prints it.
    fn printed(&self) -> String {
        match self {
            Shape::Number(five) => {
                let numbers = five.numbers().map(|number| number.to_text().unwrap_or_default());
                format!("{{{}}}", numbers.join(","))
            }
            Shape::Array(items) => {
                let items: Vec<String> = items.iter().take(100).map(Shape::printed).collect();
                format!("[{}]", items.join(","))
            }
        }
    }

    fn finish(&self) -> Option<Value<'static>> {
        match self {
            Shape::Number(five) => {
                let members = NAMES.into_iter().zip(five.numbers());
                let members =
                    members.map(|(name, number)| Some((name.into(), Value::Number(number.to_text()?.into()))));
                Some(Value::Object(members.collect::<Option<_>>()?))
            }
            Shape::Array(items) => Some(Value::Array(items.iter().map(Shape::finish).collect::<Option<_>>()?)),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Shape::Number(five) => five.numbers().into_iter().map(Number::bytes).sum::<usize>() + 1,
            Shape::Array(items) => items.iter().map(Shape::bytes).sum::<usize>() + 4,
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Shape::Number(five) => {
                out.push(0);
                five.numbers().into_iter().for_each(|number| number.encode(out));
            }
            Shape::Array(items) => {
                out.push(1);
                codec::put(out, items.len() as u64);
                items.iter().for_each(|item| item.encode(out));
            }
        }
    }

    fn decode(bytes: &mut &[u8], depth_left: usize) -> Option<Shape> {
        let depth_left = depth_left.checked_sub(1)?;
        let (tag, rest) = bytes.split_first()?;
        *bytes = rest;
        match tag {
            0 => {
                let mut number = || Number::decode(bytes);
                let five = Five { sum: number()?, count: number()?, min: number()?, max: number()?, sumsqr: number()? };
                Some(Shape::Number(Box::new(five)))
            }
            1 => {
                let count = codec::take(bytes)?;
                Some(Shape::Array((0..count).map(|_| Shape::decode(bytes, depth_left)).collect::<Option<_>>()?))
            }
            _ => None,
        }
    }
}
