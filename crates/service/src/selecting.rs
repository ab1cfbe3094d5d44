//! Compiles and matches the selectors of feeds and queries. Slow work runs on blocking threads.
//!
//! A few such tasks run in parallel, in turns by client and by database. The work owns its turn, not the request: a
//! dropped request stops its work, and the turn ends then.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flatbed_admission::{Budget, Grant};
use flatbed_layer::json::{self, Limits, Value};
use flatbed_layer::{ChangeRow, Document, Error as LayerError, RowKind, TailDocument, TailRow};
use flatbed_mango::{Field, Interrupts, InvalidSelector, MatchInterrupted, Progress, Projector, Selector, slice_steps};
use flatbed_metrics::{Family, Kind, Value as Measured};
use tokio::runtime::Handle;

use crate::json_out;
use crate::turns::{Origin, Slice, Turns};

/// The most selectors that are compiled in parallel.
const COMPILED_AT_ONCE: usize = 2;

/// The most requests that wait for a turn to compile.
const COMPILING_WAITING_MAX: usize = 1_024;

/// The most pages of documents that are matched in parallel on blocking threads.
const MATCHED_AT_ONCE: usize = 2;

/// The largest product of a page's bytes and the selector's weight that is matched at once: some milliseconds.
const SHORT_WORK: usize = 500_000;

/// The largest document that is matched at once, in bytes; the memory of a larger one's tree is reserved.
const SHORT_DOCUMENT_BYTES: usize = 64 << 10;

/// The memory for trees of documents that are matched on blocking threads. The largest document's tree fits.
const TREES_BYTES_MAX: usize = 256 << 20;

/// The unit of that memory.
const UNIT_BYTES: usize = 1024;

/// The reason why a selector is not compiled or not matched.
#[derive(Debug, thiserror::Error)]
pub enum SelectorError {
    /// The selector is invalid or exceeds its bounds.
    #[error("{}", invalid(.0))]
    Invalid(InvalidSelector),
    /// The queue for turns is full.
    #[error("Too many selectors are being compiled or matched")]
    Busy,
    /// A document exceeds the selector's bounds, or the request was dropped.
    #[error(transparent)]
    Exhausted(MatchInterrupted),
    /// The work panicked or was cancelled.
    #[error("{0}")]
    BrokenOff(String),
    /// The server stops.
    #[error("{}", LayerError::ShuttingDown)]
    ShuttingDown,
}

type Result<T> = std::result::Result<T, SelectorError>;

fn invalid(error: &InvalidSelector) -> String {
    match error {
        InvalidSelector::NotAnObject => "Selector error: expected a JSON object".to_owned(),
        error => error.to_string(),
    }
}

/// Options of compiling and matching selectors.
#[derive(Clone)]
pub struct SelectorOptions {
    /// Called at the beginning of each turn, on its thread. For tests, which block it.
    pub before_each: Arc<dyn Fn() + Send + Sync>,
}

impl Default for SelectorOptions {
    fn default() -> Self {
        SelectorOptions { before_each: Arc::new(|| ()) }
    }
}

impl fmt::Debug for SelectorOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SelectorOptions").finish_non_exhaustive()
    }
}

/// Compiles and matches selectors. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Selectors {
    compiling: Arc<Turns>,
    matching: Arc<Turns>,
    trees: Arc<Budget>,
    options: SelectorOptions,
}

impl Selectors {
    pub(crate) fn new(options: SelectorOptions) -> Selectors {
        let compiling = Turns::new(COMPILED_AT_ONCE, COMPILING_WAITING_MAX);
        // One match of a change serves all its followers, so none is refused: connections bound them.
        let matching = Turns::new(MATCHED_AT_ONCE, usize::MAX);
        let trees = Budget::new(TREES_BYTES_MAX, UNIT_BYTES);
        Selectors { compiling, matching, trees, options }
    }

    pub(crate) fn families(&self) -> Vec<Family> {
        let mut waiting =
            Family::new("flatbed_selectors_waiting", "Selectors that wait for a turn, by kind of work.", Kind::Gauge);
        let mut turns =
            Family::new("flatbed_selector_turns", "Turns of selectors begun, by kind of work.", Kind::Counter);
        for (work, of) in [("compile", &self.compiling), ("match", &self.matching)] {
            let labels = [("work", Cow::Borrowed(work))];
            waiting.push(&labels, Measured::Number(of.waiting() as f64));
            turns.push(&labels, Measured::Count(of.begun()));
        }
        vec![waiting, turns]
    }

    pub(crate) fn has_waiting(&self) -> bool {
        self.matching.waiting() > 0
    }

    /// Compiles a selector for a feed.
    ///
    /// # Errors
    /// [`SelectorError`], all but [`SelectorError::Exhausted`].
    pub(crate) async fn compile(&self, origin: Origin, selector: Value<'static>) -> Result<FeedSelector> {
        let compiled = self.read(&origin, selector, Selector::new_unless).await?;
        let selector = Arc::new(compiled.map_err(SelectorError::Invalid)?);
        Ok(FeedSelector { selector, selectors: self.clone(), origin })
    }

    /// Parses a request that contains selectors.
    ///
    /// # Errors
    /// [`SelectorError`], all but [`SelectorError::Exhausted`].
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        origin: &Origin,
        request: Value<'static>,
        read: impl FnOnce(&Value<'_>, &dyn Fn() -> bool) -> T + Send + 'static,
    ) -> Result<T> {
        // Bounds the memory of work that outlives its request.
        Selector::measure(&request).map_err(SelectorError::Invalid)?;
        if Selector::is_quick(&request) {
            return Ok(read(&request, &|| false));
        }
        self.apart(&self.compiling, origin, move |stop| read(&request, stop)).await
    }

    /// Plans on a blocking thread in one turn: planning passes over the whole selector again and again. The work can
    /// ask whether to stop.
    ///
    /// # Errors
    /// [`SelectorError::Busy`], [`SelectorError::BrokenOff`].
    pub(crate) async fn plan<T: Send + 'static>(
        &self,
        origin: &Origin,
        work: impl FnOnce(&dyn Fn() -> bool) -> T + Send + 'static,
    ) -> Result<T> {
        self.apart(&self.compiling, origin, work).await
    }

    #[cfg(test)]
    pub(crate) fn match_turns(&self) -> u64 {
        self.matching.begun()
    }

    /// The number of turns to compile that have begun, plans included.
    #[cfg(test)]
    pub(crate) fn compile_turns(&self) -> u64 {
        self.compiling.begun()
    }

    /// Runs `work` on documents given as JSON text, each parsed to a tree meanwhile; `weight` is the approximate cost
    /// per byte.
    ///
    /// # Errors
    /// Those of `work`, [`SelectorError::BrokenOff`].
    pub(crate) async fn each<T: Send + 'static>(
        &self,
        origin: &Origin,
        weight: usize,
        texts: Vec<Vec<u8>>,
        mut work: impl Fn(&Value<'_>, &dyn Fn() -> bool) -> Result<T> + Send + 'static,
    ) -> Result<Vec<T>> {
        let is_short = is_short(weight, texts.iter().map(Vec::len));
        let (mut done, mut left) = (Vec::with_capacity(texts.len()), texts.into_iter());
        if is_short {
            each(&mut left, &mut done, &work, || false, |_| (), &|| false)?;
            return Ok(done);
        }
        while left.len() > 0 {
            let acquire = tree_memory(&self.trees);
            let slice = move |stop: &dyn Fn() -> bool| {
                let (slice, mut some) = (Slice::begin(), Vec::new());
                each(&mut left, &mut some, &work, || slice.is_over(), acquire, stop)?;
                Ok::<_, SelectorError>((some, left, work))
            };
            let (some, rest, again) = self.apart(&self.matching, origin, slice).await??;
            done.extend(some);
            (left, work) = (rest, again);
        }
        Ok(done)
    }

    /// Runs one slice of asynchronous work that matches documents, on a blocking thread in one turn.
    ///
    /// # Errors
    /// [`SelectorError::Busy`], [`SelectorError::BrokenOff`].
    pub(crate) async fn long<T: Send + 'static>(
        &self,
        origin: &Origin,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T> {
        let runtime = Handle::current();
        self.apart(&self.matching, origin, move |_| runtime.block_on(work)).await
    }

    /// Runs work on a blocking thread in one turn. The work gets a function that returns whether its request was
    /// dropped.
    async fn apart<T: Send + 'static>(
        &self,
        turns: &Arc<Turns>,
        origin: &Origin,
        work: impl FnOnce(&dyn Fn() -> bool) -> T + Send + 'static,
    ) -> Result<T> {
        struct AbandonGuard(Arc<AtomicBool>);
        impl Drop for AbandonGuard {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let turn = turns.wait(origin.turn_keys()).await.map_err(|_| SelectorError::Busy)?;
        let abandoned = Arc::new(AtomicBool::new(false));
        let _abandon = AbandonGuard(abandoned.clone());
        let before_each = self.options.before_each.clone();
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            before_each();
            work(&|| abandoned.load(Ordering::Relaxed))
        });
        done.await.map_err(|error| match error.is_cancelled() {
            true => SelectorError::ShuttingDown,
            false => SelectorError::BrokenOff("a selector was not matched to its end".to_owned()),
        })
    }
}

/// Processes documents in order, at least one, until the slice is over. Appends the results to `done`. `acquire`
/// waits for the memory of a document's tree.
fn each<T, P>(
    left: &mut std::vec::IntoIter<Vec<u8>>,
    done: &mut Vec<T>,
    work: &impl Fn(&Value<'_>, &dyn Fn() -> bool) -> Result<T>,
    is_over: impl Fn() -> bool,
    acquire: impl Fn(usize) -> P,
    stop: &dyn Fn() -> bool,
) -> Result<()> {
    for text in left {
        if stop() {
            return Err(SelectorError::Exhausted(MatchInterrupted::Stopped));
        }
        let _permit = acquire(json::tree_bytes(&text));
        let value = json::parse(&text, &Limits::default());
        let value = value.map_err(|_| SelectorError::BrokenOff("a document is no JSON".to_owned()))?;
        done.push(work(&value, stop)?);
        if is_over() {
            break;
        }
    }
    Ok(())
}

/// Returns a function that waits for the memory of one tree. A task holds one tree at a time, so tasks cannot deadlock.
fn tree_memory(trees: &Arc<Budget>) -> impl Fn(usize) -> Option<Grant> + use<> {
    let (trees, runtime) = (trees.clone(), Handle::current());
    move |bytes| runtime.block_on(trees.take(bytes.min(TREES_BYTES_MAX)))
}

/// True if work on documents of these sizes takes at most some milliseconds.
fn is_short(weight: usize, documents: impl Iterator<Item = usize>) -> bool {
    let (mut all, mut largest) = (0_usize, 0);
    for bytes in documents {
        (all, largest) = (all + bytes, largest.max(bytes));
    }
    largest <= SHORT_DOCUMENT_BYTES && all.saturating_mul(weight) <= SHORT_WORK
}

/// A projection of a feed's documents to fields. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Projection {
    projector: Arc<Projector>,
    selectors: Selectors,
    origin: Origin,
}

impl Projection {
    pub(crate) fn new(origin: Origin, fields: &[Field], selectors: &Selectors) -> Projection {
        Projection { projector: Arc::new(Projector::new(fields)), selectors: selectors.clone(), origin }
    }

    /// Returns the fields of a document as JSON text. Attachments are stubs.
    ///
    /// # Errors
    /// [`SelectorError::BrokenOff`] if the projection failed, [`SelectorError::ShuttingDown`] if the server stops.
    pub async fn of(&self, document: &Document) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        json_out::document(document, &mut text);
        let projector = self.projector.clone();
        let weight = projector.weight();
        let projected = self
            .selectors
            .each(&self.origin, weight, vec![text], move |value, _| Ok(json::to_vec(&projector.project(value))));
        let texts = projected.await?;
        texts.into_iter().next().ok_or_else(|| SelectorError::BrokenOff("a document was not projected".to_owned()))
    }
}

/// A feed's selector.
#[derive(Debug, Clone)]
pub struct FeedSelector {
    selector: Arc<Selector>,
    selectors: Selectors,
    origin: Origin,
}

impl FeedSelector {
    /// Returns the rows whose documents match.
    ///
    /// # Errors
    /// [`SelectorError::Exhausted`], [`SelectorError::BrokenOff`].
    pub(crate) async fn pass<R: SelectableRow>(&self, rows: Vec<R>) -> Result<Vec<R>> {
        if self.is_short(&rows) {
            return self.pass_now(rows);
        }
        let (mut passed, mut left, mut progress) = (Vec::new(), rows.into_iter(), Progress::default());
        while left.len() > 0 {
            let (selector, selectors) = (self.selector.clone(), self.selectors.clone());
            let acquire = tree_memory(&self.selectors.trees);
            let slice = move |stop: &dyn Fn() -> bool| {
                let (slice, mut some) = (Slice::begin(), Vec::new());
                let pause = || selectors.has_waiting();
                let matching = Matcher { selector: &selector, acquire, stop, pause: &pause };
                matching.pass(&mut left, &mut progress, &mut some, || slice.is_over())?;
                Ok::<_, SelectorError>((some, left, progress))
            };
            let (some, rest, paused) = self.selectors.apart(&self.selectors.matching, &self.origin, slice).await??;
            passed.extend(some);
            (left, progress) = (rest, paused);
        }
        Ok(passed)
    }

    /// As [`FeedSelector::pass`], for short work.
    ///
    /// # Errors
    /// [`SelectorError::Exhausted`].
    pub(crate) fn pass_now<R: SelectableRow>(&self, rows: Vec<R>) -> Result<Vec<R>> {
        let mut passed = Vec::new();
        let matching = Matcher { selector: &self.selector, acquire: |_: usize| (), stop: &|| false, pause: &|| false };
        matching.pass(&mut rows.into_iter(), &mut Progress::default(), &mut passed, || false)?;
        Ok(passed)
    }

    /// True if the rows take at most some milliseconds.
    pub(crate) fn is_short<R: SelectableRow>(&self, rows: &[R]) -> bool {
        let bytes = |document: &Document| {
            let attachments = document.attachments.iter().map(|attachment| attachment.name.len() + 200).sum::<usize>();
            document.body.len() + attachments + 100
        };
        is_short(self.selector.weight(), rows.iter().filter_map(SelectableRow::document).map(bytes))
    }
}

/// A row that a selector judges.
pub(crate) trait SelectableRow: Send + 'static {
    fn document(&self) -> Option<&Document>;

    /// The row's kind: a row of a lost document passes without a match.
    fn kind(&self) -> RowKind;
}

impl SelectableRow for ChangeRow {
    fn document(&self) -> Option<&Document> {
        self.doc.as_ref()
    }

    fn kind(&self) -> RowKind {
        self.kind
    }
}

impl SelectableRow for Arc<TailRow> {
    fn document(&self) -> Option<&Document> {
        match &self.document {
            TailDocument::Read { document, .. } => Some(document),
            TailDocument::NotRead => None,
        }
    }

    fn kind(&self) -> RowKind {
        self.row.kind
    }
}

/// A selector that matches rows within a slice. `acquire` waits for the memory of a document's tree.
struct Matcher<'m, A> {
    selector: &'m Selector,
    acquire: A,
    stop: &'m dyn Fn() -> bool,
    pause: &'m dyn Fn() -> bool,
}

impl<P, A: Fn(usize) -> P> Matcher<'_, A> {
    /// Moves the matching rows from `left` to `passed` until the slice is over. If it ends inside a document, the row
    /// stays in `left`, and `progress` tells where the match resumes.
    fn pass<R: SelectableRow>(
        &self,
        left: &mut std::vec::IntoIter<R>,
        progress: &mut Progress,
        passed: &mut Vec<R>,
        is_over: impl Fn() -> bool,
    ) -> Result<()> {
        while let Some(row) = left.as_slice().first() {
            let is_selected = match (row.kind(), row.document()) {
                (RowKind::Lost | RowKind::Revoked | RowKind::User, _) => Some(true),
                (RowKind::Changed, None) => Some(false),
                (RowKind::Changed, Some(document)) => self.matches(document, progress)?,
            };
            let Some(is_selected) = is_selected else { break };
            passed.extend(left.next().filter(|_| is_selected));
            if is_over() {
                break;
            }
        }
        Ok(())
    }

    /// Returns whether a document matches; `None`: the match has paused. Each slice parses the document again, so
    /// that no tree is kept between slices.
    fn matches(&self, document: &Document, progress: &mut Progress) -> Result<Option<bool>> {
        let mut text = Vec::new();
        // Deleted leaves may have been read for other followers.
        match document.deleted_conflicts.is_some() {
            true => json_out::document(&Document { deleted_conflicts: None, ..document.clone() }, &mut text),
            false => json_out::document(document, &mut text),
        }
        let _permit = (self.acquire)(json::tree_bytes(&text));
        let Ok(value) = json::parse(&text, &Limits::default()) else { return Ok(Some(false)) };
        if (self.stop)() {
            return Err(SelectorError::Exhausted(MatchInterrupted::Stopped));
        }
        let interrupts = Interrupts { stop: self.stop, pause: self.pause, steps: slice_steps(text.len()) };
        match self.selector.matches_in_slices(&value, progress, interrupts) {
            Ok(is_selected) => Ok(Some(is_selected)),
            Err(MatchInterrupted::Paused) => Ok(None),
            Err(exhausted) => Err(SelectorError::Exhausted(exhausted)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use flatbed_layer::RevId;
    use flatbed_testkit::{soon, until, until_blocking};
    use futures_util::FutureExt;

    use super::*;

    fn origin() -> Origin {
        Origin::at([127, 0, 0, 1], "db")
    }

    fn selectors() -> Selectors {
        Selectors::new(SelectorOptions::default())
    }

    /// A dropped request starts no further work.
    #[tokio::test]
    async fn turns_belong_to_the_work() {
        let (selectors, origin) = (selectors(), origin());
        let (begun, turn) = (Arc::new(AtomicUsize::new(0)), Arc::new(tokio::sync::Mutex::new(())));
        let held = turn.lock().await;
        for _ in 0..30 {
            let (begun, turn) = (begun.clone(), turn.clone());
            let work = selectors.apart(&selectors.matching, &origin, move |_| {
                begun.fetch_add(1, Ordering::SeqCst);
                drop(turn.blocking_lock());
            });
            // The client hangs up.
            assert!(tokio::time::timeout(Duration::from_millis(2), work).await.is_err());
        }
        until("two are at work", async || begun.load(Ordering::SeqCst) >= 2).await;
        drop(held);
        let turn = || selectors.matching.wait(origin.turn_keys());
        let _all = soon(async { (turn().await.unwrap(), turn().await.unwrap()) }).await;
        assert_eq!(begun.load(Ordering::SeqCst), 2);
    }

    fn row(body: Option<String>) -> ChangeRow {
        let seq = "0000000000000005-000000000000000700000000".parse().unwrap();
        let rev: RevId = "1-a".parse().unwrap();
        let document = body.map(|body| Document {
            id: "d".into(),
            rev: rev.clone(),
            deleted: false,
            body: body.into_bytes(),
            revisions: None,
            revs_info: None,
            born: None,
            conflicts: None,
            deleted_conflicts: None,
            local_seq: None,
            ends_at_ms: None,
            attachments: Vec::new(),
        });
        let leaves = vec![rev.clone()];
        let (kind, id) = (RowKind::Changed, "d".into());
        let (because, removed, ends_at_ms) = (None, Vec::new(), None);
        let (leaf_count, deleted, doc) = (1, false, document);
        ChangeRow { kind, seq, because, id, rev, leaves, leaf_count, deleted, removed, doc, ends_at_ms }
    }

    #[test]
    fn what_is_lost_passes_every_selector() {
        let row = row(None);
        let selector = Selector::new(&json::parse(b"{}", &Limits::default()).unwrap()).unwrap();
        let rows = vec![row.clone(), row.lost(), row];
        let mut passed = Vec::new();
        let matching = Matcher { selector: &selector, acquire: |_: usize| (), stop: &|| false, pause: &|| false };
        matching.pass(&mut rows.into_iter(), &mut Progress::default(), &mut passed, || false).unwrap();
        assert_eq!(passed.iter().map(|row| row.kind).collect::<Vec<_>>(), [RowKind::Lost]);
    }

    /// A document's tree takes up to 32 times the bytes of its text.
    #[tokio::test]
    async fn trees_of_large_documents_wait_for_room() {
        let selectors = selectors();
        let selector = json::parse(br#"{"_id":"d"}"#, &Limits::default()).unwrap().into_owned();
        let selecting = selectors.compile(origin(), selector).await.unwrap();
        let rows = |numbers: usize| vec![row(Some(format!("\"a\":[{}0]", "0,".repeat(numbers))))];
        assert!(selecting.is_short(&rows(10_000)) && !selecting.is_short(&rows(40_000)));
        let taken = selectors.trees.take(TREES_BYTES_MAX).await.unwrap();
        assert_eq!(selecting.pass(rows(10_000)).await.unwrap().len(), 1, "small ones need none");
        let mut waits = Box::pin(selecting.pass(rows(400_000)));
        assert!(tokio::time::timeout(Duration::from_millis(100), &mut waits).await.is_err());
        drop(taken);
        assert_eq!(waits.await.unwrap().len(), 1);
        assert_eq!(selectors.trees.used(), 0);
        // The largest document takes all of it.
        assert_eq!(selecting.pass(rows(4_000_000)).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn no_feed_under_way_is_cut() {
        let (selectors, origin) = (selectors(), origin());
        let turn = || selectors.matching.wait(origin.turn_keys());
        let held = [turn().await.unwrap(), turn().await.unwrap()];
        let mut waiting: Vec<_> = (0..20_000).map(|_| Box::pin(turn())).collect();
        assert!(waiting.iter_mut().all(|waiting| waiting.now_or_never().is_none()));
        assert_eq!(selectors.matching.waiting(), 20_000);
        drop(held);
        for first in waiting.drain(..2) {
            soon(first).await.unwrap();
        }
    }

    /// A slice is one document in tests.
    #[tokio::test]
    async fn a_page_has_a_turn_for_each_slice() {
        let (selectors, origin) = (selectors(), origin());
        let parse = |text: &str| json::parse(text.as_bytes(), &Limits::default()).unwrap().into_owned();
        let quick = selectors.compile(origin.clone(), parse(r#"{"_id":"d"}"#)).await.unwrap();
        assert_eq!(selectors.compiling.begun(), 0, "a quick one waits for no turn");
        let selecting = selectors.compile(origin.clone(), parse(r#"{"a":{"$regex":"^b*$"}}"#)).await.unwrap();
        assert_eq!(selectors.compiling.begun(), 1);
        let text = "b".repeat(70_000);
        let rows = || [text.as_str(), "c", text.as_str()].map(|text| row(Some(format!(r#""a":"{text}""#)))).to_vec();
        assert_eq!(selecting.pass(rows()).await.unwrap().len(), 2);
        assert_eq!(selectors.matching.begun(), 3);
        assert_eq!(quick.pass(rows()).await.unwrap().len(), 3);
        let texts = rows().iter().map(|row| crate::queries::text_of(row.doc.as_ref().unwrap())).collect();
        let done = selectors.each(&origin, 1, texts, |value, _| Ok(value.get("a").is_some())).await;
        assert_eq!((done.unwrap(), selectors.matching.begun()), (vec![true; 3], 9));
    }

    /// A slice is about a million steps. Each of the regular expressions takes 1.6 million steps on 100 kB.
    #[tokio::test]
    async fn a_large_document_gives_its_turn_up() {
        let (mut selectors, origin) = (selectors(), origin());
        selectors.matching = Turns::new(1, usize::MAX);
        let regexes: String = (0..8).map(|n| format!(r#"{{"a":{{"$regex":"x{n}"}}}},"#)).collect();
        let selector = format!(r#"{{"$or":[{regexes}{{"a":{{"$regex":"bc"}}}}]}}"#);
        let selector = json::parse(selector.as_bytes(), &Limits::default()).unwrap().into_owned();
        let selecting = selectors.compile(origin.clone(), selector).await.unwrap();
        let held = selectors.matching.wait(origin.turn_keys()).await.unwrap();
        let rows = vec![row(Some(format!(r#""a":"{}c""#, "b".repeat(100_000))))];
        let large = tokio::spawn(async move { selecting.pass(rows).await });
        until("the large document waits", async || selectors.matching.waiting() == 1).await;
        let neighbour = Origin::at([10, 0, 0, 1], "other");
        let mut turn = Box::pin(selectors.matching.wait(neighbour.turn_keys()));
        assert!((&mut turn).now_or_never().is_none());
        drop(held);
        let turn = soon(turn).await.unwrap();
        until("the large document waits again", async || selectors.matching.waiting() == 1).await;
        assert_eq!(selectors.matching.begun(), 3);
        drop(turn);
        assert_eq!(soon(large).await.unwrap().unwrap().len(), 1);
        // Without other work it matches to the end in one turn.
        assert_eq!(selectors.matching.begun(), 4);
    }

    #[tokio::test]
    async fn what_nobody_waits_for_stops() {
        let (mut selectors, origin) = (selectors(), origin());
        selectors.matching = Turns::new(1, 1);
        let endless = selectors.apart(&selectors.matching, &origin, |stop| {
            until_blocking("nobody waits any more", stop);
        });
        assert!(tokio::time::timeout(Duration::from_millis(50), endless).await.is_err());
        assert_eq!(soon(selectors.apart(&selectors.matching, &origin, |_| 7)).await.unwrap(), 7);
    }
}
