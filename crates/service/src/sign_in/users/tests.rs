use std::collections::BTreeSet;

use base64::Engine;
use flatbed_clock::ManualClock;
use flatbed_javascript::{Runner, RunnerOptions};
use flatbed_layer::channels::{PrincipalKind, PrincipalWrite, PrincipalWriteOutcome};
use flatbed_layer::{Authority, ChannelsOptions, CreateOptions, Layer, USERS};
use flatbed_testkit::{soon, until, until_some, within};

use super::*;
use crate::accounts::tests::{hash_members, users, write_user};
use crate::test_store::{Store, with_admin};
use crate::{Administer, Own, Read, Service, Write};

const SECOND: Duration = Duration::from_secs(1);

fn basic(text: &str) -> String {
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(text))
}

fn hash(password: &str, salt: u8) -> PasswordHash {
    PasswordHash::with_iterations(password, &[salt; 16], 1_000)
}

struct Server {
    service: Service,
    layer: Layer,
    authority: Authority,
}

impl Server {
    async fn new(store: &Store) -> Server {
        let (layer, authority) = store.again_with_authority().await;
        let configuration = with_admin("admin", &hash("secret", 9));
        let service = Service::new(layer.clone(), Runner::new(RunnerOptions::default()).unwrap(), configuration);
        Server { service, layer, authority }
    }

    fn database(&self, name: &str) -> flatbed_layer::Database {
        self.layer.database(name, self.authority.for_job("test"))
    }

    async fn create(&self, name: &str) {
        let channels = Some(ChannelsOptions::default());
        self.database(name).create(&CreateOptions { channels, ..CreateOptions::default() }).await.unwrap();
    }

    async fn put(&self, database: &str, name: &str, signs_in: Option<SignsIn>, is_disabled: bool) {
        let write = PrincipalWrite {
            kind: PrincipalKind::User,
            name: name.to_owned(),
            email: String::new(),
            is_disabled,
            admin_channels: BTreeSet::new(),
            admin_roles: BTreeSet::new(),
            signs_in,
            is_new: false,
        };
        let written = self.database(database).put_principal(&write).await.unwrap();
        assert!(matches!(written, PrincipalWriteOutcome::Created | PrincipalWriteOutcome::Changed));
    }

    async fn ask(&self, database: &str, authorization: &str) -> Result<Standing, String> {
        let authorization = basic(authorization);
        let claims = UserClaims { authorization: Some(&authorization), ..UserClaims::default() };
        let found = self.service.identify_in(database, &claims).await;
        found.map(|found| found.standing).map_err(|error| error.to_string())
    }

    async fn bring(&self, database: &str, session: &str) -> Result<UserSignIn, String> {
        let claims = UserClaims { session: Some(session), ..UserClaims::default() };
        self.service.identify_in(database, &claims).await.map_err(|error| error.to_string())
    }
}

fn password(password: &str, salt: u8) -> Option<SignsIn> {
    Some(SignsIn::Password(hash(password, salt).to_string().into_bytes()))
}

/// Returns database, name and generation of a user of a database.
fn user_of(standing: &Standing) -> (&str, &str, u64) {
    match standing.basis() {
        RightsBasis::Principal { database, name, generation, .. } => (database, name, *generation),
        other => panic!("{other:?}"),
    }
}

const WRONG: &str = "unauthorized: Name or password is incorrect.";

#[tokio::test(flavor = "multi_thread")]
async fn users_sign_in_to_one_database() {
    let manual = ManualClock::new();
    let store = Store::timed(manual.clock()).await;
    let server = Server::new(&store).await;
    for name in ["one", "two"] {
        server.create(name).await;
    }
    users(&server.layer).create(&CreateOptions::default()).await.unwrap();
    let account = format!(r#"{},"roles":[]"#, hash_members("of-account", "salt", 1_000));
    write_user(&server.layer, "anna", &account, None).await;
    // An account of the server signs in, unless a user of its name has a password in the database.
    let found = server.ask("one", "anna:of-account").await.unwrap();
    assert!(matches!(found.basis(), RightsBasis::Document { name, .. } if name == "anna"));
    server.put("one", "anna", Some(SignsIn::Account), false).await;
    let found = server.ask("one", "anna:of-account").await.unwrap();
    assert!(matches!(found.basis(), RightsBasis::Document { .. }));
    server.put("one", "anna", password("of-one", 1), false).await;
    manual.advance(SECOND);
    let found = server.ask("one", "anna:of-one").await.unwrap();
    assert_eq!(user_of(&found), ("one", "anna", 2));
    let principal = found.principal();
    assert!(principal.name.is_none() && !principal.is_admin && principal.roles.is_empty() && found.fence().is_none());
    for wrong in ["anna:of-account", "anna:", "anna:of-one ", ":", ":of-one", "bert:of-one", "a b:x"] {
        assert_eq!(server.ask("one", wrong).await.unwrap_err(), WRONG, "{wrong}");
    }
    assert_eq!(server.ask("two", "anna:of-one").await.unwrap_err(), WRONG);
    // A user of another database is another user, even with the same password.
    server.put("two", "anna", password("of-one", 1), false).await;
    manual.advance(SECOND);
    assert_eq!(user_of(&server.ask("two", "anna:of-one").await.unwrap()), ("two", "anna", 1));
    // A new password counts at once, at another server too; the old one is invalid after a second.
    let other = Server::new(&store).await;
    other.put("one", "anna", password("new", 2), false).await;
    assert_eq!(user_of(&server.ask("one", "anna:new").await.unwrap()).2, 3);
    assert_eq!(server.ask("one", "anna:of-one").await.unwrap_err(), WRONG);
    let accounts = server.service.accounts();
    let before = found;
    assert!(accounts.current_standing(&before, Freshness::Since(server.layer.clock().now())).await.unwrap().is_none());
    let now = server.ask("one", "anna:new").await.unwrap();
    assert!(accounts.current_standing(&now, Freshness::Since(server.layer.clock().now())).await.unwrap().is_some());
    other.put("one", "anna", None, true).await;
    assert!(accounts.current_standing(&now, Freshness::Since(server.layer.clock().now())).await.unwrap().is_none());
    assert_eq!(server.ask("one", "anna:new").await.unwrap_err(), WRONG);
    // A database without channels has no users, and a missing database is refused as missing.
    server.database("plain").create(&CreateOptions::default()).await.unwrap();
    assert_eq!(server.ask("plain", "bert:x").await.unwrap_err(), WRONG);
    assert!(
        server.ask("none", "bert:x").await.unwrap_err().contains("no_db_file")
            || server.ask("none", "bert:x").await.is_err()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guest_is_let_in_by_an_administrator_alone() {
    let manual = ManualClock::new();
    let store = Store::timed(manual.clock()).await;
    let server = Server::new(&store).await;
    server.create("one").await;
    let nobody = async || {
        let found = server.service.identify_in("one", &UserClaims::default()).await;
        found.map(|found| found.standing).map_err(|error| error.to_string())
    };
    assert_eq!(nobody().await.unwrap_err(), "Login required");
    server.put("one", "", None, false).await;
    manual.advance(SECOND);
    assert_eq!(user_of(&nobody().await.unwrap()), ("one", "", 1));
    assert_eq!(
        server
            .service
            .context(nobody().await.unwrap())
            .begin_user_session("one", "", Duration::from_secs(9))
            .await
            .unwrap(),
        None
    );
    server.put("one", "", None, true).await;
    manual.advance(SECOND);
    assert_eq!(nobody().await.unwrap_err(), "Login required");
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_count_in_their_database_alone_until_something_ends_them() {
    let manual = ManualClock::new();
    let store = Store::timed(manual.clock()).await;
    let (server, other) = (Server::new(&store).await, Server::new(&store).await);
    for name in ["one", "two"] {
        server.create(name).await;
        server.put(name, "anna", password("pw", 1), false).await;
    }
    let anna = server.service.context(server.ask("one", "anna:pw").await.unwrap());
    let day = Duration::from_secs(24 * 3_600);
    let begun = anna.begin_user_session("one", "anna", day).await.unwrap().unwrap();
    assert!(begun.id.len() == 40 && begun.ends_at_ms > server.layer.clock().unix_ms() + 86_000_000);
    for server in [&server, &other] {
        let found = server.bring("one", &begun.id).await.unwrap();
        assert_eq!((user_of(&found.standing), found.prolonged_until_ms), (("one", "anna", 1), None));
        assert_eq!(found.standing.principal().signed_in, AuthMethod::Cookie);
    }
    for wrong in ["", "x", &begun.id[1..], &format!("{}0", &begun.id[..39]), &"é".repeat(20)] {
        if wrong != begun.id {
            assert_eq!(server.bring("one", wrong).await.unwrap_err(), "Session Invalid", "{wrong}");
        }
    }
    assert_eq!(server.bring("two", &begun.id).await.unwrap_err(), "Session Invalid");
    // Only the user and administrators of the database create a session.
    for (database, name) in [("two", "anna"), ("one", "bert"), ("one", ""), ("none", "anna")] {
        assert!(anna.begin_user_session(database, name, day).await.is_err(), "{database} {name}");
    }
    let admin = server.service.context(Standing::of_server());
    assert_eq!(admin.begin_user_session("one", "bert", day).await.unwrap(), None);
    let by_admin = admin.begin_user_session("one", "anna", day).await.unwrap().unwrap();
    assert_eq!(admin.user_session("one", &by_admin.id).await.unwrap(), Some(("anna".into(), by_admin.ends_at_ms)));
    assert_eq!(admin.user_session("two", &by_admin.id).await.unwrap(), None);
    assert!(anna.user_session("one", &by_admin.id).await.is_err());
    // One session ends, the other continues; then all end.
    server.service.end_user_session("one", &begun.id).await.unwrap();
    assert_eq!(other.bring("one", &begun.id).await.unwrap_err(), "Session Invalid");
    assert!(other.bring("one", &by_admin.id).await.is_ok());
    let administration = admin.database("one", Administer).await.unwrap();
    assert!(administration.end_principal_sessions("anna").await.unwrap());
    manual.advance(SECOND);
    assert_eq!(other.bring("one", &by_admin.id).await.unwrap_err(), "Session Invalid");
    // A deleted and recreated user.
    let again = admin.begin_user_session("one", "anna", day).await.unwrap().unwrap();
    server.database("one").delete_principal(PrincipalKind::User, "anna").await.unwrap();
    server.put("one", "anna", password("pw", 1), false).await;
    manual.advance(SECOND);
    assert_eq!(server.bring("one", &again.id).await.unwrap_err(), "Session Invalid");
    // Sessions expire, and use after a tenth of their time prolongs them.
    let short = admin.begin_user_session("one", "anna", 4 * SECOND).await.unwrap().unwrap();
    manual.advance(2 * SECOND);
    let prolonged = other.bring("one", &short.id).await.unwrap().prolonged_until_ms;
    assert_eq!(prolonged, Some(short.ends_at_ms + 2_000));
    manual.advance(3 * SECOND);
    assert!(server.bring("one", &short.id).await.is_ok(), "behind its first end");
    manual.advance(4 * SECOND);
    assert_eq!(server.bring("one", &short.id).await.unwrap_err(), "Session Invalid");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_of_one_database_is_nobody_in_others() {
    let manual = ManualClock::new();
    let store = Store::timed(manual.clock()).await;
    let server = Server::new(&store).await;
    for name in ["one", "two"] {
        server.create(name).await;
        // Members and administrators of this name are other users.
        let security = br#"{"admins":{"names":["anna"],"roles":[]},"members":{"names":["anna"],"roles":[]}}"#;
        server.database(name).set_security(security).await.unwrap();
    }
    server.database("plain").create(&CreateOptions::default()).await.unwrap();
    server.database("plain").set_security(br#"{"members":{"names":[],"roles":[]}}"#).await.unwrap();
    users(&server.layer).create(&CreateOptions::default()).await.unwrap();
    server.put("one", "anna", password("pw", 1), false).await;
    let anna = server.service.context(server.ask("one", "anna:pw").await.unwrap());
    assert!(anna.database("one", Read).await.is_ok());
    assert!(anna.database("one", Administer).await.is_err() && anna.database("one", Own).await.is_err());
    for elsewhere in ["two", "plain", USERS, "none"] {
        assert!(anna.database(elsewhere, Read).await.is_err(), "{elsewhere}");
        assert!(anna.database(elsewhere, Write).await.is_err(), "{elsewhere}");
    }
    assert!(anna.server().await.is_err());
    // Nor in a later database of the same name.
    server.database("one").delete().await.unwrap();
    server.create("one").await;
    server.put("one", "anna", password("pw", 1), false).await;
    manual.advance(SECOND);
    assert!(anna.database("one", Read).await.is_err());
}

/// Waits for a poll, begun after this call, of the basis of all followers' rights.
async fn looked(server: &Server) {
    let mut confirmed = server.service.accounts().confirmed();
    // The poll that ends next may have begun before.
    for _ in 0..2 {
        let before = *confirmed.borrow_and_update();
        soon(confirmed.wait_for(|began| *began != before)).await.unwrap();
    }
}

/// A long-lived request continues through unrelated changes, and ends within a second of a change of its reader's
/// credentials.
#[tokio::test]
async fn a_feed_ends_with_its_users_password() {
    let store = Store::new().await;
    let server = Server::new(&store).await;
    server.create("one").await;
    server.put("one", "anna", password("pw", 1), false).await;
    let anna = server.service.context(server.ask("one", "anna:pw").await.unwrap());
    assert!(anna.database("one", Read).await.is_ok());
    let mut watch = anna.rights_watch().at_once();
    let mut goes_on = async || {
        tokio::select! {
            lost = watch.lost() => panic!("{lost}"),
            () = looked(&server) => {}
        }
    };
    goes_on().await;
    server.database("one").set_security(br#"{"members":{"names":["other"],"roles":[]}}"#).await.unwrap();
    goes_on().await;
    server.put("one", "anna", password("other", 2), false).await;
    assert_eq!(soon(watch.lost()).await.kind.status(), 401);
}

/// One poll finds the changes of all followed users of a process.
#[tokio::test]
async fn a_feed_ends_with_its_session_and_what_is_read_for_many_is_read_once() {
    let store = Store::new().await;
    let server = Server::new(&store).await;
    server.create("one").await;
    let lasts = Duration::from_secs(60);
    let (mut watches, mut sessions) = (Vec::new(), Vec::new());
    for number in 0..20 {
        let name = format!("u{number}");
        server.put("one", &name, password("pw", 1), false).await;
        let session = server.service.context(Standing::of_server()).begin_user_session("one", &name, lasts).await;
        let session = session.unwrap().unwrap();
        let user = server.service.context(server.bring("one", &session.id).await.unwrap().standing);
        assert!(user.database("one", Read).await.is_ok());
        let mut watch = user.rights_watch().at_once();
        watches.push(tokio::spawn(async move { watch.lost().await }));
        sessions.push(session);
    }
    let transactions = || {
        let families = server.layer.metrics();
        let of = families.iter().find(|family| family.name == "flatbed_transactions").unwrap();
        of.samples
            .iter()
            .map(|sample| match sample.value {
                flatbed_metrics::Value::Count(count) => count,
                _ => 0,
            })
            .sum::<u64>()
    };
    // Each poll of the process is two reads: of the basis of rights, and of users. Each follower would read as often.
    until("one look is for all of them", async || {
        let before = transactions();
        looked(&server).await;
        transactions() - before < watches.len() as u64
    })
    .await;
    assert!(watches.iter().all(|watch| !watch.is_finished()));
    server.service.end_user_session("one", &sessions[3].id).await.unwrap();
    let lost = soon(&mut watches[3]).await.unwrap();
    assert_eq!(lost.kind.status(), 401);
    server.put("one", "u5", password("pw", 1), true).await;
    soon(&mut watches[5]).await.unwrap();
    let over = |number: usize| [3, 5].contains(&number);
    assert!(watches.iter().enumerate().all(|(number, watch)| watch.is_finished() == over(number)));
}

#[tokio::test]
async fn a_feed_ends_when_its_session_does() {
    let manual = ManualClock::new();
    let store = Store::timed(manual.clock()).await;
    let server = Server::new(&store).await;
    server.create("one").await;
    server.put("one", "anna", password("pw", 1), false).await;
    let root = server.service.context(Standing::of_server());
    let session = root.begin_user_session("one", "anna", 6 * SECOND).await.unwrap().unwrap();
    let anna = server.service.context(server.bring("one", &session.id).await.unwrap().standing);
    assert!(anna.database("one", Read).await.is_ok());
    let mut watch = anna.rights_watch().at_once();
    let now_ms = || server.layer.clock().unix_ms();
    let mut lost = Box::pin(watch.lost());
    let refused = until_some("the feed ends", async || {
        let refused = within(Duration::from_millis(20), &mut lost).await;
        if refused.is_none() {
            manual.advance(SECOND / 2);
        }
        refused
    })
    .await;
    assert_eq!(refused.kind.status(), 401);
    assert!(now_ms() >= session.ends_at_ms);
}

/// An offline database refuses its users, also while they follow it, but not its administrators.
#[tokio::test]
async fn users_are_kept_out_of_what_is_offline() {
    let store = Store::new().await;
    let server = Server::new(&store).await;
    server.create("one").await;
    server.put("one", "anna", password("pw", 1), false).await;
    let anna = server.service.context(server.ask("one", "anna:pw").await.unwrap());
    let status = async || match anna.database("one", Write).await {
        Ok(_) => 0,
        Err(crate::AccessError::Refused(refused)) => refused.kind.status(),
        Err(error) => panic!("{error}"),
    };
    assert_eq!(status().await, 0);
    let mut watch = anna.rights_watch().at_once();
    assert!(tokio::time::timeout(Duration::from_millis(300), watch.lost()).await.is_err());
    server.database("one").set_offline(true).await.unwrap();
    assert_eq!(status().await, 503);
    assert_eq!(soon(watch.lost()).await.kind.status(), 503);
    let root = server.service.context(Standing::of_server());
    assert!(root.database("one", Administer).await.is_ok());
    server.database("one").set_offline(false).await.unwrap();
    assert_eq!(status().await, 0);
}
