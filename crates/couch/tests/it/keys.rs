//! `keys` and wrong parameters of lists and views beyond the recordings, after CouchDB 3.5's source.

use serde_json::{Value, json};

use crate::support::{Running, Store};

const NULL: Value = Value::Null;
const TOGETHER: &str = "`keys` is incompatible with `key`, `start_key` and `end_key`";

async fn serve() -> Running {
    let server = Store::new().serve_database().await;
    for (id, n) in [("a", 1), ("b", 2), ("c", 3), ("_local/a", 9)] {
        server.ok("PUT", &format!("/db/{id}"), json!({"n": n})).await;
    }
    let views = json!({"n": {"map": "function (doc) { emit(doc.n); }"}, "sum": {"map": "function (doc) { emit(doc.n, doc.n); }", "reduce": "_sum"}});
    server.ok("PUT", "/db/_design/p", json!({"views": views})).await;
    server.ok("PUT", "/db/_design/z", json!({})).await;
    let gone = server.ok("PUT", "/db/gone", json!({})).await;
    server.ok("DELETE", &format!("/db/gone?rev={}", gone["rev"].as_str().unwrap()), NULL).await;
    server
}

/// Returns the rows' keys as JSON, or the error's reason.
fn keys_or_reason(answer: &Value) -> String {
    let Some(rows) = answer["rows"].as_array() else { return answer["reason"].as_str().unwrap().to_owned() };
    rows.iter().map(|row| row["key"].to_string()).collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn one_key_and_several() {
    let server = serve().await;
    let view = "_design/p/_view/n";
    let cases = [
        // In both the body and the query string, or repeated.
        ("POST", format!("{view}?keys=[1]"), r#"{"keys":[2,3]}"#, TOGETHER),
        ("POST", format!("{view}?keys=[1,2]"), r#"{"keys":[3]}"#, TOGETHER),
        ("POST", format!("{view}?keys=[1,2]"), r#"{"keys":[3,1]}"#, "1 2"),
        ("POST", format!("{view}?keys=[1]"), r#"{"keys":[3]}"#, "1"),
        ("POST", format!("{view}?keys=[]"), r#"{"keys":[3]}"#, ""),
        ("GET", format!("{view}?keys=[1]&keys=[2,3]"), "", TOGETHER),
        ("GET", format!("{view}?keys=[2,3]&keys=[1]"), "", TOGETHER),
        ("GET", format!("{view}?keys=[3]&startkey=1"), "", "1 2 3"),
        ("GET", "_design/p/_view/sum?keys=[3]".to_owned(), "", "null"),
        (
            "GET",
            "_design/p/_view/sum?keys=[3,1]".to_owned(),
            "",
            "Multi-key fetches for reduce views must use `group=true`",
        ),
        ("POST", r#"_all_docs?keys=["b"]"#.to_owned(), r#"{"keys":["a"]}"#, TOGETHER),
        ("POST", r#"_all_docs?keys=["b","c"]"#.to_owned(), r#"{"keys":["a"]}"#, TOGETHER),
        ("POST", r#"_all_docs?keys=["zz"]"#.to_owned(), "{}", ""),
        ("POST", r#"_all_docs?keys=["b"]"#.to_owned(), "{}", r#""b""#),
        ("POST", "_all_docs".to_owned(), r#"{"key":"b","keys":["a"]}"#, r#""a""#),
        ("POST", "_all_docs".to_owned(), r#"{"keys":["zz"]}"#, r#""zz""#),
        ("POST", "_all_docs".to_owned(), r#"{"keys":null}"#, "`keys` body member must be an array."),
        ("GET", r#"_all_docs?keys=["a"]&keys=["b"]"#.to_owned(), "", TOGETHER),
        ("GET", r#"_all_docs?key="b"&keys=["a"]"#.to_owned(), "", r#""a""#),
        ("GET", r#"_all_docs?keys=["a"]&key="a""#.to_owned(), "", r#""a""#),
        ("GET", r#"_all_docs?keys=["a"]&key="b""#.to_owned(), "", TOGETHER),
        ("GET", r#"_all_docs?keys=["a","b"]&key="a""#.to_owned(), "", TOGETHER),
        ("GET", "_all_docs?keys=null".to_owned(), "", "`keys` parameter must be an array."),
        // `skip` and `limit` count all keys, including those without rows.
        (
            "GET",
            r#"_design_docs?keys=["a","_design/p","_design/z"]&skip=1"#.to_owned(),
            "",
            r#""_design/p" "_design/z""#,
        ),
        ("GET", r#"_design_docs?keys=["a","_design/p"]&limit=1"#.to_owned(), "", ""),
        ("GET", r#"_local_docs?keys=["a","_local/a","_local/b"]"#.to_owned(), "", r#""_local/a" "_local/b""#),
        ("GET", r#"_local_docs?keys=["a","_local/a","_local/b"]&skip=1&limit=1"#.to_owned(), "", r#""_local/a""#),
        ("GET", r#"_local_docs?keys=["a"]"#.to_owned(), "", ""),
    ];
    for (method, path, body, expected) in cases {
        let answer = server.call(method, &format!("/db/{path}"), body).await.json();
        assert_eq!(keys_or_reason(&answer), expected, "{method} {path} {body}: {answer}");
    }
}

#[tokio::test]
async fn local_documents_among_all() {
    let server = serve().await;
    let keys = json!({"keys": ["a", "_local/a", 1, "_local/none", "zz"]});
    let answer = server.ok("POST", "/db/_all_docs?include_docs=true", keys).await;
    assert_eq!(keys_or_reason(&answer), r#""a" "_local/a" 1 "_local/none" "zz""#);
    let row = json!({"id": "_local/a", "key": "_local/a", "value": {"rev": "0-1"}, "doc": {"_id": "_local/a", "_rev": "0-1", "n": 9}});
    assert_eq!(answer["rows"][1], row);
    assert_eq!((&answer["rows"][0]["doc"]["n"], &answer["rows"][3]["error"]), (&json!(1), &json!("not_found")));
    let path = r#"/db/_all_docs?keys=["_local/a"]"#;
    assert_eq!(server.ok("GET", path, NULL).await["rows"][0]["value"], json!({"rev": "0-1"}));
}

#[tokio::test]
async fn one_key_among_several_queries() {
    let server = serve().await;
    let cases = [
        (r#"{"keys":["zz"]}"#, ""),
        (r#"{"keys":["gone"]}"#, ""),
        (r#"{"keys":["a"]}"#, r#""a""#),
        (r#"{"keys":["b"],"startkey":"a"}"#, r#""a" "b""#),
        (r#"{"keys":["a"],"startkey":"b"}"#, ""),
        (r#"{"keys":["zz","a"]}"#, r#""zz" "a""#),
        (r#"{"keys":"a"}"#, "`keys` must be an array of strings."),
        (r#"{"keys":null}"#, "`keys` must be an array of strings."),
    ];
    let ask = async |path: &str, body: String| server.call("POST", path, &body).await;
    for (query, expected) in cases {
        let answer = ask("/db/_all_docs/queries", format!(r#"{{"queries":[{query}]}}"#)).await.json();
        let found = if answer["results"].is_array() { &answer["results"][0] } else { &answer };
        assert_eq!(keys_or_reason(found), expected, "{query}: {answer}");
    }
    let answer = ask("/db/_design_docs/queries", r#"{"queries":[{"keys":["_design/p"]},{"keys":["a"]}]}"#.to_owned());
    let answer = answer.await.json();
    assert_eq!(
        (keys_or_reason(&answer["results"][0]), keys_or_reason(&answer["results"][1])),
        (r#""_design/p""#.to_owned(), String::new())
    );
    for list in ["_all_docs", "_design_docs", "_local_docs", "_design/p/_view/n"] {
        let path = format!("/db/{list}/queries");
        for wrong in ["1", "null", "{}"] {
            let answer = ask(&path, format!(r#"{{"queries":{wrong}}}"#)).await;
            assert_eq!((answer.status, &*answer.text("reason")), (400, "`queries` member must be an array."), "{path}");
        }
        let answer = ask(&format!("{path}?limit=x"), r#"{"queries":[]}"#.to_owned()).await;
        assert_eq!((answer.status, &*answer.text("reason")), (400, "Invalid value for integer: \"x\""), "{path}");
    }
}

#[tokio::test]
async fn offset_of_keys_that_are_not_there() {
    let server = serve().await;
    let cases =
        [("keys=[0,9]", 3), ("keys=[9,0]", 0), ("keys=[0,9]&descending=true", 3), ("keys=[9,0]&descending=true", 0)];
    let cases =
        cases.into_iter().chain([("keys=[9,2.5]", 2), ("keys=[9,1.5]&skip=1", 2), ("keys=[]", 0), ("keys=[9,2]", 1)]);
    for (query, expected) in cases {
        let answer = server.ok("GET", &format!("/db/_design/p/_view/n?{query}"), NULL).await;
        assert_eq!(answer["offset"], expected, "{query}");
    }
}

#[tokio::test]
async fn wrong_parameters_are_printed_as_erlang_does() {
    let server = serve().await;
    let names = ["descending", "reduce", "group", "include_docs", "inclusive_end", "conflicts", "sorted", "update_seq"];
    for name in names {
        let (body, reason) = (format!(r#"{{"{name}":"yes"}}"#), "Invalid boolean parameter: \"yes\"");
        for path in ["_design/p/_view/n", "_all_docs", "_local_docs"] {
            let answer = server.call("POST", &format!("/db/{path}"), &body).await;
            assert_eq!((answer.status, &*answer.text("reason")), (400, reason), "{path} {body}");
        }
        let answer = server.call("POST", "/db/_all_docs/queries", &format!(r#"{{"queries":[{body}]}}"#)).await;
        assert_eq!((answer.status, &*answer.text("reason")), (400, reason), "{body}");
    }
    for (body, reason) in [
        (r#"{"include_docs":["t"]}"#, "Invalid boolean parameter: [<<\"t\">>]"),
        (r#"{"include_docs":null}"#, "Invalid boolean parameter: null"),
        (r#"{"limit":[1]}"#, "Invalid value for integer: [1]"),
        (r#"{"limit":{"a":[{}]}}"#, "Invalid value for integer: {[{<<\"a\">>,[{[]}]}]}"),
        (&format!(r#"{{"limit":["{}"]}}"#, "x".repeat(80)), "Invalid value for integer: [...]"),
    ] {
        let answer = server.call("POST", "/db/_design/p/_view/n", body).await;
        assert_eq!((answer.status, &*answer.text("reason")), (400, reason), "{body}");
    }
    let answer = server.call("GET", "/db/_design/p/_info/x", "").await;
    assert_eq!((answer.status, &*answer.text("reason")), (405, "Only GET allowed"));
}
