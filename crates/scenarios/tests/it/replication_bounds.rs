//! The reach of replications of users who are no administrators: on this server their own rights, on the network no
//! internal address.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flatbed_replicator::{AllowedAddresses, Network, ReplicatorOptions, Resolve};
use flatbed_testkit::{pass, until_wanted};
use futures_util::future::LocalBoxFuture;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::{Answer, Options, Running, ServerOptions, Store, soon, within_a_second};

const ADMIN: &str = "Basic YWRtaW46cGFzc3dvcmQ=";
/// `anna:pw`, `bob:pw`
const ANNA: &str = "Basic YW5uYTpwdw==";
const BOB: &str = "Basic Ym9iOnB3";

/// Starts a server with `anna` and `bob`.
async fn server(store: &Store, replicator: ReplicatorOptions) -> Running {
    let replicator = ReplicatorOptions { first_pause: Duration::from_millis(100), ..replicator };
    let server = store.serve(Options { server: ServerOptions::with_admin(), replicator, ..Options::default() }).await;
    users(&server).await;
    server
}

async fn users(server: &Running) {
    ok(server, ADMIN, "PUT", "/_users", Value::Null).await;
    for name in ["anna", "bob"] {
        // SHA-1 of `pw` and the salt.
        let user = json!({"name": name, "type": "user", "roles": [], "password_scheme": "simple", "salt": "salt",
            "password_sha": "2bfa821dd4f3af5adfb5734457839bed7b324819"});
        ok(server, ADMIN, "PUT", &format!("/_users/org.couchdb.user:{name}"), user).await;
    }
}

/// Boxed, here and below, because the test's future contains those of all its calls.
fn asked<'a>(
    server: &'a Running,
    who: &'a str,
    method: &'a str,
    path: &'a str,
    body: Value,
) -> LocalBoxFuture<'a, Answer> {
    Box::pin(async move {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut client = server.connect().await;
        client.call(method, path, &[("authorization", who)], body.as_bytes()).await
    })
}

fn ok<'a>(server: &'a Running, who: &'a str, method: &'a str, path: &'a str, body: Value) -> LocalBoxFuture<'a, Value> {
    Box::pin(async move {
        let answer = asked(server, who, method, path, body).await;
        assert!(answer.status < 300, "{method} {path}: {answer:?}");
        answer.json()
    })
}

async fn database(server: &Running, name: &str, members: &[&str]) {
    ok(server, ADMIN, "PUT", &format!("/{name}"), Value::Null).await;
    let security = json!({"members": {"names": members, "roles": ["none"]}, "admins": {"roles": ["_admin"]}});
    ok(server, ADMIN, "PUT", &format!("/{name}/_security"), security).await;
}

/// Starts a peer that answers each connection with `says`, and collects the first bytes of each connection.
async fn listen(address: SocketAddr, says: String) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let heard: Arc<Mutex<Vec<String>>> = Arc::default();
    let all = heard.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut piece = [0; 1_000];
            let length = stream.read(&mut piece).await.unwrap_or(0);
            let text = String::from_utf8_lossy(&piece[..length]).into_owned();
            all.lock().unwrap().push(text);
            let _ = stream.write_all(says.as_bytes()).await;
        }
    });
    (address, heard)
}

/// Resolves these names to the listed addresses in turn, and other names as the system does.
fn resolver(names: &[(&'static str, &'static [&'static str])]) -> Resolve {
    let names: HashMap<_, _> = names.iter().copied().collect();
    let asked = Mutex::new(HashMap::<String, usize>::new());
    Arc::new(move |authority| {
        let (host, port) = authority.rsplit_once(':').expect("a port");
        let mut asked = asked.lock().unwrap();
        let count = asked.entry(host.to_owned()).or_default();
        let told = names.get(host).map(|each| {
            let text = each.get(*count).or(each.last()).expect("an address");
            *count += 1;
            vec![SocketAddr::new(text.parse().expect("an address"), port.parse().expect("a number"))]
        });
        drop(asked);
        let is_name = host.ends_with("example");
        Box::pin(async move {
            match told {
                Some(addresses) => Ok(addresses),
                None if is_name => Err(io::Error::other("no such host")),
                None => Ok(tokio::net::lookup_host(authority).await?.collect()),
            }
        })
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_within_is_reached_by_users() {
    let store = Store::new();
    let network = Network::new(resolver(&[
        ("inner.example", &["127.0.0.1"]),
        ("metadata.example", &["169.254.169.254"]),
        ("listed.example", &["127.0.0.1"]),
        ("rebinding.example", &["127.0.0.2", "127.0.0.1"]),
    ]));
    let allowed = Arc::new(AllowedAddresses::parse("127.0.0.2,listed.example").unwrap());
    let server =
        server(&store, ReplicatorOptions { network, allowed, user_jobs_max: 100, ..ReplicatorOptions::default() })
            .await;
    database(&server, "a", &["anna"]).await;
    let found = "HTTP/1.1 404 X\r\ncontent-length: 2\r\n\r\n{}".to_owned();
    let (inner, heard) = listen(([127, 0, 0, 1], 0).into(), found.clone()).await;
    let open = inner.port();
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let replicate = async |who: &str, host: &str, is_source: bool| {
        let url = format!("http://{host}/db");
        let (source, target) = if is_source { (url.as_str(), "a") } else { ("a", url.as_str()) };
        asked(&server, who, "POST", "/_replicate", json!({"source": source, "target": target})).await
    };

    let mut told = Vec::new();
    for host in [
        "127.0.0.1",
        "localhost",
        "127.1",
        "2130706433",
        "0x7f000001",
        "017700000001",
        "0.0.0.0",
        "0",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "inner.example",
        "metadata.example",
        "nowhere.example",
        "10.0.0.1",
        "192.168.0.1",
        "169.254.169.254",
        "[fd00:ec2::254]",
        "[fe80::1]",
    ] {
        told.extend([open, closed].map(|port| (format!("{host}:{port}"), port)));
    }
    told.extend(["anna:pw@127.0.0.1", "8.8.8.8@127.0.0.1"].map(|host| (format!("{host}:{open}"), open)));
    let least = Instant::now() + Duration::from_secs(1);
    let answers = told.iter().map(|(host, _)| replicate(ANNA, host, host.len() % 2 == 0));
    for ((host, _), answer) in told.iter().zip(futures_util::future::join_all(answers).await) {
        let reason = answer.text("reason");
        assert_eq!((answer.status, answer.text("error").as_str()), (403, "forbidden"), "{host}: {answer:?}");
        // All refusals have the same text, whatever is at the address.
        let shown = host.rsplit('@').next().unwrap();
        let expected = format!("http://{shown}/db/: the host has no address that replications of users may reach");
        assert_eq!(reason, expected);
    }
    assert!(Instant::now() >= least, "it tells by its time what is there");
    assert!(heard.lock().unwrap().is_empty(), "{heard:?}");
    // Listed hosts are reachable; administrators reach every host.
    for (who, host) in [(ANNA, "listed.example"), (ADMIN, "127.0.0.1"), (ADMIN, "inner.example")] {
        let answer = replicate(who, &format!("{host}:{open}"), true).await;
        assert_eq!((answer.status, answer.text("error").as_str()), (404, "db_not_found"), "{answer:?}");
    }
    assert_eq!(heard.lock().unwrap().len(), 3);
    heard.lock().unwrap().clear();

    // A redirect or a changed name resolution does not lead to an internal address.
    let redirect = format!("HTTP/1.1 302 X\r\nlocation: http://127.0.0.1:{open}/db\r\ncontent-length: 0\r\n\r\n");
    let (outer, sent_on) = listen(SocketAddr::from(([127, 0, 0, 2], open)), redirect).await;
    for host in ["127.0.0.2", "rebinding.example"] {
        let answer = replicate(ANNA, &format!("{host}:{}", outer.port()), true).await;
        assert!(answer.status == 500 && answer.text("reason").contains("302"), "{answer:?}");
    }
    assert_eq!(sent_on.lock().unwrap().len(), 2);
    assert_eq!(replicate(ANNA, &format!("rebinding.example:{open}"), true).await.status, 403);
    assert!(heard.lock().unwrap().is_empty(), "{heard:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn here_they_reach_what_their_owners_reach() {
    let store = Store::new();
    let options = ReplicatorOptions { user_jobs_max: 2, ..ReplicatorOptions::default() };
    let server = server(&store, options).await;
    for (name, members) in [("a", &["anna", "bob"][..]), ("b", &["bob"]), ("c", &["anna"]), ("d", &["anna", "bob"])] {
        database(&server, name, members).await;
    }
    ok(&server, ADMIN, "PUT", "/a/doc", json!({})).await;
    let replicate = async |who: &str, source: &str, target: &str| {
        asked(&server, who, "POST", "/_replicate", json!({"source": source, "target": target})).await
    };
    for (source, target) in [("a", "b"), ("b", "a"), ("_users", "a"), ("_replicator", "a"), ("a", "_users")] {
        let answer = replicate(ANNA, source, target).await;
        assert!(matches!(answer.status, 401 | 404), "{source} {target}: {answer:?}");
    }
    let create = json!({"source": "a", "target": "e", "create_target": true});
    assert_eq!(asked(&server, ANNA, "POST", "/_replicate", create).await.status, 401);
    for (who, source, target) in [(ANNA, "a", "c"), (BOB, "a", "b")] {
        assert_eq!(replicate(who, source, target).await.status, 200);
        let who = if who == ANNA { ANNA } else { BOB };
        ok(&server, who, "GET", &format!("/{target}/doc"), Value::Null).await;
    }

    // Each user has a limit of jobs; other users' jobs do not count.
    let continuous = json!({"source": "a", "target": "d", "continuous": true});
    let begin = async |who: &str, target: &str| {
        let spec = json!({"source": "a", "target": target, "continuous": true});
        asked(&server, who, "POST", "/_replicate", spec).await
    };
    let annas = begin(ANNA, "d").await.text("_local_id");
    assert_eq!(begin(ANNA, "c").await.status, 202);
    assert_eq!(begin(ANNA, "x").await.status, 503);
    let bobs = begin(BOB, "d").await.text("_local_id");
    assert_ne!(annas, bobs);
    let end = async |who: &str, id: &str| {
        asked(&server, who, "POST", "/_replicate", json!({"cancel": true, "replication_id": id})).await.status
    };
    assert_eq!(end(BOB, &annas).await, 401);
    assert_eq!(end(BOB, &bobs).await, 200);
    // The server lists the job until it has ended.
    soon(async { while end(ADMIN, &bobs).await != 404 {} }).await;
    let mut cancel = continuous;
    cancel["cancel"] = json!(true);
    assert_eq!(asked(&server, BOB, "POST", "/_replicate", cancel.clone()).await.status, 404);

    // A job loses its rights with its owner.
    ok(&server, ADMIN, "PUT", "/a/before", json!({})).await;
    until(&server, "/d/before", 200).await;
    let security = json!({"members": {"names": ["bob"], "roles": []}, "admins": {"roles": ["_admin"]}});
    ok(&server, ADMIN, "PUT", "/d/_security", security).await;
    let refused = async || asked(&server, ANNA, "GET", "/d", Value::Null).await.status == 403;
    within_a_second("she is refused", refused).await;
    ok(&server, ADMIN, "PUT", "/a/after", json!({})).await;
    until(&server, "/c/after", 200).await;
    assert_eq!(asked(&server, ADMIN, "GET", "/d/after", Value::Null).await.status, 404);
    let rev = ok(&server, ADMIN, "GET", "/_users/org.couchdb.user:anna", Value::Null).await;
    let rev = rev["_rev"].as_str().unwrap().to_owned();
    ok(&server, ADMIN, "DELETE", &format!("/_users/org.couchdb.user:anna?rev={rev}"), Value::Null).await;
    let jobs = async || ok(&server, ADMIN, "GET", "/_scheduler/jobs", Value::Null).await;
    until_wanted("her jobs end", jobs, |jobs| jobs["total_rows"] == 0).await;
    ok(&server, ADMIN, "PUT", "/a/last", json!({})).await;
    pass(Duration::from_millis(500)).await;
    assert_eq!(asked(&server, ADMIN, "GET", "/c/last", Value::Null).await.status, 404);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_their_owners() {
    let store = Store::new();
    let options = ReplicatorOptions { user_documents_max: 3, ..ReplicatorOptions::default() };
    let server = server(&store, options).await;
    for (name, members) in [("a", &["anna", "bob"][..]), ("b", &["bob"]), ("d", &["anna"])] {
        database(&server, name, members).await;
    }
    ok(&server, ADMIN, "PUT", "/a/doc", json!({})).await;
    ok(&server, ADMIN, "PUT", "/_replicator", Value::Null).await;
    let spec = json!({"source": "a", "target": "d"});
    assert_eq!(asked(&server, ANNA, "PUT", "/_replicator/early", spec.clone()).await.status, 403);
    let security = json!({"members": {"names": ["anna", "bob"], "roles": []}, "admins": {"roles": ["_admin"]}});
    ok(&server, ADMIN, "PUT", "/_replicator/_security", security).await;
    let admitted = async || asked(&server, ANNA, "GET", "/_replicator", Value::Null).await.status == 200;
    within_a_second("she is admitted", admitted).await;

    ok(&server, ANNA, "PUT", "/_replicator/mine", spec).await;
    until(&server, "/d/doc", 200).await;
    let ended = async |id: &str| {
        let path = format!("/_replicator/{id}");
        let look = async || ok(&server, ADMIN, "GET", &path, Value::Null).await;
        until_wanted(id, look, |doc| doc["_replication_state"] != Value::Null).await
    };
    let done = ended("mine").await;
    assert_eq!((&done["owner"], &done["_replication_state"]), (&json!("anna"), &json!("completed")), "{done}");

    // Unreachable targets, and credentials of other users.
    let inner = "http://anna:s3cret@127.0.0.1:1/x";
    for (id, source, target, reason) in [("b", "a", "b", "unauthorized"), ("n", inner, "d", "no address")] {
        ok(&server, ANNA, "PUT", &format!("/_replicator/{id}"), json!({"source": source, "target": target})).await;
        let path = format!("/_scheduler/docs/_replicator/{id}");
        let look = async || ok(&server, ADMIN, "GET", &path, Value::Null).await;
        let is_refused = |shown: &Value| shown["info"]["error"].as_str().is_some_and(|error| error.contains(reason));
        until_wanted(id, look, is_refused).await;
    }
    assert_eq!(asked(&server, ADMIN, "GET", "/b/doc", Value::Null).await.status, 404);
    for owner in [json!("bob"), json!("admin"), json!(null)] {
        let spec = json!({"source": "a", "target": "b", "owner": owner});
        assert_eq!(asked(&server, ANNA, "PUT", "/_replicator/as", spec).await.status, 403);
    }

    // Other users cannot see the job's credentials or change it.
    let own = ok(&server, ANNA, "GET", "/_replicator/n", Value::Null).await;
    assert_eq!(own["source"], inner);
    let seen = ok(&server, BOB, "GET", "/_replicator/n", Value::Null).await;
    assert_eq!((&seen["source"], &seen["owner"]), (&json!("http://127.0.0.1:1/x"), &json!("anna")));
    let rev = own["_rev"].as_str().unwrap();
    let put = json!({"source": "a", "target": "b", "_rev": rev});
    assert_eq!(asked(&server, BOB, "PUT", "/_replicator/n", put).await.status, 403);
    assert_eq!(asked(&server, BOB, "DELETE", &format!("/_replicator/n?rev={rev}"), Value::Null).await.status, 403);
    let bulk = json!({"new_edits": false, "docs": [{"_id": "n", "_rev": "9-abc", "owner": "bob"}]});
    assert!(asked(&server, BOB, "POST", "/_replicator/_bulk_docs", bulk).await.body.contains("forbidden"));
    // Only administrators may write local documents, by any endpoint.
    let bulk = json!({"docs": [{"_id": "beside", "source": "a", "target": "d"}, {"_id": "_local/x"}]});
    for (method, path, body) in [
        ("PUT", "/_replicator/_local/x", json!({})),
        ("POST", "/_replicator", json!({"_id": "_local/x"})),
        ("POST", "/_replicator/_bulk_docs", bulk),
    ] {
        let answer = asked(&server, ANNA, method, path, body).await;
        assert!(answer.body.contains("You are not a db or server admin."), "{method} {path}: {answer:?}");
    }
    let to_local = [("authorization", ANNA), ("destination", "_local/x")];
    let copied = server.connect().await.call("COPY", "/_replicator/n", &to_local, b"").await;
    assert_eq!(copied.status, 403, "{copied:?}");
    for unwritten in ["_local/x", "beside"] {
        let path = format!("/_replicator/{unwritten}");
        assert_eq!(asked(&server, ADMIN, "GET", &path, Value::Null).await.status, 404, "{path}");
    }
    let selector = json!({"selector": {}});
    let docs = json!({"docs": [{"id": "n"}]});
    for (method, path, body) in [
        ("GET", "/_replicator/_all_docs?include_docs=true", Value::Null),
        ("GET", "/_replicator/_changes?include_docs=true", Value::Null),
        ("GET", "/_replicator/_local_docs", Value::Null),
        ("GET", "/_replicator/n?open_revs=all", Value::Null),
        ("GET", "/_replicator/n?attachments=true", Value::Null),
        ("GET", "/_replicator/n?revs=true&latest=true&rev=REV", Value::Null),
        ("POST", "/_replicator/_bulk_get", docs),
        ("POST", "/_replicator/_find", selector.clone()),
        ("POST", "/_replicator/_count", selector),
        ("POST", "/_replicator/_all_docs", json!({"keys": ["n"], "include_docs": true})),
        ("COPY", "/_replicator/n", Value::Null),
    ] {
        let answer = asked(&server, BOB, method, &path.replace("REV", rev), body).await;
        assert!(!answer.body.contains("s3cret"), "{method} {path}: {answer:?}");
    }

    // At the limit of running jobs, two wait.
    ok(&server, ANNA, "PUT", "/_replicator/o", json!({"source": "b", "target": "a"})).await;
    ok(&server, ANNA, "PUT", "/_replicator/p", json!({"source": "b", "target": "a"})).await;
    let failed = ended("p").await;
    assert_eq!(failed["_replication_state"], "failed", "{failed}");
    ok(&server, ANNA, "DELETE", &format!("/_replicator/n?rev={rev}"), Value::Null).await;
    server.stop().await;
}

async fn until(server: &Running, path: &str, status: u16) {
    let look = async || asked(server, ADMIN, "GET", path, Value::Null).await;
    until_wanted(path, look, |answer| answer.status == status).await;
}

/// Refused documents and permanently failing jobs do not delay other owners' documents.
#[tokio::test(flavor = "multi_thread")]
async fn owners_take_turns_at_few_seats() {
    let store = Store::new();
    // Otherwise a job that waits for a retry would keep its seat for ten minutes.
    let replicator = ReplicatorOptions {
        first_pause: Duration::from_secs(600),
        jobs_max: 2,
        user_jobs_max: 2,
        user_documents_max: 3,
        turn: Duration::from_millis(500),
        lease: Duration::from_secs(4),
        ..ReplicatorOptions::default()
    };
    let server = store.serve(Options { server: ServerOptions::with_admin(), replicator, ..Options::default() }).await;
    users(&server).await;
    for (name, members) in [("a", &["anna", "bob"][..]), ("b", &["anna", "bob"])] {
        database(&server, name, members).await;
    }
    ok(&server, ADMIN, "PUT", "/a/doc", json!({})).await;
    ok(&server, ADMIN, "PUT", "/_replicator", Value::Null).await;
    let security = json!({"members": {"names": ["anna", "bob"], "roles": []}, "admins": {"roles": ["_admin"]}});
    ok(&server, ADMIN, "PUT", "/_replicator/_security", security).await;
    let admitted = async || asked(&server, ANNA, "GET", "/_replicator", Value::Null).await.status == 200;
    within_a_second("she is admitted", admitted).await;

    let docs: Vec<Value> = (0..500)
        .map(|n| json!({"_id": format!("anna{n:03}"), "source": format!("missing{n}"), "target": "b", "continuous": true}))
        .collect();
    ok(&server, ANNA, "POST", "/_replicator/_bulk_docs", json!({"docs": docs})).await;
    let states = async || ok(&server, ADMIN, "GET", "/_scheduler/docs?limit=1000", Value::Null).await;
    let is_crashing = |shown: &Value| shown["docs"].as_array().unwrap().iter().any(|doc| doc["state"] == "crashing");
    until_wanted("a job of anna's fails", states, is_crashing).await;

    ok(&server, BOB, "PUT", "/_replicator/bobs", json!({"source": "a", "target": "b"})).await;
    until(&server, "/b/doc", 200).await;
    let look = async || ok(&server, ADMIN, "GET", "/_replicator/bobs", Value::Null).await;
    until_wanted("bob's ends", look, |doc| doc["_replication_state"] == "completed").await;
    server.stop().await;
}
