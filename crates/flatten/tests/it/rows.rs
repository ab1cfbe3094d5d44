//! Rows and runs byte by byte.
#![allow(clippy::unwrap_used)]

use crate::support::{Names, Pairs, compact, hex, parse, slices, text_of};
use flatbed_flatten::json::Value;
use flatbed_flatten::{
    FieldIds, FlattenOptions, PART_BYTES, PackOptions, flatten, pack, pack_with, path, read_body, unknown_names,
    validate,
};

/// `expected`: for each row its path, and its value as hexadecimal digits.
fn check_with(text: &str, names: &Names, expected: &[&str]) {
    let body = parse(text);
    let pairs = pack(&flatten(&body, names, &FlattenOptions::default()), 0);
    let found: Vec<String> =
        pairs.iter().map(|(path, value)| format!("{} = {}", path::display(path), hex(value))).collect();
    assert_eq!(found, expected, "{text}");
    assert_eq!(text_of(&pairs, names).unwrap(), compact(&body));
    assert_eq!(validate(slices(&pairs), names), Ok(()));
}

fn check(text: &str, expected: &[&str]) {
    check_with(text, &Names::of(&parse(text), |_| false), expected);
}

#[test]
fn scalars() {
    check("{}", &[" = 16"]);
    check(r#"{"a":null,"b":true,"c":false}"#, &["10 = 10", "11 = 12", "12 = 11"]);
    check(r#"{"a":{},"b":[]}"#, &["10 = 16", "11 = 17"]);
    check(r#"{"a":0,"b":63,"c":64,"d":-1}"#, &["10 = 40", "11 = 7f", "12 = 13 80 01", "13 = 13 01"]);
    check(r#"{"a":1.0,"b":-0.0,"c":1e3}"#, &["10 = c2 31 2e 30", "11 = c3 2d 30 2e 30", "12 = c2 31 65 33"]);
    check(r#"{"a":0.12345678}"#, &["10 = 1b 3f bf 9a dd 10 91 c8 95"]);
    check(r#"{"a":"","b":"é"}"#, &["10 = 80", "11 = 82 c3 a9"]);
}

#[test]
fn containers() {
    check(r#"{"foo":{"bar":[1,"x"]},"n":null}"#, &["10/11/0/0 = 41", "10/11/0/1 = 81 78", "12 = 10"]);
    check(r#"{"a":[[],[[1]],{"b":2}]}"#, &["10/0/0 = 17", "10/0/1/0/0/0/0 = 41", "10/0/2/11 = 42"]);
}

#[test]
fn the_seeds_own_document() {
    let license = "t".repeat(200_000);
    let text = format!(
        r#"{{"foo":{{"bar":{{"baz":[1,2,3]}},"langs":{{"en_US":"English","en_UK":"English (UK)"}},"translations":{{"en_US":{{"license":"{license}"}}}}}}}}"#
    );
    let body = parse(&text);
    // The ids of the example in design/data-model.md, and those between them.
    let given = ["foo", "baz", "bar", "en_US", "en_UK", "en_CA", "zh_CN", "translations", "langs", "license"];
    let names = Names::new(given);
    let pairs = pack(&flatten(&body, &names, &FlattenOptions::default()), 0);
    let found: Vec<(String, usize)> = pairs.iter().map(|(path, value)| (path::display(path), value.len())).collect();
    let expected = [
        ("10/2/0", 5),
        ("10/12/11/0/0", 1),
        ("10/12/11/0/1", 1),
        ("10/12/11/0/2", 1),
        ("10/17/13/19/1/0", 50_004),
        ("10/17/13/19/1/1", 50_004),
        ("10/17/13/19/1/2", 50_004),
        ("10/17/13/19/1/3", 50_004),
        ("10/18/13", 8),
        ("10/18/14", 13),
    ];
    // Written langs, translations, whose ids are in the reverse order: hence the permutation.
    assert_eq!(found, expected.map(|(path, len)| (path.to_owned(), len)));
    assert_eq!(text_of(&pairs, &names).unwrap(), text);
}

#[test]
fn order_of_names() {
    check(
        r#"{"x":{"a":1,"b":2},"y":{"b":1,"a":2}}"#,
        &["10/11 = 41", "10/12 = 42", "13/2/0 = 1a 02 01 00", "13/11 = 42", "13/12 = 41"],
    );
    let names = Names::new(["a", "b"]);
    // Literals sort before the permutation, ids after it.
    check_with(
        r#"{"b":1,"z":2,"a":3,"y":4}"#,
        &names,
        &["\"y\" = 44", "\"z\" = 42", "2/0 = 1a 04 03 01 02 00", "10 = 43", "11 = 41"],
    );
    // For each member as written: its index among the rows.
    check_with(
        r#"{"c":1,"a":2,"b":3}"#,
        &Names::new(["a", "b", "c"]),
        &["2/0 = 1a 03 02 00 01", "10 = 42", "11 = 43", "12 = 41"],
    );
    check_with(r#"{"y":1,"z":2,"a":3,"b":4}"#, &names, &["\"y\" = 41", "\"z\" = 42", "10 = 43", "11 = 44"]);
    check_with(r#"{"z":1,"y":2}"#, &names, &["\"y\" = 42", "\"z\" = 41", "2/0 = 1a 02 01 00"]);
}

#[test]
fn literal_names_with_what_delimits_them() {
    check_with(
        "{\"\":1,\"\\u0000\":2,\"a\":{\"b\":3},\"a\\u0000\":4,\"a\\u0000b\":5,\"aa\":6}",
        &Names::default(),
        &["\"\" = 41", "\"\\0\" = 42", "\"a\"/\"b\" = 43", "\"a\\0\" = 44", "\"a\\0b\" = 45", "\"aa\" = 46"],
    );
}

#[test]
fn what_is_too_long_for_a_path_is_stored_packed() {
    let long = "n".repeat(600);
    check_with(
        &format!(r#"{{"a":{{"{long}":[1]}},"b":2}}"#),
        &Names::new(["a", "b"]),
        &[&format!("10/3/0 = 19 e0 04 {}", hex(format!(r#"{{"{long}":[1]}}"#).as_bytes())), "11 = 42"],
    );
    let body = parse(r#"{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":[1,{"b":[]}]}}}}}}}}"#);
    let names = Names::of(&body, |_| false);
    for path_bytes_max in 20..60 {
        let rows = flatten(&body, &names, &FlattenOptions { path_bytes_max });
        rows.for_each(|path, _| assert!(path.len() <= path_bytes_max));
        for run_bytes in [0, 100] {
            assert_eq!(text_of(&pack(&rows, run_bytes), &names).unwrap(), compact(&body));
        }
    }
}

fn packed(text: &str, options: &PackOptions) -> (Pairs, Names) {
    let body = parse(text);
    let names = Names::of(&body, |_| false);
    let pairs = pack_with(&flatten(&body, &names, &FlattenOptions::default()), options);
    assert_eq!(text_of(&pairs, &names).unwrap(), text);
    assert_eq!(read_body(slices(&pairs), &names).unwrap(), body);
    (pairs, names)
}

#[test]
fn a_run_drawn_out() {
    let options = PackOptions { run_bytes: 1_000, compressed_from_bytes: None };
    let (pairs, _) = packed(r#"{"foo":{"bar":[1,"x"]},"n":null}"#, &options);
    let found: Vec<String> =
        pairs.iter().map(|(path, value)| format!("{} = {}", path::display(path), hex(value))).collect();
    // Plain, 1; shares 5 bytes of path, 2 more: 15 01, "x"; shares 1 (the code of an id), 1 more: 0c, null.
    assert_eq!(found, ["10/11/0/0 = 00 41 05 02 15 01 81 78 01 01 0c 10"]);
}

#[test]
fn runs_end_where_they_are_full() {
    let members: Vec<String> = (0..100).map(|n| format!(r#""f{n:02}":"value {n:02}""#)).collect();
    let text = format!("{{{}}}", members.join(","));
    let options = PackOptions { run_bytes: 200, compressed_from_bytes: None };
    let (pairs, _) = packed(&text, &options);
    let lens: Vec<usize> = pairs.iter().map(|(_, value)| value.len()).collect();
    assert!(lens[..lens.len() - 1].iter().all(|len| (200..220).contains(len)), "{lens:?}");
    assert_eq!(packed(&text, &PackOptions { run_bytes: 0, ..options }).0.len(), 100);
    assert_eq!(packed(&text, &PackOptions { run_bytes: 60_000, ..options }).0.len(), 1);
}

#[test]
fn a_large_row_stands_alone() {
    let text = format!(r#"{{"a":1,"b":"{}","c":2,"d":3}}"#, "x".repeat(20_000));
    let (pairs, _) = packed(&text, &PackOptions { run_bytes: 1_500, compressed_from_bytes: None });
    assert_eq!(pairs.iter().map(|(_, value)| value.len()).collect::<Vec<_>>(), [1, 20_004, 6]);
    let (pairs, _) = packed(&text, &PackOptions { run_bytes: 1_500, compressed_from_bytes: Some(1_000) });
    assert!(pairs[1].1.len() < 200 && pairs[1].1[0] == 1);
}

#[test]
fn values_stay_below_their_bound() {
    let strings: Vec<String> = (0..40).map(|n| format!(r#""f{n}":"{}""#, "é".repeat(n * 1_000))).collect();
    let text = format!("{{{}}}", strings.join(","));
    for run_bytes in [0, 1, 1_500, 60_000, 1_000_000] {
        let (pairs, _) = packed(&text, &PackOptions { run_bytes, compressed_from_bytes: None });
        assert!(pairs.iter().all(|(_, value)| value.len() <= flatbed_flatten::VALUE_BYTES_MAX));
    }
}

#[test]
fn unknown_names_in_order_of_first_sight() {
    let body = parse(r#"{"b":{"a":[{"c":1,"b":2}]},"d":1,"a":{"c":1}}"#);
    assert_eq!(unknown_names(&body, &Names::default()), ["b", "a", "c", "d"]);
    assert_eq!(unknown_names(&body, &Names::new(["a", "d"])), ["b", "c"]);
    assert!(unknown_names(&Value::Object(Vec::new()), &Names::default()).is_empty());
}

/// A mapping whose ids collide with the markers.
struct FromZero;

impl FieldIds for FromZero {
    fn id_of(&self, name: &str) -> Option<u64> {
        name.parse().ok()
    }
}

#[test]
fn an_id_that_is_a_marker_is_none() {
    let rows = flatten(&parse(r#"{"0":1,"9":2,"10":3}"#), &FromZero, &FlattenOptions::default());
    let mut paths = Vec::new();
    rows.for_each(|path, _| paths.push(path::display(path)));
    assert_eq!(paths, ["\"0\"", "\"9\"", "10"]);
    assert_eq!(path::of_steps(&[path::Step::Name("9")], &FromZero), [2, b'9', 0]);
}

#[test]
fn parts_are_bounded_whatever_the_characters() {
    for lead in ["", "x", "xy"] {
        let text = format!(r#"{{"a":"{lead}{}"}}"#, "€".repeat(50_000));
        let body = parse(&text);
        let names = Names::of(&body, |_| false);
        let pairs = pack(&flatten(&body, &names, &FlattenOptions::default()), 0);
        // A tag and three bytes of length.
        assert!(pairs.iter().all(|(_, value)| value.len() <= PART_BYTES + 4));
        assert_eq!((pairs.len(), text_of(&pairs, &names).unwrap()), (4, text));
    }
}

#[test]
fn deep_paths_are_written_out_while_they_fit() {
    let name = "n".repeat(98);
    let nested = |depth: usize| format!(r#"{}1{}"#, format!(r#"{{"{name}":"#).repeat(depth), "}".repeat(depth));
    let deepest = |depth: usize| {
        let (text, none) = (nested(depth), Names::default());
        let pairs = pack(&flatten(&parse(&text), &none, &FlattenOptions::default()), 0);
        assert_eq!(text_of(&pairs, &none).unwrap(), text);
        pairs.iter().map(|(path, _)| path.len()).max().unwrap()
    };
    assert_eq!(deepest(79), 7_900);
    assert!(deepest(400) <= FlattenOptions::default().path_bytes_max);
}

#[test]
fn many_small_rows_are_packed_for_what_their_pairs_cost() {
    let pairs_of = |count: usize| {
        let text = format!(r#"{{"a":[{}]}}"#, vec!["1"; count].join(","));
        let body = parse(&text);
        pack(&flatten(&body, &Names::of(&body, |_| false), &FlattenOptions::default()), 0).len()
    };
    assert_eq!(pairs_of(10_000), 10_000);
    // 64 bytes for each make more than 32 MB.
    assert!(pairs_of(500_000) < 1_000);
}

#[test]
fn a_run_is_compressed_where_that_saves_an_eighth() {
    let mut state = 1_u64;
    let noise: String = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        char::from(b'!' + 2 + ((state >> 33) % 57) as u8)
    })
    .take(8_000)
    .collect();
    for (repeated, is_compressed) in [(600, false), (2_000, true)] {
        let text = format!(r#"{{"a":"{noise}{}"}}"#, &noise[..repeated]);
        let body = parse(&text);
        let names = Names::of(&body, |_| false);
        let pairs = pack(&flatten(&body, &names, &FlattenOptions::default()), 20_000);
        assert_eq!((pairs.len(), pairs[0].1.len() < 8_000 + repeated), (1, is_compressed), "{repeated}");
        assert_eq!(text_of(&pairs, &names).unwrap(), text);
    }
}
