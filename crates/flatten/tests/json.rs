//! The parser against serde_json, and what it must refuse.

use flatbed_flatten::json::{Limits, ParseErrorKind, Value, parse, write};
use proptest::prelude::*;

fn kind(text: &[u8]) -> Option<ParseErrorKind> {
    parse(text, &Limits::default()).err().map(|error| error.kind)
}

#[test]
fn what_is_refused() {
    use ParseErrorKind::{Control, Depth, End, Escape, Number, Trailing, Unexpected, Utf8};
    let deep = "[".repeat(100_000);
    let rows: [(&[u8], ParseErrorKind); 27] = [
        (b"", End),
        (b"  ", End),
        (b"{\"a\":", End),
        (b"[1,]", Unexpected),
        (b"{\"a\":1,}", Unexpected),
        (b"{a:1}", Unexpected),
        (b"01", Trailing),
        (b"1 2", Trailing),
        (b"-", Number),
        (b"1.", Number),
        (b".5", Unexpected),
        (b"1e", Number),
        (b"+1", Unexpected),
        (b"1E400", Number),
        (b"-1e999", Number),
        (b"NaN", Unexpected),
        (b"nul", Unexpected),
        (b"\"\\x\"", Escape),
        (b"\"\\u12\"", End),
        (b"\"\\ud800\"", Escape),
        (b"\"\\udc00\"", Escape),
        (b"\"\\ud800\\u0041\"", Escape),
        (b"\"\n\"", Control),
        (b"\"\xff\"", Utf8),
        (b"\xef\xbb\xbf{}", Unexpected),
        (b"\"abc", End),
        (deep.as_bytes(), Depth),
    ];
    for (text, expected) in rows {
        assert_eq!(kind(text), Some(expected), "{}", String::from_utf8_lossy(&text[..text.len().min(40)]));
    }
    assert_eq!(kind("9".repeat(5_000).as_bytes()), Some(Number));
}

#[test]
fn of_duplicate_names_the_last_stays_where_it_is() {
    let check = |text: &str, expected: &str| {
        let mut out = Vec::new();
        write(&parse(text.as_bytes(), &Limits::default()).unwrap(), &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    };
    check(r#"{"a":1,"b":2,"a":3}"#, r#"{"b":2,"a":3}"#);
    let many: Vec<String> = (0..100).map(|n| format!(r#""k{}":{n}"#, n % 50)).collect();
    let kept: Vec<String> = (50..100).map(|n| format!(r#""k{}":{n}"#, n % 50)).collect();
    check(&format!("{{{}}}", many.join(",")), &format!("{{{}}}", kept.join(",")));
    check(r#"{"\u0061":1,"a":2}"#, r#"{"a":2}"#);
}

#[test]
fn escapes_are_written_in_their_short_form() {
    let mut out = Vec::new();
    write(&parse(br#""\u0000\u001f\b\f\n\r\t\"\\\/\u00e9\ud83d\ude00\u007f""#, &Limits::default()).unwrap(), &mut out);
    assert_eq!(String::from_utf8(out).unwrap(), "\"\\u0000\\u001f\\b\\f\\n\\r\\t\\\"\\\\/é😀\u{7f}\"");
}

proptest! {
    #[test]
    fn agrees_with_serde_json(text in r#"[\[\]{},:"\\0-9eE.+\-truefalsn u]{0,24}"#) {
        let other = serde_json::from_str::<serde_json::Value>(&text);
        match parse(text.as_bytes(), &Limits::default()) {
            Ok(value) => {
                let mut out = Vec::new();
                write(&value, &mut out);
                let back: serde_json::Value = serde_json::from_slice(&out).unwrap();
                prop_assert_eq!(Some(back), other.ok());
            }
            // serde_json takes no number that overflows either.
            Err(_) => prop_assert!(other.is_err(), "{}", text),
        }
    }

    #[test]
    fn any_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        let _ = parse(&bytes, &Limits::default());
    }

    #[test]
    fn strings_come_back(text in ".{0,40}") {
        let value = Value::String(text.into());
        let mut out = Vec::new();
        write(&value, &mut out);
        prop_assert_eq!(parse(&out, &Limits::default()).unwrap(), value);
    }
}
