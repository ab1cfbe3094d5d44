//! The order of JSON values: by type first, as CouchDB has it.

use std::cmp::Ordering;

use flatbed_flatten::json::Value;

/// Null, false, true, numbers, strings, arrays, objects. Strings compare by their code points; arrays and objects member
/// by member.
pub fn compare(a: &Value<'_>, b: &Value<'_>) -> Ordering {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => numbers(a, b),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => {
            let first = a.iter().zip(b).map(|(a, b)| compare(a, b)).find(|order| order.is_ne());
            first.unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        (Value::Object(a), Value::Object(b)) => {
            // The order in which members are written says nothing.
            let (mut a, mut b): (Vec<_>, Vec<_>) = (a.iter().collect(), b.iter().collect());
            a.sort_by(|(a, _), (b, _)| a.cmp(b));
            b.sort_by(|(a, _), (b, _)| a.cmp(b));
            let mut members =
                a.iter().zip(&b).map(|((a_name, a), (b_name, b))| a_name.cmp(b_name).then_with(|| compare(a, b)));
            members.find(|order| order.is_ne()).unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        (a, b) => rank(a).cmp(&rank(b)),
    }
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
