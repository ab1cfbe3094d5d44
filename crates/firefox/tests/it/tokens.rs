//! The token server: all recorded answers, admission, and changing keys.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD};
use bytes::Bytes;
use flatbed_firefox::hawk::HawkAuthority;
use flatbed_firefox::{JwksOptions, Secret, TokenOptions};
use flatbed_syncstorage::accounts::Admission;
use hyper::Request;
use ring::rand::SystemRandom;
use ring::rsa::PublicKeyComponents;
use ring::signature::{KeyPair, RSA_PKCS1_SHA256, RsaKeyPair};
use serde_json::{Value, json};

use crate::signing::{Credentials, Signing, now};
use crate::support::{Answer, Disk, Options, Running, SECRET, recorded, send};

const SCOPE: &str = "https://identity.mozilla.com/apps/oldsync";
const ISSUER: &str = "https://accounts.example";

/// Keys of these tests alone.
const ACCOUNTS: &[u8] = include_bytes!("../data/accounts.pk8");
const STRANGER: &[u8] = include_bytes!("../data/stranger.pk8");

fn jwks(keys: &[(&str, &[u8])]) -> Vec<u8> {
    let keys = keys.iter().map(|(kid, key)| {
        let key = RsaKeyPair::from_pkcs8(key).unwrap();
        let PublicKeyComponents { n, e } = PublicKeyComponents::<Vec<u8>>::from(key.public_key());
        let (n, e) = (URL_SAFE_NO_PAD.encode(n), URL_SAFE_NO_PAD.encode(e));
        json!({"kty": "RSA", "use": "sig", "alg": "RS256", "kid": kid, "n": n, "e": e})
    });
    json!({"keys": keys.collect::<Vec<_>>()}).to_string().into_bytes()
}

/// Returns a bearer token.
fn jwt(key: &[u8], kid: &str, typ: &str, claims: &Value) -> String {
    let header = json!({"alg": "RS256", "typ": typ, "kid": kid}).to_string();
    let text = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims.to_string()));
    let key = RsaKeyPair::from_pkcs8(key).unwrap();
    let mut signature = vec![0; key.public().modulus_len()];
    key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text.as_bytes(), &mut signature).unwrap();
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
}

fn claims(account: &str, generation: &Value) -> Value {
    let mut claims = json!({"sub": account, "scope": SCOPE, "iss": ISSUER, "exp": now() + 3_600, "aud": "a client"});
    if !generation.is_null() {
        claims["fxa-generation"] = generation.clone();
    }
    claims
}

/// Keys that a test may change, and the number of their reads.
#[derive(Clone, Default)]
struct Published {
    text: Arc<Mutex<Vec<u8>>>,
    reads: Arc<AtomicUsize>,
}

impl Published {
    fn new(keys: &[(&str, &[u8])]) -> Published {
        let published = Published::default();
        *published.text.lock().unwrap() = jwks(keys);
        published
    }

    fn options(&self, keep: Duration, pause: Duration, admission: Admission) -> TokenOptions {
        let published = self.clone();
        let fetch = Arc::new(move || {
            published.reads.fetch_add(1, Ordering::Relaxed);
            let text = published.text.lock().unwrap().clone();
            let read = if text.is_empty() { Err("nothing there".to_owned()) } else { Ok(text) };
            Box::pin(async move { read }) as std::pin::Pin<Box<dyn Future<Output = _> + Send>>
        });
        let jwks = JwksOptions { fetch, keep, pause, last: HOUR };
        TokenOptions { jwks, issuer: ISSUER.to_owned(), admission, duration_seconds: 3_600 }
    }

    fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }
}

async fn serve(disk: &Disk, tokens: TokenOptions) -> Running {
    Running::on(disk, Options { tokens: Some(tokens), ..Options::default() }).await
}

fn everyone() -> Admission {
    Admission { everyone: true, ..Admission::default() }
}

const HOUR: Duration = Duration::from_secs(3_600);

/// A request for a token.
struct Ask {
    method: String,
    path: String,
    authorization: Option<String>,
    headers: Vec<(String, String)>,
}

impl Ask {
    /// Creates a request with a token of the accounts and the id of the device's keys.
    fn of(account: &str, generation: u64, key_id: &str) -> Ask {
        let token = jwt(ACCOUNTS, "k1", "at+jwt", &claims(account, &generation.into()));
        Ask {
            method: "GET".to_owned(),
            path: "/1.0/sync/1.5".to_owned(),
            authorization: Some(format!("Bearer {token}")),
            headers: vec![("x-keyid".to_owned(), key_id.to_owned())],
        }
    }

    async fn send(&self, server: &Running) -> Answer {
        let mut request =
            Request::builder().method(&*self.method).uri(&self.path).header("host", server.address.to_string());
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        send(server.address, request.body(Bytes::new().into()).unwrap()).await
    }
}

fn ask(request: &Value, account: &str) -> Ask {
    let mut claims = claims(account, &request["generation"]);
    let (mut key, mut typ, mut scheme) = (ACCOUNTS, "at+jwt", "Bearer");
    match request["jwt"].as_str() {
        None => {}
        Some("otherkey") => key = STRANGER,
        Some("expired") => claims["exp"] = (now() - 10).into(),
        Some("typ") => typ = "JWT",
        Some("noscope") => drop(claims.as_object_mut().unwrap().remove("scope")),
        Some("otherscope") => claims["scope"] = "profile".into(),
        Some("twoscopes") => claims["scope"] = format!("profile {SCOPE}").into(),
        Some("commascopes") => claims["scope"] = format!("profile,{SCOPE}").into(),
        Some("bearercase") => scheme = "bEARER",
        Some(other) => panic!("{other}"),
    }
    let token = format!("{scheme} {}", jwt(key, "k1", typ, &claims));
    let mut headers: Vec<(String, String)> = Vec::new();
    headers.extend(request["keyid"].as_str().map(|id| ("x-keyid".to_owned(), id.to_owned())));
    for (name, value) in request["headers"].as_object().into_iter().flatten() {
        headers.push((name.to_lowercase(), value.as_str().unwrap().to_owned()));
    }
    let path = request["path"].as_str().unwrap_or("/1.0/sync/1.5");
    Ask {
        method: request["method"].as_str().unwrap_or("GET").to_owned(),
        path: format!("{path}{}", request["query"].as_str().unwrap_or_default()),
        authorization: match request["auth"].as_str() {
            None => Some(token),
            Some("") => None,
            Some(auth) => Some(auth.to_owned()),
        },
        headers,
    }
}

/// Returns an answer in the recorded form. `asked_at`: the time of the request. `users`: the users of the scenario so
/// far.
fn tidy(answer: &Answer, asked_at: i64, node: &str, account: &str, users: &mut Vec<u64>) -> Value {
    let mut headers = serde_json::Map::new();
    let time_is_now = |text: &str| (asked_at..=now()).contains(&(text.parse::<f64>().unwrap() as i64));
    for name in
        ["content-type", "allow", "www-authenticate", "x-content-type-options", "x-timestamp", "x-weave-timestamp"]
    {
        let Some(value) = answer.header(name) else { continue };
        let is_time = name.ends_with("timestamp");
        headers.insert(name.to_owned(), if is_time && time_is_now(&value) { "now".into() } else { value.into() });
    }
    let mut tidy = json!({"status": answer.status, "headers": headers});
    if answer.header("content-type").is_none() {
        tidy["text"] = String::from_utf8_lossy(&answer.body).into();
        return tidy;
    }
    let mut body = answer.json();
    if answer.status == 200 {
        let uid = body["uid"].as_u64().unwrap();
        if !users.contains(&uid) {
            users.push(uid);
        }
        let name = format!("u{}", users.iter().position(|user| *user == uid).unwrap() + 1);
        let id = body["id"].as_str().unwrap().to_owned();
        let token = URL_SAFE.decode(&id).unwrap();
        let mut token: Value = serde_json::from_slice(&token[..token.len() - 32]).unwrap();
        let hex = |value: &Value, digits: usize| {
            let text = value.as_str().unwrap();
            assert!(text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit()), "{text}");
            format!("({digits} hex digits)")
        };
        let secret = Secret::new(SECRET);
        assert_eq!(body["key"], secret.key_of(&id, token["salt"].as_str().unwrap()));
        assert_eq!(token["uid"], uid);
        assert_eq!(token["hashed_fxa_uid"], body["hashed_fxa_uid"]);
        body["api_endpoint"] =
            body["api_endpoint"].as_str().unwrap().replace(node, "NODE").replace(&uid.to_string(), &name).into();
        assert_eq!(token["node"], node);
        token["node"] = "NODE".into();
        assert_eq!(token["fxa_uid"], account);
        token["fxa_uid"] = "(sub)".into();
        let expires = token["expires"].as_i64().unwrap();
        let duration = body["duration"].as_i64().unwrap();
        assert!((asked_at..=now()).contains(&(expires - duration)), "{expires} {duration}");
        token["expires"] = format!("now+{duration}").into();
        token["uid"] = name.clone().into();
        token["salt"] = hex(&token["salt"], 6).into();
        for hashed in ["hashed_fxa_uid", "hashed_device_id"] {
            token[hashed] = hex(&token[hashed], 32).into();
        }
        body["hashed_fxa_uid"] = hex(&body["hashed_fxa_uid"], 32).into();
        body["uid"] = name.into();
        body["key"] = "(derived)".into();
        body["id"] = json!({"token": token});
        // The only difference is the type of the storage.
        assert_eq!(body["node_type"], "foundationdb");
        body["node_type"] = "mysql".into();
    }
    tidy["json"] = body;
    tidy
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_answers() {
    let disk = Disk::new();
    let published = Published::new(&[("k1", ACCOUNTS)]);
    let server = serve(&disk, published.options(HOUR, Duration::ZERO, everyone())).await;
    let node = format!("http://{}", server.address);
    let (mut count, mut wrong) = (0, Vec::new());
    for (number, scenario) in recorded("tokenserver.jsonl").into_iter().enumerate() {
        let (account, mut users) = (format!("{number:032x}"), Vec::new());
        for step in scenario["steps"].as_array().unwrap() {
            let asked_at = now();
            let answer = ask(&step["request"], &account).send(&server).await;
            let got = tidy(&answer, asked_at, &node, &account, &mut users);
            let mut want = step.clone();
            want.as_object_mut().unwrap().remove("request");
            if got != want {
                wrong.push(format!("{} {}:\n    {got}\n    {want}", scenario["scenario"], step["request"]));
            }
            count += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!((count, published.reads()), (69, 1));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_opens_a_storage() {
    let disk = Disk::new();
    let published = Published::new(&[("k1", ACCOUNTS)]);
    let server = serve(&disk, published.options(HOUR, HOUR, everyone())).await;
    let token = Ask::of("anna", 5, "5-qqo").send(&server).await.json();
    let target = format!("/1.5/{}/info/collections", token["uid"]);
    assert_eq!(token["api_endpoint"], format!("http://{}/1.5/{}", server.address, token["uid"]));
    let text = |name: &str| token[name].as_str().unwrap().to_owned();
    let credentials = Credentials { id: text("id"), key: text("key") };
    let place = HawkAuthority { host: server.address.ip().to_string(), port: server.address.port() };
    let signing = Signing { method: "GET", target: &target, place, at: now(), ext: "", body: None };
    let request = Request::get(&target)
        .header("host", server.address.to_string())
        .header("authorization", signing.sign(&credentials).text());
    let answer = send(server.address, request.body(Bytes::new().into()).unwrap()).await;
    assert_eq!((answer.status, answer.json()), (200, json!({})));
    server.stop().await;
}

async fn statuses(server: &Running, accounts: &[&str]) -> Vec<u16> {
    let mut statuses = Vec::new();
    for account in accounts {
        statuses.push(Ask::of(account, 5, "5-qqo").send(server).await.status);
    }
    statuses
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_who_is_let_in() {
    let disk = Disk::new();
    let published = Published::new(&[("k1", ACCOUNTS)]);
    let accounts: HashSet<String> = ["anna".to_owned()].into();
    let listed = Admission { accounts, ..Admission::default() };
    let server = serve(&disk, published.options(HOUR, HOUR, listed.clone())).await;
    assert_eq!(statuses(&server, &["anna", "bert", "anna"]).await, [200, 403, 200]);
    let refused = Ask::of("bert", 5, "5-qqo").send(&server).await.json();
    assert_eq!(refused["status"], "new-users-disabled");
    server.stop().await;
    // The first accounts, including the existing ones.
    let server = serve(&disk, published.options(HOUR, HOUR, Admission { first_users: 2, ..listed.clone() })).await;
    assert_eq!(statuses(&server, &["bert", "carl", "bert", "anna"]).await, [200, 403, 200, 200]);
    server.stop().await;
    // An account that is neither listed nor one of the first is refused again.
    let server = serve(&disk, published.options(HOUR, HOUR, listed)).await;
    assert_eq!(statuses(&server, &["bert", "anna"]).await, [403, 200]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_account_has_one_user_whoever_asks_first() {
    let disk = Disk::new();
    let published = Published::new(&[("k1", ACCOUNTS)]);
    let first = || Admission { first_users: 1, ..Admission::default() };
    let one = serve(&disk, published.options(HOUR, HOUR, first())).await;
    let other = serve(&disk, published.options(HOUR, HOUR, first())).await;
    let mut asked = tokio::task::JoinSet::new();
    let servers = [Arc::new(one), Arc::new(other)];
    for number in 0..12 {
        let server = servers[number % 2].clone();
        let account = ["anna", "bert"][number / 2 % 2];
        asked.spawn(async move { (account, Ask::of(account, 5, "5-qqo").send(&server).await) });
    }
    let mut users = HashSet::new();
    while let Some(done) = asked.join_next().await {
        let (account, answer) = done.unwrap();
        if answer.status == 200 {
            users.insert((account, answer.json()["uid"].as_u64().unwrap()));
        } else {
            assert_eq!(answer.status, 403);
        }
    }
    assert_eq!(users.len(), 1, "{users:?}");
    for server in servers {
        Arc::into_inner(server).unwrap().stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_change() {
    let disk = Disk::new();
    let published = Published::new(&[("k1", ACCOUNTS)]);
    let stranger = || Ask {
        authorization: Some(format!("Bearer {}", jwt(STRANGER, "k2", "at+jwt", &claims("anna", &5.into())))),
        ..Ask::of("anna", 5, "5-qqo")
    };
    // The keys were read just now: a token of an unknown key causes no further read.
    let server = serve(&disk, published.options(HOUR, HOUR, everyone())).await;
    assert_eq!(statuses(&server, &["anna", "anna"]).await, [200, 200]);
    for _ in 0..5 {
        assert_eq!(stranger().send(&server).await.status, 401);
    }
    assert_eq!(published.reads(), 1);
    server.stop().await;
    // After the pause between two reads it does.
    let server = serve(&disk, published.options(HOUR, Duration::ZERO, everyone())).await;
    assert_eq!(statuses(&server, &["anna", "anna"]).await, [200, 200]);
    assert_eq!(published.reads(), 2);
    assert_eq!(stranger().send(&server).await.status, 401);
    assert_eq!(published.reads(), 3);
    // A new key is found, and the former one is gone.
    *published.text.lock().unwrap() = jwks(&[("k2", STRANGER)]);
    assert_eq!(stranger().send(&server).await.status, 200);
    assert_eq!(published.reads(), 4);
    assert_eq!(statuses(&server, &["anna"]).await, [401]);
    assert_eq!(published.reads(), 5);
    // If no keys can be read, the known ones stay valid.
    published.text.lock().unwrap().clear();
    assert_eq!(statuses(&server, &["anna"]).await, [401]);
    assert_eq!(stranger().send(&server).await.status, 200);
    assert_eq!(published.reads(), 6);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_keys_nobody_is_believed() {
    let disk = Disk::new();
    let published = Published::default();
    let server = serve(&disk, published.options(HOUR, Duration::ZERO, everyone())).await;
    assert_eq!(statuses(&server, &["anna"]).await, [503]);
    server.stop().await;
    // A server without a token server has no such path.
    let server = Running::on(&disk, Options::default()).await;
    assert_eq!(statuses(&server, &["anna"]).await, [404]);
    server.stop().await;
}
