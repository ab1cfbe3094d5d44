//! The parameter parsing of each endpoint, as tables from CouchDB 3.5's source.

use crate::support::{Answer, Store};
use serde_json::{Value, json};

const NULL: Value = Value::Null;

/// The way in which an endpoint parses a boolean.
#[derive(Debug, Clone, Copy)]
enum BooleanSyntax {
    /// `true` turns it on; other values are ignored. (`parse_doc_query`, `parse_changes_query`,
    /// `parse_global_changes_query`)
    Switch,
    /// The same, with a case-insensitive name. (`parse_changes_query`)
    AnyCaseSwitch,
    /// `true` or `false`, case-insensitive; other values are refused. (`couch_mrview_http:parse_boolean`)
    Boolean,
    /// `true` or `false`, case-sensitive; other values are refused with this error and reason.
    Exact(&'static str, &'static str),
}

use BooleanSyntax::{AnyCaseSwitch, Boolean, Exact, Switch};

const STABLE: BooleanSyntax = Exact("query_parse_error", "Invalid value for `stable`.");
const UPDATE: BooleanSyntax = Exact("query_parse_error", "Invalid value for `update`.");

/// Method, path, way of parsing, and parameter names. `!` after a name: `true` changes the answer in this test.
const TABLE: &[(&str, &str, BooleanSyntax, &str)] = &[
    (
        "GET",
        "/db/a",
        Switch,
        "attachments! meta! revs! local_seq! revs_info! conflicts! deleted_conflicts latest att_encoding_info",
    ),
    ("GET", "/db/a?open_revs=all", Switch, "revs! attachments! latest att_encoding_info"),
    ("POST", "/db/_bulk_get", Switch, "revs! attachments! latest att_encoding_info"),
    ("GET", "/db/_changes", AnyCaseSwitch, "descending! include_docs! conflicts attachments att_encoding_info"),
    ("GET", "/_db_updates", Switch, "descending"),
    (
        "GET",
        "/db/_all_docs",
        Boolean,
        "descending! include_docs! update_seq! inclusive_end conflicts attachments att_encoding_info sorted group reduce",
    ),
    ("GET", "/db/_all_docs", STABLE, "stable"),
    ("GET", "/db/_all_docs", UPDATE, "update"),
    ("GET", "/db/_design_docs", Boolean, "descending include_docs! inclusive_end conflicts attachments"),
    ("GET", "/db/_local_docs", Boolean, "descending inclusive_end"),
    (
        "GET",
        "/db/_design/d/_view/v",
        Boolean,
        "descending! include_docs! update_seq! inclusive_end conflicts attachments att_encoding_info sorted group reduce",
    ),
    ("GET", "/db/_design/d/_view/v", STABLE, "stable"),
    ("GET", "/db/_design/d/_view/v", UPDATE, "update"),
    ("GET", "/_all_dbs", Boolean, "descending inclusive_end"),
    ("GET", "/_dbs_info", Boolean, "descending inclusive_end"),
];

fn refused(answer: &Answer) -> Option<(u16, String, String)> {
    (answer.status != 200).then(|| (answer.status, answer.text("error"), answer.text("reason")))
}

#[tokio::test]
async fn booleans_are_read_as_couchdb_reads_them() {
    let server = Store::new().serve_database().await;
    let file = json!({"content_type": "text/plain", "data": "aGk="});
    server.ok("PUT", "/db/a", json!({"_attachments": {"f": file}})).await;
    let other = json!({"_id": "a", "_rev": "1-00000000000000000000000000000000"});
    server
        .ok("POST", "/db/_bulk_docs", json!({"new_edits": false, "docs": [other, {"_id": "b", "_rev": "1-b"}]}))
        .await;
    let views = json!({"views": {"v": {"map": "function (doc) { emit(doc._id); }"}}});
    server.ok("PUT", "/db/_design/d", views).await;
    let mut client = server.connect().await;
    for (method, path, parsed, names) in TABLE {
        let body: &[u8] = if *method == "POST" { br#"{"docs":[{"id":"a"}]}"# } else { b"" };
        let plain = client.call(method, path, &[], body).await;
        assert_eq!(plain.status, 200, "{path}: {plain:?}");
        for name in names.split(' ') {
            let (name, shows) = name.strip_suffix('!').map_or((name, false), |name| (name, true));
            let separator = if path.contains('?') { '&' } else { '?' };
            let mut with = async |name: &str, value: &str| {
                let path = format!("{path}{separator}{name}={value}");
                client.call(method, &path, &[], body).await
            };
            let on = with(name, "true").await;
            // Some parameters do not fit the request but are parsed.
            let reason = refused(&on).map(|(.., reason)| reason).unwrap_or_default();
            assert!(
                !reason.starts_with("Invalid boolean") && !reason.starts_with("Invalid value"),
                "{path} {name}: {on:?}"
            );
            assert!(!shows || (on.status == 200 && on.body != plain.body), "{path} {name}: {on:?}");
            for value in ["True", "False", "1", ""] {
                let told = with(name, value).await;
                match parsed {
                    Switch | AnyCaseSwitch => {
                        assert_eq!(refused(&told), None, "{path} {name}={value}");
                        let is_feed = path.starts_with("/_db_updates");
                        assert!(is_feed || told.body == plain.body, "{path} {name}={value}: {told:?}");
                    }
                    Boolean if value == "True" => {
                        // Sizes and counters may change concurrently.
                        let is_same = path.starts_with("/_dbs_info") || told.body == on.body;
                        assert!(told.status == on.status && is_same, "{path} {name}={value}: {told:?}");
                    }
                    Boolean if value == "False" => assert_eq!(refused(&told), None, "{path} {name}={value}"),
                    Boolean => {
                        let printed = if value.is_empty() { "[]".to_owned() } else { format!("\"{value}\"") };
                        let reason = format!("Invalid boolean parameter: {printed}");
                        let expected = (400, "query_parse_error".to_owned(), reason);
                        assert_eq!(refused(&told), Some(expected), "{path} {name}={value}");
                    }
                    Exact(error, reason) => {
                        let expected = (400, (*error).to_owned(), (*reason).to_owned());
                        assert_eq!(refused(&told), Some(expected), "{path} {name}={value}");
                    }
                }
            }
            if let AnyCaseSwitch = parsed {
                let told = with(&name.to_uppercase(), "true").await;
                assert_eq!((told.status, &told.body), (on.status, &on.body), "{path} {name}");
            }
        }
    }
}

/// Path, parameter, value, and CouchDB's error and reason.
const REFUSED: &[(&str, &str, &str, &str, &str)] = &[
    ("/db/a", "rev", "x", "bad_request", "Invalid rev format"),
    ("/db/a", "open_revs", "x", "bad_request", "invalid UTF-8 JSON"),
    ("/db/a", "atts_since", "x", "bad_request", "invalid UTF-8 JSON"),
    ("/db/_changes", "limit", "-1", "bad_request", "The limit value should be a non-negative integer"),
    ("/db/_changes", "LIMIT", "x", "bad_request", "The limit parameter should be a non-negative integer"),
    ("/db/_changes", "timeout", "", "bad_request", "The timeout parameter should be a non-negative integer"),
    ("/db/_changes", "seq_interval", "0", "bad_request", "invalid_seq_interval"),
    ("/_db_updates", "limit", "x", "bad_request", "invalid_integer"),
    ("/_db_updates", "timeout", "-1", "bad_request", "invalid_integer"),
    ("/db/_all_docs", "limit", "x", "query_parse_error", "Invalid value for integer: \"x\""),
    ("/db/_all_docs", "skip", "-1", "query_parse_error", "Invalid value for positive integer: \"-1\""),
    ("/db/_all_docs", "startkey", "x", "bad_request", "invalid UTF-8 JSON"),
    ("/db/_design/d/_view/v", "limit", "", "query_parse_error", "Invalid value for integer: []"),
    ("/db/_design/d/_view/v", "group_level", "1.5", "query_parse_error", "Invalid value for integer: \"1.5\""),
    ("/db/_design/d/_view/v", "stale", "true", "query_parse_error", "Invalid value for `stale`."),
    ("/_all_dbs", "limit", "x", "query_parse_error", "Invalid value for integer: \"x\""),
    ("/_dbs_info", "skip", "-1", "query_parse_error", "Invalid value for positive integer: \"-1\""),
    ("/_uuids", "count", "x", "bad_request", "count must be a positive integer"),
    ("/_uuids", "count", "-1", "bad_request", "count must be a positive integer"),
    ("/_uuids", "count", "1001", "bad_request", "count parameter too large"),
    ("/_uuids", "count", "99999999999999999999", "bad_request", "count parameter too large"),
];

#[tokio::test]
async fn others_are_refused_as_couchdb_refuses_them() {
    let server = Store::new().serve_database().await;
    server.ok("PUT", "/db/a", json!({})).await;
    let views = json!({"views": {"v": {"map": "function (doc) { emit(doc._id); }"}}});
    server.ok("PUT", "/db/_design/d", views).await;
    let mut client = server.connect().await;
    for &(path, name, value, error, reason) in REFUSED {
        let told = client.call("GET", &format!("{path}?{name}={value}"), &[], b"").await;
        let expected = (400, error.to_owned(), reason.to_owned());
        assert_eq!(refused(&told), Some(expected), "{path} {name}={value}");
    }
}

#[tokio::test]
async fn what_is_on_stays_on() {
    let server = Store::new().serve_database().await;
    server.ok("PUT", "/db/a", json!({})).await;
    for query in ["revs=true", "revs=true&revs=false", "revs=True&revs=true"] {
        assert!(server.ok("GET", &format!("/db/a?{query}"), NULL).await["_revisions"].is_object(), "{query}");
    }
    assert_eq!(server.ok("GET", "/db/a?revs=True", NULL).await.get("_revisions"), None);
}
