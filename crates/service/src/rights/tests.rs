//! Rights of principals, without any surface.

use flatbed_auth::AuthMethod;

use super::*;
use crate::context::Context;
use crate::feeds::tests::Store;
use crate::standing::RightsBasis;
use flatbed_layer::Edit;
use flatbed_layer::json::{self, Limits};

fn user(roles: &[&str]) -> Principal {
    let roles: Vec<String> = roles.iter().map(|role| (*role).to_owned()).collect();
    Principal::user("anna", roles, AuthMethod::Password)
}

fn rights(store: &Store, principal: Principal) -> Rights {
    Rights::new(Standing::new(principal, RightsBasis::Nothing), store.service.users().clone())
}

/// The statuses of the refusals for each requirement; 0: granted.
fn refused(principal: &Principal, access: Access) -> [u16; 4] {
    refused_of(
        false,
        [Requirement::Member, Requirement::Admin, Requirement::Maintainer, Requirement::Server],
        principal,
        access,
    )
}

fn refused_of<const N: usize>(
    channels: bool,
    all: [Requirement; N],
    principal: &Principal,
    access: Access,
) -> [u16; N] {
    let status = |refused: AuthError| refused.kind.status();
    all.map(|needs| needs.suffices(principal, access, channels).map_or_else(status, |()| 0))
}

#[test]
fn in_a_database_with_channels_administrators_alone_see_all() {
    let (nobody, anna) = (Principal::anonymous(), user(&["r"]));
    let whole = |principal, access| {
        let needs = [Requirement::Member, Requirement::Whole];
        [false, true].map(|channels| refused_of(channels, needs, principal, access))
    };
    assert_eq!(whole(&anna, Access::Admin), [[0, 0], [0, 0]]);
    assert_eq!(whole(&anna, Access::Member), [[0, 0], [0, 403]]);
    assert_eq!(whole(&anna, Access::Nobody), [[403, 403], [0, 403]]);
    assert_eq!(whole(&nobody, Access::Member), [[0, 0], [0, 403]]);
    // An outsider learns no more than about a missing database.
    assert_eq!(whole(&nobody, Access::Nobody), [[401, 401], [0, 401]]);
    let refused = Requirement::Whole.suffices(&anna, Access::Nobody, true).unwrap_err();
    assert_eq!(refused.reason, "Only administrators may read this.");
}

#[test]
fn what_each_may() {
    let (nobody, anna) = (Principal::anonymous(), user(&["r"]));
    assert_eq!(refused(&nobody, Access::Nobody), [401, 401, 401, 401]);
    assert_eq!(refused(&anna, Access::Nobody), [403, 403, 403, 401]);
    assert_eq!(refused(&nobody, Access::Member), [0, 401, 401, 401]);
    assert_eq!(refused(&anna, Access::Member), [0, 403, 401, 401]);
    assert_eq!(refused(&anna, Access::Admin), [0, 0, 0, 401]);
    assert_eq!(refused(&user(&["_admin"]), Access::Admin), [0; 4]);
}

#[test]
fn what_cannot_be_read_keeps_everyone_out() {
    for security in [None, Some(&b""[..]), Some(b"x"), Some(b"[]"), Some(br#"{"members":{"names":[1]}}"#)] {
        let security = parsed(security);
        assert_eq!(access(&user(&["r"]), "db", &security), Access::Nobody);
        assert_eq!(access(&Principal::nameless_admin(), "db", &security), Access::Admin);
    }
    assert_eq!(access(&Principal::anonymous(), "db", &parsed(Some(b"{}"))), Access::Member);
}

#[test]
fn databases_of_the_system_are_the_servers() {
    let open = parsed(Some(br#"{"admins":{"names":["anna"]}}"#));
    for name in ["_global_changes", "_else"] {
        assert_eq!(access(&user(&[]), name, &open), Access::Nobody, "{name}");
        assert_eq!(access(&user(&["_admin"]), name, &open), Access::Admin, "{name}");
    }
    assert_eq!(access(&user(&[]), "users", &open), Access::Admin);
}

/// A transaction may find another `_security` than the one that was judged before it.
#[test]
fn what_was_granted_is_judged_again() {
    let closed: &[u8] = br#"{"members":{"names":["bob"]}}"#;
    let held = |principal: Principal, needs, access| CommitGate {
        standing: Standing::new(principal, RightsBasis::Nothing),
        needs,
        name: "db".to_owned(),
        access,
        as_replicator: None,
    };
    let judged = |held: &CommitGate, security: &[u8]| held.judge(&DatabaseSecurity::new(security, 1));
    let member = held(user(&[]), Requirement::Member, Access::Member);
    assert_eq!(judged(&member, b"{}"), Ok(()));
    assert!(matches!(judged(&member, closed), Err(Refusal::Forbidden(_))));
    let nobody = held(Principal::anonymous(), Requirement::Member, Access::Member);
    assert_eq!(judged(&nobody, b"{}"), Ok(()));
    assert!(matches!(judged(&nobody, closed), Err(Refusal::Unauthorized(_))));
    // A former administrator who is still a member is judged as a member.
    let admin = held(user(&[]), Requirement::Member, Access::Admin);
    assert_eq!(judged(&admin, br#"{"admins":{"names":["anna"]}}"#), Ok(()));
    assert_eq!(judged(&admin, b"{}"), Err(Refusal::UserChanged));
    assert!(matches!(judged(&admin, closed), Err(Refusal::Forbidden(_))));
    let admin = held(user(&[]), Requirement::Admin, Access::Admin);
    assert!(matches!(judged(&admin, b"{}"), Err(Refusal::Forbidden(_))));
    let server = held(user(&["_admin"]), Requirement::Server, Access::Admin);
    assert_eq!(judged(&server, closed), Ok(()));
    let was_server = held(user(&[]), Requirement::Server, Access::Admin);
    assert!(judged(&was_server, b"{}").is_err());
}

/// A database that was deleted and recreated may be of another kind.
#[test]
fn what_was_granted_in_one_kind_of_database_is_not_in_another() {
    for principal in [user(&[]), user(&["_admin"]), Principal::nameless_admin()] {
        for (as_replicator, is_replicator, is_let) in [
            (None, true, true),
            (None, false, true),
            (Some(true), true, true),
            (Some(false), false, true),
            (Some(true), false, false),
            (Some(false), true, false),
        ] {
            let standing = Standing::new(principal.clone(), RightsBasis::Nothing);
            let (needs, name, access) = (Requirement::Member, "a/_replicator".to_owned(), Access::Member);
            let held = CommitGate { standing, needs, name, access, as_replicator };
            let judged = held.judge(&DatabaseSecurity::new(b"{}", 1).of_replicator(is_replicator));
            let expected = if is_let { Ok(()) } else { Err(Refusal::UserChanged) };
            assert_eq!(judged, expected, "{as_replicator:?} {is_replicator}");
        }
    }
    // A reader of one kind does not continue to read the other.
    let standing = Standing::new(user(&[]), RightsBasis::Nothing);
    let security = |is_replicator| DatabaseSecurity::new(b"{}", 1).of_replicator(is_replicator);
    for (was, is) in [(false, false), (true, true), (false, true), (true, false)] {
        let (before, principal) = ((Access::Member, was), user(&[]));
        let still = Requirement::Member.in_database_as(before, &standing, &principal, "a/_replicator", &security(is));
        assert_eq!(still.is_ok(), was == is);
    }
}

#[tokio::test]
async fn documents_of_further_databases_have_owners_where_they_were_made_so() {
    let store = Store::new().await;
    let own = store.context.database("a/_replicator", Own).await.unwrap();
    let owner = async || {
        let writer = store.context.database("a/_replicator", Write).await.unwrap();
        let body = json::parse(br#"{"source":"x","owner":"anna"}"#, &Limits::default()).unwrap();
        let (id, attachments) = ("d".into(), Vec::new());
        let edit = Edit { expiry: None, id, parent: None, history: None, deleted: false, attachments, body };
        writer.update(&edit).await.map(|_| ())?;
        let document = writer.get("d", &Default::default()).await?;
        Ok::<_, LayerError>(String::from_utf8(document.body).unwrap())
    };
    // A missing database refuses writes.
    assert!(matches!(owner().await, Err(LayerError::DatabaseNotFound)));
    own.create(&Default::default()).await.unwrap();
    let written = owner().await.unwrap();
    assert!(written.contains("owner"), "{written}");
    let administer = store.context.database("a/_replicator", Administer).await.unwrap();
    administer.set_security(br#"{"members":{"names":["anna"]}}"#).await.unwrap();
    let anna = store.service.context(Standing::new(user(&[]), RightsBasis::Nothing));
    // A request to this process finds the change.
    store.context.database("a/_replicator", Read).await.unwrap().exists().await.unwrap();
    let reader = anna.database("a/_replicator", Read).await.unwrap();
    // Members read single documents, but no lists.
    assert!(reader.get("d", &Default::default()).await.is_ok());
    let listed = reader.all_docs(Default::default()).next_page().await;
    assert!(matches!(listed, Err(LayerError::Refused(Refusal::Forbidden(_)))));
    // No user document has this name, so it is no account of this server.
    let refused = anna.database("a/_replicator", Write).await.unwrap().update(&edit("e")).await;
    assert!(matches!(refused, Err(LayerError::Refused(Refusal::Forbidden(_)))), "{refused:?}");
}

#[tokio::test]
async fn the_servers_own_is_its_administrators() {
    let store = Store::new().await;
    let flagged = Principal { is_admin: true, ..user(&["r"]) };
    for (principal, server, metrics) in [
        (Principal::anonymous(), false, false),
        (user(&["admin", "r"]), false, false),
        (user(&["_metrics"]), false, true),
        (user(&["_admin"]), true, true),
        (Principal::nameless_admin(), true, true),
        (flagged.clone(), true, true),
    ] {
        let rights = rights(&store, principal);
        assert_eq!(
            (
                Requirement::Server.in_server(rights.principal()).is_ok(),
                Requirement::Metrics.in_server(rights.principal()).is_ok()
            ),
            (server, metrics),
            "{rights:?}"
        );
    }
    // Functions that judge writes see the role, however it is known.
    assert_eq!(rights(&store, flagged).user().roles, ["_admin", "r"]);
    assert_eq!(rights(&store, user(&["r", "_admin"])).user().roles, ["r", "_admin"]);
    assert!(rights(&store, Principal::anonymous()).user().roles.is_empty());
    // And the client's network, which decides its turn in calls of functions.
    let of = |address: [u8; 4]| {
        let mut rights = rights(&store, Principal::anonymous());
        rights.users = rights.users.from(Some(address.into()));
        rights.user().client
    };
    assert_eq!(rights(&store, Principal::anonymous()).user().client, None);
    assert!(of([10, 0, 0, 1]).is_some() && of([10, 0, 0, 1]) == of([10, 0, 0, 1]));
    assert_ne!(of([10, 0, 0, 1]), of([10, 0, 0, 2]));
}

/// The status of a refusal; 0: none.
fn status<T>(given: Result<T, AccessError>) -> u16 {
    match given {
        Ok(_) => 0,
        Err(AccessError::Refused(refused)) => refused.kind.status(),
        Err(AccessError::Layer(LayerError::DatabaseNotFound)) => 404,
        Err(AccessError::Layer(error)) => panic!("{error}"),
    }
}

async fn all(context: &Context, name: &str) -> [u16; 6] {
    [
        status(context.database(name, Read).await),
        status(context.database(name, Write).await),
        status(context.database(name, Administer).await),
        status(context.database(name, Maintain).await),
        status(context.database(name, Purge).await),
        status(context.database(name, Own).await),
    ]
}

fn edit<'a>(id: &'a str) -> Edit<'a> {
    let body = json::parse(b"{}", &Limits::default()).unwrap();
    Edit { expiry: None, id: id.into(), parent: None, history: None, deleted: false, attachments: Vec::new(), body }
}

const NOTHING: [u16; 6] = [0; 6];
const STRANGER: [u16; 6] = [401; 6];
const OUTSIDER: [u16; 6] = [403, 403, 403, 403, 401, 401];
const MEMBER: [u16; 6] = [0, 0, 403, 401, 401, 401];
const ADMIN: [u16; 6] = [0, 0, 0, 0, 401, 401];

#[tokio::test]
async fn a_database_says_who_its_members_and_administrators_are() {
    let store = Store::new().await;
    let context = |principal: Principal| store.service.context(Standing::new(principal, RightsBasis::Nothing));
    let (nobody, anna) = (context(Principal::anonymous()), context(user(&["r"])));
    let set = async |security: &str| {
        store.context.database("db", Administer).await.unwrap().set_security(security.as_bytes()).await.unwrap();
        // A request to this process finds the change, so that others need not wait for a second.
        store.context.database("db", Read).await.unwrap().exists().await.unwrap();
    };
    // A new database is closed.
    assert_eq!(all(&store.context, "db").await, NOTHING);
    assert_eq!((all(&anna, "db").await, all(&nobody, "db").await), (OUTSIDER, STRANGER));
    for (security, of_anna, of_nobody) in [
        ("{}", MEMBER, [0, 0, 401, 401, 401, 401]),
        (r#"{"members":{"roles":["r"]}}"#, MEMBER, STRANGER),
        (r#"{"members":{"names":["x"]},"admins":{"names":["anna"]}}"#, ADMIN, STRANGER),
        (r#"{"members":{"names":["x"]}}"#, OUTSIDER, STRANGER),
    ] {
        set(security).await;
        assert_eq!((all(&anna, "db").await, all(&nobody, "db").await), (of_anna, of_nobody), "{security}");
        assert_eq!(all(&store.context, "db").await, NOTHING);
    }
    // Refusals reveal to no outsider which databases exist.
    let long = "a".repeat(20_000);
    for name in ["none", "Bad", long.as_str()] {
        assert_eq!(all(&nobody, name).await, STRANGER);
        assert_eq!(all(&anna, name).await, OUTSIDER);
    }
}

/// Both refusals take the same number of transactions, although the `_security` of an existing database is cached.
#[tokio::test]
async fn a_refusal_does_not_tell_by_its_reads_whether_there_is_a_database() {
    let store = Store::new().await;
    let transactions = || {
        let families = store.service.metrics();
        let of = families.iter().find(|family| family.name == "flatbed_transactions").unwrap();
        let count = |value: &flatbed_metrics::Value| match value {
            flatbed_metrics::Value::Count(count) => *count,
            _ => 0,
        };
        of.samples.iter().map(|sample| count(&sample.value)).sum::<u64>()
    };
    for principal in [Principal::anonymous(), user(&["r"])] {
        let context = store.service.context(Standing::new(principal, RightsBasis::Nothing));
        // Background reads of the process add to some counts, so the minimum is compared.
        let fewest = async |name: &str| {
            let mut fewest = u64::MAX;
            for _ in 0..20 {
                let before = transactions();
                assert!(context.database(name, Read).await.is_err());
                fewest = fewest.min(transactions() - before);
            }
            fewest
        };
        assert_eq!((fewest("db").await, fewest("none").await), (1, 1));
    }
}

#[tokio::test]
async fn design_documents_are_for_administrators_of_the_database() {
    let store = Store::new().await;
    let context = |principal: Principal| store.service.context(Standing::new(principal, RightsBasis::Nothing));
    let (nobody, anna) = (context(Principal::anonymous()), context(user(&["r"])));
    let administration = store.context.database("db", Administer).await.unwrap();
    administration.set_security(br#"{"admins":{"names":["boss"]}}"#).await.unwrap();
    for (context, refusal) in [
        (&nobody, Refusal::Unauthorized("You are not a db or server admin.".into())),
        (&anna, Refusal::Forbidden("You are not a db or server admin.".into())),
    ] {
        let database = context.database("db", Write).await.unwrap();
        let refused = database.update(&edit("_design/x")).await;
        assert_eq!(refused.unwrap_err().to_string(), refusal.to_string());
        let name = context.principal().name.as_deref().unwrap_or("nobody");
        let ids = ["a", "_design/x", "_design/y", "b"].map(|id| match id {
            "a" | "b" => format!("{name}{id}"),
            id => id.to_owned(),
        });
        let edits: Vec<Edit<'_>> = ids.iter().map(|id| edit(id)).collect();
        let outcomes = database.bulk_update(&edits).await.unwrap();
        assert!(outcomes[0].is_ok() && outcomes[3].is_ok(), "{outcomes:?}");
        for outcome in &outcomes[1..3] {
            assert_eq!(outcome.as_ref().unwrap_err().to_string(), refusal.to_string());
        }
    }
    let boss = context(Principal::user("boss", [], AuthMethod::Cookie));
    let database = boss.database("db", Write).await.unwrap();
    assert!(database.update(&edit("_design/x")).await.is_ok());
    assert!(database.bulk_update(&[edit("_design/y"), edit("c")]).await.unwrap().iter().all(Result::is_ok));
    assert!(store.context.database("db", Write).await.unwrap().update(&edit("_design/z")).await.is_ok());
}
