//! Selectors on the rows of bodies.

use std::collections::HashMap;

use flatbed_flatten::json::{Value, to_string};
use flatbed_flatten::{FieldIds, FieldNames, FlattenOptions, PackOptions, flatten, pack_with, unknown_names};
use flatbed_mango::{Index, Interrupts, MatchInterrupted, Progress, RowsError, Selector};
use proptest::prelude::*;

use crate::json;
use crate::plans::{selector, value};

#[derive(Default)]
struct Names(Vec<String>, HashMap<String, u64>);

impl Names {
    fn of(body: &Value<'_>, literal: &str) -> Names {
        let mut names = Names::default();
        for name in unknown_names(body, &Names::default()).into_iter().filter(|name| *name != literal) {
            names.1.insert(name.to_owned(), 10 + names.0.len() as u64);
            names.0.push(name.to_owned());
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
        self.0.get(usize::try_from(id.checked_sub(10)?).ok()?).map(String::as_str)
    }
}

/// Matches in slices that pause wherever a match can pause.
fn in_slices<E>(
    mut slice: impl FnMut(&mut Progress, Interrupts<'_>) -> Result<bool, E>,
    is_paused: impl Fn(&E) -> bool,
) -> Result<bool, E> {
    let mut progress = Progress::default();
    loop {
        match slice(&mut progress, Interrupts { stop: &|| false, pause: &|| true, steps: 0 }) {
            Err(error) if is_paused(&error) => {}
            done => return done,
        }
    }
}

fn on_rows(
    selector: &Selector,
    body: &Value<'_>,
    literal: &str,
    options: &PackOptions,
    path_bytes_max: usize,
) -> (bool, bool) {
    let names = Names::of(body, literal);
    let pairs = pack_with(&flatten(body, &names, &FlattenOptions { path_bytes_max }), options);
    let asked = std::cell::Cell::new(false);
    let special = || {
        asked.set(true);
        json(r#"{"_id":"a","_rev":"1-x"}"#)
    };
    let pairs = pairs.iter().map(|(path, value)| (path.as_slice(), value.as_slice()));
    let rows = selector.for_rows(&names);
    let selected = rows.matches(pairs.clone(), &names, special, &|| false).unwrap();
    let sliced = in_slices(
        |progress, interrupts| rows.matches_in_slices(pairs.clone(), &names, special, progress, interrupts),
        |error| *error == RowsError::Exhausted(MatchInterrupted::Paused),
    );
    assert_eq!(sliced, Ok(selected));
    (selected, asked.get())
}

#[test]
fn only_what_is_asked_about_is_read() {
    let options = PackOptions { run_bytes: 4_000, compressed_from_bytes: None };
    let body = json(r#"{"a":{"b":[1,{"c":2}],"d.e":null},"f":"x","1":5}"#);
    for (selector, expected) in [
        (r#"{"f":"x"}"#, (true, false)),
        (r#"{"f":"y"}"#, (false, false)),
        (r#"{"a.b.1.c":2}"#, (true, false)),
        (r#"{"a.b":{"$size":2},"a.d\\.e":null}"#, (true, false)),
        (r#"{"a":{"$type":"object"},"a.b.0":1}"#, (true, false)),
        (r#"{"1":5}"#, (true, false)),
        (r#"{"g":{"$exists":false},"a.g":{"$exists":false}}"#, (true, false)),
        (r#"{"f.g":{"$exists":false}}"#, (false, false)),
        (r#"{"_id":"a","f":"x"}"#, (true, true)),
        (r#"{"_id":"b"}"#, (false, true)),
        (r#"{"_attachments":{"$exists":false}}"#, (true, true)),
        ("{}", (true, false)),
        (r#"{"$and":[{"$type":"object"}]}"#, (true, true)),
    ] {
        let compiled = Selector::new(&json(selector)).unwrap();
        assert_eq!(on_rows(&compiled, &body, "", &options, 8_000), expected, "{selector}");
        assert_eq!(on_rows(&compiled, &body, "a", &options, 8_000), expected, "{selector}");
    }
}

/// Names that record when they are dropped, as a lock on them is.
struct Locked<'n>(&'n Names, &'n std::cell::Cell<bool>);

impl FieldNames for Locked<'_> {
    fn name_of(&self, id: u64) -> Option<&str> {
        self.0.name_of(id)
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.1.set(false);
    }
}

#[test]
fn names_are_let_go_of_before_conditions_are_tested() {
    let options = PackOptions { run_bytes: 4_000, compressed_from_bytes: None };
    let body = json(r#"{"a":1}"#);
    let names = Names::of(&body, "");
    let pairs = pack_with(&flatten(&body, &names, &FlattenOptions { path_bytes_max: 8_000 }), &options);
    let pairs = pairs.iter().map(|(path, value)| (path.as_slice(), value.as_slice()));
    let special = || json(r#"{"_id":"a","_rev":"1-x"}"#);
    let long = Selector::new(&json(&format!(r#"{{"a":{{"$in":[{}2]}}}}"#, "2,".repeat(20_000)))).unwrap();
    let (is_locked, asked) = (std::cell::Cell::new(true), std::cell::Cell::new(0));
    let stop = || {
        assert!(!is_locked.get());
        asked.set(asked.get() + 1);
        false
    };
    let never = || false;
    let interrupts = Interrupts { stop: &stop, pause: &never, steps: 0 };
    let mut progress = Progress::default();
    let locked = Locked(&names, &is_locked);
    let matched = long.matches_rows(&long.reader(&names), pairs.clone(), locked, special, &mut progress, interrupts);
    assert_eq!(matched, Ok(false));
    is_locked.set(true);
    assert_eq!(long.for_rows(&names).matches(pairs.clone(), Locked(&names, &is_locked), special, &stop), Ok(false));
    is_locked.set(true);
    let map = json(r#"{"fields":{"a":"asc"},"partial_filter_selector":{"a":{"$in":[2]}}}"#);
    let index = Index::of_map("_design/d", "i", &map).unwrap();
    let locked = Locked(&names, &is_locked);
    let key = index.key_of_rows(&index.reader(&names), pairs, locked, special, &mut progress, interrupts);
    assert_eq!(key, Ok(None));
    assert!(!is_locked.get() && asked.get() >= 2, "{}", asked.get());
}

#[test]
fn members_of_replicators_are_read_of_bodies() {
    let options = PackOptions { run_bytes: 4_000, compressed_from_bytes: None };
    let body = json(r#"{"_replication_state":"failed","_replication_stats":{"docs_read":3}}"#);
    for (selector, expected) in [
        (r#"{"_replication_state":"failed"}"#, true),
        (r#"{"_replication_stats.docs_read":{"$gt":3}}"#, false),
        (r#"{"_replication_id":{"$exists":false}}"#, true),
    ] {
        let compiled = Selector::new(&json(selector)).unwrap();
        assert_eq!(on_rows(&compiled, &body, "", &options, 8_000), (expected, false), "{selector}");
    }
}

fn key_on_rows(
    index: &Index,
    body: &Value<'_>,
    literal: &str,
    options: &PackOptions,
    path_bytes_max: usize,
) -> Option<String> {
    let names = Names::of(body, literal);
    let pairs = pack_with(&flatten(body, &names, &FlattenOptions { path_bytes_max }), options);
    let pairs = pairs.iter().map(|(path, value)| (path.as_slice(), value.as_slice()));
    let special = || json(r#"{"_id":"a","_rev":"1-x"}"#);
    index.for_rows(&names).key(pairs, &names, special, &|| false).unwrap().map(|key| to_string(&Value::Array(key)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn rows_are_selected_as_documents_are(
        members in prop::collection::btree_map("[abcd]", value(), 0..5),
        wrapped: bool,
        selector in selector(),
        literal in "[abcd]",
        run_bytes in prop_oneof![Just(0_usize), 1..60_usize, Just(4_000)],
        path_bytes_max in prop_oneof![1 => 20..40_usize, 2 => Just(8_000_usize)],
    ) {
        let members: Vec<String> = members.iter().map(|(name, value)| format!(r#""{name}":{value}"#)).collect();
        let inner = format!("{{{}}}", members.join(","));
        let body = json(&if wrapped { format!(r#"{{"a":{inner}}}"#) } else { inner });
        let mut document = json(r#"{"_id":"a","_rev":"1-x"}"#);
        if let (Value::Object(document), Value::Object(body)) = (&mut document, body.clone()) {
            document.extend(body);
        }
        let compiled = Selector::new(&json(&selector)).unwrap();
        let options = PackOptions { run_bytes, compressed_from_bytes: Some(50) };
        let (selected, _) = on_rows(&compiled, &body, &literal, &options, path_bytes_max);
        prop_assert_eq!(selected, compiled.matches(&document), "{} of {}", selector, to_string(&document));
        let sliced = in_slices(
            |progress, interrupts| compiled.matches_in_slices(&document, progress, interrupts),
            |error| *error == MatchInterrupted::Paused,
        );
        prop_assert_eq!(sliced, Ok(selected), "{} of {}", selector, to_string(&document));
        for fields in [r#"{"a":"asc"}"#, r#"{"b":"asc","_id":"asc"}"#, r#"{"a.b":"asc","a":"asc"}"#, r#"{"a.0.b":"asc","c":"asc"}"#] {
            for partial in ["{}", &selector] {
                let view = format!(r#"{{"map":{{"fields":{fields},"partial_filter_selector":{partial}}},"options":{{}}}}"#);
                let design = json(&format!(r#"{{"language":"query","views":{{"i":{view}}}}}"#));
                let index = Index::of_design_document("_design/i", &design, false).remove(0);
                let key = index.key(&document, &|| false).unwrap().map(|key| to_string(&Value::Array(key)));
                let by_rows = key_on_rows(&index, &body, &literal, &options, path_bytes_max);
                prop_assert_eq!(by_rows, key, "{} of {}", fields, to_string(&document));
            }
        }
    }
}
