//! Checks the reads of plans, and that they find the same documents as a scan.

use std::ops::Bound;

use flatbed_flatten::json::{Value, to_string};
use flatbed_mango::{Catalog, Find, IdRange, Index, KeyRange, Plan, Selector, Source, plan};
use proptest::prelude::*;

use crate::json;
use crate::recorded::items;
use crate::replay::Database;

fn index(fields: &[&str]) -> Index {
    let fields: Vec<String> = fields.iter().map(|field| format!(r#""{field}":"asc""#)).collect();
    let view = format!(r#"{{"map":{{"fields":{{{}}}}},"reduce":"_count","options":{{}}}}"#, fields.join(","));
    let document = json(&format!(r#"{{"language":"query","views":{{"i":{view}}}}}"#));
    Index::of_design_document("_design/i", &document, false).remove(0)
}

fn planned(indexes: &[Index], body: &str, check: impl Fn(&Plan<'_>)) {
    let find = Find::parse(&json(body), None, &|| false).unwrap();
    check(&plan(&find, &Catalog { database: "db", partitioned: false, indexes }).unwrap());
}

/// Shows ranges: `(` before, `)` behind keys with the prefix.
fn shown(ranges: &[KeyRange]) -> String {
    let edge = |values: &[Value<'static>], behind: bool| {
        format!("{}{}", if behind { ">" } else { "<" }, to_string(&Value::Array(values.to_vec())))
    };
    let range = |range: &KeyRange| {
        format!("{} {}", edge(&range.start.values, range.start.behind), edge(&range.end.values, range.end.behind))
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(", ")
}

fn reads(fields: &[&str], selector: &str, ranges: &str, residual: Option<&str>) {
    let indexes = [Index::all_docs(), index(fields)];
    planned(&indexes, &format!(r#"{{"selector":{selector}}}"#), |plan| {
        let Source::Keys(found) = &plan.source else { panic!("{selector}: {:?}", plan.source) };
        assert_eq!(shown(found), ranges, "{selector}");
        let left = plan.residual.as_ref().map(|residual| to_string(&residual.to_json()));
        assert_eq!(left.as_deref(), residual, "{selector}");
        assert_eq!(plan.counts_rows(), residual.is_none());
    });
}

#[test]
fn ranges_of_one_field() {
    reads(&["a"], r#"{"a":1}"#, "<[1] >[1]", None);
    reads(&["a"], r#"{"a":{"$gt":1,"$lte":3}}"#, ">[1] >[3]", None);
    reads(&["a"], r#"{"a":{"$gte":1,"$lt":3}}"#, "<[1] <[3]", None);
    reads(&["a"], r#"{"a":{"$exists":true}}"#, "<[] >[]", None);
    reads(&["a"], r#"{"a":{"$ne":1}}"#, "<[] >[]", Some(r#"{"a":{"$ne":1}}"#));
    reads(&["a"], r#"{"a":{"$beginsWith":"x"}}"#, "<[\"x\"] >[\"x\u{ffff}\"]", Some(r#"{"a":{"$beginsWith":"x"}}"#));
    // An array matches if one of its items is in the list.
    reads(
        &["a"],
        r#"{"a":{"$in":[3,1,1.0,[2]]}}"#,
        "<[1] >[1], <[3] >[3], <[[]] <[{}]",
        Some(r#"{"a":{"$in":[3,1,1.0,[2]]}}"#),
    );
    reads(&["a"], r#"{"a":{"$in":[5,1],"$gt":2}}"#, "<[5] >[5], <[[]] <[{}]", Some(r#"{"a":{"$in":[5,1]}}"#));
    let or = r#"{"$or":[{"a":{"$eq":2}},{"a":{"$lt":1}},{"a":{"$eq":2}}]}"#;
    reads(&["a"], or, "<[] <[1], <[2] >[2]", Some(or));
    let or = r#"{"$or":[{"a":{"$gt":1}},{"a":{"$lt":5}}]}"#;
    reads(&["a"], or, "<[] >[]", Some(or));
}

#[test]
fn ranges_of_more_fields() {
    let both = ["a", "b"];
    reads(&both, r#"{"a":1,"b":{"$gt":2}}"#, ">[1,2] >[1]", None);
    reads(&both, r#"{"a":1,"b":2,"c":3}"#, "<[1,2] >[1,2]", Some(r#"{"c":{"$eq":3}}"#));
    reads(&both, r#"{"a":{"$gt":1},"b":2}"#, ">[1] >[]", Some(r#"{"b":{"$eq":2}}"#));
    reads(&both, r#"{"b":2,"a":{"$exists":true}}"#, "<[] >[]", Some(r#"{"b":{"$eq":2}}"#));
    reads(
        &both,
        r#"{"b":{"$in":[1,2]},"a":0}"#,
        "<[0,1] >[0,1], <[0,2] >[0,2], <[0,[]] <[0,{}]",
        Some(r#"{"b":{"$in":[1,2]}}"#),
    );
    let or = r#"{"$or":[{"b":{"$eq":7}},{"b":{"$eq":5}}]}"#;
    reads(&both, &format!(r#"{{"a":0,{}"#, &or[1..]), "<[0,5] >[0,5], <[0,7] >[0,7]", Some(or));
}

#[test]
fn ids_lie_in_the_order_of_their_bytes() {
    let reads = |selector: &str, expected: &str| {
        planned(&[Index::all_docs()], &format!(r#"{{"selector":{selector}}}"#), |plan| {
            let Source::Ids(ranges) = &plan.source else { panic!("{selector}") };
            let shown: Vec<String> = ranges.iter().map(|range| format!("{:?} {:?}", range.start, range.end)).collect();
            assert_eq!(shown.join(", "), expected, "{selector}");
            assert!(!plan.counts_rows());
        });
    };
    reads("{}", "Unbounded Unbounded");
    reads(r#"{"_id":"x"}"#, r#"Included("x") Included("x")"#);
    reads(r#"{"_id":{"$gt":null}}"#, "Unbounded Unbounded");
    reads(r#"{"_id":{"$lt":5}}"#, "");
    reads(r#"{"_id":{"$gt":"B","$lt":"a"}}"#, r#"Excluded("B") Excluded("a")"#);
    reads(r#"{"_id":{"$in":["b","a",1]}}"#, r#"Included("a") Included("a"), Included("b") Included("b")"#);
    reads(r#"{"_id":{"$beginsWith":"a"}}"#, r#"Included("a") Excluded("b")"#);
}

#[test]
fn too_many_ranges_are_one() {
    let list: Vec<String> = (0..2_000).map(|number| number.to_string()).collect();
    let selector = format!(r#"{{"a":{{"$in":[{}]}}}}"#, list.join(","));
    reads(&["a"], &selector, "<[] >[]", Some(&selector));
    let list = list[..100].join(",");
    let selector = format!(r#"{{"a":{{"$in":[{list}]}},"b":{{"$in":[{list}]}}}}"#);
    let and = format!(r#"{{"$and":[{{"a":{{"$in":[{list}]}}}},{{"b":{{"$in":[{list}]}}}}]}}"#);
    reads(&["a", "b"], &selector, "<[] >[]", Some(&and));
}

#[test]
fn a_sort_by_fields_behind_single_values() {
    let indexes = [Index::all_docs(), index(&["a", "b", "c"])];
    planned(&indexes, r#"{"selector":{"a":1},"sort":[{"b":"desc"},{"c":"desc"}]}"#, |plan| {
        assert!(plan.reverse && plan.index.name() == "i");
    });
    let refused = |body: &str| {
        let find = Find::parse(&json(body), None, &|| false).unwrap();
        plan(&find, &Catalog { database: "db", partitioned: false, indexes: &indexes }).unwrap_err().error
    };
    for sort in [r#"["b"]"#, r#"["a","c"]"#, r#"["b","c","d"]"#, r#"["b","b"]"#, r#"["_id"]"#] {
        assert_eq!(
            refused(&format!(r#"{{"selector":{{"a":{{"$gt":1}}}},"sort":{sort}}}"#)),
            "no_usable_index",
            "{sort}"
        );
    }
    assert_eq!(refused(r#"{"selector":{"a":1},"partition":"x","sort":["a"]}"#), "no_usable_index");
}

#[test]
fn a_partition_is_read_alone() {
    let view = r#"{"language":"query","views":{"i":{"map":{"fields":{"a":"asc"}},"reduce":"_count","options":{}}}}"#;
    let of_partitions = Index::of_design_document("_design/i", &json(view), true).remove(0);
    let indexes = [Index::all_docs(), of_partitions];
    let catalog = Catalog { database: "db", partitioned: true, indexes: &indexes };
    let planned = |selector: &str| {
        let find = Find::parse(&json(&format!(r#"{{"selector":{selector}}}"#)), Some("p"), &|| false).unwrap();
        let plan = plan(&find, &catalog).unwrap();
        (plan.source.clone(), plan.partition.clone(), plan.residual.is_some())
    };
    let (source, partition, has_residual) = planned(r#"{"a":1}"#);
    assert!(matches!(source, Source::Keys(_)), "{source:?}");
    // All entries belong to the partition, so nothing is left to check.
    assert_eq!((partition.as_deref(), has_residual), (Some("p"), false));
    let included = |id: &str| Bound::Included(id.to_owned());
    let excluded = |id: &str| Bound::Excluded(id.to_owned());
    for (selector, expected) in [
        (r#"{"b":1}"#, Some((included("p:"), excluded("p;")))),
        (r#"{"_id":{"$gt":"p:b"}}"#, Some((excluded("p:b"), excluded("p;")))),
        (r#"{"_id":{"$gt":"a","$lte":"p:b"}}"#, Some((included("p:"), included("p:b")))),
        (r#"{"_id":{"$gt":"q"}}"#, None),
        (r#"{"_id":{"$lt":"p"}}"#, None),
    ] {
        let (source, ..) = planned(selector);
        let ranges: Vec<IdRange> = expected.into_iter().map(|(start, end)| IdRange { start, end }).collect();
        assert_eq!(source, Source::Ids(ranges), "{selector}");
    }
}

pub(crate) fn value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        4 => (0..4i32).prop_map(|number| number.to_string()),
        1 => Just("1.0".to_owned()),
        1 => prop_oneof![Just("null".to_owned()), Just("true".to_owned())],
        2 => prop_oneof![Just("\"a\""), Just("\"B\""), Just("\"é\""), Just("\"\"")].prop_map(str::to_owned),
    ];
    leaf.prop_recursive(2, 4, 2, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(|items| format!("[{}]", items.join(","))),
            inner.prop_map(|value| format!(r#"{{"b":{value}}}"#)),
        ]
    })
}

fn document() -> impl Strategy<Value = String> {
    prop::collection::btree_map("[abc]", value(), 0..4).prop_map(|members| {
        let members: Vec<String> = members.iter().map(|(name, value)| format!(r#""{name}":{value}"#)).collect();
        format!("{{{}}}", members.join(","))
    })
}

pub(crate) fn selector() -> impl Strategy<Value = String> {
    let field = prop_oneof![3 => Just("a"), 3 => Just("b"), 1 => Just("a.b"), 1 => Just("c"), 1 => Just("_id")];
    let operator = prop_oneof![
        prop_oneof![Just("$eq"), Just("$lt"), Just("$lte"), Just("$gt"), Just("$gte"), Just("$ne")]
            .prop_flat_map(|operator| value().prop_map(move |value| format!(r#"{{"{operator}":{value}}}"#))),
        (prop_oneof![Just("$in"), Just("$nin"), Just("$all")], prop::collection::vec(value(), 0..4))
            .prop_map(|(operator, list)| format!(r#"{{"{operator}":[{}]}}"#, list.join(","))),
        any::<bool>().prop_map(|exists| format!(r#"{{"$exists":{exists}}}"#)),
        Just(r#"{"$beginsWith":"a"}"#.to_owned()),
        Just(r#"{"$elemMatch":{"$gt":1}}"#.to_owned()),
    ];
    let leaf = (field, operator).prop_map(|(field, operator)| format!(r#"{{"{field}":{operator}}}"#));
    leaf.prop_recursive(3, 8, 3, |inner| {
        prop_oneof![
            (
                prop_oneof![3 => Just("$and"), 2 => Just("$or"), 1 => Just("$nor")],
                prop::collection::vec(inner.clone(), 0..4)
            )
                .prop_map(|(operator, list)| format!(r#"{{"{operator}":[{}]}}"#, list.join(","))),
            inner.prop_map(|inner| format!(r#"{{"$not":{inner}}}"#)),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// With any index, page by page: each document that a scan finds once, in the order of the sort.
    #[test]
    fn plans_find_what_a_scan_finds(
        documents in prop::collection::vec(document(), 0..12),
        indexes in prop::collection::vec(prop::sample::subsequence(vec!["a", "b", "a.b", "_id"], 1..4).prop_shuffle(), 0..4),
        selector in selector(),
        sort in prop_oneof![2 => Just(Vec::new()), 1 => prop::sample::subsequence(vec!["a", "b"], 1..3)],
        descending: bool,
        limit in 1..5usize,
        fields in prop_oneof![Just(r#""#), Just(r#","fields":["_id"]"#), Just(r#","fields":["_id","a"]"#)],
    ) {
        let mut database = Database::new(false);
        let ids = ["A", "a", "B", "aa", "é", "0", "10", "9", "ab", "b", "z", "Z"];
        for (id, document) in ids.iter().zip(&documents) {
            database.put(id, json(document), "1-x");
        }
        for (at, fields) in indexes.iter().enumerate() {
            let fields = fields.join("\",\"");
            database.post_index(&json(&format!(r#"{{"index":{{"fields":["{fields}"]}},"ddoc":"{at}"}}"#))).unwrap();
        }
        let direction = if descending { "desc" } else { "asc" };
        let sorts: Vec<String> = sort.iter().map(|field| format!(r#"{{"{field}":"{direction}"}}"#)).collect();
        let compiled = Selector::new(&json(&selector)).unwrap();
        let mut expected: Vec<(Vec<Value<'static>>, &str)> = Vec::new();
        for (id, document) in ids.iter().zip(&documents) {
            let document = json(&format!(r#"{{"_id":"{id}",{}"#, &document[1..]).replace(",}", "}"));
            let key: Option<Vec<_>> = sort.iter().map(|field| document.get(field).cloned()).collect();
            if let (true, Some(key)) = (compiled.matches(&document), key) {
                expected.push((key, *id));
            }
        }
        expected.sort_by(|a, b| {
            let order = flatbed_mango::compare(&Value::Array(a.0.clone()), &Value::Array(b.0.clone()));
            if descending { order.reverse() } else { order }
        });
        let (mut found, mut bookmark) = (Vec::new(), String::new());
        loop {
            let body = format!(
                r#"{{"selector":{selector},"sort":[{}],"limit":{limit},"bookmark":"{bookmark}"{fields}}}"#,
                sorts.join(",")
            );
            let page = match database.find(&json(&body), None) {
                Ok(page) => page,
                Err(refused) => {
                    prop_assert_eq!(refused.error, "no_usable_index");
                    prop_assert!(!sort.is_empty());
                    return Ok(());
                }
            };
            let docs = items(&page, "docs");
            found.extend(docs.iter().map(|document| document.get("_id").unwrap().as_str().unwrap().to_owned()));
            if docs.len() < limit {
                // CouchDB does not read if an `$and` or `$or` is empty.
                if page.get("bookmark").is_none() {
                    prop_assert!(found.is_empty());
                    return Ok(());
                }
                break;
            }
            bookmark = page.get("bookmark").unwrap().as_str().unwrap().to_owned();
        }
        let keys = |ids: &[String]| -> Vec<String> {
            let key = |id: &String| expected.iter().find(|(_, found)| found == id).map(|(key, _)| to_string(&Value::Array(key.clone())));
            ids.iter().filter_map(key).collect()
        };
        let expected_ids: Vec<String> = expected.iter().map(|(_, id)| (*id).to_owned()).collect();
        if !sort.is_empty() {
            prop_assert_eq!(keys(&found).len(), found.len());
        }
        let (mut a, mut b) = (found.clone(), expected_ids.clone());
        a.sort();
        b.sort();
        prop_assert_eq!(a, b, "{}", selector);
        if !sort.is_empty() {
            let normal = |keys: Vec<String>| keys.into_iter().map(|key| key.replace("1.0", "1")).collect::<Vec<_>>();
            prop_assert_eq!(normal(keys(&found)), normal(keys(&expected_ids)));
        }
    }
}
