use flatbed_flatten::json::{Limits, parse};
use proptest::prelude::*;
use serde_json::json;

use super::*;

/// The mapping from the Python worker's repository, in its form.
pub(crate) const ORDERS: &str = r#"{
  "source": {"match": {"field": "type", "value": "order"}},
  "output_format": "tables",
  "tables": [
    {"name": "orders", "primary_key": "doc_id",
     "columns": {"doc_id": "$._id", "rev": "$._rev", "status": "$.status",
                 "order_date": {"path": "$.order_date", "transform": "to_date($.order_date)"}, "total": "$.total"},
     "on_delete": "delete"},
    {"name": "order_items", "primary_key": "id",
     "columns": {"order_doc_id": "$._id", "product_id": {"path": "$.product_id", "transform": "toUpperCase($.product_id)"},
                 "qty": "$.qty"},
     "on_delete": "delete", "parent": "orders",
     "foreign_key": {"column": "order_doc_id", "references": "doc_id"},
     "source_array": "$.items", "replace_strategy": "delete_insert"}],
  "meta": {"updated_at": "2026-04-22T19:33:16.759377+00:00", "active": true}
}"#;

fn error(value: serde_json::Value) -> String {
    Mapping::from_value(value).map(|_| ()).unwrap_err().to_string()
}

fn one_table(table: serde_json::Value) -> String {
    error(json!({ "tables": [table] }))
}

fn matches(matching: serde_json::Value, document: &str) -> bool {
    let mapping = Mapping::from_value(json!({"source": {"match": matching}})).unwrap();
    mapping.matches(&parse(document.as_bytes(), &Limits::default()).unwrap()).unwrap()
}

#[test]
fn seeds_form_is_read() {
    let mapping = Mapping::from_json(ORDERS).unwrap();
    let [orders, items] = mapping.tables() else { panic!() };
    let names = |table: &Table| table.columns.iter().map(|column| column.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(orders), ["doc_id", "order_date", "rev", "status", "total"]);
    assert_eq!(orders.key, [0]);
    // The target fills `id`, by which no row can be found: an element's row has its parent's key and its position.
    assert_eq!(names(items), ["order_doc_id", "product_id", "qty", POSITION_COLUMN]);
    assert_eq!(items.key, [0, 3]);
    assert_eq!(items.foreign_key, Some(ForeignKey { column: 0, parent: 0, references: 0 }));
    // The same in YAML, and the oldest form.
    assert_eq!(Mapping::from_yaml(ORDERS).unwrap().tables().len(), 2);
    let oldest = "source:\n  match:\n    type: order\ntarget:\n  table: orders\n  primary_key: id\n  columns:\n    - name: id\n      value: _id\n";
    let oldest = Mapping::from_yaml(oldest).unwrap();
    assert_eq!(names(&oldest.tables()[0]), ["id"]);
    assert!(oldest.matches(&parse(br#"{"_id":"a","type":"order"}"#, &Limits::default()).unwrap()).unwrap());
}

#[test]
fn documents_match_or_not() {
    let order = r#"{"_id":"order::7","type":"order","n":1}"#;
    for (matching, is_match) in [
        (json!({}), true),
        (json!({"field": "type", "value": "order"}), true),
        (json!({"field": "type", "value": "invoice"}), false),
        (json!({"field": "gone", "value": null}), true),
        (json!({"field": "n", "value": 1}), true),
        (json!({"field": "n", "value": "1"}), false),
        (json!({"expression": "split($._id,\"::\")[0]", "value": "order"}), true),
        (json!({"id_prefix": "order::"}), true),
        (json!({"id_prefix": "x"}), false),
        (json!({"type": "order", "n": 1}), true),
        (json!({"type": "order", "n": 2}), false),
    ] {
        assert_eq!(matches(matching.clone(), order), is_match, "{matching}");
    }
    for matching in [
        json!({"field": "type"}),
        json!({"field": 1, "value": 1}),
        json!({"field": "a", "expression": "$.a", "value": 1}),
        json!({"value": 1, "expression": "x()"}),
        json!({"id_prefix": 1}),
        json!({"id_prefix": "a", "type": "b"}),
        json!({"field": "type", "value": 1, "more": 2}),
    ] {
        assert!(error(json!({"source": {"match": matching}})).starts_with("match: "), "{matching}");
    }
}

#[test]
fn what_cannot_be_right_is_refused() {
    for (table, says) in [
        (json!({"name": "a", "primary_key": "x", "columns": {"y": "$.y"}}), "key is not among"),
        (json!({"name": "a", "primary_key": ["x", "x"], "columns": {"x": "$.y"}}), "twice"),
        (json!({"name": "a\"; drop", "primary_key": "x", "columns": {"x": "$.x"}}), "no name"),
        (json!({"name": "flatbed_rows", "primary_key": "x", "columns": {"x": "$.x"}}), "no name"),
        (json!({"name": "a", "primary_key": "x", "columns": {"x y": "$.x"}}), "no name"),
        (json!({"name": "a", "primary_key": "x", "columns": {"x": "$.x", "X": "$.y"}}), "twice"),
        (json!({"name": "a", "primary_key": "x", "columns": {"x": "x"}}), "no path"),
        (json!({"name": "a", "primary_key": "x", "columns": {"x": {"transform": "trim()"}}}), "no path"),
        (json!({"name": "a", "primary_key": "x", "columns": {"x": {"path": "$.x", "type": "blobs"}}}), "no type"),
        (
            json!({"name": "a", "primary_key": "x", "columns": {"x": {"path": "$.x", "transform": "eval()"}}}),
            "no function",
        ),
        (json!({"name": "a", "primary_key": "x", "columns": {"x": "$.x"}, "parent": "b"}), "not among"),
        (
            json!({"name": "a", "primary_key": "x", "columns": {"x": "$.x"}, "foreign_key": {"column": "x", "references": "y"}}),
            "together",
        ),
        (json!({"name": "a", "columns": {"x": "$.x"}, "source_array": "$.items"}), "neither a key"),
        (json!({"name": "a", "primary_key": "x", "columns": {"x": "$.x"}, "source_array": "items"}), "no path"),
        (json!({"name": "a", "primary_key": "x", "columns": {"x": "$.x"}, "soft_delete_column": "d"}), "requires"),
        (
            json!({"name": "a", "primary_key": "x", "columns": {"x": "$.x"}, "on_delete": "soft_delete", "soft_delete_column": "x"}),
            "twice",
        ),
        (
            json!({"name": "a", "primary_key": "x", "columns": {"x": "$.x"}, "on_delete": "keep"}),
            "the mapping is invalid",
        ),
        (json!({"name": "a", "primary_key": "x", "columns": {"x": "$.x"}, "unknown": 1}), "the mapping is invalid"),
    ] {
        let found = one_table(table.clone());
        assert!(found.contains(says), "{table}: {found}");
    }
    let table = |name: &str, parent: &str| {
        json!({"name": name, "primary_key": "x", "columns": {"x": "$.x"}, "parent": parent,
               "foreign_key": {"column": "x", "references": "x"}})
    };
    assert!(error(json!({"tables": [table("a", "b"), table("b", "a")]})).contains("own child"));
    assert!(error(json!({"output_format": "tables"})).contains("no `tables`"));
    assert!(error(json!({"tables": [table("a", "b")], "mapping": {"a": "$.a"}})).contains("both"));
    let many: Vec<_> = (0..=TABLES_MAX)
        .map(|at| json!({"name": format!("t{at}"), "primary_key": "x", "columns": {"x": "$.x"}}))
        .collect();
    assert!(error(json!({"tables": many})).contains("more than 64 tables"));
    assert_eq!(Mapping::from_json(&" ".repeat(MAPPING_BYTES_MAX + 1)).map(|_| ()), Err(MappingError::TooLong));
}

#[test]
fn parents_come_first_in_any_order_of_writing() {
    let child = |name: &str, parent: &str| {
        json!({"name": name, "columns": {"y": "$"}, "parent": parent, "source_array": "$.items",
               "foreign_key": {"column": "x", "references": "x"}})
    };
    let root = json!({"name": "r", "primary_key": "x", "columns": [{"name": "x", "path": "$._id", "type": "text"}]});
    // A reference to a parent with several rows is ambiguous.
    let unclear = json!({"tables": [child("c", "b"), child("b", "r"), root.clone()]});
    assert!(error(unclear).contains("needs a path"));
    let mut grandchild = child("c", "b");
    grandchild["columns"] = json!({"x": "$._id", "y": "$"});
    let mapping = Mapping::from_value(json!({"tables": [grandchild, child("b", "r"), root]})).unwrap();
    let names: Vec<_> = mapping.tables().iter().map(|table| table.name.as_str()).collect();
    assert_eq!(names, ["r", "b", "c"]);
    // A foreign key that is not among the columns has the parent's value and type.
    let added = &mapping.tables()[1].columns[1];
    assert_eq!((added.name.as_str(), added.kind, added.is_nullable), ("x", Some(Type::Text(None)), false));
}

proptest! {
    #[test]
    fn any_mapping_is_compiled_or_refused(text in "\\PC{0,80}", at in 0_usize..400) {
        // A defect inside an otherwise valid mapping.
        let mut broken = ORDERS.to_owned();
        let at = (0..=at).rev().find(|at| broken.is_char_boundary(*at)).unwrap_or_default();
        broken.insert_str(at, &text);
        let _ = (Mapping::from_json(&broken), Mapping::from_yaml(&broken), Mapping::from_yaml(&text));
    }
}
