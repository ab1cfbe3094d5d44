//! `_node/_local/_config` and other endpoints that CouchDB's tools call.

use std::io::Write;

use crate::support::{Answer, Client, Running, ServerOptions, Store, soon, within_a_second};
use flatbed_testkit::until;
use serde_json::{Value, json};

const ROOT: (&str, &str) = ("authorization", "Basic cm9vdDpzZWNyZXQ=");
const CONFIG: &str = "/_node/_local/_config";

fn guarded() -> ServerOptions {
    ServerOptions::guarded_by("root", "secret")
}

async fn config(client: &mut Client, method: &str, path: &str, body: &str) -> Answer {
    let headers = [ROOT, ("content-type", "application/json")];
    client.call(method, &format!("{CONFIG}{path}"), &headers, body.as_bytes()).await
}

async fn value(client: &mut Client, method: &str, path: &str, body: &str) -> (u16, Value) {
    let answer = config(client, method, path, body).await;
    (answer.status, answer.json())
}

async fn serve() -> (Running, Client) {
    let server = Store::new().serve(guarded()).await;
    let client = server.connect().await;
    (server, client)
}

async fn two(store: &Store) -> (Running, Running) {
    (store.serve(guarded()).await, store.serve(guarded()).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn values_are_set_shown_and_removed() {
    let (server, mut client) = serve().await;
    for (method, path, body, status, expected) in [
        ("GET", "/mine", "", 200, json!({})),
        ("PUT", "/mine/key", "\"value\"", 200, json!("")),
        ("PUT", "/mine/key", "\"é \\\"q\\\"\"", 200, json!("value")),
        ("GET", "/mine/key", "", 200, json!("é \"q\"")),
        ("GET", "/mine", "", 200, json!({"key": "é \"q\""})),
        ("DELETE", "/mine/key", "", 200, json!("é \"q\"")),
        ("GET", "/couchdb/single_node", "", 200, json!("true")),
        ("GET", "/httpd/enable_cors", "", 200, json!("false")),
        ("PUT", "/chttpd_auth/timeout", "\"60\"", 200, json!("600")),
        ("GET", "/couch_httpd_auth/timeout", "", 200, json!("60")),
        ("POST", "/_reload", "", 200, json!({"ok": true})),
    ] {
        assert_eq!(value(&mut client, method, path, body).await, (status, expected), "{method} {path}");
    }
    for (method, path, body, status, reason) in [
        ("PUT", "/mine/key", "5", 400, "a JSON string expected"),
        ("PUT", "/mine/key", "", 400, "invalid UTF-8 JSON"),
        ("PUT", "/mine", "\"x\"", 405, "Only GET allowed"),
        ("POST", "/mine/key", "\"x\"", 405, "Only GET,PUT,DELETE allowed"),
        ("GET", "/_reload", "", 405, "Only POST allowed"),
        ("GET", "/mine/none", "", 404, "unknown_config_value"),
        ("DELETE", "/mine/key", "", 404, "unknown_config_value"),
        ("PUT", "/mine/a%5Bb", "\"x\"", 400, "Invalid configuration key"),
        ("PUT", "/mi%5Dne/a", "\"x\"", 400, "Invalid configuration section"),
        ("PUT", "/mine/a", "\"x\\ny\"", 400, "Invalid configuration value"),
        ("PUT", "/query_servers/erlang", "\"x\"", 403, "Config section blacklisted for modification over HTTP API."),
        ("DELETE", "/daemons/x", "", 403, "Config section blacklisted for modification over HTTP API."),
        ("PUT", "/chttpd/require_valid_user", "\"yes\"", 400, "chttpd/require_valid_user: it must be true or false"),
        (
            "PUT",
            "/admins/root",
            "\"other\"",
            403,
            "admins/root is set by the configuration file, which beats what is stored: change it there",
        ),
    ] {
        let answer = config(&mut client, method, path, body).await;
        assert_eq!((answer.status, answer.text("reason").as_str()), (status, reason), "{method} {path}");
    }
    let all = config(&mut client, "GET", "", "").await.json();
    assert_eq!((&all["chttpd_auth"]["timeout"], &all["log"]["level"]), (&json!("60"), &json!("info")));
    let other = client.call("GET", "/_node/none@host/_config", &[ROOT], b"").await;
    assert_eq!((other.status, other.text("reason").as_str()), (404, "no such node: none@host"));
    assert_eq!(client.call("GET", CONFIG, &[], b"").await.status, 401);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_setting_without_an_effect_is_stored_with_a_warning() {
    let (one, other) = two(&Store::new()).await;
    let mut client = one.connect().await;
    let answer = config(&mut client, "PUT", "/couchdb/max_dbs_open", "\"5\"").await;
    assert_eq!((answer.status, answer.json()), (200, json!("")));
    let warning = "299 flatbed \"couchdb/max_dbs_open is stored and has no effect in Flatbed\"";
    assert_eq!(answer.header("warning"), Some(warning));
    let odd = config(&mut client, "PUT", "/mine/%22%C3%A9%5C", "\"x\"").await;
    assert_eq!(odd.header("warning"), Some("299 flatbed \"mine/'?' is stored and has no effect in Flatbed\""));
    let used = config(&mut client, "PUT", "/httpd/enable_cors", "\"true\"").await;
    assert_eq!((used.status, used.header("warning")), (200, None));
    let unused = config(&mut client, "GET", "?unused=true", "").await.json();
    assert_eq!(unused, json!({"couchdb": {"max_dbs_open": "5"}, "mine": {"\"é\\": "x"}}));
    let all = config(&mut client, "GET", "", "").await.json();
    assert_eq!((&all["httpd"]["enable_cors"], &all["couchdb"]["max_dbs_open"]), (&json!("true"), &json!("5")));
    let (status, section) = value(&mut client, "GET", "/httpd", "").await;
    assert_eq!((status, &section["enable_cors"], &section["WWW-Authenticate"]), (200, &json!("true"), &json!("")));
    // Other servers have it, too.
    let mut client = other.connect().await;
    let is_there = async || value(&mut client, "GET", "/couchdb/max_dbs_open", "").await == (200, json!("5"));
    within_a_second("the other knows it", is_there).await;
    assert_eq!(value(&mut client, "DELETE", "/couchdb/max_dbs_open", "").await, (200, json!("5")));
    assert_eq!(value(&mut client, "GET", "/couchdb/max_dbs_open", "").await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_setting_that_does_not_persist_is_of_one_process() {
    let store = Store::new();
    let (one, other) = two(&store).await;
    let (mut client, mut of_other) = (one.connect().await, other.connect().await);
    let mut here = async |method: &str, path: &str, body: &str| {
        let headers = [ROOT, ("content-type", "application/json"), ("x-couch-persist", "false")];
        let answer = client.call(method, &format!("{CONFIG}{path}"), &headers, body.as_bytes()).await;
        (answer.status, answer.json())
    };
    assert_eq!(here("PUT", "/chttpd_auth/timeout", "\"60\"").await, (200, json!("600")));
    assert_eq!(here("PUT", "/chttpd_auth/timeout", "\"61\"").await, (200, json!("60")));
    assert_eq!(here("GET", "/couch_httpd_auth/timeout", "").await, (200, json!("61")));
    assert_eq!(here("GET", "", "").await.1["chttpd_auth"]["timeout"], "61");
    // It takes precedence over what another process stores, and ends with what this one stores.
    assert_eq!(value(&mut of_other, "PUT", "/chttpd_auth/timeout", "\"70\"").await, (200, json!("600")));
    assert_eq!(here("GET", "/chttpd_auth/timeout", "").await, (200, json!("61")));
    let mut storing = one.connect().await;
    assert_eq!(value(&mut storing, "PUT", "/chttpd_auth/timeout", "\"71\"").await, (200, json!("70")));
    assert_eq!(here("GET", "/chttpd_auth/timeout", "").await, (200, json!("71")));
    // Removed, it leaves what is stored.
    assert_eq!(here("DELETE", "/chttpd_auth/timeout", "").await.0, 404);
    assert_eq!(here("PUT", "/chttpd_auth/timeout", "\"62\"").await, (200, json!("71")));
    assert_eq!(here("DELETE", "/chttpd_auth/timeout", "").await, (200, json!("62")));
    assert_eq!(here("GET", "/chttpd_auth/timeout", "").await, (200, json!("71")));
    // A plain removal ends both.
    assert_eq!(here("PUT", "/mine/key", "\"x\"").await, (200, json!("")));
    assert_eq!(value(&mut storing, "DELETE", "/mine/key", "").await, (200, json!("x")));
    assert_eq!(here("GET", "/mine/key", "").await.0, 404);
    for (path, text, status) in [
        ("/admins/anna", "\"pw\"", 400),
        ("/admins/root", "\"pw\"", 403),
        ("/chttpd_auth/timeout", "\"x\"", 400),
        ("/query_servers/erlang", "\"x\"", 403),
    ] {
        assert_eq!(here("PUT", path, text).await.0, status, "{path}");
    }
    one.stop().await;
    let again = store.serve(guarded()).await;
    let mut client = again.connect().await;
    assert_eq!(value(&mut client, "GET", "/chttpd_auth/timeout", "").await, (200, json!("71")));
    other.stop().await;
    again.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_server_knows_administrators_within_a_second() {
    let (one, other) = two(&Store::new()).await;
    let (mut one, mut another) = (one.connect().await, other.connect().await);
    const ANNA: (&str, &str) = ("authorization", "Basic YW5uYTpwdw==");
    assert_eq!(another.call("GET", "/_all_dbs", &[ANNA], b"").await.status, 401);
    assert_eq!(value(&mut one, "PUT", "/admins/anna", "\"pw\"").await, (200, json!("")));
    assert_eq!(one.call("GET", "/_all_dbs", &[ANNA], b"").await.status, 200);
    let asked = async || another.call("GET", "/_all_dbs", &[ANNA], b"").await.status == 200;
    within_a_second("the other knows her", asked).await;
    let hash = config(&mut one, "GET", "/admins/anna", "").await.json();
    assert!(hash.as_str().unwrap().starts_with("-pbkdf2:sha256-"), "{hash}");
    assert_eq!(value(&mut another, "DELETE", "/admins/anna", "").await, (200, hash));
    let refused = async || one.call("GET", "/_all_dbs", &[ANNA], b"").await.status == 401;
    within_a_second("the other knows her no longer", refused).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_server_is_closed_by_its_first_administrator() {
    let store = Store::new();
    let (one, other) = (store.serve(ServerOptions::default()).await, store.serve(ServerOptions::default()).await);
    assert_eq!(other.call("GET", "/_all_dbs", "").await.status, 200);
    assert_eq!(one.call("PUT", &format!("{CONFIG}/admins/root"), "\"secret\"").await.status, 200);
    assert_eq!(one.call("GET", "/_all_dbs", "").await.status, 401);
    let is_closed = async || other.call("GET", "/_all_dbs", "").await.status == 401;
    within_a_second("the other is closed", is_closed).await;
    let mut client = other.connect().await;
    assert_eq!(client.call("GET", "/_all_dbs", &[ROOT], b"").await.status, 200);
    let last = config(&mut client, "DELETE", "/admins/root", "").await;
    assert_eq!(last.status, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn origins_are_allowed_while_servers_run() {
    let (one, other) = two(&Store::new()).await;
    let (mut one, mut other) = (one.connect().await, other.connect().await);
    let origin = ("origin", "https://app.example");
    let allowed = |answer: Answer| answer.header("access-control-allow-origin").map(str::to_owned);
    assert_eq!(allowed(one.call("GET", "/", &[origin], b"").await), None);
    assert_eq!(value(&mut one, "PUT", "/httpd/enable_cors", "\"true\"").await, (200, json!("false")));
    assert_eq!(value(&mut one, "PUT", "/cors/origins", "\"https://app.example\"").await, (200, json!("")));
    assert_eq!(allowed(one.call("GET", "/", &[origin], b"").await).as_deref(), Some("https://app.example"));
    let is_allowed =
        async || allowed(other.call("GET", "/", &[origin], b"").await).as_deref() == Some("https://app.example");
    until("the other allows it", is_allowed).await;
    assert_eq!(value(&mut other, "DELETE", "/cors/origins", "").await, (200, json!("https://app.example")));
    assert_eq!(allowed(other.call("GET", "/", &[origin], b"").await), None);
    assert_eq!(value(&mut one, "PUT", "/limits/head_seconds", "\"5\"").await.0, 200);
    assert_eq!(value(&mut one, "PUT", "/limits/head_seconds", "\"0\"").await.0, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_find_their_feet() {
    let server = Store::new().serve(ServerOptions::default()).await;
    let node = json!("flatbed@localhost");
    assert_eq!(server.ok("GET", "/_membership", json!(null)).await["all_nodes"], json!([node]));
    assert_eq!(server.ok("GET", "/_node/_local", json!(null)).await["name"], node);
    let state = server.ok("GET", "/_cluster_setup", json!(null)).await;
    assert_eq!(state, json!({"state": "single_node_disabled"}));
    let set_up = |action: &str| json!({"action": action, "bind_address": "0.0.0.0", "port": 5984});
    assert_eq!(server.json("POST", "/_cluster_setup", set_up("enable_single_node")).await.0, 201);
    assert_eq!(server.json("POST", "/_cluster_setup", set_up("finish_cluster")).await.0, 400);
    assert_eq!(server.json("POST", "/_cluster_setup", set_up("add_node")).await.0, 400);
    assert_eq!(server.ok("GET", "/_cluster_setup", json!(null)).await, json!({"state": "single_node_enabled"}));
    assert_eq!(server.ok("GET", "/_all_dbs", json!(null)).await, json!(["_replicator", "_users"]));

    server.call("PUT", "/db", "").await;
    let (status, rows) = server.json("POST", "/_dbs_info", json!({"keys": ["db", "none"]})).await;
    assert_eq!((status, &rows[0]["info"]["db_name"]), (200, &json!("db")));
    assert_eq!(rows[1], json!({"key": "none", "error": "not_found"}));
    let all = server.ok("GET", "/_dbs_info?startkey=%22a%22", json!(null)).await;
    assert_eq!((all.as_array().unwrap().len(), &all[0]["key"]), (1, &json!("db")));
    assert_eq!(
        server.ok("GET", "/_dbs_info?keys=[%22db%22,%22none%22]", json!(null)).await.as_array().unwrap().len(),
        1
    );
    for (body, reason) in [
        (json!({}), "`keys` member must exist."),
        (json!({"keys": "x"}), "`keys` member must be an array."),
        (json!([]), "Request body must be a JSON object"),
        (json!({"keys": vec!["x"; 101]}), "too_many_keys"),
    ] {
        assert_eq!(server.json("POST", "/_dbs_info", body).await.1["reason"], reason);
    }
    let stats = server.ok("GET", "/_node/_local/_stats/couchdb/httpd/requests", json!(null)).await;
    assert!(stats["value"].as_u64().unwrap() > 10 && stats["type"] == "counter", "{stats}");
    assert_eq!(server.call("GET", "/_node/_local/_stats/couchdb/none", "").await.status, 404);
    let system = server.ok("GET", "/_node/_local/_system", json!(null)).await;
    assert!(system["uptime"].is_u64() && system["process_limit"].is_u64(), "{system}");
    for member in ["other", "atom", "atom_used", "processes", "processes_used", "binary", "code", "ets"] {
        assert!(system["memory"][member].is_u64(), "{member}: {system}");
    }
    // The most widely used exporter reads these of every node.
    let name = server.ok("GET", "/_membership", json!(null)).await["cluster_nodes"][0].as_str().unwrap().to_owned();
    let stats = server.ok("GET", &format!("/_node/{name}/_stats"), json!(null)).await;
    let time = &stats["couchdb"]["request_time"];
    assert!(time["type"] == "histogram" && time["value"]["n"].as_u64().unwrap() > 10, "{time}");
    let percentiles = time["value"]["percentile"].as_array().unwrap();
    assert!(percentiles.iter().all(|pair| pair[0].is_u64() && pair[1].is_number()), "{time}");
    assert_eq!(stats["mango"]["unindexed_queries"]["type"], "counter");
    assert!(server.ok("GET", "/_node/_local/_active_tasks", json!(null)).await.is_array());
    assert_eq!(server.ok("GET", "/_reshard/jobs", json!(null)).await["total_rows"], 0);
    let utils = server.call("GET", "/_utils/", "").await;
    assert_eq!((utils.status, utils.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(utils.header("content-security-policy").unwrap().contains("default-src 'none'"));
    assert_eq!(server.call("GET", "/favicon.ico", "").await.status, 204);
    let nothing = server.call("GET", "/_node/_local/nothing", "").await;
    assert_eq!((nothing.status, nothing.text("reason").as_str()), (404, "no_db_file"));
}

#[test]
fn limits_have_the_names_that_the_shell_knows() {
    let mut values = flatbed_service::configuration::Values::default();
    for name in flatbed_http::Limits::names() {
        let set = values.insert("limits", name, "100", flatbed_service::configuration::Source::File);
        assert_eq!(set, Ok(()), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn couchdbs_limits_of_sizes_hold() {
    let (server, mut client) = serve().await;
    assert_eq!(client.call("PUT", "/db", &[ROOT], b"").await.status, 201);
    let document = json!({"text": "x".repeat(5_000)}).to_string();
    // A connection ends with a body that is too large.
    let put = async |path: &str, body: &str| {
        let mut client = server.connect().await;
        let answer = client.call("PUT", path, &[ROOT, ("content-type", "application/json")], body.as_bytes()).await;
        (answer.status, answer.json()["error"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(put("/db/a", &document).await.0, 201);
    for (key, error, path) in [
        ("/couchdb/max_document_size", "document_too_large", "/db/b"),
        ("/couchdb/max_attachment_size", "attachment_too_large", "/db/c/file"),
        ("/httpd/max_http_request_size", "too_large", "/db/d"),
    ] {
        assert_eq!(value(&mut client, "PUT", key, "\"2000\"").await.0, 200);
        assert_eq!(put(path, &document).await, (413, error.to_owned()), "{key}");
        assert_eq!(value(&mut client, "DELETE", key, "").await, (200, json!("2000")));
        assert_eq!(put(path, &document).await.0, 201, "{key}");
    }
    // The limit of attachments holds for inflated bytes.
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(&[0; 5_000]).unwrap();
    let sent = encoder.finish().unwrap();
    let gzip = [ROOT, ("content-type", "x/y"), ("content-encoding", "gzip")];
    assert_eq!(value(&mut client, "PUT", "/couchdb/max_attachment_size", "\"2000\"").await.0, 200);
    let refused = server.connect().await.call("PUT", "/db/e/file", &gzip, &sent).await;
    assert_eq!((refused.status, refused.text("error").as_str()), (413, "attachment_too_large"));
    assert_eq!(value(&mut client, "DELETE", "/couchdb/max_attachment_size", "").await.0, 200);
    assert_eq!(server.connect().await.call("PUT", "/db/e/file", &gzip, &sent).await.status, 201);
    let too_small = config(&mut client, "PUT", "/couchdb/max_document_size", "\"999\"").await;
    assert_eq!(too_small.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_are_made_by_the_algorithm_of_the_settings() {
    let (_server, mut client) = serve().await;
    let ids = async |client: &mut Client, algorithm: &str| -> Vec<String> {
        let set = value(client, "PUT", "/uuids/algorithm", &json!(algorithm).to_string()).await;
        assert_eq!(set.0, 200, "{algorithm}");
        let answer = client.call("GET", "/_uuids?count=3", &[ROOT], b"").await.json();
        serde_json::from_value(answer["uuids"].clone()).unwrap()
    };
    for algorithm in ["sequential", "random", "utc_random", "uuid_v7"] {
        let made = ids(&mut client, algorithm).await;
        assert!(made.len() == 3 && made.iter().all(|id| id.len() == 32), "{algorithm}: {made:?}");
    }
    assert!(ids(&mut client, "uuid_v7").await.iter().all(|id| id.as_bytes()[12] == b'7'));
    assert_eq!(value(&mut client, "PUT", "/uuids/utc_id_suffix", "\"_east\"").await.0, 200);
    let made = ids(&mut client, "utc_id").await;
    assert!(made.iter().all(|id| id.len() == 19 && id.ends_with("_east")) && made[0] < made[1], "{made:?}");
    // Documents get such ids, too.
    assert_eq!(client.call("PUT", "/db", &[ROOT], b"").await.status, 201);
    let json = ("content-type", "application/json");
    let posted = client.call("POST", "/db", &[ROOT, json], b"{}").await;
    assert!(posted.text("id").ends_with("_east"), "{posted:?}");
    assert_eq!(value(&mut client, "PUT", "/uuids/max_count", "\"2\"").await, (200, json!("1000")));
    assert_eq!(client.call("GET", "/_uuids?count=3", &[ROOT], b"").await.status, 400);
    assert_eq!(value(&mut client, "PUT", "/uuids/algorithm", "\"none\"").await.0, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn new_databases_are_as_open_as_the_settings_say() {
    let (_server, mut client) = serve().await;
    assert_eq!(client.call("PUT", "/closed", &[ROOT], b"").await.status, 201);
    assert_eq!(value(&mut client, "PUT", "/couchdb/default_security", "\"everyone\"").await.0, 200);
    for name in ["/open", "/_users", "/_replicator", "/team%2F_replicator"] {
        // Databases of the server's own may exist already.
        let status = client.call("PUT", name, &[ROOT], b"").await.status;
        assert!(status == 201 || status == 412, "{name}: {status}");
    }
    for (name, status) in
        [("/closed", 401), ("/open", 200), ("/_users", 401), ("/_replicator", 401), ("/team%2F_replicator", 401)]
    {
        assert_eq!(client.call("GET", &format!("{name}/_all_docs"), &[], b"").await.status, status, "{name}");
    }
    assert_eq!(client.call("GET", "/open/_security", &[ROOT], b"").await.json(), json!({}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_in_maintenance_asks_for_no_requests() {
    let (_server, mut client) = serve().await;
    for (mode, status) in [("true", "maintenance_mode"), ("nolb", "nolb")] {
        let set = value(&mut client, "PUT", "/couchdb/maintenance_mode", &json!(mode).to_string()).await;
        assert_eq!(set.0, 200);
        let up = client.call("GET", "/_up", &[], b"").await;
        assert_eq!((up.status, up.json()), (404, json!({"status": status})));
    }
    assert_eq!(value(&mut client, "DELETE", "/couchdb/maintenance_mode", "").await, (200, json!("nolb")));
    assert_eq!(client.call("GET", "/_up", &[], b"").await.status, 200);
    let welcome = client.call("GET", "/", &[], b"").await.json();
    assert_eq!(welcome["features"], json!(["partitioned", "scheduler", "flatbed"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn new_passwords_follow_the_rules_of_the_settings() {
    let (_server, mut client) = serve().await;
    let status = client.call("PUT", "/_users", &[ROOT], b"").await.status;
    assert!(status == 201 || status == 412, "{status}");
    let rules = json!(r#"[{".{10,}", "At least 10 characters."}, "\\d"]"#).to_string();
    assert_eq!(value(&mut client, "PUT", "/couch_httpd_auth/password_regexp", &rules).await, (200, json!("[]")));
    let mut put = async |password: &str| {
        let body = json!({"name": "anna", "password": password, "roles": [], "type": "user"}).to_string();
        let headers = [ROOT, ("content-type", "application/json")];
        client.call("PUT", "/_users/org.couchdb.user:anna", &headers, body.as_bytes()).await
    };
    for (password, reason) in [("short 1", " At least 10 characters."), ("long enough", "")] {
        let refused = put(password).await;
        assert_eq!((refused.status, refused.text("error").as_str()), (400, "bad_request"));
        assert_eq!(refused.text("reason"), format!("Password does not conform to requirements.{reason}"));
    }
    assert_eq!(put("long enough 1").await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_have_the_limits_of_the_settings() {
    let (server, mut client) = serve().await;
    assert_eq!(client.call("PUT", "/db?partitioned=true", &[ROOT], b"").await.status, 201);
    let documents: Vec<Value> = (0..30).map(|at| json!({"_id": format!("p:{at:02}")})).collect();
    let headers = [ROOT, ("content-type", "application/json")];
    let body = json!({"docs": documents}).to_string();
    assert_eq!(client.call("POST", "/db/_bulk_docs", &headers, body.as_bytes()).await.status, 201);
    let mut count = async |method: &str, path: &str, body: &str, member: &str| {
        let answer = client.call(method, path, &headers, body.as_bytes()).await;
        match answer.status {
            200 => Ok(answer.json()[member].as_array().unwrap().len()),
            _ => Err(answer.text("reason")),
        }
    };
    const ALL: &str = "/db/_all_docs";
    const PART: &str = "/db/_partition/p/_all_docs";
    const FIND: &str = r#"{"selector":{}}"#;
    assert_eq!(count("GET", ALL, "", "rows").await, Ok(30));
    assert_eq!(count("POST", "/db/_find", FIND, "docs").await, Ok(25));
    let mut setter = server.connect().await;
    for (key, most) in [
        ("query_server_config/query_limit", 4),
        ("query_server_config/partition_query_limit", 3),
        ("mango/default_limit", 2),
    ] {
        let set = value(&mut setter, "PUT", &format!("/{key}"), &format!("\"{most}\"")).await;
        assert_eq!(set.0, 200, "{key}");
    }
    assert_eq!(count("GET", ALL, "", "rows").await, Ok(4));
    assert_eq!(count("GET", &format!("{ALL}?limit=3"), "", "rows").await, Ok(3));
    assert_eq!(count("GET", PART, "", "rows").await, Ok(3));
    let refused = |most| Err(format!("Limit is too large, must not exceed {most}"));
    assert_eq!(count("GET", &format!("{ALL}?limit=5"), "", "rows").await, refused(4));
    assert_eq!(count("POST", ALL, r#"{"limit":5}"#, "rows").await, refused(4));
    assert_eq!(count("POST", "/db/_all_docs/queries", r#"{"queries":[{"limit":5}]}"#, "results").await, refused(4));
    assert_eq!(count("GET", &format!("{PART}?limit=4"), "", "rows").await, refused(3));
    assert_eq!(count("POST", "/db/_find", FIND, "docs").await, Ok(2));
    assert_eq!(count("POST", "/db/_find", r#"{"selector":{},"limit":9}"#, "docs").await, Ok(9));
}

#[tokio::test(flavor = "multi_thread")]
async fn replications_have_the_options_of_the_settings() {
    let (_server, mut client) = serve().await;
    for path in ["/a", "/a/doc", "/b", "/c"] {
        let body = if path == "/a/doc" { "{}" } else { "" };
        let headers = [ROOT, ("content-type", "application/json")];
        assert_eq!(client.call("PUT", path, &headers, body.as_bytes()).await.status, 201, "{path}");
    }
    for (text, target, checkpoints) in [("false", "b", 0), ("true", "c", 1)] {
        let set = value(&mut client, "PUT", "/replicator/use_checkpoints", &json!(text).to_string()).await;
        assert_eq!(set.0, 200);
        let headers = [ROOT, ("content-type", "application/json")];
        let spec = json!({"source": "a", "target": target}).to_string();
        let done = client.call("POST", "/_replicate", &headers, spec.as_bytes()).await;
        assert_eq!(done.status, 200, "{done:?}");
        let found = client.call("GET", "/a/_local_docs", &[ROOT], b"").await.json();
        assert_eq!(found["rows"].as_array().unwrap().len(), checkpoints, "{found}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_partition_takes_no_documents() {
    let (_server, mut client) = serve().await;
    assert_eq!(client.call("PUT", "/db?partitioned=true", &[ROOT], b"").await.status, 201);
    assert_eq!(value(&mut client, "PUT", "/couchdb/max_partition_size", "\"1000\"").await, (200, json!("0")));
    let headers = [ROOT, ("content-type", "application/json")];
    let large = json!({"text": "x".repeat(2_000)}).to_string();
    let made = client.call("PUT", "/db/p:large", &headers, large.as_bytes()).await;
    assert_eq!(made.status, 201);
    let refused = client.call("PUT", "/db/p:a", &headers, b"{}").await;
    assert_eq!((refused.status, refused.text("error").as_str()), (403, "partition_overflow"));
    assert_eq!(refused.text("reason"), "Partition limit exceeded due to update on 'p:a'");
    let docs = json!({"docs": [{"_id": "p:b"}, {"_id": "q:b"}]}).to_string();
    let bulk = client.call("POST", "/db/_bulk_docs", &headers, docs.as_bytes()).await.json();
    assert_eq!((&bulk[0]["error"], &bulk[1]["ok"]), (&json!("partition_overflow"), &json!(true)));
    let rev = format!("1-{}", "a".repeat(32));
    let replicated = json!({"new_edits": false, "docs": [{"_id": "p:c", "_rev": rev}]}).to_string();
    let bulk = client.call("POST", "/db/_bulk_docs", &headers, replicated.as_bytes()).await;
    assert_eq!((bulk.status, bulk.json()), (201, json!([])));
    let path = format!("/db/p:large?rev={}", made.text("rev"));
    assert_eq!(client.call("DELETE", &path, &[ROOT], b"").await.status, 200);
    assert_eq!(client.call("PUT", "/db/p:a", &headers, b"{}").await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plus_in_a_path_is_as_the_settings_say() {
    let (_server, mut client) = serve().await;
    assert_eq!(client.call("PUT", "/db", &[ROOT], b"").await.status, 201);
    let headers = [ROOT, ("content-type", "application/json")];
    assert_eq!(client.call("PUT", "/db/a+b", &headers, b"{}").await.text("id"), "a b");
    assert_eq!(value(&mut client, "PUT", "/chttpd/decode_plus_to_space", "\"false\"").await, (200, json!("true")));
    assert_eq!(client.call("PUT", "/db/a+b", &headers, b"{}").await.text("id"), "a+b");
    assert_eq!(client.call("GET", "/db/a%20b", &[ROOT], b"").await.text("_id"), "a b");
    // Query strings are forms, where it is always a space.
    let found = client.call("GET", "/db/_all_docs?key=%22a+b%22", &[ROOT], b"").await.json();
    assert_eq!(found["rows"][0]["id"], "a b");
}

#[tokio::test(flavor = "multi_thread")]
async fn places_are_of_the_headers_that_the_settings_name() {
    let store = Store::new();
    let server = store.serve(guarded()).await;
    let mut client = server.connect().await;
    assert_eq!(client.call("PUT", "/db", &[ROOT], b"").await.status, 201);
    let (host, tls, scheme) = (("x-public-host", "b.example"), ("x-tls", "on"), ("x-scheme", "https"));
    let said = [("x-forwarded-host", "a.example"), ("x-forwarded-ssl", "on"), ("x-forwarded-proto", "https"), host];
    let mut written = 0;
    let mut location = async |client: &mut Client, headers: &[(&str, &str)]| {
        written += 1;
        let headers = [&[ROOT, ("content-type", "application/json")], headers].concat();
        let answer = client.call("PUT", &format!("/db/{written}"), &headers, b"{}").await;
        let place = answer.header("location").unwrap().to_owned();
        place.strip_suffix(&format!("/db/{written}")).unwrap().to_owned()
    };
    assert_eq!(location(&mut client, &said).await, "https://a.example");
    let set = value(&mut client, "PUT", "/httpd/x_forwarded_host", "\"X-Public-Host\"").await;
    assert_eq!(set, (200, json!("X-Forwarded-Host")));
    for (key, name) in [("x_forwarded_ssl", "X-Tls"), ("x_forwarded_proto", "X-Scheme")] {
        let set = value(&mut client, "PUT", &format!("/chttpd/{key}"), &json!(name).to_string()).await;
        assert_eq!(set.0, 200, "{set:?}");
    }
    assert_eq!(location(&mut client, &said).await, "http://b.example");
    assert_eq!(location(&mut client, &[host, tls]).await, "https://b.example");
    assert_eq!(location(&mut client, &[scheme]).await, "https://localhost");
    // Pages of other origins send or set these.
    for name in ["Origin", "Referer", "Accept-Language"] {
        let set = value(&mut client, "PUT", "/chttpd/x_forwarded_host", &json!(name).to_string()).await;
        assert_eq!(set.0, 400, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn feeds_wait_as_long_as_the_settings_say() {
    let (_server, mut client) = serve().await;
    assert_eq!(client.call("PUT", "/db", &[ROOT], b"").await.status, 201);
    assert_eq!(value(&mut client, "PUT", "/httpd/changes_timeout", "\"1\"").await, (200, json!("60000")));
    for query in ["", "&timeout=3600000"] {
        let path = format!("/db/_changes?feed=longpoll&since=now{query}");
        // Without the setting it ends after a minute.
        let answer = soon(client.call("GET", &path, &[ROOT], b"")).await;
        assert_eq!((answer.status, &answer.json()["results"]), (200, &json!([])));
    }
    let long = config(&mut client, "PUT", "/chttpd/changes_timeout", "\"infinity\"").await;
    assert!(long.header("warning").is_some_and(|warning| warning.contains("counts as 60000")), "{long:?}");
}
