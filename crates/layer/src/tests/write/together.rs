//! Tests of `write::batch::together` with a whole layer.
#![cfg(test)]

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use flatbed_clock::{Clock, ManualClock};
use flatbed_databases::document::edit::Edit;
use flatbed_flatten::json::{Limits, parse};
use flatbed_operations::index::prepare::Preparations;
use flatbed_operations::lanes::Lanes;
use flatbed_operations::write::batch::WriteBatch;
use flatbed_operations::write::batch::together::*;
use flatbed_operations::write::work::Work;
use flatbed_store::error::{Error, Refusal, Result};
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use flatbed_testkit::{Storage, soon, until, within};
use futures_util::future::{BoxFuture, join, poll_immediate};

use crate::handle::Database;
use crate::tests::fenced::layer_with;
use crate::{Authority, Document, GetOptions, Judge, Judgement, Layer, LayerOptions, ProposedWrite, Rule, Verdict};

fn edit(id: &str) -> Edit<'_> {
    let body = parse(br#"{"a":1}"#, &Limits::default()).unwrap();
    Edit { expiry: None, id: id.into(), parent: None, history: None, deleted: false, attachments: Vec::new(), body }
}

/// Opens a layer whose lanes run four transactions of any duration.
async fn narrow(clock: Clock, judge: Option<Arc<dyn Judge>>) -> (Layer, Authority, Storage) {
    layer_with(LayerOptions { single_writes_at_once: Some(4), clock, ..LayerOptions::default() }, judge).await
}

/// Enters transactions until the lane is full.
fn fill(db: &Database) -> Vec<Arc<str>> {
    let others = (0..).map(|at| Arc::from(format!("other{at}")));
    others.take_while(|id| db.inner.state::<Lanes>().enter(&db.name, id)).collect()
}

#[tokio::test]
async fn a_task_that_panics_lets_each_of_its_writes_be_made_alone_and_once() {
    let (layer, authority, _storage) = narrow(Clock::system(), None).await;
    let db = layer.database("db", authority.for_job("test"));
    db.update(&edit("names")).await.unwrap();
    for is_committed in [false, true] {
        let others = fill(&db);
        let ids = ["one", "two"].map(|id| format!("{id} {is_committed}"));
        let edits = [edit(&ids[0]), edit(&ids[1])];
        let mut writes = pin!(join(db.update(&edits[0]), db.update(&edits[1])));
        assert!(poll_immediate(&mut writes).await.is_none(), "the lane is full");
        db.inner.state::<Lanes>().end(&db.name, &others, Duration::ZERO, Vec::new());
        let waiting = db.inner.state::<Lanes>().next(&db.name, true).expect("both writes wait");
        let documents = waiting.iter().map(|waiting| Arc::clone(&waiting.id)).collect();
        let (turn, mut group) = (Turn::new(&db.inner, &db.name, documents), Group::new(waiting));
        assert_eq!(group.items.len(), 2);
        if is_committed {
            let (inner, instance) = (&*db.inner, Arc::clone(&group.seats[0].instance));
            let (edits, items, work) = (&group.edits[..], &mut group.items, &Work::new(inner));
            let (instance, preparations) = (&*instance, Preparations::default());
            let batch = WriteBatch { inner, instance, edits, items, attempts: 0, work, preparations, is_shared: true };
            let trx = Transaction::begin(&inner.db, &inner.metrics).unwrap();
            let went = SharedTransaction { batch, attempts: 0 }.attempt(&trx, Attempt::default()).await.unwrap();
            assert!(matches!(went, GroupOutcome::Written(outcomes) if outcomes.len() == 2));
            trx.commit().await.unwrap();
        }
        drop((turn, group));
        let written = writes.await;
        for (id, written) in ids.iter().zip([written.0, written.1]) {
            let options = GetOptions { revs: true, ..GetOptions::default() };
            let found = db.get(id, &options).await.unwrap();
            assert_eq!((found.rev, found.revisions.unwrap().len()), (written.unwrap().rev, 1));
        }
    }
    assert!(crate::check::check_database(&db, |_| {}).await.unwrap().is_clean());
}

/// In a shared transaction only applied edits conflict. A refused edit of a contended document would delay all
/// others.
#[tokio::test]
async fn who_is_refused_holds_up_nobody() {
    if !flatbed_store::waits::are_exact() {
        // With short pages the first poll of a write may end before the write waits in its lane.
        return;
    }
    let (layer, authority, _storage) = narrow(Clock::system(), None).await;
    let db = layer.database("db", authority.for_job("test"));
    let mut hot = db.update(&edit("hot")).await.unwrap().rev;
    let nobodys: flatbed_revtree::RevId = "1-967a00dff5e02add41819138abb3284d".parse().unwrap();
    for is_made in [false, true] {
        let others = fill(&db);
        let parent = if is_made { hot.clone() } else { nobodys.clone() };
        let (one, two) = (Edit { parent: Some(parent), ..edit("hot") }, edit(if is_made { "a" } else { "b" }));
        let mut writes = pin!(join(db.update(&one), db.update(&two)));
        assert!(poll_immediate(&mut writes).await.is_none(), "the lane is full");
        db.inner.state::<Lanes>().end(&db.name, &others, Duration::ZERO, Vec::new());
        let waiting = db.inner.state::<Lanes>().next(&db.name, true).expect("both writes wait");
        let documents = waiting.iter().map(|waiting| Arc::clone(&waiting.id)).collect();
        let (turn, mut group) = (Turn::new(&db.inner, &db.name, documents), Group::new(waiting));
        let (inner, instance) = (&*db.inner, Arc::clone(&group.seats[0].instance));
        let (edits, items, work) = (&group.edits[..], &mut group.items, &Work::new(inner));
        let (instance, preparations) = (&*instance, Preparations::default());
        let batch = WriteBatch { inner, instance, edits, items, attempts: 0, work, preparations, is_shared: true };
        let trx = Transaction::begin(&inner.db, &inner.metrics).unwrap();
        let went = SharedTransaction { batch, attempts: 0 }.attempt(&trx, Attempt::default()).await.unwrap();
        let GroupOutcome::Written(outcomes) = went else { panic!("the database was replaced") };
        assert!(outcomes[0].1.is_ok() == is_made && outcomes[1].1.is_ok());
        // Before the commit another write of the document, outside of lanes.
        let other = Edit { parent: Some(hot.clone()), deleted: is_made, ..edit("hot") };
        hot = db.bulk_update(std::slice::from_ref(&other)).await.unwrap().remove(0).unwrap().rev;
        assert_eq!(trx.commit().await.is_ok(), !is_made);
        drop((turn, group));
        let (one, two) = writes.await;
        assert!(matches!(one, Err(Error::Refused(Refusal::Conflict))), "{one:?}");
        assert_eq!(two.unwrap().rev.generation(), 1);
    }
    assert!(crate::check::check_database(&db, |_| {}).await.unwrap().is_clean());
}

#[tokio::test]
async fn nobody_waits_for_ever() {
    let manual = ManualClock::new();
    let (layer, authority, _storage) = narrow(manual.clock(), None).await;
    let db = layer.database("db", authority.for_job("test"));
    let others = fill(&db);
    assert!(others.len() > 1);
    let one = edit("d");
    let mut write = pin!(db.update(&one));
    let waits = async || db.inner.state::<Lanes>().count_waiting("db") == 1;
    tokio::select! {
        () = until("it waits", waits) => {}
        written = &mut write => panic!("it did not wait: {written:?}"),
    }
    manual.advance(WAIT_MAX - Duration::from_millis(1));
    assert!(within(Duration::from_millis(60), &mut write).await.is_none(), "it still waits");
    manual.advance(Duration::from_millis(1));
    soon(write).await.unwrap();
    others
        .iter()
        .for_each(|id| db.inner.state::<Lanes>().end(&db.name, std::slice::from_ref(id), Duration::ZERO, Vec::new()));
    assert!(db.inner.state::<Lanes>().next(&db.name, true).is_none());
    // The lane has room again.
    assert!(db.inner.state::<Lanes>().enter(&db.name, &"e".into()));
    db.inner.state::<Lanes>().end(&db.name, &["e".into()], Duration::ZERO, Vec::new());
    db.update(&edit("e")).await.unwrap();
}

#[tokio::test]
async fn nor_does_who_comes_back_to_wait() {
    let manual = ManualClock::new();
    let (layer, authority, _storage) = narrow(manual.clock(), None).await;
    let db = layer.database("db", authority.for_job("test"));
    db.update(&edit("names")).await.unwrap();
    let others = fill(&db);
    let one = edit("one");
    let mut write = pin!(db.update(&one));
    assert!(poll_immediate(&mut write).await.is_none(), "the lane is full");
    db.inner.state::<Lanes>().end(&db.name, &others, Duration::ZERO, Vec::new());
    let mut waiting = db.inner.state::<Lanes>().next(&db.name, true).expect("the write waits");
    let group = Group::new(std::mem::take(&mut waiting));
    // Its transaction takes longer than the time limit and does not reach it.
    manual.advance(WAIT_MAX * 3 / 2);
    assert!(within(Duration::from_millis(60), &mut write).await.is_none(), "its transaction still runs");
    let others = fill(&db);
    let (_, again) = group.answer(|_, _| None);
    db.inner.state::<Lanes>().end(&db.name, &[Arc::from("one")], Duration::ZERO, again);
    manual.advance(WAIT_MAX);
    soon(write).await.expect("the write goes alone");
    db.inner.state::<Lanes>().end(&db.name, &others, Duration::ZERO, Vec::new());
}

/// Refuses edits while the database has a `_security`.
struct Closed;

impl Judge for Closed {
    fn load(&self, _: &Document, _: &str) -> Arc<dyn Rule> {
        Arc::new(Closed)
    }

    fn caller(&self) -> u64 {
        0
    }
}

impl Rule for Closed {
    fn judge<'a>(&'a self, write: ProposedWrite<'a>) -> BoxFuture<'a, Judgement> {
        let is_closed = write.security.is_some();
        let by = write.user.name.clone().unwrap_or_default();
        Box::pin(async move { if is_closed { Err(Refusal::Forbidden(by)) } else { Ok(Verdict::default()) } })
    }
}

#[tokio::test]
async fn what_waits_is_judged_by_what_holds_when_it_is_written() {
    let (layer, authority, _storage) = narrow(Clock::system(), Some(Arc::new(Closed))).await;
    let server = layer.database("db", authority.for_job("test"));
    let body = parse(br#"{"validate_doc_update":"function () {}"}"#, &Limits::default()).unwrap();
    server.update(&Edit { body, ..edit("_design/v") }).await.unwrap();
    let [anna, bob] = ["anna", "bob"].map(|name| layer.database("db", crate::tests::fenced::user(name)));
    anna.update(&edit("names")).await.unwrap();
    let others = fill(&server);
    let (one, two) = (edit("one"), edit("two"));
    let writes = tokio::spawn({
        let (anna, bob, server) = (anna.clone(), bob.clone(), server.clone());
        let (one, two, three) = (edit("one"), edit("two"), edit("three"));
        async move {
            let both = join(anna.update(&one), bob.update(&two));
            join(both, server.update(&three)).await
        }
    });
    until("all three wait", async || server.inner.state::<Lanes>().count_waiting("db") == 3).await;
    server.set_security(b"{}").await.unwrap();
    others
        .iter()
        .for_each(|id| server.inner.state::<Lanes>().end("db", std::slice::from_ref(id), Duration::ZERO, Vec::new()));
    begin_next(&server.inner, &server.name, true);
    let ((by_anna, by_bob), by_server) = writes.await.unwrap();
    let refused = |done: Result<_>| match done {
        Err(Error::Refused(Refusal::Forbidden(by))) => by,
        done => panic!("{done:?}"),
    };
    assert_eq!((refused(by_anna.map(|_| ())), refused(by_bob.map(|_| ()))), ("anna".into(), "bob".into()));
    by_server.unwrap();
    for edit in [&one, &two] {
        assert!(server.get(&edit.id, &GetOptions::default()).await.is_err());
    }
}
