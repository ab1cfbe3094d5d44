//! Followers of a database's changes: shared rows, of which none may be missed.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{Layer, Store, all_changes, create, delete, pages_are_full, put, soon};
use flatbed_layer::{
    ChangeRow, Changes, ChangesQuery, Database, Documents, Extras, FollowOutcome, LayerOptions, RevId, Seq, Since,
};
use flatbed_testkit::{pass, until};
use tokio::sync::watch;

fn metric(layer: &Layer, name: &str) -> u64 {
    flatbed_metrics::total(&layer.metrics(), &format!("flatbed_{name}"))
}

/// Returns the next rows of a feed, from a page or shared; at least one.
async fn next(changes: &mut Changes, is_following: &mut bool) -> Vec<ChangeRow> {
    loop {
        let rows = if *is_following {
            match changes.follow().await {
                FollowOutcome::Rows(rows) => rows.iter().map(|row| changes.shown(row)).collect(),
                FollowOutcome::ReadOn => {
                    *is_following = false;
                    Vec::new()
                }
                FollowOutcome::Shutdown => return Vec::new(),
            }
        } else {
            let page = changes.next_page().await.expect("a page");
            *is_following = page.at_end;
            page.rows
        };
        if !rows.is_empty() {
            return rows;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_share_what_is_read() {
    const FOLLOWERS: usize = 50;
    let store = Store::new();
    let (reader, writer) = (store.layer().await, store.layer().await);
    let db = create(&writer, "db", None).await;
    put(&db, "before", None, "{}").await.unwrap();
    let at_reader = reader.database("db");
    let ready = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for number in 0..FOLLOWERS {
        let documents = if number % 2 == 0 { Documents::Yes } else { Documents::No };
        let query = ChangesQuery { extras: Extras { leaves: true, documents }, ..ChangesQuery::default() };
        let (mut changes, ready) = (at_reader.changes(query), ready.clone());
        tasks.push(tokio::spawn(async move {
            let (mut is_following, mut rows) = (false, next(&mut changes, &mut false).await);
            ready.fetch_add(1, Ordering::SeqCst);
            while rows.len() < 11 {
                rows.extend(next(&mut changes, &mut is_following).await);
            }
            rows
        }));
    }
    let are_ready = || ready.load(Ordering::SeqCst) == FOLLOWERS && reader.followers().followers == FOLLOWERS;
    until("all follow", async || are_ready()).await;
    until("all have found what is shared, and wait", async || reader.followers().behind == 0).await;
    let names = ["by_seq_rows", "documents_read", "tail_misses"];
    let before = names.map(|name| metric(&reader, name));
    for number in 0..10 {
        put(&db, &number.to_string(), None, "{\"a\":1}").await.unwrap();
    }
    let expected = all_changes(&db).await;
    for (number, task) in tasks.into_iter().enumerate() {
        let rows = soon(task).await.unwrap();
        let bare: Vec<_> = rows.iter().map(|row| ChangeRow { doc: None, ..row.clone() }).collect();
        assert_eq!(bare, expected);
        assert!(
            rows[1..].iter().all(|row| row.doc.as_ref().is_some_and(|doc| doc.rev == row.rev) == (number % 2 == 0))
        );
    }
    let after = names.map(|name| metric(&reader, name));
    let counted = [after[0] - before[0], after[1] - before[1], after[2] - before[2]];
    assert!(!pages_are_full() || counted == [10, 10, 0], "{counted:?}");
    // A follower whose own page was short is behind the shared rows for a while, and reads.
    let shared = metric(&reader, "tail_rows");
    assert!(!pages_are_full() || shared == 10 * FOLLOWERS as u64, "{shared}");
    until("none is left", async || reader.followers().followers == 0).await;
    assert_eq!(reader.followers().lag, Duration::ZERO);
}

/// The first page of a feed, also if it is shared, has all changes that were acknowledged before, and no purged
/// documents.
#[tokio::test(flavor = "multi_thread")]
async fn a_feed_that_begins_sees_all_that_was_there() {
    let store = Store::new();
    let (reader, writer) = (store.layer().await, store.layer().await);
    let db = create(&writer, "db", None).await;
    let at_reader = reader.database("db");
    let mut follower = at_reader.changes(ChangesQuery::default());
    let following = tokio::spawn(async move {
        let mut is_following = false;
        let mut rows = 0;
        while rows < 30 {
            rows += next(&mut follower, &mut is_following).await.len();
        }
        follower
    });
    until("a watch is set", async || metric(&reader, "watches_set") > 0).await;
    let mut since = at_reader.update_seq().await.unwrap();
    for number in 0..30 {
        let id = number.to_string();
        put(&db, &id, None, "{}").await.unwrap();
        let mut changes = at_reader.changes(ChangesQuery { since: Since::after(since), ..ChangesQuery::default() });
        let page = soon(changes.next_page()).await.unwrap();
        assert_eq!(page.rows.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), [id.as_str()]);
        assert!(page.at_end);
        since = page.last_seq.seq();
        let mut now = at_reader.changes(ChangesQuery { since: Since::Now, ..ChangesQuery::default() });
        assert_eq!(soon(now.next_page()).await.unwrap().last_seq, since);
    }
    let follower = soon(following).await.unwrap();
    assert_eq!((metric(&reader, "tail_rows"), metric(&reader, "tail_misses")), (60, 0), "a feed has read for itself");
    let rev = put(&db, "purged", None, "{}").await.unwrap();
    assert_eq!(db.purge("purged", &[rev]).await.unwrap().len(), 1);
    let mut changes = at_reader.changes(ChangesQuery { since: Since::after(since), ..ChangesQuery::default() });
    assert!(soon(changes.next_page()).await.unwrap().rows.is_empty());
    drop(follower);
}

#[tokio::test]
async fn a_new_setting_moves_no_follower() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let mut changes = db.changes(ChangesQuery::default());
    changes.next_page().await.unwrap();
    let following = tokio::spawn(async move { next(&mut changes, &mut true).await });
    until("a watch is set", async || metric(&layer, "watches_set") > 0).await;
    db.set_revs_limit(7).await.unwrap();
    put(&db, "d", None, "{}").await.unwrap();
    assert_eq!(soon(following).await.unwrap()[0].id, "d");
    assert_eq!(metric(&layer, "tail_rows"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn databases_without_a_watch_are_polled() {
    let store = Store::new();
    let options = LayerOptions { root: store.root.clone(), watches_max: 2, ..LayerOptions::default() };
    let (few, writer) = (Layer::open(store.fdb.clone(), options).await.unwrap(), store.layer().await);
    let mut tasks = Vec::new();
    for number in 0..6 {
        let name = format!("db{number}");
        create(&writer, &name, None).await;
        let mut changes = few.database(&name).changes(ChangesQuery::default());
        tasks.push(tokio::spawn(async move {
            let (mut is_following, mut rows) = (false, 0);
            while rows < 3 {
                rows += next(&mut changes, &mut is_following).await.len();
            }
        }));
    }
    until("all follow", async || few.followers().followers == 6).await;
    for round in 0..3 {
        for number in 0..6 {
            put(&writer.database(&format!("db{number}")), &round.to_string(), None, "{}").await.unwrap();
        }
        pass(Duration::from_millis(20)).await;
    }
    for task in tasks {
        soon(task).await.unwrap();
    }
    assert!(metric(&few, "polls") > 0 && metric(&few, "safety_rereads") == 0);
}

/// The state of a follower.
#[derive(Default)]
struct View {
    last: Option<Seq>,
    documents: BTreeMap<String, (RevId, bool)>,
}

/// Follows up to the last sequence; some followers reconnect after some rows.
async fn follower(database: Database, number: u64, until: watch::Receiver<Option<Seq>>) -> View {
    let mut view = View::default();
    loop {
        let since = view.last.map_or(Since::Beginning, Since::after);
        let with_documents = number.is_multiple_of(3) || number.is_multiple_of(5);
        let documents = if with_documents { Documents::Yes } else { Documents::No };
        let extras = Extras { leaves: number.is_multiple_of(2), documents };
        let query = ChangesQuery { since, extras, ..ChangesQuery::default() };
        let mut changes = database.changes(query);
        let (mut is_following, mut seen) = (false, HashSet::new());
        while !number.is_multiple_of(4) || seen.len() < 20 {
            let rows = tokio::select! {
                rows = next(&mut changes, &mut is_following) => rows,
                () = pass(Duration::from_millis(3 + number)) => {
                    if until.borrow().is_some_and(|until| changes.last_seq() >= Some(until.into())) {
                        return view;
                    }
                    continue;
                }
            };
            for row in rows {
                assert!(view.last.is_none_or(|last| last < row.seq), "went back");
                assert!(seen.insert(row.seq), "came twice");
                if let Some(document) = &row.doc {
                    assert_eq!((&document.rev, document.deleted), (&row.rev, row.deleted));
                }
                view.last = Some(row.seq);
                view.documents.insert(row.id, (row.rev, row.deleted));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_that_come_and_go_miss_nothing() {
    torture(&Store::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_under_faults_miss_nothing() {
    let Some(store) = Store::with_faults(0.05, 77) else { return };
    torture(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_of_a_database_with_shards_miss_nothing() {
    torture(&Store::new().sharded(4)).await;
    let Some(store) = Store::with_faults(0.05, 78) else { return };
    torture(&store.sharded(64)).await;
}

async fn torture(store: &Store) {
    let (one, two) = (store.layer().await, store.layer().await);
    create(&one, "db", None).await;
    let (done, until) = watch::channel(None);
    let at = |number: u64| if number.is_multiple_of(2) { one.database("db") } else { two.database("db") };
    let followers: Vec<_> = (0..24).map(|number| tokio::spawn(follower(at(number), number, until.clone()))).collect();
    let mut writers = Vec::new();
    for number in 0..8_u64 {
        let database = at(number + 1);
        writers.push(tokio::spawn(async move {
            for round in 0..40_u64 {
                let id = format!("d{:02}", (number * 7 + round * 13) % 40);
                let body =
                    if round % 11 == 3 { format!("{{\"large\":\"{}\"}}", "x".repeat(70_000)) } else { "{}".to_owned() };
                let rev = database.get(&id, &Default::default()).await.ok().map(|document| document.rev);
                let _ = match rev {
                    Some(rev) if round % 4 == 0 => delete(&database, &id, &rev).await,
                    rev => put(&database, &id, rev.as_ref(), &body).await,
                };
            }
        }));
    }
    for writer in writers {
        soon(writer).await.unwrap();
    }
    let database = one.database("db");
    let expected: BTreeMap<_, _> =
        all_changes(&database).await.into_iter().map(|row| (row.id, (row.rev, row.deleted))).collect();
    let newest = database.update_seq().await.unwrap();
    done.send_replace(Some(newest));
    for (number, follower) in followers.into_iter().enumerate() {
        let view = soon(follower).await.unwrap();
        assert!(view.last.is_none_or(|last| last <= newest));
        assert_eq!(view.documents, expected, "follower {number}");
    }
    assert!(metric(&one, "tail_rows") > 0);
}
