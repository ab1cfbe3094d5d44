//! The view of users of a database with channels over HTTP: a hidden document and a missing one have the same answers,
//! byte for byte, on each route of the table "Visibility for users" in docs/sync-gateway.md.

use std::collections::BTreeSet;

use base64::Engine;
use flatbed_layer::channels::{PrincipalKind, PrincipalWrite, SignsIn};
use flatbed_testkit::until;
use serde_json::{Value, json};

use crate::support::{Answer, Client, Layer, Running, ServerOptions, Store, soon};

pub(super) fn basic(name: &str) -> String {
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("{name}:test")))
}

pub(super) async fn ask(
    client: &mut Client,
    who: &str,
    method: &str,
    path: &str,
    more: &[(&str, &str)],
    body: &str,
) -> Answer {
    let authorization = basic(who);
    let mut headers = vec![("content-type", "application/json")];
    if !who.is_empty() {
        headers.push(("authorization", authorization.as_str()));
    }
    headers.retain(|(name, _)| !more.iter().any(|(other, _)| other == name));
    headers.extend(more);
    // Boxed, because the test's future contains those of all its calls.
    Box::pin(client.call(method, path, &headers, body.as_bytes())).await
}

/// Sends a request as the administrator and asserts success.
pub(super) async fn root(client: &mut Client, method: &str, path: &str, body: &Value) -> Value {
    let text = if body.is_null() { String::new() } else { body.to_string() };
    let answer = Box::pin(ask(client, "root", method, path, &[], &text)).await;
    assert!(answer.status < 300, "{method} {path}: {} {}", answer.status, answer.body);
    serde_json::from_str(&answer.body).unwrap_or(Value::Null)
}

/// The user `ann` has channel `A` and is a member of the database by her account only.
pub(super) async fn served(store: &Store) -> (Layer, Running, Client) {
    let layer = store.layer().await;
    let server = store.serve_on(layer, ServerOptions::guarded_by("root", "test")).await;
    let layer = store.layer().await;
    let database = layer.database("db");
    let mut client = server.connect().await;
    root(&mut client, "PUT", "/_users", &Value::Null).await;
    for name in ["ann", "member", "stranger", "all"] {
        let user = json!({"name": name, "type": "user", "roles": [], "password": "test"});
        root(&mut client, "PUT", &format!("/_users/org.couchdb.user:{name}"), &user).await;
    }
    root(&mut client, "PUT", "/db", &json!({"channels": true})).await;
    root(&mut client, "PUT", "/db/_security", &json!({"members": {"names": ["member"]}})).await;
    for (name, channel) in [("ann", "A"), ("all", "*")] {
        database.put_principal(&user_of(name, channel)).await.unwrap();
    }
    (layer, server, client)
}

pub(super) fn user_of(name: &str, channel: &str) -> PrincipalWrite {
    PrincipalWrite {
        kind: PrincipalKind::User,
        name: name.to_owned(),
        email: String::new(),
        is_disabled: false,
        admin_channels: BTreeSet::from([channel.to_owned()]),
        admin_roles: BTreeSet::new(),
        signs_in: Some(SignsIn::Account),
        is_new: true,
    }
}

/// Returns an answer without the document's id, its revision and the time.
fn shown(answer: &Answer, id: &str, rev: &str) -> String {
    let mut headers: Vec<String> = answer
        .headers
        .iter()
        .filter(|(name, _)| !["date", "x-couch-request-id", "x-couchdb-body-time"].contains(&name.as_str()))
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    headers.sort();
    format!("{} {}\n{}", answer.status, headers.join("\n"), answer.body).replace(id, "ID").replace(rev, "REV")
}

/// A request for a document: method, path, headers, body.
type DocumentRequest = (&'static str, &'static str, &'static [(&'static str, &'static str)], &'static str);

const ASKED: &[DocumentRequest] = &[
    ("GET", "/db/ID", &[], ""),
    ("HEAD", "/db/ID", &[], ""),
    ("GET", "/db/ID?rev=REV", &[], ""),
    ("HEAD", "/db/ID?rev=REV", &[], ""),
    ("GET", "/db/ID?rev=REV&revs=true", &[], ""),
    ("GET", "/db/ID?rev=REV&latest=true", &[], ""),
    ("GET", "/db/ID?revs=true&revs_info=true&conflicts=true&deleted_conflicts=true&local_seq=true", &[], ""),
    ("GET", "/db/ID?meta=true&attachments=true", &[("accept", "multipart/related")], ""),
    ("GET", "/db/ID", &[("if-none-match", "\"REV\"")], ""),
    ("GET", "/db/ID?open_revs=all", &[], ""),
    ("GET", "/db/ID?open_revs=all&revs=true", &[("accept", "application/json")], ""),
    ("GET", "/db/ID?open_revs=%5B%22REV%22%5D", &[("accept", "application/json")], ""),
    ("GET", "/db/ID?open_revs=%5B%22REV%22%5D&revs=true&latest=true", &[("accept", "application/json")], ""),
    ("GET", "/db/ID/file", &[], ""),
    ("HEAD", "/db/ID/file", &[], ""),
    ("GET", "/db/ID/file?rev=REV", &[], ""),
    ("GET", "/db/ID/other", &[], ""),
    ("GET", "/db/_all_docs", &[], ""),
    ("GET", "/db/_all_docs?key=%22ID%22", &[], ""),
    ("GET", "/db/_all_docs?startkey=%22ID%22&update_seq=true", &[], ""),
    ("GET", "/db/_all_docs?descending=true&endkey=%22ID%22&limit=3&skip=1&include_docs=true", &[], ""),
    ("POST", "/db/_all_docs", &[], r#"{"keys":["ID","seen","ID"]}"#),
    ("POST", "/db/_all_docs?include_docs=true", &[], r#"{"keys":["ID","seen"]}"#),
    ("POST", "/db/_all_docs/queries", &[], r#"{"queries":[{"keys":["ID"]},{"start_key":"ID"}]}"#),
    ("POST", "/db/_bulk_get", &[], r#"{"docs":[{"id":"ID"},{"id":"seen"},{"id":"ID","rev":"REV"}]}"#),
    ("POST", "/db/_bulk_get?revs=true&latest=true&attachments=true", &[], r#"{"docs":[{"id":"ID","rev":"REV"}]}"#),
    ("POST", "/db/_revs_diff", &[], r#"{"ID":["9-abc","REV"],"seen":["9-abc"]}"#),
    ("POST", "/db/_missing_revs", &[], r#"{"ID":["REV"]}"#),
    ("DELETE", "/db/ID", &[], ""),
    ("DELETE", "/db/ID?rev=REV", &[], ""),
    ("DELETE", "/db/ID/file", &[], ""),
    ("DELETE", "/db/ID/file?rev=REV", &[], ""),
    ("PUT", "/db/ID/file?rev=REV", &[("content-type", "text/plain")], "x"),
    ("COPY", "/db/ID", &[("destination", "copied")], ""),
    ("COPY", "/db/ID?rev=REV", &[("destination", "copied")], ""),
    ("GET", "/db", &[], ""),
    ("HEAD", "/db", &[], ""),
    ("POST", "/db/_ensure_full_commit", &[], ""),
    ("GET", "/db/_local/ID", &[], ""),
];

/// The readers of these tests. None of them may see a hidden document.
const WHO: [&str; 3] = ["ann", "member", "stranger"];

#[tokio::test(flavor = "multi_thread")]
async fn what_is_hidden_is_answered_as_what_never_was() {
    let store = Store::new();
    let (_layer, _server, mut client) = Box::pin(served(&store)).await;
    let client = &mut client;
    root(client, "PUT", "/db/seen", &json!({"channels": ["A"], "v": 1})).await;
    root(client, "PUT", "/db/everybodys", &json!({"channels": ["!"]})).await;
    root(client, "PUT", "/db/tagged", &json!({"channels": ["*"]})).await;
    // One document of each kind, with the last revision.
    let mut hidden: Vec<(&str, String)> = Vec::new();
    let text = |answer: &Value| answer["rev"].as_str().unwrap().to_owned();
    let file = json!({"file": {"content_type": "text/plain", "data": "aGlkZGVu"}});
    let plain = root(client, "PUT", "/db/hidden-plain", &json!({"channels": ["B"], "_attachments": file})).await;
    hidden.push(("hidden-plain", text(&plain)));
    let none = root(client, "PUT", "/db/hidden-without", &json!({"v": 1})).await;
    hidden.push(("hidden-without", text(&none)));
    let first = root(client, "PUT", "/db/hidden-edited", &json!({"channels": "B"})).await;
    let edit = json!({"channels": "C", "_rev": text(&first)});
    let edited = root(client, "PUT", "/db/hidden-edited", &edit).await;
    hidden.push(("hidden-edited", text(&first)));
    hidden.push(("hidden-edited", text(&edited)));
    let first = root(client, "PUT", "/db/hidden-tombstone", &json!({"channels": "B"})).await;
    let gone = json!({"channels": "B", "_rev": text(&first), "_deleted": true});
    let gone = root(client, "PUT", "/db/hidden-tombstone", &gone).await;
    hidden.push(("hidden-tombstone", text(&first)));
    hidden.push(("hidden-tombstone", text(&gone)));
    for rev in ["1-aa", "1-bb", "2-cc"] {
        let revisions = if rev == "2-cc" { json!({"start": 2, "ids": ["cc", "bb"]}) } else { Value::Null };
        let mut document = json!({"_rev": rev, "channels": "B"});
        if !revisions.is_null() {
            document["_revisions"] = revisions;
        }
        root(client, "PUT", "/db/hidden-conflict?new_edits=false", &document).await;
        hidden.push(("hidden-conflict", rev.to_owned()));
    }
    let many: Vec<String> = (0..20).map(|at| format!("channel-{at}")).collect();
    let many = root(client, "PUT", "/db/hidden-many", &json!({"channels": many})).await;
    hidden.push(("hidden-many", text(&many)));
    for (id, rev) in &hidden {
        // A missing id of the same length, adjacent in the order of ids.
        let never = format!("{}~", &id[..id.len() - 1]);
        // The other readers see no document of any kind.
        for who in if *id == "hidden-plain" { &WHO[..] } else { &WHO[..1] } {
            for (method, path, headers, body) in ASKED {
                let mut answers = Vec::new();
                for id in [*id, &never] {
                    let named = |text: &str| text.replace("ID", id).replace("REV", rev);
                    let headers: Vec<(&str, String)> =
                        headers.iter().map(|(name, value)| (*name, named(value))).collect();
                    let headers: Vec<(&str, &str)> =
                        headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
                    let answer = ask(client, who, method, &named(path), &headers, &named(body)).await;
                    answers.push(shown(&answer, id, rev));
                }
                assert_eq!(answers[0], answers[1], "{who}: {method} {path} {headers:?} {body} of {id} {rev}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_revision_is_shown_by_its_own_channels() {
    let store = Store::new();
    let (_layer, _server, mut client) = Box::pin(served(&store)).await;
    let client = &mut client;
    let text = |answer: &Value| answer["rev"].as_str().unwrap().to_owned();
    let one = text(&root(client, "PUT", "/db/moved", &json!({"channels": ["A"], "v": 1})).await);
    let get = async |client: &mut Client, who: &str, path: &str| {
        let answer = ask(client, who, "GET", path, &[("accept", "application/json")], "").await;
        (answer.status, serde_json::from_str::<Value>(&answer.body).unwrap_or(Value::Null))
    };
    assert_eq!(get(client, "ann", "/db/moved").await.1["v"], 1);
    assert_eq!(get(client, "all", "/db/moved").await.1["v"], 1);
    assert_eq!(get(client, "member", "/db/moved").await.0, 404);
    assert_eq!(
        get(client, "stranger", "/db/moved").await,
        (403, json!({"error": "forbidden", "reason": "You are not allowed to access this db."}))
    );
    assert_eq!(get(client, "", "/db/moved").await.0, 401);
    // The document leaves her channels: she sees the old body, and of the new revision only that she lost the document.
    let two = text(&root(client, "PUT", "/db/moved", &json!({"channels": ["B"], "v": 2, "_rev": one})).await);
    let three = text(&root(client, "PUT", "/db/moved", &json!({"channels": ["B"], "v": 3, "_rev": two})).await);
    assert_eq!(get(client, "ann", "/db/moved").await, (404, json!({"error": "not_found", "reason": "missing"})));
    assert_eq!(
        get(client, "ann", &format!("/db/moved?rev={one}&local_seq=true")).await.1,
        json!({"_id": "moved", "_rev": one, "channels": ["A"], "v": 1})
    );
    let removed = json!({"_id": "moved", "_rev": two, "_removed": true});
    assert_eq!(get(client, "ann", &format!("/db/moved?rev={two}")).await, (200, removed.clone()));
    assert_eq!(get(client, "ann", &format!("/db/moved?open_revs=[%22{two}%22]")).await.1, json!([{"ok": removed}]));
    assert_eq!(get(client, "ann", &format!("/db/moved?rev={three}")).await.0, 404);
    assert_eq!(get(client, "member", &format!("/db/moved?rev={two}")).await.0, 404);
    let body = json!({"docs": [{"id": "moved", "rev": two}, {"id": "moved"}]}).to_string();
    let answer = ask(client, "ann", "POST", "/db/_bulk_get", &[], &body).await.json();
    assert_eq!(answer["results"][0]["docs"], json!([{"ok": removed}]));
    assert_eq!(answer["results"][1]["docs"][0]["error"]["error"], "not_found");
    // She sees only the leaves in her channels.
    for (rev, channel) in [("1-aa", "A"), ("1-bb", "B"), ("1-cc", "A")] {
        let document = json!({"_rev": rev, "channels": channel});
        root(client, "PUT", "/db/conflict?new_edits=false", &document).await;
    }
    assert_eq!(get(client, "ann", "/db/conflict?conflicts=true").await.1["_conflicts"], json!(["1-aa"]));
    let open = get(client, "ann", "/db/conflict?open_revs=all").await.1;
    let revs: Vec<&Value> = open.as_array().unwrap().iter().map(|leaf| &leaf["ok"]["_rev"]).collect();
    assert_eq!(revs, ["1-aa", "1-cc"]);
    let diff = json!({"conflict": ["1-aa", "1-bb", "2-dd"]}).to_string();
    let diff = ask(client, "ann", "POST", "/db/_revs_diff", &[], &diff).await.json();
    assert_eq!(diff, json!({"conflict": {"missing": ["1-bb", "2-dd"], "possible_ancestors": ["1-cc", "1-aa"]}}));
    // Lists and statistics cover visible documents only.
    root(client, "PUT", "/db/_design/d", &json!({})).await;
    let all = get(client, "ann", "/db/_all_docs?include_docs=true").await.1;
    assert_eq!(
        (&all["total_rows"], &all["offset"], &all["rows"][0]["id"]),
        (&json!(1), &Value::Null, &json!("conflict"))
    );
    assert_eq!(get(client, "all", "/db/_all_docs").await.1["total_rows"], 2);
    let info = get(client, "ann", "/db").await.1;
    assert_eq!((&info["doc_count"], &info["doc_del_count"]), (&json!(1), &json!(0)));
    assert_eq!(get(client, "all", "/db").await.1["doc_count"], 2);
    assert_eq!(get(client, "root", "/db").await.1["doc_count"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn stubs_stand_for_what_the_writer_sees() {
    let store = Store::new();
    let (_layer, _server, mut client) = Box::pin(served(&store)).await;
    let client = &mut client;
    let text = |answer: &Value| answer["rev"].as_str().unwrap().to_owned();
    let file = json!({"file": {"content_type": "text/plain", "data": "aGlkZGVu"}});
    let stub = json!({"file": {"stub": true}});
    for (id, channel, status) in [("seen", "A", 201), ("hidden", "B", 412)] {
        let document = json!({"channels": [channel], "_attachments": file});
        let one = text(&root(client, "PUT", &format!("/db/{id}"), &document).await);
        let replicated = json!({
            "channels": ["A"], "_attachments": stub, "_rev": "2-aa",
            "_revisions": {"start": 2, "ids": ["aa", one.strip_prefix("1-").unwrap()]},
        });
        let path = format!("/db/{id}?new_edits=false");
        let answer = ask(client, "ann", "PUT", &path, &[], &replicated.to_string()).await;
        assert_eq!(answer.status, status, "{id}: {}", answer.body);
        let parent = if status == 201 { "2-aa" } else { one.as_str() };
        let edit = json!({"channels": ["A"], "_attachments": stub, "_rev": parent}).to_string();
        let answer = ask(client, "ann", "PUT", &format!("/db/{id}"), &[], &edit).await;
        assert_eq!(answer.status, status, "{id}: {}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_shows_several_documents_is_for_administrators() {
    let store = Store::new();
    let (_layer, _server, mut client) = Box::pin(served(&store)).await;
    let client = &mut client;
    root(client, "PUT", "/db/_design/d", &json!({"views": {"v": {"map": "function (doc) { emit(1); }"}}})).await;
    let refused = json!({"error": "forbidden", "reason": "Only administrators may read this."});
    // The same answer as for a missing database.
    let outside = json!({"error": "forbidden", "reason": "You are not allowed to access this db."});
    for (method, path) in [
        ("GET", "/db/_design/d"),
        ("GET", "/db/_design/none"),
        ("GET", "/db/_design/d/file"),
        ("GET", "/db/_design/d/_view/v"),
        ("GET", "/db/_design/none/_view/v"),
        ("GET", "/db/_design/d/_info"),
        ("GET", "/db/_design/d/_show/s/x"),
        ("GET", "/db/_design/d/_list/l/v"),
        ("POST", "/db/_design/d/_update/u"),
        ("GET", "/db/_design/d/_rewrite/x"),
        ("POST", "/db/_find"),
        ("POST", "/db/_explain"),
        ("GET", "/db/_index"),
        ("GET", "/db/_design_docs"),
        ("POST", "/db/_design_docs/queries"),
        ("GET", "/db/_partition/p"),
        ("GET", "/db/_partition/p/_all_docs"),
        ("GET", "/db/_security"),
        ("GET", "/db/_revs_limit"),
        ("GET", "/db/_purged_infos"),
        ("GET", "/db/_shards"),
    ] {
        for (who, refused) in [("ann", &refused), ("all", &refused), ("member", &refused), ("stranger", &outside)] {
            let answer = ask(client, who, method, path, &[], r#"{"selector":{}}"#).await;
            let told = serde_json::from_str::<Value>(&answer.body).unwrap_or(Value::Null);
            assert_eq!((answer.status, &told), (403, refused), "{who}: {method} {path}");
        }
        assert_eq!(ask(client, "", method, path, &[], "{}").await.status, 401, "{method} {path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_write_learns_nothing_by_trying() {
    let store = Store::new();
    let (layer, _server, mut client) = Box::pin(served(&store)).await;
    let client = &mut client;
    let function = "function (doc) { if (doc.refuse) throw({forbidden: 'no'}); channel('B'); }";
    root(client, "PUT", "/judged", &json!({"sync": function})).await;
    root(client, "PUT", "/judged/_security", &json!({"members": {"names": ["member"]}})).await;
    layer.database("judged").put_principal(&user_of("ann", "B")).await.unwrap();
    let there = root(client, "PUT", "/judged/there", &json!({})).await["rev"].as_str().unwrap().to_owned();
    let gone = root(client, "DELETE", &format!("/judged/there?rev={there}"), &Value::Null).await;
    let gone = gone["rev"].as_str().unwrap();
    let never = "1-0123456789abcdef0123456789abcdef";
    for who in ["member", "ann", "root"] {
        for (id, rev) in [("there", there.as_str()), ("there", gone), ("never", never)] {
            let document = json!({"_id": id, "_rev": rev, "refuse": true});
            let answer =
                ask(client, who, "PUT", &format!("/judged/{id}?new_edits=false"), &[], &document.to_string()).await;
            let body = json!({"new_edits": false, "docs": [document]}).to_string();
            let rows = ask(client, who, "POST", "/judged/_bulk_docs", &[], &body).await.json();
            if who != "member" && id == "there" {
                // Revisions that she sees are not reported as missing.
                assert_eq!((answer.status, rows), (201, json!([])), "{rev}");
            } else {
                let refused = json!([{"id": id, "rev": rev, "error": "forbidden", "reason": "no"}]);
                assert_eq!((answer.status, rows), (403, refused), "{who}: {rev}");
            }
        }
    }
    root(client, "PUT", "/judged/_design/d", &json!({})).await;
    root(client, "PUT", "/db/_design/d", &json!({})).await;
    root(client, "PUT", "/db/seen", &json!({"channels": ["A"]})).await;
    for (who, ids) in [("ann", vec![]), ("root", vec!["_design/d"])] {
        let rows = ask(client, who, "GET", "/db/_changes?filter=_design", &[], "").await.json();
        let found: Vec<&Value> = rows["results"].as_array().unwrap().iter().map(|row| &row["id"]).collect();
        assert_eq!(found, ids, "{who}");
    }
}

/// Also for a user named in `_security`: the next request is refused, as if the user were deleted.
#[tokio::test]
async fn a_disabled_user_who_is_a_member_is_refused() {
    let (layer, _server, mut client) = served(&Store::new()).await;
    root(&mut client, "PUT", "/db/seen", &json!({"channels": ["!"]})).await;
    let write = |is_disabled| PrincipalWrite {
        kind: PrincipalKind::User,
        name: "member".to_owned(),
        email: String::new(),
        is_disabled,
        admin_channels: BTreeSet::new(),
        admin_roles: BTreeSet::new(),
        signs_in: Some(SignsIn::Account),
        is_new: false,
    };
    let asked: &[(&str, &str, &str)] = &[
        ("GET", "/db", ""),
        ("HEAD", "/db", ""),
        ("GET", "/db/seen", ""),
        ("GET", "/db/_all_docs", ""),
        ("GET", "/db/_changes", ""),
        ("GET", "/db/_changes?feed=longpoll&since=now&timeout=100", ""),
        ("POST", "/db/_bulk_get", r#"{"docs":[{"id":"seen"}]}"#),
        ("POST", "/db/_revs_diff", r#"{"seen":["1-x"]}"#),
        ("POST", "/db/_missing_revs", r#"{"seen":["1-x"]}"#),
        ("PUT", "/db/_local/x", "{}"),
        ("GET", "/db/_local/x", ""),
        ("GET", "/db/_local_docs", ""),
        ("DELETE", "/db/_local/x", ""),
        ("PUT", "/db/new", "{}"),
        ("PUT", "/db/new/file", "data"),
        ("POST", "/db/_bulk_docs", r#"{"docs":[{}]}"#),
        ("POST", "/db/_ensure_full_commit", ""),
    ];
    let database = layer.database("db");
    let mut found = Vec::new();
    for is_disabled in [false, true] {
        database.put_principal(&write(is_disabled)).await.unwrap();
        let mut of = Vec::new();
        for (method, path, body) in asked {
            let answer = ask(&mut client, "member", method, path, &[], body).await;
            of.push(format!("{method} {path} {} {}", answer.status, answer.body));
        }
        found.push(of);
    }
    let refused = |line: &String| line.contains(" 403") || line.contains("\"forbidden\"");
    assert!(!found[0].iter().any(refused), "{:#?}", found[0]);
    assert!(found[1].iter().all(refused), "{:#?}", found[1]);
}

/// A feed ends when its reader is disabled, whatever `_security` grants, because a waiting feed has no row that would
/// tell. After the user is enabled again, the feed resumes without gaps.
#[tokio::test]
async fn a_feed_ends_with_its_readers_user() {
    let (layer, server, mut client) = served(&Store::new()).await;
    let database = layer.database("db");
    for name in ["member", "ann"] {
        let user = |is_disabled| PrincipalWrite { is_new: false, is_disabled, ..user_of(name, "A") };
        for (feed, how) in [("continuous", 0), ("eventsource", 1), ("longpoll", 2)] {
            database.put_principal(&user(false)).await.unwrap();
            let first = ask(&mut client, name, "GET", "/db/_changes", &[], "").await.json();
            let since = first["last_seq"].as_str().expect("a place").to_owned();
            let mut follower = server.connect().await;
            let authorization = basic(name);
            let path = format!("/db/_changes?feed={feed}&heartbeat=1000&since={since}");
            follower.send("GET", &path, &[("authorization", authorization.as_str())], b"").await;
            assert_eq!(follower.head().await.status, 200);
            // During the wait, or at any time before.
            if how == 0 {
                root(&mut client, "PUT", &format!("/db/woken-{name}"), &json!({"channels": ["A"]})).await;
                let line = follower.feed_line(&mut String::new()).await.expect("a row");
                assert!(line.contains("woken"), "{line}");
            }
            database.put_principal(&user(true)).await.unwrap();
            let rest = soon(follower.rest()).await;
            assert!(!rest.contains("meanwhile") && !rest.contains("_user"), "{feed} of {name}: {rest}");
            let refused = ask(&mut client, name, "GET", &format!("/db/_changes?since={since}"), &[], "").await;
            assert_eq!(refused.status, 403, "{feed} of {name}: {}", refused.body);
            let id = format!("meanwhile-{name}-{how}");
            root(&mut client, "PUT", &format!("/db/{id}"), &json!({"channels": ["A"]})).await;
            database.put_principal(&user(false)).await.unwrap();
            let rows = ask(&mut client, name, "GET", &format!("/db/_changes?since={since}"), &[], "").await.json();
            let rows = rows["results"].as_array().expect("rows");
            assert!(rows.iter().any(|row| row["id"] == *id), "{feed} of {name}: {rows:?}");
        }
    }
}

/// Administrators and members of the database see more than others. Their feeds end when they lose that role, even if
/// any user of the database with channels may read it.
#[tokio::test]
async fn a_feed_ends_with_what_its_reader_was_to_the_database() {
    let (layer, server, mut client) = served(&Store::new()).await;
    layer.database("db").put_principal(&user_of("member", "A")).await.unwrap();
    root(&mut client, "PUT", "/db/mine", &json!({"channels": ["A"]})).await;
    root(&mut client, "PUT", "/db/others", &json!({"channels": ["B"]})).await;
    let (nobody, member, admin) = (json!({}), json!({"names": ["member"]}), json!({"names": ["member"]}));
    for (is_admin, before, after) in [
        (true, json!({"admins": admin, "members": member}), json!({"admins": nobody, "members": member})),
        (true, json!({"admins": admin}), json!({"admins": nobody, "members": {"names": ["else"]}})),
        (false, json!({"members": member}), json!({"members": {"names": ["else"]}})),
    ] {
        root(&mut client, "PUT", "/db/_security", &before).await;
        until("they see as much", async || {
            ask(&mut client, "member", "GET", "/db/_changes", &[], "").await.body.contains("others") == is_admin
        })
        .await;
        let mut follower = server.connect().await;
        let authorization = basic("member");
        let path = "/db/_changes?feed=continuous&heartbeat=1000";
        follower.send("GET", path, &[("authorization", authorization.as_str())], b"").await;
        let head = follower.head().await;
        assert_eq!(head.status, 200, "{before} {head:?} {}", follower.rest().await);
        let line = follower.feed_line(&mut String::new()).await.expect("a row");
        assert!(line.contains("\"id\""), "{line}");
        root(&mut client, "PUT", "/db/_security", &after).await;
        soon(follower.rest()).await;
        // They reconnect with their remaining rights.
        let rows = ask(&mut client, "member", "GET", "/db/_changes", &[], "").await.body;
        assert!(rows.contains("mine") && !rows.contains("others"), "{rows}");
    }
    server.stop().await;
}
