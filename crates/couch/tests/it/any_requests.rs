//! Random requests of routes, parameters and bodies. No handler panics, a 500 has an error word of CouchDB, and
//! refusals have CouchDB's form. `make fuzz` sends many more.

use flatbed_testkit::PATIENCE;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{ServerOptions, Store};

/// A request without its framing.
#[derive(Debug, Clone)]
struct RandomRequest {
    method: String,
    target: String,
    headers: Vec<(&'static str, String)>,
    body: String,
}

fn one_of(words: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::sample::select(words).prop_map(str::to_owned)
}

const SEGMENTS: &[&str] = &[
    "_all_docs",
    "_design",
    "_local",
    "_changes",
    "_bulk_docs",
    "_bulk_get",
    "_revs_diff",
    "_missing_revs",
    "_find",
    "_explain",
    "_index",
    "_count",
    "_security",
    "_purge",
    "_revs_limit",
    "_partition",
    "_view",
    "_show",
    "_list",
    "_update",
    "_rewrite",
    "_info",
    "_compact",
    "_local_docs",
    "_design_docs",
    "queries",
    "d",
    "a",
    "v",
    "file.txt",
    "%00",
    "%2F",
    "..",
    "_design%2Fd",
    "p:x",
    "_",
    "%ff",
    "a%20b",
    "_uuids",
    "_session",
    "_up",
    "_node",
    "_scheduler",
    "docs",
    "_users",
    "_dbs_info",
    "_membership",
    "_active_tasks",
    "_db_updates",
    "_replicate",
    "_utils",
];

const PARAMETERS: &[&str] = &[
    "key",
    "keys",
    "startkey",
    "endkey",
    "startkey_docid",
    "end_key_doc_id",
    "limit",
    "skip",
    "descending",
    "include_docs",
    "attachments",
    "conflicts",
    "revs",
    "revs_info",
    "open_revs",
    "latest",
    "rev",
    "atts_since",
    "att_encoding_info",
    "new_edits",
    "batch",
    "since",
    "feed",
    "timeout",
    "heartbeat",
    "style",
    "filter",
    "view",
    "doc_ids",
    "seq_interval",
    "group",
    "group_level",
    "reduce",
    "stable",
    "update",
    "update_seq",
    "inclusive_end",
    "count",
    "q",
    "n",
    "partitioned",
    "local_seq",
    "deleted_conflicts",
    "sorted",
    "format",
];

const VALUES: &[&str] = &[
    "true",
    "false",
    "0",
    "1",
    "-1",
    "18446744073709551616",
    "1e999",
    "null",
    "[]",
    "{}",
    "\"a\"",
    "[\"a\",1]",
    "{\"a\":{}}",
    "all",
    "1-a",
    "[\"1-a\"]",
    "now",
    "0-x",
    "normal",
    "longpoll",
    "_doc_ids",
    "_selector",
    "_view",
    "d/v",
    "%00",
    "%",
    "\"",
    "[",
    "all_docs",
    "1000000",
    "0.5",
    "\u{fc}",
    "a+b",
    "",
];

fn target() -> impl Strategy<Value = String> {
    let segment = prop_oneof![6 => one_of(SEGMENTS), 1 => "[a-z%0-9_.:~!$'()*,;=@-]{0,12}"];
    let parameter = (one_of(PARAMETERS), prop_oneof![5 => one_of(VALUES), 1 => "[ -~&&[^ #\"<>`]]{0,12}"]);
    let segments = prop::collection::vec(segment, 0..5);
    let database =
        prop_oneof![4 => Just("/db/".to_owned()), 1 => Just("/parts/".to_owned()), 1 => Just("/".to_owned())];
    (database, segments, prop::collection::vec(parameter, 0..4)).prop_map(|(database, segments, parameters)| {
        let mut target = database + &segments.join("/");
        for (at, (name, value)) in parameters.iter().enumerate() {
            // Bounds the wait of a feed.
            let value = value.replace([' ', '#'], "+");
            target += &format!("{}{name}={value}", if at == 0 { '?' } else { '&' });
        }
        target + if parameters.is_empty() { "?timeout=50" } else { "&timeout=50" }
    })
}

fn json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        3 => one_of(&["null", "true", "0", "-1", "1.5", "1e400", "\"a\"", "\"\"", "\"1-a\"", "\"_design/d\"", "\"\\u0000\"", "\"\\ud800\""]),
        1 => any::<i64>().prop_map(|number| number.to_string()),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let name = one_of(&[
            "_id",
            "_rev",
            "_deleted",
            "_revisions",
            "_attachments",
            "data",
            "stub",
            "follows",
            "length",
            "start",
            "ids",
            "docs",
            "id",
            "rev",
            "keys",
            "queries",
            "selector",
            "fields",
            "sort",
            "limit",
            "skip",
            "index",
            "bookmark",
            "$or",
            "$and",
            "$not",
            "$gt",
            "$eq",
            "$in",
            "$regex",
            "$elemMatch",
            "$mod",
            "$size",
            "doc_ids",
            "new_edits",
            "views",
            "map",
            "reduce",
            "filters",
            "validate_doc_update",
            "language",
            "members",
            "admins",
            "names",
            "roles",
            "key",
            "startkey",
            "a",
            "atts_since",
            "content_type",
            "revpos",
            "encoding",
            "digest",
            "type",
            "ddoc",
            "name",
        ]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(","))),
            prop::collection::vec((name, inner), 0..5).prop_map(|members| {
                let members: Vec<_> = members.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
                format!("{{{}}}", members.join(","))
            }),
        ]
    })
}

fn headers() -> impl Strategy<Value = Vec<(&'static str, String)>> {
    let header = prop_oneof![
        one_of(&["bytes=0-0", "bytes=-1", "bytes=5-2", "bytes=0-18446744073709551615", "bytes=a", "lines=1-2"])
            .prop_map(|value| ("range", value)),
        one_of(&["1-a", "\"1-a\"", "*", "x"]).prop_map(|value| ("if-match", value)),
        one_of(&["\"1-a\"", "W/\"x\"", "*"]).prop_map(|value| ("if-none-match", value)),
        one_of(&["application/json", "multipart/mixed", "multipart/related", "text/html", "*/*;q=0", ";"])
            .prop_map(|value| ("accept", value)),
        one_of(&["a", "a?rev=1-a", "/db/a", "_design/d", "%ff", ""]).prop_map(|value| ("destination", value)),
        one_of(&["AuthSession=x", "AuthSession=YTpiOmM", "AuthSession=; AuthSession=x"])
            .prop_map(|value| ("cookie", value)),
        one_of(&["Basic x", "Basic YTpi", "Bearer a.b.c", "Bearer", "x"]).prop_map(|value| ("authorization", value)),
        one_of(&["gzip", "deflate", "identity", "gzip, gzip"]).prop_map(|value| ("content-encoding", value)),
        one_of(&["5", "x", "0"]).prop_map(|value| ("last-event-id", value)),
        one_of(&["false", "true", "x"]).prop_map(|value| ("x-couch-full-commit", value)),
    ];
    prop::collection::vec(header, 0..3)
}

fn any_request() -> impl Strategy<Value = RandomRequest> {
    let kind = one_of(&[
        "application/json",
        "application/json; charset=utf-8",
        "text/plain",
        "multipart/related;boundary=b",
        "multipart/related",
        "multipart/form-data;boundary=\"b\"",
        "application/x-www-form-urlencoded",
        "x",
    ]);
    let kind = prop_oneof![6 => Just("application/json".to_owned()), 1 => kind];
    let part =
        json().prop_map(|text| format!("--b\r\ncontent-type: application/json\r\n\r\n{text}\r\n--b\r\n\r\nx\r\n--b--"));
    let body = prop_oneof![6 => json(), 1 => part, 1 => "[ -~]{0,40}", 1 => Just(String::new())];
    let method = prop_oneof![
        8 => one_of(&["GET", "PUT", "POST", "DELETE", "HEAD", "COPY"]),
        1 => one_of(&["OPTIONS", "PATCH", "TRACE", "X"]),
    ];
    (method, target(), headers(), kind, body).prop_map(|(mut method, target, mut headers, kind, body)| {
        if ["/db/?", "/parts/?"].iter().any(|database| target.starts_with(database)) && method == "DELETE" {
            // Other tests need the database.
            method = "GET".to_owned();
        }
        headers.push(("content-type", kind));
        RandomRequest { method, target, headers, body }
    })
}

/// Returns the answer up to the end of the connection; `None` on timeout.
async fn answer(address: std::net::SocketAddr, asked: &RandomRequest) -> Option<String> {
    let RandomRequest { method, target, headers, body } = asked;
    let mut request = format!("{method} {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    request += &format!("content-length: {}\r\n\r\n{body}", body.len());
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    // A feed may continue, so its head is enough.
    let mut piece = [0; 4096];
    let read = async {
        while !answer.windows(4).any(|end| end == b"\r\n\r\n") || matches!(answer.get(9), Some(b'4' | b'5')) {
            match stream.read(&mut piece).await {
                Ok(0) | Err(_) => break,
                Ok(count) => answer.extend_from_slice(&piece[..count]),
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.ok()?;
    Some(String::from_utf8_lossy(&answer).into_owned())
}

fn judged(asked: &RandomRequest, answer: Option<&str>) -> Result<(), TestCaseError> {
    let Some(answer) = answer else { return Err(TestCaseError::fail("no answer")) };
    let status: u16 = answer.get(9..12).and_then(|status| status.parse().ok()).unwrap_or(0);
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    // CouchDB answers 500 with its own words to some client errors.
    let has_word = status == 500 && (asked.method == "HEAD" || !body.contains("internal_server_error"));
    let is_allowed = (200..500).contains(&status) || [501, 503].contains(&status) || has_word;
    prop_assert!(is_allowed, "{status}: {answer}");
    // The HTTP library's refusals have no body.
    if status >= 400 && asked.method != "HEAD" && !body.is_empty() {
        let error: Option<Value> = serde_json::from_str(body).ok();
        let is_error = error.is_some_and(|error| error.get("error").is_some_and(Value::is_string));
        prop_assert!(is_error || answer.contains("transfer-encoding: chunked"), "{answer}");
    }
    Ok(())
}

#[test]
fn none_is_answered_by_what_has_failed() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let store = Store::new();
    let server = runtime.block_on(async {
        let server = store.serve(ServerOptions::default()).await;
        for (path, body) in [
            ("/db", ""),
            ("/parts?partitioned=true", ""),
            ("/db/a", r#"{"a":1,"_attachments":{"file.txt":{"data":"eHl6","content_type":"text/plain"}}}"#),
            ("/db/_design/d", r#"{"views":{"v":{"map":"function(d){emit(d.a,1)}","reduce":"_sum"}},"filters":{"a":"function(){return true}"},"shows":{"a":"function(){return 'x'}"},"updates":{"a":"function(d){return [d,'x']}"}}"#),
        ] {
            let made = server.call("PUT", path, body).await;
            assert!(made.status < 300, "{path}: {made:?}");
        }
        server
    });
    let config = Config { failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let ran = runner.run(&any_request(), |asked| {
        let answer = runtime.block_on(answer(server.address, &asked));
        judged(&asked, answer.as_deref())
    });
    if let Err(error) = ran {
        panic!("{error}");
    }
    runtime.block_on(server.stop());
}
