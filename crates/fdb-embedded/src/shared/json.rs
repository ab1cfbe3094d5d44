//! A JSON writer for the engine's own documents.

use std::fmt::Write;

/// A JSON object being written. Names need no escapes, and must be unique.
pub(crate) struct Object<'o> {
    out: &'o mut String,
    is_empty: bool,
}

/// Returns the text of an object.
pub(crate) fn object(fill: impl FnOnce(&mut Object<'_>)) -> String {
    let mut out = String::new();
    write_object(&mut out, fill);
    out
}

fn write_object(out: &mut String, fill: impl FnOnce(&mut Object<'_>)) {
    out.push('{');
    fill(&mut Object { out, is_empty: true });
    out.push('}');
}

fn write_string(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\0'..='\x1f' | '\x7f' => write_formatted(out, format_args!("\\u{:04x}", u32::from(character))),
            _ => out.push(character),
        }
    }
    out.push('"');
}

fn write_formatted(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = out.write_fmt(text);
}

impl Object<'_> {
    fn name(&mut self, name: &str) -> &mut String {
        if !std::mem::take(&mut self.is_empty) {
            self.out.push(',');
        }
        write_string(self.out, name);
        self.out.push(':');
        self.out
    }

    pub(crate) fn string(&mut self, name: &str, value: &str) {
        write_string(self.name(name), value);
    }

    pub(crate) fn boolean(&mut self, name: &str, value: bool) {
        self.name(name).push_str(if value { "true" } else { "false" });
    }

    pub(crate) fn unsigned(&mut self, name: &str, value: u64) {
        write_formatted(self.name(name), format_args!("{value}"));
    }

    pub(crate) fn signed(&mut self, name: &str, value: i64) {
        write_formatted(self.name(name), format_args!("{value}"));
    }

    /// Writes a number; a number that is not finite, which JSON lacks, is written as 0.
    pub(crate) fn float(&mut self, name: &str, value: f64) {
        let value = if value.is_finite() { value } else { 0.0 };
        write_formatted(self.name(name), format_args!("{value:.6}"));
    }

    pub(crate) fn null(&mut self, name: &str) {
        self.name(name).push_str("null");
    }

    pub(crate) fn object(&mut self, name: &str, fill: impl FnOnce(&mut Object<'_>)) {
        write_object(self.name(name), fill);
    }

    /// Writes a list of objects, one for each item.
    pub(crate) fn list<T>(&mut self, name: &str, items: &[T], mut fill: impl FnMut(&mut Object<'_>, &T)) {
        let out = self.name(name);
        out.push('[');
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                out.push(',');
            }
            write_object(out, |object| fill(object, item));
        }
        out.push(']');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_document_is_read_back() {
        let text = object(|document| {
            document.boolean("yes", true);
            document.unsigned("big", u64::MAX);
            document.signed("small", -1);
            document.float("half", 0.5);
            document.float("none", f64::NAN);
            document.null("nothing");
            document.object("empty", |_| {});
            document.list("list", &[1, 2], |item, &number| item.unsigned("number", number));
            document.list("empty list", &[(); 0], |_, ()| {});
        });
        // Numbers are compared in their written form.
        let expected = r#"{"yes":true,"big":18446744073709551615,"small":-1,"half":0.500000,"none":0.000000,"nothing":null,
            "empty":{},"list":[{"number":1},{"number":2}],"empty list":[]}"#;
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(value(&text), value(expected));
    }

    proptest! {
        #[test]
        fn every_text_comes_back(text: String, tricky in "[\\x00-\\x22\\\\\\x7f\\u{2028}/]{0,9}") {
            for text in [text, tricky] {
                let written = object(|document| document.string(&text, &text));
                let read: serde_json::Value = serde_json::from_str(&written).unwrap();
                prop_assert_eq!(read.get(&text).and_then(|value| value.as_str()), Some(&text[..]));
            }
        }
    }
}
