//! The order of JSON values: CouchDB's collation, by which `_find` compares all fields but `_id`, and Erlang's order of
//! terms, by which it compares `_id`.

use std::cmp::Ordering;

use flatbed_flatten::json::Value;

use crate::steps::{Exhausted, Steps};

/// Null, false, true, numbers, strings, arrays, objects. Strings compare by their code points; arrays item by item, objects
/// member by member in the order written.
pub fn compare(a: &Value<'_>, b: &Value<'_>) -> Ordering {
    // Without a bound there is an order.
    within(a, b, &mut Steps::endless()).unwrap_or(Ordering::Equal)
}

/// As [`compare`], and each value that is looked at is a step.
pub(crate) fn within(a: &Value<'_>, b: &Value<'_>, steps: &mut Steps<'_>) -> Result<Ordering, Exhausted> {
    Order::Collated.within(a, b, steps)
}

/// Which order it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Collated,
    /// Strings by their bytes, and behind all else.
    Raw,
}

impl Order {
    pub(crate) fn within(self, a: &Value<'_>, b: &Value<'_>, steps: &mut Steps<'_>) -> Result<Ordering, Exhausted> {
        steps.take(1)?;
        Ok(match (a, b) {
            (Value::Number(a), Value::Number(b)) => numbers(a, b),
            (Value::String(a), Value::String(b)) => self.strings(a, b, steps)?,
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
                    let order = self.strings(a_name, b_name, steps)?;
                    let order = if order.is_eq() { self.within(a, b, steps)? } else { order };
                    if order.is_ne() {
                        return Ok(order);
                    }
                }
                a.len().cmp(&b.len())
            }
            (a, b) => self.rank(a).cmp(&self.rank(b)),
        })
    }

    fn strings(self, a: &str, b: &str, steps: &mut Steps<'_>) -> Result<Ordering, Exhausted> {
        steps.take_bytes(a.len().min(b.len()))?;
        Ok(match self {
            Order::Collated => strings(a, b),
            Order::Raw => a.as_bytes().cmp(b.as_bytes()),
        })
    }

    fn rank(self, value: &Value<'_>) -> u8 {
        match (self, value) {
            (Order::Collated, Value::Null) => 0,
            (Order::Collated, Value::Bool(false)) => 1,
            (Order::Collated, Value::Bool(true)) => 2,
            (Order::Collated, Value::Number(_)) => 3,
            (Order::Collated, Value::String(_)) => 4,
            (Order::Collated, Value::Array(_)) => 5,
            (Order::Collated, Value::Object(_)) => 6,
            (Order::Raw, Value::Number(_)) => 0,
            // They are atoms, which compare by their names.
            (Order::Raw, Value::Bool(false)) => 1,
            (Order::Raw, Value::Null) => 2,
            (Order::Raw, Value::Bool(true)) => 3,
            (Order::Raw, Value::Object(_)) => 4,
            (Order::Raw, Value::Array(_)) => 5,
            (Order::Raw, Value::String(_)) => 6,
        }
    }
}

/// The one place that says how strings collate.
fn strings(a: &str, b: &str) -> Ordering {
    a.cmp(b)
}

fn numbers(a: &str, b: &str) -> Ordering {
    if let (Ok(a), Ok(b)) = (a.parse::<i128>(), b.parse::<i128>()) {
        return a.cmp(&b);
    }
    let float = |text: &str| text.parse::<f64>().unwrap_or(f64::NAN);
    float(a).partial_cmp(&float(b)).unwrap_or_else(|| a.cmp(b))
}

/// Whether Erlang takes two values for one term: 1 and 1.0 are two.
pub(crate) fn identical(a: &Value<'_>, b: &Value<'_>, steps: &mut Steps<'_>) -> Result<bool, Exhausted> {
    steps.take(1)?;
    Ok(match (a, b) {
        (Value::Number(a), Value::Number(b)) => is_integer(a) == is_integer(b) && numbers(a, b).is_eq(),
        (Value::String(a), Value::String(b)) => {
            steps.take_bytes(a.len().min(b.len()))?;
            a == b
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && {
                for (a, b) in a.iter().zip(b) {
                    if !identical(a, b, steps)? {
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
                    if a_name != b_name || !identical(a, b, steps)? {
                        return Ok(false);
                    }
                }
                true
            }
        }
        (a, b) => Order::Collated.rank(a) == Order::Collated.rank(b),
    })
}

/// As [`identical`], without a bound.
pub(crate) fn same(a: &Value<'_>, b: &Value<'_>) -> bool {
    identical(a, b, &mut Steps::endless()).unwrap_or(false)
}

/// Whether a number's text is an integer to Erlang.
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
    fn what_is_one_term() {
        let is = |a: &str, b: &str| identical(&json(a), &json(b), &mut Steps::endless()).unwrap();
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
