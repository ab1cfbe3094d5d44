//! JSON values as Erlang prints them, which CouchDB does in what it refuses.

use flatbed_layer::json::Value;

use crate::query::as_list;

/// Terms longer than this are printed without what is in them.
const TERM_BYTES_MAX: usize = 70;

/// A JSON value as Erlang prints it. Of long ones, which Erlang breaks into lines, what is nested is left out.
pub(crate) fn write_term(value: &Value<'_>, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Number(text) => out.push_str(text),
        Value::String(text) if text.is_empty() => out.push_str("<<>>"),
        Value::String(text) => out.push_str(&format!("<<{}>>", as_list(text))),
        Value::Array(items) if items.is_empty() => out.push_str("[]"),
        Value::Array(items) => {
            write_nested(out, "[", "]", items, |item, out| write_term(item, out));
        }
        Value::Object(members) => write_nested(out, "{[", "]}", members, |(name, value), out| {
            out.push('{');
            write_term(&Value::String(name.clone()), out);
            out.push(',');
            write_term(value, out);
            out.push('}');
        }),
    }
}

fn write_nested<T>(out: &mut String, open: &str, close: &str, items: &[T], write: impl Fn(&T, &mut String)) {
    let begin = out.len();
    out.push_str(open);
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        write(item, out);
        if out.len() - begin > TERM_BYTES_MAX {
            out.truncate(begin + open.len());
            out.push_str("...");
            break;
        }
    }
    out.push_str(close);
}
