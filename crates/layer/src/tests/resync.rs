//! Resyncs by several processes: all documents are judged, each counts once, and the channels are those of the
//! function at the end, also where a process dies, the resync is stopped, or documents are written meanwhile.
#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flatbed_clock::ManualClock;
use flatbed_databases::document::body::begin_read;
use flatbed_databases::document::edit::{Document, Edit, GetOptions};
use flatbed_databases::document::verdict::Verdict;
use flatbed_flatten::json::{Limits, Value, parse};
use flatbed_operations::judge::judgement::{Judge, Judgement, ProposedWrite, Rule};
use flatbed_operations::write::batch::resolved;
use flatbed_revtree::RevId;
use flatbed_store::error::{Error, Refusal};
use flatbed_store::keys::ChannelPart;
use flatbed_store::proto;
use flatbed_store::transaction::Transaction;
use flatbed_store::waits::count;
use flatbed_testkit::{Faults, Random, Storage, pass, until};
use futures_util::future::{BoxFuture, join};
use prost::Message;
use tokio::sync::Semaphore;

use crate::background::{Background, BackgroundOptions};
use crate::handle::{Database, Layer, Reader};
use crate::resync::{ResyncAction, resync};
use crate::tests::fenced::user;
use crate::tests::index::channels::assert_clean;
use crate::{Authority, CreateOptions, LayerOptions};

const TURN: Duration = Duration::from_secs(3_600);

const START: ResyncAction = ResyncAction::Start { is_exclusive: false, is_anew: false };

/// Sync functions whose source names the member that has a document's channel. Each call takes a permit.
struct Functions {
    permits: Semaphore,
    waiting: AtomicU64,
    answered: Mutex<BTreeMap<String, u64>>,
}

impl Functions {
    fn new(permits: usize) -> Arc<Functions> {
        Arc::new(Functions { permits: Semaphore::new(permits), waiting: AtomicU64::new(0), answered: Mutex::default() })
    }

    fn answered(&self) -> u64 {
        self.answered.lock().unwrap().values().sum()
    }

    fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    fn open(&self) {
        self.permits.add_permits(1_000_000);
    }
}

struct Function(Arc<Functions>, String);

/// A handle of the functions for a layer.
struct Runs(Arc<Functions>);

impl Judge for Runs {
    fn load(&self, _: &Document, _: &str) -> Arc<dyn Rule> {
        Arc::new(Function(self.0.clone(), String::new()))
    }

    fn sync_function(&self, _: &str, source: &str) -> Option<Arc<dyn Rule>> {
        Some(Arc::new(Function(self.0.clone(), source.to_owned())))
    }

    fn check_sync_function<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(async { Ok(()) })
    }

    fn caller(&self) -> u64 {
        0
    }
}

fn channel_of(body: &Value<'_>, member: &str) -> Option<String> {
    match body.get(member) {
        Some(Value::String(channel)) => Some(channel.to_string()),
        _ => None,
    }
}

impl Function {
    fn say(&self, write: &ProposedWrite<'_>) -> Judgement {
        *self.0.answered.lock().unwrap().entry(write.edit.id.to_string()).or_default() += 1;
        let channels = channel_of(&write.edit.body, &self.1).into_iter().collect();
        Ok(Verdict { channels, ..Verdict::default() })
    }

    async fn pass(&self) {
        self.0.waiting.fetch_add(1, Ordering::Relaxed);
        self.0.permits.acquire().await.unwrap().forget();
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Rule for Function {
    fn judge<'a>(&'a self, write: ProposedWrite<'a>) -> BoxFuture<'a, Judgement> {
        Box::pin(async move {
            self.pass().await;
            self.say(&write)
        })
    }

    fn judge_all<'a>(&'a self, writes: Vec<ProposedWrite<'a>>) -> BoxFuture<'a, Vec<Judgement>> {
        Box::pin(async move {
            self.pass().await;
            writes.iter().map(|write| self.say(write)).collect()
        })
    }
}

/// A process: its layer, and the right to write.
struct Process {
    layer: Layer,
    authority: Authority,
}

impl Process {
    async fn start(storage: &Storage, functions: &Arc<Functions>, options: LayerOptions) -> Process {
        let options = LayerOptions { root: storage.root.clone(), ..options };
        let judge: Arc<dyn Judge> = Arc::new(Runs(functions.clone()));
        let (layer, authority) = Layer::open(Arc::clone(&storage.fdb), options, Some(judge)).await.unwrap();
        Process { layer, authority }
    }

    fn database(&self) -> Database {
        self.layer.database("db", self.authority.for_job("test"))
    }

    fn reader(&self) -> Reader {
        self.layer.reader("db")
    }

    fn processed(&self) -> u64 {
        self.layer.inner.metrics.resync_documents.get()
    }
}

/// Returns storage that knows the exact split points of a small database: not a cluster.
fn divided_storage() -> Option<Storage> {
    Storage::with(Faults::new(0.0, 1))
}

fn edit<'e>(id: &'e str, parent: Option<RevId>, text: &'e str) -> Edit<'e> {
    let body = parse(text.as_bytes(), &Limits::default()).unwrap();
    Edit { id: id.into(), parent, history: None, deleted: false, expiry: None, attachments: Vec::new(), body }
}

/// Writes documents whose channels are by `a` and by `b`. The server writes them, so no function has judged them.
async fn fill(db: &Database, documents: usize) {
    let texts: Vec<_> = (0..documents)
        .map(|n| (format!("d{n:04}"), format!(r#"{{"a":"A{}","b":"B{}","n":{n}}}"#, n % 3, n % 2)))
        .collect();
    for some in texts.chunks(100) {
        let edits: Vec<_> = some.iter().map(|(id, text)| edit(id, None, text)).collect();
        assert!(db.bulk_update(&edits).await.unwrap().iter().all(Result::is_ok));
    }
}

async fn created(process: &Process, documents: usize) -> Database {
    let db = process.database();
    db.create(&CreateOptions::default()).await.unwrap();
    fill(&db, documents).await;
    db
}

/// Returns which channels list which documents.
async fn listed(db: &Database) -> BTreeSet<(String, String)> {
    let instance = resolved(&db.inner, &db.name).await.unwrap();
    loop {
        let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
        let pages = match begin_read(&trx, instance.keys.channel_documents_all()).finish(&trx, 10_000_000).await {
            Ok(pages) => pages,
            Err(Error::Storage(_)) => continue,
            Err(error) => panic!("{error}"),
        };
        let keys = pages.iter().flat_map(|page| page.iter());
        return keys
            .map(|row| match instance.keys.split_channels(row.key()).unwrap() {
                ChannelPart::Document { channel, id } => (channel, id),
                part => panic!("{part:?}"),
            })
            .collect();
    }
}

/// Returns what [`listed`] must be by the bodies.
async fn expected(db: &Database, member: &str) -> BTreeSet<(String, String)> {
    let mut walk = db.all_docs(crate::AllDocsQuery { include_docs: true, ..crate::AllDocsQuery::default() });
    let mut expected = BTreeSet::new();
    while let Some(rows) = walk.next_page().await.unwrap() {
        for document in rows.into_iter().filter_map(|row| row.doc) {
            let text = [b"{", document.body.as_slice(), b"}"].concat();
            let channel = channel_of(&parse(&text, &Limits::default()).unwrap(), member);
            expected.extend(channel.map(|channel| (channel, document.id.clone())));
        }
    }
    expected
}

async fn ranges(db: &Database) -> Vec<proto::ResyncRange> {
    let instance = resolved(&db.inner, &db.name).await.unwrap();
    let trx = Transaction::begin(&db.inner.db, &db.inner.metrics).unwrap();
    let rows = trx.range(&instance.keys.resync_ranges(), true).all(1_000).await.unwrap();
    rows.iter().map(|row| proto::ResyncRange::decode(row.value()).unwrap()).collect()
}

/// Runs a resync to its end.
async fn resynced(reader: &Reader) {
    loop {
        match resync(reader, TURN).await {
            Ok(Some(true)) => return,
            Ok(_) | Err(Error::Storage(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_goes_on_with_the_ranges_of_one_that_died() {
    const DOCUMENTS: u64 = 400;
    let Some(storage) = divided_storage() else { return };
    let (manual, functions) = (ManualClock::new(), Functions::new(9));
    let options = || LayerOptions { clock: manual.clock(), ..LayerOptions::default() };
    let one = Process::start(&storage, &functions, options()).await;
    let two = Process::start(&storage, &functions, options()).await;
    let db = created(&one, DOCUMENTS as usize).await;
    db.set_sync_function(Some("a")).await.unwrap();
    let reader = one.reader();
    let dying = tokio::spawn(async move { resync(&reader, TURN).await.map(drop) });
    // The answered part is stored, and the rest waits for the function.
    let is_stuck = || functions.waiting() >= 4 && functions.answered() == one.processed() && one.processed() > 0;
    until("the function does not answer", async || is_stuck()).await;
    dying.abort();
    assert!(dying.await.unwrap_err().is_cancelled());
    let stored = db.resync_state().await.unwrap().unwrap().documents;
    assert_eq!(stored, functions.answered());
    let found = ranges(&db).await;
    let dead = found.iter().find(|range| !range.owner.is_empty()).unwrap().owner.clone();
    assert!(found.iter().all(|range| range.owner == dead || range.owner.is_empty()), "{found:?}");
    assert!(found.iter().any(|range| range.owner.is_empty() && !range.done), "{found:?}");
    functions.open();
    let reader = two.reader();
    let other = tokio::spawn(async move { resynced(&reader).await });
    // The ranges that no process has are through before the others are taken over.
    let are_through = async || ranges(&db).await.iter().all(|range| range.done || range.owner == dead);
    until("the free ranges are through", are_through).await;
    assert!(ranges(&db).await.iter().any(|range| range.owner == dead && !range.done));
    while !other.is_finished() {
        manual.advance(Duration::from_secs(1));
        pass(Duration::from_millis(1)).await;
    }
    other.await.unwrap();
    assert_eq!(db.resync_state().await.unwrap(), None);
    assert_eq!(two.processed(), DOCUMENTS - stored, "each document counts once");
    assert_eq!(functions.answered.lock().unwrap().len() as u64, DOCUMENTS, "each document was judged");
    assert_eq!(listed(&db).await, expected(&db, "a").await);
    assert_eq!(ranges(&db).await, []);
    assert_clean(&db).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_processes_take_part_at_once() {
    let Some(storage) = divided_storage() else { return };
    let functions = Functions::new(0);
    let one = Process::start(&storage, &functions, LayerOptions::default()).await;
    let two = Process::start(&storage, &functions, LayerOptions::default()).await;
    let db = created(&one, 400).await;
    two.database().exists().await.unwrap();
    db.set_sync_function(Some("b")).await.unwrap();
    let options = BackgroundOptions { look_every: Duration::from_millis(50), ..BackgroundOptions::default() };
    let backgrounds = [&one, &two]
        .map(|process| Background::new(&process.layer, process.authority.for_job("work"), options.clone()).unwrap());
    backgrounds.iter().for_each(Background::start);
    let owners = async || ranges(&db).await.into_iter().map(|range| range.owner).collect::<BTreeSet<_>>();
    // One of them has the lease of the slice.
    let has_both = async || owners().await.into_iter().filter(|owner| !owner.is_empty()).count() == 2;
    until("both have ranges", has_both).await;
    assert_eq!([one.layer.resyncs().len(), two.layer.resyncs().len()], [1, 1]);
    functions.open();
    until("it has ended", async || db.resync_state().await.unwrap().is_none()).await;
    for background in &backgrounds {
        background.stop().await;
    }
    assert!(one.processed() > 0 && two.processed() > 0);
    assert_eq!(one.processed() + two.processed(), 400);
    assert_eq!(listed(&db).await, expected(&db, "b").await);
    assert_clean(&db).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_resync_writes_no_further_page_and_resumes() {
    let Some(storage) = divided_storage() else { return };
    let functions = Functions::new(6);
    let one = Process::start(&storage, &functions, LayerOptions::default()).await;
    let db = created(&one, 300).await;
    db.set_sync_function(Some("a")).await.unwrap();
    let reader = one.reader();
    let running = tokio::spawn(async move { resync(&reader, TURN).await.unwrap() });
    let is_stuck = || functions.waiting() >= 4 && functions.answered() == one.processed() && one.processed() > 0;
    until("the function does not answer", async || is_stuck()).await;
    let stored = one.processed();
    assert!(db.resync(ResyncAction::Stop).await.unwrap());
    functions.open();
    assert_eq!(running.await.unwrap(), Some(true));
    let state = db.resync_state().await.unwrap().unwrap();
    assert!(state.is_stopped);
    assert_eq!((state.documents, listed(&db).await.len() as u64), (stored, stored));
    assert!(ranges(&db).await.iter().all(|range| range.owner.is_empty()), "others may go on");
    assert_eq!(resync(&one.reader(), TURN).await.unwrap(), Some(true), "it is stopped");
    assert!(db.resync(START).await.unwrap());
    assert_eq!(db.resync_state().await.unwrap().unwrap().documents, stored);
    resynced(&one.reader()).await;
    assert_eq!(one.processed(), 300, "no document was processed twice");
    assert_eq!(listed(&db).await, expected(&db, "a").await);
    // From the first document on, on request.
    db.set_sync_function(Some("b")).await.unwrap();
    assert!(db.resync(ResyncAction::Stop).await.unwrap());
    assert!(db.resync(ResyncAction::Start { is_exclusive: false, is_anew: true }).await.unwrap());
    resynced(&one.reader()).await;
    assert_eq!(one.processed(), 600);
    // A function that was set meanwhile begins anew, too.
    db.resync(START).await.unwrap();
    db.resync(ResyncAction::Stop).await.unwrap();
    db.set_sync_function(Some("a")).await.unwrap();
    assert!(!db.resync_state().await.unwrap().unwrap().is_stopped);
    resynced(&one.reader()).await;
    assert_eq!(listed(&db).await, expected(&db, "a").await);
    assert_clean(&db).await;
}

/// Documents that keep their channels are not written, nor is anything for each page.
#[tokio::test]
async fn documents_that_stay_where_they_are_cost_no_write() {
    let (storage, functions) = (Storage::new(), Functions::new(1_000_000));
    let one = Process::start(&storage, &functions, LayerOptions::default()).await;
    let db = created(&one, 600).await;
    db.set_sync_function(Some("a")).await.unwrap();
    resynced(&one.reader()).await;
    let seq = db.info().await.unwrap().update_seq;
    db.resync(START).await.unwrap();
    let ((), waits) = count(resynced(&one.reader())).await;
    assert_eq!((db.info().await.unwrap().update_seq, db.resync_state().await.unwrap()), (seq, None));
    // Low limits make many short ranges; each is made, taken and ended.
    if flatbed_store::waits::are_exact() {
        let most = 3 * 256 + 20;
        assert!(waits.keys_written <= most, "{waits:?}");
        assert!(waits.commits <= most, "{waits:?}");
    }
    assert_clean(&db).await;
}

/// Documents of each kind that a page does not have as a whole.
#[tokio::test]
async fn documents_that_take_further_reads_are_judged() {
    let (storage, functions) = (Storage::new(), Functions::new(1_000_000));
    let one = Process::start(&storage, &functions, LayerOptions::default()).await;
    let db = created(&one, 10).await;
    let long = "x".repeat(700_000);
    let large = format!(r#"{{"a":"A","b":"B","text":"{long}"}}"#);
    db.update(&edit("large", None, &large)).await.unwrap();
    let mut rev = None;
    for n in 0..40 {
        let text = format!(r#"{{"a":"A{n}","b":"B{n}","text":"{}"}}"#, "y".repeat(200));
        rev = Some(db.update(&edit("often", rev, &text)).await.unwrap().rev);
    }
    for (rev, member) in [("2-a", "A"), ("2-b", "C")] {
        let history = Some([rev, "1-0"].map(|rev| rev.parse().unwrap()).to_vec());
        let text = format!(r#"{{"a":"{member}","b":"B{member}"}}"#);
        db.update(&Edit { history, ..edit("twice", None, &text) }).await.unwrap();
    }
    let gone = db.update(&edit("gone", None, r#"{"a":"A"}"#)).await.unwrap().rev;
    db.update(&Edit { deleted: true, ..edit("gone", Some(gone), r#"{"a":"G"}"#) }).await.unwrap();
    for member in ["a", "b", "a"] {
        db.set_sync_function(Some(member)).await.unwrap();
        resynced(&one.reader()).await;
        assert_eq!(listed(&db).await, expected(&db, member).await);
        assert_clean(&db).await;
    }
    let routing = db.routings(&["gone".to_owned()]).await.unwrap().remove(0).unwrap();
    assert_eq!((routing.deleted, routing.verdict.channels), (true, ["G".to_owned()].into()));
}

/// Makes edits, conflicts and deletions as a user, so that the current function judges them.
async fn writer(process: Layer, seed: u64) {
    let mut random = Random(seed);
    let db = process.database("db", user("anna")).asked_by(crate::channels::ReadPrincipal::All);
    for _ in 0..80 {
        let id = format!("d{:04}", random.below(60));
        let channel = |random: &mut Random| match random.below(4) {
            0 => "7".to_owned(),
            number => format!("\"C{number}\""),
        };
        let text = format!(r#"{{"a":{},"b":{}}}"#, channel(&mut random), channel(&mut random));
        let winner = match db.get(&id, &GetOptions::default()).await {
            Ok(document) => Some(document.rev),
            Err(Error::Refused(Refusal::DocumentNotFound(_))) => None,
            Err(error) => panic!("{error}"),
        };
        let edit = match random.below(6) {
            0 => {
                let rev = format!("{}-{:032x}", 1 + random.below(3), random.below(1 << 30));
                Edit { history: Some(vec![rev.parse().unwrap()]), ..edit(&id, None, &text) }
            }
            1 if winner.is_some() => Edit { deleted: true, ..edit(&id, winner, &text) },
            _ => edit(&id, winner, &text),
        };
        match db.update(&edit).await {
            Ok(_) | Err(Error::Refused(Refusal::Conflict | Refusal::DocumentNotFound(_))) => {}
            Err(Error::Storage(error)) if error.is_maybe_committed() => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_written_during_a_resync_are_where_the_new_function_puts_them() {
    let Some(storage) = Storage::with(Faults::new(0.03, 6)) else { return };
    let functions = Functions::new(10_000_000);
    let one = Process::start(&storage, &functions, LayerOptions::default()).await;
    let two = Process::start(&storage, &functions, LayerOptions::default()).await;
    let db = one.database();
    db.create(&CreateOptions::default()).await.unwrap();
    db.set_sync_function(Some("a")).await.unwrap();
    let writers: Vec<_> =
        (0..4_usize).map(|n| tokio::spawn(writer([&one, &two][n % 2].layer.clone(), 60 + n as u64))).collect();
    let mut member = "a";
    loop {
        let both = [one.reader(), two.reader()];
        join(resynced(&both[0]), resynced(&both[1])).await;
        if writers.iter().all(tokio::task::JoinHandle::is_finished) {
            break;
        }
        member = if member == "a" { "b" } else { "a" };
        loop {
            match db.set_sync_function(Some(member)).await {
                Ok(()) => break,
                Err(Error::Storage(error)) if error.is_maybe_committed() => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(db.resync_state().await.unwrap(), None);
    assert_eq!(listed(&db).await, expected(&two.database(), member).await);
    assert_clean(&db).await;
}
