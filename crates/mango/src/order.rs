//! The order of JSON values: by type first, as CouchDB has it.

use std::cmp::Ordering;

use flatbed_flatten::json::Value;

use crate::steps::{Exhausted, Steps};

/// Null, false, true, numbers, strings, arrays, objects. Strings compare by their code points; arrays and objects member
/// by member.
pub fn compare(a: &Value<'_>, b: &Value<'_>) -> Ordering {
    // Without a bound there is an order.
    within(a, b, &mut Steps::endless()).unwrap_or(Ordering::Equal)
}

/// As [`compare`], and each value that is looked at is a step.
pub(crate) fn within(a: &Value<'_>, b: &Value<'_>, steps: &mut Steps<'_>) -> Result<Ordering, Exhausted> {
    steps.take(1)?;
    Ok(match (a, b) {
        (Value::Number(a), Value::Number(b)) => numbers(a, b),
        (Value::String(a), Value::String(b)) => {
            steps.take_bytes(a.len().min(b.len()))?;
            a.cmp(b)
        }
        (Value::Array(a), Value::Array(b)) => {
            for (a, b) in a.iter().zip(b) {
                let order = within(a, b, steps)?;
                if order.is_ne() {
                    return Ok(order);
                }
            }
            a.len().cmp(&b.len())
        }
        (Value::Object(a), Value::Object(b)) => {
            // The order in which members are written says nothing.
            steps.take(a.len().saturating_add(b.len()))?;
            let (mut a, mut b): (Vec<_>, Vec<_>) = (a.iter().collect(), b.iter().collect());
            a.sort_by(|(a, _), (b, _)| a.cmp(b));
            b.sort_by(|(a, _), (b, _)| a.cmp(b));
            for ((a_name, a), (b_name, b)) in a.iter().zip(&b) {
                let order = a_name.cmp(b_name);
                let order = if order.is_eq() { within(a, b, steps)? } else { order };
                if order.is_ne() {
                    return Ok(order);
                }
            }
            a.len().cmp(&b.len())
        }
        (a, b) => rank(a).cmp(&rank(b)),
    })
}

fn numbers(a: &str, b: &str) -> Ordering {
    if let (Ok(a), Ok(b)) = (a.parse::<i128>(), b.parse::<i128>()) {
        return a.cmp(&b);
    }
    let float = |text: &str| text.parse::<f64>().unwrap_or(f64::NAN);
    float(a).partial_cmp(&float(b)).unwrap_or_else(|| a.cmp(b))
}

fn rank(value: &Value<'_>) -> u8 {
    match value {
        Value::Null => 0,
        Value::Bool(false) => 1,
        Value::Bool(true) => 2,
        Value::Number(_) => 3,
        Value::String(_) => 4,
        Value::Array(_) => 5,
        Value::Object(_) => 6,
    }
}
