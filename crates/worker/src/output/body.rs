//! Formats of a document's body: JSON, a form, or MessagePack.
//!
//! Products are JSON texts whose numbers are decimals as written. A form contains only texts, so numbers stay
//! unchanged. MessagePack has integers of 64 bits and doubles; a number that neither represents exactly is sent as a
//! text with its digits.

use std::borrow::Cow;

use bytes::Bytes;
use flatbed_flatten::json::{Limits, Value, parse, to_string};
use serde::Deserialize;

use crate::datum::normal;
use crate::transform::text_of;

/// A format of bodies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// The JSON text, unchanged.
    #[default]
    Json,
    /// `application/x-www-form-urlencoded`: nested members have names with dots (`customer.id`), arrays are JSON texts,
    /// `null` is the empty text.
    Form,
    /// <https://msgpack.org>.
    Msgpack,
}

/// The largest form, in bytes: as large as a document may be.
const FORM_BYTES_MAX: usize = 64 << 20;

type Form<'f> = form_urlencoded::Serializer<'f, String>;

impl Format {
    /// Returns the value of `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Json => "application/json",
            Format::Form => "application/x-www-form-urlencoded",
            Format::Msgpack => "application/msgpack",
        }
    }

    /// Returns the body for a JSON text; `None` if it is malformed, and for a form beyond 64 MB, since each value
    /// repeats all names that lead to it.
    pub fn body(self, json: String) -> Option<Bytes> {
        if self == Format::Json {
            return Some(Bytes::from(json));
        }
        let value = parse(json.as_bytes(), &Limits::default()).ok()?;
        if self == Format::Form {
            let mut form = form_urlencoded::Serializer::new(String::with_capacity(json.len()));
            pairs(&value, &mut String::new(), &mut { FORM_BYTES_MAX }, &mut form)?;
            return Some(Bytes::from(form.finish()));
        }
        let mut out = Vec::with_capacity(json.len());
        pack(&value, &mut out).ok()?;
        Some(Bytes::from(out))
    }
}

/// Appends the fields under a name until `left` bytes are used up.
fn pairs(value: &Value<'_>, name: &mut String, left: &mut usize, form: &mut Form<'_>) -> Option<()> {
    match value {
        Value::Object(members) => members.iter().try_for_each(|(part, value)| under(part, value, name, left, form)),
        // Several products of one document: each under its position.
        Value::Array(items) if name.is_empty() => {
            items.iter().enumerate().try_for_each(|(at, value)| under(&at.to_string(), value, name, left, form))
        }
        value => {
            let text = match value {
                Value::Null => Cow::Borrowed(""),
                value => text_of(value),
            };
            // Percent-encoding triples a byte at most.
            *left = left.checked_sub(3 * (name.len() + text.len()) + 2)?;
            form.append_pair(if name.is_empty() { "value" } else { name }, &text);
            Some(())
        }
    }
}

fn under(part: &str, value: &Value<'_>, name: &mut String, left: &mut usize, form: &mut Form<'_>) -> Option<()> {
    let length = name.len();
    if length > 0 {
        name.push('.');
    }
    name.push_str(part);
    pairs(value, name, left, form)?;
    name.truncate(length);
    Some(())
}

/// The error for more members or items than the format can count, which no document has.
#[derive(Debug)]
struct TooMany;

fn pack(value: &Value<'_>, out: &mut Vec<u8>) -> Result<(), TooMany> {
    let count = |count: usize| u32::try_from(count).map_err(|_| TooMany);
    // Writing into memory only fails when memory runs out, which is not reported as an error.
    match value {
        Value::Null => rmp::encode::write_nil(out).map_err(|_| TooMany),
        Value::Bool(is) => rmp::encode::write_bool(out, *is).map_err(|_| TooMany),
        Value::String(text) => rmp::encode::write_str(out, text).map_err(|_| TooMany),
        Value::Number(text) => pack_number(text, out),
        Value::Array(items) => {
            rmp::encode::write_array_len(out, count(items.len())?).map_err(|_| TooMany)?;
            items.iter().try_for_each(|item| pack(item, out))
        }
        Value::Object(members) => {
            rmp::encode::write_map_len(out, count(members.len())?).map_err(|_| TooMany)?;
            members.iter().try_for_each(|(name, value)| {
                rmp::encode::write_str(out, name).map_err(|_| TooMany)?;
                pack(value, out)
            })
        }
    }
}

fn pack_number(text: &str, out: &mut Vec<u8>) -> Result<(), TooMany> {
    if let Ok(number) = text.parse::<i64>() {
        return rmp::encode::write_sint(out, number).map(drop).map_err(|_| TooMany);
    }
    if let Ok(number) = text.parse::<u64>() {
        return rmp::encode::write_uint(out, number).map(drop).map_err(|_| TooMany);
    }
    match text.parse::<f64>() {
        // The double is exact if its shortest text is the number.
        Ok(double) if double.is_finite() && normal(&double.to_string()) == normal(text) => {
            rmp::encode::write_f64(out, double).map_err(|_| TooMany)
        }
        _ => rmp::encode::write_str(out, text).map_err(|_| TooMany),
    }
}

/// Returns the body of a deletion: `{"_id": ..., "_deleted": true}`.
pub fn deletion(id: &str) -> String {
    to_string(&Value::Object(vec![
        (Cow::Borrowed("_id"), Value::String(Cow::Borrowed(id))),
        (Cow::Borrowed("_deleted"), Value::Bool(true)),
    ]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn form(json: &str) -> String {
        String::from_utf8(Format::Form.body(json.to_owned()).unwrap().to_vec()).unwrap()
    }

    fn hex(json: &str) -> String {
        let bytes = Format::Msgpack.body(json.to_owned()).unwrap();
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn forms() {
        for (json, expected) in [
            (r#"{"_id":"a b","n":1.50,"t":true,"gone":null}"#, "_id=a+b&n=1.50&t=true&gone="),
            (
                r#"{"customer":{"id":7,"tags":["x",1.0]},"ä&=":"ö+%"}"#,
                "customer.id=7&customer.tags=%5B%22x%22%2C1.0%5D&%C3%A4%26%3D=%C3%B6%2B%25",
            ),
            (r#"{"orders":[{"id":"1"}],"items":[]}"#, "orders=%5B%7B%22id%22%3A%221%22%7D%5D&items=%5B%5D"),
            (r#"[{"a":1},{"a":2}]"#, "0.a=1&1.a=2"),
            ("7", "value=7"),
            ("{}", ""),
        ] {
            assert_eq!(form(json), expected, "{json}");
        }
        assert_eq!(Format::Form.body("{".to_owned()), None);
        // Each of 1,000 values repeats a name of 100 kB.
        let values: Vec<String> = (0..1_000).map(|at| format!("\"{at}\":1")).collect();
        let large = format!("{{\"{}\":{{{}}}}}", "n".repeat(100_000), values.join(","));
        assert_eq!(Format::Form.body(large), None);
    }

    #[test]
    fn messages_are_packed() {
        for (json, expected) in [
            // The example of msgpack.org.
            (r#"{"compact":true,"schema":0}"#, "82a7636f6d70616374c3a6736368656d6100"),
            ("[null,false,-1,-33,127,128,256,65536]", "98c0c2ffd0df7fcc80cd0100ce00010000"),
            (
                "[9223372036854775807,-9223372036854775808,18446744073709551615]",
                "93cf7fffffffffffffffd38000000000000000cfffffffffffffffff",
            ),
            ("[1.5,0.1,-0.0,1e20]", "94cb3ff8000000000000cb3fb999999999999acb8000000000000000cb4415af1d78b58c40"),
            // A number that no double represents stays exact.
            ("[18446744073709551616]", "91b43138343436373434303733373039353531363136"),
            ("[18446744073709551617]", "91b43138343436373434303733373039353531363137"),
            ("[0.10000000000000000001]", "91b6302e3130303030303030303030303030303030303031"),
            (r#"["ä"]"#, "91a2c3a4"),
        ] {
            assert_eq!(hex(json), expected, "{json}");
        }
    }

    #[test]
    fn deletions() {
        assert_eq!(deletion("a\"b"), r#"{"_id":"a\"b","_deleted":true}"#);
        assert_eq!(form(&deletion("a")), "_id=a&_deleted=true");
    }

    proptest! {
        #[test]
        fn forms_keep_what_stands_in_them(texts in proptest::collection::vec("\\PC{0,20}", 0..5)) {
            let json = serde_json::Value::Object(
                texts.iter().enumerate().map(|(at, text)| (format!("m{at}"), text.as_str().into())).collect(),
            );
            let form = form(&json.to_string());
            let read: Vec<String> = form_urlencoded::parse(form.as_bytes()).map(|(_, value)| value.into_owned()).collect();
            prop_assert_eq!(read, texts);
        }

        #[test]
        fn doubles_are_doubles(double in any::<f64>().prop_filter("finite", |double| double.is_finite())) {
            // In the notations of JavaScript and of Rust.
            let text = format!("{double:e}");
            prop_assert_eq!(hex(&text), format!("cb{:016x}", double.to_bits()));
        }
    }
}
