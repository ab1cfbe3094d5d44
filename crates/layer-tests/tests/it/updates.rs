//! The updates of all databases: creations, deletions, changes, in the order of commits.

use std::collections::HashMap;
use std::time::Duration;

use crate::support::{Layer, Random, Store, assert_clean, create, put, soon};
use flatbed_clock::Clock;
use flatbed_layer::renew::renew;
use flatbed_layer::{
    CreateOptions, DatabaseUpdate, DatabaseUpdateKind, DatabaseUpdates, DatabaseUpdatesQuery, Seq, Since, WaitOutcome,
};
use flatbed_testkit::until;
use futures_util::future::join_all;

use DatabaseUpdateKind::{Created, Deleted, Updated};

fn follow(layer: &Layer, since: Since) -> DatabaseUpdates {
    layer.database_updates(DatabaseUpdatesQuery { since, ..DatabaseUpdatesQuery::default() })
}

/// Reads all updates, and the position of their end.
async fn all(layer: &Layer, since: Since) -> (Vec<DatabaseUpdate>, Seq) {
    let mut updates = follow(layer, since);
    let mut rows = Vec::new();
    loop {
        let page = updates.next_page().await.expect("a page");
        rows.extend(page.rows);
        if page.at_end {
            return (rows, page.last_seq);
        }
    }
}

fn told(rows: &[DatabaseUpdate]) -> Vec<(&str, DatabaseUpdateKind)> {
    rows.iter().map(|row| (&*row.name, row.kind)).collect()
}

/// Reads rows until `enough` returns true for them.
async fn read_until(
    updates: &mut DatabaseUpdates,
    rows: &mut Vec<DatabaseUpdate>,
    enough: impl Fn(&[DatabaseUpdate]) -> bool,
) {
    loop {
        let page = soon(updates.next_page()).await.expect("a page");
        rows.extend(page.rows);
        if enough(rows) {
            return;
        }
        if page.at_end {
            assert_eq!(soon(updates.wait()).await, WaitOutcome::MayHaveChanged);
        }
    }
}

#[tokio::test]
async fn changes_of_a_database_are_one_row() {
    let store = Store::new();
    let layer = store.layer().await;
    assert_eq!(all(&layer, Since::Beginning).await.0, []);
    let (a, b) = (create(&layer, "a", None).await, create(&layer, "b", None).await);
    for n in 0..20 {
        put(&a, &n.to_string(), None, "{}").await.unwrap();
    }
    put(&b, "x", None, "{}").await.unwrap();
    let (rows, last) = all(&layer, Since::Beginning).await;
    assert_eq!(told(&rows), [("a", Created), ("b", Created), ("a", Updated), ("b", Updated)]);
    assert_eq!(rows.last().map(|row| row.seq), Some(last));
    assert_eq!(layer.newest_database_update().await.unwrap(), last);
    // Each row's sequence continues with the rows behind it.
    for (at, row) in rows.iter().enumerate() {
        assert_eq!(all(&layer, Since::after(row.seq)).await, (rows[at + 1..].to_vec(), last));
    }
    assert_eq!(all(&layer, Since::Now).await, (Vec::new(), last));
    put(&a, "again", None, "{}").await.unwrap();
    let (after, end) = all(&layer, Since::after(last)).await;
    assert_eq!(told(&after), [("a", Updated)]);
    assert!(end > last);
    layer.delete_database("a").await.unwrap();
    let (rows, _) = all(&layer, Since::Beginning).await;
    assert_eq!(told(&rows), [("a", Created), ("b", Created), ("b", Updated), ("a", Deleted)]);
    assert_clean(&layer, &b).await;
}

#[tokio::test]
async fn pages_and_the_other_direction() {
    let store = Store::new();
    let layer = store.layer().await;
    // More than a page of both kinds together.
    let names: Vec<_> = (0..550).map(|n| format!("db{n}")).collect();
    for some in names.chunks(110) {
        let created = join_all(some.iter().map(|name| async {
            let options = CreateOptions::default();
            layer.create_database(name, &options).await.expect("created");
            put(&layer.database(name), "x", None, "{}").await.expect("written");
        }));
        created.await;
    }
    let (rows, last) = all(&layer, Since::Beginning).await;
    assert_eq!(rows.len(), 1_100);
    assert!(rows.is_sorted_by(|a, b| a.seq < b.seq));
    for since in [Since::Beginning, Since::after(rows[99].seq)] {
        let query = DatabaseUpdatesQuery { since, descending: true, limit: None };
        let mut updates = layer.database_updates(query);
        let mut down = Vec::new();
        loop {
            let page = updates.next_page().await.unwrap();
            down.extend(page.rows);
            if page.at_end {
                break;
            }
        }
        down.reverse();
        assert_eq!(down, rows[if since == Since::Beginning { 0 } else { 100 }..]);
    }
    let limited = |since, descending, limit| {
        let mut updates = layer.database_updates(DatabaseUpdatesQuery { since, descending, limit: Some(limit) });
        async move { updates.next_page().await.expect("a page") }
    };
    let page = limited(Since::Beginning, false, 7).await;
    assert_eq!((page.rows.as_slice(), page.at_end, page.last_seq), (&rows[..7], true, rows[6].seq));
    let page = limited(Since::after(page.last_seq), false, 2_000).await;
    assert_eq!(page.rows.as_slice(), &rows[7..1_007]);
    let page = limited(Since::Beginning, true, 2).await;
    assert_eq!(page.rows, [rows[1_099].clone(), rows[1_098].clone()]);
    let page = limited(Since::after(rows[3].seq), false, 0).await;
    assert_eq!((page.rows.len(), page.at_end, page.last_seq), (0, true, rows[3].seq));
    assert_eq!(limited(Since::Now, true, 5).await.last_seq, last);
}

/// Two layers change four databases at random, with followers at both.
async fn random_work(store: &Store, steps: usize) {
    let (here, there) = (store.layer().await, store.layer().await);
    let mut followers = Vec::new();
    for layer in [&here, &there, &there] {
        let mut updates = follow(layer, Since::Beginning);
        followers.push(tokio::spawn(async move {
            let mut rows = Vec::new();
            let last = |rows: &[DatabaseUpdate]| rows.iter().any(|row| &*row.name == "end" && row.kind == Deleted);
            read_until(&mut updates, &mut rows, last).await;
            rows
        }));
    }
    let workers = (0..4).map(|worker| {
        let (here, there, name) = (here.clone(), there.clone(), format!("db{worker}"));
        tokio::spawn(async move {
            let (mut done, mut is_there, mut random) = (Vec::new(), false, Random(worker as u64 + 1));
            for step in 0..steps {
                let layer = if random.one_in(2) { &here } else { &there };
                if !is_there {
                    layer.create_database(&name, &CreateOptions::default()).await.expect("created");
                    done.push(Created);
                } else if random.one_in(5) {
                    layer.delete_database(&name).await.expect("deleted");
                    done.push(Deleted);
                } else {
                    put(&layer.database(&name), &step.to_string(), None, "{}").await.expect("written");
                    done.push(Updated);
                    continue;
                }
                is_there = !is_there;
            }
            (name, done)
        })
    });
    let mut done = HashMap::new();
    for worker in workers.collect::<Vec<_>>() {
        let (name, what) = worker.await.expect("a worker");
        done.insert(name, what);
    }
    create(&here, "end", None).await;
    there.delete_database("end").await.unwrap();
    for follower in followers {
        let rows = soon(follower).await.expect("a follower");
        assert!(rows.is_sorted_by(|a, b| a.seq < b.seq), "{rows:?}");
        for (name, done) in &done {
            let seen: Vec<_> = rows.iter().filter(|row| *row.name == **name).map(|row| row.kind).collect();
            let without_updates =
                |kinds: &[DatabaseUpdateKind]| kinds.iter().copied().filter(|k| *k != Updated).collect::<Vec<_>>();
            assert_eq!(without_updates(&seen), without_updates(done), "{name}");
            // Changes are sent together, and none before its database's creation or after the last change.
            let tail =
                |kinds: &[DatabaseUpdateKind]| kinds.rsplit(|kind| *kind != Updated).next().map_or(0, <[_]>::len);
            assert_eq!(tail(&seen) > 0, tail(done) > 0, "{name}: {seen:?}");
            assert!(seen.len() <= done.len());
        }
    }
    let db = create(&here, "checked", None).await;
    assert_clean(&there, &db).await;
    // No superseded entries are left, and two concurrent sweeps do no harm.
    let (one, two) = tokio::join!(
        here.sweep_database_updates(Duration::from_secs(3_600)),
        there.sweep_database_updates(Duration::from_secs(3_600))
    );
    assert_eq!((one.unwrap(), two.unwrap()), (0, 0), "followers may not have seen them yet");
    let (one, two) =
        tokio::join!(here.sweep_database_updates(Duration::ZERO), there.sweep_database_updates(Duration::ZERO));
    assert!(one.unwrap() + two.unwrap() > 0);
    let (rows, _) = all(&here, Since::Beginning).await;
    for (name, done) in &done {
        let seen: Vec<_> = rows.iter().filter(|row| *row.name == **name).map(|row| row.kind).collect();
        let last = done.iter().rfind(|kind| **kind != Updated).copied();
        let has_changed = done.last() == Some(&Updated);
        let expected: Vec<_> = last.into_iter().chain(has_changed.then_some(Updated)).collect();
        assert_eq!(seen, expected, "{name}");
    }
    assert_clean(&here, &db).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_at_two_servers_see_everything_in_order() {
    random_work(&Store::new(), 60).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn and_so_they_do_under_faults() {
    for seed in [3, 17] {
        let Some(store) = Store::with_faults(0.05, seed) else { return };
        random_work(&store, 25).await;
    }
}

/// Databases of one writer, written one after the other in rounds.
const CHAIN: usize = 6;

/// Chains of databases whose names lie in different buckets, each written by two servers in turn, and so in two shards
/// if it has shards. A listing ends at one read version: if it has a change but not the one that was acknowledged
/// before it, the other database has changed again behind the listing's end, and the next listing has it.
async fn chains(store: &Store, rounds: usize) {
    let (here, there) = (store.layer().await, store.layer().await);
    let chains: Vec<Vec<String>> =
        (0..8).map(|chain| (0..CHAIN).map(|link| format!("chain{chain}-{link}")).collect()).collect();
    for name in chains.iter().flatten() {
        create(&here, name, None).await;
    }
    let begin = here.newest_database_update().await.unwrap();
    let writers: Vec<_> = chains
        .iter()
        .cloned()
        .enumerate()
        .map(|(at, names)| {
            let layers = [here.clone(), there.clone()];
            tokio::spawn(async move {
                for round in 0..rounds {
                    let layer = &layers[(at + round) % 2];
                    for name in &names {
                        put(&layer.database(name), &round.to_string(), None, "{}").await.expect("written");
                    }
                }
            })
        })
        .collect();
    let follower = {
        let mut updates = follow(&there, Since::after(begin));
        tokio::spawn(async move {
            let mut rows = Vec::new();
            read_until(&mut updates, &mut rows, |rows| rows.iter().any(|row| &*row.name == "end")).await;
            rows
        })
    };
    let (mut cursor, mut rows) = (begin, Vec::new());
    let (mut newest, mut owed) = (HashMap::<String, Seq>::new(), HashMap::<String, Seq>::new());
    let mut listings = 0;
    loop {
        let is_over = writers.iter().all(tokio::task::JoinHandle::is_finished);
        let (some, end) = all(&there, Since::after(cursor)).await;
        assert!(some.iter().all(|row| cursor < row.seq && row.seq <= end) && some.is_sorted_by(|a, b| a.seq < b.seq));
        let shown: HashMap<&str, Seq> = some.iter().map(|row| (&*row.name, row.seq)).collect();
        assert_eq!(shown.len(), some.len(), "a database twice");
        for (name, since) in owed.drain() {
            assert!(shown.contains_key(&*name), "{name} is not shown, and changed behind {since}");
        }
        let before = newest.clone();
        newest.extend(some.iter().map(|row| (row.name.to_string(), row.seq)));
        for links in chains.iter().flat_map(|names| names.windows(2)) {
            // The second change was in an earlier listing, so the first database was written at least once.
            let (first, second) = (newest.get(&links[0]), before.get(&links[1]));
            if shown.contains_key(&*links[1]) && first <= second {
                owed.insert(links[0].clone(), end);
            }
        }
        rows.extend(some);
        cursor = end;
        listings += 1;
        if is_over && owed.is_empty() {
            break;
        }
    }
    assert!(listings > 2);
    for writer in writers {
        writer.await.expect("a writer");
    }
    create(&here, "end", None).await;
    let followed = soon(follower).await.expect("a follower");
    assert!(followed.is_sorted_by(|a, b| a.seq < b.seq));
    // Whatever was overwritten in between, the last change is there, at the same position.
    let last = |rows: &[DatabaseUpdate], name: &str| rows.iter().rfind(|row| *row.name == *name).map(|row| row.seq);
    let (listed, _) = all(&here, Since::after(begin)).await;
    for name in chains.iter().flatten() {
        let at = last(&listed, name);
        assert!(at.is_some() && last(&rows, name) == at && last(&followed, name) == at, "{name}");
    }
    assert_eq!(listed.len(), 8 * CHAIN + 1);
    assert_clean(&there, &there.database("chain0-0")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn listings_are_cut_off_at_one_read_version() {
    chains(&Store::new(), 12).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn and_so_they_are_under_faults() {
    let Some(store) = Store::with_faults(0.05, 5) else { return };
    chains(&store, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn and_those_of_databases_with_shards() {
    chains(&Store::new().sharded(4), 8).await;
    let Some(store) = Store::with_faults(0.05, 9) else { return };
    chains(&store.sharded(4), 4).await;
}

/// Only the watches that have fired are set again, and at once.
#[tokio::test(flavor = "multi_thread")]
async fn each_bucket_is_watched_until_it_moves() {
    let store = Store::new();
    let (writer, reader) = (store.layer().await, store.layer().await);
    let (a, b) = (create(&writer, "a", None).await, create(&writer, "b", None).await);
    let mut updates = follow(&reader, Since::Now);
    assert!(updates.next_page().await.unwrap().at_end);
    assert_eq!(updates.wait().await, WaitOutcome::MayHaveChanged);
    assert!(updates.next_page().await.unwrap().rows.is_empty());
    for n in 0..20 {
        until("watches are set", async || reader.counted("flatbed_watches_set") >= 256 + n).await;
        let db = if n % 3 == 0 { &a } else { &b };
        put(db, &n.to_string(), None, "{}").await.unwrap();
        let mut rows = Vec::new();
        read_until(&mut updates, &mut rows, |rows| !rows.is_empty()).await;
        assert_eq!(told(&rows), [(if n % 3 == 0 { "a" } else { "b" }, Updated)]);
    }
    assert_eq!(reader.counted("flatbed_safety_rereads"), 0);
    assert!((256 + 19..=256 + 20).contains(&reader.counted("flatbed_watches_set")));
}

#[tokio::test]
async fn a_follower_that_falls_behind_reads_for_itself() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    let (mut slow, mut fast) = (follow(&layer, Since::Now), follow(&layer, Since::Now));
    for updates in [&mut slow, &mut fast] {
        assert_eq!(updates.next_page().await.unwrap().rows, []);
        assert_eq!(updates.wait().await, WaitOutcome::MayHaveChanged);
    }
    let mut rows = Vec::new();
    for n in 0..100 {
        put(&db, &n.to_string(), None, "{}").await.unwrap();
        let seen = rows.len();
        read_until(&mut fast, &mut rows, |rows| rows.len() > seen).await;
    }
    assert_eq!(rows.len(), 100);
    let mut late = Vec::new();
    read_until(&mut slow, &mut late, |rows| !rows.is_empty()).await;
    assert_eq!(late, rows[99..]);
    put(&db, "last", None, "{}").await.unwrap();
    read_until(&mut slow, &mut late, |rows| rows.len() > 1).await;
    assert_eq!(told(&late), [("db", Updated), ("db", Updated)]);
}

#[tokio::test]
async fn a_restored_copy_goes_on() {
    let store = Store::new();
    let layer = store.layer().await;
    let db = create(&layer, "db", None).await;
    put(&db, "x", None, "{}").await.unwrap();
    let (before, seen) = all(&layer, Since::Beginning).await;
    let first = before[0].seq;
    renew(&store.fdb, &store.root, &Clock::system()).await.unwrap();
    let (after, last) = all(&layer, Since::after(seen)).await;
    assert_eq!(after, []);
    assert_eq!(all(&layer, Since::after(first)).await.0, before[1..]);
    put(&db, "y", None, "{}").await.unwrap();
    for since in [seen, last] {
        assert_eq!(told(&all(&layer, Since::after(since)).await.0), [("db", Updated)]);
    }
    let unknown = Seq::new(0, [1; 16]);
    assert_eq!(all(&layer, Since::after(unknown)).await.0.len(), 2, "another epoch means the beginning");
    assert_clean(&layer, &layer.database("db")).await;
}
