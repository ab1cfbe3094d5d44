//! JSON values in Erlang's syntax, for CouchDB's error reasons.

use flatbed_layer::json::Value;

use crate::query::as_list;

/// Longer terms are printed without their nested content, in bytes.
const TERM_BYTES_MAX: usize = 70;

/// Writes a JSON value as Erlang prints it. Nested content of long values, which Erlang would break into lines, is
/// omitted.
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
