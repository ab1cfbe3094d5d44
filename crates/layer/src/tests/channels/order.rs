//! Random changes of grants at two servers: the stored state follows from the order of commits.
#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flatbed_channels::{Grant, GrantedItem, Grantee, PERIODS_MAX, Period, Periods, PrincipalKind, Stamp};
use flatbed_databases::channels::grants::{self, GrantChanges};
use flatbed_databases::channels::holding::{RightsRead, periods_of, read_anew};
use flatbed_databases::channels::principals::{DeletePrincipal, PutPrincipal};
use flatbed_databases::channels::{Principal, PrincipalWrite, ReadPrincipal};
use flatbed_databases::server::Inner;
use flatbed_store::error::Result;
use flatbed_store::keys::{KeyRange, PrincipalPart, Subspace, unpack_principal};
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use flatbed_testkit::{Random, seed};
use foundationdb::options::MutationType;

use crate::handle::Database;
use crate::tests::channels::{CHANNELS, DOCUMENTS, ROLES, USERS, asker, grant, role, two_servers, user};

fn pick<'a>(random: &mut Random, of: &[&'a str]) -> &'a str {
    of[random.index(of.len())]
}

/// Returns each element with a probability of one half.
fn some(random: &mut Random, of: &[&str]) -> BTreeSet<String> {
    of.iter().filter(|_| random.one_in(2)).map(|name| (*name).to_owned()).collect()
}

/// One logged transaction.
#[derive(Debug, Clone)]
pub(super) enum LoggedWrite {
    Documents(Vec<(String, BTreeSet<Grant>)>),
    Put(PrincipalWrite),
    Delete(PrincipalKind, String),
}

/// Each transaction leaves a key with its stamp, which identifies its `done`.
pub(super) struct Logged<'a> {
    pub db: &'a Database,
    pub number: u32,
    pub what: WriteKind<'a>,
}

pub(super) enum WriteKind<'a> {
    /// Grants of documents lie in the place of their infos, and conflict likewise.
    Documents(&'a [(String, BTreeSet<Grant>)]),
    Put(PutPrincipal<'a>),
    Delete(DeletePrincipal<'a>),
}

pub(super) fn log_key(db: &Database) -> Vec<u8> {
    [&db.inner.options.root[..], b"log"].concat()
}

fn log_range(db: &Database) -> KeyRange {
    let begin = log_key(db);
    KeyRange { end: [&begin[..], &[0xff; 11]].concat(), begin }
}

fn text(grants: &BTreeSet<Grant>) -> Vec<u8> {
    let line = |Grant { to, what }: &Grant| {
        let to = match to {
            Grantee::User(name) => name.clone(),
            Grantee::Role(name) => format!("role:{name}"),
        };
        let (GrantedItem::Channel(name) | GrantedItem::Role(name)) = what;
        format!("{to}\n{name}\n{}\n", matches!(what, GrantedItem::Role(_)))
    };
    grants.iter().flat_map(|grant| line(grant).into_bytes()).collect()
}

fn parsed(text: &[u8]) -> BTreeSet<Grant> {
    let lines: Vec<&str> = std::str::from_utf8(text).unwrap().lines().collect();
    lines.chunks(3).map(|of| grant(of[0], of[1], of[2] == "true")).collect()
}

impl Operation for Logged<'_> {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<()> {
        let inner = &self.db.inner;
        let is_done = match &mut self.what {
            WriteKind::Documents(documents) => {
                let instance = inner.resolve_for_write(trx, "db").await?;
                let mut shared = GrantChanges::default();
                for (id, new) in documents.iter() {
                    if self.number.is_multiple_of(2) {
                        shared.begin(trx, &instance.keys, new);
                    }
                    let key = instance.keys.document(id).info();
                    let old = trx.get(&key, false).await?.map(|old| parsed(&old)).unwrap_or_default();
                    trx.set(&key, &text(new));
                    grants::changed(trx, &instance.keys, id, &old, new, &mut shared);
                }
                shared.finish(trx, &instance).await?;
                true
            }
            WriteKind::Put(put) => {
                let before = put.created.len();
                put.attempt(trx, attempt).await?;
                put.created.len() > before
            }
            WriteKind::Delete(delete) => {
                let happened = attempt.maybe_committed && delete.once.happened(trx, attempt).await?.is_some();
                !happened && delete.attempt(trx, attempt).await?
            }
        };
        if is_done {
            let key = log_key(self.db);
            let offset = (key.len() as u32).to_le_bytes();
            let key = [&key[..], &[0xff; 10], &offset].concat();
            trx.atomic_op(&key, &self.number.to_le_bytes(), MutationType::SetVersionstampedKey);
        }
        Ok(())
    }
}

impl LoggedWrite {
    fn random(random: &mut Random) -> LoggedWrite {
        let kind = if random.below(5) < 3 { PrincipalKind::User } else { PrincipalKind::Role };
        let name = pick(random, if kind == PrincipalKind::User { &USERS } else { &ROLES });
        match random.below(10) {
            0 if !name.is_empty() => LoggedWrite::Delete(kind, name.to_owned()),
            0..=3 => {
                let made = if kind == PrincipalKind::User { user(name) } else { role(name) };
                let admin_roles = if kind == PrincipalKind::User { some(random, &ROLES) } else { BTreeSet::new() };
                LoggedWrite::Put(PrincipalWrite {
                    admin_channels: some(random, &CHANNELS),
                    admin_roles,
                    is_disabled: kind == PrincipalKind::User && random.below(10) == 0,
                    email: random.below(3).to_string(),
                    ..made
                })
            }
            _ => {
                // Some documents occur twice.
                let twice = [some(random, &DOCUMENTS), some(random, &DOCUMENTS[..1])];
                let documents = twice.into_iter().flatten();
                let one = |random: &mut Random| match random.below(5) {
                    0 | 1 => grant(pick(random, &USERS), pick(random, &CHANNELS), false),
                    2 => grant(pick(random, &USERS), pick(random, &ROLES), true),
                    3 => grant(&format!("role:{}", pick(random, &ROLES)), CHANNELS[0], false),
                    // A grant without meaning.
                    _ => grant("role:staff", pick(random, &ROLES), true),
                };
                LoggedWrite::Documents(
                    documents.map(|id| (id, (0..random.below(4)).map(|_| one(random)).collect())).collect(),
                )
            }
        }
    }

    pub(super) async fn carry_out(&self, db: &Database, number: u32) {
        let (inner, once) = (&*db.inner, db.inner.once().unwrap());
        let what = match self {
            LoggedWrite::Documents(documents) => WriteKind::Documents(documents),
            LoggedWrite::Put(write) => {
                WriteKind::Put(PutPrincipal { database: &db.handle, write, once, created: Vec::new() })
            }
            LoggedWrite::Delete(kind, name) => {
                WriteKind::Delete(DeletePrincipal { database: &db.handle, kind: *kind, name, once })
            }
        };
        let mut logged = Logged { db, number, what };
        transaction::write(&inner.db, &inner.metrics, &mut logged).await.unwrap();
    }
}

type GrantPaths = BTreeSet<(PrincipalKind, String, GrantedItem, Option<String>)>;

/// The state that follows from the order of commits.
#[derive(Default)]
struct Model {
    ways: GrantPaths,
    periods: BTreeMap<(PrincipalKind, String, GrantedItem), Vec<Period>>,
    versions: BTreeMap<(PrincipalKind, String), Stamp>,
    records: BTreeMap<(PrincipalKind, String), PrincipalWrite>,
}

impl Model {
    fn things(&self) -> BTreeSet<(PrincipalKind, String, GrantedItem)> {
        self.ways.iter().map(|(kind, name, what, _)| (*kind, name.clone(), what.clone())).collect()
    }

    fn take(&mut self, at: Stamp, done: &LoggedWrite) {
        let before = self.things();
        let mut touched = BTreeSet::new();
        match done {
            LoggedWrite::Documents(documents) => {
                for (id, grants) in documents {
                    self.ways.retain(|(_, _, _, by)| by.as_ref() != Some(id));
                    for Grant { to, what } in grants {
                        let (kind, name) = match to {
                            Grantee::Role(_) if matches!(what, GrantedItem::Role(_)) => continue,
                            Grantee::Role(role) => (PrincipalKind::Role, role),
                            Grantee::User(name) => (PrincipalKind::User, name),
                        };
                        self.ways.insert((kind, name.clone(), what.clone(), Some(id.clone())));
                    }
                }
            }
            LoggedWrite::Put(write) => {
                let (kind, name) = (write.kind, write.name.clone());
                self.ways.retain(|(of, by_name, _, by)| (*of, by_name, by) != (kind, &name, &None));
                let channels = write.admin_channels.iter().cloned().map(GrantedItem::Channel);
                let roles = write.admin_roles.iter().cloned().map(GrantedItem::Role);
                let itself = (kind == PrincipalKind::Role).then(|| GrantedItem::Role(name.clone()));
                self.ways.extend(channels.chain(roles).chain(itself).map(|what| (kind, name.clone(), what, None)));
                self.records.insert((kind, name.clone()), write.clone());
                touched.insert((kind, name));
            }
            LoggedWrite::Delete(kind, name) => {
                self.ways.retain(|(of, by_name, _, by)| (of, by_name, by) != (kind, name, &None));
                self.records.remove(&(*kind, name.clone()));
                touched.insert((*kind, name.clone()));
            }
        }
        let after = self.things();
        for thing in after.difference(&before) {
            self.periods.entry(thing.clone()).or_default().push(Period { from: at, until: None });
            touched.insert((thing.0, thing.1.clone()));
        }
        for thing in before.difference(&after) {
            self.periods.get_mut(thing).unwrap().last_mut().unwrap().until = Some(at);
            touched.insert((thing.0, thing.1.clone()));
        }
        if let LoggedWrite::Delete(PrincipalKind::User, name) = done {
            let is_gone =
                |thing: &(PrincipalKind, String, GrantedItem)| thing.0 == PrincipalKind::User && thing.1 == *name;
            self.periods.retain(|thing, _| !is_gone(thing) || after.contains(thing));
        }
        self.versions.extend(touched.into_iter().map(|principal| (principal, at)));
    }
}

async fn all_rows(trx: &Transaction, range: KeyRange) -> Vec<(Vec<u8>, Vec<u8>)> {
    trx.range(&range, true).all(1_000_000).await.unwrap().to_vec()
}

/// Compares the stored state with the log.
async fn check(db: &Database, all: &[LoggedWrite]) {
    let inner = &db.inner;
    let trx = Transaction::begin(&inner.db, &inner.metrics).unwrap();
    let instance = inner.resolve(&trx, "db").await.unwrap();
    let mut model = Model::default();
    let prefix = log_key(db).len();
    for (key, number) in all_rows(&trx, log_range(db)).await {
        let stamp: [u8; 10] = key[prefix..].try_into().unwrap();
        let at = Stamp([&[0; 4], &stamp[..], &[0; 2]].concat().try_into().unwrap());
        model.take(at, &all[u32::from_le_bytes(number.try_into().unwrap()) as usize]);
    }
    let (mut ways, mut periods, mut versions) = (GrantPaths::new(), BTreeMap::new(), BTreeMap::new());
    let (mut changed, mut records) = (BTreeMap::new(), BTreeSet::new());
    for (key, value) in all_rows(&trx, instance.keys.subspace(Subspace::Principals)).await {
        match instance.keys.split_principals(&key).unwrap() {
            PrincipalPart::Way { kind, name, what, by } => {
                assert!(value.is_empty());
                ways.insert((kind, name, what, by));
            }
            PrincipalPart::Periods { kind, name, what } => {
                periods.insert((kind, name, what), periods_of(&value).unwrap());
            }
            PrincipalPart::Version { kind, name } => {
                versions.insert((kind, name), Stamp(value.try_into().unwrap()));
            }
            PrincipalPart::Changed(seq) => {
                let mut stamp = Stamp(*seq.stamp());
                stamp.0[14..].fill(0);
                let of = unpack_principal(&value).unwrap();
                assert_eq!(seq.incarnation(), instance.incarnation());
                changed.insert(of, stamp);
            }
            PrincipalPart::Record { kind, name } => {
                let record = Principal::decode(&name, &value).unwrap();
                let Some(record) = record else { continue };
                let expected = &model.records[&(kind, name.clone())];
                assert_eq!(record.admin_channels, expected.admin_channels);
                assert_eq!((record.is_disabled, &record.email), (expected.is_disabled, &expected.email));
                assert!(record.changed <= model.versions[&(kind, name.clone())]);
                records.insert((kind, name));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ways, model.ways);
    assert_eq!(records, model.records.keys().cloned().collect());
    assert_eq!(versions, model.versions);
    assert_eq!(changed, model.versions, "who follows hears of the last change of each");
    let newest = |all: Vec<Period>| Periods::new(all[all.len().saturating_sub(PERIODS_MAX)..].to_vec());
    let expected: BTreeMap<_, _> = model.periods.into_iter().map(|(thing, all)| (thing, newest(all))).collect();
    assert_eq!(periods, expected);
    // The rights of a principal follow from the stored periods.
    for name in USERS {
        let is_had = |kind: PrincipalKind, name: &str, what: GrantedItem| {
            periods.get(&(kind, name.to_owned(), what)).is_some_and(|periods| periods.open().is_some())
        };
        let held = read_anew(&trx, &instance, &asker(name)).await.unwrap().unwrap();
        let is_there =
            model.records.get(&(PrincipalKind::User, name.to_owned())).is_some_and(|record| !record.is_disabled);
        assert_eq!(held.is_there, is_there, "{name}");
        for channel in CHANNELS {
            let given = || GrantedItem::Channel(channel.to_owned());
            let by_role = |role: &&str| {
                let itself = GrantedItem::Role((*role).to_owned());
                is_had(PrincipalKind::User, name, itself.clone())
                    && is_had(PrincipalKind::Role, role, itself)
                    && is_had(PrincipalKind::Role, role, given())
            };
            let expected = is_there && (is_had(PrincipalKind::User, name, given()) || ROLES.iter().any(by_role));
            assert_eq!(held.since(channel).is_some(), expected, "{name:?} {channel}");
        }
    }
}

/// Compares cached and uncached rights at one read version.
async fn look(inner: &Inner, asker: &ReadPrincipal) {
    struct Look<'a>(&'a Inner, &'a ReadPrincipal);
    impl Operation for Look<'_> {
        type Output = ();
        async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<()> {
            let Look(inner, asker) = *self;
            let instance = inner.resolve(trx, "db").await?;
            let held = RightsRead::begin(inner, trx, &instance, asker).held().await?;
            let anew = read_anew(trx, &instance, asker).await.unwrap().unwrap();
            assert!(held.is_as(&anew), "{asker:?}: {held:?} is {anew:?}");
            Ok(())
        }
    }
    transaction::read(&inner.db, &inner.metrics, &mut Look(inner, asker)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_stored_is_what_the_order_of_commits_says() {
    let mut random = Random(seed(1));
    for _ in 0..4 {
        let (servers, _storage) = two_servers().await;
        let all: Arc<Vec<LoggedWrite>> = Arc::new((0..120).map(|_| LoggedWrite::random(&mut random)).collect());
        let mut tasks = tokio::task::JoinSet::new();
        for worker in 0..6 {
            let (db, all) = (servers[worker % 2].1.clone(), Arc::clone(&all));
            tasks.spawn(async move {
                for number in (worker..all.len()).step_by(6) {
                    all[number].carry_out(&db, number as u32).await;
                    look(&db.inner, &asker(USERS[number % 3])).await;
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        check(&servers[0].1, &all).await;
        for (layer, _) in &servers {
            for name in USERS {
                look(&layer.inner, &asker(name)).await;
            }
        }
        let inner = &servers[0].0.inner;
        let trx = Transaction::begin(&inner.db, &inner.metrics).unwrap();
        let range = log_range(&servers[0].1);
        trx.clear_range(&range.begin, &range.end);
        trx.commit().await.unwrap();
    }
}
