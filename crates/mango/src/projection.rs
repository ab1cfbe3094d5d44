//! Projects documents to the fields of a request.

use std::borrow::Cow;
use std::collections::HashSet;

use flatbed_flatten::json::Value;

use crate::field::{Field, place};

/// Returns the fields of a document, each at the path of its name. Items of an array become members named by their
/// indexes. Each value has one path, so the answer is at most about as large as the document, however many fields name
/// a value.
pub fn project(document: &Value<'_>, fields: &[Field]) -> Value<'static> {
    let mut answer = Value::Object(Vec::new());
    // A value already present is not copied again: it may be large, and have many spellings.
    let mut shown = HashSet::new();
    for field in fields {
        if let Some((path, value)) = find(document, field)
            && shown.insert(std::ptr::from_ref(value))
        {
            let path: Vec<&str> = path.iter().map(|name| &**name).collect();
            put(&mut answer, &path, value.clone().into_owned());
        }
    }
    answer
}

/// Finds a field's value and its path: the field's parts, with array indexes in their shortest form.
fn find<'v, 't>(document: &'v Value<'t>, field: &'v Field) -> Option<(Vec<Cow<'v, str>>, &'v Value<'t>)> {
    let (mut at, mut path) = (document, Vec::with_capacity(field.parts().len()));
    for part in field.parts() {
        let name = match at {
            Value::Object(_) => {
                at = at.get(part)?;
                Cow::Borrowed(part)
            }
            Value::Array(items) => {
                let place = place(part)?;
                at = items.get(place)?;
                // `+0` and `00` also mean the index `0`.
                Cow::Owned(place.to_string())
            }
            _ => return None,
        };
        path.push(name);
    }
    Some((path, at))
}

/// Puts a value at a path, and makes missing objects. A value on the way that is no object stays.
pub(crate) fn put(into: &mut Value<'static>, path: &[&str], value: Value<'static>) {
    let Some((first, rest)) = path.split_first() else {
        *into = value;
        return;
    };
    match into {
        Value::Object(members) => match members.iter_mut().find(|(name, _)| name == first) {
            Some((_, found)) => put(found, rest, value),
            None => {
                let mut nested = value;
                for name in rest.iter().rev() {
                    nested = Value::Object(vec![((*name).to_owned().into(), nested)]);
                }
                members.push(((*first).to_owned().into(), nested));
            }
        },
        Value::Array(items) => {
            if let Some(found) = first.parse::<usize>().ok().and_then(|at| items.get_mut(at)) {
                put(found, rest, value);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{self, Limits};

    use super::*;

    fn projected(document: &str, fields: &[&str]) -> String {
        let document = json::parse(document.as_bytes(), &Limits::default()).unwrap();
        let fields: Vec<Field> = fields.iter().map(|field| Field::new(field).unwrap()).collect();
        let mut text = Vec::new();
        json::write(&project(&document, &fields), &mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn fields_are_where_their_names_say() {
        let document = r#"{"a":[{"b":1,"c":2},3],"0":{"00":4},"d":5}"#;
        for (fields, expected) in [
            (&["d", "x", "d.e"][..], r#"{"d":5}"#),
            (&["a.0.b", "a.1"], r#"{"a":{"0":{"b":1},"1":3}}"#),
            (&["a.2", "a.-1", "a.x"], "{}"),
            (&["0.00", "00.00", "0.0"], r#"{"0":{"00":4}}"#),
            (&["a.0", "a", "a.0", "a.1"], r#"{"a":[{"b":1,"c":2},3]}"#),
            (&["a", "a.0"], r#"{"a":[{"b":1,"c":2},3]}"#),
        ] {
            assert_eq!(projected(document, fields), expected, "{fields:?}");
        }
    }

    #[test]
    fn an_item_is_shown_once_however_its_place_is_written() {
        let names: Vec<String> =
            (1..100).flat_map(|zeros| ["a.", "a.+", "a.-"].map(|a| a.to_owned() + &"0".repeat(zeros))).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(projected(r#"{"a":["large"]}"#, &names), r#"{"a":{"0":"large"}}"#);
    }
}
