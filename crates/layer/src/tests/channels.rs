//! Principals at two servers: grants and revocations as cached rights show them, and sign-in.
#![cfg(test)]

mod access;
mod fence;
mod order;
mod sweep;

use std::collections::BTreeSet;
use std::sync::Arc;

use flatbed_channels::{Grant, GrantedItem, Grantee, PrincipalKind};
use flatbed_databases::channels::holding::RightsRead;
use flatbed_databases::channels::sweep::{Swept, sweep_as_of};
use flatbed_databases::channels::{
    HeldRights, PrincipalSession, PrincipalWrite, PrincipalWriteOutcome, ReadPrincipal, SignsIn, UserChanges,
};
use flatbed_databases::instance::Instance;
use flatbed_databases::record_change::ChangeRecord;
use flatbed_store::features::name_features;
use flatbed_store::proto;
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use flatbed_testkit::Storage;
use order::{Logged, LoggedWrite, WriteKind, log_key};

use crate::handle::Database;
use crate::tests::fenced::layer;
use crate::{CreateOptions, Error, Layer, LayerOptions, Refusal};

const USERS: [&str; 3] = ["anna", "bert", ""];
const ROLES: [&str; 2] = ["staff", "role"];
const CHANNELS: [&str; 3] = ["A", "B", "*"];
const DOCUMENTS: [&str; 4] = ["a", "b", "c\0", "d"];

async fn give_channels(db: &Database) {
    let change = |record: &mut proto::DatabaseRecord| {
        record.channels = 1;
        name_features(record);
    };
    let (inner, name, once) = (&*db.inner, &*db.name, db.inner.once().unwrap());
    let mut operation = ChangeRecord { inner, name, actor: db.actor(), change, once };
    transaction::write(&inner.db, &inner.metrics, &mut operation).await.unwrap();
}

/// Opens one store at two servers; the database `db` has channels.
async fn two_servers() -> ([(Layer, Database); 2], Storage) {
    let (one, authority, storage) = layer().await;
    let options = LayerOptions { root: one.inner.options.root.clone(), ..LayerOptions::default() };
    let (two, its) = Layer::open(Arc::clone(&one.inner.db), options, None).await.unwrap();
    let (here, there) = (one.database("db", authority.for_job("test")), two.database("db", its.for_job("test")));
    give_channels(&here).await;
    ([(one, here), (two, there)], storage)
}

fn user(name: &str) -> PrincipalWrite {
    PrincipalWrite {
        kind: PrincipalKind::User,
        name: name.to_owned(),
        email: String::new(),
        is_disabled: false,
        admin_channels: BTreeSet::new(),
        admin_roles: BTreeSet::new(),
        signs_in: (!name.is_empty()).then(|| SignsIn::Password(b"{}".to_vec())),
        is_new: false,
    }
}

fn role(name: &str) -> PrincipalWrite {
    PrincipalWrite { kind: PrincipalKind::Role, signs_in: None, ..user(name) }
}

fn names(of: &[&str]) -> BTreeSet<String> {
    of.iter().map(|name| (*name).to_owned()).collect()
}

/// Creates a grant; `to`: a user's name, or a role's with its prefix.
fn grant(to: &str, name: &str, is_role: bool) -> Grant {
    let to = match to.strip_prefix("role:") {
        Some(role) => Grantee::Role(role.to_owned()),
        None => Grantee::User(to.to_owned()),
    };
    Grant { to, what: if is_role { GrantedItem::Role(name.to_owned()) } else { GrantedItem::Channel(name.to_owned()) } }
}

fn asker(name: &str) -> ReadPrincipal {
    if name.is_empty() { ReadPrincipal::Guest } else { ReadPrincipal::Principal(name.into()) }
}

/// Returns the rights of a principal at a server.
async fn held_at(db: &Database, asker: &ReadPrincipal) -> Arc<HeldRights> {
    let inner = &*db.inner;
    let trx = Transaction::begin(&inner.db, &inner.metrics).unwrap();
    let instance = inner.resolve(&trx, "db").await.unwrap();
    RightsRead::begin(inner, &trx, &instance, asker).held().await.unwrap()
}

fn channels_of(held: &HeldRights) -> Vec<String> {
    held.channels().map(|(name, _)| name.to_owned()).collect()
}

async fn document(db: &Database, id: &str, grants: &[&Grant]) {
    LoggedWrite::Documents(vec![(id.to_owned(), grants.iter().copied().cloned().collect())]).carry_out(db, 0).await;
}

#[tokio::test]
async fn what_is_lost_is_lost_at_once_at_the_other_server() {
    let (servers, _storage) = two_servers().await;
    let [(_, here), (_, there)] = &servers;
    let anna = asker("anna");
    assert!(!held_at(there, &anna).await.is_there && channels_of(&*held_at(there, &anna).await).is_empty());
    let write = PrincipalWrite { admin_channels: names(&["A"]), admin_roles: names(&["staff"]), ..user("anna") };
    assert_eq!(here.put_principal(&write).await.unwrap(), PrincipalWriteOutcome::Created);
    assert_eq!(channels_of(&*held_at(there, &anna).await), ["!", "A"]);
    let known = held_at(there, &anna).await;
    assert!(Arc::ptr_eq(&known, &held_at(there, &anna).await), "it is remembered");
    // By a document, by a role that does not exist yet, by the role's creation.
    document(here, "d", &[&grant("anna", "B", false), &grant("role:staff", "S", false)]).await;
    assert_eq!(channels_of(&*held_at(there, &anna).await), ["!", "A", "B"]);
    here.put_principal(&role("staff")).await.unwrap();
    assert_eq!(channels_of(&*held_at(there, &anna).await), ["!", "A", "B", "S"]);
    document(here, "d", &[&grant("role:staff", "S", false)]).await;
    assert_eq!(channels_of(&*held_at(there, &anna).await), ["!", "A", "S"]);
    document(here, "d", &[]).await;
    assert_eq!(channels_of(&*held_at(there, &anna).await), ["!", "A"]);
    here.put_principal(&user("anna")).await.unwrap();
    assert_eq!(channels_of(&*held_at(there, &anna).await), ["!"]);
    let lost: Vec<_> = held_at(there, &anna).await.lost().iter().map(|lost| lost.channel.clone()).collect();
    assert_eq!(lost, ["A", "B", "S"]);
    here.put_principal(&PrincipalWrite { is_disabled: true, ..user("anna") }).await.unwrap();
    let disabled = held_at(there, &anna).await;
    assert!(channels_of(&disabled).is_empty() && !disabled.is_there && disabled.user_at.is_some());
    assert!(here.delete_principal(PrincipalKind::User, "anna").await.unwrap());
    assert!(!here.delete_principal(PrincipalKind::User, "anna").await.unwrap());
    assert!(channels_of(&*held_at(there, &anna).await).is_empty());
    assert_eq!(here.principal(PrincipalKind::User, "anna").await.unwrap(), None);
    // A new user of the name begins without rights, and the old sessions are not theirs.
    document(here, "d", &[&grant("anna", "B", false)]).await;
    here.put_principal(&user("anna")).await.unwrap();
    let anew = here.principal(PrincipalKind::User, "anna").await.unwrap().unwrap();
    assert!(anew.principal.generation > 2 && anew.held.lost().is_empty());
    assert_eq!(channels_of(&*held_at(there, &anna).await), ["!", "B"]);
}

#[tokio::test]
async fn an_account_is_the_user_that_is_tied_to_it() {
    let (servers, _storage) = two_servers().await;
    let db = &servers[0].1;
    let account = |name: &str, is_member| ReadPrincipal::Account { name: name.into(), is_member };
    let held = async |asker: ReadPrincipal| channels_of(&*held_at(db, &asker).await);
    let nothing: [&str; 0] = [];
    for name in ["anna", "", "no name", "a/b"] {
        assert_eq!(held(account(name, true)).await, ["!"], "{name}");
        assert_eq!(held(account(name, false)).await, nothing, "{name}");
        assert_eq!(held(ReadPrincipal::Principal(name.into())).await, nothing, "{name}");
    }
    // Another person of the same name, with a password here.
    let write = PrincipalWrite { admin_channels: names(&["A"]), ..user("anna") };
    db.put_principal(&write).await.unwrap();
    assert_eq!(held(ReadPrincipal::Principal("anna".into())).await, ["!", "A"]);
    assert_eq!((held(account("anna", true)).await, held(account("anna", false)).await), (vec!["!".into()], vec![]));
    db.put_principal(&PrincipalWrite { signs_in: Some(SignsIn::Account), ..write.clone() }).await.unwrap();
    for is_member in [true, false] {
        assert_eq!(held(account("anna", is_member)).await, ["!", "A"]);
    }
    // No administrator has admitted the guest, though a document gives it a channel.
    document(db, "d", &[&grant("", "G", false)]).await;
    assert_eq!(held(ReadPrincipal::Guest).await, nothing);
    db.put_principal(&user("")).await.unwrap();
    assert_eq!(held(ReadPrincipal::Guest).await, ["!", "G"]);
    assert_eq!(held(account("", true)).await, ["!"]);
    assert_eq!(held(ReadPrincipal::All).await, ["*"]);
}

#[tokio::test]
async fn principals_are_made_shown_and_listed() {
    let (servers, _storage) = two_servers().await;
    let db = &servers[0].1;
    assert_eq!(db.principals(PrincipalKind::User, None).await.unwrap(), Vec::<String>::new());
    let nameless = PrincipalWrite { signs_in: None, ..user("anna") };
    assert_eq!(db.put_principal(&nameless).await.unwrap(), PrincipalWriteOutcome::NoPassword);
    let new = PrincipalWrite { is_new: true, email: "a@b".into(), ..user("anna") };
    assert_eq!(db.put_principal(&new).await.unwrap(), PrincipalWriteOutcome::Created);
    assert_eq!(db.put_principal(&new).await.unwrap(), PrincipalWriteOutcome::Exists);
    let first = db.principal(PrincipalKind::User, "anna").await.unwrap().unwrap().principal;
    assert_eq!((first.signs_in.clone(), first.generation), (SignsIn::Password(b"{}".to_vec()), 1));
    // The way to sign in stays if it is not given. An unchanged principal is not written.
    assert_eq!(
        db.put_principal(&PrincipalWrite { email: "a@b".into(), ..nameless.clone() }).await.unwrap(),
        PrincipalWriteOutcome::Changed
    );
    assert_eq!(db.principal(PrincipalKind::User, "anna").await.unwrap().unwrap().principal, first);
    db.put_principal(&nameless).await.unwrap();
    let second = db.principal(PrincipalKind::User, "anna").await.unwrap().unwrap().principal;
    assert!(second.changed > first.changed && second.email.is_empty() && second.generation == 1);
    let other = PrincipalWrite { signs_in: Some(SignsIn::Password(b"{1}".to_vec())), ..nameless };
    db.put_principal(&other).await.unwrap();
    assert_eq!(db.principal(PrincipalKind::User, "anna").await.unwrap().unwrap().principal.generation, 2);
    let staff = PrincipalWrite { admin_channels: names(&["S", "A"]), ..role("staff") };
    db.put_principal(&staff).await.unwrap();
    let held = db.principal(PrincipalKind::Role, "staff").await.unwrap().unwrap().held;
    assert_eq!(held.channels().map(|(name, _)| name).collect::<Vec<_>>(), ["!", "A", "S"]);
    assert_eq!(held.roles().count(), 0);
    db.put_principal(&user("bert")).await.unwrap();
    db.put_principal(&user("carl")).await.unwrap();
    db.delete_principal(PrincipalKind::User, "bert").await.unwrap();
    // A page may be short, but has a name unless it is the end.
    let mut users = db.principals(PrincipalKind::User, None).await.unwrap();
    if users.len() == 1 {
        users.extend(db.principals(PrincipalKind::User, Some("anna")).await.unwrap());
    }
    assert_eq!(users, ["anna", "carl"]);
    assert_eq!(db.principals(PrincipalKind::User, Some("anna")).await.unwrap(), ["carl"]);
    assert_eq!(db.principals(PrincipalKind::User, Some("carl")).await.unwrap(), Vec::<String>::new());
    assert_eq!(db.principals(PrincipalKind::Role, None).await.unwrap(), ["staff"]);
    let long = "c".repeat(1_000);
    for wrong in [
        user("a b"),
        role(""),
        PrincipalWrite { admin_roles: names(&[""]), ..user("anna") },
        PrincipalWrite { admin_channels: names(&["a,b"]), ..user("anna") },
        PrincipalWrite { admin_roles: names(&["staff"]), ..role("staff") },
        PrincipalWrite { signs_in: Some(SignsIn::Account), ..role("staff") },
        PrincipalWrite { admin_channels: (0..51).map(|at| format!("{at:02}{}", &long[2..])).collect(), ..user("anna") },
        PrincipalWrite { admin_channels: (0..1_001).map(|at| at.to_string()).collect(), ..user("anna") },
    ] {
        let refused = db.put_principal(&wrong).await;
        assert!(matches!(refused, Err(Error::Refused(Refusal::InvalidSetting(_)))), "{wrong:?}: {refused:?}");
    }
    // The largest principal fits one transaction.
    let many = (0..1_000).map(|at| format!("{at:050}")).collect();
    let much = PrincipalWrite { admin_channels: many, ..user(&"u".repeat(239)) };
    db.put_principal(&much).await.unwrap();
    assert_eq!(held_at(db, &asker(&much.name)).await.channels().count(), 1_001);
    db.put_principal(&user(&much.name)).await.unwrap();
    assert_eq!(held_at(db, &asker(&much.name)).await.channels().count(), 1);
}

/// A further grant of the same thing conflicts with nothing; a last one that goes and a first one that comes conflict.
#[tokio::test]
async fn grants_conflict_where_one_changes_what_the_other_rests_on() {
    let (servers, _storage) = two_servers().await;
    let db = &servers[0].1;
    let inner = &db.inner;
    let [news, other] = ["news", "other"].map(|channel| grant("role:all", channel, false));
    document(db, "first", &[&news]).await;
    let begin = async |id: &str, grants: &[&Grant]| {
        let trx = Transaction::begin(&inner.db, &inner.metrics).unwrap();
        let documents = [(id.to_owned(), grants.iter().copied().cloned().collect())];
        let mut logged = Logged { db, number: 0, what: WriteKind::Documents(&documents) };
        logged.attempt(&trx, Attempt::default()).await.unwrap();
        trx
    };
    let both = async |one: Transaction, two: Transaction| (one.commit().await.is_ok(), two.commit().await.is_ok());
    // Two further grants.
    let two = (begin("a", &[&news]).await, begin("b", &[&news]).await);
    assert_eq!(both(two.0, two.1).await, (true, true));
    // One of several grants goes, and another comes.
    let two = (begin("first", &[]).await, begin("c", &[&news]).await);
    assert_eq!(both(two.0, two.1).await, (true, true));
    // Two first grants.
    let two = (begin("a", &[&news, &other]).await, begin("b", &[&news, &other]).await);
    assert_eq!(both(two.0, two.1).await, (true, false));
    // The last grant goes and a first one comes, in either order.
    document(db, "b", &[]).await;
    document(db, "c", &[]).await;
    let two = (begin("a", &[&other]).await, begin("b", &[&news]).await);
    assert_eq!(both(two.0, two.1).await, (true, false));
    document(db, "b", &[&news]).await;
    let two = (begin("c", &[&news]).await, begin("b", &[]).await);
    assert_eq!(both(two.0, two.1).await, (true, false));
    // Two last grants go.
    document(db, "c", &[&news]).await;
    document(db, "b", &[&news]).await;
    let two = (begin("b", &[]).await, begin("c", &[]).await);
    assert_eq!(both(two.0, two.1).await, (true, false));
    // Other things of the same role do not conflict.
    let two = (begin("b", &[&other]).await, begin("c", &[&grant("role:all", "more", false)]).await);
    assert_eq!(both(two.0, two.1).await, (true, true));
}

/// A writer does not commit after a change of the rights that judged the write.
#[tokio::test]
async fn a_writer_is_fenced_by_versions() {
    let (servers, _storage) = two_servers().await;
    let [(_, here), (_, there)] = &servers;
    let inner = &here.inner;
    here.put_principal(&PrincipalWrite { admin_roles: names(&["staff"]), ..user("anna") }).await.unwrap();
    let anna = asker("anna");
    let write = async |held: &HeldRights| {
        let trx = Transaction::begin(&inner.db, &inner.metrics).unwrap();
        let is_same = held.begin_fence(&trx).holds().await.unwrap();
        held.conflict(&trx).unwrap();
        trx.set(&log_key(here), b"");
        (is_same, trx)
    };
    let instance: Arc<Instance> = here.inner.cached("db").unwrap();
    assert!(RightsRead::cached(inner, &instance, &anna).is_none());
    let held = held_at(here, &anna).await;
    assert!(RightsRead::cached(inner, &instance, &anna).is_some_and(|cached| Arc::ptr_eq(&cached, &held)));
    let (is_same, trx) = write(&held).await;
    assert!(is_same && trx.commit().await.is_ok());
    // Gains of others do not matter to the writer; those of their role do.
    let (is_same, trx) = write(&held).await;
    there.put_principal(&user("bert")).await.unwrap();
    assert!(is_same && trx.commit().await.is_ok());
    let (is_same, trx) = write(&held).await;
    there.put_principal(&role("staff")).await.unwrap();
    assert!(is_same && trx.commit().await.is_err());
    assert!(!write(&held).await.0);
    let held = held_at(here, &anna).await;
    let (is_same, trx) = write(&held).await;
    document(there, "d", &[&grant("anna", "A", false)]).await;
    assert!(is_same && trx.commit().await.is_err());
}

#[tokio::test]
async fn sessions_are_of_a_database_and_of_a_generation() {
    let (servers, _storage) = two_servers().await;
    let [(_, here), (other, there)] = &servers;
    let hash = [7; 20];
    let session = PrincipalSession { name: "anna".into(), generation: 1, ends_at_ms: 5, lasts_ms: 9 };
    assert!(!here.begin_principal_session(&hash, &session).await.unwrap());
    here.put_principal(&user("anna")).await.unwrap();
    assert!(here.begin_principal_session(&hash, &session).await.unwrap());
    assert_eq!(there.principal_session(&hash).await.unwrap(), Some(session.clone()));
    assert!(there.prolong_principal_session(&hash, 50).await.unwrap());
    assert_eq!(here.principal_session(&hash).await.unwrap().unwrap().ends_at_ms, 50);
    let elsewhere = other.database("other", there.actor().clone());
    elsewhere.create(&CreateOptions::default()).await.unwrap();
    assert_eq!(
        (elsewhere.user_at("anna").await.unwrap(), elsewhere.principal_session(&hash).await.unwrap()),
        (None, None)
    );
    give_channels(&elsewhere).await;
    elsewhere.put_principal(&user("anna")).await.unwrap();
    assert_eq!(elsewhere.principal_session(&hash).await.unwrap(), None);
    let [one, two] = [here, &elsewhere].map(|db| db.user_at("anna"));
    assert_ne!(one.await.unwrap().unwrap().incarnation, two.await.unwrap().unwrap().incarnation);
    // All sessions of a user end, and new ones of the old generation are refused.
    assert!(here.end_principal_sessions("anna").await.unwrap() && !here.end_principal_sessions("bert").await.unwrap());
    let now = there.user_at("anna").await.unwrap().unwrap().principal;
    assert_eq!((now.generation, now.signs_in), (2, SignsIn::Password(b"{}".to_vec())));
    assert!(!here.begin_principal_session(&[8; 20], &session).await.unwrap());
    let anew = PrincipalSession { generation: 2, ..session };
    here.put_principal(&PrincipalWrite { is_disabled: true, ..user("anna") }).await.unwrap();
    assert!(!here.begin_principal_session(&[8; 20], &PrincipalSession { generation: 3, ..anew }).await.unwrap());
    there.end_principal_session(&hash).await.unwrap();
    assert_eq!(here.principal_session(&hash).await.unwrap(), None);
    assert!(!here.prolong_principal_session(&hash, 60).await.unwrap());
    assert_eq!(here.principal_session(&hash).await.unwrap(), None);
}

#[tokio::test]
async fn sessions_that_have_ended_and_changes_of_long_ago_are_swept() {
    let (servers, _storage) = two_servers().await;
    let db = &servers[0].1;
    db.put_principal(&user("anna")).await.unwrap();
    let now_ms = db.inner.clock.unix_ms();
    for (number, ends_at_ms) in [(1, 1), (2, now_ms - 1), (3, now_ms + 3_600_000)] {
        let session = PrincipalSession { name: "anna".into(), generation: 1, ends_at_ms, lasts_ms: 1 };
        assert!(db.begin_principal_session(&[number; 20], &session).await.unwrap());
    }
    let sessions = async || {
        let found = [1, 2, 3].map(|number| async move { db.principal_session(&[number; 20]).await.unwrap().is_some() });
        futures_util::future::join_all(found).await
    };
    let changes = async || {
        let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
        let range = db.inner.cached("db").unwrap().keys.changed_principals_all();
        trx.range(&range, true).all(9).await.unwrap().len()
    };
    let sweep = async |at_ms: u64| {
        let until = tokio::time::Instant::now() + std::time::Duration::from_secs(9);
        sweep_as_of(&db.inner, "db", at_ms, until).await.unwrap()
    };
    assert_eq!(sweep(now_ms).await, Swept::Some);
    assert_eq!((sessions().await, changes().await), (vec![false, false, true], 1));
    assert_eq!(sweep(now_ms + 3_599_000).await, Swept::Some);
    assert_eq!((sessions().await, changes().await), (vec![false, false, true], 1));
    assert_eq!(sweep(now_ms + 3_660_000).await, Swept::All);
    assert_eq!((sessions().await, changes().await), (vec![false; 3], 0));
}

/// A look finds changed users and ended sessions at any server, by one range read for each database.
#[tokio::test]
async fn a_look_finds_which_users_have_changed() {
    let (servers, _storage) = two_servers().await;
    let [(_, here), (other, there)] = &servers;
    let mut place = None;
    let mut look = async || {
        let found = other.users_changed(&[("db".into(), place), ("none".into(), None)]).await.unwrap();
        assert_eq!(found[1], None);
        let UserChanges { place: next, names } = found.into_iter().next().unwrap().unwrap();
        place = Some(next);
        names.map(|names| names.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let one = |name: &str| Some(vec![name.to_owned()]);
    here.put_principal(&user("anna")).await.unwrap();
    assert_eq!(look().await, None, "it was never looked at before");
    assert_eq!(look().await, Some(vec![]));
    here.put_principal(&user("bert")).await.unwrap();
    assert_eq!((look().await, look().await), (one("bert"), Some(vec![])));
    here.put_principal(&role("staff")).await.unwrap();
    assert_eq!(look().await, Some(vec![]));
    let session = PrincipalSession { name: "anna".into(), generation: 1, ends_at_ms: 5, lasts_ms: 9 };
    for number in [1, 2] {
        assert!(here.begin_principal_session(&[number; 20], &session).await.unwrap());
    }
    assert_eq!(look().await, Some(vec![]));
    there.end_principal_session(&[1; 20]).await.unwrap();
    there.end_principal_session(&[1; 20]).await.unwrap();
    assert_eq!(look().await, one("anna"));
    here.put_principal(&user("")).await.unwrap();
    assert_eq!(look().await, one(""));
    for name in ["a", "b", "c", "d"] {
        here.put_principal(&user(name)).await.unwrap();
    }
    assert_eq!((look().await, look().await), (None, Some(vec![])));
    here.delete().await.unwrap();
    here.create(&CreateOptions::default()).await.unwrap();
    give_channels(here).await;
    assert_eq!(look().await, None);
}

/// The same name may belong, one after the other, to a member who is not a user, users with different passwords, a new
/// user, and an account.
#[tokio::test]
async fn who_has_written_is_one_person() {
    let (servers, _storage) = two_servers().await;
    let db = &servers[0].1;
    let account = ReadPrincipal::Account { name: "anna".into(), is_member: true };
    let writer = async |asker: &ReadPrincipal| asker.writer(&*held_at(db, asker).await);
    let member = writer(&account).await;
    db.put_principal(&user("anna")).await.unwrap();
    let first = writer(&asker("anna")).await;
    assert_eq!(writer(&account).await, member);
    let other = PrincipalWrite { signs_in: Some(SignsIn::Password(b"{1}".to_vec())), ..user("anna") };
    db.put_principal(&other).await.unwrap();
    assert_eq!(writer(&asker("anna")).await, first);
    db.delete_principal(PrincipalKind::User, "anna").await.unwrap();
    assert_eq!(writer(&asker("anna")).await, "");
    db.put_principal(&other).await.unwrap();
    let anew = writer(&asker("anna")).await;
    db.put_principal(&PrincipalWrite { signs_in: Some(SignsIn::Account), ..other }).await.unwrap();
    let tied = writer(&account).await;
    let all: BTreeSet<_> = [&member, &first, &anew, &tied].into_iter().collect();
    assert!(all.len() == 4 && !all.iter().any(|writer| writer.is_empty()), "{all:?}");
    db.put_principal(&user("")).await.unwrap();
    assert_eq!(
        (writer(&ReadPrincipal::Guest).await, writer(&ReadPrincipal::All).await),
        (String::new(), String::new())
    );
}

/// A principal's change counts as a change of the database, also in an empty one.
#[tokio::test]
async fn principals_leave_nothing_to_complain_of() {
    let (servers, _storage) = two_servers().await;
    let [(layer, db), _] = &servers;
    let clean = async |what: &str| {
        let report = crate::check::check_namespaces(layer).await.unwrap();
        assert!(report.is_clean(), "{what}: {report:?}");
    };
    clean("nothing").await;
    db.put_principal(&user("anna")).await.unwrap();
    clean("put").await;
    db.end_principal_sessions("anna").await.unwrap();
    clean("sessions").await;
    db.delete_principal(PrincipalKind::User, "anna").await.unwrap();
    clean("delete").await;
}
