//! JSON Web Tokens over HTTP: users, keys and expiry.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use flatbed_testkit::{pass, until, until_wanted};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use serde_json::{Value, json};

use crate::support::{ADMIN, Answer, Client, Running, ServerOptions, Store, soon};

/// Made for these tests with `openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048`.
const RSA: &str = include_str!("../data/rsa-key.pem");

enum Signer {
    None,
    Hs256(Vec<u8>),
    Rs256(Box<RsaKeyPair>),
    Es256(EcdsaKeyPair),
    EdDsa(Ed25519KeyPair),
}

impl Signer {
    fn rsa() -> Signer {
        let body: String = RSA.lines().filter(|line| !line.starts_with('-')).collect();
        Signer::Rs256(Box::new(RsaKeyPair::from_pkcs8(&STANDARD.decode(body).unwrap()).unwrap()))
    }

    fn p256() -> Signer {
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        Signer::Es256(EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.as_ref(), &random).unwrap())
    }

    fn ed25519() -> Signer {
        let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Signer::EdDsa(Ed25519KeyPair::from_pkcs8(key.as_ref()).unwrap())
    }

    fn algorithm(&self) -> &'static str {
        match self {
            Signer::None => "none",
            Signer::Hs256(_) => "HS256",
            Signer::Rs256(_) => "RS256",
            Signer::Es256(_) => "ES256",
            Signer::EdDsa(_) => "EdDSA",
        }
    }

    fn sign(&self, text: &[u8]) -> Vec<u8> {
        match self {
            Signer::None => Vec::new(),
            Signer::Hs256(secret) => {
                ring::hmac::sign(&ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret), text).as_ref().to_vec()
            }
            Signer::Rs256(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text, &mut signature).unwrap();
                signature
            }
            Signer::Es256(key) => key.sign(&SystemRandom::new(), text).unwrap().as_ref().to_vec(),
            Signer::EdDsa(key) => key.sign(text).as_ref().to_vec(),
        }
    }

    /// Returns a token that names this key.
    fn token(&self, kid: &str, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let header = json!({"typ": "JWT", "alg": self.algorithm(), "kid": kid});
        let signed = format!("{}.{}", part(&header), part(claims));
        let signature = URL_SAFE_NO_PAD.encode(self.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }

    fn pem(&self) -> String {
        let of = |prefix: &[u8], key: &[u8], label: &str| {
            let body = STANDARD.encode([prefix, key].concat());
            format!("-----BEGIN {label}-----\\n{body}\\n-----END {label}-----\\n")
        };
        match self {
            Signer::None | Signer::Hs256(_) => panic!("no public key"),
            Signer::Rs256(key) => of(&[], key.public().as_ref(), "RSA PUBLIC KEY"),
            // RFC 5480, 2: an EC public key of prime256v1; RFC 8410, 4.
            Signer::Es256(key) => {
                let prefix = b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00";
                of(prefix, key.public_key().as_ref(), "PUBLIC KEY")
            }
            Signer::EdDsa(key) => {
                let prefix = b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";
                of(prefix, key.public_key().as_ref(), "PUBLIC KEY")
            }
        }
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Adds an expiry in an hour to claims.
fn claims(rest: Value) -> Value {
    let mut claims = json!({"sub": "anna", "exp": now() + 3_600});
    claims.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    claims
}

fn options(settings: &[(&str, &str, &str)]) -> ServerOptions {
    let text =
        |(section, key, value): &(&str, &str, &str)| ((*section).to_owned(), (*key).to_owned(), (*value).to_owned());
    ServerOptions { settings: settings.iter().map(text).collect(), ..ServerOptions::with_admin() }
}

async fn with(client: &mut Client, token: &str, method: &str, path: &str, body: &[u8]) -> Answer {
    let bearer = format!("Bearer {token}");
    client.call(method, path, &[("authorization", &bearer)], body).await
}

/// Returns `name: roles` of a token, or the refusal's status and reason.
async fn who(server: &Running, token: &str) -> String {
    let answer = with(&mut server.connect().await, token, "GET", "/_session", b"").await;
    if answer.status != 200 {
        return format!("{} {}", answer.status, answer.text("reason"));
    }
    let found = answer.json();
    let roles: Vec<&str> = found["userCtx"]["roles"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(found["info"]["authenticated"], "jwt");
    format!("{}: {}", found["userCtx"]["name"].as_str().unwrap(), roles.join(","))
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_each_kind_are_believed_by_their_own_key_alone() {
    let store = Store::new();
    let secret = b"a secret of thirty-two bytes and more".to_vec();
    let signers =
        [("h", Signer::Hs256(secret.clone())), ("r", Signer::rsa()), ("e", Signer::p256()), ("d", Signer::ed25519())];
    let [r, e, d] = [1, 2, 3].map(|at: usize| signers[at].1.pem());
    let server = store
        .serve(options(&[
            ("jwt_keys", "hmac:h", &STANDARD.encode(&secret)),
            ("jwt_keys", "rsa:r", &r),
            ("jwt_keys", "ec:e", &e),
            ("jwt_keys", "eddsa:d", &d),
            ("jwt_auth", "skew", "30"),
        ]))
        .await;
    let mut admin = server.connect().await;
    for (path, body) in [
        ("/db", "".to_owned()),
        ("/db/_security", json!({"members": {"roles": ["friends"]}, "admins": {"roles": ["_admin"]}}).to_string()),
    ] {
        assert!(admin.call("PUT", path, &[ADMIN], body.as_bytes()).await.status < 300);
    }
    let friend = claims(json!({"_couchdb.roles": ["friends", "_admin", "_x"]}));
    for (kid, signer) in &signers {
        let token = signer.token(kid, &friend);
        // Issuers cannot grant system roles.
        assert_eq!(who(&server, &token).await, "anna: friends", "{kid}");
        let mut client = server.connect().await;
        let path = format!("/db/{kid}");
        assert_eq!(with(&mut client, &token, "PUT", &path, b"{}").await.status, 201);
        assert_eq!(with(&mut client, &token, "GET", &path, b"").await.status, 200);
        assert_eq!(with(&mut client, &token, "GET", "/_all_dbs", b"").await.status, 401);
        let stranger = signer.token(kid, &claims(json!({})));
        assert_eq!(with(&mut client, &stranger, "GET", &path, b"").await.status, 403);
        // A write records its writer.
        let other = claims(json!({"sub": "bob", "_couchdb.roles": "friends"}));
        assert_eq!(who(&server, &signer.token(kid, &other)).await, "bob: friends");
        // Signed with another key, and with a signature of another text.
        for (other, _) in signers.iter().filter(|(other, _)| other != kid) {
            let refused = who(&server, &signer.token(other, &friend)).await;
            assert_eq!(refused, "400 Unknown kid", "{kid} as {other}");
        }
        let admin = signer.token(kid, &claims(json!({"sub": "admin"})));
        let mixed: Vec<&str> = token.split('.').take(1).chain(admin.split('.').skip(1).take(1)).collect();
        let mixed = format!("{}.{}", mixed.join("."), token.rsplit('.').next().unwrap());
        assert!(who(&server, &mixed).await.starts_with("400 Bad "), "{kid}");
        assert_eq!(who(&server, &signer.token("other", &friend)).await, "400 Unknown kid");
    }

    // Without a signature, and signed with a public value.
    for kid in ["h", "r", "e", "d"] {
        let none = Signer::None.token(kid, &friend);
        let refused = who(&server, &none).await;
        assert!(["400 Invalid alg header parameter", "400 Malformed token"].contains(&&*refused), "{refused}");
        assert!(who(&server, &format!("{none}x")).await.starts_with("400 "));
    }
    for public in [&r, &e, &d].map(|pem| [pem.replace("\\n", "\n").into_bytes(), pem.clone().into_bytes()]) {
        for public in public {
            for kid in ["h", "r", "e", "d"] {
                let forged = Signer::Hs256(public.clone()).token(kid, &friend);
                let refused = who(&server, &forged).await;
                assert_eq!(refused, if kid == "h" { "400 Bad HMAC" } else { "400 Unknown kid" });
            }
        }
    }

    // Clocks may differ by 30 s.
    let hs = &signers[0].1;
    for (times, expected) in [
        (json!({"exp": now() - 10}), "anna: "),
        (json!({"exp": now() - 31}), "401 exp not in future"),
        (json!({"exp": 5}), "401 exp not in future"),
        (json!({"nbf": now() + 20}), "anna: "),
        (json!({"nbf": now() + 60}), "401 nbf not in past"),
        (json!({"iat": now() + 60}), "401 iat not in past"),
        (json!({"exp": (now() + 60).to_string()}), "400 Invalid exp claim"),
        (json!({"sub": ""}), "400 Invalid sub claim"),
        (json!({"aud": "anybody"}), "400 Invalid aud claim"),
    ] {
        assert_eq!(who(&server, &hs.token("h", &claims(times.clone()))).await, expected, "{times}");
    }
    assert_eq!(who(&server, &hs.token("h", &json!({"sub": "anna"}))).await, "400 Missing exp claim");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_issuer_has_its_own_keys_names_and_roles() {
    let store = Store::new();
    let (trusted, other) = (Signer::p256(), Signer::ed25519());
    let server = store
        .serve(options(&[
            ("jwt_keys", "ec:t", &trusted.pem()),
            ("jwt_auth", "issuer", "https://one.example"),
            ("jwt_auth", "audience", "flatbed"),
            ("jwt_auth", "roles_claim_path", "realm.access\\.to.roles"),
            ("jwt_auth", "trusts_system_roles", "true"),
            ("jwt_keys:two", "eddsa:o", &other.pem()),
            ("jwt_auth:two", "issuer", "https://two.example"),
            ("jwt_auth:two", "name_prefix", "two/"),
        ]))
        .await;
    let one = |rest: Value| {
        let mut all = claims(json!({"iss": "https://one.example", "aud": ["x", "flatbed"]}));
        all.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        trusted.token("t", &all)
    };
    let roles = json!({"realm": {"access.to": {"roles": ["r", "_admin"]}}, "_couchdb.roles": ["x"]});
    assert_eq!(who(&server, &one(json!({}))).await, "anna: ");
    assert_eq!(who(&server, &one(roles.clone())).await, "anna: r,_admin");
    let mut client = server.connect().await;
    assert_eq!(with(&mut client, &one(roles.clone()), "PUT", "/db", b"").await.status, 201);
    assert_eq!(with(&mut client, &one(json!({})), "PUT", "/other", b"").await.status, 401);
    for (rest, refused) in [
        (json!({"iss": "https://two.example"}), "400 Invalid iss claim"),
        (json!({"iss": "https://one.example/"}), "400 Invalid iss claim"),
        (json!({"aud": "x"}), "400 Invalid aud claim"),
        (json!({"aud": []}), "400 Invalid aud claim"),
    ] {
        assert_eq!(who(&server, &one(rest.clone())).await, refused, "{rest}");
    }
    // A second issuer's users are distinct from the first one's and have no roles that it claims.
    let two =
        |iss: &str| other.token("o", &claims(json!({"iss": iss, "sub": "anna", "_couchdb.roles": ["_admin", "r"]})));
    assert_eq!(who(&server, &two("https://two.example")).await, "two/anna: r");
    assert_eq!(who(&server, &two("https://one.example")).await, "400 Invalid iss claim");
    assert_eq!(who(&server, &trusted.token("o", &claims(roles))).await, "400 Unknown kid");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_ends_and_with_it_what_was_begun() {
    let store = Store::new();
    let secret = vec![7; 32];
    let server = store.serve(options(&[("jwt_keys", "hmac:h", &STANDARD.encode(&secret))])).await;
    let mut admin = server.connect().await;
    assert_eq!(admin.call("PUT", "/db", &[ADMIN], b"").await.status, 201);
    let open = br#"{"members":{"names":["anna"]}}"#;
    assert_eq!(admin.call("PUT", "/db/_security", &[ADMIN], open).await.status, 200);
    let signer = Signer::Hs256(secret);
    // On a slow machine a token may expire before the feed begins; then another is tried.
    let (token, ends, mut follower) = loop {
        let ends = now() + 4;
        let token = signer.token("h", &claims(json!({"exp": ends})));
        let found = who(&server, &token).await;
        let (mut follower, bearer) = (server.connect().await, format!("Bearer {token}"));
        follower.send("GET", "/db/_changes?feed=continuous&heartbeat=100", &[("authorization", &bearer)], b"").await;
        let status = follower.head().await.status;
        if now() < ends {
            assert_eq!((&*found, status), ("anna: ", 200));
            break (token, ends, follower);
        }
    };
    let rest = soon(follower.rest()).await;
    // The feed may be cut before the reason is sent.
    assert!(!rest.contains('{') || rest.contains(r#"{"error":"unauthorized""#), "{rest}");
    assert!(now() >= ends, "before its time");
    // Although the token is remembered.
    assert_eq!(who(&server, &token).await, "401 exp not in future");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_feed_ends_with_the_key_of_its_token_and_with_no_other() {
    let store = Store::new();
    let [own, other, new] = [7, 8, 9].map(|byte| vec![byte; 32]);
    let server = store.serve(options(&[])).await;
    let mut admin = server.connect().await;
    assert_eq!(admin.call("PUT", "/db", &[ADMIN], b"").await.status, 201);
    let open = br#"{"members":{"names":["anna"]}}"#;
    assert_eq!(admin.call("PUT", "/db/_security", &[ADMIN], open).await.status, 200);
    let mut set = async |path: &str, text: &str| {
        let path = format!("/_node/_local/_config/{path}");
        assert_eq!(admin.call("PUT", &path, &[ADMIN], json!(text).to_string().as_bytes()).await.status, 200);
    };
    set("jwt_keys/hmac:h", &STANDARD.encode(&own)).await;
    let follow = async |token: &str| {
        assert_eq!(who(&server, token).await, "anna: ");
        let mut follower = server.connect().await;
        let bearer = format!("Bearer {token}");
        follower.send("GET", "/db/_changes?feed=continuous&heartbeat=100", &[("authorization", &bearer)], b"").await;
        assert_eq!(follower.head().await.status, 200);
        follower
    };
    let token = Signer::Hs256(own).token("h", &claims(json!({})));
    let mut follower = follow(&token).await;
    let rest = tokio::spawn(async move { follower.rest().await });
    // Other keys are added, changed and replaced: the feed of a replaced key's token ends, and this one continues.
    set("jwt_keys/hmac:o", &STANDARD.encode(&other)).await;
    let mut other_follower = follow(&Signer::Hs256(other.clone()).token("o", &claims(json!({})))).await;
    set("jwt_keys:two/hmac:h", &STANDARD.encode(&other)).await;
    set("jwt_auth:two/name_prefix", "two/").await;
    set("jwt_keys/hmac:o", &STANDARD.encode(&new)).await;
    soon(other_follower.rest()).await;
    pass(Duration::from_millis(700)).await;
    assert!(!rest.is_finished(), "{}", rest.await.unwrap());
    assert_eq!(who(&server, &token).await, "anna: ");
    // A setting of its own issuer changes.
    set("jwt_auth/skew", "1").await;
    let rest = soon(rest).await.unwrap();
    assert!(!rest.contains('{') || rest.contains(r#"{"error":"unauthorized""#), "{rest}");
    assert_eq!(who(&server, &token).await, "anna: ");
    set("jwt_keys/hmac:h", &STANDARD.encode(&new)).await;
    assert_eq!(who(&server, &token).await, "400 Bad HMAC");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_keys_is_read_again_when_it_changes() {
    let store = Store::new();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("jwks.json");
    let key = |secret: &[u8]| {
        json!({"keys": [
            {"kty": "oct", "kid": "k", "alg": "HS256", "k": URL_SAFE_NO_PAD.encode(secret)},
            // A key of an unsupported curve.
            {"kty": "EC", "kid": "x", "crv": "secp256k1", "x": "AA", "y": "AA"},
        ]})
    };
    let [old, new] = [[1; 32], [2; 32]];
    std::fs::write(&path, key(&old).to_string()).unwrap();
    let server = store.serve(options(&[("jwt_auth", "jwks_file", path.to_str().unwrap())])).await;
    let [of_old, of_new] = [old, new].map(|secret| Signer::Hs256(secret.to_vec()).token("k", &claims(json!({}))));
    assert_eq!(who(&server, &of_old).await, "anna: ");
    assert_eq!(who(&server, &of_new).await, "400 Bad HMAC");
    std::fs::write(&path, key(&new).to_string()).unwrap();
    until_wanted("the new key counts", async || who(&server, &of_new).await, |found| found == "anna: ").await;
    assert_eq!(who(&server, &of_old).await, "400 Bad HMAC");
    // An invalid file keeps the old keys; a file without the key removes it.
    std::fs::write(&path, "{").unwrap();
    // The file is read again by a request three seconds after the last read.
    pass(Duration::from_millis(3_100)).await;
    assert_eq!(who(&server, &of_new).await, "anna: ");
    std::fs::write(&path, r#"{"keys":[]}"#).unwrap();
    until("the key counts no longer", async || {
        let answer = with(&mut server.connect().await, &of_new, "GET", "/_session", b"").await;
        answer.json()["userCtx"]["name"].is_null()
    })
    .await;
    server.stop().await;
}
