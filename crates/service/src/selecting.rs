//! Selectors of feeds, compiled and matched where that takes long without holding up the runtime's threads.
//!
//! Of both a few go on at once, on threads for blocking work. The permit is the work's, not the request's: it comes back
//! when the work ends, which it does soon after the last who waited for it is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flatbed_layer::json::{self, Limits, Value};
use flatbed_layer::{ChangeRow, Document, Error as LayerError, RowKind, TailDocument, TailRow};
use flatbed_mango::{Exhausted, Field, InvalidSelector, Selector, project};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::json_out;

/// Selectors that are compiled at once.
const COMPILED_AT_ONCE: usize = 2;

/// Selectors that are compiled or wait for it.
const COMPILING_MAX: usize = 32;

/// Pages of documents that are matched at once, of those that take long.
const MATCHED_AT_ONCE: usize = 2;

/// A page takes long beyond so many bytes, times the selector's weight: some milliseconds.
const SHORT_WORK: usize = 500_000;

/// A document of more bytes is not matched in between: its tree is counted.
const SHORT_DOCUMENT_BYTES: usize = 64 << 10;

/// What the trees of documents take that are matched apart, all together. The largest document's fits.
const TREES_BYTES_MAX: usize = 256 << 20;

/// The unit in which that is given out.
const PERMIT_BYTES: usize = 1024;

/// Why a selector is not compiled, or not matched.
#[derive(Debug, thiserror::Error)]
pub enum SelectorError {
    /// It is none, or beyond its bounds.
    #[error("{}", invalid(.0))]
    Invalid(InvalidSelector),
    /// Many are being compiled.
    #[error("Too many selectors are being compiled")]
    Busy,
    /// A document is too much for it, or nobody waits for it.
    #[error(transparent)]
    Exhausted(Exhausted),
    /// The work ended before its end.
    #[error("{0}")]
    BrokenOff(String),
    /// The server ends.
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

/// What selectors are compiled and matched with. Cheap to clone; made once.
#[derive(Debug, Clone)]
pub(crate) struct Selectors {
    room: Arc<Semaphore>,
    compiling: Arc<Semaphore>,
    matching: Arc<Semaphore>,
    trees: Arc<Semaphore>,
}

impl Selectors {
    /// None is compiled or matched yet.
    pub(crate) fn new() -> Selectors {
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        let (room, compiling) = (semaphore(COMPILING_MAX), semaphore(COMPILED_AT_ONCE));
        let trees = semaphore(TREES_BYTES_MAX / PERMIT_BYTES);
        Selectors { room, compiling, matching: semaphore(MATCHED_AT_ONCE), trees }
    }

    /// Compiles a selector.
    ///
    /// # Errors
    /// [`SelectorError`], all but [`SelectorError::Exhausted`].
    pub(crate) async fn compile(&self, selector: Value<'static>) -> Result<Selecting> {
        // What goes on without its request must not hold more than this.
        Selector::measure(&selector).map_err(SelectorError::Invalid)?;
        let _room = self.room.try_acquire().map_err(|_| SelectorError::Busy)?;
        let compiled = apart(&self.compiling, move |stop| Selector::new_unless(&selector, stop)).await?;
        let selector = Arc::new(compiled.map_err(SelectorError::Invalid)?);
        Ok(Selecting { selector, selectors: self.clone() })
    }
}

impl Selectors {
    /// Reads a request that has selectors in it, which are compiled.
    ///
    /// # Errors
    /// [`SelectorError`], all but [`SelectorError::Exhausted`].
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        request: Value<'static>,
        read: impl FnOnce(&Value<'_>, &dyn Fn() -> bool) -> T + Send + 'static,
    ) -> Result<T> {
        Selector::measure(&request).map_err(SelectorError::Invalid)?;
        let _room = self.room.try_acquire().map_err(|_| SelectorError::Busy)?;
        apart(&self.compiling, move |stop| read(&request, stop)).await
    }

    /// Works on documents given as JSON text, each with its tree in memory meanwhile; `weight`: about how much is done for a
    /// byte.
    ///
    /// # Errors
    /// Those of `work`, [`SelectorError::BrokenOff`].
    pub(crate) async fn each<T: Send + 'static>(
        &self,
        weight: usize,
        texts: Vec<Vec<u8>>,
        work: impl Fn(&Value<'_>, &dyn Fn() -> bool) -> Result<T> + Send + 'static,
    ) -> Result<Vec<T>> {
        if is_short(weight, texts.iter().map(Vec::len)) {
            return each(texts, work, |_| (), &|| false);
        }
        let room = tree_room(&self.trees);
        apart(&self.matching, move |stop| each(texts, work, room, stop)).await?
    }
}

impl Selectors {
    /// Carries out work that matches for long between its waits, on a thread of its own when there is one for it.
    ///
    /// # Errors
    /// [`SelectorError::BrokenOff`].
    pub(crate) async fn long<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<T> {
        let runtime = Handle::current();
        apart(&self.matching, move |_| runtime.block_on(work)).await
    }
}

fn each<T, P>(
    texts: Vec<Vec<u8>>,
    work: impl Fn(&Value<'_>, &dyn Fn() -> bool) -> Result<T>,
    room: impl Fn(usize) -> P,
    stop: &dyn Fn() -> bool,
) -> Result<Vec<T>> {
    let one = |text: Vec<u8>| {
        if stop() {
            return Err(SelectorError::Exhausted(Exhausted::Stopped));
        }
        let _room = room(json::tree_bytes(&text));
        let value = json::parse(&text, &Limits::default());
        let value = value.map_err(|_| SelectorError::BrokenOff("a document is no JSON".to_owned()))?;
        work(&value, stop)
    };
    texts.into_iter().map(one).collect()
}

/// Waits for room for trees. One that waits for room has none, and one that has room needs no more of it to get on.
fn tree_room(trees: &Arc<Semaphore>) -> impl Fn(usize) -> Option<OwnedSemaphorePermit> + use<> {
    let (trees, runtime) = (trees.clone(), Handle::current());
    move |bytes| {
        let permits = u32::try_from(bytes.min(TREES_BYTES_MAX) / PERMIT_BYTES).unwrap_or(u32::MAX);
        runtime.block_on(trees.clone().acquire_many_owned(permits)).ok()
    }
}

/// Whether work on documents of so many bytes takes some milliseconds at most.
fn is_short(weight: usize, documents: impl Iterator<Item = usize>) -> bool {
    let (mut all, mut largest) = (0_usize, 0);
    for bytes in documents {
        (all, largest) = (all + bytes, largest.max(bytes));
    }
    largest <= SHORT_DOCUMENT_BYTES && all.saturating_mul(weight) <= SHORT_WORK
}

/// Runs work on a thread of its own when there is a permit for it; it can see whether somebody still waits.
async fn apart<T: Send + 'static>(
    permits: &Arc<Semaphore>,
    work: impl FnOnce(&dyn Fn() -> bool) -> T + Send + 'static,
) -> Result<T> {
    struct Abandon(Arc<AtomicBool>);
    impl Drop for Abandon {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let permit = permits.clone().acquire_owned().await.map_err(|error| SelectorError::BrokenOff(error.to_string()))?;
    let abandoned = Arc::new(AtomicBool::new(false));
    let _abandon = Abandon(abandoned.clone());
    let done = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        work(&|| abandoned.load(Ordering::Relaxed))
    });
    done.await.map_err(|error| match error.is_cancelled() {
        true => SelectorError::ShuttingDown,
        false => SelectorError::BrokenOff("a selector was not matched to its end".to_owned()),
    })
}

/// The fields of documents that a feed shows. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Projection {
    fields: Arc<[Field]>,
    selectors: Selectors,
}

impl Projection {
    pub(crate) fn new(fields: Vec<Field>, selectors: &Selectors) -> Projection {
        Projection { fields: fields.into(), selectors: selectors.clone() }
    }

    /// Returns the fields of a document as JSON text. Attachments are stubs.
    ///
    /// # Errors
    /// [`SelectorError::BrokenOff`] if the projection failed, [`SelectorError::ShuttingDown`] if the server stops.
    pub async fn of(&self, document: &Document) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        json_out::document(document, &mut text);
        let fields = self.fields.clone();
        // The cost of a field is the members that it passes.
        let weight = fields.len().max(1);
        let projected = self.selectors.each(weight, vec![text], move |value, _| {
            let mut text = Vec::new();
            json::write(&project(value, &fields), &mut text);
            Ok(text)
        });
        let texts = projected.await?;
        texts.into_iter().next().ok_or_else(|| SelectorError::BrokenOff("a document was not projected".to_owned()))
    }
}

/// A feed's selector.
#[derive(Debug, Clone)]
pub struct Selecting {
    selector: Arc<Selector>,
    selectors: Selectors,
}

impl Selecting {
    /// The rows whose documents are selected.
    ///
    /// # Errors
    /// [`SelectorError::Exhausted`], [`SelectorError::BrokenOff`].
    pub(crate) async fn pass<R: Row>(&self, rows: Vec<R>) -> Result<Vec<R>> {
        if self.is_short(&rows) {
            return self.pass_now(rows);
        }
        let (selector, room) = (self.selector.clone(), tree_room(&self.selectors.trees));
        apart(&self.selectors.matching, move |stop| pass(&selector, rows, room, stop)).await?
    }

    /// As [`Selecting::pass`], where that is short.
    ///
    /// # Errors
    /// [`SelectorError::Exhausted`].
    pub(crate) fn pass_now<R: Row>(&self, rows: Vec<R>) -> Result<Vec<R>> {
        pass(&self.selector, rows, |_| (), &|| false)
    }

    /// Whether it takes some milliseconds at most.
    pub(crate) fn is_short<R: Row>(&self, rows: &[R]) -> bool {
        let bytes = |document: &Document| {
            let attachments = document.attachments.iter().map(|attachment| attachment.name.len() + 200).sum::<usize>();
            document.body.len() + attachments + 100
        };
        is_short(self.selector.weight(), rows.iter().filter_map(Row::document).map(bytes))
    }
}

/// What a selector lets through, or does not.
pub(crate) trait Row: Send + 'static {
    /// The document that is asked about.
    fn document(&self) -> Option<&Document>;

    /// Nothing is asked about a document that is lost.
    fn kind(&self) -> RowKind;
}

impl Row for ChangeRow {
    fn document(&self) -> Option<&Document> {
        self.doc.as_ref()
    }

    fn kind(&self) -> RowKind {
        self.kind
    }
}

impl Row for Arc<TailRow> {
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

/// The rows whose documents are selected; each has its tree in memory while it is asked about, for which there is `room`.
fn pass<R: Row, P>(
    selector: &Selector,
    rows: Vec<R>,
    room: impl Fn(usize) -> P,
    stop: &dyn Fn() -> bool,
) -> Result<Vec<R>> {
    let mut passed = Vec::new();
    for row in rows {
        match row.kind() {
            RowKind::Changed => {}
            RowKind::Lost | RowKind::Revoked | RowKind::User => {
                passed.push(row);
                continue;
            }
        }
        let Some(document) = row.document() else { continue };
        let mut text = Vec::new();
        // Deleted leaves may have been read for others.
        match document.deleted_conflicts.is_some() {
            true => json_out::document(&Document { deleted_conflicts: None, ..document.clone() }, &mut text),
            false => json_out::document(document, &mut text),
        }
        let _room = room(json::tree_bytes(&text));
        let Ok(value) = json::parse(&text, &Limits::default()) else { continue };
        let selected = if stop() { Err(Exhausted::Stopped) } else { selector.matches_unless(&value, stop) };
        if selected.map_err(SelectorError::Exhausted)? {
            passed.push(row);
        }
    }
    Ok(passed)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use flatbed_layer::RevId;
    use flatbed_testkit::{soon, until, until_blocking};

    use super::*;

    /// Requests that end before their work does start no further work.
    #[tokio::test]
    async fn permits_belong_to_the_work() {
        let permits = Arc::new(Semaphore::new(2));
        let (begun, turn) = (Arc::new(AtomicUsize::new(0)), Arc::new(tokio::sync::Mutex::new(())));
        let held = turn.lock().await;
        for _ in 0..30 {
            let (begun, turn) = (begun.clone(), turn.clone());
            let work = apart(&permits, move |_| {
                begun.fetch_add(1, Ordering::SeqCst);
                drop(turn.blocking_lock());
            });
            // Its client hangs up.
            assert!(tokio::time::timeout(Duration::from_millis(2), work).await.is_err());
        }
        until("two are at work", async || begun.load(Ordering::SeqCst) >= 2).await;
        drop(held);
        let _all = soon(permits.acquire_many(2)).await.unwrap();
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
        let passed = pass(&selector, rows, |_| (), &|| false).unwrap();
        assert_eq!(passed.iter().map(|row| row.kind).collect::<Vec<_>>(), [RowKind::Lost]);
    }

    /// Trees of documents are up to 32 times their texts.
    #[tokio::test]
    async fn trees_of_large_documents_wait_for_room() {
        let selectors = Selectors::new();
        let selector = json::parse(br#"{"_id":"d"}"#, &Limits::default()).unwrap().into_owned();
        let selecting = selectors.compile(selector).await.unwrap();
        let rows = |numbers: usize| vec![row(Some(format!("\"a\":[{}0]", "0,".repeat(numbers))))];
        assert!(selecting.is_short(&rows(10_000)) && !selecting.is_short(&rows(40_000)));
        let taken = selectors.trees.clone().acquire_many_owned((TREES_BYTES_MAX / PERMIT_BYTES) as u32).await.unwrap();
        assert_eq!(selecting.pass(rows(10_000)).await.unwrap().len(), 1, "small ones need none");
        let mut waits = Box::pin(selecting.pass(rows(400_000)));
        assert!(tokio::time::timeout(Duration::from_millis(100), &mut waits).await.is_err());
        drop(taken);
        assert_eq!(waits.await.unwrap().len(), 1);
        assert_eq!(selectors.trees.available_permits(), TREES_BYTES_MAX / PERMIT_BYTES);
        // The largest has all of it.
        assert_eq!(selecting.pass(rows(4_000_000)).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn what_nobody_waits_for_stops() {
        let permits = Arc::new(Semaphore::new(1));
        let endless = apart(&permits, |stop| {
            until_blocking("nobody waits any more", stop);
        });
        assert!(tokio::time::timeout(Duration::from_millis(50), endless).await.is_err());
        assert_eq!(soon(apart(&permits, |_| 7)).await.unwrap(), 7);
    }
}
