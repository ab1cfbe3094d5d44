//! Many processes on one storage and many databases, while processes are killed and others start in their places. All of
//! them are tasks of this program. `make torture` runs it with 100 processes and 10,000 databases.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use crate::support::{Layer, Random, Store, put};
use flatbed_layer::{
    CreateOptions, Database, DatabaseUpdatesQuery, Error, GetOptions, Refusal, Result, RevId, Since, WaitOutcome, check,
};
use flatbed_testkit::{Mortal, number, until};
use futures_util::future::join_all;

/// Documents of a process in each database. No other process writes them.
const DOCUMENTS: u64 = 3;

/// The acknowledged revisions by database and document, in the order of their writes.
type Acknowledged = Arc<Mutex<BTreeMap<String, BTreeMap<String, Vec<RevId>>>>>;

#[derive(Debug, Clone, Copy)]
struct Size {
    processes: u64,
    databases: u64,
    /// Writes of each process in each of the rounds. All processes are killed once, between two rounds or within one.
    writes: u64,
    rounds: u64,
}

impl Size {
    fn of_environment() -> Size {
        Size {
            processes: number("FLATBED_TEST_PROCESSES").unwrap_or(10),
            databases: number("FLATBED_TEST_MANY_DATABASES").unwrap_or(60),
            writes: number("FLATBED_TEST_WRITES").unwrap_or(25),
            rounds: 3,
        }
    }
}

fn database_name(number: u64) -> String {
    format!("db{number:05}")
}

async fn winner(db: &Database, id: &str) -> Result<Option<RevId>> {
    match db.get(id, &GetOptions { no_body: true, ..GetOptions::default() }).await {
        Ok(document) => Ok(Some(document.rev)),
        Err(Error::Refused(Refusal::DocumentNotFound(_))) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes a document, and creates its database if it is the first one there.
async fn write(layer: &Layer, name: &str, id: &str, body: &str) -> RevId {
    let db = layer.database(name);
    loop {
        let written = match winner(&db, id).await {
            Ok(parent) => put(&db, id, parent.as_ref(), body).await,
            Err(error) => Err(error),
        };
        match written {
            Ok(rev) => return rev,
            Err(Error::DatabaseNotFound) => match layer.create_database(name, &CreateOptions::default()).await {
                Ok(()) | Err(Error::DatabaseExists) => {}
                Err(error) => panic!("{name}: {error}"),
            },
            Err(error) => panic!("{name}, {id}, of this process alone: {error}"),
        }
    }
}

/// One round of a process.
async fn work(layer: Layer, process: u64, round: u64, size: Size, acknowledged: Acknowledged) {
    let mut random = Random((process * 7_919 + 1) * 31 + round);
    for n in 0..size.writes {
        let (name, document) = (database_name(random.below(size.databases)), random.below(DOCUMENTS));
        let id = format!("p{process}-{document}");
        let rev = write(&layer, &name, &id, &format!(r#"{{"round":{round},"n":{n}}}"#)).await;
        let mut acknowledged = acknowledged.lock().unwrap();
        acknowledged.entry(name).or_default().entry(id).or_default().push(rev);
    }
}

/// Follows the updates of all databases until it has seen each name of `wanted`.
async fn follow(layer: Layer, wanted: tokio::sync::watch::Receiver<Option<BTreeSet<String>>>) -> bool {
    let mut updates = layer.database_updates(DatabaseUpdatesQuery { since: Since::Beginning, ..Default::default() });
    let (mut names, mut last) = (BTreeSet::new(), None);
    loop {
        let page = updates.next_page().await.expect("a page");
        for row in page.rows {
            assert!(last.is_none_or(|last| last < row.seq), "the feed went back");
            last = Some(row.seq);
            names.insert(row.name.to_string());
        }
        if wanted.borrow().as_ref().is_some_and(|wanted| wanted.is_subset(&names)) {
            return true;
        }
        if page.at_end {
            let mut wanted = wanted.clone();
            tokio::select! {
                waited = updates.wait() => assert_eq!(waited, WaitOutcome::MayHaveChanged),
                _ = wanted.changed() => {}
            }
        }
    }
}

async fn start(store: &Arc<Store>) -> Mortal<Layer> {
    let store = store.clone();
    Mortal::start(1, async move { store.layer().await }).await
}

/// Checks that the revisions that were acknowledged are in the document's line, in their order.
async fn assert_there(db: &Database, id: &str, acknowledged: &[RevId]) {
    let rev = winner(db, id).await.expect("read");
    let options = GetOptions { rev, revs: true, no_body: true, ..GetOptions::default() };
    let line = db.get(id, &options).await.expect("the document").revisions.expect("its line");
    // The line begins with the newest revision.
    let mut older = line.iter();
    for rev in acknowledged.iter().rev() {
        assert!(older.any(|there| there == rev), "{id}: {rev} was acknowledged and is not in {line:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_when_processes_die() {
    let size = Size::of_environment();
    println!("{size:?}");
    let (store, acknowledged) = (Arc::new(Store::new()), Acknowledged::default());
    let observer = store.layer().await;
    let (told, wanted) = tokio::sync::watch::channel(None);
    let follower = tokio::spawn(follow(observer.clone(), wanted));
    let mut processes: Vec<Option<Mortal<Layer>>> = Vec::new();
    for _ in 0..size.processes {
        processes.push(Some(start(&store).await));
    }
    for round in 0..size.rounds {
        let mut tasks = Vec::new();
        for (number, process) in (0..).zip(&processes) {
            let process = process.as_ref().expect("it lives");
            let layer = process.process().clone();
            tasks.push(process.spawn(work(layer, number, round, size, acknowledged.clone())));
        }
        // A third dies at some time of the round, and the work that it had begun ends with it.
        let before = count(&acknowledged);
        let expected = usize::try_from(size.processes * size.writes).unwrap();
        let dying: Vec<usize> =
            (0..processes.len()).filter(|number| number % size.rounds as usize == round as usize).collect();
        for (nth, number) in dying.iter().enumerate() {
            let at = before + expected * nth / (2 * dying.len());
            let tasks = &tasks;
            until("the work goes on", async || {
                count(&acknowledged) >= at || tasks.iter().all(|task| task.is_finished())
            })
            .await;
            processes[*number].take().expect("it lives").kill();
        }
        for (number, task) in tasks.into_iter().enumerate() {
            match task.await {
                Ok(()) => {}
                Err(error) => assert!(error.is_cancelled() && dying.contains(&number), "{number}: {error}"),
            }
        }
        for number in dying {
            processes[number] = Some(start(&store).await);
        }
    }
    let acknowledged = std::mem::take(&mut *acknowledged.lock().unwrap());
    told.send_replace(Some(acknowledged.keys().cloned().collect()));
    assert!(flatbed_testkit::soon(follower).await.expect("the follower"));
    let databases: Vec<_> = acknowledged.into_iter().collect();
    for some in databases.chunks(8) {
        join_all(some.iter().map(async |(name, documents)| {
            let db = observer.database(name);
            for (id, revs) in documents {
                assert_there(&db, id, revs).await;
            }
            let report = check::check_database(&db, |_| {}).await.expect("checked");
            assert!(report.is_clean(), "{name}: {report:#?}");
        }))
        .await;
    }
    let report = check::check_namespaces(&observer).await.expect("checked");
    assert!(report.is_clean(), "{report:#?}");
    drop(processes);
}

fn count(acknowledged: &Acknowledged) -> usize {
    acknowledged.lock().unwrap().values().flat_map(BTreeMap::values).map(Vec::len).sum()
}
