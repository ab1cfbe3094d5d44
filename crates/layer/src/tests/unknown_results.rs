//! Tests operations whose commit succeeded although it seemed to fail (`commit_unknown_result`), with other writes in
//! between.
#![cfg(test)]

use flatbed_clock::ManualClock;
use flatbed_databases::create::{Create, Delete};
use flatbed_databases::record_change::ChangeRecord;
use flatbed_flatten::json::{Limits, parse};
use flatbed_operations::read::local::{EditLocals, LocalEdit, LocalEffect};
use flatbed_operations::write::batch::{Work, WriteBatch};
use flatbed_operations::write::compact::Compact;
use flatbed_operations::write::purge::Purge;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use flatbed_store::waits;
use flatbed_testkit::{Storage, until};

use crate::{Authority, CreateOptions, Database, Edit, Error, Layer, LocalDocument, RevId};

const FIRST: Attempt = Attempt { maybe_committed: false, after_unknown: false };
const AFTER_UNKNOWN: Attempt = Attempt { maybe_committed: true, after_unknown: true };
/// An unknown result, and then a definite failure.
const LATER: Attempt = Attempt { maybe_committed: true, after_unknown: false };

struct Store {
    layer: Layer,
    authority: Authority,
    /// Removed with the store.
    _storage: Storage,
}

impl Store {
    async fn new() -> Store {
        let (layer, authority, _storage) = crate::tests::fenced::layer().await;
        Store { layer, authority, _storage }
    }

    fn named(&self, name: &str) -> Database {
        self.layer.database(name, self.authority.for_job("test"))
    }

    fn db(&self) -> Database {
        self.named("db")
    }

    async fn attempt<O: Operation>(
        &self,
        operation: &mut O,
        attempt: Attempt,
        commits: bool,
    ) -> crate::Result<O::Output> {
        let trx = Transaction::begin(&self.layer.inner.db, &self.layer.inner.metrics).unwrap();
        let output = operation.attempt(&trx, attempt).await;
        if commits {
            trx.commit().await.unwrap();
        }
        output
    }
}

fn path(text: &str) -> Vec<RevId> {
    text.split(' ').map(|rev| rev.parse().unwrap()).collect()
}

async fn replicate(db: &Database, id: &str, history: &str) {
    let body = parse(br#"{"a":1}"#, &Limits::default()).unwrap();
    let history = Some(path(history));
    let edit =
        Edit { expiry: None, id: id.into(), parent: None, history, deleted: false, attachments: Vec::new(), body };
    db.update(&edit).await.unwrap();
}

async fn assert_clean(db: &Database) {
    let report = crate::check::check_database(db, |_| {}).await.unwrap();
    assert!(report.is_clean(), "{report:#?}");
}

#[tokio::test]
async fn a_purge_answers_all_that_it_took_away() {
    let store = Store::new().await;
    let db = store.db();
    let wanted = path("2-a 2-b 2-c");
    for leaf in ["2-a 1-r", "2-b 1-r", "2-x 1-r"] {
        replicate(&db, "d", leaf).await;
    }
    let new = |wanted| Purge::new(&db.handle, "d", wanted, None).unwrap();
    let sorted = |mut step: flatbed_operations::write::purge::PurgeStep| {
        step.purged.sort_unstable();
        step.purged
    };
    let mut purge = new(&wanted);
    assert_eq!(sorted(store.attempt(&mut purge, FIRST, true).await.unwrap()), path("2-a 2-b"));
    // One of them is replicated again after the purge, and stays.
    replicate(&db, "d", "2-b 1-r").await;
    assert_eq!(sorted(store.attempt(&mut purge, AFTER_UNKNOWN, true).await.unwrap()), path("2-a 2-b"));
    assert_eq!(sorted(store.attempt(&mut purge, LATER, true).await.unwrap()), path("2-a 2-b"));
    let options = crate::GetOptions { rev: path("2-b").pop(), ..crate::GetOptions::default() };
    assert!(db.get("d", &options).await.is_ok());
    assert_clean(&db).await;
    // An attempt that failed for certain meant to remove a revision, and another client removed it.
    db.purge("d", &path("2-b")).await.unwrap();
    replicate(&db, "d", "2-a 1-r").await;
    let mut purge = new(&wanted);
    assert_eq!(store.attempt(&mut purge, FIRST, false).await.unwrap().purged, path("2-a"));
    assert_eq!(db.purge("d", &wanted).await.unwrap(), path("2-a"));
    assert_eq!(store.attempt(&mut purge, Attempt::default(), true).await.unwrap().purged, []);
    assert_eq!(store.attempt(&mut purge, LATER, true).await.unwrap().purged, []);
    let last = path("2-x");
    let mut purge = new(&last);
    assert_eq!(store.attempt(&mut purge, FIRST, true).await.unwrap().purged, path("2-x"));
    assert_eq!(store.attempt(&mut purge, AFTER_UNKNOWN, true).await.unwrap().purged, path("2-x"));
    assert_clean(&db).await;
}

/// Two attempts of one operation, the first of which commits after the second.
#[tokio::test]
async fn a_commit_that_lands_late_does_not_take_place_again() {
    let store = Store::new().await;
    let db = store.db();
    let document = |body: &[u8]| LocalDocument { id: "l".into(), revision: 1, body: body.into() };
    let ours = [LocalEdit::Put(document(b"\"a\":1"))];
    let mut put = EditLocals::new(&db.handle, &ours).unwrap();
    let late = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
    put.attempt(&late, FIRST).await.unwrap();
    store.attempt(&mut put, AFTER_UNKNOWN, true).await.unwrap();
    db.put_local(&document(b"\"a\":2")).await.unwrap();
    assert!(late.commit().await.is_err());
    assert_eq!(db.get_local("l").await.unwrap(), Some(document(b"\"a\":2")));
}

#[tokio::test]
async fn a_local_document_is_written_once() {
    let store = Store::new().await;
    let db = store.db();
    let document = |body: &[u8]| LocalDocument { id: "l".into(), revision: 1, body: body.into() };
    let ours = [LocalEdit::Put(document(b"\"a\":1"))];
    let mut put = EditLocals::new(&db.handle, &ours).unwrap();
    store.attempt(&mut put, FIRST, true).await.unwrap();
    db.put_local(&document(b"\"a\":2")).await.unwrap();
    store.attempt(&mut put, AFTER_UNKNOWN, true).await.unwrap();
    store.attempt(&mut put, LATER, true).await.unwrap();
    assert_eq!(db.get_local("l").await.unwrap(), Some(document(b"\"a\":2")));
    let mut put = EditLocals::new(&db.handle, &ours).unwrap();
    store.attempt(&mut put, FIRST, false).await.unwrap();
    store.attempt(&mut put, AFTER_UNKNOWN, true).await.unwrap();
    assert_eq!(db.get_local("l").await.unwrap(), Some(document(b"\"a\":1")));
    // Marks are removed after their retention, and not before.
    assert!(!crate::sweeper::sweep_marks(&db.inner, std::time::Duration::from_secs(3_600)).await.unwrap());
    let sweep = async || crate::sweeper::sweep_marks(&db.inner, std::time::Duration::ZERO).await.unwrap();
    let mut swept = 0;
    until("no mark is left", async || {
        swept += u64::from(sweep().await);
        !crate::sweeper::are_marks_left(&db.inner).await.unwrap()
    })
    .await;
    assert!(swept > 0 && !sweep().await);
}

/// Two processes have clocks two hours apart, and one removes the mark of an operation that the other still retries.
#[tokio::test]
async fn an_operation_whose_mark_was_removed_too_early_is_not_made_again() {
    let (manual, ahead) = (ManualClock::new(), ManualClock::new());
    ahead.advance(2 * crate::sweeper::KEPT_FOR);
    let (layer, authority, storage) = crate::tests::fenced::layer_at(&manual).await;
    let (elsewhere, _) = crate::tests::fenced::open_at(&storage, &ahead).await;
    let store = Store { layer, authority, _storage: storage };
    let db = store.db();
    let document = |body: &[u8]| LocalDocument { id: "l".into(), revision: 1, body: body.into() };
    let ours = [LocalEdit::Put(document(b"\"a\":1"))];
    let mut put = EditLocals::new(&db.handle, &ours).unwrap();
    store.attempt(&mut put, FIRST, true).await.unwrap();
    db.put_local(&document(b"\"a\":2")).await.unwrap();
    assert!(crate::sweeper::sweep_marks(&elsewhere.inner, crate::sweeper::KEPT_FOR).await.unwrap());
    let again = store.attempt(&mut put, AFTER_UNKNOWN, false).await;
    assert!(matches!(again, Err(Error::Storage(error)) if error.is_maybe_committed()));
    assert_eq!(db.get_local("l").await.unwrap(), Some(document(b"\"a\":2")));
    // An operation with a later mark is not in doubt.
    manual.advance(2 * crate::sweeper::KEPT_FOR);
    let mut put = EditLocals::new(&db.handle, &ours).unwrap();
    store.attempt(&mut put, FIRST, false).await.unwrap();
    store.attempt(&mut put, AFTER_UNKNOWN, true).await.unwrap();
    assert_eq!(db.get_local("l").await.unwrap(), Some(document(b"\"a\":1")));
    assert!(!crate::sweeper::sweep_marks(&elsewhere.inner, 3 * crate::sweeper::KEPT_FOR).await.unwrap());
}

/// A clock was years ahead for a while.
#[tokio::test]
async fn marks_that_a_wrong_clock_has_removed_leave_no_doubt_about_later_ones() {
    let manual = ManualClock::new();
    let (layer, authority, storage) = crate::tests::fenced::layer_at(&manual).await;
    let store = Store { layer, authority, _storage: storage };
    let db = store.db();
    let years = 10 * 365 * 24 * 3_600_000;
    let options = crate::LayerOptions {
        root: db.inner.options.root.clone(),
        clock: manual.clock().skewed(years),
        ..crate::LayerOptions::default()
    };
    let (elsewhere, _) = Layer::open(db.inner.db.clone(), options, None).await.unwrap();
    let document = |body: &[u8]| LocalDocument { id: "l".into(), revision: 1, body: body.into() };
    let ours = [LocalEdit::Put(document(b"\"a\":1"))];
    let mut before = EditLocals::new(&db.handle, &ours).unwrap();
    store.attempt(&mut before, FIRST, true).await.unwrap();
    assert!(crate::sweeper::sweep_marks(&elsewhere.inner, crate::sweeper::KEPT_FOR).await.unwrap());
    assert!(!crate::sweeper::are_marks_left(&elsewhere.inner).await.unwrap());
    manual.advance(std::time::Duration::from_secs(1));
    let mut later = EditLocals::new(&db.handle, &ours).unwrap();
    store.attempt(&mut later, FIRST, false).await.unwrap();
    store.attempt(&mut later, AFTER_UNKNOWN, true).await.unwrap();
    let again = store.attempt(&mut before, AFTER_UNKNOWN, false).await;
    assert!(matches!(again, Err(Error::Storage(error)) if error.is_maybe_committed()));
}

/// Marks lie in 256 buckets: one transaction reads all, and clears those that have old ones.
#[tokio::test]
async fn old_marks_of_all_buckets_are_removed_by_one_transaction() {
    let manual = ManualClock::new();
    let (layer, authority, storage) = crate::tests::fenced::layer_at(&manual).await;
    let store = Store { layer, authority, _storage: storage };
    let (db, kept_for) = (store.db(), crate::sweeper::KEPT_FOR);
    let sweep = async || waits::count(crate::sweeper::sweep_marks(&db.inner, kept_for)).await;
    let marks = async || {
        let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
        trx.range(&db.inner.keys.marks(), true).first(1_000).await.unwrap().len()
    };
    let first = marks().await;
    for number in 0..40 {
        let document = LocalDocument { id: format!("l{number}"), revision: 1, body: b"".as_slice().into() };
        db.put_local(&document).await.unwrap();
    }
    assert_eq!(marks().await, first + 40);
    manual.advance(kept_for);
    assert!(!sweep().await.0.unwrap(), "they are not old yet");
    manual.advance(std::time::Duration::from_millis(1));
    let document = LocalDocument { id: "late".into(), revision: 1, body: b"".as_slice().into() };
    db.put_local(&document).await.unwrap();
    let (swept, waited) = sweep().await;
    assert!(swept.unwrap());
    assert_eq!(marks().await, 1, "the late one");
    assert_eq!((waited.commits, waited.range_reads), (1, 255));
    // A range for each of the buckets that had some, and the time.
    assert!((20..=42).contains(&waited.keys_written), "{waited:?}");
}

#[tokio::test]
async fn a_lease_that_another_took_stays() {
    let store = Store::new().await;
    let db = store.db();
    let (ours, theirs) = ([1; 16], [2; 16]);
    db.take_lease("l", &ours, None).await.unwrap();
    let mut remove = crate::lease::Remove::new(&db.inner, "db", "l").unwrap();
    store.attempt(&mut remove, FIRST, true).await.unwrap();
    db.take_lease("l", &theirs, None).await.unwrap();
    store.attempt(&mut remove, AFTER_UNKNOWN, true).await.unwrap();
    assert!(db.hold_lease("l", &theirs, b"", false).await.unwrap());
}

#[tokio::test]
async fn as_many_purges_are_remembered_as_the_limit_says() {
    let store = Store::new().await;
    let db = store.db();
    db.set_purged_infos_limit(3).await.unwrap();
    let instance = flatbed_operations::write::batch::instance_of(&db.inner, "db").await.unwrap();
    let range = instance.keys.purges();
    let count = async || {
        let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
        trx.range(&range, true).all(1_000).await.unwrap().len()
    };
    for number in 1..7 {
        replicate(&db, "d", "1-a").await;
        db.purge("d", &path("1-a")).await.unwrap();
        assert_eq!(count().await, number.min(3));
    }
    for (limit, expected) in [(1, 1), (200_000, 2), (2_000_000, 3)] {
        db.set_purged_infos_limit(limit).await.unwrap();
        replicate(&db, "d", "1-a").await;
        db.purge("d", &path("1-a")).await.unwrap();
        assert_eq!(count().await, expected);
    }
}

#[tokio::test]
async fn a_local_document_is_deleted_once() {
    let store = Store::new().await;
    let db = store.db();
    let document = |body: &[u8]| LocalDocument { id: "l".into(), revision: 1, body: body.into() };
    let edits = [LocalEdit::Delete("l".into())];
    let delete = || EditLocals::new(&db.handle, &edits).unwrap();
    db.put_local(&document(b"\"a\":1")).await.unwrap();
    let mut first = delete();
    assert_eq!(store.attempt(&mut first, FIRST, true).await.unwrap(), [LocalEffect::Applied]);
    assert_eq!(store.attempt(&mut first, AFTER_UNKNOWN, true).await.unwrap(), [LocalEffect::Applied], "it was there");
    // Later writes stay.
    let mut second = delete();
    db.put_local(&document(b"\"a\":1")).await.unwrap();
    assert_eq!(store.attempt(&mut second, FIRST, true).await.unwrap(), [LocalEffect::Applied]);
    db.put_local(&document(b"\"a\":2")).await.unwrap();
    assert_eq!(store.attempt(&mut second, AFTER_UNKNOWN, true).await.unwrap(), [LocalEffect::Applied]);
    assert_eq!(db.get_local("l").await.unwrap(), Some(document(b"\"a\":2")));
    // A deletion by another client does not count as this one's, whatever a failed attempt has seen.
    let mut third = delete();
    assert_eq!(store.attempt(&mut third, FIRST, false).await.unwrap(), [LocalEffect::Applied]);
    assert!(db.delete_local("l").await.unwrap());
    assert_eq!(store.attempt(&mut third, Attempt::default(), true).await.unwrap(), [LocalEffect::Missing]);
    assert_eq!(store.attempt(&mut third, LATER, true).await.unwrap(), [LocalEffect::Missing]);
}

#[tokio::test]
async fn a_setting_goes_to_the_database_that_was_meant() {
    let store = Store::new().await;
    let db = store.db();
    let set = |limit| ChangeRecord {
        inner: &db.inner,
        name: "db",
        actor: db.actor(),
        change: move |record: &mut flatbed_store::proto::DatabaseRecord| record.revs_limit = limit,
        once: db.inner.once().unwrap(),
    };
    let mut five = set(5);
    store.attempt(&mut five, FIRST, true).await.unwrap();
    store.attempt(&mut five, AFTER_UNKNOWN, true).await.unwrap();
    assert_eq!(db.revs_limit().await.unwrap(), 5);
    // Later settings of other clients stay.
    db.set_revs_limit(7).await.unwrap();
    store.attempt(&mut five, AFTER_UNKNOWN, true).await.unwrap();
    store.attempt(&mut five, LATER, true).await.unwrap();
    assert_eq!(db.revs_limit().await.unwrap(), 7);
    // An operation that failed for certain is applied after all.
    let mut six = set(6);
    store.attempt(&mut six, FIRST, false).await.unwrap();
    store.attempt(&mut six, LATER, true).await.unwrap();
    assert_eq!(db.revs_limit().await.unwrap(), 6);
    store.db().delete().await.unwrap();
    let mut other = set(8);
    assert!(matches!(store.attempt(&mut other, FIRST, false).await, Err(Error::DatabaseNotFound)));
    store.db().create(&CreateOptions::default()).await.unwrap();
    store.attempt(&mut five, AFTER_UNKNOWN, true).await.unwrap();
    assert_eq!(db.revs_limit().await.unwrap(), crate::REVS_LIMIT);
}

#[tokio::test]
async fn a_database_is_created_and_deleted_once() {
    let store = Store::new().await;
    let (layer, inner) = (&store.layer, &*store.layer.inner);
    let db = store.db();
    let mut create = Create {
        inner,
        name: "new",
        actor: db.actor(),
        run_bytes: 0,
        field_ids_max: 10,
        leaves_only: false,
        shards: 0,
        hinted_shards: 0,
        partitioned: false,
        channels: None,
        security: &[],
        created_at_ms: 1,
        once: inner.once().unwrap(),
        namespace: None,
    };
    store.attempt(&mut create, FIRST, true).await.unwrap();
    store.attempt(&mut create, AFTER_UNKNOWN, true).await.unwrap();
    store.named("new").delete().await.unwrap();
    store.attempt(&mut create, LATER, true).await.unwrap();
    assert!(matches!(layer.reader("new").exists().await, Err(Error::DatabaseNotFound)));
    let mut delete = Delete { inner, name: "db", actor: db.actor(), once: inner.once().unwrap() };
    store.attempt(&mut delete, FIRST, true).await.unwrap();
    store.attempt(&mut delete, AFTER_UNKNOWN, true).await.unwrap();
    store.db().create(&CreateOptions::default()).await.unwrap();
    store.attempt(&mut delete, LATER, true).await.unwrap();
    layer.reader("db").exists().await.unwrap();
}

/// A compaction and an edit that trims the same bodies, each begun before the other's commit.
#[tokio::test]
async fn what_a_compaction_and_an_edit_drop_is_counted_once() {
    let store = Store::new().await;
    let db = store.db();
    db.set_revs_limit(3).await.unwrap();
    for branches in [&["a"][..], &["a", "b"][..]] {
        let id = format!("d{}", branches.len());
        for generation in 1..70 {
            for hash in branches {
                let line: Vec<_> = (1..=generation).rev().map(|at| format!("{at}-{hash}")).collect();
                replicate(&db, &id, &line.join(" ")).await;
            }
        }
        let instance = flatbed_operations::write::batch::instance_of(&db.inner, "db").await.unwrap();
        let ids = [id.clone()];
        let mut compact = Compact::new(&db.inner, &instance, &ids, None);
        let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
        compact.attempt(&trx, FIRST).await.unwrap();
        for generation in 70..140 {
            let line: Vec<_> = (1..=generation).rev().map(|at| format!("{at}-a")).collect();
            replicate(&db, &id, &line.join(" ")).await;
        }
        assert!(trx.commit().await.is_err(), "an edit was committed in between");
        assert_clean(&db).await;
        // Committed with an unknown result.
        store.attempt(&mut compact, FIRST, true).await.unwrap();
        store.attempt(&mut compact, AFTER_UNKNOWN, true).await.unwrap();
        assert_clean(&db).await;
        assert_eq!(db.info().await.unwrap().superseded_size_bytes, 0);
    }
}

/// Settings change and other clients build on the edit before the second attempt finds out that the first was
/// committed.
#[tokio::test]
async fn an_edit_is_made_once_whatever_was_written_since() {
    let store = Store::new().await;
    let db = store.db();
    for (id, revs_limit) in [("long", 1_000), ("short", 1)] {
        db.set_revs_limit(1_000).await.unwrap();
        let edit = |parent: Option<RevId>, text: &'static [u8]| {
            let body = parse(text, &Limits::default()).unwrap();
            Edit { expiry: None, id: id.into(), parent, history: None, deleted: false, attachments: Vec::new(), body }
        };
        let first = db.update(&edit(None, b"{}")).await.unwrap().rev;
        let instance = flatbed_operations::write::batch::instance_of(&db.inner, "db").await.unwrap();
        let edits = [edit(Some(first), br#"{"mine":1}"#)];
        let mut batches =
            flatbed_operations::write::batch::prepare(&db.handle, &instance, &edits, &[0]).await.unwrap().batches;
        let mut items = batches.pop().unwrap();
        let work = Work::new(&db.inner);
        let mut write = WriteBatch {
            inner: &db.inner,
            instance: &instance,
            edits: &edits,
            items: &mut items,
            attempts: 0,
            work: &work,
            preparations: Default::default(),
            is_shared: false,
        };
        let committed = store.attempt(&mut write, FIRST, true).await.unwrap().unwrap();
        let [(0, Ok(mine))] = &committed[..] else { panic!("{committed:?}") };
        db.set_revs_limit(revs_limit).await.unwrap();
        let theirs = db.update(&edit(Some(mine.rev.clone()), br#"{"theirs":1}"#)).await.unwrap();
        let again = store.attempt(&mut write, AFTER_UNKNOWN, true).await.unwrap().expect("the same database");
        assert!(matches!(&again[..], [(0, Ok(found))] if found == mine), "{id}: {again:?}");
        let shown = db.get(id, &crate::GetOptions::default()).await.unwrap();
        assert_eq!((shown.rev, shown.body), (theirs.rev, br#""theirs":1"#.to_vec()));
        assert_clean(&db).await;
    }
}

/// A revision that others were built on is in the tree before its body is.
#[tokio::test]
async fn a_body_that_comes_after_its_child_is_there_once_it_is_acknowledged() {
    let store = Store::new().await;
    let db = store.db();
    for (id, child_comes_first) in [("late", true), ("overtaken", false)] {
        if child_comes_first {
            replicate(&db, id, "3-c 2-b 1-a").await;
        }
        let body = parse(br#"{"mine":1}"#, &Limits::default()).unwrap();
        let history = Some(path("2-b 1-a"));
        let edits = [Edit {
            expiry: None,
            id: id.into(),
            parent: None,
            history,
            deleted: false,
            attachments: Vec::new(),
            body,
        }];
        let instance = flatbed_operations::write::batch::instance_of(&db.inner, "db").await.unwrap();
        let mut batches =
            flatbed_operations::write::batch::prepare(&db.handle, &instance, &edits, &[0]).await.unwrap().batches;
        let mut items = batches.pop().unwrap();
        let work = Work::new(&db.inner);
        let mut write = WriteBatch {
            inner: &db.inner,
            instance: &instance,
            edits: &edits,
            items: &mut items,
            attempts: 0,
            work: &work,
            preparations: Default::default(),
            is_shared: false,
        };
        store.attempt(&mut write, FIRST, false).await.unwrap().unwrap();
        if !child_comes_first {
            replicate(&db, id, "3-c 2-b 1-a").await;
        }
        for attempt in [AFTER_UNKNOWN, LATER] {
            let written = store.attempt(&mut write, attempt, true).await.unwrap().expect("the same database");
            assert!(matches!(&written[..], [(0, Ok(_))]), "{id}: {written:?}");
            let options = crate::GetOptions { rev: path("2-b").pop(), ..crate::GetOptions::default() };
            let shown = db.get(id, &options).await.expect("it was acknowledged");
            assert_eq!(shown.body, br#""mine":1"#.to_vec(), "{id}");
        }
        assert_clean(&db).await;
    }
}

/// Documents that others write all the time: the more attempts fail, the smaller the batches become.
#[tokio::test]
async fn a_batch_that_fails_again_and_again_becomes_smaller() {
    let store = Store::new().await;
    let db = store.db();
    let ids: Vec<String> = (0..40).map(|number| format!("d{number}")).collect();
    let edit = |id: &String| {
        let body = parse(b"{}", &Limits::default()).unwrap();
        Edit {
            expiry: None,
            id: id.clone().into(),
            parent: None,
            history: None,
            deleted: false,
            attachments: Vec::new(),
            body,
        }
    };
    let edits: Vec<_> = ids.iter().map(edit).collect();
    let instance = flatbed_operations::write::batch::instance_of(&db.inner, "db").await.unwrap();
    let all: Vec<usize> = (0..edits.len()).collect();
    let mut batches =
        flatbed_operations::write::batch::prepare(&db.handle, &instance, &edits, &all).await.unwrap().batches;
    let mut items = batches.pop().unwrap();
    let work = Work::new(&db.inner);
    let mut write = WriteBatch {
        inner: &db.inner,
        instance: &instance,
        edits: &edits,
        items: &mut items,
        attempts: 0,
        work: &work,
        preparations: Default::default(),
        is_shared: false,
    };
    let mut tried = Vec::new();
    for _ in 0..10 {
        tried.push(store.attempt(&mut write, FIRST, false).await.unwrap().unwrap().len());
    }
    assert_eq!(tried, [40, 40, 40, 40, 40, 20, 10, 5, 2, 1]);
    // The writes of a complete attempt are not repeated by a small one.
    write.attempts = 0;
    let written = store.attempt(&mut write, FIRST, true).await.unwrap().unwrap();
    write.attempts = 100;
    let again = store.attempt(&mut write, AFTER_UNKNOWN, true).await.unwrap().unwrap();
    assert!(matches!((&again[..], &written[0]), ([(_, Ok(again))], (_, Ok(first))) if again == first));
    assert_clean(&db).await;
}
