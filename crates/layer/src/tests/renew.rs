//! Restores of databases with channels, users and roles into a younger cluster: users then see the same documents in
//! the same order, and their feeds go on through further grants, losses and changes.
#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flatbed_channels::PrincipalKind;
use flatbed_databases::channels::{PrincipalWrite, ReadPrincipal, SignsIn};
use flatbed_databases::document::edit::{Edit, EditParts, GetOptions};
use flatbed_flatten::json::{Limits, parse};
use flatbed_revtree::RevId;
use flatbed_store::keys::KeyRange;
use flatbed_store::transaction::Transaction;
use flatbed_testkit::{Random, shift_stamps};

use crate::handle::{Database, Layer};
use crate::renew::renew;
use crate::tests::fenced::layer_judged_by;
use crate::tests::index::channels::{ByBody, assert_clean, give_channels};
use crate::{ChangesQuery, Error, FeedPosition, Result, RowKind, Since};

const USERS: [&str; 3] = ["anna", "bert", ""];

/// Documents and revisions that readers request.
type WrittenRevisions = BTreeSet<(String, RevId)>;

fn asker(name: &str) -> ReadPrincipal {
    if name.is_empty() { ReadPrincipal::Guest } else { ReadPrincipal::Principal(name.into()) }
}

fn settled<T>(done: Result<T>) -> Option<T> {
    match done {
        Ok(done) => Some(done),
        Err(Error::Storage(error)) if error.is_maybe_committed() => None,
        Err(Error::Refused(crate::Refusal::Conflict)) => None,
        Err(error) => panic!("{error}"),
    }
}

fn some_of(random: &mut Random, names: &[&str]) -> BTreeSet<String> {
    names.iter().filter(|_| random.below(2) == 0).map(|name| (*name).to_owned()).collect()
}

/// Writes, moves and removes documents with conflicts, and changes grants by administrators and documents.
async fn work(db: &Database, random: &mut Random, written: &mut WrittenRevisions) {
    let user = Layer { inner: Arc::clone(&db.inner) }.database(&db.name, crate::tests::fenced::user("writer"));
    let user = user.asked_by(ReadPrincipal::All);
    for _ in 0..40 {
        if random.below(4) == 0 {
            let (kind, name) = match random.below(4) {
                3 => (PrincipalKind::Role, "staff"),
                at => (PrincipalKind::User, USERS[at as usize]),
            };
            let is_role = kind == PrincipalKind::Role;
            let names: &[&str] = if is_role { &["S", "B"] } else { &["A", "B"] };
            let write = PrincipalWrite {
                kind,
                name: name.to_owned(),
                email: String::new(),
                is_disabled: false,
                admin_channels: some_of(random, names),
                admin_roles: if is_role { BTreeSet::new() } else { some_of(random, &["staff"]) },
                signs_in: (!is_role && !name.is_empty()).then(|| SignsIn::Password(b"{}".to_vec())),
                is_new: false,
            };
            settled(db.put_principal(&write).await);
            continue;
        }
        let id = format!("d{:02}", random.below(20));
        let mut channels: Vec<_> = some_of(random, &["A", "B", "S", "G", "C", "!"]).into_iter().collect();
        if random.below(8) == 0 {
            channels.extend((0..20).map(|n| format!("many{n}")));
        }
        let mut body = format!(r#"{{"channels":{channels:?},"n":{}"#, random.below(1_000));
        if random.below(4) == 0 {
            body.push_str(&format!(r#","gives":"{}""#, ["anna", "bert"][random.below(2) as usize]));
        }
        if random.below(5) == 0 {
            body.push_str(r#","_deleted":true"#);
        }
        body.push('}');
        let EditParts { deleted, body, .. } =
            EditParts::from_json(parse(body.as_bytes(), &Limits::default()).unwrap(), &flatbed_clock::Clock::system())
                .unwrap();
        let parent = db.get(&id, &GetOptions::default()).await.ok().map(|document| document.rev);
        let history = (random.below(5) == 0)
            .then(|| vec![format!("{}-{:032x}", 1 + random.below(4), random.below(1 << 30)).parse().unwrap()]);
        let parent = parent.filter(|_| history.is_none());
        let attachments = Vec::new();
        let edit = Edit { expiry: None, id: id.clone().into(), parent, history, deleted, attachments, body };
        let updated = match edit.history {
            Some(_) => {
                settled(user.bulk_update(&[edit]).await).and_then(|mut all| settled(all.remove(0).map_err(Error::from)))
            }
            None => settled(user.update(&edit).await),
        };
        written.extend(updated.map(|updated| (id, updated.rev)));
    }
}

/// Returns everything that users see: feed rows with ranks in the place of sequences, and documents.
async fn seen(db: &Database, written: &WrittenRevisions) -> Vec<String> {
    let mut seen = Vec::new();
    let accounts = [true, false].map(|is_member| ReadPrincipal::Account { name: "anna".into(), is_member });
    for asker in USERS.map(asker).into_iter().chain([ReadPrincipal::All]).chain(accounts) {
        let db = db.reader().asked_by(asker.clone());
        for revocations in [false, true] {
            let mut changes = db.changes(ChangesQuery { revocations, ..ChangesQuery::default() });
            let mut rows = Vec::new();
            loop {
                let page = match changes.next_page().await {
                    // Neither a user nor a member.
                    Err(Error::Refused(refusal)) => {
                        seen.push(format!("{asker:?} {revocations}: {refusal:?}"));
                        break;
                    }
                    page => page.unwrap(),
                };
                rows.extend(page.rows);
                if page.at_end {
                    break;
                }
            }
            let seqs: BTreeSet<_> = rows.iter().flat_map(|row| [Some(row.seq), row.because]).flatten().collect();
            let place = |seq| seqs.iter().position(|other| *other == seq);
            for row in rows {
                let (at, because) = (place(row.seq), row.because.and_then(place));
                let what = (row.kind, &row.id, row.rev.to_string(), row.deleted, &row.removed);
                seen.push(format!("{asker:?} {revocations}: {at:?} {because:?} {what:?}"));
            }
        }
        for (id, rev) in written {
            for rev in [None, Some(rev.clone())] {
                let found = db.get(id, &GetOptions { rev: rev.clone(), ..GetOptions::default() }).await;
                seen.push(format!("{asker:?} {id} {rev:?}: {found:?}"));
            }
        }
    }
    seen
}

/// A user who follows the feed and keeps what it shows.
struct Follower {
    asker: ReadPrincipal,
    since: Since,
    shown: BTreeMap<String, RevId>,
}

impl Follower {
    fn new(asker: ReadPrincipal) -> Follower {
        Follower { asker, since: Since::Beginning, shown: BTreeMap::new() }
    }

    /// Returns false if the user may not read.
    async fn follow(&mut self, db: &Database) -> bool {
        let query = ChangesQuery { since: self.since, revocations: true, ..ChangesQuery::default() };
        let mut changes = db.reader().asked_by(self.asker.clone()).changes(query);
        loop {
            let page = match changes.next_page().await {
                Err(Error::Refused(_)) => return false,
                page => page.unwrap(),
            };
            for row in page.rows {
                match row.kind {
                    RowKind::Changed if !row.deleted => drop(self.shown.insert(row.id, row.rev)),
                    RowKind::Changed | RowKind::Lost | RowKind::Revoked => drop(self.shown.remove(&row.id)),
                    RowKind::User => {}
                }
            }
            let last: FeedPosition = page.last_seq;
            self.since = Since::After(last);
            if page.at_end {
                return true;
            }
        }
    }

    /// Checks that the follower has what a new one gets.
    async fn assert_same(&mut self, db: &Database) {
        let mut new = Follower::new(self.asker.clone());
        assert_eq!(self.follow(db).await, new.follow(db).await);
        assert_eq!(self.shown, new.shown, "{:?}", self.asker);
    }
}

async fn version(db: &Database) -> u64 {
    let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
    trx.get_read_version().await.unwrap() as u64
}

/// Restores the store as that of a cluster with higher versions, and renews it.
async fn restore(db: &Database, first: u64) {
    let inner = &db.inner;
    let all = KeyRange { begin: inner.keys.instance(), end: inner.keys.end() };
    let begin = || Transaction::begin(&inner.db, &inner.metrics).unwrap();
    let mut rows = begin().range(&all, true).all(100_000).await.unwrap().to_vec();
    shift_stamps(&mut rows, first..=version(db).await, 1_000_000_000_000);
    let trx = begin();
    trx.clear_range(&all.begin, &all.end);
    trx.commit().await.unwrap();
    for rows in rows.chunks(500) {
        let trx = begin();
        rows.iter().for_each(|(key, value)| trx.set(key, value));
        trx.commit().await.unwrap();
    }
    renew(&inner.db, &inner.options.root, &inner.clock).await.unwrap();
}

#[tokio::test]
async fn users_see_what_they_saw_and_follow_on() {
    let (layer, authority, _storage) = layer_judged_by(Some(Arc::new(ByBody))).await;
    let db = layer.database("db", authority.for_job("test"));
    let first = version(&db).await - 1_000_000_000;
    give_channels(&db).await;
    let (mut random, mut written) = (Random(1), WrittenRevisions::new());
    let (mut told, mut rounds) = ([0; 4], 0);
    let mut followers: Vec<_> = USERS.map(asker).into_iter().chain([ReadPrincipal::All]).map(Follower::new).collect();
    // Until feeds have shown enough rows of each kind.
    while rounds < 3 || told.iter().any(|told| *told <= 3) {
        rounds += 1;
        assert!(rounds < 20, "{told:?}");
        work(&db, &mut random, &mut written).await;
        assert_clean(&db).await;
        // Not all follow each time.
        for follower in followers.iter_mut().skip(rounds % 2) {
            follower.follow(&db).await;
        }
        let before = seen(&db, &written).await;
        // The stamps of the first round are those of another cluster, and the further ones lower.
        if rounds == 1 {
            restore(&db, first).await;
        } else {
            renew(&db.inner.db, &db.inner.options.root, &db.inner.clock).await.unwrap();
        }
        assert_clean(&db).await;
        let after = seen(&db, &written).await;
        for (at, (before, after)) in before.iter().zip(&after).enumerate() {
            assert_eq!(after, before, "{at}");
        }
        assert_eq!(after.len(), before.len());
        work(&db, &mut random, &mut written).await;
        for follower in &mut followers {
            follower.assert_same(&db).await;
        }
        let count = |part: &str| before.iter().filter(|what| what.contains(part)).count();
        told = [
            told[0] + count("(Lost, "),
            told[1] + count("(Revoked, "),
            told[2] + count(") Some("),
            told[3] + count(": Ok("),
        ];
    }
}
