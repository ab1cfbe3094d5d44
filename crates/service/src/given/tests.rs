//! Users who change while they write.

use std::time::Duration;

use flatbed_auth::{AuthMethod, Principal};
use flatbed_clock::{Clock, ManualClock};
use flatbed_javascript::{Runner, RunnerOptions};
use flatbed_layer::json::{self, Limits};
use flatbed_layer::{CreateOptions, Edit, Error, Refusal, RevId, USERS};

use crate::accounts::Freshness;
use crate::accounts::tests::{hash_members, write_user};
use crate::configuration::{ChangeError, ChangedBy, Configuration, Values};
use crate::context::{Context, Service};
use crate::rights::{AccessError, Administer, Own, Read, Write};
use crate::standing::{Claims, RightsBasis, Standing};
use crate::test_store::{Store, token, with_key};

struct Fixture {
    store: Store,
    service: Service,
    server: Context,
}

impl Fixture {
    async fn new() -> Fixture {
        Fixture::timed(Clock::system()).await
    }

    async fn timed(clock: Clock) -> Fixture {
        let store = Store::timed(clock).await;
        let functions = Runner::new(RunnerOptions { threads: 1, ..RunnerOptions::default() }).unwrap();
        let service = Service::new(store.layer.clone(), functions, with_key(&[]));
        let server = service.context(Standing::of_server());
        for name in ["db", USERS] {
            server.database(name, Own).await.unwrap().create(&CreateOptions::default()).await.unwrap();
        }
        let given = Fixture { store, service, server };
        given.secure("{}").await;
        given
    }

    async fn secure(&self, security: &str) {
        self.server.database("db", Administer).await.unwrap().set_security(security.as_bytes()).await.unwrap();
    }

    async fn write(&self, salt: &str, role: &str, parent: Option<RevId>) -> RevId {
        let rest = format!(r#"{},"roles":["{role}"]"#, hash_members("p", salt, 1));
        write_user(&self.store.layer, "anna", &rest, parent).await
    }

    /// The context of a request of anna with her current account.
    async fn anna(&self) -> Context {
        let found = self.service.accounts().find("anna", Freshness::Since(self.service.clock().now())).await.unwrap();
        self.service.context(found.standing(found.account.as_ref().unwrap(), AuthMethod::Password))
    }
}

fn edit(id: &str) -> Edit<'_> {
    let body = json::parse(b"{}", &Limits::default()).unwrap();
    Edit { expiry: None, id: id.into(), parent: None, history: None, deleted: false, attachments: Vec::new(), body }
}

fn is_unauthorized<T>(done: flatbed_layer::Result<T>) -> bool {
    matches!(done, Err(Error::Refused(Refusal::Unauthorized(_))))
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_the_right_still_writes_under_another_revision() {
    let given = Fixture::new().await;
    let mut rev = given.write("s", "r", None).await;
    let anna = given.anna().await;
    let writer = anna.database("db", Write).await.unwrap();
    // Each time the account has another revision than at the grant.
    rev = given.write("s", "r1", Some(rev)).await;
    writer.update(&edit("a")).await.unwrap();
    rev = given.write("s", "r2", Some(rev)).await;
    let outcomes = writer.bulk_update(&[edit("b"), edit("_design/d"), edit("c")]).await.unwrap();
    assert!(outcomes[0].is_ok() && outcomes[2].is_ok(), "{outcomes:?}");
    assert!(matches!(outcomes[1], Err(Refusal::Forbidden(_))), "{outcomes:?}");
    assert!(!writer.delete_local("l").await.unwrap());
    // With another password her standing is lost, and no row hides that.
    given.write("t", "r2", Some(rev)).await;
    assert!(is_unauthorized(writer.bulk_update(&[edit("d"), edit("e")]).await));
    assert!(is_unauthorized(writer.update(&edit("f")).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_administered_a_database_writes_as_its_member() {
    let given = Fixture::new().await;
    given.write("s", "r", None).await;
    given.secure(r#"{"admins":{"names":["anna"]}}"#).await;
    given.server.database("db", Read).await.unwrap().exists().await.unwrap();
    let anna = given.anna().await;
    let writer = anna.database("db", Write).await.unwrap();
    let administration = anna.database("db", Administer).await.unwrap();
    given.secure("{}").await;
    writer.update(&edit("a")).await.unwrap();
    assert!(matches!(writer.update(&edit("_design/d")).await, Err(Error::Refused(Refusal::Forbidden(_)))));
    assert!(matches!(administration.set_security(b"{}").await, Err(Error::Refused(Refusal::Forbidden(_)))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_takes_long_is_its_users_of_then() {
    let manual = ManualClock::new();
    let given = Fixture::timed(manual.clock()).await;
    let rev = given.write("s", "r", None).await;
    given.secure(r#"{"members":{"roles":["r"]}}"#).await;
    given.server.database("db", Read).await.unwrap().exists().await.unwrap();
    let (anna, late) = (given.anna().await, given.anna().await);
    let writer = anna.database("db", Write).await.unwrap();
    // A token that expires meanwhile is checked without a read.
    let token = token(Some(given.service.clock().unix_seconds() + 6)).await;
    let brief = given.service.context(Standing::new(Principal::nameless_admin(), token));
    let ended = brief.database("db", Administer).await.unwrap();
    given.write("s", "other", Some(rev)).await;
    // The other standings are old by then.
    manual.advance(Duration::from_secs(7));
    assert!(is_unauthorized(ended.set_security(b"{}").await));
    assert!(matches!(brief.database("db", Own).await, Err(AccessError::Refused(_))));
    assert!(matches!(writer.update(&edit("a")).await, Err(Error::Refused(Refusal::Forbidden(_)))));
    assert!(matches!(late.database("db", Read).await, Err(AccessError::Refused(_))));
    // The right and its basis are known as of now.
    given.secure(r#"{"members":{"roles":["other"]}}"#).await;
    given.server.database("db", Read).await.unwrap().exists().await.unwrap();
    late.database("db", Write).await.unwrap().update(&edit("b")).await.unwrap();
    assert_eq!(late.user().roles, ["other"]);
}

/// Writes of stored administrators are judged by the store at the commit, as another process may change these.
#[tokio::test(flavor = "multi_thread")]
async fn who_was_an_administrator_a_moment_ago_writes_nothing() {
    let store = Store::new().await;
    let (layer, authority) = store.again_with_authority().await;
    let elsewhere = Configuration::open(layer, Values::default(), false).await.unwrap();
    let actor = authority.for_job("test").into();
    let by = ChangedBy { actor: &actor, name: None, from: None };
    let configuration = Configuration::open(store.layer.clone(), Values::default(), false).await.unwrap();
    let functions = Runner::new(RunnerOptions { threads: 1, ..RunnerOptions::default() }).unwrap();
    let service = Service::new(store.layer.clone(), functions, configuration.clone());
    let open = service.identify(&Claims::default()).await.unwrap().standing;
    assert!(matches!(open.basis(), RightsBasis::OpenServer));
    let everyone = service.context(open);
    everyone.database("db", Own).await.unwrap().create(&CreateOptions::default()).await.unwrap();
    let writer = everyone.database("db", Write).await.unwrap();
    writer.update(&edit("open")).await.unwrap();
    // A change of another setting takes nothing from them.
    elsewhere.set("log", "level", "debug", by).await.unwrap();
    writer.update(&edit("still open")).await.unwrap();
    everyone.server().await.unwrap().set("log", "level", "info", None).await.unwrap();
    let hash = flatbed_auth::PasswordHash::with_iterations("test", &[1; 16], 1).to_string();
    let administration = everyone.server().await.unwrap();
    elsewhere.set("admins", "root", &hash, by).await.unwrap();
    assert!(is_unauthorized(writer.update(&edit("closed")).await));
    let is_refused = |done: Result<String, ChangeError>| {
        let words = done.unwrap_err().to_string();
        assert!(words.contains("Name or password is incorrect"), "{words}");
    };
    is_refused(administration.set("log", "level", "debug", None).await);

    let root = async || {
        configuration.reload().await.unwrap();
        let found = service.accounts().find("root", Freshness::Second).await.unwrap();
        service.context(found.standing(found.account.as_ref().unwrap(), AuthMethod::Password))
    };
    let first = root().await;
    let (writer, owner) = (first.database("db", Write).await.unwrap(), first.database("new", Own).await.unwrap());
    let (administer, server) = (first.database("db", Administer).await.unwrap(), first.server().await.unwrap());
    elsewhere.set("admins", "other", &hash, by).await.unwrap();
    writer.update(&edit("beside another")).await.unwrap();
    elsewhere.remove("admins", "root", by).await.unwrap();
    assert!(is_unauthorized(writer.update(&edit("removed")).await));
    assert!(is_unauthorized(writer.bulk_update(&[edit("removed"), edit("_design/d")]).await));
    assert!(is_unauthorized(owner.create(&CreateOptions::default()).await));
    assert!(is_unauthorized(administer.set_security(b"{}").await));
    is_refused(server.set("admins", "root", &hash, None).await);
    is_refused(server.remove("admins", "other", None).await);
    assert!(is_unauthorized(first.database("db", Own).await.unwrap().delete().await));
    let names = elsewhere.now().admins.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names, ["other"]);
}
