//! Each writer of rights changes the access version of its database, and no other writer does. A look at access
//! versions costs what has changed.
#![cfg(test)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use flatbed_databases::asker::ReadPrincipal;
use flatbed_databases::channels::{
    AccessCell, AccessPart, AccessState, PrincipalKind, PrincipalSession, PrincipalWrite, SignsIn,
};
use flatbed_databases::document::edit::Edit;
use flatbed_flatten::json::{Limits, parse};
use flatbed_operations::write::expire::expire;
use flatbed_revtree::RevId;
use flatbed_store::keys::AccessCell as Cell;
use flatbed_store::transaction::Transaction;

use super::{names, role, user};
use crate::handle::{Database, Layer};
use crate::resync::ResyncAction;
use crate::tests::fenced::{layer_judged_by, open};
use crate::tests::index::channels::{ByBody, assert_clean, give_channels};
use crate::{CreateOptions, LocalDocument};

/// A look at the access versions of a layer, which resumes at the one before.
struct Looker<'a> {
    layer: &'a Layer,
    known: Option<AccessState>,
}

impl Looker<'_> {
    async fn look(&mut self) -> Vec<AccessPart> {
        let found = self.layer.access_changes(self.known.as_ref(), &|_| true).await.unwrap();
        self.known = Some(found.state);
        found.changed
    }
}

async fn put(db: &Database, id: &str, parent: Option<&RevId>, body: &str) -> RevId {
    let body = parse(body.as_bytes(), &Limits::default()).unwrap();
    let (parent, attachments) = (parent.cloned(), Vec::new());
    let edit = Edit { id: id.into(), parent, history: None, deleted: false, expiry: None, attachments, body };
    db.update(&edit).await.unwrap().rev
}

/// A document with this body comes by replication.
async fn replicate(db: &Database, id: &str, path: &[&str], body: &str) {
    let body = parse(body.as_bytes(), &Limits::default()).unwrap();
    let history = Some(path.iter().map(|rev| rev.parse().unwrap()).collect());
    let edit =
        Edit { id: id.into(), parent: None, history, deleted: false, expiry: None, attachments: Vec::new(), body };
    assert!(db.bulk_update(&[edit]).await.unwrap().iter().all(Result::is_ok));
}

#[tokio::test]
async fn each_writer_of_rights_changes_the_access_version_and_no_other_does() {
    let (layer, authority, storage) = layer_judged_by(Some(Arc::new(ByBody))).await;
    let (other, _) = open(&storage, None).await;
    let server = layer.database("db", authority.for_job("test"));
    give_channels(&server).await;
    let db = Layer { inner: layer.inner.clone() }
        .database("db", crate::tests::fenced::user("anna"))
        .asked_by(ReadPrincipal::All);
    let mut looker = Looker { layer: &other, known: None };
    assert_eq!(looker.look().await.len(), 256, "a first look");
    let mut expect = async |what: &str, is_changed: bool| {
        let cell = AccessPart::Cell(AccessCell::of("db"));
        let expected: Vec<_> = is_changed.then_some(cell).into_iter().collect();
        assert_eq!(looker.look().await, expected, "{what}");
    };
    expect("nothing", false).await;
    // Users and roles.
    server.put_principal(&user("anna")).await.unwrap();
    expect("a user comes", true).await;
    server.put_principal(&user("anna")).await.unwrap();
    expect("a user stays as it was", false).await;
    let in_role = PrincipalWrite { admin_channels: names(&["A"]), admin_roles: names(&["staff"]), ..user("anna") };
    server.put_principal(&in_role).await.unwrap();
    expect("a user gets a channel", true).await;
    server.put_principal(&role("staff")).await.unwrap();
    expect("a role comes", true).await;
    server.put_principal(&user("")).await.unwrap();
    expect("the guest is admitted", true).await;
    let password = Some(SignsIn::Password(b"{1}".to_vec()));
    server.put_principal(&PrincipalWrite { signs_in: password, ..in_role.clone() }).await.unwrap();
    expect("a password changes", true).await;
    server.put_principal(&PrincipalWrite { is_disabled: true, ..user("carl") }).await.unwrap();
    expect("a disabled user comes", true).await;
    // Sessions.
    let session = PrincipalSession { name: "anna".into(), generation: 2, ends_at_ms: u64::MAX, lasts_ms: 9 };
    for number in [1, 2] {
        assert!(server.begin_principal_session(&[number; 20], &session).await.unwrap());
    }
    assert!(server.prolong_principal_session(&[1; 20], u64::MAX).await.unwrap());
    expect("sessions begin", false).await;
    server.end_principal_session(&[1; 20]).await.unwrap();
    expect("a session ends", true).await;
    server.end_principal_session(&[1; 20]).await.unwrap();
    expect("a session has ended", false).await;
    assert!(server.end_principal_sessions("anna").await.unwrap());
    expect("all sessions end", true).await;
    // Documents.
    let giving = put(&db, "giving", None, r#"{"gives":"bob"}"#).await;
    expect("a document gives a channel", true).await;
    let edited = put(&db, "giving", Some(&giving), r#"{"gives":"bob","n":1}"#).await;
    expect("a document gives what it gave", false).await;
    let second = put(&db, "second", None, r#"{"gives":"bob"}"#).await;
    expect("another document gives the same", false).await;
    put(&db, "plain", None, r#"{"channels":["A"]}"#).await;
    server.put_local(&LocalDocument { id: "l".into(), revision: 1, body: Vec::new() }).await.unwrap();
    expect("documents without grants", false).await;
    put(&db, "second", Some(&second), "{}").await;
    expect("one of two ways goes", false).await;
    let gone = put(&db, "giving", Some(&edited), "{}").await;
    expect("the last way goes", true).await;
    replicate(&db, "giving", &["4-f", "3-f"], r#"{"gives":"bob"}"#).await;
    expect("a replicated leaf wins", true).await;
    server.purge("giving", &["4-f".parse().unwrap()]).await.unwrap();
    expect("the leaf is purged", true).await;
    assert_eq!(db.get("giving", &Default::default()).await.unwrap().rev, gone);
    put(&db, "ends", None, r#"{"gives":"dora","ends":9}"#).await;
    expect("a document that expires gives a channel", true).await;
    expire(&server.handle, Duration::from_secs(60), 0, Duration::ZERO).await.unwrap();
    expect("it has expired", true).await;
    // A new function.
    let first = put(&db, "again", None, r#"{"m":"M"}"#).await;
    put(&db, "again", Some(&first), r#"{"m":"M","n":1}"#).await;
    server.set_security(br#"{"members":{"names":["x"],"roles":[]}}"#).await.unwrap();
    server.set_sync_function(Some("m")).await.unwrap();
    expect("settings change", false).await;
    server.resync(ResyncAction::Start { is_exclusive: false, is_anew: false }).await.ok();
    assert_eq!(crate::resync::resync(&server, Duration::from_secs(60)).await.unwrap(), Some(true));
    expect("a resync routes documents anew", true).await;
    assert_clean(&server).await;
    // Users, roles and the database go.
    server.delete_principal(PrincipalKind::Role, "staff").await.unwrap();
    expect("a role goes", true).await;
    server.delete_principal(PrincipalKind::User, "anna").await.unwrap();
    expect("a user goes", true).await;
    assert!(!server.delete_principal(PrincipalKind::User, "anna").await.unwrap());
    expect("no user goes", false).await;
    server.delete().await.unwrap();
    expect("the database goes", true).await;
    server.create(&CreateOptions::default()).await.unwrap();
    expect("a database comes", false).await;
    server.delete().await.unwrap();
    expect("a database without channels goes", false).await;
}

/// A writer that logs a changed user without the access version is found by the checker.
#[tokio::test]
async fn the_checker_finds_a_writer_that_forgets() {
    let (layer, authority, _storage) = layer_judged_by(Some(Arc::new(ByBody))).await;
    let server = layer.database("db", authority.for_job("test"));
    give_channels(&server).await;
    server.put_principal(&user("anna")).await.unwrap();
    assert_clean(&server).await;
    let bucket = layer.inner.keys.access_bucket(Cell::of("db").bucket);
    let begin = || Transaction::begin(&layer.inner.db, &layer.inner.metrics).unwrap();
    let trx = begin();
    let newest = trx.get(&bucket, true).await.unwrap().unwrap().to_vec();
    server.put_principal(&user("bert")).await.unwrap();
    // As if that transaction had not written it.
    let trx = begin();
    trx.set(&bucket, &newest);
    trx.commit().await.unwrap();
    let report = crate::check::check_database(&server, |_| {}).await.unwrap();
    // The version and the log entry of `bert`.
    assert_eq!(report.violations.len(), 2, "{report:?}");
}

/// An idle look is one transaction with one range read; a change in one of many databases adds one range read of its
/// bucket, and one of the database.
#[tokio::test]
async fn a_look_costs_what_has_changed() {
    let (layer, authority, storage) = layer_judged_by(Some(Arc::new(ByBody))).await;
    let (other, _) = open(&storage, None).await;
    let mut databases = Vec::new();
    for number in 0..12 {
        let db = layer.database(&format!("db{number}"), authority.for_job("test"));
        db.create(&CreateOptions::default()).await.unwrap();
        give_channels(&db).await;
        db.put_principal(&user("anna")).await.unwrap();
        databases.push(db);
    }
    let counts = || {
        let counters = other.inner.metrics.storage();
        [counters.transactions.get(), counters.range_reads.get(), counters.reads.get()]
    };
    let mut looker = Looker { layer: &other, known: None };
    looker.look().await;
    // Reads of the metadata version by the kit count in `reads`.
    let before = counts();
    for _ in 0..10 {
        assert_eq!(looker.look().await, []);
    }
    let after = counts();
    assert_eq!([after[0] - before[0], after[1] - before[1]], [10, 10], "reads: {}", after[2] - before[2]);
    let known = looker.known.clone().unwrap();
    databases[7].put_principal(&user("bert")).await.unwrap();
    let before = counts();
    assert_eq!(looker.look().await, [AccessPart::Cell(AccessCell::of("db7"))]);
    let after = counts();
    assert_eq!([after[0] - before[0], after[1] - before[1]], [1, 2]);
    // Not even the cells of buckets in which nothing is followed.
    let of_others = other.access_changes(Some(&known), &|bucket| bucket != AccessCell::of("db7").bucket).await.unwrap();
    assert_eq!((of_others.changed, counts()[1] - after[1]), (vec![], 1));
    let incarnation = flatbed_operations::write::batch::instance_of(&other.inner, "db7").await.unwrap().incarnation();
    let before = counts();
    let found = other.users_changed(&[("db7".into(), Some(known.position(incarnation)))]).await.unwrap();
    assert_eq!(found[0].as_ref().unwrap().names.as_deref(), Some(&["bert".into()][..]));
    assert_eq!([counts()[0] - before[0], counts()[1] - before[1]], [1, 1]);
    // After a renewal all buckets with a change have changed as a whole.
    crate::renew::renew(&layer.inner.db, &layer.inner.options.root, &layer.inner.clock).await.unwrap();
    let buckets: BTreeSet<u8> = (0..12).map(|number| AccessCell::of(&format!("db{number}")).bucket).collect();
    assert_eq!(looker.look().await, buckets.into_iter().map(AccessPart::Bucket).collect::<Vec<_>>());
    databases[7].put_principal(&user("carl")).await.unwrap();
    assert_eq!(looker.look().await, [AccessPart::Cell(AccessCell::of("db7"))]);
}
