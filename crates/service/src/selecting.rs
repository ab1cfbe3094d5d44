//! Selectors of feeds, compiled and matched where that takes long without holding up the runtime's threads.
//!
//! Of both a few go on at once, on threads for blocking work. The permit is the work's, not the request's: it comes back
//! when the work ends, which it does soon after the last who waited for it is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flatbed_layer::json::{self, Limits, Value};
use flatbed_layer::{ChangeRow, Document, RowKind, TailDocument, TailRow};
use flatbed_mango::{Exhausted, InvalidSelector, Selector};
use tokio::sync::Semaphore;

use crate::json_out;

/// Selectors that are compiled at once.
const COMPILED_AT_ONCE: usize = 2;

/// Selectors that are compiled or wait for it.
const COMPILING_MAX: usize = 32;

/// Pages of documents that are matched at once, of those that take long.
const MATCHED_AT_ONCE: usize = 2;

/// A page takes long beyond so many bytes, times the selector's weight: some milliseconds.
const SHORT_WORK: usize = 500_000;

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
}

type Result<T> = std::result::Result<T, SelectorError>;

fn invalid(error: &InvalidSelector) -> String {
    match error {
        InvalidSelector::NotAnObject => "Selector error: expected a JSON object".to_owned(),
        error => error.to_string(),
    }
}

/// What selectors are compiled and matched with. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Selectors {
    room: Arc<Semaphore>,
    compiling: Arc<Semaphore>,
    matching: Arc<Semaphore>,
}

impl Selectors {
    /// None is compiled or matched yet.
    #[allow(clippy::new_without_default, reason = "it is made once")]
    pub fn new() -> Selectors {
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        let (room, compiling) = (semaphore(COMPILING_MAX), semaphore(COMPILED_AT_ONCE));
        Selectors { room, compiling, matching: semaphore(MATCHED_AT_ONCE) }
    }

    /// Compiles a selector.
    ///
    /// # Errors
    /// [`SelectorError`], all but [`SelectorError::Exhausted`].
    pub async fn compile(&self, selector: Value<'static>) -> Result<Selecting> {
        // What goes on without its request must not hold more than this.
        Selector::measure(&selector).map_err(SelectorError::Invalid)?;
        let _room = self.room.try_acquire().map_err(|_| SelectorError::Busy)?;
        let compiled = apart(&self.compiling, move |stop| Selector::new_unless(&selector, stop)).await?;
        let selector = Arc::new(compiled.map_err(SelectorError::Invalid)?);
        Ok(Selecting { selector, selectors: self.clone() })
    }
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
    done.await.map_err(|_| SelectorError::BrokenOff("a selector was not matched to its end".to_owned()))
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
    pub async fn pass<R: Row>(&self, rows: Vec<R>) -> Result<Vec<R>> {
        if self.is_short(&rows) {
            return self.pass_now(rows);
        }
        let selector = self.selector.clone();
        apart(&self.selectors.matching, move |stop| pass(&selector, rows, stop)).await?
    }

    /// As [`Selecting::pass`], where that is short.
    ///
    /// # Errors
    /// [`SelectorError::Exhausted`].
    pub fn pass_now<R: Row>(&self, rows: Vec<R>) -> Result<Vec<R>> {
        pass(&self.selector, rows, &|| false)
    }

    /// Whether it takes some milliseconds at most.
    pub fn is_short<R: Row>(&self, rows: &[R]) -> bool {
        let bytes: usize = rows.iter().filter_map(Row::document).map(|document| document.body.len() + 100).sum();
        bytes.saturating_mul(self.selector.weight()) <= SHORT_WORK
    }
}

/// What a selector lets through, or does not.
pub trait Row: Send + 'static {
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

fn pass<R: Row>(selector: &Selector, rows: Vec<R>, stop: &dyn Fn() -> bool) -> Result<Vec<R>> {
    let mut passed = Vec::new();
    for row in rows {
        match row.kind() {
            RowKind::Changed => {}
            RowKind::Lost => {
                passed.push(row);
                continue;
            }
        }
        let Some(document) = row.document() else { continue };
        let mut text = Vec::new();
        json_out::document(document, &mut text);
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

    use super::*;

    /// Requests that end before their work does start no further work.
    #[tokio::test]
    async fn permits_belong_to_the_work() {
        let permits = Arc::new(Semaphore::new(2));
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        for _ in 0..30 {
            let (now, most) = (now.clone(), most.clone());
            let work = apart(&permits, move |_| {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(50));
                now.fetch_sub(1, Ordering::SeqCst);
            });
            // Its client hangs up.
            let _ = tokio::time::timeout(Duration::from_millis(2), work).await;
        }
        let _all = permits.acquire_many(2).await.unwrap();
        assert!(most.load(Ordering::SeqCst) <= 2, "{most:?}");
    }

    #[test]
    fn what_is_lost_passes_every_selector() {
        let seq = "0000000000000005-000000000000000700000000".parse().unwrap();
        let rev: RevId = "1-a".parse().unwrap();
        let leaves = vec![rev.clone()];
        let row = ChangeRow {
            kind: RowKind::Changed,
            seq,
            id: "d".into(),
            rev,
            leaves,
            leaf_count: 1,
            deleted: false,
            doc: None,
        };
        let selector = Selector::new(&json::parse(b"{}", &Limits::default()).unwrap()).unwrap();
        let rows = vec![row.clone(), row.lost(), row];
        let passed = pass(&selector, rows, &|| false).unwrap();
        assert_eq!(passed.iter().map(|row| row.kind).collect::<Vec<_>>(), [RowKind::Lost]);
    }

    #[tokio::test]
    async fn what_nobody_waits_for_stops() {
        let permits = Arc::new(Semaphore::new(1));
        let endless = apart(&permits, |stop| {
            while !stop() {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        assert!(tokio::time::timeout(Duration::from_millis(50), endless).await.is_err());
        assert_eq!(apart(&permits, |_| 7).await.unwrap(), 7);
    }
}
