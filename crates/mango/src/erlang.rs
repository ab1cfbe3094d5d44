//! JSON values as Erlang prints them, for reasons in CouchDB's words.

use flatbed_flatten::json::Value;

/// The largest printed term, in bytes. Longer ones are cut.
const BYTES_MAX: usize = 16 << 10;

/// Prints a value like `~w`: strings as lists of their bytes.
pub(crate) fn written(value: &Value<'_>) -> String {
    printed(value, false)
}

/// Prints a value like `~p`, on one line: strings as text if each byte is printable in Latin-1.
pub(crate) fn pretty(value: &Value<'_>) -> String {
    printed(value, true)
}

fn printed(value: &Value<'_>, pretty: bool) -> String {
    let mut term = Term { out: Vec::new(), pretty };
    term.value(value);
    if term.out.len() > BYTES_MAX {
        term.out.truncate(BYTES_MAX);
        term.out.extend_from_slice(b"...");
    }
    String::from_utf8_lossy(&term.out).into_owned()
}

struct Term {
    out: Vec<u8>,
    pretty: bool,
}

impl Term {
    fn put(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    fn value(&mut self, value: &Value<'_>) {
        match value {
            Value::Null => self.put("null"),
            Value::Bool(value) => self.put(if *value { "true" } else { "false" }),
            Value::Number(text) => self.number(text),
            Value::String(text) => self.binary(text.as_bytes()),
            Value::Array(items) => match items.iter().map(printable).collect::<Option<Vec<u8>>>() {
                // Erlang prints a list of characters as a string.
                Some(characters) if self.pretty && !characters.is_empty() => {
                    // Erlang prints Latin-1.
                    let text: Vec<u8> =
                        characters.iter().flat_map(|byte| char::from(*byte).to_string().into_bytes()).collect();
                    self.quoted(&text);
                }
                _ => {
                    self.put("[");
                    self.separated(items, Term::value);
                    self.put("]");
                }
            },
            Value::Object(members) => {
                self.put("{[");
                self.separated(members, |term, (name, value)| {
                    term.put("{");
                    term.binary(name.as_bytes());
                    term.put(",");
                    term.value(value);
                    term.put("}");
                });
                self.put("]}");
            }
        }
    }

    fn separated<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Term, &T)) {
        for (at, item) in items.iter().enumerate() {
            if self.out.len() > BYTES_MAX {
                return;
            }
            if at > 0 {
                self.put(",");
            }
            each(self, item);
        }
    }

    fn binary(&mut self, bytes: &[u8]) {
        self.put("<<");
        if self.pretty && !bytes.is_empty() && bytes.iter().all(|byte| is_printable(*byte)) {
            self.quoted(bytes);
        } else {
            self.separated(bytes, |term, byte| term.put(&byte.to_string()));
        }
        self.put(">>");
    }

    fn quoted(&mut self, bytes: &[u8]) {
        self.out.push(b'"');
        for byte in bytes {
            let escaped = match byte {
                b'"' | b'\\' => *byte,
                b'\n' => b'n',
                b'\r' => b'r',
                b'\t' => b't',
                0x8 => b'b',
                0xb => b'v',
                0xc => b'f',
                0x1b => b'e',
                _ => {
                    self.out.push(*byte);
                    continue;
                }
            };
            self.out.extend_from_slice(&[b'\\', escaped]);
        }
        self.out.push(b'"');
    }

    fn number(&mut self, text: &str) {
        if text.bytes().any(|byte| matches!(byte, b'.' | b'e' | b'E')) {
            return self.put(&float(text.parse().unwrap_or_default()));
        }
        self.put(if text == "-0" { "0" } else { text });
    }
}

fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x8..=0xd | 0x1b | 0x20..=0x7e | 0xa0..=0xff)
}

fn printable(item: &Value<'_>) -> Option<u8> {
    match item {
        Value::Number(text) => text.parse::<u8>().ok().filter(|byte| is_printable(*byte)),
        _ => None,
    }
}

/// Prints the shortest digits that parse to the same float, with an exponent if that is shorter.
fn float(float: f64) -> String {
    // Rust chooses the same digits; it prints one digit, an optional fraction, and an exponent.
    let text = format!("{:e}", float.abs());
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let digits = mantissa.replace('.', "");
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let sign = if float.is_sign_negative() { "-" } else { "" };
    let count = digits.len() as i32;
    // The number of digits before the point.
    let point = exponent + 1;
    let with_exponent = || {
        let (first, rest) = digits.split_at_checked(1).unwrap_or((&digits, ""));
        let rest = if rest.is_empty() { "0" } else { rest };
        format!("{sign}{first}.{rest}e{exponent}")
    };
    let cost = exponent.to_string().len() as i32 + 1 + if count == 1 { 2 } else { 1 };
    let zeros = |count: i32| "0".repeat(usize::try_from(count).unwrap_or_default());
    if float == 0.0 {
        return format!("{sign}0.0");
    }
    if point <= 0 {
        if 2 - point <= cost { format!("{sign}0.{}{digits}", zeros(-point)) } else { with_exponent() }
    } else if point >= count {
        if point - count + 2 <= cost { format!("{sign}{digits}{}.0", zeros(point - count)) } else { with_exponent() }
    } else {
        let (whole, fraction) = digits.split_at_checked(point as usize).unwrap_or((&digits, "0"));
        format!("{sign}{whole}.{fraction}")
    }
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{Limits, parse};

    use super::*;

    #[test]
    fn terms() {
        for (json, w, p) in [
            ("null", "null", "null"),
            ("-0", "0", "0"),
            ("18446744073709551616", "18446744073709551616", "18446744073709551616"),
            (r#""""#, "<<>>", "<<>>"),
            (r#""x\"y""#, "<<120,34,121>>", r#"<<"x\"y">>"#),
            (r#""Ā""#, "<<196,128>>", "<<196,128>>"),
            (r#""é""#, "<<195,169>>", "<<\"é\">>"),
            ("[]", "[]", "[]"),
            ("[1,[]]", "[1,[]]", "[1,[]]"),
            ("[97,233]", "[97,233]", "\"aé\""),
            ("{}", "{[]}", "{[]}"),
            (
                r#"{"a":true,"b":[{"c":"d"}]}"#,
                "{[{<<97>>,true},{<<98>>,[{[{<<99>>,<<100>>}]}]}]}",
                r#"{[{<<"a">>,true},{<<"b">>,[{[{<<"c">>,<<"d">>}]}]}]}"#,
            ),
        ] {
            let value = parse(json.as_bytes(), &Limits::default()).unwrap();
            assert_eq!((written(&value).as_str(), pretty(&value).as_str()), (w, p), "{json}");
        }
    }

    /// The same text as in an Erlang shell.
    #[test]
    fn floats() {
        for (text, shown) in [
            ("1.5", "1.5"),
            ("5.0", "5.0"),
            ("-2.50", "-2.5"),
            ("100.0", "100.0"),
            ("1000.0", "1.0e3"),
            ("1e10", "1.0e10"),
            ("123456.0", "123456.0"),
            ("0.1", "0.1"),
            ("0.001", "0.001"),
            ("1e-5", "1.0e-5"),
            ("1.25e-7", "1.25e-7"),
            ("0.0", "0.0"),
            ("-0.0", "-0.0"),
            ("1e300", "1.0e300"),
            ("12345678.9", "12345678.9"),
        ] {
            assert_eq!(float(text.parse().unwrap()), shown, "{text}");
        }
    }

    #[test]
    fn long_terms_are_cut() {
        let long = Value::Array(vec![Value::String("x".repeat(100_000).into()); 1_000]);
        assert!(written(&long).len() < 2 * BYTES_MAX);
        assert!(pretty(&long).ends_with("..."));
    }
}
