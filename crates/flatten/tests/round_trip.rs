//! What goes in comes out: examples drawn out row by row, and any body in any layout.

use std::collections::HashMap;

use flatbed_flatten::json::{self, Limits, Value, parse};
use flatbed_flatten::{
    DecodeError, FieldIds, FieldNames, FlattenOptions, flatten, json_len, pack, unknown_names, validate, write_members,
};
use proptest::prelude::*;

#[derive(Default, Clone)]
struct Names(Vec<String>, HashMap<String, u64>);

impl Names {
    /// Ids from 10 up in order of first sight; `literal` says which names get none.
    fn of(body: &Value<'_>, literal: impl Fn(&str) -> bool) -> Names {
        let mut names = Names::default();
        let unknown: Vec<String> = unknown_names(body, &names).into_iter().map(str::to_owned).collect();
        for name in unknown.into_iter().filter(|name| !literal(name)) {
            names.1.insert(name.clone(), 10 + names.0.len() as u64);
            names.0.push(name);
        }
        names
    }
}

impl FieldIds for Names {
    fn id_of(&self, name: &str) -> Option<u64> {
        self.1.get(name).copied()
    }
}

impl FieldNames for Names {
    fn name_of(&self, id: u64) -> Option<&str> {
        self.0.get(id.checked_sub(10)? as usize).map(String::as_str)
    }
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn text_of(pairs: &Pairs, names: &Names) -> Result<String, DecodeError> {
    let mut out = b"{".to_vec();
    write_members(pairs.iter().map(|(path, value)| (&path[..], &value[..])), names, &mut out)?;
    out.push(b'}');
    Ok(String::from_utf8(out).expect("UTF-8"))
}

fn compact(body: &Value<'_>) -> String {
    let mut out = Vec::new();
    json::write(body, &mut out);
    assert_eq!(out.len(), json_len(body));
    String::from_utf8(out).expect("UTF-8")
}

fn check(text: &str, expected: &[&str]) {
    let body = parse(text.as_bytes(), &Limits::default()).unwrap();
    let names = Names::of(&body, |_| false);
    let pairs = pack(&flatten(&body, &names, &FlattenOptions::default()), 0);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
    let found: Vec<String> = pairs.iter().map(|(path, value)| format!("{} = {}", hex(path), hex(value))).collect();
    assert_eq!(found, expected, "{text}");
    assert_eq!(text_of(&pairs, &names).unwrap(), compact(&body));
}

#[test]
fn rows_of_examples() {
    check("{}", &[" = 16"]);
    check(r#"{"a":1}"#, &["15 0a = 13 02"]);
    check(r#"{"a":null,"b":true,"c":false}"#, &["15 0a = 10", "15 0b = 12", "15 0c = 11"]);
    check(r#"{"a":{},"b":[]}"#, &["15 0a = 16", "15 0b = 17"]);
    check(
        r#"{"a":1.0,"b":-0.0,"c":-1,"d":""}"#,
        &["15 0a = 14 31 2e 30", "15 0b = 14 2d 30 2e 30", "15 0c = 13 01", "15 0d = 15"],
    );
    check(
        r#"{"foo":{"bar":[1,"x"]},"n":null}"#,
        &["15 0a 15 0b 14 14 = 13 02", "15 0a 15 0b 14 15 01 = 15 78", "15 0c = 10"],
    );
    // Seed 002's own document.
    check(
        r#"{"foo":{"bar":{"baz":[1,2,3]},"langs":{"en_US":"English"}}}"#,
        &[
            "15 0a 15 0b 15 0c 14 14 = 13 02",
            "15 0a 15 0b 15 0c 14 15 01 = 13 04",
            "15 0a 15 0b 15 0c 14 15 02 = 13 06",
            "15 0a 15 0d 15 0e = 15 45 6e 67 6c 69 73 68",
        ],
    );
    // Written b, a; a has the smaller id here, having been seen first.
    check(
        r#"{"x":{"a":1,"b":2},"y":{"b":1,"a":2}}"#,
        &[
            "15 0a 15 0b = 13 02",
            "15 0a 15 0c = 13 04",
            "15 0d 15 02 = 1a 01 00",
            "15 0d 15 0b = 13 04",
            "15 0d 15 0c = 13 02",
        ],
    );
}

#[test]
fn large_strings_and_long_names() {
    let names: Vec<String> = (0..400).map(|n| format!(r#"{{"{}{n}":"#, "k".repeat(200))).collect();
    let deep = format!("{}1{}", names.concat(), "}".repeat(400));
    let bodies = [
        format!(r#"{{"s":"{}","t":1}}"#, "é\\n".repeat(60_000)),
        format!(r#"{{"a":{{"{}":[1,2]}},"b":2}}"#, "n".repeat(5_000)),
        format!(r#"{{"{}":"{}"}}"#, "n".repeat(5_000), "x".repeat(200_000)),
        deep,
        format!("{{{}}}", (0..40_000).rev().map(|n| format!(r#""f{n:05}":{n}"#)).collect::<Vec<_>>().join(",")),
    ];
    for text in &bodies {
        let body = parse(text.as_bytes(), &Limits::default()).unwrap();
        let sorted_ids = {
            let mut names = Names::of(&body, |_| true);
            let mut all: Vec<String> = unknown_names(&body, &names).into_iter().map(str::to_owned).collect();
            all.sort();
            for name in all.into_iter().filter(|name| name.len() < 512) {
                names.1.insert(name.clone(), 10 + names.0.len() as u64);
                names.0.push(name);
            }
            names
        };
        for names in [sorted_ids, Names::of(&body, |name| name.len() > 512), Names::of(&body, |_| true)] {
            let rows = flatten(&body, &names, &FlattenOptions { path_bytes_max: 7_000 });
            for run_bytes in [0, 1_500, 60_000] {
                let pairs = pack(&rows, run_bytes);
                assert!(pairs.iter().all(|(path, value)| path.len() <= 7_000 && value.len() <= 100_000));
                assert!(text_of(&pairs, &names).unwrap() == compact(&body));
            }
        }
    }
}

fn any_number() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        (-1000..1000_i64).prop_map(|n| n.to_string()),
        "-?(0|[1-9][0-9]{0,40})",
        "-?(0|[1-9][0-9]{0,4})\\.[0-9]{1,20}",
        "-?[1-9]\\.[0-9]{1,4}[eE][+-]?[0-9]{1,2}",
    ]
}

fn any_value() -> impl Strategy<Value = Value<'static>> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any_number().prop_map(|text| Value::Number(text.into())),
        "[a\\x00-\\x1f\"\\\\é😀/]{0,12}|.{0,80}".prop_map(|text| Value::String(text.into())),
    ];
    leaf.prop_recursive(6, 80, 8, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..8).prop_map(Value::Array),
            any_members(inner).prop_map(Value::Object),
        ]
    })
}

fn any_members(
    inner: impl Strategy<Value = Value<'static>>,
) -> impl Strategy<Value = Vec<(std::borrow::Cow<'static, str>, Value<'static>)>> {
    let name = "[a-e]|[a-e]{2}|\\PC{0,6}|[\\x00\\x01]{0,3}";
    proptest::collection::vec((name, inner), 0..8).prop_map(|members| {
        let mut seen = std::collections::HashSet::new();
        let fresh = members.into_iter().filter(|(name, _)| seen.insert(name.clone()));
        fresh.map(|(name, value)| (name.into(), value)).collect()
    })
}

fn any_body() -> impl Strategy<Value = Value<'static>> {
    any_members(any_value()).prop_map(Value::Object)
}

proptest! {
    #[test]
    fn every_body_comes_back_in_every_layout(
        body in any_body(), literal_below in 0..4_u8, run_bytes in prop_oneof![Just(0_usize), 1..300_usize, Just(4_000)],
        seen_before in any_body(), path_bytes_max in prop_oneof![Just(40_usize), Just(8_000)],
    ) {
        let text = compact(&body);
        prop_assert_eq!(&parse(text.as_bytes(), &Limits::default()).unwrap(), &body);
        // Ids in an order that another document made.
        let both = Value::Array(vec![seen_before, body.clone()]);
        let names = Names::of(&both, |name| name.len() as u8 % 4 < literal_below);
        let rows = flatten(&body, &names, &FlattenOptions { path_bytes_max });
        let paths: Vec<&[u8]> = rows.iter().map(|(path, _)| path).collect();
        prop_assert!(paths.is_sorted_by(|a, b| a < b));
        let pairs = pack(&rows, run_bytes);
        prop_assert_eq!(text_of(&pairs, &names).unwrap(), text);
        prop_assert!(validate(pairs.iter().map(|(path, value)| (&path[..], &value[..])), &names).is_ok());
    }

    #[test]
    fn damaged_rows_do_not_panic(
        body in any_body(), run_bytes in prop_oneof![Just(0_usize), 1..300_usize],
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..4),
        drop_one: bool,
    ) {
        let names = Names::of(&body, |name| name.len() == 1);
        let mut pairs = pack(&flatten(&body, &names, &FlattenOptions::default()), run_bytes);
        for (pair, byte, with) in damage {
            let at = pair.index(pairs.len());
            let (path, value) = &mut pairs[at];
            let into = if with & 1 == 0 && !path.is_empty() { path } else { value };
            let at = byte.index(into.len().max(1));
            if at < into.len() {
                into[at] = with;
            }
        }
        if drop_one && pairs.len() > 1 {
            pairs.remove(0);
        }
        let mut out = Vec::new();
        let _ = write_members(pairs.iter().map(|(path, value)| (&path[..], &value[..])), &names, &mut out);
    }
}
