//! The fields of documents that an answer has.

use flatbed_flatten::json::Value;

use crate::field::Field;

/// The fields of a document, each where its name says. Items of an array become members named by their places.
pub fn project(document: &Value<'_>, fields: &[Field]) -> Value<'static> {
    let mut answer = Value::Object(Vec::new());
    for field in fields {
        if let Some(value) = field.of(document) {
            put(&mut answer, &field.parts().collect::<Vec<_>>(), value.clone().into_owned());
        }
    }
    answer
}

/// Puts a value where a path leads, making the objects on the way. What is there already and is no object stays.
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
