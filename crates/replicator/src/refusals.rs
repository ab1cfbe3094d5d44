//! Writes the reason into documents whose replications are refused. Owners take turns, and the database is read in parallel, so the many
//! documents of one owner do not delay those of another.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flatbed_layer::{Error as LayerError, GetOptions, Refusal as LayerRefusal, RevId};
use flatbed_replicate::{Error, Progress};
use tokio::sync::Notify;

use crate::Replicator;
use crate::description::Description;
use crate::follow::Origins;

/// The most queued documents of one owner. Further ones are found when the database is read again.
const OWNER_REFUSALS_MAX: usize = 1_000;

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

struct State {
    queue: TurnQueue<RefusedDocument>,
    /// A document was not queued, so the database must be read again.
    is_cut: bool,
    /// The database has been read to its end.
    is_read: bool,
}

/// The queue of refused documents of one database.
pub(crate) struct Refusals {
    state: Mutex<State>,
    changed: Notify,
}

impl Refusals {
    pub(crate) fn new() -> Refusals {
        let state = State { queue: TurnQueue::new(), is_cut: false, is_read: false };
        Refusals { state: Mutex::new(state), changed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a document. `owner` is empty for a document without an owner.
    pub(crate) fn push(&self, owner: &str, refused: RefusedDocument) {
        let mut state = self.state();
        let is_added = state.queue.push(owner, refused, OWNER_REFUSALS_MAX);
        state.is_cut |= !is_added;
        drop(state);
        self.changed.notify_one();
    }

    /// Notes that the database was read to its end.
    pub(crate) fn note_end(&self) {
        self.state().is_read = true;
        self.changed.notify_one();
    }

    /// Writes the reasons into the documents. Returns once the queue is empty and the database must be read again.
    pub(crate) async fn write(&self, replicator: &Replicator) {
        loop {
            let next = {
                let mut state = self.state();
                let next = state.queue.pop();
                if next.is_none() && state.is_cut && state.is_read {
                    return;
                }
                next
            };
            let Some(refused) = next else {
                self.changed.notified().await;
                continue;
            };
            let database = refused.origins.name.clone();
            if let Err(error) = refuse(replicator, refused).await {
                tracing::warn!(%error, database = &*database, "a document could not be refused");
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
