use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine;
use flatbed_auth::AuthErrorKind;
use flatbed_clock::ManualClock;
use flatbed_layer::CreateOptions;
use flatbed_testkit::{until, until_some};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::*;
use crate::accounts::tests::{hash_members, users, write_user};
use crate::test_store::{Store, with_admin};

const SECOND: Duration = Duration::from_secs(1);

const WRONG: &str = "unauthorized: Name or password is incorrect.";

fn encode(text: &str) -> String {
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(text))
}

fn with(store: &Store, hash: PasswordHash) -> SignIn {
    SignIn::new(store.layer.clone(), with_admin("admin", &hash), CheckOptions::default())
}

/// With a hash that is checked quickly.
fn quick(store: &Store) -> SignIn {
    with(store, PasswordHash::with_iterations("pass:word", &[1; 16], 600_000))
}

async fn ask(sign_in: &SignIn, authorization: Option<&str>) -> Result<Principal, String> {
    let found = sign_in.identify(&Claims { authorization, ..Claims::default() }).await;
    found.map(|found| found.standing.principal().clone()).map_err(|error| error.to_string())
}

async fn ask_from(sign_in: &SignIn, authorization: &str, at: u8) -> Result<Principal, SignInError> {
    let peer = Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, at)));
    let claims = Claims { authorization: Some(authorization), peer, ..Claims::default() };
    sign_in.identify(&claims).await.map(|found| found.standing.principal().clone())
}

async fn by_cookie(sign_in: &SignIn, cookie: &str) -> Result<IdentifiedRequest, SignInError> {
    sign_in.identify(&Claims { cookie: Some(cookie), ..Claims::default() }).await
}

fn credentials(name: &str, password: &str) -> Credentials {
    Credentials { name: name.to_owned(), password: password.to_owned() }
}

/// The `AuthSession=VALUE` of a `set-cookie` header.
fn cookie_of(set_cookie: &str) -> String {
    set_cookie.split(';').next().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn basic_authentication() {
    let store = Store::new().await;
    let sign_in = quick(&store);
    for _ in 0..2 {
        let found = ask(&sign_in, Some(&encode("admin:pass:word"))).await.unwrap();
        assert_eq!(found, Principal::admin("admin", AuthMethod::Password));
    }
    assert_eq!(sign_in.audit.counts.password_checks.get(), 1);
    for wrong in ["admin:pass", "other:pass:word"] {
        assert_eq!(ask(&sign_in, Some(&encode(wrong))).await.unwrap_err(), WRONG);
    }
    let invalid = "bad_request: Authorization header has invalid base64 value";
    assert_eq!(ask(&sign_in, Some("Basic !")).await.unwrap_err(), invalid);
    for control in ["\0", "\n", "\x1f", "\x7f"] {
        for wrong in [format!("admin:pass:word{control}"), format!("admin{control}:pass:word")] {
            assert_eq!(ask(&sign_in, Some(&encode(&wrong))).await.unwrap_err(), WRONG, "{wrong:?}");
        }
    }
    for other in ["Bearer x", "Basic: x", "Basic", "", "Basic eA=="] {
        assert!(!ask(&sign_in, Some(other)).await.unwrap().is_admin, "{other}");
    }
    assert!(!ask(&sign_in, None).await.unwrap().is_admin);
    let open = SignIn::new(store.layer.clone(), Configuration::default(), CheckOptions::default());
    assert!(ask(&open, None).await.unwrap().is_admin);
}

#[tokio::test(flavor = "multi_thread")]
async fn users_sign_in_and_an_administrator_has_the_roles_of_a_user() {
    let store = Store::new().await;
    let sign_in = quick(&store);
    users(&store.layer).create(&CreateOptions::default()).await.unwrap();
    let anna = format!(r#"{},"roles":["r"]"#, hash_members("pw", "salt", 600_000));
    let rev = write_user(&store.layer, "anna", &anna, None).await;
    write_user(&store.layer, "admin", &anna, None).await;
    let found = ask(&sign_in, Some(&encode("anna:pw"))).await.unwrap();
    assert_eq!((found.is_admin, found.roles.join(",")), (false, "r".to_owned()));
    let found = ask(&sign_in, Some(&encode("admin:pass:word"))).await.unwrap();
    assert_eq!((found.is_admin, found.roles.join(",")), (true, "_admin,r".to_owned()));
    assert_eq!(ask(&sign_in, Some(&encode("admin:pw"))).await.unwrap_err(), WRONG);
    // A changed password counts from the next request on, though the account is cached.
    let other = store.again().await;
    let anna = format!(r#"{},"roles":["r"]"#, hash_members("new", "other", 600_000));
    write_user(&other, "anna", &anna, Some(rev)).await;
    assert!(ask(&sign_in, Some(&encode("anna:new"))).await.is_ok());
    assert_eq!(ask(&sign_in, Some(&encode("anna:pw"))).await.unwrap_err(), WRONG);
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_begin_go_on_and_end_with_the_password() {
    let manual = ManualClock::new();
    let store = Store::timed(manual.clock()).await;
    let sign_in = quick(&store);
    users(&store.layer).create(&CreateOptions::default()).await.unwrap();
    let anna = |password: &str, salt: &str| format!(r#"{},"roles":["r"]"#, hash_members(password, salt, 600_000));
    let rev = write_user(&store.layer, "anna", &anna("pw", "salt"), None).await;
    let claims = Claims { is_secure: true, ..Claims::default() };
    let begun = sign_in.begin_session(&credentials("anna", "pw"), &claims).await.unwrap();
    assert!(begun.set_cookie.contains("; Max-Age=600; Secure; Path=/; HttpOnly; SameSite=Lax"), "{}", begun.set_cookie);
    let cookie = cookie_of(&begun.set_cookie);
    let found = by_cookie(&sign_in, &cookie).await.unwrap();
    assert_eq!((found.standing.principal(), found.set_cookie), (&begun.principal, None));
    assert!(matches!(found.standing.basis(), RightsBasis::Document { rev: of, .. } if *of == rev));
    assert_eq!(found.standing.principal().signed_in, AuthMethod::Cookie);
    // The session is also valid at another server at once.
    let elsewhere = Store::timed(manual.clock()).await;
    let again = quick(&elsewhere);
    assert!(by_cookie(&again, &cookie).await.unwrap().standing.principal().name.is_none(), "another root");
    let other = SignIn::new(store.again().await, sign_in_admins(), CheckOptions::default());
    assert!(by_cookie(&other, &cookie).await.unwrap().standing.principal().name.is_some());
    // After a rotation the session continues with a new cookie, which the old secret has not signed.
    store.layer.rotate_secret().await.unwrap();
    manual.advance(SECOND);
    let renewed = by_cookie(&sign_in, &cookie).await.unwrap();
    let new = cookie_of(&renewed.set_cookie.expect("a new cookie"));
    assert!(new != cookie && renewed.standing.principal().name.is_some());
    assert!(by_cookie(&other, &new).await.unwrap().set_cookie.is_none());
    // A cookie that no secret has signed is invalid.
    let forged = issue("anna", "salt", &Secret::new(vec![1; 32]), sign_in.now_s());
    assert!(by_cookie(&sign_in, &format!("AuthSession={forged}")).await.unwrap().standing.principal().name.is_none());
    assert!(by_cookie(&sign_in, "AuthSession=nonsense").await.is_err());
    write_user(&store.again().await, "anna", &anna("new", "other"), Some(rev)).await;
    manual.advance(SECOND);
    for server in [&sign_in, &other] {
        assert!(by_cookie(server, &new).await.unwrap().standing.principal().name.is_none());
    }
    let refused = sign_in.begin_session(&credentials("anna", "pw"), &claims).await.unwrap_err();
    assert_eq!(refused.to_string(), WRONG);
    // The new password is right, though the cached account may be older.
    assert!(other.begin_session(&credentials("anna", "new"), &claims).await.is_ok());
}

fn sign_in_admins() -> Configuration {
    with_admin("admin", &PasswordHash::with_iterations("x", &[1; 16], 1))
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_salt_there_is_no_session() {
    let store = Store::new().await;
    let sign_in = quick(&store);
    users(&store.layer).create(&CreateOptions::default()).await.unwrap();
    write_user(&store.layer, "anna", &format!(r#"{},"roles":[]"#, hash_members("pw", "", 600_000)), None).await;
    assert!(ask(&sign_in, Some(&encode("anna:pw"))).await.is_ok());
    let refused = sign_in.begin_session(&credentials("anna", "pw"), &Claims::default()).await.unwrap_err();
    assert!(matches!(refused, SignInError::Refused(refused) if refused.kind == AuthErrorKind::Forbidden));
    // The token of a proxy for the same name is no session.
    let secrets = sign_in.accounts.secrets(Freshness::Second).await.unwrap();
    let forged = issue("anna", "", &Secret::new(secrets[0].bytes.clone()), sign_in.now_s());
    assert!(by_cookie(&sign_in, &format!("AuthSession={forged}")).await.unwrap().standing.principal().name.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_passwords_lock_out_their_address_alone() {
    let store = Store::new().await;
    let sign_in = quick(&store);
    let right = encode("admin:pass:word");
    assert!(ask_from(&sign_in, &right, 1).await.is_ok());
    // More parallel attempts than may fail: the waiting ones are judged in their turn.
    let wrong: Vec<String> = (0..4).map(|at| encode(&format!("admin:{at}"))).collect();
    for _ in 0..2 {
        let asked = wrong.iter().map(|wrong| ask_from(&sign_in, wrong, 1));
        futures_util::future::join_all(asked).await;
    }
    assert_eq!(sign_in.audit.counts.password_checks.get(), 6);
    let locked = ask_from(&sign_in, &encode("admin:other"), 1).await.unwrap_err();
    assert_eq!(locked.to_string(), locked_out().to_string());
    // A remembered client and a client from elsewhere are not locked out.
    assert!(ask_from(&sign_in, &right, 1).await.is_ok());
    assert_eq!(ask_from(&sign_in, &encode("admin:other"), 2).await.unwrap_err().to_string(), WRONG);
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_the_line_it_is_too_many_and_who_is_remembered_does_not_wait() {
    let store = Store::new().await;
    let (turn, came) = (Arc::new(tokio::sync::Mutex::new(())), Arc::new(AtomicUsize::new(0)));
    let before_each = {
        let (turn, came) = (Arc::clone(&turn), Arc::clone(&came));
        Arc::new(move || {
            came.fetch_add(1, Ordering::SeqCst);
            drop(turn.blocking_lock());
        })
    };
    let hash = PasswordHash::with_iterations("pass:word", &[1; 16], 600_000);
    let options = CheckOptions { waiting_max: 3, wait_max: Duration::from_secs(600), before_each };
    let sign_in = SignIn::new(store.layer.clone(), with_admin("admin", &hash), options);
    let right = encode("admin:pass:word");
    assert!(ask_from(&sign_in, &right, 200).await.is_ok());
    let held = turn.lock().await;
    let wrong: Vec<String> = (0..30).map(|at| encode(&format!("admin{at}:wrong"))).collect();
    let mut asked = FuturesUnordered::from_iter([ask_from(&sign_in, &wrong[0], 0)]);
    tokio::select! {
        found = asked.next() => panic!("{found:?}"),
        () = until("one is being checked", async || came.load(Ordering::SeqCst) == 2) => {}
    }
    asked.extend((1..30).map(|at| ask_from(&sign_in, &wrong[at], at as u8)));
    // One check runs, three wait.
    for _ in 0..26 {
        let found = asked.next().await.unwrap();
        assert!(matches!(found, Err(SignInError::TooMany)), "{found:?}");
    }
    assert_eq!(sign_in.checks.waiting(), 3);
    assert!(ask_from(&sign_in, &right, 200).await.is_ok());
    drop(held);
    while let Some(found) = asked.next().await {
        assert_eq!(found.unwrap_err().to_string(), WRONG);
    }
    assert_eq!(sign_in.audit.counts.password_checks.get(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_weaker_hash_is_made_anew_with_its_salt() {
    let store = Store::new().await;
    let sign_in = quick(&store);
    users(&store.layer).create(&CreateOptions::default()).await.unwrap();
    let anna = format!(r#"{},"roles":["r"],"mail":"a@x""#, hash_members("pw", "salt", 10));
    write_user(&store.layer, "anna", &anna, None).await;
    let begun = sign_in.begin_session(&credentials("anna", "pw"), &Claims::default()).await.unwrap();
    let document = until_some("it is made anew", async || {
        let document = store.layer.reader(USERS).get(&id_of("anna"), &GetOptions::default()).await.unwrap();
        (document.rev.generation() == 2).then_some(document)
    });
    let document = document.await;
    let text = [b"{".as_slice(), &document.body, b"}"].concat();
    let body = json::parse(&text, &Limits::default()).unwrap();
    assert!(String::from_utf8_lossy(&text).ends_with(r#""name":"anna","type":"user","roles":["r"],"mail":"a@x"}"#));
    let hash = PasswordHash::of_document(&body).unwrap().expect("a hash");
    assert!(!hash.needs_rehash() && hash.salt() == "salt" && hash == PasswordHash::salted("pw", "salt", 600_000));
    until("the new document is known", async || {
        let found = sign_in.accounts.find("anna", Freshness::Second).await.unwrap();
        found.rev == Some(document.rev.clone())
    })
    .await;
    // The session is still valid, and the password still right.
    let found = by_cookie(&sign_in, &cookie_of(&begun.set_cookie)).await.unwrap();
    assert_eq!(found.standing.principal().name.as_deref(), Some("anna"));
    assert!(ask(&sign_in, Some(&encode("anna:pw"))).await.is_ok());
}

/// Assertions of other peers, or without a valid token, are ignored.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxys_word_counts_from_named_peers_alone() {
    let store = Store::new().await;
    let mut values = crate::configuration::Values::default();
    let file = crate::configuration::Source::File;
    let admin = PasswordHash::with_iterations("x", &[1; 16], 1).to_string();
    values.insert("admins", "admin", &admin, file).unwrap();
    values.insert("proxy_auth", "peers", "10.0.0.1", file).unwrap();
    let sign_in = SignIn::new(store.layer.clone(), Configuration::new(values), CheckOptions::default());
    assert_eq!(sign_in.handlers(), ["cookie", "proxy", "default"]);
    let secrets = sign_in.accounts.secrets(Freshness::Second).await.unwrap();
    // Equals the output of Python's `hmac`: a session's cookie has the same HMAC-SHA256 after its text.
    let value = issue("anna", "", &Secret::new(secrets[0].bytes.clone()), 0x5F00_0000);
    let decoded = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(value).unwrap();
    let of_session = hex(&decoded[decoded.len() - 32..]);
    for (name, token, from) in [
        ("anna", None, [10, 0, 0, 1]),
        ("anna", Some("00"), [10, 0, 0, 1]),
        // The cookie's HMAC of this text with this secret.
        ("anna:5F000000", Some(&*of_session), [10, 0, 0, 1]),
        ("anna:5F000000", Some(&*of_session), [10, 0, 0, 2]),
    ] {
        let proxy = Some(proxy::Claim { name, roles: Some("_admin"), token });
        let claims = Claims { proxy, connection: Some(IpAddr::from(from)), ..Claims::default() };
        let found = sign_in.identify(&claims).await.unwrap();
        assert_eq!(found.standing.principal().name, None, "{name} {token:?}");
    }
}

/// The setting `[chttpd_auth] max_iterations`, for users and administrators alike.
#[tokio::test(flavor = "multi_thread")]
async fn hashes_of_more_iterations_than_the_settings_let_sign_nobody_in() {
    let store = Store::new().await;
    users(&store.layer).create(&CreateOptions::default()).await.unwrap();
    for (name, iterations) in [("anna", 600_000), ("bob", 600_001)] {
        let rest = format!(r#"{},"roles":[]"#, hash_members("pw", "salt", iterations));
        write_user(&store.layer, name, &rest, None).await;
    }
    let hash = |iterations| PasswordHash::with_iterations("pw", &[1; 16], iterations);
    let with = |most: &str| {
        let mut values = crate::configuration::Values::default();
        let from = crate::configuration::Source::File;
        values.insert("chttpd_auth", "max_iterations", most, from).unwrap();
        values.insert("admins", "carl", &hash(600_000).to_string(), from).unwrap();
        values.insert("admins", "dora", &hash(600_001).to_string(), from).unwrap();
        SignIn::new(store.layer.clone(), Configuration::new(values), CheckOptions::default())
    };
    let (few, many) = (with("600000"), with("600001"));
    let bob = cookie_of(&many.begin_session(&credentials("bob", "pw"), &Claims::default()).await.unwrap().set_cookie);
    for (name, is_let) in [("anna", true), ("bob", false), ("carl", true), ("dora", false)] {
        let header = encode(&format!("{name}:pw"));
        assert!(ask(&many, Some(&header)).await.is_ok(), "{name}");
        for _ in 0..2 {
            let found = ask(&few, Some(&header)).await.map(|principal| principal.name);
            let refused = Err("forbidden: Iteration count is too high for this server".to_owned());
            assert_eq!(found, if is_let { Ok(Some(name.to_owned())) } else { refused }, "{name}");
        }
    }
    assert!(few.begin_session(&credentials("bob", "pw"), &Claims::default()).await.is_err());
    // A session is signed and needs no password hash.
    assert_eq!(by_cookie(&few, &bob).await.unwrap().standing.principal().name.as_deref(), Some("bob"));
}
