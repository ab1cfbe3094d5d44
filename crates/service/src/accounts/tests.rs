use flatbed_auth::AuthMethod;
use flatbed_clock::ManualClock;
use flatbed_layer::{CreateOptions, DatabaseSecurity, Edit, Gate, Refusal, User};
use flatbed_testkit::{soon, until};

use super::*;
use crate::test_store::Store;

const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Open;

impl Gate for Open {
    fn judge(&self, _: &DatabaseSecurity) -> std::result::Result<(), Refusal> {
        Ok(())
    }
}

/// Writes a user document by some process and returns its revision.
pub(crate) async fn write_user(layer: &Layer, name: &str, rest: &str, parent: Option<RevId>) -> RevId {
    let text = format!(r#"{{"name":"{name}","type":"user",{rest}}}"#);
    let body = json::parse(text.as_bytes(), &Limits::default()).unwrap();
    let edit = Edit {
        expiry: None,
        id: id_of(name).into(),
        parent,
        history: None,
        deleted: false,
        attachments: Vec::new(),
        body,
    };
    users(layer).update(&edit).await.unwrap().rev
}

pub(crate) fn users(layer: &Layer) -> flatbed_layer::Database {
    let user = User { name: None, roles: vec!["_admin".to_owned()], ..User::default() };
    layer.database(USERS, user.through(Arc::new(Open)))
}

/// The members of a user document with a quick hash of `password`.
pub(crate) fn hash_members(password: &str, salt: &str, iterations: u32) -> String {
    let hash = PasswordHash::salted(password, salt, iterations);
    let text = json::to_string(&flatbed_layer::json::Value::Object(hash.put_into(Vec::new())));
    text.trim_matches(['{', '}']).to_owned()
}

fn user(salt: &str, role: &str) -> String {
    format!(r#"{},"roles":["{role}"]"#, hash_members("p", salt, 1))
}

fn accounts(layer: &Layer) -> Arc<Accounts> {
    Accounts::new(layer.clone(), Configuration::default())
}

async fn roles(accounts: &Arc<Accounts>, name: &str) -> Option<String> {
    let found = accounts.find(name, Freshness::Second).await.unwrap();
    found.account.map(|account| account.roles().join(","))
}

/// No poll: no time passes.
#[tokio::test(flavor = "multi_thread")]
async fn what_this_process_writes_counts_at_once() {
    let manual = ManualClock::new();
    let store = Store::timed(manual.clock()).await;
    let accounts = accounts(&store.layer);
    users(&store.layer).create(&CreateOptions::default()).await.unwrap();
    let rev = write_user(&store.layer, "anna", &user("a", "r0"), None).await;
    assert_eq!(roles(&accounts, "anna").await.as_deref(), Some("r0"));
    assert_eq!(roles(&accounts, "bob").await, None);
    write_user(&store.layer, "anna", &user("a", "r1"), Some(rev)).await;
    write_user(&store.layer, "bob", &user("b", "r2"), None).await;
    accounts.forget([id_of("anna"), id_of("bob"), "_design/d".to_owned()].iter().map(String::as_str));
    assert_eq!(roles(&accounts, "anna").await.as_deref(), Some("r1"));
    assert_eq!(roles(&accounts, "bob").await.as_deref(), Some("r2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_process_writes_is_seen_within_a_second() {
    let manual = ManualClock::new();
    let store = Store::timed(manual.clock()).await;
    let other = store.again().await;
    let accounts = accounts(&store.layer);
    assert_eq!(roles(&accounts, "anna").await, None);
    users(&other).create(&CreateOptions::default()).await.unwrap();
    let mut rev = write_user(&other, "anna", &user("a", "r0"), None).await;
    manual.advance(SECOND);
    assert_eq!(roles(&accounts, "anna").await.as_deref(), Some("r0"));
    let mut changes = accounts.changes();
    for round in 1..4 {
        let role = format!("r{round}");
        changes.mark_unchanged();
        rev = write_user(&other, "anna", &user("a", &role), Some(rev)).await;
        // An answer that begins more than a second later is never the old one.
        manual.advance(SECOND);
        assert_eq!(roles(&accounts, "anna").await.as_deref(), Some(&*role));
        soon(changes.changed()).await.unwrap();
    }
    drop(changes);
    // Without the poll and the watch, which end after a time without requests.
    store.layer.shutdown();
    until("the poll ends", async || {
        manual.advance(POLL_LEAST);
        !accounts.is_polled.load(Ordering::SeqCst)
    })
    .await;
    accounts.is_polled.store(true, Ordering::SeqCst);
    for round in 4..6 {
        let role = format!("r{round}");
        rev = write_user(&other, "anna", &user("a", &role), Some(rev)).await;
        manual.advance(SECOND);
        assert_eq!(roles(&accounts, "anna").await.as_deref(), Some(&*role));
        // A caller that needs the state as of now sees it at once.
        let next = format!("n{round}");
        rev = write_user(&other, "anna", &user("a", &next), Some(rev)).await;
        let found = accounts.find("anna", Freshness::Since(accounts.clock().now())).await.unwrap();
        assert_eq!(found.account.unwrap().roles().join(","), next);
    }
    users(&other).delete().await.unwrap();
    manual.advance(SECOND);
    assert_eq!(roles(&accounts, "anna").await, None);
    // A new database of the same name has new accounts.
    users(&other).create(&CreateOptions::default()).await.unwrap();
    write_user(&other, "anna", &user("b", "new"), None).await;
    manual.advance(SECOND);
    assert_eq!(roles(&accounts, "anna").await.as_deref(), Some("new"));
}

#[tokio::test(flavor = "multi_thread")]
async fn standings_hold_as_long_as_the_password_and_follow_roles() {
    let manual = ManualClock::new();
    let store = Store::timed(manual.clock()).await;
    let accounts = accounts(&store.layer);
    users(&store.layer).create(&CreateOptions::default()).await.unwrap();
    let rev = write_user(&store.layer, "anna", &user("a", "one"), None).await;
    let found = accounts.find("anna", Freshness::Second).await.unwrap();
    let standing = Standing::new(found.account.as_ref().unwrap().principal(AuthMethod::Cookie), found.basis());
    let now = async || {
        let now = accounts.now(&standing).await.unwrap();
        now.map(|principal| (principal.roles.join(","), principal.signed_in))
    };
    assert_eq!(now().await, Some(("one".to_owned(), AuthMethod::Cookie)));
    let rev = write_user(&store.layer, "anna", &user("a", "two"), Some(rev)).await;
    manual.advance(SECOND);
    assert_eq!(now().await, Some(("two".to_owned(), AuthMethod::Cookie)));
    let rev = write_user(&store.layer, "anna", &user("b", "two"), Some(rev)).await;
    manual.advance(SECOND);
    assert_eq!(now().await, None);
    let rev = write_user(&store.layer, "anna", &user("a", "two"), Some(rev)).await;
    manual.advance(SECOND);
    assert!(now().await.is_some());
    let body = json::parse(b"{}", &Limits::default()).unwrap();
    let attachments = Vec::new();
    let edit = Edit {
        expiry: None,
        id: id_of("anna").into(),
        parent: Some(rev),
        history: None,
        deleted: true,
        attachments,
        body,
    };
    users(&store.layer).update(&edit).await.unwrap();
    manual.advance(SECOND);
    assert_eq!(now().await, None);
    assert!(accounts.now(&Standing::anonymous()).await.unwrap().is_some());
}

/// Missing names are cached for a limited time and within a bound; a document with conflicts allows no sign-in.
#[tokio::test(flavor = "multi_thread")]
async fn names_without_an_account() {
    let manual = ManualClock::new();
    let store = Store::timed(manual.clock()).await;
    let accounts = accounts(&store.layer);
    users(&store.layer).create(&CreateOptions::default()).await.unwrap();
    for at in 0..50 {
        assert_eq!(roles(&accounts, &format!("nobody{at}")).await, None);
    }
    assert_eq!((accounts.cached_count(), accounts.cache().accounts.len()), (50, 0));
    assert_eq!(roles(&accounts, &"n".repeat(5_000)).await, None);
    let rev = write_user(&store.layer, "nobody7", &user("a", "r"), None).await;
    manual.advance(SECOND);
    assert_eq!(roles(&accounts, "nobody7").await.as_deref(), Some("r"));
    let other: RevId = "1-ffffffffffffffffffffffffffffffff".parse().unwrap();
    assert_ne!(other, rev);
    let text = format!(r#"{{"name":"nobody7","type":"user",{}}}"#, user("b", "x"));
    let body = json::parse(text.as_bytes(), &Limits::default()).unwrap();
    let (history, attachments) = (Some(vec![other]), Vec::new());
    let edit =
        Edit { expiry: None, id: id_of("nobody7").into(), parent: None, history, deleted: false, attachments, body };
    users(&store.layer).update(&edit).await.unwrap();
    let found = accounts.find("nobody7", Freshness::Since(accounts.clock().now())).await.unwrap();
    assert!(found.account.is_none() && found.refused.unwrap().reason.contains("conflicts must be resolved"));
}

#[tokio::test(flavor = "multi_thread")]
async fn however_often_users_are_written_few_are_woken() {
    let manual = ManualClock::new();
    let store = Store::timed(manual.clock()).await;
    let accounts = accounts(&store.layer);
    users(&store.layer).create(&CreateOptions::default()).await.unwrap();
    let mut rev = write_user(&store.layer, "anna", &user("a", "r"), None).await;
    let changes = accounts.changes();
    let before = *changes.borrow();
    let woken = || *changes.borrow() - before;
    let mut written = 0;
    until("four changes are told", async || {
        rev = write_user(&store.layer, "anna", &user("a", "r"), Some(rev.clone())).await;
        written += 1;
        manual.advance(POLL_LEAST / 10);
        woken() >= 4
    })
    .await;
    // Successive wakes keep the shortest interval.
    assert!(written >= 10 * (woken() - 1), "{} of {written}", woken());
}

#[tokio::test]
async fn who_comes_while_the_poll_ends_is_not_left_without_it() {
    let store = Store::new().await;
    let accounts = accounts(&store.layer);
    let is_polled = || accounts.is_polled.load(Ordering::SeqCst);
    accounts.cache().asked = Instant::now().checked_sub(2 * IDLE).unwrap();
    accounts.is_polled.store(true, Ordering::SeqCst);
    let mut polling = PollingTask(Weak::clone(&accounts.this));
    assert!(accounts.is_idle());
    // A follower comes between these two steps and finds the flag set.
    let changes = accounts.generation.subscribe();
    assert!(polling.goes_on(&accounts) && is_polled());
    drop(changes);
    assert!(!polling.goes_on(&accounts) && !is_polled());
    // The ended task does not change the flag of the next one.
    accounts.is_polled.store(true, Ordering::SeqCst);
    drop(polling);
    assert!(is_polled());
    // A failed task does.
    drop(PollingTask(Weak::clone(&accounts.this)));
    assert!(!is_polled());
}

#[test]
fn a_proxys_word_holds_as_long_as_it_is_believed() {
    let peers = "127.0.0.1".parse().unwrap();
    let settings = crate::configuration::ProxySettings { peers, ..Default::default() };
    let anna = Standing::of_proxy(Principal::user("anna", [], AuthMethod::Proxy), &settings);
    assert!(anna.is_vouched_for(&settings));
    assert!(!anna.is_vouched_for(&crate::configuration::ProxySettings::default()));
    let other = crate::configuration::ProxySettings { trusts_system_roles: true, ..settings };
    assert!(!anna.is_vouched_for(&other));
}
