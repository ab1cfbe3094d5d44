//! Reading some values of a body in one pass.
#![allow(clippy::unwrap_used)]

use crate::support::{Names, any_body, parse, slices};
use flatbed_flatten::json::Value;
use flatbed_flatten::path::{Step, of_steps};
use flatbed_flatten::{FlattenOptions, PackOptions, PickResult, flatten, pack, pack_with, pick};
use proptest::prelude::*;

#[test]
fn values_are_picked() {
    let body = parse(r#"{"a":{"x":[1,{"y":2}],"z":"s"},"b":3.50,"lit":{"d":5},"lit\u0000":6,"e":[],"n":null}"#);
    let names = Names::of(&body, |name| name.starts_with("lit"));
    let path = |steps: &[&str]| of_steps(&steps.iter().map(|name| Step::Name(name)).collect::<Vec<_>>(), &names);
    let mut wanted: Vec<(Vec<u8>, Option<&str>)> = vec![
        (path(&["a", "x"]), Some(r#"[1,{"y":2}]"#)),
        (path(&["a", "z"]), Some(r#""s""#)),
        (path(&["b"]), Some("3.50")),
        (path(&["lit"]), Some(r#"{"d":5}"#)),
        (path(&["li"]), None),
        (path(&["a", "none"]), None),
        (path(&["e"]), Some("[]")),
        (path(&["n"]), Some("null")),
    ];
    wanted.sort();
    let (paths, expected): (Vec<Vec<u8>>, Vec<_>) = wanted.into_iter().unzip();
    let expected =
        PickResult::Values(expected.into_iter().map(|text| text.map(|text| parse(text).into_owned())).collect());
    for run_bytes in [0, 10, 40, 1_000] {
        let pairs = pack(&flatten(&body, &names, &FlattenOptions::default()), run_bytes);
        assert_eq!(pick(slices(&pairs), &paths, &names).as_ref(), Ok(&expected), "{run_bytes}");
    }
}

proptest! {
    #[test]
    fn what_is_picked_is_what_is_there(
        body in any_body(), literal_below in 0..4_u8, run_bytes in prop_oneof![Just(0_usize), 1..300_usize, Just(4_000)],
        compressed_from_bytes in proptest::option::of(0..500_usize), path_bytes_max in prop_oneof![Just(40_usize), Just(8_000)],
        which in proptest::collection::vec(any::<prop::sample::Index>(), 1..4),
    ) {
        let names = Names::of(&body, |name| name.len() as u8 % 4 < literal_below);
        let pairs = pack_with(
            &flatten(&body, &names, &FlattenOptions { path_bytes_max }),
            &PackOptions { run_bytes, compressed_from_bytes },
        );
        let Value::Object(members) = &body else { panic!("no object") };
        // Some members, and for others one of their members.
        let mut wanted: Vec<(Vec<u8>, Option<&Value<'_>>)> = Vec::new();
        for (at, (name, value)) in members.iter().enumerate() {
            match value {
                Value::Object(inner) if !inner.is_empty() && at % 2 == 0 => {
                    let (inner_name, inner) = &inner[which[0].index(inner.len())];
                    wanted.push((of_steps(&[Step::Name(name), Step::Name(inner_name)], &names), Some(inner)));
                }
                _ if which.iter().any(|which| which.index(members.len()) == at) => {
                    wanted.push((of_steps(&[Step::Name(name)], &names), Some(value)));
                }
                _ => {}
            }
        }
        wanted.push((of_steps(&[Step::Name("none of these")], &names), None));
        wanted.sort_by(|a, b| a.0.cmp(&b.0));
        let (paths, expected): (Vec<_>, Vec<_>) = wanted.into_iter().unzip();
        match pick(slices(&pairs), &paths, &names).unwrap() {
            PickResult::Packed => prop_assert!(path_bytes_max == 40),
            PickResult::Values(values) => {
                prop_assert_eq!(values.iter().map(Option::as_ref).collect::<Vec<_>>(), expected);
            }
        }
    }
}
