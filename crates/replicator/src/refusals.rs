//! Writes the reason into documents whose replications are refused. Owners take turns, and the database is read in
//! parallel, so the many documents of one owner do not delay those of another.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flatbed_layer::{Error as LayerError, GetOptions, Refusal as LayerRefusal, RevId};
use flatbed_replicate::{Error, Progress};
use tokio::sync::Notify;

use crate::Replicator;
use crate::description::Description;
use crate::follow::Origins;

/// The most queued documents of one owner. Further ones are found when the database is read again.
const OWNER_REFUSALS_MAX: usize = 1_000;

/// The most documents whose refusal failed that are remembered.
const FAILED_MAX: usize = 2_000;

/// The pause before the database is read again for documents that were not queued.
const PAUSE: Duration = Duration::from_secs(1);

/// That pause after a pass without progress.
const IDLE_PAUSE: Duration = Duration::from_secs(60);

/// A document whose replication is refused.
pub(crate) struct RefusedDocument {
    pub(crate) origins: Origins,
    pub(crate) id: String,
    /// The refused revision. A later one is judged again.
    pub(crate) rev: RevId,
    pub(crate) error: Error,
}

/// Items by owner. Owners take turns, one item each.
struct TurnQueue<T> {
    items: HashMap<Arc<str>, VecDeque<T>>,
    /// The owners of `items`, each once.
    turns: VecDeque<Arc<str>>,
}

impl<T> TurnQueue<T> {
    fn new() -> TurnQueue<T> {
        TurnQueue { items: HashMap::new(), turns: VecDeque::new() }
    }

    /// Adds an item, unless the owner has `owner_max`; returns whether it was added.
    fn push(&mut self, owner: &str, item: T, owner_max: usize) -> bool {
        if let Some(items) = self.items.get_mut(owner) {
            let is_below_max = items.len() < owner_max;
            if is_below_max {
                items.push_back(item);
            }
            return is_below_max;
        }
        let owner: Arc<str> = owner.into();
        self.turns.push_back(owner.clone());
        self.items.insert(owner, VecDeque::from([item]));
        true
    }

    fn pop(&mut self) -> Option<T> {
        let owner = self.turns.pop_front()?;
        let items = self.items.get_mut(&owner)?;
        let item = items.pop_front();
        if items.is_empty() {
            self.items.remove(&owner);
        } else {
            self.turns.push_back(owner);
        }
        item
    }
}

struct PassState {
    queue: TurnQueue<RefusedDocument>,
    /// A document was not queued, so the database must be read again.
    is_cut: bool,
    is_read: bool,
    /// A document was refused in this pass, or is newly in `failed`.
    has_progress: bool,
    /// The revisions whose refusal failed, by document. They are not queued again, so that others of their owners are.
    failed: HashMap<String, RevId>,
}

impl PassState {
    fn push(&mut self, owner: &str, refused: RefusedDocument) {
        if self.failed.get(&refused.id) != Some(&refused.rev) {
            self.is_cut |= !self.queue.push(owner, refused, OWNER_REFUSALS_MAX);
        }
    }

    fn note_failure(&mut self, id: String, rev: RevId) {
        if self.failed.len() < FAILED_MAX {
            self.has_progress = true;
            self.failed.insert(id, rev);
        }
    }

    /// Ends the pass if the queue is empty and the database must be read again. Returns how long to wait before that.
    fn end(&mut self) -> Option<Duration> {
        if !self.queue.turns.is_empty() || !self.is_cut || !self.is_read {
            return None;
        }
        if self.has_progress {
            return Some(PAUSE);
        }
        self.failed.clear();
        Some(IDLE_PAUSE)
    }
}

pub(crate) struct Refusals {
    state: Mutex<PassState>,
    changed: Notify,
}

impl Refusals {
    pub(crate) fn new() -> Refusals {
        let (is_cut, is_read, has_progress) = (false, false, false);
        let state = PassState { queue: TurnQueue::new(), is_cut, is_read, has_progress, failed: HashMap::new() };
        Refusals { state: Mutex::new(state), changed: Notify::new() }
    }

    /// Begins a pass: the database is read from its beginning.
    pub(crate) fn begin(&self) {
        let mut state = self.state();
        state.queue = TurnQueue::new();
        (state.is_cut, state.is_read, state.has_progress) = (false, false, false);
    }

    fn state(&self) -> MutexGuard<'_, PassState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a document. `owner` is empty for a document without an owner.
    pub(crate) fn push(&self, owner: &str, refused: RefusedDocument) {
        self.state().push(owner, refused);
        self.changed.notify_one();
    }

    /// Notes that the database was read to its end.
    pub(crate) fn note_end(&self) {
        self.state().is_read = true;
        self.changed.notify_one();
    }

    /// Writes the reasons into the documents. Returns after a pause, once the queue is empty and the database must be
    /// read again.
    pub(crate) async fn write(&self, replicator: &Replicator) {
        loop {
            let end = self.state().end();
            if let Some(pause) = end {
                // The database is followed during the pause.
                if replicator.clock().timeout(pause, self.changed.notified()).await.is_err() {
                    return;
                }
                continue;
            }
            let next = self.state().queue.pop();
            let Some(refused) = next else {
                self.changed.notified().await;
                continue;
            };
            let (database, id, rev) = (refused.origins.name.clone(), refused.id.clone(), refused.rev.clone());
            match refuse(replicator, refused).await {
                Ok(()) => self.state().has_progress = true,
                Err(error) => {
                    tracing::warn!(%error, database = &*database, "a document could not be refused");
                    self.state().note_failure(id, rev);
                }
            }
        }
    }
}

async fn refuse(replicator: &Replicator, refused: RefusedDocument) -> flatbed_layer::Result<()> {
    let RefusedDocument { origins, id, rev, error } = refused;
    let database = replicator.database(&origins.name);
    let _tree = replicator.trees.acquire().await;
    let document = match database.get(&id, &GetOptions::default()).await {
        Ok(document) => document,
        Err(LayerError::DatabaseNotFound | LayerError::Refused(LayerRefusal::DocumentNotFound(_))) => {
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let description = Description::read(&document).filter(|description| description.rev == rev);
    let Some(description) = description.filter(|description| description.end().is_none()) else { return Ok(()) };
    // Checked after the read: the document then belongs to this incarnation of the database.
    if !replicator.is_still(&origins).await? {
        return Ok(());
    }
    description.note(&database, None, 0, &Progress::default(), &Err(error)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(n: usize) -> RefusedDocument {
        let origins = Origins { name: "_replicator".into(), incarnation: None };
        RefusedDocument { origins, id: n.to_string(), rev: RevId::new(1, [0; 16]), error: Error::Superseded }
    }

    fn ids(range: std::ops::Range<usize>) -> Vec<usize> {
        range.collect()
    }

    /// Runs one pass over documents of one owner whose refusals fail.
    fn pass(refusals: &Refusals, count: usize) -> (Vec<usize>, Option<Duration>) {
        refusals.begin();
        (0..count).for_each(|n| refusals.push("anna", document(n)));
        refusals.note_end();
        let mut state = refusals.state();
        let queued: Vec<RefusedDocument> = std::iter::from_fn(|| state.queue.pop()).collect();
        let ids = queued.iter().map(|document| document.id.parse().unwrap()).collect();
        queued.into_iter().for_each(|RefusedDocument { id, rev, .. }| state.note_failure(id, rev));
        (ids, state.end())
    }

    #[test]
    fn documents_that_cannot_be_refused_hold_up_no_others() {
        let refusals = Refusals::new();
        assert_eq!(pass(&refusals, 2_500), (ids(0..1_000), Some(PAUSE)));
        assert_eq!(pass(&refusals, 2_500), (ids(1_000..2_000), Some(PAUSE)));
        // The last ones are queued, and no pass follows.
        assert_eq!(pass(&refusals, 2_500), (ids(2_000..2_500), None));
    }

    #[test]
    fn a_pass_without_progress_is_followed_by_a_long_pause() {
        let refusals = Refusals::new();
        assert_eq!(pass(&refusals, 3_500).1, Some(PAUSE));
        assert_eq!(pass(&refusals, 3_500).1, Some(PAUSE));
        assert_eq!(pass(&refusals, 3_500), (ids(2_000..3_000), Some(IDLE_PAUSE)));
        // All are retried.
        assert_eq!(pass(&refusals, 3_500).0, ids(0..1_000));
    }

    #[test]
    fn the_one_document_of_an_owner_is_refused_after_one_of_another() {
        let mut queue = TurnQueue::new();
        for n in 0..20_000 {
            assert_eq!(queue.push("anna", n, 1_000), n < 1_000);
        }
        assert!(queue.push("bob", -1, 1_000) && queue.push("", -2, 1_000));
        let first: Vec<i32> = (0..6).filter_map(|_| queue.pop()).collect();
        assert_eq!(first, [0, -1, -2, 1, 2, 3]);
        let rest = std::iter::from_fn(|| queue.pop()).count();
        assert_eq!(rest, 996);
        assert!(queue.items.is_empty() && queue.turns.is_empty());
        assert!(queue.push("anna", 0, 1_000));
    }
}
