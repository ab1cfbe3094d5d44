//! The orders of JSON values, bounded in work: CouchDB's collation, by which `_find` compares all fields but `_id`, and
//! Erlang's order of terms for `_id`. The crate `collate` implements both.

use std::cmp::Ordering;
use std::sync::LazyLock;

use flatbed_collate::Collation;
use flatbed_flatten::json::Value;

use crate::steps::{MatchInterrupted, Steps};

/// Bytes of strings that are collated in a step, beside the cost of the comparison itself.
const STEP_BYTES: usize = 4;
const STEPS: usize = 4;

/// Longer non-ASCII strings are compared by their sort forms, in bytes: the collator goes back over the common prefix
/// of two strings repeatedly if it consists of marks, and would take minutes for 100 kB.
const DIRECT_BYTES_MAX: usize = 256;

// The collation data is compiled in, so this cannot fail.
static COLLATED: LazyLock<Collation> = LazyLock::new(|| Collation::unicode().unwrap_or_else(|_| Collation::raw()));

static RAW: Collation = Collation::raw();

/// Compares by the order of a json index's keys, and of all fields but `_id`.
pub fn compare(a: &Value<'_>, b: &Value<'_>) -> Ordering {
    Order::Collated.compare(a, b)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Collated,
    /// Strings by their bytes, behind all other types.
    Raw,
}

impl Order {
    fn collation(self) -> &'static Collation {
        match self {
            Order::Collated => &COLLATED,
            Order::Raw => &RAW,
        }
    }

    pub(crate) fn compare(self, a: &Value<'_>, b: &Value<'_>) -> Ordering {
        // Without a bound the comparison always finishes.
        self.within(a, b, &mut Steps::endless()).unwrap_or(Ordering::Equal)
    }

    /// Like [`Order::compare`]. Each value visited is a step.
    pub(crate) fn within(
        self,
        a: &Value<'_>,
        b: &Value<'_>,
        steps: &mut Steps<'_>,
    ) -> Result<Ordering, MatchInterrupted> {
        steps.take(1)?;
        Ok(match (a, b) {
            (Value::Array(a), Value::Array(b)) => {
                for (a, b) in a.iter().zip(b) {
                    let order = self.within(a, b, steps)?;
                    if order.is_ne() {
                        return Ok(order);
                    }
                }
                a.len().cmp(&b.len())
            }
            (Value::Object(a), Value::Object(b)) => {
                for ((a_name, a), (b_name, b)) in a.iter().zip(b) {
                    let name = |name| Value::String(std::borrow::Cow::Borrowed(name));
                    let order = self.scalars(&name(a_name), &name(b_name), steps)?;
                    let order = if order.is_eq() { self.within(a, b, steps)? } else { order };
                    if order.is_ne() {
                        return Ok(order);
                    }
                }
                a.len().cmp(&b.len())
            }
            (a, b) => self.scalars(a, b, steps)?,
        })
    }

    /// Compares values that are not both arrays, and not both objects.
    fn scalars(self, a: &Value<'_>, b: &Value<'_>, steps: &mut Steps<'_>) -> Result<Ordering, MatchInterrupted> {
        match (self, a, b) {
            (_, Value::String(a), Value::String(b)) if a == b => {
                steps.take_bytes(a.len())?;
                return Ok(Ordering::Equal);
            }
            (Order::Collated, Value::String(a_text), Value::String(b_text)) => {
                let bytes = a_text.len() + b_text.len();
                let is_direct = |text: &str| text.len() <= DIRECT_BYTES_MAX || text.is_ascii();
                if !is_direct(a_text) || !is_direct(b_text) {
                    steps.take(bytes)?;
                    return Ok(COLLATED.whole_form(a).cmp(&COLLATED.whole_form(b)));
                }
                steps.take(STEPS + bytes / STEP_BYTES)?;
            }
            (Order::Raw, Value::String(a), Value::String(b)) => steps.take_bytes(a.len().min(b.len()))?,
            (_, Value::Number(a), Value::Number(b)) => steps.take((a.len() + b.len()) / STEP_BYTES)?,
            _ => {}
        }
        Ok(self.collation().compare(a, b))
    }

    /// Returns whether two values are equal. Most strings are decided by their bytes.
    pub(crate) fn are_equal(
        self,
        a: &Value<'_>,
        b: &Value<'_>,
        steps: &mut Steps<'_>,
    ) -> Result<bool, MatchInterrupted> {
        match (a, b) {
            (Value::String(a), Value::String(b)) if is_plain(a) && is_plain(b) => {
                steps.take(1)?;
                steps.take_bytes(a.len() + b.len())?;
                Ok(a == b)
            }
            (a, b) => Ok(self.within(a, b, steps)?.is_eq()),
        }
    }
}

/// Returns whether each character counts in every order. No other plain string is then equal.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

/// Returns whether two values are the same Erlang term: 1 and 1.0 differ.
pub(crate) fn are_identical(a: &Value<'_>, b: &Value<'_>, steps: &mut Steps<'_>) -> Result<bool, MatchInterrupted> {
    steps.take(1)?;
    Ok(match (a, b) {
        (Value::Number(a_text), Value::Number(b_text)) => {
            is_integer(a_text) == is_integer(b_text) && Order::Raw.scalars(a, b, steps)?.is_eq()
        }
        (Value::String(a), Value::String(b)) => {
            steps.take_bytes(a.len().min(b.len()))?;
            a == b
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && {
                for (a, b) in a.iter().zip(b) {
                    if !are_identical(a, b, steps)? {
                        return Ok(false);
                    }
                }
                true
            }
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && {
                for ((a_name, a), (b_name, b)) in a.iter().zip(b) {
                    steps.take_bytes(a_name.len().min(b_name.len()))?;
                    if a_name != b_name || !are_identical(a, b, steps)? {
                        return Ok(false);
                    }
                }
                true
            }
        }
        (a, b) => RAW.compare(a, b).is_eq(),
    })
}

/// Like [`are_identical`], without a bound.
pub(crate) fn are_same(a: &Value<'_>, b: &Value<'_>) -> bool {
    are_identical(a, b, &mut Steps::endless()).unwrap_or(false)
}

/// Returns whether Erlang parses a number's text as an integer.
pub(crate) fn is_integer(text: &str) -> bool {
    !text.bytes().any(|byte| matches!(byte, b'.' | b'e' | b'E'))
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{Limits, parse};

    use super::*;

    fn json(text: &str) -> Value<'_> {
        parse(text.as_bytes(), &Limits::default()).unwrap()
    }

    #[test]
    fn ids_compare_as_terms() {
        let ascending =
            ["-1", "0.5", "false", "null", "true", "{}", "[]", "[1]", r#""""#, r#""B""#, r#""a""#, r#""é""#];
        for (at, a) in ascending.iter().enumerate() {
            for (other, b) in ascending.iter().enumerate() {
                let order = Order::Raw.within(&json(a), &json(b), &mut Steps::endless());
                assert_eq!(order, Ok(at.cmp(&other)), "{a} {b}");
            }
        }
    }

    #[test]
    fn long_strings_are_collated_in_no_time() {
        for piece in ["a\u{301}\u{316}", "\u{301}\u{316}", "\u{f71}\u{f72}", "\u{0}", "a", "é"] {
            let text = |end: &str| Value::String((piece.repeat(20_000) + end).into());
            assert_eq!(compare(&text("a"), &text("B")), Ordering::Less, "{piece}");
            assert_eq!(compare(&text("b"), &text("B")), Ordering::Less, "{piece}");
            assert_eq!(compare(&text("\u{ad}b"), &text("b")), Ordering::Equal, "{piece}");
            // Lengths around the one at which the algorithm changes.
            for count in DIRECT_BYTES_MAX / piece.len() - 1..DIRECT_BYTES_MAX / piece.len() + 2 {
                let text = |end: &str| Value::String((piece.repeat(count) + end).into());
                assert_eq!(compare(&text("a"), &text("B")), Ordering::Less, "{piece}");
                assert_eq!(compare(&text("á"), &text("A")), Ordering::Greater, "{piece}");
            }
        }
        // The bound on steps holds.
        let long = Value::String("\u{301}".repeat(8_000_000).into());
        let longer = Value::String("\u{301}".repeat(8_000_001).into());
        let nobody = || false;
        assert_eq!(Order::Collated.within(&long, &longer, &mut Steps::new(&nobody)), Err(MatchInterrupted::TooLong));
    }

    #[test]
    fn what_is_one_term() {
        let is = |a: &str, b: &str| are_identical(&json(a), &json(b), &mut Steps::endless()).unwrap();
        for (a, b) in
            [("1", "1"), ("1.0", "1.00"), ("1e1", "10.0"), (r#"{"a":[1,null]}"#, r#"{"a":[1,null]}"#), ("-0", "0")]
        {
            assert!(is(a, b), "{a} {b}");
        }
        for (a, b) in
            [("1", "1.0"), ("[1]", "[1,1]"), (r#"{"a":1,"b":1}"#, r#"{"b":1,"a":1}"#), ("false", "true"), ("{}", "[]")]
        {
            assert!(!is(a, b), "{a} {b}");
        }
    }
}
