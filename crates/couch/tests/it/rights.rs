//! Rights over HTTP: the whole table, and rights that are lost.

use std::time::Duration;

use flatbed_testkit::pass;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::support::{Client, Running, ServerOptions, Store, basic, soon};

/// One line per form of path, one letter per method.
const TABLE: &str = include_str!("../../src/path/rights.txt");

const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "DELETE", "COPY", "PATCH"];

const NOT_A_MEMBER: (u16, &str) = (401, "You are not authorized to access this db.");
const NOT_ALLOWED: (u16, &str) = (403, "You are not allowed to access this db.");
const NOT_ITS_ADMIN: (u16, &str) = (403, "You are not a db or server admin.");
const NOT_AN_ADMIN: (u16, &str) = (401, "You are not a server or db admin.");
const NOT_KNOWN: (u16, &str) = (401, "You are not an authenticated user");
const NOT_THE_SERVERS: (u16, &str) = (401, "You are not a server admin.");
const NO_METRICS: (u16, &str) = (401, "You are not a server admin or read-only metrics user");

/// The clients, in this order.
const WHO: [&str; 5] = ["", "outsider", "member", "boss", "root"];

/// Returns the clients' refusals for a letter; `None` if admitted.
fn refusals(letter: char) -> [Option<(u16, &'static str)>; 5] {
    let (stranger, outsider) = (Some(NOT_A_MEMBER), Some(NOT_ALLOWED));
    match letter {
        '-' => [None; 5],
        'n' => [Some(NOT_KNOWN), None, None, None, None],
        'm' => [stranger, outsider, None, None, None],
        'd' | 'a' => [stranger, outsider, Some(NOT_ITS_ADMIN), None, None],
        'k' => [stranger, outsider, Some(NOT_AN_ADMIN), None, None],
        's' | 'l' => [Some(NOT_THE_SERVERS), Some(NOT_THE_SERVERS), Some(NOT_THE_SERVERS), Some(NOT_THE_SERVERS), None],
        'x' => [Some(NO_METRICS), Some(NO_METRICS), Some(NO_METRICS), Some(NO_METRICS), None],
        'u' => [stranger, outsider, outsider, outsider, None],
        other => panic!("{other}"),
    }
}

/// Returns the credentials of a client, all with the password `test`.
fn headers(name: &str) -> Vec<(String, String)> {
    let named = (!name.is_empty()).then(|| ("authorization".to_owned(), basic(name, "test")));
    named.into_iter().collect()
}

async fn ask(client: &mut Client, who: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut headers = headers(who);
    headers.push(("destination".into(), "copied".into()));
    headers.push(("content-type".into(), "application/json".into()));
    let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let answer = client.call(method, path, &headers, body.as_bytes()).await;
    let is_refusal = matches!(answer.status, 401 | 403) && method != "HEAD";
    (answer.status, if is_refusal { answer.text("reason") } else { String::new() })
}

/// Starts a server with the administrator `root`.
async fn serve(store: &Store) -> Running {
    store.serve(ServerOptions::guarded_by("root", "test")).await
}

async fn root(client: &mut Client, method: &str, path: &str, body: &Value) {
    let (status, reason) = ask(client, "root", method, path, &body.to_string()).await;
    assert!(status < 300, "{method} {path}: {status} {reason}");
}

/// Creates a user with the password `test`, using its recorded hash.
async fn make_user(client: &mut Client, name: &str, roles: &[&str]) {
    let user = json!({
        "name": name, "type": "user", "roles": roles, "password_scheme": "pbkdf2", "pbkdf2_prf": "sha256",
        "iterations": 10, "salt": "abc",
        "derived_key": "9c93da09e6ead44f97240a282d306906a0eeee53731879e77f2f1237d86f25b9",
    });
    root(client, "PUT", &format!("/_users/org.couchdb.user:{name}"), &user).await;
}

async fn with_users(store: &Store) -> (Running, Client) {
    let server = serve(store).await;
    let mut client = server.connect().await;
    root(&mut client, "PUT", "/_users", &Value::Null).await;
    for (name, roles) in [("outsider", &["other"][..]), ("member", &["team"]), ("boss", &["boss"])] {
        make_user(&mut client, name, roles).await;
    }
    (server, client)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_path_and_method_is_for_whom_the_table_says() {
    let (server, mut client) = with_users(&Store::new()).await;
    root(&mut client, "PUT", "/_replicator", &Value::Null).await;
    let security = json!({"admins": {"roles": ["boss"]}, "members": {"names": ["named"], "roles": ["team"]}});
    let mut wrong = Vec::new();
    for (at, who) in WHO.iter().enumerate() {
        root(&mut client, "PUT", &format!("/db{at}"), &Value::Null).await;
        root(&mut client, "PUT", &format!("/db{at}/_security"), &security).await;
        let design = json!({"_attachments": {"file": {"data": ""}}});
        root(&mut client, "PUT", &format!("/db{at}/_design/v"), &design).await;
        let mut count = 0;
        for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
            let columns: Vec<&str> = line.split(" | ").collect();
            let path = columns[0].replace("{db}", &format!("db{at}"));
            // A refusal may leave the body unread and close the connection.
            for (method, letter) in METHODS.iter().zip(columns[1].chars()) {
                let mut client = server.connect().await;
                let body = match *method {
                    "POST" | "PUT" | "PATCH" => columns.get(2).copied().unwrap_or("{}"),
                    _ => "",
                };
                let (status, reason) = ask(&mut client, who, method, &path, body).await;
                let mut expected = refusals(letter)[at];
                if path.starts_with("/none") && letter == 'm' && at > 0 {
                    expected = if at < 4 { Some(NOT_ALLOWED) } else { None };
                }
                let is_so = match expected {
                    Some((expected, _)) if *method == "HEAD" => status == expected,
                    Some(expected) => (status, reason.as_str()) == expected,
                    None => !matches!(status, 401 | 403),
                };
                if !is_so {
                    wrong.push(format!("{who} {method} {path}: {status} {reason}"));
                }
                count += 1;
            }
        }
        assert!(count > 600, "{count}");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    server.stop().await;
}

/// With `require_valid_user` and its variant, each path and method is requested anonymously.
#[tokio::test(flavor = "multi_thread")]
async fn require_valid_user() {
    const WANTED: (u16, &str) = (401, "Authentication required.");
    let (server, mut client) = with_users(&Store::new()).await;
    root(&mut client, "PUT", "/_replicator", &Value::Null).await;
    root(&mut client, "PUT", "/db", &Value::Null).await;
    // Public without these settings.
    root(&mut client, "PUT", "/db/_security", &json!({})).await;
    root(&mut client, "PUT", "/_node/_local/_config/chttpd/admin_only_all_dbs", &json!("false")).await;
    let both = ["require_valid_user", "require_valid_user_except_for_up"];
    for settings in [&both[..1], &both[1..], &both[..]] {
        for setting in both {
            let value = json!(settings.contains(&setting).to_string());
            root(&mut client, "PUT", &format!("/_node/_local/_config/chttpd/{setting}"), &value).await;
        }
        let (mut wrong, mut answered, mut count) = (Vec::new(), Vec::new(), 0);
        for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
            let columns: Vec<&str> = line.split(" | ").collect();
            let path = columns[0].replace("{db}", "db");
            for method in METHODS {
                let mut client = server.connect().await;
                let body = match method {
                    "POST" | "PUT" | "PATCH" => columns.get(2).copied().unwrap_or("{}"),
                    _ => "",
                };
                let (status, reason) = ask(&mut client, "", method, &path, body).await;
                count += 1;
                let is_wanted = if method == "HEAD" { status == 401 } else { (status, &*reason) == WANTED };
                // The console has the sign-in page.
                let is_free = (path == "/_session" && method == "POST")
                    || path.starts_with("/_utils")
                    || (path == "/_up" && settings != &both[..1]);
                match (is_free, is_wanted) {
                    (true, false) => answered.push(format!("{method} {path}")),
                    (false, true) => {}
                    _ => wrong.push(format!("{method} {path}: {status} {reason}")),
                }
            }
        }
        assert!(wrong.is_empty(), "{settings:?}: {wrong:#?}");
        assert!(
            count > 600 && answered.len() == 1 + METHODS.len() + if settings == &both[..1] { 0 } else { 7 },
            "{count} {answered:?}"
        );
        // Signed-in clients have their usual rights, and signing in works.
        assert_eq!(ask(&mut client, "member", "GET", "/db", "").await.0, 200);
        let session = ask(&mut client, "", "POST", "/_session", r#"{"name":"member","password":"test"}"#).await;
        assert_eq!(session.0, 200, "{session:?}");
    }
    server.stop().await;
}

/// With `[chttpd] admin_only_all_dbs` off, CouchDB shows all names and statistics of databases to everyone.
#[tokio::test(flavor = "multi_thread")]
async fn names_of_databases_are_everyones_where_the_settings_say_so() {
    let (server, mut client) = with_users(&Store::new()).await;
    for (name, security) in [("open", json!({})), ("team", json!({"members": {"roles": ["team"]}}))] {
        root(&mut client, "PUT", &format!("/{name}"), &Value::Null).await;
        root(&mut client, "PUT", &format!("/{name}/_security"), &security).await;
    }
    let setting = "/_node/_local/_config/chttpd/admin_only_all_dbs";
    let answered = async |who: &str, method: &str, path: &str, body: &str| {
        let mut headers = headers(who);
        headers.push(("content-type".into(), "application/json".into()));
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        server.connect().await.call(method, path, &headers, body.as_bytes()).await
    };
    let keys = r#"{"keys":["open","team","none"]}"#;
    for (value, is_open) in [("true", false), ("false", true), ("true", false)] {
        root(&mut client, "PUT", setting, &json!(value)).await;
        for (who, sees) in [("", &["open"][..]), ("outsider", &["open"]), ("member", &["open", "team"])] {
            let all = answered(who, "GET", "/_all_dbs", "").await;
            let some = answered(who, "GET", "/_all_dbs?keys=[%22team%22,%22none%22]", "").await;
            let (infos, posted) =
                (answered(who, "GET", "/_dbs_info", "").await, answered(who, "POST", "/_dbs_info", keys).await);
            if !is_open {
                for refused in [all, some, infos, posted] {
                    assert_eq!((refused.status, &*refused.text("reason")), (401, NOT_THE_SERVERS.1), "{who}");
                }
                continue;
            }
            assert_eq!((all.json(), some.json()), (json!(["_users", "open", "team"]), json!(["team"])), "{who}");
            // Statistics are limited to readable databases.
            let named = |infos: &Value| -> Vec<String> {
                let shown = infos.as_array().unwrap().iter().filter(|row| row.get("info").is_some());
                shown.map(|row| row["key"].as_str().unwrap().to_owned()).collect()
            };
            assert_eq!(named(&infos.json()), sees, "{who}");
            assert_eq!(named(&posted.json()), sees, "{who}");
            assert_eq!(posted.json()[2], json!({"key": "none", "error": "not_found"}));
        }
    }
    server.stop().await;
}

/// Requests to a database: method, path after its name, body.
const OF_DATABASES: &[(&str, &str, &str)] = &[
    ("GET", "", ""),
    ("HEAD", "", ""),
    ("POST", "", "{}"),
    ("POST", "", "{"),
    ("PUT", "", ""),
    ("DELETE", "", ""),
    ("GET", "/doc", ""),
    ("GET", "/doc?rev=x", ""),
    ("PUT", "/doc", "{}"),
    ("DELETE", "/doc?rev=1-a", ""),
    ("COPY", "/doc", ""),
    ("GET", "/doc/file", ""),
    ("PUT", "/doc/file", "x"),
    ("GET", "/_local/doc", ""),
    ("PUT", "/_local/doc", "{}"),
    ("GET", "/_all_docs", ""),
    ("GET", "/_changes", ""),
    ("GET", "/_changes?feed=continuous", ""),
    ("POST", "/_bulk_docs", "{"),
    ("POST", "/_bulk_get", "{}"),
    ("POST", "/_revs_diff", "{}"),
    ("POST", "/_find", r#"{"selector":{}}"#),
    ("GET", "/_index", ""),
    ("GET", "/_design/d", ""),
    ("PUT", "/_design/d", "{}"),
    ("GET", "/_design/d/_view/v", ""),
    ("POST", "/_design/d/_update/u", ""),
    ("GET", "/_security", ""),
    ("PUT", "/_security", "{}"),
    ("PUT", "/_revs_limit", "1"),
    ("POST", "/_compact", ""),
    ("POST", "/_purge", "{}"),
    ("GET", "/_shards", ""),
];

/// Bodies of `_replicate`; `ONE` is the database.
const OF_REPLICATIONS: [&str; 3] = [
    r#"{"source":"ONE","target":"open"}"#,
    r#"{"source":"open","target":"ONE"}"#,
    r#"{"source":"open","target":"ONE","create_target":true}"#,
];

/// A forbidden database and a missing one have the same status, headers and body.
#[tokio::test(flavor = "multi_thread")]
async fn users_without_access_do_not_learn_which_databases_there_are() {
    let (server, mut client) = with_users(&Store::new()).await;
    let team = json!({"members": {"roles": ["team"]}});
    for (name, made, security) in [
        ("open", Value::Null, json!({})),
        ("shut", Value::Null, team.clone()),
        ("room", json!({"channels": true}), team),
    ] {
        root(&mut client, "PUT", &format!("/{name}"), &made).await;
        root(&mut client, "PUT", &format!("/{name}/_security"), &security).await;
    }
    let shown = async |who: &str, name: &str, (method, path, body): (&str, &str, &str)| {
        let mut headers = headers(who);
        headers.push(("destination".into(), "copied".into()));
        headers.push(("content-type".into(), "application/json".into()));
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let answer = server.connect().await.call(method, path, &headers, body.as_bytes()).await;
        let is_own = |name: &str| matches!(name, "date" | "x-couch-request-id" | "x-couchdb-body-time");
        let kept =
            answer.headers.iter().filter(|(name, _)| !is_own(name)).map(|(name, value)| format!("{name}: {value}"));
        let mut kept: Vec<String> = kept.collect();
        kept.sort();
        (answer.status, format!("{}\n{}", kept.join("\n"), answer.body).replace(name, "ONE"))
    };
    for who in ["", "outsider"] {
        for (method, path, body) in OF_DATABASES {
            let ask = async |name: &str| shown(who, name, (*method, &format!("/{name}{path}"), *body)).await;
            let none = ask("none").await;
            assert!(matches!(none.0, 401 | 403), "{who} {method} {path}: {none:?}");
            for there in ["shut", "room"] {
                assert_eq!(ask(there).await, none, "{who} {method} {there}{path}");
            }
        }
        for spec in OF_REPLICATIONS {
            let ask = async |name: &str| shown(who, name, ("POST", "/_replicate", &spec.replace("ONE", name))).await;
            let none = ask("none").await;
            assert_eq!(none.0, 401, "{who} {spec}: {none:?}");
            for there in ["shut", "room"] {
                assert_eq!(ask(there).await, none, "{who} {there} {spec}");
            }
        }
    }
    assert_eq!(ask(&mut client, "member", "GET", "/shut/doc", "").await.0, 404);
    assert_eq!(ask(&mut client, "root", "GET", "/none", "").await.0, 404);
    root(&mut client, "PUT", "/_node/_local/_config/chttpd/admin_only_all_dbs", &json!("false")).await;
    assert_eq!(ask(&mut client, "outsider", "GET", "/none", "").await.0, 404);
    assert_eq!(ask(&mut client, "outsider", "GET", "/shut", "").await, (403, NOT_ALLOWED.1.to_owned()));
    server.stop().await;
}

/// As in CouchDB, an anonymous reader of views of `_users` gets 403, not 401.
#[tokio::test(flavor = "multi_thread")]
async fn views_of_users_are_forbidden() {
    let (server, mut client) = with_users(&Store::new()).await;
    let design = json!({
        "views": {"v": {"map": "function (doc) { emit(doc.name); }"}},
        "lists": {"l": "function () { while (getRow()); return 'x'; }"},
        "shows": {"s": "function (doc) { return doc.name; }"},
    });
    root(&mut client, "PUT", "/_users/_design/x", &design).await;
    let get = async |who: &str, path: &str| {
        ask(&mut server.connect().await, who, "GET", &format!("/_users/_design/x/{path}"), "").await
    };
    assert_eq!(get("", "_view/v").await.0, 401, "who may not read the database");
    root(&mut client, "PUT", "/_node/_local/_config/couchdb/users_db_security_editable", &json!("true")).await;
    root(&mut client, "PUT", "/_users/_security", &json!({})).await;
    let forbidden = (403, "Only administrators can view design docs in the users database.".to_owned());
    for who in ["", "outsider"] {
        for path in ["_view/v", "_view/v/queries", "_list/l/v"] {
            assert_eq!(get(who, path).await, forbidden, "{who} {path}");
        }
    }
    // A show function is refused even of the reader's own document.
    assert_eq!(get("", "_show/s/org.couchdb.user:outsider").await.0, 401);
    assert_eq!(get("outsider", "_show/s/org.couchdb.user:outsider").await.0, 403);
    assert_eq!(get("root", "_view/v").await.0, 200);
    server.stop().await;
}

/// Registering an administrator's name fails like an existing name, and only the configured password signs in.
#[tokio::test(flavor = "multi_thread")]
async fn names_of_administrators_are_not_registered() {
    let (server, mut client) = with_users(&Store::new()).await;
    let config = "/_node/_local/_config";
    root(&mut client, "PUT", &format!("{config}/couchdb/users_db_security_editable"), &json!("true")).await;
    root(&mut client, "PUT", "/_users/_security", &json!({})).await;
    let user = |name: &str| json!({"name": name, "type": "user", "roles": [], "password": "mine"});
    let put = async |name: &str, body: &Value| {
        let path = format!("/_users/org.couchdb.user:{name}");
        let answer = server.connect().await.call("PUT", &path, &[], body.to_string().as_bytes()).await;
        (answer.status, answer.body)
    };
    // Names are case-sensitive, as in CouchDB.
    for (name, status) in [("root", 409), ("member", 409), ("Root", 201)] {
        assert_eq!(put(name, &user(name)).await.0, status, "{name}");
    }
    // Neither the message nor an invalid document reveals whose name it is.
    assert_eq!(put("root", &user("root")).await, put("member", &user("member")).await);
    for wrong in [json!({}), json!({"name": "x", "type": "user", "roles": []})] {
        assert_eq!(put("root", &wrong).await, put("member", &wrong).await);
        assert_eq!(put("root", &wrong).await.0, 409);
    }
    // The deletion of an unused name reaches the validation.
    for deletion in [json!({"_deleted": true}), json!({"_deleted": true, "_rev": "1-0123456789abcdef0123456789abcdef"})]
    {
        assert_eq!(put("root", &deletion).await, put("member", &deletion).await);
        assert_eq!(put("root", &deletion).await.0, 409);
    }
    assert_eq!(put("unused", &json!({"_deleted": true})).await.0, 403);
    let docs = ["root", "member", "free"].map(|name| {
        let mut document = user(name);
        document["_id"] = json!(format!("org.couchdb.user:{name}"));
        document
    });
    let body = json!({ "docs": docs }).to_string();
    let json_type = [("content-type", "application/json")];
    let answer = server.connect().await.call("POST", "/_users/_bulk_docs", &json_type, body.as_bytes()).await;
    let rows = answer.json();
    assert_eq!((&rows[0]["error"], &rows[1]["error"]), (&json!("conflict"), &json!("conflict")), "{rows}");
    assert_eq!(rows[2]["ok"], true, "{rows}");
    // An administrator may register it; the configured password stays valid.
    root(&mut client, "PUT", "/_users/org.couchdb.user:root", &user("root")).await;
    let signs_in = async |name: &str, password: &str| {
        let authorization = basic(name, password);
        let mut client = server.connect().await;
        client.call("GET", "/_session", &[("authorization", &*authorization)], b"").await
    };
    assert_eq!((signs_in("root", "test").await.status, signs_in("root", "mine").await.status), (200, 401));

    // An existing user who becomes an administrator.
    let credentials = json!({"name": "member", "password": "test"}).to_string();
    let session = server.connect().await.call("POST", "/_session", &[], credentials.as_bytes()).await;
    let cookie = session.header("set-cookie").and_then(|cookie| cookie.split(';').next()).unwrap().to_owned();
    let of_session = async || {
        let answer = server.connect().await.call("GET", "/_session", &[("cookie", &*cookie)], b"").await.json();
        answer["userCtx"]["name"].clone()
    };
    assert_eq!(of_session().await, json!("member"));
    root(&mut client, "PUT", &format!("{config}/admins/member"), &json!("other")).await;
    assert_eq!(of_session().await, Value::Null);
    assert_eq!(signs_in("member", "test").await.status, 401);
    let admin = signs_in("member", "other").await.json();
    assert!(admin["userCtx"]["roles"].as_array().unwrap().contains(&json!("_admin")), "{admin}");
    server.stop().await;
}

/// Followers of all kinds, and their lines.
#[tokio::test(flavor = "multi_thread")]
async fn followers_lose_their_feeds_with_their_rights() {
    let (server, mut client) = with_users(&Store::new()).await;
    root(&mut client, "PUT", "/db", &Value::Null).await;
    root(&mut client, "PUT", "/db/_security", &json!({"members": {"roles": ["team"]}})).await;
    root(&mut client, "PUT", "/db/a", &json!({})).await;
    let follow = async |path: &str| {
        let mut follower = server.connect().await;
        let authorization = basic("member", "test");
        follower.send("GET", path, &[("authorization", &authorization)], b"").await;
        assert_eq!(follower.head().await.status, 200);
        follower
    };
    let mut lines = follow("/db/_changes?feed=continuous&heartbeat=60000").await;
    let mut events = follow("/db/_changes?feed=eventsource&heartbeat=60000").await;
    let mut poll = follow("/db/_changes?feed=longpoll&since=now&heartbeat=60000").await;
    // Long enough that they are followed rather than ending soon.
    pass(Duration::from_millis(500)).await;
    root(&mut client, "PUT", "/db/_security", &json!({"members": {"roles": ["other"]}})).await;
    let rest = async |follower: &mut Client| {
        let (mut text, mut piece) = (String::new(), [0; 4096]);
        loop {
            let count = soon(follower.stream.read(&mut piece)).await.unwrap_or(0);
            text.push_str(&String::from_utf8_lossy(&piece[..count]));
            // The last chunk, or a closed connection without it.
            if count == 0 || text.ends_with("\r\n0\r\n\r\n") {
                let has_heartbeat = text.contains("1\r\n\n\r\n") || text.contains("event: heartbeat");
                assert!(!has_heartbeat, "it went on until something was to be sent: {text}");
                return (text, count > 0);
            }
        }
    };
    // The reason arrives if the client reads it within 250 ms; then the feed is cut.
    let refusal = r#"{"error":"forbidden","reason":"You are not allowed to access this db."}"#;
    let (text, is_whole) = rest(&mut lines).await;
    assert!(!is_whole || text.contains(&format!("{refusal}\n\r\n0")) && !text.contains("last_seq"), "{text}");
    let (text, is_whole) = rest(&mut events).await;
    assert!(!is_whole || text.contains(&format!("event: error\ndata: {refusal}\n\n\r\n0")), "{text}");
    let (text, is_whole) = rest(&mut poll).await;
    assert!(!is_whole && !text.contains("last_seq"), "{text}");
    server.stop().await;
}

/// By password and by session. A user with the same roles keeps the feed.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_is_deleted_loses_their_feeds() {
    let (server, mut client) = with_users(&Store::new()).await;
    make_user(&mut client, "colleague", &["team"]).await;
    root(&mut client, "PUT", "/db", &Value::Null).await;
    root(&mut client, "PUT", "/db/_security", &json!({"members": {"roles": ["team"]}})).await;
    let credentials = json!({"name": "member", "password": "test"}).to_string();
    let session = client.call("POST", "/_session", &[], credentials.as_bytes()).await;
    let session = session.header("set-cookie").and_then(|cookie| cookie.split(';').next()).unwrap().to_owned();
    let follow = async |header: (&str, &str)| {
        let mut follower = server.connect().await;
        follower.send("GET", "/db/_changes?feed=continuous&heartbeat=60000", &[header], b"").await;
        assert_eq!(follower.head().await.status, 200);
        follower
    };
    let mut by_password = follow(("authorization", &basic("member", "test"))).await;
    let mut by_session = follow(("cookie", &session)).await;
    let mut colleague = follow(("authorization", &basic("colleague", "test"))).await;
    let path = "/_users/org.couchdb.user:member";
    let user = client.call("GET", path, &[("authorization", &basic("root", "test"))], b"").await.json();
    let rev = user["_rev"].as_str().unwrap();
    root(&mut client, "DELETE", &format!("{path}?rev={rev}"), &Value::Null).await;
    for follower in [&mut by_password, &mut by_session] {
        let rest = soon(follower.rest()).await;
        let refused = r#"{"error":"unauthorized","reason":"Name or password is incorrect."}"#;
        // The feed may be cut before the reason is sent.
        assert!(!rest.contains('{') || rest.contains(refused), "{rest:?}");
    }
    let again = client.call("GET", "/db/_changes", &[("cookie", &session)], b"").await;
    assert_eq!((again.status, again.text("reason").as_str()), NOT_A_MEMBER);
    root(&mut client, "PUT", "/db/a", &json!({})).await;
    let row = colleague.feed_line(&mut String::new()).await;
    assert!(row.as_deref().is_some_and(|row| row.contains(r#""id":"a""#)), "{row:?}");
    server.stop().await;
}

/// An anonymous feed ends when `require_valid_user` is set; a signed-in one continues.
#[tokio::test(flavor = "multi_thread")]
async fn followers_without_a_name_lose_their_feeds_where_one_is_wanted() {
    let (server, mut client) = with_users(&Store::new()).await;
    root(&mut client, "PUT", "/db", &Value::Null).await;
    root(&mut client, "PUT", "/db/_security", &json!({})).await;
    let follow = async |authorization: Option<&str>| {
        let mut follower = server.connect().await;
        let headers: Vec<_> = authorization.map(|text| ("authorization", text)).into_iter().collect();
        follower.send("GET", "/db/_changes?feed=continuous&heartbeat=60000", &headers, b"").await;
        assert_eq!(follower.head().await.status, 200);
        follower
    };
    let (mut nobody, mut member) = (follow(None).await, follow(Some(&basic("member", "test"))).await);
    for setting in ["require_valid_user_except_for_up", "require_valid_user"] {
        root(&mut client, "PUT", &format!("/_node/_local/_config/chttpd/{setting}"), &json!("true")).await;
        // The reason arrives if the client reads it within 250 ms; then the feed is cut.
        let rest = soon(nobody.rest()).await;
        let refused = r#"{"error":"unauthorized","reason":"Authentication required."}"#;
        assert!(!rest.contains('{') || rest.contains(refused), "{rest:?}");
        root(&mut client, "PUT", &format!("/_node/_local/_config/chttpd/{setting}"), &json!("false")).await;
        nobody = follow(None).await;
    }
    root(&mut client, "PUT", "/db/a", &json!({})).await;
    let row = member.feed_line(&mut String::new()).await;
    assert!(row.as_deref().is_some_and(|row| row.contains(r#""id":"a""#)), "{row:?}");
    server.stop().await;
}

/// Writes continue if the writer's user document changes without losing rights. A former administrator is refused.
#[tokio::test(flavor = "multi_thread")]
async fn writes_go_on_beside_changes_of_who_makes_them() {
    let (server, mut client) = with_users(&Store::new()).await;
    root(&mut client, "PUT", "/db", &Value::Null).await;
    let security = json!({"members": {"roles": ["team"]}, "admins": {"names": ["boss"]}});
    root(&mut client, "PUT", "/db/_security", &security).await;
    let path = "/_users/org.couchdb.user:member";
    let authorization = basic("root", "test");
    for at in 0..8 {
        // The server has cached the account.
        assert_eq!(ask(&mut client, "member", "GET", "/db", "").await.0, 200);
        let mut user = client.call("GET", path, &[("authorization", &authorization)], b"").await.json();
        user["nick"] = json!(at);
        root(&mut client, "PUT", path, &user).await;
        let (put, reason) = ask(&mut client, "member", "PUT", &format!("/db/d{at}"), "{}").await;
        assert_eq!(put, 201, "{reason}");
    }
    let docs = json!({"docs": [{"_id": "a"}, {"_id": "_design/b"}, {"_id": "c"}]}).to_string();
    assert_eq!(ask(&mut client, "boss", "GET", "/db", "").await.0, 200);
    root(&mut client, "PUT", "/db/_security", &json!({"members": {"names": ["boss"]}})).await;
    let headers = [("authorization", &*basic("boss", "test"))];
    let outcomes = client.call("POST", "/db/_bulk_docs", &headers, docs.as_bytes()).await.json();
    let errors: Vec<Option<&str>> = (0..3).map(|at| outcomes[at]["error"].as_str()).collect();
    assert_eq!(errors, [None, Some("forbidden"), None], "{outcomes}");
    assert_eq!(ask(&mut client, "boss", "PUT", "/db/_security", "{}").await, (403, NOT_ITS_ADMIN.1.to_owned()));
    server.stop().await;
}

/// A rewrite gives its author no right beyond those of a database administrator, whichever user follows the link.
#[tokio::test(flavor = "multi_thread")]
async fn rewrites_do_what_their_author_may() {
    let (server, mut client) = with_users(&Store::new()).await;
    let security = json!({"admins": {"roles": ["boss"]}, "members": {"roles": ["team"]}});
    for path in ["/db", "/_replicator", "/a%2F_replicator"] {
        root(&mut client, "PUT", path, &Value::Null).await;
        root(&mut client, "PUT", &format!("{path}/_security"), &security).await;
    }
    let function =
        "function (req) { var to = req.query; return {path: to.path, method: to.method, body: to.body, query: {}}; }";
    let rules = json!([
        {"from": "all", "to": "../..", "query": {}},
        {"from": "purge", "to": "../../_purge"},
        {"from": "made", "to": "../../made"},
        {"from": "out", "to": "../../../db"},
        {"from": "replicate", "to": "../../../_replicate"},
    ]);
    for (path, rewrites) in [
        ("/db/_design/f", json!(function)),
        ("/_replicator/_design/f", json!(function)),
        ("/a%2F_replicator/_design/f", json!(function)),
        ("/db/_design/r", rules),
    ] {
        let (status, reason) =
            ask(&mut client, "boss", "PUT", path, &json!({ "rewrites": rewrites }).to_string()).await;
        assert_eq!(status, 201, "{path} {reason}");
    }
    // With `secure_rewrites`, and without.
    for is_secure in [true, false] {
        let setting = "/_node/_local/_config/chttpd/secure_rewrites";
        root(&mut client, "PUT", setting, &json!(is_secure.to_string())).await;
        let mut refused = vec![
            ("GET", "/db/_design/f/_rewrite/x?method=DELETE&path=../.."),
            ("GET", "/db/_design/f/_rewrite/x?method=PUT&path=../.."),
            ("GET", "/db/_design/f/_rewrite/x?method=POST&path=../../_purge&body=%7B%7D"),
            ("GET", "/db/_design/f/_rewrite/x?method=PUT&path=../../_purged_infos_limit&body=5"),
            ("GET", "/db/_design/f/_rewrite/x?method=GET&path=../../_purged_infos_limit"),
            ("GET", "/db/_design/f/_rewrite/x?method=GET&path=../../../_node/_local/_config"),
            ("GET", "/_replicator/_design/f/_rewrite/x?method=PUT&path=../../job&body=%7B%7D"),
            ("GET", "/a%2F_replicator/_design/f/_rewrite/x?method=PUT&path=../../job&body=%7B%7D"),
            ("DELETE", "/db/_design/r/_rewrite/all"),
            ("POST", "/db/_design/r/_rewrite/purge"),
        ];
        if is_secure {
            // One insecure rule disables all rules.
            refused.retain(|(_, path)| !path.starts_with("/db/_design/r/"));
        } else {
            refused.push(("DELETE", "/db/_design/r/_rewrite/out"));
            refused.push(("POST", "/db/_design/r/_rewrite/replicate"));
        }
        for (method, path) in refused {
            let body = if method == "POST" { "{}" } else { "" };
            // A refusal may leave the body unread and close the connection.
            let mut client = server.connect().await;
            let (status, reason) = ask(&mut client, "root", method, path, body).await;
            assert_eq!(status, 403, "{is_secure} {method} {path} {reason}");
            assert!(reason.starts_with("Rewrites do not lead"), "{method} {path} {reason}");
        }
    }
    // An update function does not begin a replication.
    for database in ["_replicator", "a%2F_replicator"] {
        let update =
            json!({"updates": {"u": "function (doc, req) { return [{_id: 'job', source: 'x', target: 'y'}, 'x']; }"}});
        let path = format!("/{database}/_design/u");
        assert_eq!(ask(&mut client, "boss", "PUT", &path, &update.to_string()).await.0, 201);
        let refused = ask(&mut client, "root", "GET", &format!("{path}/_update/u"), "").await;
        assert_eq!(refused, (403, "Update functions do not begin replications.".to_owned()), "{database}");
    }
    // Documents stay readable and writable, also for the server administrator.
    let made = "/db/_design/f/_rewrite/x?method=PUT&path=../../new&body=%7B%7D";
    assert_eq!(ask(&mut client, "root", "GET", made, "").await.0, 201);
    assert_eq!(ask(&mut client, "root", "PUT", "/db/_design/r/_rewrite/made", "{}").await.0, 201);
    assert_eq!(ask(&mut client, "member", "GET", "/db/_design/r/_rewrite/made", "").await.0, 200);
    // Without the right, the refusal is the same as without a rewrite.
    let refused = ask(&mut client, "boss", "DELETE", "/db/_design/r/_rewrite/all", "").await;
    assert_eq!(refused, (NOT_THE_SERVERS.0, NOT_THE_SERVERS.1.to_owned()));
    server.stop().await;
}
