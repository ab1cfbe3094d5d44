//! Requests that no recording covers, and hostile requests.

use flatbed_flatten::json::{Value, to_string};
use flatbed_mango::{
    Catalog, ExecutionStats, Find, Index, IndexRequest, Listing, MangoError, Projector, Selector, count_answer,
    explain, parse_bulk_delete, plan, tail, warning, without_index, write_tail,
};
use proptest::prelude::*;

use crate::json;

fn find(body: &str) -> Result<Find, MangoError> {
    Find::parse(&json(body), None, &|| false)
}

fn view(id: &str, views: &str) -> Vec<Index> {
    Index::of_design_document(id, &json(&format!(r#"{{"language":"query","views":{views}}}"#)), false)
}

#[test]
fn selectors_are_shown_in_normal_form() {
    for (selector, normal) in [
        ("{}", "{}"),
        (r#"{"a":1}"#, r#"{"a":{"$eq":1}}"#),
        (r#"{"a":{"b":1,"c":{"$gt":2}}}"#, r#"{"$and":[{"a.b":{"$eq":1}},{"a.c":{"$gt":2}}]}"#),
        (r#"{"a":{"$and":[{"$gt":1},{"b":2}]}}"#, r#"{"$and":[{"a":{"$gt":1}},{"a.b":{"$eq":2}}]}"#),
        (r#"{"$not":{"a":{"$gt":1},"b":{"$in":[1]}}}"#, r#"{"$or":[{"a":{"$lte":1}},{"b":{"$nin":[1]}}]}"#),
        (
            r#"{"$nor":[{"a":{"$exists":true}},{"$not":{"b":{"$regex":"x"}}}]}"#,
            r#"{"$and":[{"a":{"$exists":false}},{"b":{"$regex":"x"}}]}"#,
        ),
        (r#"{"$not":{"a":{"$size":2}}}"#, r#"{"a":{"$not":{"$size":2}}}"#),
        (r#"{"$not":{"$nor":[{"a":{"$lt":1}}]}}"#, r#"{"$or":[{"a":{"$lt":1}}]}"#),
        (
            r#"{"a":{"$elemMatch":{"$not":{"b":1},"$gte":0}}}"#,
            r#"{"a":{"$elemMatch":{"$and":[{"$not":{"b":{"$eq":1}}},{"":{"$gte":0}}]}}}"#,
        ),
        (r#"{"":{"a":1}}"#, r#"{"a":{"$eq":1}}"#),
        (
            r#"{"a":{"$mod":[2,-1]},"b":{"$type":"none"},"c":{"$beginsWith":"x"},"d":{"$all":[[]]},"e":{"$keyMapMatch":{"$eq":"k"}},"f":{"$allMatch":{"g":1}}}"#,
            r#"{"$and":[{"a":{"$mod":[2,-1]}},{"b":{"$type":"none"}},{"c":{"$beginsWith":"x"}},{"d":{"$all":[[]]}},{"e":{"$keyMapMatch":{"":{"$eq":"k"}}}},{"f":{"$allMatch":{"g":{"$eq":1}}}}]}"#,
        ),
        (r#"{"$text":"x"}"#, r#"{"$default":{"$text":"x"}}"#),
    ] {
        let compiled = Selector::new(&json(selector)).unwrap();
        assert_eq!(to_string(&compiled.to_json()), normal, "{selector}");
        let again = Selector::new(&compiled.to_json()).unwrap();
        for document in [r#"{"a":1}"#, r#"{"a":[{"b":1},2],"b":"x"}"#, r#"{"b":1}"#, r#"{"a":{"b":1,"c":3}}"#] {
            let document = json(document);
            assert_eq!(again.matches(&document), compiled.matches(&document), "{selector}");
        }
    }
    let negated = Selector::new(&json(r#"{"$not":{"$text":"x"}}"#)).unwrap_err().refused();
    assert_eq!(negated.error, "bad_arg");
}

#[test]
fn indexes_are_read_from_design_documents() {
    let names = |views: &str| view("_design/d", views).iter().map(|index| index.name().to_owned()).collect::<Vec<_>>();
    let map = |map: &str| format!(r#"{{"i":{{"map":{map},"reduce":"_count","options":{{"def":{{"fields":[]}}}}}}}}"#);
    assert_eq!(names(&map(r#"{"fields":{"a":"asc"},"partial_filter_selector":{}}"#)), ["i"]);
    for none in [
        r#"{"i":1}"#.to_owned(),
        r#"{"i":{"map":"function(doc){}"}}"#.to_owned(),
        r#"{"i":{"map":{"fields":{"a":"asc"}}}}"#.to_owned(),
        "[]".to_owned(),
        map(r#"{}"#),
        map(r#"{"fields":["a"]}"#),
        map(r#"{"fields":{"a..b":"asc"}}"#),
        map(r#"{"fields":{"a":"asc"},"partial_filter_selector":{"a":{"$bad":1}}}"#),
        map(r#"{"fields":{"a":"asc"},"partial_filter_selector":1}"#),
    ] {
        assert!(names(&none).is_empty(), "{none}");
    }
    let other = json(r#"{"language":"javascript","views":{"i":{"map":{"fields":{"a":"asc"}},"options":{}}}}"#);
    assert!(Index::of_design_document("_design/d", &other, false).is_empty());
    // A definition written by an older CouchDB.
    let old = view("_design/d", &map(r#"{"fields":{"a":"asc"},"selector":{"b":1}}"#)).remove(0);
    assert!(old.partial().is_some());
    let key = |document: &str| old.key(&json(document), &|| false).unwrap().map(|key| to_string(&Value::Array(key)));
    assert_eq!(key(r#"{"_id":"x","a":[1],"b":1}"#).as_deref(), Some("[[1]]"));
    assert_eq!(key(r#"{"_id":"x","a":1,"b":2}"#), None);
    assert_eq!(key(r#"{"_id":"x","b":1}"#), None);
    assert_eq!(key(r#"{"_id":"_design/x","a":1,"b":1}"#), None);
    assert!(old.key(&json(r#"{"a":1,"b":1}"#), &|| true).is_ok(), "too short to be stopped");
    // Indexes of a partitioned database are partitioned by default.
    let document = |options: &str| {
        json(&format!(r#"{{"language":"query","options":{options},"views":{}}}"#, map(r#"{"fields":{}}"#)))
    };
    for (options, partitioned) in [("{}", true), (r#"{"partitioned":false}"#, false), (r#"{"partitioned":1}"#, true)] {
        assert_eq!(Index::of_design_document("_design/d", &document(options), true)[0].is_partitioned(), partitioned);
    }
}

#[test]
fn indexes_are_put_into_design_documents_and_taken_out() {
    let request = |body: &str| IndexRequest::parse(&json(body), &|| false).unwrap();
    let first = request(r#"{"index":{"fields":["a"]},"name":"a","ddoc":"d"}"#);
    let made = first.put_into(None, false).unwrap().unwrap();
    assert_eq!(first.put_into(Some(&made), false), Ok(None));
    let second = request(r#"{"index":{"fields":["b"]},"name":"b","ddoc":"_design/d"}"#);
    assert_eq!((first.ddoc(), second.ddoc()), ("_design/d", "_design/d"));
    // Special members are removed; members of other programs stay.
    let mut stored = to_string(&made).replacen('{', r#"{"_id":"_design/d","_rev":"1-x","by":"us","#, 1);
    let both = second.put_into(Some(&json(&stored)), false).unwrap().unwrap();
    assert_eq!(both.get("_id"), None);
    assert_eq!(both.get("by"), Some(&Value::String("us".into())));
    let indexes = Index::of_design_document("_design/d", &both, false);
    assert_eq!(indexes.iter().map(Index::name).collect::<Vec<_>>(), ["a", "b"]);
    for index in &indexes {
        let own = Index::of_view("_design/d", &both, index.name(), false).unwrap();
        assert_eq!((&own, own.to_json()), (index, index.to_json()));
    }
    assert_eq!(Index::of_view("_design/d", &both, "c", false), None);
    let left = without_index(&both, "a").unwrap();
    assert_eq!(to_string(left.get("views").unwrap()).matches("_count").count(), 1);
    assert_eq!(to_string(&without_index(&left, "b").unwrap()), r#"{"by":"us","language":"query"}"#);
    assert_eq!(without_index(&made, "a"), None);
    assert_eq!(without_index(&made, "none").map(|left| to_string(&left)), Some(to_string(&made)));
    stored = stored.replace("query", "javascript");
    let refused = second.put_into(Some(&json(&stored)), false).unwrap_err();
    assert_eq!(refused.error, "invalid_ddoc_lang");
    assert_eq!(
        refused.reason,
        "Existing design doc has an invalid language: {<<108,97,110,103,117,97,103,101>>,<<106,97,118,97,115,99,114,105,112,116>>}"
    );
    let partitioned = request(r#"{"index":{"fields":["a"]},"partitioned":true}"#);
    assert_eq!(partitioned.put_into(None, false).unwrap_err().error, "error_saving_ddoc");
    let made = partitioned.put_into(None, true).unwrap().unwrap();
    assert_eq!(to_string(made.get("options").unwrap()), r#"{"partitioned":true}"#);
    assert_eq!(partitioned.put_into(Some(&made), true), Ok(None));
    assert_eq!(first.put_into(Some(&made), true).unwrap_err().error, "invalid_partitioned_option");
}

#[test]
fn requests_that_are_refused() {
    for (body, error) in [
        (r#"{"selector":{},"fields":[{"a":1}]}"#, "invalid_field"),
        (r#"{"selector":{},"fields":["a."]}"#, "invalid_field_name"),
        (r#"{"selector":{},"sort":[""]}"#, "invalid_sort_field"),
        (r#"{"selector":{},"use_index":["a",1]}"#, "invalid_index_name"),
        (r#"{"selector":{},"use_index":"a/b/c"}"#, "invalid_index_name"),
        (r#"{"selector":{},"partition":1}"#, "illegal_partition"),
        (r#"{"selector":{},"partition":"_x"}"#, "illegal_partition"),
        (r#"{"selector":{},"r":1.0}"#, "invalid_pos_integer"),
        (r#"{"selector":{},"sort":null}"#, "invalid_sort_json"),
    ] {
        assert_eq!(find(body).unwrap_err().error, error, "{body}");
    }
    assert_eq!(find(r#"{"selector":{},"limit":99999999999999999999}"#).unwrap().limit, u64::MAX);
    assert_eq!(find(r#"{"selector":{},"use_index":"_design/a/b"}"#).unwrap().use_index, ["a", "b"]);
    assert_eq!(find(r#"{"selector":{},"use_index":["_design/a"]}"#).unwrap().use_index, ["_design/a"]);
    let both = Find::parse(&json(r#"{"selector":{},"partition":"p"}"#), Some("p"), &|| false).unwrap();
    assert_eq!(both.partition.as_deref(), Some("p"));
    for query in [[("limit", "0")], [("skip", "-1")], [("limit", "1.0")]] {
        assert_eq!(Listing::parse(query).unwrap_err().status, 500);
    }
    assert!(Listing::parse([("limit", "1"), ("limit", "2"), ("x", "y")]).is_ok());
    assert!(Listing::parse([("limit", "99999999999999999999"), ("skip", "99999999999999999999")]).is_ok());
    assert_eq!(parse_bulk_delete(&json(r#"{"docids":[null]}"#)).unwrap_err().error, "invalid_index_name");
    assert_eq!(parse_bulk_delete(&json(r#"{"docids":[],"x":1}"#)).unwrap_err().error, "invalid_key");
    // After `stop`, no regular expression is compiled.
    let stopped = Find::parse(&json(r#"{"selector":{"a":{"$regex":"x"}}}"#), None, &|| true).unwrap_err();
    assert_eq!((stopped.status, stopped.error), (400, "invalid_selector"));
}

#[test]
fn numbers_of_documents() {
    let indexes =
        [Index::all_docs(), view("_design/d", r#"{"i":{"map":{"fields":{"a":"asc"}},"options":{}}}"#).remove(0)];
    let catalog = Catalog { database: "db", partitioned: false, indexes: &indexes };
    let count = |selector: &str| {
        let find = Find::parse_count(&json(&format!(r#"{{"selector":{selector}}}"#)), None, &|| false).unwrap();
        let plan = plan(&find, &catalog).unwrap();
        (plan.counts_rows(), plan.covering)
    };
    assert_eq!(count(r#"{"a":{"$gt":1}}"#), (true, true));
    assert_eq!(count(r#"{"a":{"$in":[1]}}"#), (false, true));
    assert_eq!(count(r#"{"a":1,"b":1}"#), (false, false));
    assert_eq!(count("{}"), (false, false));
    for body in [r#"{"selector":{},"limit":1}"#, r#"{"selector":{},"fields":["a"]}"#, r#"{"selector":{},"sort":["a"]}"#]
    {
        assert_eq!(Find::parse_count(&json(body), None, &|| false).unwrap_err().error, "invalid_key");
    }
    let find = Find::parse_count(&json(r#"{"selector":{},"execution_stats":true}"#), None, &|| false).unwrap();
    let stats = ExecutionStats { keys_examined: 2, docs_examined: 2, results_returned: 2, time_ms: 0.5 };
    assert_eq!(
        to_string(&count_answer(&find, &indexes[0], 2, &stats)),
        r#"{"count":2,"execution_stats":{"total_keys_examined":2,"total_docs_examined":2,"total_quorum_docs_examined":0,"results_returned":2,"execution_time_ms":0.500},"warning":"No matching index found, create an index to optimize query time."}"#
    );
}

#[test]
fn what_stands_behind_the_documents() {
    let find = find(r#"{"selector":{},"r":2,"execution_stats":true}"#).unwrap();
    let stats = ExecutionStats { keys_examined: 21, docs_examined: 21, results_returned: 2, time_ms: f64::NAN };
    let mut out = flatbed_mango::HEAD.as_bytes().to_vec();
    write_tail(&tail(&find, &Index::all_docs(), "nil", &stats), &mut out);
    let expected = [
        "{\"docs\":[\r\n],\r\n\"bookmark\": \"nil\",\r\n\"execution_stats\": {\"total_keys_examined\":21,\"total_docs_examined\":0,",
        "\"total_quorum_docs_examined\":21,\"results_returned\":2,\"execution_time_ms\":0.000},\r\n\"warning\": \"No matching index ",
        "found, create an index to optimize query time.\\nThe number of documents examined is high in proportion to the number of ",
        "results returned. Consider adding a more specific index to improve this.\"}\r\n",
    ];
    assert_eq!(String::from_utf8(out).unwrap(), expected.concat());
    let stats = ExecutionStats { docs_examined: 20, ..stats };
    assert_eq!(warning(&find, &Index::all_docs(), &stats).unwrap().lines().count(), 1);
    let mut out = flatbed_mango::HEAD.as_bytes().to_vec();
    write_tail(&[], &mut out);
    assert_eq!(String::from_utf8(out).unwrap(), "{\"docs\":[\r\n]}\r\n");
}

#[test]
fn explained_without_an_index() {
    let indexes =
        [Index::all_docs(), view("_design/d", r#"{"i":{"map":{"fields":{"a":"asc"}},"options":{}}}"#).remove(0)];
    let catalog = Catalog { database: "db", partitioned: false, indexes: &indexes };
    let answer = explain(&find(r#"{"selector":{"b":1},"sort":["b"]}"#).unwrap(), &catalog).unwrap();
    assert_eq!(answer.get("index"), Some(&Value::Null));
    assert_eq!(answer.get("mrargs"), None);
    let candidates = to_string(answer.get("index_candidates").unwrap());
    assert_eq!(candidates.matches("field_mismatch").count(), 2, "{candidates}");
    let text_search = explain(&find(r#"{"selector":{"$text":"x","a":1}}"#).unwrap(), &catalog).unwrap();
    assert!(to_string(&text_search).contains("needs_text_search"));
    let none = Find { allow_fallback: false, ..find(r#"{"selector":{"b":1}}"#).unwrap() };
    let refused = explain(&none, &catalog).unwrap_err();
    assert_eq!(refused.reason, "You must specify an index with the `use_index` parameter.");
}

#[test]
fn an_index_covers_no_field_that_is_shown_under_another_name() {
    let mut indexes = view("_design/d", r#"{"i":{"map":{"fields":{"a.0":"asc","a.00":"asc"}},"options":{}}}"#);
    indexes.push(Index::all_docs());
    let catalog = Catalog { database: "db", partitioned: false, indexes: &indexes };
    for (field, is_covered) in [("a.0", true), ("a.00", false)] {
        let find = find(&format!(r#"{{"selector":{{"a.0":1,"a.00":1}},"fields":["{field}"]}}"#)).unwrap();
        assert_eq!(plan(&find, &catalog).unwrap().covering, is_covered, "{field}");
    }
}

fn any_json() -> impl Strategy<Value = Value<'static>> {
    let names = prop_oneof![
        Just("index"),
        Just("fields"),
        Just("partial_filter_selector"),
        Just("name"),
        Just("ddoc"),
        Just("type"),
        Just("selector"),
        Just("use_index"),
        Just("bookmark"),
        Just("sort"),
        Just("limit"),
        Just("language"),
        Just("views"),
        Just("map"),
        Just("options"),
        Just("a"),
        Just("a.b"),
        Just("_id"),
        Just("$and"),
        Just("$or"),
        Just("$not"),
        Just("$in"),
        Just("$eq"),
        Just("$elemMatch"),
        Just("$gt"),
        Just("$exists"),
        Just(""),
        Just("docids"),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        prop_oneof![Just("0"), Just("-1"), Just("1.5"), Just("1e300"), Just("99999999999999999999")]
            .prop_map(|number| Value::Number(number.into())),
        prop_oneof![Just("asc"), Just("query"), Just("json"), Just("a"), Just("_design/d"), Just("é\u{ffff}")]
            .prop_map(|text| Value::String(text.into())),
    ];
    leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            1 => prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            3 => prop::collection::btree_map(names.clone(), inner, 0..5)
                .prop_map(|members| Value::Object(members.into_iter().map(|(name, value)| (name.into(), value)).collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    /// Any request and any design document get an answer without a panic.
    #[test]
    fn anything_is_answered(
        selector in any_json(), body in any_json(), document in any_json(), view in any_json(), sort in any_json(),
        use_index in any_json(),
    ) {
        let nobody = || false;
        let _ = IndexRequest::parse(&body, &nobody).map(|request| request.put_into(Some(&document), false));
        let _ = Find::parse(&body, Some("p"), &nobody);
        let _ = parse_bulk_delete(&body);
        let _ = without_index(&document, "a");
        let mut indexes = Index::of_design_document("_design/x", &document, false);
        let wrapped = format!(r#"{{"language":"query","views":{{"a":{{"map":{},"options":{{}}}}}}}}"#, to_string(&view));
        indexes.extend(Index::of_design_document("_design/d", &json(&wrapped), false));
        let more = r#"{"language":"query","views":{"b":{"map":{"fields":{"a":"asc","_id":"asc"}},"options":{}}}}"#;
        indexes.extend(Index::of_design_document("_design/e", &json(more), false));
        indexes.push(Index::all_docs());
        for index in &indexes {
            let _ = (index.to_json(), index.key(&document, &nobody));
        }
        let catalog = Catalog { database: "db", partitioned: false, indexes: &indexes };
        for member in [r#""limit":1"#.to_owned(), format!(r#""sort":{}"#, to_string(&sort)), format!(r#""use_index":{}"#, to_string(&use_index))] {
            let Ok(find) = Find::parse(&json(&format!(r#"{{"selector":{},{member}}}"#, to_string(&selector))), None, &nobody) else { continue };
            let _ = explain(&find, &catalog);
            if let Ok(plan) = plan(&find, &catalog) {
                let _ = plan.document_of("x", &[Value::Null, document.clone()]);
            }
            if let Some(fields) = &find.fields {
                let _ = Projector::new(fields).project(&document);
            }
        }
    }
}

#[test]
fn filters_of_indexes_are_compiled_until_it_is_too_late() {
    let body = |language: &str, filter: &str| {
        json(&format!(
            r#"{{"language":"{language}","views":{{"a":{{"map":{{"fields":{{"a":"asc"}}}}}},
                "b":{{"map":{{"fields":{{"b":"asc"}},"partial_filter_selector":{filter}}}}}}}}}"#
        ))
    };
    let regex = r#"{"b":{"$regex":"x"}}"#;
    assert!(Index::compiles_unless(&body("query", regex), &|| false));
    assert!(!Index::compiles_unless(&body("query", regex), &|| true));
    // Invalid selectors and design documents of other languages have nothing to compile.
    assert!(Index::compiles_unless(&body("query", r#"{"$bad":1}"#), &|| true));
    assert!(Index::compiles_unless(&body("javascript", regex), &|| true));
    assert!(Index::compiles_unless(&json("{}"), &|| true));
}
