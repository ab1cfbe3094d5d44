use flatbed_flatten::json::{Limits, parse};
use proptest::prelude::*;

use super::*;
use crate::form;

fn value(text: &str) -> Value<'static> {
    parse(text.as_bytes(), &Limits::default()).unwrap().into_owned()
}

/// Strings that are likely to be close to each other, and some odd ones.
pub(crate) fn strings() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => "[aAbBáÁ \u{0}\u{1}-]{0,4}",
        2 => "[a-cA-C\u{300}-\u{330}\u{ad}\u{200b}]{0,6}",
        1 => "[\u{1100}-\u{1112}\u{1161}-\u{1175}\u{11a8}-\u{11c2}\u{ac00}-\u{ac10}]{0,4}",
        1 => "[\u{e00}-\u{e5f}\u{627}-\u{64a}\u{5d0}-\u{5ea}\u{915}-\u{94d}]{0,5}",
        1 => "[\u{3041}-\u{30ff}\u{4e00}-\u{4e20}\u{fdf0}-\u{fdfb}\u{fff0}-\u{ffff}]{0,4}",
        1 => any::<String>(),
    ]
}

pub(crate) fn values() -> impl Strategy<Value = Value<'static>> {
    let leaf = prop_oneof![
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::Bool),
        3 => crate::number::tests::texts().prop_map(|text| Value::Number(text.into())),
        3 => strings().prop_map(|text| Value::String(text.into())),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::vec((strings(), inner), 0..3).prop_map(|members| {
                // Unique names, as from a parser.
                let mut names = std::collections::HashSet::new();
                let members = members.into_iter().filter(|(name, _)| names.insert(name.clone()));
                Value::Object(members.map(|(name, value)| (name.into(), value)).collect())
            }),
        ]
    })
}

fn both() -> [Collation; 2] {
    [Collation::unicode().unwrap(), Collation::raw()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn sort_keys_compare_as_the_values(a in values(), b in values()) {
        for collation in both() {
            let (a_form, b_form) = (collation.whole_form(&a), collation.whole_form(&b));
            prop_assert_eq!(collation.compare(&a, &b), a_form.cmp(&b_form), "{:?}", collation.is_raw());
            prop_assert!(a_form == b_form || !b_form.starts_with(&a_form));
            prop_assert!(a_form[0] > 0 && a_form[0] < crate::HIGHEST);
            prop_assert_eq!(form::len(&collation, &a_form), Some(a_form.len()));
            prop_assert_eq!(form::len(&collation, &[a_form.as_slice(), &b_form].concat()), Some(a_form.len()));
            for len in 0..a_form.len() {
                prop_assert_eq!(form::len(&collation, &a_form[..len]), None);
            }
        }
    }

    #[test]
    fn strings_compare_as_their_sort_keys(a in strings(), b in strings()) {
        for collation in both() {
            let (a, b) = (Value::String(a.clone().into()), Value::String(b.clone().into()));
            prop_assert_eq!(collation.compare(&a, &b), collation.whole_form(&a).cmp(&collation.whole_form(&b)));
        }
    }

    #[test]
    fn numbers_compare_as_their_sort_keys(a in crate::number::tests::texts(), b in crate::number::tests::texts()) {
        let (a, b) = (Value::Number(a.into()), Value::Number(b.into()));
        for collation in both() {
            prop_assert_eq!(collation.compare(&a, &b), collation.whole_form(&a).cmp(&collation.whole_form(&b)));
        }
    }

    #[test]
    fn short_numbers_are_written_as_long_ones(integer in any::<i64>(), shift in 0..63_u32) {
        let integer = integer >> shift;
        let form = |text: String| Collation::raw().whole_form(&Value::Number(text.into()));
        // With a fraction it takes the other path, and is the same number if a float can hold it.
        let float = integer as f64;
        let text = format!("{float:.1}");
        prop_assert_eq!(form((float as i128).to_string()), form(text));
    }

    #[test]
    fn foreign_bytes_have_no_length_or_one_within(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        for collation in both() {
            prop_assert!(form::len(&collation, &bytes).is_none_or(|len| len <= bytes.len()));
        }
    }

    #[test]
    fn what_is_cut_is_a_beginning(value in values(), bytes_max in 2..40_usize) {
        for collation in both() {
            let whole = collation.whole_form(&value);
            let key = collation.sort_key_within(&value, bytes_max);
            let stored: usize = key.bytes().iter().map(|byte| 1 + usize::from(*byte == 0)).sum();
            prop_assert!(stored <= bytes_max);
            prop_assert!(whole.starts_with(key.bytes()));
            prop_assert_eq!(key.is_cut(), whole.len() > key.bytes().len());
            prop_assert!(!key.is_cut() || stored + 1 >= bytes_max);
            let element = [key.bytes(), if key.is_cut() { &[7, 0, 7] } else { &[] }].concat();
            prop_assert_eq!(crate::key::split_within(&element, bytes_max), element.split_at(key.bytes().len()));
        }
    }
}

fn check_order(collation: &Collation, texts: &[&str]) {
    for (at, a) in texts.iter().enumerate() {
        for (behind, b) in texts.iter().enumerate() {
            let (a, b) = (value(a), value(b));
            assert_eq!(collation.compare(&a, &b), at.cmp(&behind), "{a:?} {b:?}");
            assert_eq!(collation.whole_form(&a).cmp(&collation.whole_form(&b)), at.cmp(&behind), "{a:?} {b:?}");
        }
    }
}

#[test]
fn the_order_of_views() {
    check_order(
        &Collation::unicode().unwrap(),
        &[
            "null",
            "false",
            "true",
            "-1e300",
            "-2",
            "-1.5",
            "-1",
            "-0.5",
            "0",
            "5e-324",
            "0.5",
            "1",
            "1.5",
            "2",
            "10",
            "9007199254740992",
            "9007199254740993",
            "9007199254740994.0",
            "1e300",
            r#""""#,
            r#"" a""#,
            r#""1""#,
            r#""a""#,
            r#""A""#,
            r#""á""#,
            r#""Á""#,
            r#""aa""#,
            r#""ab""#,
            r#""b""#,
            r#""\ufff0""#,
            "[]",
            "[null]",
            "[1]",
            "[1,null]",
            "[1,1]",
            "[1,{}]",
            "[2]",
            r#"["a"]"#,
            r#"["a",1]"#,
            r#"["A"]"#,
            "[[]]",
            "[{}]",
            "{}",
            r#"{"a":null}"#,
            r#"{"a":1}"#,
            r#"{"a":1,"b":1}"#,
            r#"{"a":{"z":1}}"#,
            r#"{"A":1}"#,
            r#"{"b":0}"#,
            r#"{"b":1,"a":1}"#,
        ],
    );
}

#[test]
fn the_raw_order() {
    check_order(
        &Collation::raw(),
        &[
            "-1e300",
            "-1",
            "0",
            "0.5",
            "1",
            "2",
            "10",
            "9007199254740992",
            "9007199254740993",
            "1e300",
            "false",
            "null",
            "true",
            "{}",
            r#"{"A":1}"#,
            r#"{"a":1}"#,
            r#"{"a":1,"b":1}"#,
            r#"{"a":null}"#,
            r#"{"a":{"z":1}}"#,
            r#"{"b":0}"#,
            "[]",
            "[1]",
            "[1,1]",
            "[1,null]",
            "[2]",
            "[null]",
            "[{}]",
            "[[]]",
            r#"["a"]"#,
            r#""""#,
            r#""\u0000""#,
            r#""\u0000\u0000""#,
            r#""\u0001""#,
            r#"" a""#,
            r#""1""#,
            r#""A""#,
            r#""a""#,
            r#""aa""#,
            r#""Á""#,
            r#""á""#,
        ],
    );
}

#[test]
fn what_is_one_key() {
    let unicode = Collation::unicode().unwrap();
    for (a, b) in [
        ("0", "-0"),
        ("0", "-0.0"),
        ("1", "1.0"),
        ("1", "10e-1"),
        ("9007199254740992", "9007199254740992.0"),
        ("9007199254740992", "9007199254740993.0"),
        (r#""""#, r#""\u0000""#),
        (r#""ab""#, r#""a\u00adb""#),
        (r#""é""#, r#""e\u0301""#),
        (r#""Å""#, r#""\u212b""#),
        (r#"["é"]"#, r#"["e\u0301"]"#),
        (r#"{"é":1}"#, r#"{"e\u0301":1}"#),
    ] {
        let (a, b) = (value(a), value(b));
        assert_eq!(unicode.compare(&a, &b), Ordering::Equal);
        assert_eq!(unicode.sort_key(&a), unicode.sort_key(&b));
        let is_number = matches!(a, Value::Number(_));
        assert_eq!(Collation::raw().compare(&a, &b).is_eq(), is_number);
    }
}

#[test]
fn the_bytes_of_sort_keys() {
    let unicode = |text: &str| Collation::unicode().unwrap().sort_key(&value(text)).bytes().to_vec();
    let raw = |text: &str| Collation::raw().sort_key(&value(text)).bytes().to_vec();
    assert_eq!(unicode("[null,false,true,0,[],{}]"), [0x40, 0x10, 0x11, 0x12, 0x21, 0x40, 0, 0x50, 0, 0]);
    assert_eq!(raw("[null,false,true,0,[],{}]"), [0x50, 0x31, 0x30, 0x32, 0x21, 0x50, 0, 0x40, 0, 0]);
    assert_eq!(raw(r#"{"a":"\u0000\u0001b"}"#), [0x40, 0x60, b'a', 0, 0x60, 1, 1, 1, 2, b'b', 0, 0]);
    assert_eq!(unicode("1"), [0x22, 0x40, 0, 0]);
    assert_eq!(unicode("-1"), [0x20, 0xbf, 0xff, 0xff]);
    assert_eq!(unicode("3"), [0x22, 0x40, 1, 0x80]);
    assert_eq!(unicode("0.5"), [0x22, 0x3f, 0xff, 0]);
    assert_eq!(unicode("257"), [0x22, 0x40, 8, 0b1, 0x80]);
    assert_eq!(unicode("\"\""), [0x30, 1, 1, 0]);
}
