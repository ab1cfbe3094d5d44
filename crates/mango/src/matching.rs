//! Matches documents.

use flatbed_flatten::json::Value;

use crate::field::{Field, FieldValue};
use crate::normal::{Comparison, Normal, Term};
use crate::order::{Order, are_identical, is_integer};
use crate::steps::{Interrupts, MatchInterrupted, Progress, Steps};

pub(crate) type MatchResult = Result<bool, MatchInterrupted>;

/// The subject of a condition: a document, or an item of an array.
pub(crate) trait Subject {
    fn find<'v>(&'v self, field: &Field, steps: &mut Steps<'_>) -> Result<FieldValue<'v, 'v>, MatchInterrupted>;
}

impl Subject for Value<'_> {
    fn find<'v>(&'v self, field: &Field, steps: &mut Steps<'_>) -> Result<FieldValue<'v, 'v>, MatchInterrupted> {
        field.find(self, steps)
    }
}

impl Normal {
    /// Like [`Normal::holds`], for one slice that begins at `progress`. After a pause `progress` is the start of the
    /// next slice.
    pub(crate) fn holds_in_slices(
        &self,
        subject: &impl Subject,
        progress: &mut Progress,
        interrupts: Interrupts<'_>,
    ) -> MatchResult {
        let mut steps = Steps::of_slice(interrupts, std::mem::take(progress));
        let held = self.holds(subject, &mut steps);
        if held == Err(MatchInterrupted::Paused) {
            *progress = steps.into_progress();
        }
        held
    }

    pub(crate) fn holds(&self, subject: &impl Subject, steps: &mut Steps<'_>) -> MatchResult {
        steps.take(1)?;
        match self {
            Normal::Everything | Normal::Text(_) => Ok(true),
            Normal::All(conditions) => all(conditions, steps, |condition, steps| condition.holds(subject, steps)),
            // An empty `$or` beside other conditions is ignored.
            Normal::Any(conditions) => {
                Ok(conditions.is_empty() || any(conditions, steps, |condition, steps| condition.holds(subject, steps))?)
            }
            Normal::Not(condition) => Ok(!condition.holds(subject, steps)?),
            Normal::None(conditions) => {
                Ok(!any(conditions, steps, |condition, steps| condition.holds(subject, steps))?)
            }
            Normal::At(field, term) => match subject.find(field, steps)? {
                FieldValue::Present(value) => {
                    let order = if field.name() == "_id" { Order::Raw } else { Order::Collated };
                    term.holds(value, order, steps)
                }
                // A missing value fulfils no other condition.
                FieldValue::Missing => Ok(matches!(term, Term::Exists(false))),
                FieldValue::NoPath => Ok(false),
            },
        }
    }
}

impl Term {
    fn holds(&self, value: &Value<'_>, order: Order, steps: &mut Steps<'_>) -> MatchResult {
        Ok(match (self, value) {
            (Term::Compare(Comparison::Equal, argument), value) => order.are_equal(value, argument, steps)?,
            (Term::Compare(Comparison::NotEqual, argument), value) => !order.are_equal(value, argument, steps)?,
            (Term::Compare(comparison, argument), value) => {
                let order = order.within(value, argument, steps)?;
                match comparison {
                    Comparison::Less => order.is_lt(),
                    Comparison::LessOrEqual => order.is_le(),
                    Comparison::Equal => order.is_eq(),
                    Comparison::NotEqual => order.is_ne(),
                    Comparison::GreaterOrEqual => order.is_ge(),
                    Comparison::Greater => order.is_gt(),
                }
            }
            (Term::Exists(exists), _) => *exists,
            (Term::Type(kind), value) => kind == type_of(value),
            (Term::In(list), value) => is_in(list, value, order, steps)?,
            (Term::NotIn(list), value) => !is_in(list, value, order, steps)?,
            (Term::Contains(wanted), Value::Array(items)) => {
                // A list within the list also matches the whole array.
                let is_whole = match wanted.as_slice() {
                    [only @ Value::Array(_)] => Order::Raw.within(value, only, steps)?.is_eq(),
                    _ => false,
                };
                is_whole
                    || (!wanted.is_empty()
                        && all(wanted, steps, |wanted, steps| {
                            any(items, steps, |item, steps| are_identical(item, wanted, steps))
                        })?)
            }
            (Term::Element(condition), Value::Array(items)) => {
                any(items, steps, |item, steps| condition.holds(item, steps))?
            }
            (Term::Elements(condition), Value::Array(items)) => {
                !items.is_empty() && all(items, steps, |item, steps| condition.holds(item, steps))?
            }
            (Term::Key(condition), Value::Object(members)) => any(members, steps, |(name, _), steps| {
                let name = Value::String(name.as_ref().into());
                condition.holds(&name, steps)
            })?,
            (Term::Size(size), Value::Array(items)) => items.len() as u64 == *size,
            (Term::Modulo(divisor, remainder), Value::Number(text)) => {
                steps.take_bytes(text.len())?;
                is_integer(text) && remainder_of(text, *divisor) == i128::from(*remainder)
            }
            (Term::Regex(pattern), Value::String(text)) => pattern.is_match(text, steps)?,
            (Term::BeginsWith(prefix), Value::String(text)) => {
                steps.take_bytes(prefix.len())?;
                text.starts_with(prefix.as_str())
            }
            (Term::Not(term), value) => !term.holds(value, order, steps)?,
            _ => false,
        })
    }
}

/// Returns whether a value is in the list, or is an array with an item in the list.
fn is_in(list: &[Value<'_>], value: &Value<'_>, order: Order, steps: &mut Steps<'_>) -> MatchResult {
    match value {
        Value::Array(items) => any(items, steps, |item, steps| equals_any(list, item, order, steps)),
        value => equals_any(list, value, order, steps),
    }
}

fn equals_any(list: &[Value<'_>], value: &Value<'_>, order: Order, steps: &mut Steps<'_>) -> MatchResult {
    any(list, steps, |other, steps| order.are_equal(value, other, steps))
}

/// Returns whether any of the items holds. A match pauses between two items. A resumed match continues with the item at
/// which it paused; the items before it did not hold.
fn any<T>(items: &[T], steps: &mut Steps<'_>, mut holds: impl FnMut(&T, &mut Steps<'_>) -> MatchResult) -> MatchResult {
    let begin = steps.begin_loop();
    for (at, item) in items.iter().enumerate().skip(begin) {
        if at > begin && steps.is_slice_over() {
            return Err(steps.pause_before(at));
        }
        match holds(item, steps) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(ended) => {
                steps.note_round(at, ended);
                return Err(ended);
            }
        }
    }
    Ok(false)
}

pub(crate) fn all<T>(
    items: &[T],
    steps: &mut Steps<'_>,
    mut holds: impl FnMut(&T, &mut Steps<'_>) -> MatchResult,
) -> MatchResult {
    Ok(!any(items, steps, |item, steps| Ok(!holds(item, steps)?))?)
}

/// Returns the signed remainder of an integer of any length. The divisor must not be 0.
fn remainder_of(text: &str, divisor: i64) -> i128 {
    let divisor = i128::from(divisor).abs().max(1);
    let digits = text.bytes().filter(u8::is_ascii_digit);
    let remainder = digits.fold(0, |remainder, digit| (remainder * 10 + i128::from(digit - b'0')) % divisor);
    if text.starts_with('-') { -remainder } else { remainder }
}

fn type_of(value: &Value<'_>) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
