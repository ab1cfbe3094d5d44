//! Values in CouchDB's reasons, printed as Erlang terms.

use flatbed_flatten::json::Value;

/// The most characters of a string in a reason.
const QUOTED_MAX: usize = 100;

/// Prints a scalar like `~p`. Arrays and objects are omitted and long strings are cut, so that a reason has a bound.
pub(crate) fn term(value: &Value<'_>) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(text) => cut(text),
        Value::String(text) => format!("<<\"{}\">>", cut(text)),
        Value::Array(items) if items.is_empty() => "[]".to_owned(),
        Value::Array(_) => "[...]".to_owned(),
        Value::Object(members) if members.is_empty() => "{[]}".to_owned(),
        Value::Object(_) => "{[...]}".to_owned(),
    }
}

pub(crate) fn cut(text: &str) -> String {
    match text.char_indices().nth(QUOTED_MAX) {
        Some((at, _)) => text.get(..at).map(|start| format!("{start}...")).unwrap_or_default(),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{Limits, parse};

    use super::*;

    #[test]
    fn scalars_as_erlang_prints_them() {
        for (text, expected) in [
            ("null", "null"),
            ("true", "true"),
            ("5", "5"),
            ("\"x\"", "<<\"x\">>"),
            ("[]", "[]"),
            ("[1]", "[...]"),
            ("{}", "{[]}"),
            ("{\"a\":1}", "{[...]}"),
        ] {
            assert_eq!(term(&parse(text.as_bytes(), &Limits::default()).unwrap()), expected, "{text}");
        }
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let hundred = "\u{e9}".repeat(100);
        assert_eq!(cut(&hundred), hundred);
        assert_eq!(cut(&format!("{hundred}x")), format!("{hundred}..."));
    }
}
