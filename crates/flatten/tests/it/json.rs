//! The parser compared with serde_json, and texts that it must refuse.

use flatbed_flatten::json::{
    Limits, ParseErrorKind, Value, as_written, members_to_vec, parse, parse_unique, to_string, to_vec,
};
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
        assert_eq!(to_string(&parse(text.as_bytes(), &Limits::default()).unwrap()), expected);
    };
    check(r#"{"a":1,"b":2,"a":3}"#, r#"{"b":2,"a":3}"#);
    let many: Vec<String> = (0..100).map(|n| format!(r#""k{}":{n}"#, n % 50)).collect();
    let kept: Vec<String> = (50..100).map(|n| format!(r#""k{}":{n}"#, n % 50)).collect();
    check(&format!("{{{}}}", many.join(",")), &format!("{{{}}}", kept.join(",")));
    check(r#"{"\u0061":1,"a":2}"#, r#"{"a":2}"#);
}

#[test]
fn escapes_are_written_in_their_short_form() {
    let out =
        to_string(&parse(br#""\u0000\u001f\b\f\n\r\t\"\\\/\u00e9\ud83d\ude00\u007f""#, &Limits::default()).unwrap());
    assert_eq!(out, "\"\\u0000\\u001f\\b\\f\\n\\r\\t\\\"\\\\/é😀\u{7f}\"");
}

#[test]
fn members_are_written_without_braces() {
    for (text, expected) in [(r#"{"a":1,"b":[{}]}"#, r#""a":1,"b":[{}]"#), ("{}", ""), ("[1]", "")] {
        assert_eq!(members_to_vec(&parse(text.as_bytes(), &Limits::default()).unwrap()), expected.as_bytes(), "{text}");
    }
}

#[test]
fn what_is_accepted() {
    let check = |text: &str, expected: &str| {
        assert_eq!(to_string(&parse(text.as_bytes(), &Limits::default()).unwrap()), expected);
    };
    check(" \t\r\n[ ] ", "[]");
    check("{ \"a\" : [ 1 , { } ] , \"\" : null }", r#"{"a":[1,{}],"":null}"#);
    for number in ["0", "-0", "-0.0", "1E+2", "1e-400", "0e999", "1.10", "123456789012345678901234567890", "0.00e1"] {
        check(number, number);
    }
    check(&"9".repeat(4_096), &"9".repeat(4_096));
    check(r#""\ud834\udd1e\u0000\uFFFF\u00E9""#, "\"𝄞\\u0000\u{ffff}é\"");
    check(r#"["","\\"]"#, r#"["","\\"]"#);
}

#[test]
fn an_error_says_where() {
    let offset = |text: &[u8]| parse(text, &Limits::default()).unwrap_err().offset;
    assert_eq!(offset(b"{\"a\":x}"), 5);
    assert_eq!(offset(b"[1,\"\xff\"]"), 4);
    assert_eq!(offset(b"[1,1E999]"), 3);
    assert_eq!(offset(b"{} x"), 3);
    assert_eq!(offset(b"[[["), 3);
    assert_eq!(parse(b"[[1]]", &Limits { depth_max: 1 }).unwrap_err().offset, 1);
    assert!(parse(b"[[1]]", &Limits { depth_max: 2 }).is_ok());
    assert!(parse(b"1", &Limits { depth_max: 0 }).is_ok());
}

/// A million names, each of them twice: time in proportion to the text, not to its square.
#[test]
fn many_duplicates() {
    let members: Vec<String> = (0..1_000_000).map(|n| format!("\"{}\":0", n % 500_000)).collect();
    let text = format!("{{{}}}", members.join(","));
    let Value::Object(kept) = parse(text.as_bytes(), &Limits::default()).unwrap() else { panic!("no object") };
    assert_eq!(kept.len(), 500_000);
    let refused = parse_unique(text.as_bytes(), &Limits::default()).unwrap_err();
    assert_eq!(refused.kind, ParseErrorKind::Duplicate);
}

#[test]
fn names_that_stand_twice() {
    for text in [r#"{"a":1,"a":1}"#, r#"[{"b":{"a":1,"\u0061":2}}]"#, r#"{"a":1,"b":2,"a":3}"#] {
        assert!(parse(text.as_bytes(), &Limits::default()).is_ok(), "{text}");
        let refused = parse_unique(text.as_bytes(), &Limits::default()).unwrap_err();
        assert_eq!(refused.kind, ParseErrorKind::Duplicate, "{text}");
    }
    for text in [r#"{"a":1,"A":{"a":2}}"#, r#"[{"a":1},{"a":1}]"#, "{}"] {
        assert!(parse_unique(text.as_bytes(), &Limits::default()).is_ok(), "{text}");
    }
}

/// Compares `as_written` with parsing and writing.
fn check_as_written(text: &[u8]) {
    let written = parse(text, &Limits::default()).map(|value| to_vec(&value) == text);
    let found = as_written(text, &Limits::default());
    assert_eq!(found.map(|found| found.is_some()), written, "{}", String::from_utf8_lossy(text));
    assert!(found.ok().flatten().is_none_or(|found| found.as_bytes() == text));
}

#[test]
fn texts_that_are_as_they_would_be_written() {
    for text in [
        r#"{"a":[1.50,-0,{"b":null,"c":[true,false]}],"d":"\u0001\n\"\\é\u007f/"}"#,
        r#"{"a":1 }"#,
        r#" 1"#,
        "[1,\n2]",
        r#"{"a":1,"a":2}"#,
        r#"{"a":{"b":1,"\u0062":2}}"#,
        r#"["\/"]"#,
        r#""\u0041""#,
        r#""\u000a""#,
        r#""\u001f""#,
        r#""\u001F""#,
        r#""\u0008\b""#,
        r#""\ud83d\ude00""#,
        r#""😀""#,
        "{",
        "1e999",
        "",
    ] {
        check_as_written(text.as_bytes());
    }
    let is = |text: &str| as_written(text.as_bytes(), &Limits::default()).unwrap().is_some();
    assert!(is(r#"{"a":"\u001f\t","b":[]}"#) && !is(r#"{"a":"\u001F"}"#) && !is(r#"{"a": 1}"#));
    let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
    assert!(is(&deep) && as_written(format!("[{deep}]").as_bytes(), &Limits::default()).is_err());
}

proptest! {
    #[test]
    fn as_written_is_what_parse_and_write_say(
        text in r#"[\[\]{},:"\\0-9aA-Fbnu/ ]{0,24}"#,
        string in r#"(\\u00[01][0-9a-fA-F]|\\[/nbt"]|[a-c/é]){0,6}"#,
        body in crate::support::any_body(),
        damage in proptest::option::of((any::<prop::sample::Index>(), 0_usize..12)),
    ) {
        check_as_written(text.as_bytes());
        check_as_written(format!("{{\"{string}\":\"{string}\"}}").as_bytes());
        let mut text = crate::support::compact(&body).into_bytes();
        if let Some((at, byte)) = damage {
            text.insert(at.index(text.len()), b" ,:\"\\0.e[]{}"[byte]);
        }
        check_as_written(&text);
    }

    #[test]
    fn agrees_with_serde_json(text in r#"[\[\]{},:"\\0-9eE.+\-truefalsn u]{0,24}"#) {
        let other = serde_json::from_str::<serde_json::Value>(&text);
        match parse(text.as_bytes(), &Limits::default()) {
            Ok(value) => {
                let back: serde_json::Value = serde_json::from_slice(&to_vec(&value)).unwrap();
                prop_assert_eq!(Some(back), other.ok());
            }
            // serde_json refuses numbers that overflow, too.
            Err(_) => prop_assert!(other.is_err(), "{}", text),
        }
    }

    #[test]
    fn refuses_what_serde_json_refuses(
        body in crate::support::any_body(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<Option<u8>>()), 0..3),
    ) {
        let mut text = crate::support::compact(&body).into_bytes();
        for (at, byte) in damage {
            let at = at.index(text.len());
            match byte {
                Some(byte) => text[at] = byte,
                None => text.insert(at, b" ,:\"\\0-.e[]{}"[at % 13]),
            }
        }
        let other = serde_json::from_slice::<serde_json::Value>(&text);
        let this = parse(&text, &Limits::default());
        prop_assert_eq!(this.is_ok(), other.is_ok(), "{:?} {:?} {}", this, other, String::from_utf8_lossy(&text));
    }

    #[test]
    fn any_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        let _ = parse(&bytes, &Limits::default());
    }

    #[test]
    fn strings_come_back(text in ".{0,40}") {
        let value = Value::String(text.into());
        let text = to_vec(&value);
        prop_assert_eq!(parse(&text, &Limits::default()).unwrap(), value);
    }
}
