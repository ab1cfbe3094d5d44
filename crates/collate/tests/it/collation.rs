//! The order of strings in CouchDB's views, and strings that are equal as keys.

use std::cmp::Ordering;

use flatbed_collate::Collation;
use flatbed_flatten::json::Value;

#[test]
fn strings_in_couchdbs_order() {
    let collation = Collation::unicode().unwrap();
    let classes = super::recorded("collation.jsonl");
    let strings: Vec<(usize, &Value<'_>)> = classes
        .iter()
        .enumerate()
        .flat_map(|(class, line)| match line.get("equal") {
            Some(Value::Array(strings)) => strings.iter().map(move |string| (class, string)),
            _ => panic!("{line:?}"),
        })
        .collect();
    assert_eq!(strings.len(), 633);
    let keys: Vec<_> = strings.iter().map(|(_, string)| collation.sort_key(string)).collect();
    let mut differences = Vec::new();
    for ((a_class, a), a_key) in strings.iter().zip(&keys) {
        for ((b_class, b), b_key) in strings.iter().zip(&keys) {
            let expected: Ordering = a_class.cmp(b_class);
            if collation.compare(a, b) != expected || a_key.bytes().cmp(b_key.bytes()) != expected {
                differences.push(format!("{a:?} {b:?} {expected:?}"));
            }
        }
    }
    assert!(differences.is_empty(), "{}: {differences:#?}", differences.len());
}
