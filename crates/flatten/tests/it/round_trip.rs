//! Bodies are restored in any layout.
#![allow(clippy::unwrap_used)]

use crate::support::{Names, Pairs, any_body, compact, parse, slices, text_of};
use flatbed_flatten::json::{DEPTH_MAX_LIMIT, Limits, Value};
use flatbed_flatten::path::{Step, of_steps};
use flatbed_flatten::{
    FlattenOptions, Members, PERMUTED_DEPTH_MAX, PackOptions, etf, flatten, json, pack, pack_with, read_body,
    read_subtree, subtree_range, unknown_names, validate, write_members,
};
use proptest::prelude::*;

#[test]
fn large_strings_and_long_names() {
    let names: Vec<String> = (0..400).map(|n| format!(r#"{{"{}{n}":"#, "k".repeat(200))).collect();
    let deep = format!("{}1{}", names.concat(), "}".repeat(400));
    let bodies = [
        format!(r#"{{"s":"{}","t":1}}"#, "é\\n".repeat(60_000)),
        format!(r#"{{"a":{{"{}":[1,2]}},"b":2}}"#, "n".repeat(5_000)),
        format!(r#"{{"{}":"{}"}}"#, "n".repeat(5_000), "é".repeat(200_000)),
        deep,
        format!("{{{}}}", (0..40_000).rev().map(|n| format!(r#""f{n:05}":{n}"#)).collect::<Vec<_>>().join(",")),
    ];
    for text in &bodies {
        let body = parse(text);
        let mut sorted = unknown_names(&body, &Names::default());
        sorted.retain(|name| name.len() < 512);
        sorted.sort_unstable();
        for names in [Names::new(sorted), Names::of(&body, |name| name.len() > 512), Names::default()] {
            let rows = flatten(&body, &names, &FlattenOptions { path_bytes_max: 7_000 });
            for run_bytes in [0, 1_500, 60_000] {
                let pairs = pack(&rows, run_bytes);
                assert!(pairs.iter().all(|(path, value)| path.len() <= 7_000 && value.len() <= 100_000));
                assert!(text_of(&pairs, &names).unwrap() == compact(&body));
                assert_eq!(validate(slices(&pairs), &names), Ok(()));
            }
        }
    }
}

/// All recursive functions at the greatest depth, on the stack of a small thread.
#[test]
fn the_greatest_depth_fits_a_small_stack() {
    let work = || {
        let levels = DEPTH_MAX_LIMIT / 2;
        let text = format!("{}{}{}", r#"{"a":["#.repeat(levels), r#""x""#, "]}".repeat(levels));
        let limits = Limits { depth_max: usize::MAX };
        let body = json::parse(text.as_bytes(), &limits).unwrap();
        let deeper = format!("[{text}]");
        assert_eq!(json::parse(deeper.as_bytes(), &limits).unwrap_err().kind, json::ParseErrorKind::Depth);
        let names = Names::of(&body, |_| false);
        etf::body_revision(None, false, &body);
        for path_bytes_max in [300, 8_000] {
            let rows = flatten(&body, &names, &FlattenOptions { path_bytes_max });
            let pairs = pack(&rows, 1_500);
            assert_eq!(text_of(&pairs, &names).unwrap(), compact(&body));
            assert_eq!(read_body(slices(&pairs), &names).unwrap(), body.clone().into_owned());
            assert_eq!(validate(slices(&pairs), &names), Ok(()));
        }
    };
    std::thread::Builder::new().stack_size(2 << 20).spawn(work).unwrap().join().unwrap();
}

/// Rows of deep text must not take a path's length each.
#[test]
fn deep_and_wide_text_stays_small() {
    let text = format!("{{\"a\":{}{}{}}}", "[".repeat(480), vec!["1"; 300_000].join(","), "]".repeat(480));
    let body = parse(&text);
    let names = Names::of(&body, |_| false);
    let rows = flatten(&body, &names, &FlattenOptions::default());
    assert!(rows.path_bytes() > 200_000_000);
    for run_bytes in [0, 100] {
        let pairs = pack(&rows, run_bytes);
        let stored: usize = pairs.iter().map(|(path, value)| path.len() + value.len()).sum();
        assert!(stored < 3 * text.len(), "{stored}");
        assert!(text_of(&pairs, &names).unwrap() == text);
    }
}

/// Reading moves the text of an object with a permutation, so the nesting of such objects must be bounded.
#[test]
fn objects_in_another_order_in_one_another() {
    let levels = 400;
    let text = format!("{}1{}", r#"{"b":0,"a":"#.repeat(levels), "}".repeat(levels));
    let names = Names::new(["a", "b"]);
    let rows = flatten(&parse(&text), &names, &FlattenOptions::default());
    assert_eq!(rows.len(), 2 * PERMUTED_DEPTH_MAX + 1);
    assert_eq!(text_of(&pack(&rows, 0), &names).unwrap(), text);
}

#[test]
fn members_are_counted() {
    let names = Names::new(["a", "b"]);
    let check = |text: &str, count: usize, rows: usize, path_bytes_max: usize| {
        let pairs = pack(&flatten(&parse(text), &names, &FlattenOptions { path_bytes_max }), 100);
        let mut out = b"x".to_vec();
        assert_eq!(write_members(slices(&pairs), &names, &mut out), Ok(Members { count, rows }), "{text}");
        assert_eq!(out, [b"x", &text.as_bytes()[1..text.len() - 1]].concat());
    };
    check("{}", 0, 1, 8_000);
    check(r#"{"a":[1,2]}"#, 1, 2, 8_000);
    check(r#"{"b":[1,2],"a":{}}"#, 2, 4, 8_000);
    check(r#"{"a":[1,2],"b":0}"#, 2, 1, 10);
}

/// The pairs in a subtree's range.
fn in_range<'p>(pairs: &'p Pairs, path: &[u8]) -> impl Iterator<Item = (&'p [u8], &'p [u8])> {
    let range = subtree_range(b"", path);
    let begin = pairs.partition_point(|(key, _)| *key <= range.begin).saturating_sub(1);
    let end = pairs.partition_point(|(key, _)| *key < range.end);
    slices(pairs).take(end).skip(begin)
}

#[test]
fn subtrees() {
    let text = r#"{"a":{"x":[1,{"y":2}],"z":"s"},"b":3,"c":[[4]],"lit":{"d":5},"lit\u0000":{"d":6}}"#;
    let body = parse(text);
    let names = Names::new(["a", "x", "y", "z", "b", "c", "d"]);
    let (name, index) = (Step::Name, Step::Index);
    let check = |steps: &[Step<'_>], expected: Option<&str>| {
        let path = of_steps(steps, &names);
        for run_bytes in [0, 10, 20, 40, 1_000] {
            let pairs = pack(&flatten(&body, &names, &FlattenOptions::default()), run_bytes);
            let found = read_subtree(in_range(&pairs, &path), &path, &names).unwrap();
            assert_eq!(found.as_ref().map(compact).as_deref(), expected, "{steps:?} {run_bytes}");
        }
    };
    check(&[name("a")], Some(r#"{"x":[1,{"y":2}],"z":"s"}"#));
    check(&[name("a"), name("x")], Some(r#"[1,{"y":2}]"#));
    check(&[name("a"), name("x"), index(1)], Some(r#"{"y":2}"#));
    check(&[name("a"), name("x"), index(1), name("y")], Some("2"));
    check(&[name("b")], Some("3"));
    check(&[name("c"), index(0)], Some("[4]"));
    check(&[name("lit")], Some(r#"{"d":5}"#));
    check(&[name("lit\0")], Some(r#"{"d":6}"#));
    check(&[], Some(compact(&read_body_of(&body, &names)).as_str()));
    check(&[name("a"), name("none")], None);
    check(&[name("c"), index(1)], None);
    check(&[name("li")], None);
}

fn read_body_of(body: &Value<'_>, names: &Names) -> Value<'static> {
    let pairs = pack(&flatten(body, names, &FlattenOptions::default()), 50);
    read_body(slices(&pairs), names).unwrap()
}

fn any_run_bytes() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0_usize), 1..300_usize, Just(1_000), Just(4_000), Just(16_000)]
}

proptest! {
    #[test]
    fn every_body_comes_back_in_every_layout(
        body in any_body(), literal_below in 0..4_u8, run_bytes in any_run_bytes(),
        compressed_from_bytes in proptest::option::of(0..500_usize), seen_before in any_body(),
        path_bytes_max in prop_oneof![Just(40_usize), Just(8_000)],
    ) {
        let text = compact(&body);
        prop_assert_eq!(&parse(&text), &body);
        // Ids in the order of another document.
        let both = Value::Array(vec![seen_before, body.clone()]);
        let names = Names::of(&both, |name| name.len() as u8 % 4 < literal_below);
        let rows = flatten(&body, &names, &FlattenOptions { path_bytes_max });
        let mut paths: Vec<Vec<u8>> = Vec::new();
        rows.for_each(|path, _| paths.push(path.to_vec()));
        prop_assert!(paths.is_sorted_by(|a, b| a < b));
        prop_assert_eq!(rows.len(), paths.len());
        let pairs = pack_with(&rows, &PackOptions { run_bytes, compressed_from_bytes });
        prop_assert!(pairs.is_sorted_by(|a, b| a.0 < b.0));
        prop_assert_eq!(text_of(&pairs, &names).unwrap(), text);
        prop_assert_eq!(validate(slices(&pairs), &names), Ok(()));
        prop_assert_eq!(read_body(slices(&pairs), &names).unwrap(), body);
    }

    #[test]
    fn every_member_is_found_in_its_range(body in any_body(), run_bytes in any_run_bytes()) {
        let Value::Object(members) = &body else { panic!("no object") };
        let names = Names::of(&body, |name| name.len() == 1);
        let pairs = pack(&flatten(&body, &names, &FlattenOptions::default()), run_bytes);
        for (name, value) in members {
            let path = of_steps(&[Step::Name(name)], &names);
            let found = read_subtree(in_range(&pairs, &path), &path, &names).unwrap();
            prop_assert_eq!(found.as_ref(), Some(value));
        }
    }
}
