//! A replication from its beginning to its end.

use std::collections::{HashSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use flatbed_client::encode_segment;
use flatbed_clock::Clock;
use flatbed_flatten::json::{Object, Value};
use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use hyper::Method;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::checkpoint::{Log, Session, common, seq_text};
use crate::endpoint::PeerAccess;
use crate::error::{Error, Result};
use crate::function::{Function, is_by_function};
use crate::memory::{NoRoom, PageRoom, Pages};
use crate::peer::{ANSWER_MAX, Peer};
use crate::spec::{Filter, Spec};
use crate::stats::{Progress, Stats, add};
use crate::transfer::{Change, ID_BYTES_MAX, REV_BYTES_MAX, Transfer};

/// The rows of a page of changes.
const PAGE_ROWS: usize = 2_000;

const BATCH_ROWS: usize = 500;

/// The most revisions of a batch, and the most bytes of ids and revisions. A larger change is a batch of its own.
const BATCH_REVS: usize = 5_000;
const BATCH_BYTES: usize = 1 << 20;

const BATCHES_MAX: usize = 4;

/// The interval of the source's heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// The interval at which the filter's function is checked while no checkpoint is written.
const FUNCTION_LOOK: Duration = Duration::from_secs(30);

/// The pause after a source that answers at once without changes.
const IDLE_PAUSE: Duration = Duration::from_secs(1);

const LONG_SEQ: &str = "a sequence is longer than 8 kB";

/// Checked before anything is recorded: returns whether this process still owns the replication, or why that is
/// unknown.
pub type Fence = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = std::result::Result<bool, String>> + Send>> + Send + Sync>;

/// The controls of a running replication.
#[derive(Clone)]
pub struct Control {
    /// Its progress.
    pub progress: Arc<Progress>,
    /// Becomes true when it must end, after a checkpoint.
    pub stop: watch::Receiver<bool>,
    /// The ownership check, for a replication that another process may take over.
    pub fence: Option<Fence>,
}

/// The result of a successful replication.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// True if the source had no change for this replication.
    pub no_changes: bool,
    /// The counts.
    pub stats: Stats,
    /// The members `session_id`, `source_last_seq`, `replication_id_version`, `history` of CouchDB's answer, without
    /// braces. With `no_changes`: those of the last run that recorded a checkpoint, none if there is no such run.
    pub members: Vec<u8>,
}

/// Replicates until all changes of the source are copied, or for a continuous replication until it is stopped. `server`
/// is this server's id, which is part of the replication's id; `ways` connect to peers. If the filter's function
/// changes meanwhile, the replication restarts from the checkpoint of the new function.
///
/// # Errors
/// [`Error`]. Copied documents remain, and another run resumes from the last checkpoint.
pub async fn replicate(spec: &Arc<Spec>, server: &str, ways: &PeerAccess, control: Control) -> Result<Outcome> {
    loop {
        let pages = ways.memory.pages();
        let outcome = tokio::select! {
            // First: what has ended needs no pages.
            biased;
            outcome = replicate_by_one_function(spec, server, ways, &pages, control.clone()) => outcome?,
            // The whole run yields: its reader and each of its batches may hold pages.
            () = pages.overdue() => return Err(Error::NoRoom(spec.source.to_string())),
        };
        if let Some(outcome) = outcome {
            return Ok(outcome);
        }
        tracing::info!(source = %spec.source, "a replication restarts, as its filter function was changed");
    }
}

/// Replicates until the filter's function changes. Then returns `None` and records nothing that was read since the last
/// checkpoint.
async fn replicate_by_one_function(
    spec: &Arc<Spec>,
    server: &str,
    ways: &PeerAccess,
    pages: &Arc<Pages>,
    control: Control,
) -> Result<Option<Outcome>> {
    let clock = &ways.clock;
    let source = Arc::new(Peer::new(&spec.source, ways));
    let target = Arc::new(Peer::new(&spec.target, ways));
    source.open(None).await?;
    target.open(spec.create_target.then_some(spec.create_query.as_str())).await?;
    // Before any page: a changed function may filter later pages, which the checkpoint detects.
    let function = source.function(spec.filter.as_ref()).await?;
    let id = spec.log_id(server, function.as_ref());
    let (mut source_log, mut target_log) = (Log::default(), Log::default());
    if spec.use_checkpoints {
        source_log = source.log(&id).await?;
        target_log = target.log(&id).await?;
    }
    let start = spec.since_seq.clone().unwrap_or_else(|| common(&source_log, &target_log));
    let mut session = Session::new(start.clone(), &source_log, &target_log, clock)?;
    session.has_counts = matches!(spec.filter, Some(Filter::Ids(_)));
    let mut checkpoints = Checkpoints {
        id,
        spec: spec.clone(),
        function,
        is_by_function: is_by_function(spec.filter.as_ref()),
        looked: clock.now(),
        interval: spec.checkpoint_interval,
        enabled: spec.use_checkpoints,
        session,
        source: source.clone(),
        target: target.clone(),
        source_rev: source_log.rev.clone(),
        target_rev: target_log.rev,
        through: start.clone(),
        recorded: start.clone(),
        last: clock.now(),
        clock: clock.clone(),
        control,
    };
    let transfer = Transfer::new(source.clone(), target, checkpoints.control.progress.clone());
    checkpoints.show();

    let (page_sender, mut incoming) = mpsc::channel(1);
    let (progress, pages) = (checkpoints.control.progress.clone(), pages.clone());
    let (rows_max, room) = (PAGE_ROWS, None);
    let reader = Reader { source, spec: spec.clone(), progress, rows_max, pages, room, clock: clock.clone() };
    let reading = AbortOnDrop(tokio::spawn(reader.run(start, page_sender)));
    let mut batches = Batches::new();
    let (mut stop, mut at_end, mut has_changes) = (checkpoints.control.stop.clone(), false, false);
    while !(at_end && batches.is_empty()) {
        tokio::select! {
            page = incoming.recv(), if !at_end && batches.len() < BATCHES_MAX => match page {
                None => at_end = true,
                Some(page) => {
                    let ChangePage { mut changes, last_seq, room } = page?;
                    has_changes |= !changes.is_empty();
                    let room = Arc::new(room);
                    loop {
                        let rest = changes.split_off(batch_rows(&changes));
                        let seq = if rest.is_empty() { Some(last_seq.clone()) } else { changes.last().map(|(_, seq)| seq.clone()) };
                        let batch: Vec<Change> = changes.into_iter().map(|(change, _)| change).collect();
                        let (transfer, room) = (&transfer, room.clone());
                        batches.push(async move { transfer.batch(batch, room).await.map(|()| seq) });
                        if rest.is_empty() {
                            break;
                        }
                        changes = rest;
                    }
                }
            },
            Some(done) = batches.next(), if !batches.is_empty() => {
                if let Some(seq) = done? {
                    checkpoints.through = seq;
                    checkpoints.show();
                    if checkpoints.enabled {
                        checkpoints.control.progress.note_advance();
                    }
                }
            }
            () = clock.sleep_until(checkpoints.due()), if checkpoints.is_behind() => {
                if !batches.run_beside(checkpoints.write()).await? {
                    return Ok(None);
                }
            }
            () = clock.sleep_until(checkpoints.look_due()), if checkpoints.is_by_function => {
                if batches.run_beside(checkpoints.has_other_function()).await? {
                    return Ok(None);
                }
            }
            () = async { drop(stop.wait_for(|stop| *stop).await) } => break,
        }
    }
    drop((reading, batches));
    // As in CouchDB, a run that transferred no change writes no checkpoint, even if the source has advanced.
    let no_changes = !has_changes && !spec.continuous;
    let is_current = if no_changes {
        !(checkpoints.is_behind() && checkpoints.has_other_function().await?)
    } else {
        checkpoints.write().await?
    };
    if !is_current && !*checkpoints.control.stop.borrow() {
        return Ok(None);
    }
    let stats = checkpoints.control.progress.stats();
    let members =
        if no_changes { source_log.members() } else { checkpoints.session.members(&checkpoints.through, &stats) };
    Ok(Some(Outcome { no_changes, stats, members }))
}

/// The batches under way, and those that have ended since the loop last asked for one.
struct Batches<B: Future> {
    under_way: FuturesOrdered<B>,
    ended: VecDeque<B::Output>,
}

impl<B: Future> Batches<B> {
    fn new() -> Batches<B> {
        Batches { under_way: FuturesOrdered::new(), ended: VecDeque::new() }
    }

    fn len(&self) -> usize {
        self.under_way.len() + self.ended.len()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn push(&mut self, batch: B) {
        self.under_way.push_back(batch);
    }

    /// Returns the outcome of the oldest batch; `None` if there is none. It may be dropped and called again.
    async fn next(&mut self) -> Option<B::Output> {
        match self.ended.pop_front() {
            Some(ended) => Some(ended),
            None => self.under_way.next().await,
        }
    }

    /// Awaits other work of the replication. The batches go on meanwhile: a batch that is not polled keeps its memory,
    /// also if another owner needs it.
    async fn run_beside<W: Future>(&mut self, work: W) -> W::Output {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                output = &mut work => return output,
                Some(ended) = self.under_way.next(), if !self.under_way.is_empty() => self.ended.push_back(ended),
            }
        }
    }
}

/// Aborts a task on drop.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The checkpoints in both logs.
struct Checkpoints {
    id: String,
    spec: Arc<Spec>,
    /// The function of the filter before the first page was read.
    function: Option<Function>,
    is_by_function: bool,
    looked: Instant,
    interval: Duration,
    enabled: bool,
    session: Session,
    source: Arc<Peer>,
    target: Arc<Peer>,
    source_rev: Option<String>,
    target_rev: Option<String>,
    through: Vec<u8>,
    /// The sequence that is recorded.
    recorded: Vec<u8>,
    last: Instant,
    clock: Clock,
    control: Control,
}

impl Checkpoints {
    fn show(&self) {
        let text = |seq: &[u8]| String::from_utf8_lossy(seq).into_owned();
        self.control.progress.change_seqs(|seqs| {
            seqs.through = text(&self.through);
            seqs.checkpointed = text(&self.recorded);
            if seqs.source.is_empty() {
                seqs.source.clone_from(&seqs.through);
            }
        });
    }

    fn is_behind(&self) -> bool {
        self.enabled && self.through != self.recorded
    }

    fn due(&self) -> Instant {
        self.last + self.interval
    }

    /// Returns the time of the next check of the function.
    fn look_due(&self) -> Instant {
        self.looked + FUNCTION_LOOK
    }

    /// Returns whether the filter's function changed since the first page, even if it was changed back.
    async fn has_other_function(&mut self) -> Result<bool> {
        if !self.is_by_function {
            return Ok(false);
        }
        self.looked = self.clock.now();
        Ok(self.source.function(self.spec.filter.as_ref()).await? != self.function)
    }

    /// Writes both logs, the source's first, because the target's alone is not a checkpoint. Returns false and writes
    /// nothing if the filter's function changed, since the new one may have filtered the pages.
    async fn write(&mut self) -> Result<bool> {
        if !self.is_behind() {
            return Ok(true);
        }
        if self.has_other_function().await? {
            return Ok(false);
        }
        if let Some(fence) = &self.control.fence
            && !fence().await.map_err(Error::Unsure)?
        {
            return Err(Error::Superseded);
        }
        let stats = self.control.progress.stats();
        for (peer, rev) in [(&self.source, &mut self.source_rev), (&self.target, &mut self.target_rev)] {
            let log = self.session.log(&self.id, rev.as_deref(), &self.through, &stats);
            let written = match peer.put_log(&self.id, log).await {
                // An attempt whose answer was lost has written it, or another run of the same replication has.
                Err(Error::Status { status: 409, .. }) => {
                    let current = peer.log(&self.id).await?.rev;
                    let log = self.session.log(&self.id, current.as_deref(), &self.through, &stats);
                    peer.put_log(&self.id, log).await?
                }
                written => written?,
            };
            *rev = Some(written);
        }
        self.recorded.clone_from(&self.through);
        self.last = self.clock.now();
        self.show();
        Ok(true)
    }
}

/// A page of changes with their sequences, and the source's sequence after them, as JSON text.
struct ChangePage {
    changes: Vec<(Change, Vec<u8>)>,
    last_seq: Vec<u8>,
    room: PageRoom,
}

/// The largest ratio of a page's memory to its text.
const PAGE_TIMES: usize = 6;

/// The memory of a change and of a revision beside their texts, including copies during the transfer, in bytes.
const ROW_BYTES: usize = 150;

impl ChangePage {
    fn bytes(&self) -> usize {
        let of_change = |(change, seq): &(Change, Vec<u8>)| {
            change.id.len() + seq.len() + ROW_BYTES + change.revs.iter().map(|rev| rev.len() + ROW_BYTES).sum::<usize>()
        };
        self.changes.iter().map(of_change).sum()
    }
}

/// Returns the number of changes in the next batch, at least one if there are any.
fn batch_rows(changes: &[(Change, Vec<u8>)]) -> usize {
    let (mut bytes, mut revs) = (0, 0);
    let fits = |(change, _): &&(Change, Vec<u8>)| {
        bytes += change.id.len() + change.revs.iter().map(String::len).sum::<usize>();
        revs += change.revs.len();
        bytes <= BATCH_BYTES && revs <= BATCH_REVS
    };
    changes.iter().take(BATCH_ROWS).take_while(fits).count().max(1).min(changes.len())
}

enum PageReply {
    /// A page, and whether it was the last.
    Page(ChangePage, bool),
    /// There is no memory for a page of this size.
    NoRoom(usize),
}

/// Reads the source's changes page by page.
struct Reader {
    source: Arc<Peer>,
    spec: Arc<Spec>,
    progress: Arc<Progress>,
    /// The rows per page, temporarily fewer after a page that was too large.
    rows_max: usize,
    /// The memory of the run's pages.
    pages: Arc<Pages>,
    /// The memory for the next page, acquired after it had none.
    room: Option<PageRoom>,
    clock: Clock,
}

impl Reader {
    async fn run(mut self, mut since: Vec<u8>, pages: mpsc::Sender<Result<ChangePage>>) {
        let mut wait = false;
        loop {
            let asked_at = self.clock.now();
            let page = match self.page(&since, wait && self.room.is_none()).await {
                Ok(PageReply::Page(page, is_last)) => Ok((page, is_last)),
                Ok(PageReply::NoRoom(bytes)) => match self.pages.page(bytes).await {
                    Ok(room) => {
                        self.room = Some(room);
                        continue;
                    }
                    Err(NoRoom::Ever) if self.ask_for_fewer() => continue,
                    Err(error) => Err(self.source.no_room(error)),
                },
                Err(Error::TooLarge(..)) if self.ask_for_fewer() => continue,
                Err(error) => Err(error),
            };
            let (failed, is_last) = match &page {
                Err(_) => (true, true),
                Ok((page, is_last)) => {
                    if wait && page.changes.is_empty() {
                        self.clock.sleep_until(asked_at + IDLE_PAUSE).await;
                    }
                    since.clone_from(&page.last_seq);
                    (false, *is_last)
                }
            };
            if pages.send(page.map(|(page, _)| page)).await.is_err() || failed {
                return;
            }
            if is_last && !self.spec.continuous {
                return;
            }
            wait = is_last;
        }
    }

    /// Reduces the rows per page. False: it is one already.
    fn ask_for_fewer(&mut self) -> bool {
        let is_less = self.rows_max > 1;
        self.rows_max = (self.rows_max / 8).max(1);
        is_less
    }

    async fn page(&mut self, since: &[u8], wait: bool) -> Result<PageReply> {
        let style = if self.spec.winning_revs_only { "main_only" } else { "all_docs" };
        let since_text = match string_or_text(since) {
            Some(since) => encode_segment(&since),
            None => return Err(self.source.protocol("a sequence is no text")),
        };
        let mut path = format!("/_changes?style={style}&since={since_text}&limit={}", self.rows_max);
        if wait {
            path.push_str(&format!("&feed=longpoll&heartbeat={}", HEARTBEAT.as_millis()));
        }
        let mut posted = None;
        match &self.spec.filter {
            None => {}
            Some(Filter::Ids(ids)) => {
                path.push_str("&filter=_doc_ids");
                posted = Some(Object::text(|body| {
                    body.raw("doc_ids", ids);
                }));
            }
            Some(Filter::Selector(selector)) => {
                path.push_str("&filter=_selector");
                posted = Some(Object::text(|body| {
                    body.raw("selector", selector);
                }));
            }
            Some(Filter::Function(name, parameters)) => {
                path.push_str(&format!("&filter={}", encode_segment(name)));
                for (name, value) in parameters {
                    path.push_str(&format!("&{}={}", encode_segment(name), encode_segment(value)));
                }
            }
        }
        let method = if posted.is_some() { Method::POST } else { Method::GET };
        let answer_max = if wait { None } else { Some(ANSWER_MAX) };
        let answer =
            self.source.call_for(&self.source.memory.room(), method, &path, posted.map(Into::into), answer_max).await?;
        match answer.status {
            200 => {}
            404 if self.spec.filter.is_none() => return Err(Error::DatabaseNotFound(self.source.shown.clone())),
            401 | 403 => return Err(Error::Unauthorized(self.source.shown.clone())),
            _ => return Err(self.source.refused("_changes", &answer)),
        }
        let bytes = PAGE_TIMES * answer.body.len();
        let room = self.room.take().filter(|room| room.holds(bytes)).or_else(|| self.pages.try_page(bytes));
        let Some(room) = room else { return Ok(PageReply::NoRoom(bytes)) };
        let tree = answer.json().await.map_err(|error| self.source.no_room(error))?;
        let json = &tree.value;
        let malformed = || self.source.protocol("the answer to _changes is not well-formed");
        let Some(Value::Array(rows)) = json.get("results") else { return Err(malformed()) };
        let mut changes = Vec::with_capacity(rows.len());
        let mut seen = HashSet::with_capacity(rows.len());
        for row in rows {
            let (Some(seq), Some(id)) = (row.get("seq"), row.get("id").and_then(Value::as_str)) else {
                return Err(malformed());
            };
            let Some(Value::Array(leaves)) = row.get("changes") else { return Err(malformed()) };
            let revs: Vec<&str> = leaves.iter().filter_map(|leaf| leaf.get("rev").and_then(Value::as_str)).collect();
            if revs.iter().any(|rev| rev.len() > REV_BYTES_MAX) {
                return Err(self.source.protocol("a revision's id is longer than 1 kB"));
            }
            // CouchDB's clusters may repeat a change.
            if !seen.insert((id, revs.clone())) {
                continue;
            }
            let seq = seq_text(seq).ok_or_else(|| self.source.protocol(LONG_SEQ))?;
            if id.len() > ID_BYTES_MAX {
                // As in CouchDB with a limit on ids.
                tracing::warn!(source = self.source.shown, "a document's id is too long to be replicated");
                add(&self.progress.doc_write_failures, 1);
                continue;
            }
            let revs = revs.into_iter().map(str::to_owned).collect();
            changes.push((Change { id: id.into(), revs }, seq));
        }
        let last_seq = json.get("last_seq").ok_or_else(malformed)?;
        let last_seq = seq_text(last_seq).ok_or_else(|| self.source.protocol(LONG_SEQ))?;
        // Otherwise the same page would be requested for ever.
        if !rows.is_empty() && last_seq == since {
            return Err(self.source.protocol("the changes behind a sequence end at the same sequence"));
        }
        let pending = match json.get("pending") {
            Some(Value::Number(pending)) => pending.parse().unwrap_or(0),
            _ => 0,
        };
        self.progress.set_pending(pending);
        self.progress.change_seqs(|seqs| seqs.source = String::from_utf8_lossy(&last_seq).into_owned());
        let is_last = rows.len() < self.rows_max;
        self.rows_max = (2 * self.rows_max).min(PAGE_ROWS);
        let mut page = ChangePage { changes, last_seq, room };
        page.room.shrink(page.bytes());
        Ok(PageReply::Page(page, is_last))
    }
}

/// Returns a sequence in the form for its source: a string's text, or any other value as JSON.
fn string_or_text(seq: &[u8]) -> Option<String> {
    crate::transfer::string_of(seq).or_else(|| std::str::from_utf8(seq).ok().map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn batches_go_on_while_other_work_is_awaited() {
        let (ended, work) = oneshot::channel();
        let mut batches = Batches::new();
        batches.push(async move { ended.send(1) });
        assert_eq!(batches.run_beside(work).await, Ok(1));
        assert_eq!(batches.len(), 1);
        assert_eq!(batches.next().await, Some(Ok(())));
        assert!(batches.is_empty() && batches.next().await.is_none());
    }
}
