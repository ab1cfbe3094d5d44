//! A source, a target and a queue, in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use flatbed_testkit::pass;
use flatbed_worker::attachments::Stub;
use flatbed_worker::change::{Change, ChangeContent, ChangePage};
use flatbed_worker::checkpoint::{Checkpoint, Seq, SourceIdentity};
use flatbed_worker::documents::{self, Connections, Description, Document};
use flatbed_worker::failure::Failure;
use flatbed_worker::output::{BatchLimits, Delivery, DeliveryError, Target};
use flatbed_worker::peer::PeerError;
use flatbed_worker::queue::Entry;
use flatbed_worker::run::{Counts, Queue, QueueError, ReplayRequest, ReplayResult, RunEnd, Runner};
use flatbed_worker::secret::{Redactor, Secret, SecretRef};
use flatbed_worker::source::{PageLimits, Source, SourceError};
use serde_json::{Value, json};
use tokio::sync::watch;

#[derive(Debug, Default)]
pub(crate) struct FakeState {
    /// The newest state of each document, by sequence; `None`: deleted.
    feed: BTreeMap<u64, (String, Option<Value>)>,
    last_seq: watch::Sender<u64>,
    pub(crate) locals: BTreeMap<String, (Checkpoint, u64)>,
    /// The sequences of written checkpoints, in order.
    pub(crate) kept: Vec<u64>,
    /// If set, reports the position of the next page before the page, sometimes a wrong one (a random seed); below, the
    /// number of concurrent pages and its maximum.
    pub(crate) hints: Option<u64>,
    pub(crate) pages: (u32, u32),
    /// True if requests at the feed's end wait for changes.
    pub(crate) is_patient: bool,
    pub(crate) instance: u64,
    /// The incarnation in the sequences, as in Flatbed's; `None`: sequences without one.
    pub(crate) incarnation: Option<u64>,
    /// The number of requests that fail from now on.
    pub(crate) failing: u32,
    pub(crate) requests: u32,
    /// The request that fails, after which the database is another one of that name.
    pub(crate) made_again_at: Option<u32>,
    /// The bytes of attachments, by document and name; below, the fetched ones with the requested revision.
    pub(crate) attachments: BTreeMap<(String, String), Vec<u8>>,
    pub(crate) fetched: Vec<String>,
}

impl FakeState {
    fn last_seq(&self) -> u64 {
        *self.last_seq.borrow()
    }

    fn seq(&self, number: u64) -> Seq {
        let text = match self.incarnation {
            Some(incarnation) => format!("{number:016}-{incarnation:016x}00000000"),
            None => number.to_string(),
        };
        Seq::parse(&text).unwrap()
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct FakeSource(pub(crate) Arc<Mutex<FakeState>>);

impl FakeSource {
    /// Returns a source with this number of documents: `d0` with `n` 0, and so on.
    pub(crate) fn filled(documents: u64) -> FakeSource {
        let source = FakeSource::default();
        for at in 0..documents {
            source.write(&format!("d{at}"), json!({"n": at}));
        }
        source
    }

    /// Writes a document; `null` deletes it.
    pub(crate) fn write(&self, id: &str, body: Value) {
        let mut state = self.0.lock().unwrap();
        state.feed.retain(|_, (other, _)| other != id);
        let seq = state.last_seq() + 1;
        state.feed.insert(seq, (id.to_owned(), Some(body).filter(|body| !body.is_null())));
        state.last_seq.send_replace(seq);
    }

    /// Deletes the database and creates it again, empty and without a sign to clients.
    pub(crate) fn make_again(&self) {
        let mut state = self.0.lock().unwrap();
        state.feed.clear();
        match &mut state.incarnation {
            // Created within the same second.
            Some(incarnation) => *incarnation += 1,
            None => state.instance += 1,
        }
    }

    /// Writes a document with attachments; those that differ from the previous revision are new.
    pub(crate) fn attach(&self, id: &str, body: Value, attachments: &[(&str, &str, &[u8])]) {
        let mut body = body;
        let before = self.documents().remove(id).unwrap_or_default();
        let next = self.0.lock().unwrap().last_seq() + 1;
        for (name, kind, data) in attachments {
            let digest =
                format!("md5-{}", data.iter().fold(7_u32, |sum, byte| sum.wrapping_mul(31) + u32::from(*byte)));
            let earlier = &before["_attachments"][*name];
            let revpos = if earlier["digest"] == *digest { earlier["revpos"].clone() } else { next.into() };
            body["_attachments"][*name] =
                json!({"content_type": kind, "digest": digest, "length": data.len(), "revpos": revpos, "stub": true});
            self.0.lock().unwrap().attachments.insert((id.to_owned(), (*name).to_owned()), data.to_vec());
        }
        self.write(id, body);
    }

    pub(crate) fn documents(&self) -> BTreeMap<String, Value> {
        let state = self.0.lock().unwrap();
        state.feed.values().filter_map(|(id, body)| Some((id.clone(), body.clone()?))).collect()
    }

    pub(crate) fn sequences(&self) -> Vec<(u64, String)> {
        self.0.lock().unwrap().feed.iter().map(|(seq, (id, _))| (*seq, id.clone())).collect()
    }

    fn asked(&self) -> Result<std::sync::MutexGuard<'_, FakeState>, SourceError> {
        let mut state = self.0.lock().unwrap();
        state.requests += 1;
        if state.made_again_at == Some(state.requests) {
            state.instance += 1;
            return Err(SourceError::Peer(PeerError::Late));
        }
        if state.failing > 0 {
            state.failing -= 1;
            return Err(SourceError::Peer(PeerError::Late));
        }
        Ok(state)
    }
}

/// Counts a pending page until it is answered or dropped.
struct UnderWay(FakeSource);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.0.lock().unwrap().pages.0 -= 1;
    }
}

impl Source for FakeSource {
    async fn identity(&self) -> Result<(SourceIdentity, Seq), SourceError> {
        let state = self.asked()?;
        let (instance, end) = (Some(format!("i{}", state.instance)), state.seq(state.last_seq()));
        let incarnation = end.incarnation().map(str::to_owned);
        Ok((SourceIdentity { instance, incarnation, ..SourceIdentity::default() }, end))
    }

    async fn page(&self, since: &Seq, ask: PageLimits) -> Result<ChangePage, SourceError> {
        let since = since.number().unwrap() as u64;
        let (is_patient, mut last_seq) = {
            let state = self.0.lock().unwrap();
            (state.is_patient, state.last_seq.subscribe())
        };
        if ask.is_to_wait && is_patient {
            last_seq.wait_for(|last_seq| *last_seq > since).await.unwrap();
        }
        let state = self.asked()?;
        let row = |(seq, (id, body)): (&u64, &(String, Option<Value>))| {
            let rev = format!("{seq}-x");
            let what = match body {
                None => ChangeContent::Deleted,
                Some(body) => {
                    let mut body = body.clone();
                    body["_id"] = id.as_str().into();
                    body["_rev"] = rev.as_str().into();
                    ChangeContent::Changed(body.to_string())
                }
            };
            Change { id: id.clone(), rev, seq: state.seq(*seq), what }
        };
        let changes: Vec<Change> = state.feed.range(since + 1..).take(ask.limit).map(row).collect();
        let bytes = |change: &Change| if let ChangeContent::Changed(text) = &change.what { text.len() } else { 0 };
        if changes.iter().map(bytes).sum::<usize>() > ask.bytes_max {
            return Err(SourceError::Peer(PeerError::TooLarge(200)));
        }
        let last_seq = changes.last().map_or(since, |change| change.seq.number().unwrap() as u64);
        let last_seq = state.seq(last_seq);
        Ok(ChangePage { rows: changes.len(), changes, last_seq, pending: None })
    }

    async fn page_and(
        &self,
        since: &Seq,
        ask: PageLimits,
        next: impl FnOnce(Seq) + Send,
    ) -> Result<ChangePage, SourceError> {
        let page = self.page(since, ask).await?;
        let pause = {
            let mut state = self.0.lock().unwrap();
            let Some(drawn) = &mut state.hints else { return Ok(page) };
            *drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let drawn = *drawn >> 33;
            state.pages.0 += 1;
            state.pages.1 = state.pages.1.max(state.pages.0);
            drawn
        };
        let under_way = UnderWay(self.clone());
        match pause % 5 {
            0 => {}
            1 => next(Seq::parse(&(pause % 200).to_string()).unwrap()),
            _ => next(page.last_seq.clone()),
        }
        pass(Duration::from_millis(pause % 7)).await;
        drop(under_way);
        Ok(page)
    }

    async fn document(&self, id: &str, _: usize) -> Result<Option<String>, SourceError> {
        let state = self.asked()?;
        let found = state.feed.iter().find(|(_, (other, _))| other == id);
        Ok(found.and_then(|(seq, (_, body))| {
            let mut body = body.clone()?;
            body["_id"] = id.into();
            body["_rev"] = format!("{seq}-x").into();
            Some(body.to_string())
        }))
    }

    async fn attachment(
        &self,
        id: &str,
        rev: &str,
        name: &str,
        bytes_max: usize,
    ) -> Result<Option<Bytes>, SourceError> {
        let mut state = self.asked()?;
        state.fetched.push(format!("{id}/{name}?{rev}"));
        let is_newest = state.feed.iter().any(|(seq, (other, _))| other == id && format!("{seq}-x") == rev);
        let found = state.attachments.get(&(id.to_owned(), name.to_owned())).filter(|_| is_newest);
        match found {
            Some(data) if data.len() > bytes_max => Err(SourceError::Peer(PeerError::TooLarge(200))),
            found => Ok(found.map(|data| Bytes::from(data.clone()))),
        }
    }

    async fn checkpoint(&self, id: &str) -> Result<Option<(Checkpoint, String)>, SourceError> {
        Ok(self.asked()?.locals.get(id).map(|(checkpoint, rev)| (checkpoint.clone(), rev.to_string())))
    }

    async fn write_checkpoint(
        &self,
        id: &str,
        checkpoint: &Checkpoint,
        rev: Option<&str>,
    ) -> Result<String, SourceError> {
        let mut state = self.asked()?;
        let before = state.locals.get(id).map(|(_, rev)| rev.to_string());
        if before.as_deref() != rev {
            return Err(SourceError::Status(409));
        }
        let next = before.map_or(1, |rev| rev.parse::<u64>().unwrap() + 1);
        state.kept.push(checkpoint.seq.number().unwrap() as u64);
        state.locals.insert(id.to_owned(), (checkpoint.clone(), next));
        Ok(next.to_string())
    }
}

/// Entries by id; below, the entries to be replayed.
#[derive(Debug, Clone, Default)]
pub(crate) struct FakeQueue(
    pub(crate) Arc<Mutex<BTreeMap<String, Entry>>>,
    pub(crate) Arc<Mutex<Vec<ReplayRequest>>>,
    /// The most entries that it holds.
    pub(crate) Option<usize>,
);

impl FakeQueue {
    pub(crate) fn documents(&self) -> Vec<String> {
        let mut ids: Vec<_> = self.0.lock().unwrap().values().map(|entry| entry.doc_id_original.clone()).collect();
        ids.sort();
        ids.dedup();
        ids
    }
}

impl Queue for FakeQueue {
    async fn put(&mut self, entry: &Entry) -> Result<(), QueueError> {
        let mut entries = self.0.lock().unwrap();
        if self.2.is_some_and(|max| entries.len() >= max) && !entries.contains_key(&entry.id()) {
            return Err(QueueError::Full(entries.len() as u64));
        }
        entries.insert(entry.id(), entry.clone());
        Ok(())
    }

    async fn wanted(&mut self, max: usize) -> Result<Vec<ReplayRequest>, String> {
        let mut wanted = self.1.lock().unwrap();
        let count = wanted.len().min(max);
        Ok(wanted.drain(..count).collect())
    }

    async fn settle(&mut self, entry: &Entry, what: ReplayResult) -> Result<(), String> {
        let mut entries = self.0.lock().unwrap();
        match what {
            ReplayResult::Delivered => drop(entries.remove(&entry.id())),
            ReplayResult::Changed => drop(entries.insert(entry.id(), entry.clone())),
            ReplayResult::Left => {}
        }
        Ok(())
    }
}

/// A failure of a call to a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mishap {
    /// An outage.
    Outage,
    /// The process is killed before the target has the batch: the run ends.
    KilledBefore,
    /// The process is killed after the target has the batch.
    KilledAfter,
}

/// Wraps a target and applies the next mishap to each call, as long as there are any.
#[derive(Debug)]
pub(crate) struct Unlucky<T> {
    pub(crate) target: T,
    pub(crate) mishaps: Vec<Option<Mishap>>,
}

impl<T: Target> Target for Unlucky<T> {
    async fn begin(&mut self, epoch: u64) -> Result<Option<Checkpoint>, DeliveryError> {
        self.target.begin(epoch).await
    }

    async fn deliver(&mut self, batch: Vec<Delivery>, checkpoint: Option<Checkpoint>) -> Result<(), DeliveryError> {
        match self.mishaps.pop().flatten() {
            Some(Mishap::Outage) => Err(DeliveryError::failed(Failure::Connection, "gone")),
            Some(Mishap::KilledBefore) => Err(DeliveryError::Superseded),
            Some(Mishap::KilledAfter) => {
                self.target.deliver(batch, checkpoint).await?;
                Err(DeliveryError::Superseded)
            }
            None => self.target.deliver(batch, checkpoint).await,
        }
    }

    async fn holds(&mut self, delivery: &Delivery, stub: &Stub) -> bool {
        self.target.holds(delivery, stub).await
    }

    fn window(&self) -> Option<BatchLimits> {
        self.target.window()
    }

    fn keeps_checkpoint(&self) -> bool {
        self.target.keeps_checkpoint()
    }
}

pub(crate) fn job(output_type: &str, output: Value, mapping: Value, system: Value) -> Description {
    let input = json!({"id": "in", "source_type": "couchdb", "url": "http://localhost:5984/db"});
    let job = json!({"type": "job", "id": "j", "inputs": [input], "outputs": [output], "output_type": output_type,
        "mapping": mapping, "system": system});
    let Document::Job(job) = documents::read(job.to_string().as_bytes()).unwrap() else { panic!() };
    Connections::default().resolve(&job).unwrap()
}

pub(crate) fn redactor() -> Redactor {
    let secret = Secret::of(&SecretRef::File("x".to_owned()), b"hunter2").unwrap();
    Redactor::new([&secret], [])
}

/// Runs a job to the end of its source, and returns the target.
pub(crate) async fn once<T: Target>(
    job: &Description,
    source: &FakeSource,
    target: T,
    queue: &FakeQueue,
    epoch: u64,
) -> (RunEnd, Counts, T) {
    let (_stop, stopping) = watch::channel(false);
    let runner = Runner::new(job, source.clone(), target, queue.clone(), redactor(), stopping, epoch).once();
    let (end, counts, _, target, _) = runner.run().await;
    (end, counts, target.unwrap())
}
