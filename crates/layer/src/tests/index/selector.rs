//! Selector indexes: whatever is written, purged, built and renewed, a feed of an index equals a walk that matches its
//! selector with each document, for administrators and for users of channels.
#![cfg(test)]

use std::collections::BTreeSet;

use flatbed_channels::PrincipalKind as Principal;
use flatbed_databases::asker::ReadPrincipal;
use flatbed_databases::channels::{PrincipalWrite, SignsIn};
use flatbed_databases::document::text;
use flatbed_feeds::feed::changes::{Changes, FollowOutcome};
use flatbed_feeds::feed::query::{ChangesQuery, Documents, Extras, Scope, Since};
use flatbed_feeds::feed::row::{ChangeRow, RowKind};
use flatbed_mango::Selector;
use flatbed_operations::index::selector::definition::IndexName;
use flatbed_store::seq::Seq;
use flatbed_testkit::{Random, pass, soon};

use crate::handle::Reader;
use crate::tests::index::channels::{ByBody, give_channels};
use crate::tests::index::random::{with_faults, workers};
use crate::tests::index::*;

const SELECTORS: [(&str, &str); 6] = [
    ("two", r#"{"kind":"k2"}"#),
    ("few", r#"{"n":{"$lt":300}}"#),
    ("gone", r#"{"_deleted":true}"#),
    ("all", "{}"),
    ("strange", r#"{"$or":[{"_id":{"$gt":"d2"}},{"left.why":{"$exists":true}},{"_rev":{"$regex":"^2-"}}]}"#),
    ("designs", r#"{"_id":{"$regex":"^_design/"}}"#),
];

fn design(which: impl IntoIterator<Item = usize>) -> String {
    let one = |at: usize| format!("{:?}:{}", SELECTORS[at].0, SELECTORS[at].1);
    let all: Vec<String> = which.into_iter().map(one).collect();
    format!(r#"{{"selector_indexes":{{{}}}}}"#, all.join(","))
}

fn scope(name: &str) -> Scope {
    Scope::Selected(Arc::new(IndexName::parse(name).unwrap()))
}

/// Reads all pages up to the end, and the feed's last position.
async fn all_rows(changes: &mut Changes) -> (Vec<ChangeRow>, String) {
    let mut rows = Vec::new();
    loop {
        match changes.next_page().await {
            Ok(page) => {
                rows.extend(page.rows);
                if page.at_end {
                    return (rows, page.last_seq.to_string());
                }
            }
            // Injected faults.
            Err(Error::Storage(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

async fn assert_refused(changes: &mut Changes) {
    loop {
        match changes.next_page().await {
            Err(Error::Refused(Refusal::Forbidden(_))) => return,
            Err(Error::Storage(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the rows of a walk whose documents a selector matches.
async fn walked(db: &Reader, selector: &str, query: &ChangesQuery) -> (Vec<ChangeRow>, String) {
    let extras = Extras { leaves: query.extras.leaves, documents: Documents::Yes };
    let walk = ChangesQuery { scope: Scope::All, limit: None, extras, ..query.clone() };
    let (mut rows, last_seq) = all_rows(&mut db.changes(walk)).await;
    let selector = Selector::new(&parse(selector.as_bytes(), &Limits::default()).unwrap()).unwrap();
    rows.retain(|row| {
        let mut written = Vec::new();
        text::document(row.doc.as_ref().unwrap_or(&nothing()), &mut written);
        row.kind != RowKind::Changed || selector.matches(&parse(&written, &Limits::default()).unwrap())
    });
    rows.truncate(query.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap()));
    if query.extras.documents == Documents::No {
        rows.iter_mut().for_each(|row| row.doc = None);
    }
    (rows, last_seq)
}

fn nothing() -> Document {
    Document {
        id: "x".to_owned(),
        rev: RevId::new(1, [0; 16]),
        deleted: false,
        body: Vec::new(),
        revisions: None,
        revs_info: None,
        born: None,
        conflicts: None,
        deleted_conflicts: None,
        attachments: Vec::new(),
        local_seq: None,
        ends_at_ms: None,
    }
}

async fn assert_same(db: &Reader) {
    let defined: Vec<proto::Index> = indexes_of_kind(db).await;
    let sees_all = *db.asker() == ReadPrincipal::All;
    for index in &defined {
        let its_name = flatbed_operations::index::selector::definition::name_of(index).unwrap();
        let (_, selector) = SELECTORS.iter().find(|(name, _)| *name == its_name).unwrap();
        let name = format!("{}/{its_name}", index.source);
        let (all, _) = walked(db, selector, &ChangesQuery::default()).await;
        let middle = all.get(all.len() / 2).map_or(Since::Beginning, |row| Since::after(row.place()));
        for since in [Since::Beginning, middle, Since::Now] {
            for descending in if sees_all { &[false, true][..] } else { &[false] } {
                for limit in [None, Some(1), Some(3)] {
                    let leaves = limit.is_none();
                    let documents = if limit == Some(3) { Documents::No } else { Documents::Yes };
                    let extras = Extras { leaves, documents };
                    let query = ChangesQuery { since, descending: *descending, limit, extras, ..Default::default() };
                    let (wanted, last_seq) = walked(db, selector, &query).await;
                    let found = all_rows(&mut db.changes(ChangesQuery { scope: scope(&name), ..query.clone() })).await;
                    assert_eq!(found.0, wanted, "{name} {query:?}");
                    if sees_all && limit.is_none() && !descending {
                        assert_eq!(found.1, last_seq, "{name} {query:?}");
                    }
                }
            }
        }
        if sees_all {
            let found = seqs_of(db, index.number).await;
            assert_eq!(found, all.iter().map(|row| row.seq).collect::<Vec<_>>(), "{name}");
            let mut changes = db.changes(ChangesQuery { scope: scope(&name), limit: Some(0), ..Default::default() });
            changes.next_page().await.unwrap();
            assert_eq!(changes.pending().await.unwrap(), all.len() as u64);
        }
    }
}

async fn indexes_of_kind(db: &Reader) -> Vec<proto::Index> {
    let record = &resolved(&db.inner, &db.name).await.unwrap().record;
    record.indexes.iter().filter(|index| index.kind == "selector").cloned().collect()
}

async fn seqs_of(db: &Reader, number: u64) -> Vec<Seq> {
    let instance = resolved(&db.inner, &db.name).await.unwrap();
    loop {
        let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
        let read = flatbed_databases::document::body::begin_read(&trx, instance.keys.index(number))
            .finish(&trx, 10_000_000)
            .await;
        let Ok(pages) = read else { continue };
        let rows = pages.iter().flat_map(|page| page.iter());
        let seq = |row: &foundationdb::future::FdbKeyValue| match instance.keys.split_index(row.key()).unwrap() {
            (_, IndexPart::Change(seq)) => Some(seq),
            (_, IndexPart::Progress) => None,
            (_, part) => panic!("{part:?}"),
        };
        return rows.filter_map(seq).collect();
    }
}

fn settled<T>(done: Result<T>) {
    match done {
        Ok(_) | Err(Error::Refused(Refusal::Conflict | Refusal::DocumentNotFound(_))) => {}
        Err(Error::Storage(error)) if error.is_maybe_committed() => {}
        Err(error) => panic!("{error}"),
    }
}

/// Edits, conflicts, deletions with bodies, purges, compactions, and sometimes other indexes.
async fn writer(db: Database, seed: u64) {
    let mut random = Random(seed);
    let user = Layer { inner: Arc::clone(&db.inner) }.database(&db.name, crate::tests::fenced::user("writer"));
    let user = user.asked_by(ReadPrincipal::All);
    for _ in 0..40 {
        let id = format!("d{:02}", random.below(25));
        let leaf = db.get(&id, &GetOptions::default()).await.ok().map(|document| document.rev);
        let channels: Vec<String> =
            ["A", "B", "C"].iter().filter(|_| random.below(2) == 0).map(|name| format!("{name:?}")).collect();
        let common = format!(r#""channels":[{}],"kind":"k{}""#, channels.join(","), random.below(4));
        let body = match random.below(8) {
            0 => r#"{"_deleted":true}"#.to_owned(),
            1 => format!(r#"{{"_deleted":true,"left":{{"why":1}},{common}}}"#),
            2 => format!(r#"{{{common},"x":[{}]}}"#, vec![format!("{:?}", "y".repeat(900)); 600].join(",")),
            _ => format!(r#"{{{common},"n":{}}}"#, random.below(1_000)),
        };
        match random.below(14) {
            0 => {
                let which = (0..SELECTORS.len()).filter(|_| random.below(2) == 0).collect::<Vec<_>>();
                let id = ["_design/a", "_design/b"][random.below(2) as usize];
                let parent = db.get(id, &GetOptions::default()).await.ok().map(|document| document.rev);
                settled(put(&db, id, parent.as_ref(), &design(which)).await);
            }
            1 => {
                if let Some(rev) = &leaf {
                    settled(db.purge(&id, std::slice::from_ref(rev)).await);
                }
            }
            2 => settled(db.compact().await),
            3 | 4 => {
                let rev = format!("{}-{:032x}", 1 + random.below(4), random.below(1 << 30));
                let history = Some(vec![rev.parse().unwrap()]);
                settled(user.bulk_update(&[Edit { history, ..edit(&id, None, &body) }]).await);
            }
            _ => settled(put(&user, &id, leaf.as_ref(), &body).await),
        }
    }
}

async fn administrator(db: Database, seed: u64) {
    let mut random = Random(seed);
    for _ in 0..12 {
        for name in ["anna", "bert"] {
            let names = if name == "anna" { &["A", "B", "C"][..] } else { &["*", "A"] };
            let write = PrincipalWrite {
                kind: Principal::User,
                name: name.to_owned(),
                email: String::new(),
                is_disabled: false,
                admin_channels: names
                    .iter()
                    .filter(|_| random.below(2) == 0)
                    .map(|name| (*name).to_owned())
                    .collect::<BTreeSet<_>>(),
                admin_roles: BTreeSet::new(),
                signs_in: Some(SignsIn::Password(b"{}".to_vec())),
                is_new: false,
            };
            settled(db.put_principal(&write).await);
        }
        pass(Duration::from_millis(30)).await;
    }
}

async fn torture(probability: f64, seed: u64, has_channels: bool) {
    let judge: Option<Arc<dyn Judge>> = if has_channels { Some(Arc::new(ByBody)) } else { None };
    let Some(([one, other], _storage)) = with_faults(probability, seed, judge).await else { return };
    if has_channels {
        give_channels(&one).await;
    }
    let (done, ended) = tokio::sync::watch::channel(false);
    let working: Vec<_> = [&one, &other]
        .into_iter()
        .enumerate()
        .map(|(n, db)| tokio::spawn(workers(db.clone(), seed + n as u64, ended.clone())))
        .collect();
    let mut tasks: Vec<_> =
        (0..4).map(|n| tokio::spawn(writer([&one, &other][n % 2].clone(), seed * 100 + n as u64))).collect();
    if has_channels {
        tasks.push(tokio::spawn(administrator(other.clone(), seed)));
    }
    for task in tasks {
        task.await.unwrap();
    }
    done.send_replace(true);
    for working in working {
        working.await.unwrap();
    }
    assert_clean(&one).await;
    // All of them at the end, some of which existed before.
    let parent = one.get("_design/a", &GetOptions::default()).await.ok().map(|document| document.rev);
    settled(put(&one, "_design/a", parent.as_ref(), &design(0..SELECTORS.len())).await);
    build_all(&one).await;
    let assert_all_same = async || {
        let users = if has_channels { &["anna", "bert"][..] } else { &[] };
        let askers: Vec<ReadPrincipal> = [ReadPrincipal::All]
            .into_iter()
            .chain(users.iter().map(|name| ReadPrincipal::Principal((*name).into())))
            .collect();
        let readers: Vec<Reader> = [&one, &other]
            .into_iter()
            .flat_map(|db| askers.iter().map(|asker| db.reader().asked_by(asker.clone())))
            .collect();
        // All at once: faults cost waits, and hardly any work.
        futures_util::future::join_all(readers.iter().map(assert_same)).await;
        // Neither admits an unknown user.
        for scope in [Scope::All, scope("a/two")] {
            let nobody = one.reader().asked_by(ReadPrincipal::Principal("nobody".into()));
            if has_channels {
                assert_refused(&mut nobody.changes(ChangesQuery { scope, ..ChangesQuery::default() })).await;
            }
        }
        assert_clean(&one).await;
    };
    assert_all_same().await;
    assert!(!indexes_of_kind(&one).await.is_empty());
    renew(&one.inner.db, &one.inner.options.root, &one.inner.clock).await.unwrap();
    assert_all_same().await;
    let rev = one.get("_design/a", &GetOptions::default()).await.unwrap().rev;
    settled(put(&one, "_design/a", Some(&rev), r#"{"_deleted":true}"#).await);
    assert_clean(&one).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_work_gives_what_a_walk_gives() {
    torture(0.0, 1, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_work_with_shards_and_faults_gives_what_a_walk_gives() {
    torture(0.03, 3, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_of_channels_get_what_a_walk_gives_them() {
    torture(0.02, 6, true).await;
}

/// Tombstones among the earlier documents, with and without bodies.
#[tokio::test]
async fn a_builder_that_is_killed_at_any_step_enters_tombstones_too() {
    let (db, _storage) = database().await;
    fill(&db, 45).await;
    for n in (0..45).step_by(2) {
        let id = format!("d{n:04}");
        let rev = db.get(&id, &GetOptions::default()).await.unwrap().rev;
        let body = if n % 4 == 0 { r#"{"_deleted":true}"# } else { r#"{"_deleted":true,"kind":"k2"}"# };
        put(&db, &id, Some(&rev), body).await.unwrap();
    }
    put(&db, "_design/a", None, &design([2])).await.unwrap();
    put(&db, "_design/b", None, &design([0])).await.unwrap();
    let mut steps = 0;
    for number in [1, 2] {
        loop {
            let before = seqs_of(&db, number).await;
            let killed = begin(&db);
            let mut attempt = Step::new(&db.inner, "db", number, BuildPace::default());
            attempt.attempt(&killed, FIRST).await.unwrap();
            drop(killed);
            assert_eq!(seqs_of(&db, number).await, before);
            let (one, other) = (begin(&db), begin(&db));
            let found = attempt.attempt(&one, FIRST).await.unwrap();
            attempt.attempts = 0;
            attempt.attempt(&other, FIRST).await.unwrap();
            one.commit().await.unwrap();
            assert!(other.commit().await.is_err(), "two at once: one of them does it");
            assert_clean(&db).await;
            steps += 1;
            if found == StepOutcome::Built {
                break;
            }
        }
    }
    assert!(steps > 10, "{steps}");
    assert_eq!(seqs_of(&db, 1).await.len(), 23);
    assert_same(&db.reader().asked_by(ReadPrincipal::All)).await;
}

/// Returns the next rows, from pages or from the shared feed, and whether they were shared.
async fn next(changes: &mut Changes) -> Result<(Vec<String>, bool)> {
    let came = async {
        loop {
            match changes.follow().await {
                FollowOutcome::Rows(rows) => return Ok((rows.iter().map(|row| row.row.id.clone()).collect(), true)),
                FollowOutcome::ReadOn => {
                    let page = changes.next_page().await?;
                    if !page.rows.is_empty() {
                        return Ok((page.rows.into_iter().map(|row| row.id).collect(), false));
                    }
                }
                FollowOutcome::Shutdown => panic!("the process does not stop"),
            }
        }
    };
    soon(came).await
}

#[tokio::test]
async fn followers_get_what_is_shared_until_the_index_is_another_one() {
    let (db, _storage) = database().await;
    put(&db, "old", None, r#"{"kind":"k2"}"#).await.unwrap();
    // Followed before the index exists: the shared feed lacks it.
    let mut plain = db.changes(ChangesQuery::default());
    all_rows(&mut plain).await;
    let since = Since::after(db.update_seq().await.unwrap());
    let written = put(&db, "before", None, r#"{"kind":"k2"}"#).await.unwrap();
    assert_eq!(next(&mut plain).await.unwrap().0, ["before"]);
    let defined = put(&db, "_design/a", None, &design([0])).await.unwrap();
    let query = || ChangesQuery { since, scope: scope("two"), ..ChangesQuery::default() };
    let refused = db.changes(query()).next_page().await;
    assert!(matches!(refused, Err(Error::Index(crate::IndexFailure::Building))), "{refused:?}");
    build_all(&db).await;
    let missing = db.changes(ChangesQuery { scope: scope("b/two"), ..query() }).next_page().await;
    assert!(matches!(missing, Err(Error::Refused(Refusal::NoSelectorIndex))), "{missing:?}");
    let metrics = &db.inner.metrics;
    let read = || (metrics.selector_index_reads.get(), metrics.selector_index_rows.get());
    let (reads, rows) = read();
    let mut feed = db.changes(query());
    assert_eq!(all_rows(&mut feed).await.0.into_iter().map(|row| row.id).collect::<Vec<_>>(), ["before"]);
    assert_eq!(read(), (reads + 1, rows + 1));
    assert_eq!(metrics.selector_index_followers.get(), 0, "it has not waited for anything");
    let mut shared = 0;
    for (id, body, is_in) in [
        ("a", r#"{"kind":"k2"}"#, true),
        ("b", r#"{"kind":"k3"}"#, false),
        ("c", r#"{"kind":"k2","n":1}"#, true),
        ("d", "{}", false),
        ("e", r#"{"kind":"k2"}"#, true),
    ] {
        put(&db, id, None, body).await.unwrap();
        if is_in {
            let (ids, was_shared) = next(&mut feed).await.unwrap();
            assert_eq!(ids, [id]);
            shared += usize::from(was_shared);
        }
    }
    assert!(shared > 0, "no row came from the shared feed");
    assert_eq!(metrics.selector_index_followers.get(), 1);
    // A document that no longer matches has no row, as in a walk.
    put(&db, "before", Some(&written), r#"{"kind":"k1"}"#).await.unwrap();
    let defined = put(&db, "_design/a", Some(&defined), &design([0, 1])).await.unwrap();
    put(&db, "f", None, r#"{"kind":"k2"}"#).await.unwrap();
    assert_eq!(next(&mut feed).await.unwrap().0, ["f"]);
    build_all(&db).await;
    put(&db, "_design/a", Some(&defined), r#"{"selector_indexes":{"two":{"kind":"k3"}}}"#).await.unwrap();
    let ended = next(&mut feed).await;
    assert!(matches!(ended, Err(Error::Index(crate::IndexFailure::Building))), "{ended:?}");
    build_all(&db).await;
    let ended = feed.next_page().await;
    assert!(matches!(ended, Err(Error::Refused(Refusal::IndexGone))), "{ended:?}");
    drop(feed);
    assert_eq!(metrics.selector_index_followers.get(), 0);
    let (rows, _) = all_rows(&mut db.changes(query())).await;
    assert_eq!(rows.into_iter().map(|row| row.id).collect::<Vec<_>>(), ["b"]);
    assert_clean(&db).await;
}

/// Entries that a transaction writes to an index are cleared with it.
#[tokio::test]
async fn an_index_goes_in_a_transaction_that_writes_to_it() {
    let (db, _storage) = database().await;
    let rev = put(&db, "_design/a", None, &design([3])).await.unwrap();
    build_all(&db).await;
    let deleted = r#"{"_deleted":true}"#;
    let edits = [edit("x", None, "{}"), edit("_design/a", Some(rev), deleted), edit("y", None, "{}")];
    let done = db.bulk_update(&edits).await.unwrap();
    assert!(done.iter().all(|outcome| outcome.is_ok()), "{done:?}");
    assert!(seqs_of(&db, 1).await.is_empty());
    assert_clean(&db).await;
}

/// The cost of an index on a write: a cleared key, and a written one if the selector matches. Nothing is read.
#[tokio::test]
async fn writes_wait_no_more_than_without_an_index() {
    let (db, _storage) = database().await;
    let rev = put(&db, "d", None, r#"{"kind":"k2"}"#).await.unwrap();
    // The other caches are filled by then, too.
    let rev = put(&db, "d", Some(&rev), r#"{"kind":"k2","n":0}"#).await.unwrap();
    let (rev, without) = crate::waits::count(put(&db, "d", Some(&rev), r#"{"kind":"k2","n":1}"#)).await;
    put(&db, "_design/a", None, &design([0, 1])).await.unwrap();
    build_all(&db).await;
    let rev = put(&db, "d", Some(&rev.unwrap()), r#"{"kind":"k2","n":2}"#).await;
    let (_, with) = crate::waits::count(put(&db, "d", Some(&rev.unwrap()), r#"{"kind":"k2","n":3}"#)).await;
    assert!(!flatbed_store::waits::are_exact() || with.path.depth() == without.path.depth(), "{with:?}, {without:?}");
    assert_clean(&db).await;
}
