//! Values in Erlang's print formats, which CouchDB's error reasons contain.

use flatbed_flatten::json::Value;

/// The most characters of a printed value, because reasons are stored.
const CHARS_MAX: usize = 1_000;

/// Prints as `~w`: a string as the numbers of its bytes.
pub(super) fn plain(value: &Value<'_>) -> String {
    let mut out = String::new();
    write(value, false, &mut out);
    cut(out)
}

/// Prints as `~p`, on one line: a string as text if its bytes are printable.
pub(super) fn pretty(value: &Value<'_>) -> String {
    let mut out = String::new();
    write(value, true, &mut out);
    cut(out)
}

/// Prints an object's members as `~p`.
pub(super) fn pretty_members(members: &[(std::borrow::Cow<'_, str>, Value<'_>)]) -> String {
    let mut out = String::new();
    write_members(members, true, &mut out);
    cut(out)
}

fn cut(text: String) -> String {
    match text.char_indices().nth(CHARS_MAX) {
        Some((at, _)) => text.get(..at).unwrap_or_default().to_owned() + "...",
        None => text,
    }
}

fn write(value: &Value<'_>, is_pretty: bool, out: &mut String) {
    if out.len() > 4 * CHARS_MAX {
        return;
    }
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Number(text) => out.push_str(text),
        Value::String(text) => {
            out.push_str("<<");
            write_string(text, is_pretty, out);
            out.push_str(">>");
        }
        Value::Array(items) => {
            out.push('[');
            separated(items, out, |item, out| write(item, is_pretty, out));
            out.push(']');
        }
        Value::Object(members) => {
            out.push('{');
            write_members(members, is_pretty, out);
            out.push('}');
        }
    }
}

fn write_members(members: &[(std::borrow::Cow<'_, str>, Value<'_>)], is_pretty: bool, out: &mut String) {
    out.push('[');
    separated(members, out, |(name, value), out| {
        out.push_str("{<<");
        write_string(name, is_pretty, out);
        out.push_str(">>,");
        write(value, is_pretty, out);
        out.push('}');
    });
    out.push(']');
}

fn separated<T>(items: &[T], out: &mut String, mut write: impl FnMut(&T, &mut String)) {
    for (at, item) in items.iter().enumerate() {
        if out.len() > 4 * CHARS_MAX {
            return;
        }
        if at > 0 {
            out.push(',');
        }
        write(item, out);
    }
}

fn write_string(text: &str, is_pretty: bool, out: &mut String) {
    // Skips the text that would be cut anyway.
    let text = text.char_indices().nth(CHARS_MAX).map_or(text, |(at, _)| text.get(..at).unwrap_or(text));
    let is_printable = text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\n' | b'\r' | b'\t'));
    if is_pretty && is_printable && !text.is_empty() {
        out.push_str(&format!("{text:?}"));
    } else {
        separated(text.as_bytes(), out, |byte, out| out.push_str(&byte.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{Limits, parse};

    use super::*;

    #[test]
    fn values_are_printed() {
        let check = |text: &str, w: &str, p: &str| {
            let value = parse(text.as_bytes(), &Limits::default()).unwrap();
            assert_eq!((plain(&value).as_str(), pretty(&value).as_str()), (w, p));
        };
        check("null", "null", "null");
        check("[true,false,-1.5]", "[true,false,-1.5]", "[true,false,-1.5]");
        check(r#""x\"y""#, "<<120,34,121>>", r#"<<"x\"y">>"#);
        check(r#""""#, "<<>>", "<<>>");
        check("\"\u{e9}\"", "<<195,169>>", "<<195,169>>");
        check(r#"{"a":1,"b":{}}"#, "{[{<<97>>,1},{<<98>>,{[]}}]}", r#"{[{<<"a">>,1},{<<"b">>,{[]}}]}"#);
    }

    #[test]
    fn what_is_printed_has_a_bound() {
        let long = Value::String("x".repeat(100_000).into());
        assert_eq!(plain(&long).len(), CHARS_MAX + 3);
        assert_eq!(pretty(&Value::Array(vec![long; 100])).len(), CHARS_MAX + 3);
        let many = Value::Array(vec![Value::Null; 100_000]);
        assert!(pretty(&many).ends_with("null..."));
        assert_eq!(pretty(&Value::String("x".repeat(CHARS_MAX - 6).into())).len(), CHARS_MAX);
    }
}
