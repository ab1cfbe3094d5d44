//! Renewals of databases with channels, users and roles, with kills: users then see the same documents in the same
//! order.
#![cfg(test)]

use std::collections::BTreeSet;
use std::sync::Arc;

use flatbed_channels::PrincipalKind;
use flatbed_databases::channels::{PrincipalWrite, ReadPrincipal, SignsIn};
use flatbed_databases::document::body::begin_read;
use flatbed_databases::document::edit::{Edit, EditParts, GetOptions};
use flatbed_flatten::json::{Limits, parse};
use flatbed_operations::write::batch::resolved;
use flatbed_revtree::RevId;
use flatbed_store::keys::Subspace;
use flatbed_testkit::Random;

use super::*;
use crate::handle::Database;
use crate::handle::Layer;
use crate::renew::renew;
use crate::tests::index::channels::{ByBody, assert_clean};
use crate::tests::index::random::with_faults;
use crate::{ChangesQuery, Judge};

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

/// Reads all rows of a range, with retries.
async fn keys_of(db: &Database, range: KeyRange) -> Vec<foundationdb::future::FdbValues> {
    loop {
        let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
        if let Ok(pages) = begin_read(&trx, range.clone()).finish(&trx, 10_000_000).await {
            return pages;
        }
    }
}

/// Checks that no stamp or incarnation is old, and that the renewal left no keys.
async fn assert_renewed(db: &Database, before: u64) {
    let instance = resolved(&db.inner, &db.name).await.unwrap();
    for subspace in [Subspace::Channels, Subspace::Principals] {
        for page in keys_of(db, instance.keys.subspace(subspace)).await {
            for row in &page {
                let mut stamps: Vec<_> = places(&instance.keys, row.key(), row.value())
                    .iter()
                    .map(|at| stamp_at(row.value(), *at).unwrap())
                    .collect();
                match subspace {
                    Subspace::Channels => {
                        if let ChannelPart::Entry { seq, .. } = instance.keys.split_channels(row.key()).unwrap() {
                            assert_eq!(seq.incarnation(), instance.incarnation());
                            stamps.push(*seq.stamp());
                        }
                    }
                    _ => {
                        let part = instance.keys.split_principals(row.key()).unwrap();
                        assert!(!matches!(part, PrincipalPart::Changed(_)), "{part:?}");
                    }
                }
                let is_new = |stamp: &Stamp| u64::from_be_bytes(*stamp.first_chunk().unwrap()) > before;
                assert!(stamps.iter().all(is_new), "{:?}", row.key());
            }
        }
    }
}

/// Renews, and kills the renewal after this many transactions. Returns whether it ended before.
async fn renew_for(db: &Database, mut transactions: u64) -> bool {
    let (fdb, root) = (db.inner.db.clone(), db.inner.options.root.clone());
    let renewal = async move {
        let killed = |_| {
            transactions = transactions.saturating_sub(1);
            if transactions == 0 {
                std::panic::resume_unwind(Box::new(()));
            }
        };
        renew(&fdb, &root, false, killed).await.unwrap();
    };
    tokio::spawn(renewal).await.is_ok()
}

/// `kills`: kills a renewal after each of its transactions, else never.
async fn renewals(db: &Database, seed: u64, kills: bool) {
    crate::tests::index::channels::give_channels(db).await;
    let (mut random, mut written) = (Random(seed), WrittenRevisions::new());
    let (mut told, mut rounds) = ([0; 4], 0);
    // Until feeds have shown enough rows of each kind.
    while rounds < 3 || told.iter().any(|told| *told <= 3) {
        rounds += 1;
        assert!(rounds < 20, "{told:?}");
        work(db, &mut random, &mut written).await;
        assert_clean(db).await;
        let before = seen(db, &written).await;
        let version = loop {
            let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
            if let Ok(version) = trx.get_read_version().await {
                break version as u64;
            }
        };
        let mut interrupted = 0;
        while kills && !renew_for(db, 3 + interrupted).await {
            interrupted += 1;
        }
        assert!(!kills || interrupted > 3, "{interrupted}");
        if !kills {
            renew(&db.inner.db, &db.inner.options.root, false, |_| {}).await.unwrap();
        }
        assert_clean(db).await;
        assert_renewed(db, version).await;
        let after = seen(db, &written).await;
        for (at, (before, after)) in before.iter().zip(&after).enumerate() {
            assert_eq!(after, before, "{at}");
        }
        assert_eq!(after.len(), before.len());
        let count = |part: &str| before.iter().filter(|what| what.contains(part)).count();
        told = [
            told[0] + count("(Lost, "),
            told[1] + count("(Revoked, "),
            told[2] + count(") Some("),
            told[3] + count(": Ok("),
        ];
    }
}

#[tokio::test]
async fn users_see_what_they_saw() {
    let (layer, authority, _storage) = crate::tests::fenced::layer_judged_by(Some(Arc::new(ByBody))).await;
    renewals(&layer.database("db", authority.for_job("test")), 1, false).await;
}

#[tokio::test]
async fn a_renewal_goes_on_where_it_was_killed() {
    let (layer, authority, _storage) = crate::tests::fenced::layer_judged_by(Some(Arc::new(ByBody))).await;
    renewals(&layer.database("db", authority.for_job("test")), 7, true).await;
}

#[tokio::test]
async fn a_renewal_with_shards_and_faults() {
    // Faults cost waiting time and little work, so both run at once.
    let both = [3, 2].map(|seed| async move {
        let judge: Arc<dyn Judge> = Arc::new(ByBody);
        let Some(([db, _], _storage)) = with_faults(0.05, seed, Some(judge)).await else { return };
        renewals(&db, seed * 31, false).await;
    });
    futures_util::future::join_all(both).await;
}

/// The departure of a document's last change gets the new sequence of that change, also if the transaction ends there
/// because the document's info, with an earlier stamp, was stamped in it already.
#[tokio::test]
async fn what_was_left_with_the_last_change_keeps_its_sequence() {
    let (layer, authority, _storage) = crate::tests::fenced::layer_judged_by(Some(Arc::new(ByBody))).await;
    let db = layer.database("db", authority.for_job("test"));
    crate::tests::index::channels::give_channels(&db).await;
    let user = layer.database("db", crate::tests::fenced::user("writer")).asked_by(ReadPrincipal::All);
    let mut revs = std::collections::BTreeMap::new();
    // One transaction ends before the last change of "a": the kept departure has two stamps. The next one has stamped
    // the info of "b" when it reaches b's last change.
    for (id, channels) in
        [("b", r#"["B"]"#), ("a", r#"["A","B"]"#), ("a", r#"["A"]"#), ("b", r#"["A","B"]"#), ("b", r#"["A"]"#)]
    {
        let body = format!(r#"{{"channels":{channels}}}"#);
        let body = parse(body.as_bytes(), &Limits::default()).unwrap();
        let (parent, attachments) = (revs.get(id).cloned(), Vec::new());
        let edit = Edit { expiry: None, id: id.into(), parent, history: None, deleted: false, attachments, body };
        revs.insert(id, user.update(&edit).await.unwrap().rev);
    }
    assert_clean(&db).await;
    renew(&db.inner.db, &db.inner.options.root, false, |_| {}).await.unwrap();
    assert_clean(&db).await;
}
