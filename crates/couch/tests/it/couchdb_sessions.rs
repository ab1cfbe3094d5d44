//! A replicator that signs in as CouchDB 3.5's does (`couch_replicator_auth_session`). It begins with a form to `POST
//! /_session`, continues with the cookie, takes renewed cookies from any answer, and renews after nine tenths of the
//! cookie's lifetime. It retries a refused request once with a new session, and falls back to the password if the
//! server has no sessions.

use std::time::{Duration, Instant};

use flatbed_testkit::until;
use serde_json::{Value, json};

use crate::support::{ADMIN, Answer, Client, Running, ServerOptions, Store};

/// The refresh interval if a cookie names no lifetime.
const REFRESH: Duration = Duration::from_secs(550);

/// The sign-in of CouchDB's replicator.
struct Replicator {
    client: Client,
    name: String,
    password: String,
    cookie: Option<String>,
    refresh_at: Instant,
    /// The refresh interval of the current cookie.
    refresh_within: Duration,
    begun: usize,
    /// Renewed cookies taken from other answers.
    taken: usize,
}

#[derive(Debug, PartialEq)]
enum Failed {
    Unauthorized,
    Forbidden,
    NotSupported,
    Other(u16),
}

/// Encodes a form as `mochiweb_util:urlencode` does.
fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'~' | b'_' => char::from(byte).to_string(),
        b' ' => "+".to_owned(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

impl Replicator {
    async fn begin(server: &Running, name: &str, password: &str) -> Result<Replicator, Failed> {
        let client = server.connect().await;
        let (name, password) = (name.to_owned(), password.to_owned());
        let (refresh_at, refresh_within) = (Instant::now(), Duration::ZERO);
        let (cookie, begun, taken) = (None, 0, 0);
        let mut replicator = Replicator { client, name, password, cookie, refresh_at, refresh_within, begun, taken };
        replicator.refresh().await?;
        Ok(replicator)
    }

    async fn refresh(&mut self) -> Result<(), Failed> {
        let form = format!("name={}&password={}", encoded(&self.name), encoded(&self.password));
        let headers = [
            ("accept", "application/json"),
            ("content-type", "application/x-www-form-urlencoded"),
            ("user-agent", "CouchDB-Replicator/3.5.0"),
        ];
        let answer = self.client.call("POST", "/_session", &headers, form.as_bytes()).await;
        match answer.status {
            200..=299 if self.take(&answer) => {
                self.begun += 1;
                Ok(())
            }
            401 => Err(Failed::Unauthorized),
            403 => Err(Failed::Forbidden),
            404 => Err(Failed::NotSupported),
            status => Err(Failed::Other(status)),
        }
    }

    /// Takes the cookie of an answer, if any.
    fn take(&mut self, answer: &Answer) -> bool {
        let lines = answer.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("set-cookie"));
        let mut found = false;
        for (_, line) in lines {
            let mut parts = line.split(';').map(|part| part.trim().split_once('=').unwrap_or((part.trim(), "")));
            let Some(("AuthSession", value)) = parts.next() else { continue };
            let age = parts.find(|(name, _)| name.eq_ignore_ascii_case("max-age"));
            let age = age.map(|(_, seconds)| Duration::from_secs(seconds.parse().expect("a number of seconds")));
            self.cookie = Some(format!("AuthSession={value}"));
            self.refresh_within = age.map_or(REFRESH, |age| REFRESH.min(age * 9 / 10));
            self.refresh_at = Instant::now() + self.refresh_within;
            found = true;
        }
        found
    }

    async fn once(&mut self, method: &str, path: &str, body: &Value) -> Answer {
        let cookie = self.cookie.clone().expect("a session");
        let headers =
            [("accept", "application/json"), ("cookie", &*cookie), ("user-agent", "CouchDB-Replicator/3.5.0")];
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = self.client.call(method, path, &headers, body.as_bytes()).await;
        if answer.status < 400 && self.take(&answer) {
            self.taken += 1;
        }
        answer
    }

    async fn ask(&mut self, method: &str, path: &str, body: Value) -> Result<Value, Failed> {
        if Instant::now() >= self.refresh_at {
            self.refresh().await?;
        }
        let mut answer = self.once(method, path, &body).await;
        if [401, 403].contains(&answer.status) {
            self.refresh().await?;
            answer = self.once(method, path, &body).await;
        }
        match answer.status {
            200..=299 => Ok(answer.json()),
            401 => Err(Failed::Unauthorized),
            403 => Err(Failed::Forbidden),
            status => Err(Failed::Other(status)),
        }
    }

    /// Copies all documents with their ancestors, using a replicator's requests.
    async fn replicate(&mut self, source: &str, target: &str) -> Result<usize, Failed> {
        for database in [source, target] {
            self.ask("GET", &format!("/{database}"), Value::Null).await?;
        }
        let log = "_local/0123456789abcdef0123456789abcdef";
        let known = self.ask("GET", &format!("/{source}/{log}"), Value::Null).await;
        let since = match &known {
            Ok(log) => log["source_last_seq"].as_str().expect("a sequence").to_owned(),
            Err(Failed::Other(404)) => "0".to_owned(),
            Err(_) => return known.map(|_| 0),
        };
        let changes = format!("/{source}/_changes?feed=normal&style=all_docs&since={since}&timeout=10000");
        let changes = self.ask("GET", &changes, Value::Null).await?;
        let revs = |row: &Value| {
            let revs: Vec<&Value> = row["changes"].as_array().unwrap().iter().map(|change| &change["rev"]).collect();
            (row["id"].as_str().unwrap().to_owned(), json!(revs))
        };
        let rows: serde_json::Map<String, Value> = changes["results"].as_array().unwrap().iter().map(revs).collect();
        let missing = self.ask("POST", &format!("/{target}/_revs_diff"), Value::Object(rows)).await?;
        let mut docs = Vec::new();
        for (id, of) in missing.as_object().unwrap() {
            let revs = encoded(&of["missing"].to_string());
            let path = format!("/{source}/{id}?revs=true&open_revs={revs}&latest=true");
            let found = self.ask("GET", &path, Value::Null).await?;
            docs.extend(found.as_array().unwrap().iter().map(|leaf| leaf["ok"].clone()));
        }
        let written = docs.len();
        let refused =
            self.ask("POST", &format!("/{target}/_bulk_docs"), json!({"new_edits": false, "docs": docs})).await?;
        assert_eq!(refused, json!([]));
        self.ask("POST", &format!("/{target}/_ensure_full_commit"), json!({})).await?;
        let rev = known.ok().map_or(Value::Null, |log| log["_rev"].clone());
        let mut noted = json!({"source_last_seq": changes["last_seq"], "replication_id_version": 4});
        if !rev.is_null() {
            noted["_rev"] = rev;
        }
        for database in [source, target] {
            self.ask("PUT", &format!("/{database}/{log}"), noted.clone()).await?;
        }
        Ok(written)
    }
}

/// Starts a server with a user and two databases of that user.
async fn with_user(name: &str, password: &str, settings: &[(&str, &str, &str)]) -> (Store, Running, Client) {
    let text =
        |(section, key, value): &(&str, &str, &str)| ((*section).to_owned(), (*key).to_owned(), (*value).to_owned());
    let options = ServerOptions { settings: settings.iter().map(text).collect(), ..ServerOptions::with_admin() };
    let store = Store::new();
    let server = store.serve(options).await;
    let mut admin = server.connect().await;
    let user = json!({"name": name, "password": password, "type": "user", "roles": []}).to_string();
    let members = json!({"members": {"names": [name]}}).to_string();
    for (path, body) in [
        ("/_users", ""),
        ("/a", ""),
        ("/b", ""),
        ("/a/_security", &*members),
        ("/b/_security", &*members),
        (&*format!("/_users/org.couchdb.user:{}", encoded(name).replace('+', "%20")), &*user),
    ] {
        let answer = admin.call("PUT", path, &[ADMIN], body.as_bytes()).await;
        assert!(answer.status < 300, "{path}: {answer:?}");
    }
    for n in 0..5 {
        assert_eq!(admin.call("PUT", &format!("/a/doc{n}"), &[ADMIN], b"{}").await.status, 201);
    }
    (store, server, admin)
}

#[tokio::test(flavor = "multi_thread")]
async fn it_begins_a_session_and_replicates() {
    let (name, password) = ("änna & co", "p+w=&%ü? ");
    let (_store, server, mut admin) = with_user(name, password, &[("chttpd", "require_valid_user", "true")]).await;
    let mut replicator = Replicator::begin(&server, name, password).await.unwrap();
    // A session of ten minutes is renewed after nine.
    assert_eq!(replicator.refresh_within, Duration::from_secs(540));
    assert_eq!(replicator.replicate("a", "b").await, Ok(5));
    assert_eq!(admin.call("PUT", "/a/more", &[ADMIN], b"{}").await.status, 201);
    assert_eq!(replicator.replicate("a", "b").await, Ok(1));
    assert_eq!((replicator.begun, replicator.taken), (1, 0));
    assert_eq!(Replicator::begin(&server, name, "wrong").await.err(), Some(Failed::Unauthorized));
    // A forbidden request is retried once and refused.
    assert_eq!(admin.call("PUT", "/c", &[ADMIN], b"").await.status, 201);
    assert_eq!(replicator.replicate("c", "b").await, Err(Failed::Forbidden));
    assert_eq!(replicator.begun, 2);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_goes_on_with_cookies_that_are_renewed_and_without_their_age() {
    let settings = [("chttpd_auth", "timeout", "4"), ("chttpd_auth", "allow_persistent_cookies", "false")];
    let (_store, server, _admin) = with_user("anna", "pw", &settings).await;
    let mut replicator = Replicator::begin(&server, "anna", "pw").await.unwrap();
    assert_eq!(replicator.refresh_within, REFRESH, "no age: its own");
    let (first, mut other) = (replicator.cookie.clone().unwrap(), server.connect().await);
    until("the first cookie has ended, and others have come", async || {
        replicator.ask("GET", "/a", Value::Null).await.unwrap();
        replicator.taken > 0 && other.call("GET", "/a", &[("cookie", &first)], b"").await.status == 401
    })
    .await;
    // After a pause longer than the cookie's lifetime it gets 401 and begins a new session.
    let (last, begun) = (replicator.cookie.clone().unwrap(), replicator.begun);
    let ended = async || other.call("GET", "/a", &[("cookie", &last)], b"").await.status == 401;
    until("the last cookie ends", ended).await;
    assert_eq!(replicator.once("GET", "/a", &Value::Null).await.status, 401);
    assert_eq!(replicator.replicate("a", "b").await, Ok(5));
    assert_eq!(replicator.begun, begun + 1);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_ends_with_another_password() {
    let (_store, server, mut admin) = with_user("anna", "pw", &[]).await;
    let mut replicator = Replicator::begin(&server, "anna", "pw").await.unwrap();
    assert_eq!(replicator.replicate("a", "b").await, Ok(5));
    let path = "/_users/org.couchdb.user:anna";
    let mut user = admin.call("GET", path, &[ADMIN], b"").await.json();
    user["password"] = json!("new");
    assert_eq!(admin.call("PUT", path, &[ADMIN], user.to_string().as_bytes()).await.status, 201);
    until("its session ends", async || replicator.replicate("a", "b").await == Err(Failed::Unauthorized)).await;
    replicator.password = "new".to_owned();
    assert_eq!(replicator.replicate("a", "b").await, Ok(0));
    // The password works without a session.
    let mut plain = server.connect().await;
    let basic = [("authorization", "Basic YW5uYTpuZXc=")];
    assert_eq!(plain.call("GET", "/a", &basic, b"").await.status, 200);
    // The password also works beside an expired or foreign cookie.
    for cookie in ["AuthSession=", "AuthSession=YW5uYTo1RTAwMDAwMDpYWFhYWFhYWFhYWFhYWFhYWFhYWA"] {
        let both = [basic[0], ("cookie", cookie)];
        assert_eq!(plain.call("GET", "/a", &both, b"").await.status, 200, "{cookie}");
    }
    server.stop().await;
}
