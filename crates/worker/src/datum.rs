//! Column values and their declared types.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use flatbed_flatten::json::{Limits, Value, parse, to_string, write_string};

use crate::decimal::Decimal;
use crate::time::{Moment, date_of};
use crate::transform::{boolean, text_of};

/// A column value.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Datum {
    /// An absent value or JSON's `null`.
    Null,
    /// A boolean.
    Bool(bool),
    /// A number, as written in JSON.
    Number(String),
    /// A text. Dates and times are ISO 8601 texts.
    Text(String),
    /// An array or object, as JSON.
    Json(String),
}

impl Datum {
    /// Converts a value without a declared type.
    pub fn of(value: &Value<'_>) -> Datum {
        match value {
            Value::Null => Datum::Null,
            Value::Bool(value) => Datum::Bool(*value),
            Value::Number(text) => Datum::Number(text.clone().into_owned()),
            Value::String(text) => Datum::Text(text.clone().into_owned()),
            Value::Array(_) | Value::Object(_) => Datum::Json(to_string(value)),
        }
    }

    /// Writes the value as JSON.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Datum::Null => out.extend_from_slice(b"null"),
            Datum::Bool(value) => out.extend_from_slice(if *value { b"true" } else { b"false" }),
            Datum::Number(text) | Datum::Json(text) => out.extend_from_slice(text.as_bytes()),
            Datum::Text(text) => write_string(text, out),
        }
    }

    /// Returns the canonical form for a key: equal numbers get equal texts regardless of trailing zeros. Numbers of a
    /// declared scale already have it.
    #[must_use]
    pub fn in_key(self, kind: Option<Type>) -> Datum {
        match (self, kind) {
            (Datum::Number(text), kind) if !matches!(kind, Some(Type::Numeric(Some(_)))) => {
                Datum::Number(normal(&text))
            }
            (other, _) => other,
        }
    }

    /// Returns the approximate size in memory and on the wire, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Datum::Null | Datum::Bool(_) => 8,
            Datum::Number(text) | Datum::Text(text) | Datum::Json(text) => 8 + text.len(),
        }
    }
}

/// Returns a key as the JSON text of an object of its columns and values. It identifies the row even after the mapping
/// has changed.
pub fn key_text<'k>(key: impl IntoIterator<Item = (&'k str, &'k Datum)>) -> String {
    let mut out = Vec::with_capacity(64);
    for (name, datum) in key {
        out.push(if out.is_empty() { b'{' } else { b',' });
        write_string(name, &mut out);
        out.push(b':');
        datum.write(&mut out);
    }
    out.push(b'}');
    // The bytes come from strings.
    String::from_utf8(out).unwrap_or_default()
}

/// Parses a key's text. `None`: malformed.
pub fn key_of_text(text: &str) -> Option<Vec<(String, Datum)>> {
    match parse(text.as_bytes(), &Limits::default()).ok()? {
        Value::Object(members) => {
            Some(members.iter().map(|(name, value)| (name.clone().into_owned(), Datum::of(value))).collect())
        }
        _ => None,
    }
}

/// Returns a number's text without insignificant zeros and without an exponent.
pub(crate) fn normal(number: &str) -> String {
    let Some(decimal) = Decimal::parse(number) else { return number.to_owned() };
    let text = decimal.to_string();
    match text.split_once('.') {
        Some((whole, fraction)) if fraction.bytes().all(|byte| byte == b'0') => {
            if whole == "-0" {
                "0".to_owned()
            } else {
                whole.to_owned()
            }
        }
        Some(_) => text.trim_end_matches('0').to_owned(),
        None => text,
    }
}

/// A column's declared type. Values are checked and normalized before the target sees them, so that all targets refuse
/// the same values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// `text`, `varchar(n)`, `char(n)`: the maximum length in characters.
    Text(Option<usize>),
    /// `smallint`, `integer`, `bigint`: the width in bits.
    Integer(u32),
    /// `numeric(precision, scale)`, `decimal(...)`.
    Numeric(Option<(usize, usize)>),
    /// `real`, `float`, `double precision`.
    Float,
    /// `boolean`.
    Boolean,
    /// `date`.
    Date,
    /// `timestamp`, `timestamptz`, `datetime`: in UTC.
    Timestamp,
    /// `json`, `jsonb`: any value.
    Json,
    /// `bytea`, `blob`, `binary`: bytes, in base64 in documents.
    Bytes,
}

/// The error for an unknown type name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no type of a column")]
pub struct TypeError(String);

/// The error for a value that does not fit its column's type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found} is not {expected}")]
pub struct Mismatch {
    expected: String,
    found: &'static str,
}

impl std::str::FromStr for Type {
    type Err = TypeError;

    fn from_str(text: &str) -> Result<Type, TypeError> {
        let error = || TypeError(text.chars().take(100).collect());
        let lower = text.trim().to_ascii_lowercase();
        let (name, sizes) = match lower.split_once('(') {
            None => (lower.as_str(), Vec::new()),
            Some((name, rest)) => {
                let inside = rest.trim_end().strip_suffix(')').ok_or_else(error)?;
                let sizes: Result<Vec<usize>, _> = inside.split(',').map(|size| size.trim().parse()).collect();
                (name, sizes.map_err(|_| error())?)
            }
        };
        let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
        match (name.as_str(), sizes.as_slice()) {
            ("text" | "varchar" | "char" | "character varying" | "uuid", []) => Ok(Type::Text(None)),
            ("varchar" | "char" | "character varying", [length]) => Ok(Type::Text(Some(*length))),
            ("smallint" | "int2", []) => Ok(Type::Integer(16)),
            ("int" | "integer" | "int4", []) => Ok(Type::Integer(32)),
            ("bigint" | "int8", []) => Ok(Type::Integer(64)),
            ("numeric" | "decimal", []) => Ok(Type::Numeric(None)),
            ("numeric" | "decimal", [precision]) => Ok(Type::Numeric(Some((*precision, 0)))),
            ("numeric" | "decimal", [precision, scale]) if scale <= precision => {
                Ok(Type::Numeric(Some((*precision, *scale))))
            }
            ("real" | "float" | "double" | "double precision" | "float4" | "float8", []) => Ok(Type::Float),
            ("boolean" | "bool", []) => Ok(Type::Boolean),
            ("date", []) => Ok(Type::Date),
            ("timestamp" | "timestamptz" | "datetime" | "timestamp with time zone", []) => Ok(Type::Timestamp),
            ("json" | "jsonb", []) => Ok(Type::Json),
            ("bytea" | "blob" | "longblob" | "binary" | "varbinary" | "bytes", []) => Ok(Type::Bytes),
            _ => Err(error()),
        }
    }
}

/// Writes the type as PostgreSQL does.
impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Text(None) => f.write_str("text"),
            Type::Text(Some(length)) => write!(f, "varchar({length})"),
            Type::Integer(16) => f.write_str("smallint"),
            Type::Integer(32) => f.write_str("integer"),
            Type::Integer(_) => f.write_str("bigint"),
            Type::Numeric(None) => f.write_str("numeric"),
            Type::Numeric(Some((precision, scale))) => write!(f, "numeric({precision},{scale})"),
            Type::Float => f.write_str("double precision"),
            Type::Boolean => f.write_str("boolean"),
            Type::Date => f.write_str("date"),
            Type::Timestamp => f.write_str("timestamptz"),
            Type::Json => f.write_str("jsonb"),
            Type::Bytes => f.write_str("bytea"),
        }
    }
}

impl Type {
    /// Converts a value to this type; `null` stays null.
    ///
    /// # Errors
    /// [`Mismatch`]. It contains no value, because values of documents must not reach the log.
    pub fn convert(&self, value: &Value<'_>) -> Result<Datum, Mismatch> {
        if *value == Value::Null {
            return Ok(Datum::Null);
        }
        let found = match value {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "this number",
            Value::String(_) => "this text",
            Value::Array(_) => "an array",
            Value::Object(_) => "an object",
        };
        let scalar = match value {
            Value::Number(text) | Value::String(text) => Some(text.trim()),
            _ => None,
        };
        let number = scalar.and_then(Decimal::parse);
        let converted = match self {
            Type::Text(length_max) => {
                let text = text_of(value).into_owned();
                let fits = length_max.is_none_or(|max| text.chars().count() <= max);
                fits.then_some(Datum::Text(text))
            }
            Type::Integer(bits) => number.and_then(|number| number.as_i64()).and_then(|integer| {
                let limit = 1_i64.checked_shl(bits - 1).filter(|_| *bits < 64);
                let fits = limit.is_none_or(|limit| (-limit..limit).contains(&integer));
                fits.then(|| Datum::Number(integer.to_string()))
            }),
            Type::Numeric(None) => number.map(|number| Datum::Number(number.to_string())),
            Type::Numeric(Some((precision, scale))) => number.and_then(|number| {
                let rounded = number.rounded(*scale);
                let fits = rounded.whole_digits() <= precision - scale;
                fits.then(|| Datum::Number(rounded.to_string()))
            }),
            Type::Float => number.map(|number| Datum::Number(number.to_string())),
            Type::Boolean => boolean(value).map(Datum::Bool),
            Type::Date => match value {
                Value::String(text) => date_of(text.trim()).map(|date| Datum::Text(date.to_owned())),
                _ => None,
            },
            Type::Timestamp => match (value, number) {
                (Value::String(text), _) => Moment::parse(text.trim()),
                (_, Some(number)) => number.truncated().as_i64().and_then(Moment::of_number),
                _ => None,
            }
            .map(|moment| Datum::Text(moment.to_string())),
            Type::Json => Some(Datum::Json(to_string(value))),
            Type::Bytes => match value {
                // One canonical form, without white space, because it may be a key.
                Value::String(text) => {
                    let bare: String = text.split_ascii_whitespace().collect();
                    BASE64.decode(&bare).ok().map(|bytes| Datum::Text(BASE64.encode(bytes)))
                }
                _ => None,
            },
        };
        converted.ok_or_else(|| Mismatch { expected: self.to_string(), found })
    }
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{Limits, parse};
    use proptest::prelude::*;

    use super::*;

    fn converted(kind: &str, json: &str) -> String {
        let value = parse(json.as_bytes(), &Limits::default()).unwrap();
        match kind.parse::<Type>().unwrap().convert(&value) {
            Err(mismatch) => mismatch.to_string(),
            Ok(datum) => {
                let mut out = Vec::new();
                datum.write(&mut out);
                String::from_utf8(out).unwrap()
            }
        }
    }

    #[test]
    fn values_take_their_types_form() {
        for (kind, json, result) in [
            ("text", "1.50", "\"1.50\""),
            ("TEXT", "true", "\"true\""),
            ("varchar(2)", "\"\u{e4}b\"", "\"\u{e4}b\""),
            ("varchar(2)", "\"abc\"", "this text is not varchar(2)"),
            ("smallint", "32767", "32767"),
            ("smallint", "32768", "this number is not smallint"),
            ("smallint", "-32768", "-32768"),
            ("integer", "2147483648", "this number is not integer"),
            ("INT", "\"12\"", "12"),
            ("integer", "1.0", "1"),
            ("integer", "1.5", "this number is not integer"),
            ("bigint", "9223372036854775807", "9223372036854775807"),
            ("bigint", "9223372036854775808", "this number is not bigint"),
            ("numeric", "1.50", "1.50"),
            ("NUMERIC(4, 2)", "99.994", "99.99"),
            ("numeric(4,2)", "99.995", "this number is not numeric(4,2)"),
            ("decimal(3)", "12.5", "12"),
            ("double precision", "1.5e3", "1500"),
            ("float", "\"x\"", "this text is not double precision"),
            ("boolean", "\"yes\"", "true"),
            ("boolean", "[]", "an array is not boolean"),
            ("date", "\"2026-04-22T10:00:00Z\"", "\"2026-04-22\""),
            ("date", "7", "this number is not date"),
            ("timestamptz", "\"2026-04-22T10:00:00+02:00\"", "\"2026-04-22T08:00:00Z\""),
            ("timestamp", "1768521600", "\"2026-01-16T00:00:00Z\""),
            ("jsonb", "{\"a\": [1]}", "{\"a\":[1]}"),
            ("integer", "null", "null"),
            ("blob", "\"aGVs bG8=\"", "\"aGVsbG8=\""),
            ("bytea", "\"hello\"", "this text is not bytea"),
            ("bytea", "7", "this number is not bytea"),
            ("date", "{}", "an object is not date"),
        ] {
            assert_eq!(converted(kind, json), result, "{kind} {json}");
        }
        for kind in ["", "blob(3)", "numeric(2,3)", "numeric(x)", "varchar(1", "text(5)", "int(11)", "varchar(1,2)"] {
            assert!(kind.parse::<Type>().is_err(), "{kind}");
        }
    }

    #[test]
    fn types_are_written_as_they_are_read() {
        for kind in [
            "text",
            "varchar(3)",
            "smallint",
            "integer",
            "bigint",
            "numeric",
            "numeric(3,1)",
            "double precision",
            "boolean",
            "date",
            "timestamptz",
            "jsonb",
            "bytea",
        ] {
            assert_eq!(kind.parse::<Type>().unwrap().to_string(), kind);
        }
    }

    #[test]
    fn keys_that_are_the_same_have_the_same_text() {
        let normal = |number: &str, kind: Option<Type>| Datum::Number(number.to_owned()).in_key(kind);
        for number in ["1", "1.0", "1e0", "10e-1", "1.00"] {
            assert_eq!(normal(number, None), Datum::Number("1".to_owned()));
        }
        for (number, same) in [("-0", "0"), ("0.00", "0"), ("1.50", "1.5"), ("100", "100")] {
            assert_eq!(normal(number, Some(Type::Numeric(None))), Datum::Number(same.to_owned()));
        }
        assert_eq!(normal("1.50", Some(Type::Numeric(Some((4, 2))))), Datum::Number("1.50".to_owned()));
        let key =
            [("a\"b", Datum::Text("a\"b".to_owned())), ("c", Datum::Bool(true)), ("d", Datum::Json("{}".to_owned()))];
        let text = key_text(key.iter().map(|(name, datum)| (*name, datum)));
        assert_eq!(text, r#"{"a\"b":"a\"b","c":true,"d":{}}"#);
        assert_eq!(key_of_text(&text).unwrap(), key.map(|(name, datum)| (name.to_owned(), datum)));
        assert_eq!([key_of_text("[1]"), key_of_text("{")], [None, None]);
        // A number and an equal-looking text are different keys.
        assert_ne!(key_text([("n", &Datum::Text("1".to_owned()))]), key_text([("n", &Datum::Number("1".to_owned()))]));
    }

    proptest! {
        #[test]
        fn what_is_converted_stays_so(
            kind in proptest::sample::select(vec!["text", "varchar(5)", "smallint", "bigint", "numeric(6,2)", "float", "boolean", "date", "timestamptz"]),
            json in "(-?[1-9][0-9]{0,8}(\\.[0-9]{1,4})?|\"[0-9a-z]{0,8}\"|\"2026-0[1-9]-1[0-9]\"|true|null)",
        ) {
            let once = converted(kind, &json);
            if !once.contains(" is not ") {
                prop_assert_eq!(converted(kind, &once), once);
            }
        }
    }
}
