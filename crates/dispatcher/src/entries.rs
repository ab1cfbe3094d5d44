//! The queue of one job, for its run: writes entries, and reads those to be replayed.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use flatbed_clock::Clock;
use flatbed_layer::WORKER;
use flatbed_worker::checkpoint::Checkpoint;
use flatbed_worker::documents::{CHECKPOINT, JOB, Order, OrderAction, QueuePart};
use flatbed_worker::queue::Entry;
use flatbed_worker::run::{Queue, QueueError, ReplayRequest, ReplayResult};
use hyper::Method;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::store::{Filter, Store, StoreError, expired, set, text_of};

/// The most ids of entries that are listed in one request.
const LISTED_MAX: u64 = 500;

/// The most bytes of documents in entries that are read ahead.
const BYTES_MAX: usize = 1 << 20;

/// The most entries that are replayed once automatically.
const AGAIN_MAX: usize = 1_000;

/// The interval at which expired entries are removed.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// The most entries that are removed in one request.
const SWEPT_MAX: u64 = 200;

/// The default limit of a job's entries.
const ENTRIES_MAX: u64 = 1_000_000;

#[derive(Debug)]
struct ListingState {
    order: Order,
    ids: VecDeque<String>,
    bookmark: Option<String>,
    is_listed: bool,
}

#[derive(Debug)]
pub(crate) struct Entries {
    clock: Clock,
    store: Store,
    job: String,
    settings: QueuePart,
    orders: watch::Receiver<Vec<Order>>,
    under_way: Option<ListingState>,
    done: HashSet<String>,
    /// Documents that failed because of another document's row, to be tried once more.
    again: VecDeque<String>,
    revs: HashMap<String, String>,
    /// The earliest time of the next replay.
    not_before: Option<Instant>,
    swept_at: Option<Instant>,
    /// The last known number of entries, including those written since.
    known: Option<u64>,
    metrics: Arc<Metrics>,
}

impl Entries {
    pub(crate) fn new(
        store: Store,
        job: &str,
        settings: QueuePart,
        orders: watch::Receiver<Vec<Order>>,
        metrics: Arc<Metrics>,
        clock: &Clock,
    ) -> Entries {
        Entries {
            clock: clock.clone(),
            store,
            job: job.to_owned(),
            settings,
            orders,
            under_way: None,
            done: HashSet::new(),
            again: VecDeque::new(),
            revs: HashMap::new(),
            not_before: None,
            swept_at: None,
            known: None,
            metrics,
        }
    }

    /// Checks that the queue may hold another entry.
    async fn room(&mut self) -> Result<(), QueueError> {
        let max = self.settings.entries_max.unwrap_or(ENTRIES_MAX);
        if self.known.is_some_and(|known| known < max) {
            return Ok(());
        }
        let (selector, index, _) = Filter { job: Some(self.job.clone()), ..Filter::default() }.selector();
        let asked = json!({"selector": selector, "use_index": index});
        let answer = self.store.call(Method::POST, "/_count", Some(&asked)).await;
        let answer = answer.map_err(|error| QueueError::Failed(error.to_string()))?;
        let known = answer.get("count").and_then(Value::as_u64).unwrap_or(0);
        self.known = Some(known);
        if known < max { Ok(()) } else { Err(QueueError::Full(known)) }
    }

    fn next_order(&mut self) -> Option<ListingState> {
        let orders = self.orders.borrow();
        self.done.retain(|done| orders.iter().any(|order| order.id == *done));
        let is_next = |order: &&Order| order.what == OrderAction::Replay && !self.done.contains(&order.id);
        let order = orders.iter().find(is_next).cloned()?;
        drop(orders);
        let (ids, is_listed) = (order.entries.iter().cloned().collect(), !order.entries.is_empty());
        Some(ListingState { order, ids, bookmark: None, is_listed })
    }

    /// Lists the ids of further entries of an order.
    async fn list(&self, under_way: &mut ListingState) -> Result<(), StoreError> {
        let order = &under_way.order;
        let filter = Filter {
            job: Some(self.job.clone()),
            reason: order.reason.clone(),
            state: None,
            since: order.since,
            until: order.until,
        };
        let mut asked = filter.find(&["_id", "state"], LISTED_MAX);
        if let Some(bookmark) = &under_way.bookmark {
            set(&mut asked, "bookmark", bookmark.as_str());
        }
        let answer = self.store.call(Method::POST, "/_find", Some(&asked)).await?;
        let documents = answer.get("docs").and_then(Value::as_array).cloned().unwrap_or_default();
        under_way.is_listed = (documents.len() as u64) < LISTED_MAX;
        under_way.bookmark = Some(text_of(&answer, "bookmark").to_owned());
        let waits = |document: &&Value| matches!(text_of(document, "state"), "" | "waiting");
        under_way.ids.extend(documents.iter().filter(waits).map(|document| text_of(document, "_id").to_owned()));
        Ok(())
    }

    async fn read(&mut self, id: &str, by_hand: bool) -> Result<Option<ReplayRequest>, StoreError> {
        let Some(mut document) = self.store.get(id).await? else { return Ok(None) };
        let rev = text_of(&document, "_rev").to_owned();
        if let Some(members) = document.as_object_mut() {
            members.retain(|name, _| !name.starts_with('_'));
        }
        // An order may name an entry of another job, which only that job replays.
        let Ok(entry) = serde_json::from_value::<Entry>(document) else { return Ok(None) };
        if entry.job != self.job {
            return Ok(None);
        }
        self.revs.insert(id.to_owned(), rev);
        Ok(Some(ReplayRequest { entry, by_hand }))
    }

    async fn next(&mut self, max: usize) -> Result<Vec<ReplayRequest>, StoreError> {
        let mut wanted = Vec::new();
        let mut bytes = 0;
        self.revs.clear();
        while wanted.len() < max && bytes < BYTES_MAX {
            if let Some(id) = self.again.pop_front() {
                if let Some(found) = self.read(&id, false).await? {
                    bytes += found.entry.doc_data.len();
                    wanted.push(found);
                }
                continue;
            }
            let Some(mut under_way) = self.under_way.take().or_else(|| self.next_order()) else { break };
            let is_hasty = self.not_before.is_some_and(|at| self.clock.now() < at);
            if is_hasty && wanted.is_empty() {
                if let Some(at) = self.not_before.take() {
                    self.clock.sleep_until(at).await;
                }
            } else if is_hasty {
                self.under_way = Some(under_way);
                break;
            }
            if under_way.ids.is_empty() && !under_way.is_listed {
                self.list(&mut under_way).await?;
            }
            let Some(id) = under_way.ids.pop_front() else {
                if under_way.is_listed {
                    // The entries returned before are settled by now.
                    if !wanted.is_empty() {
                        self.under_way = Some(under_way);
                        break;
                    }
                    self.end(&under_way.order.id).await?;
                } else {
                    self.under_way = Some(under_way);
                }
                continue;
            };
            let by_hand = !under_way.order.entries.is_empty();
            let per_second = under_way.order.per_second;
            self.under_way = Some(under_way);
            if let Some(found) = self.read(&id, by_hand).await? {
                bytes += found.entry.doc_data.len();
                wanted.push(found);
                if let Some(per_second) = per_second {
                    self.not_before = Some(self.clock.now() + Duration::from_secs(1) / per_second.max(1));
                }
            }
        }
        Ok(wanted)
    }

    async fn end(&mut self, order: &str) -> Result<(), StoreError> {
        end_order(&self.store, &self.job, order).await?;
        self.done.insert(order.to_owned());
        Ok(())
    }

    async fn sweep(&mut self) -> Result<(), StoreError> {
        let is_due = self.swept_at.is_none_or(|at| self.clock.since(at) >= SWEEP_EVERY);
        if !is_due {
            return Ok(());
        }
        self.swept_at = Some(self.clock.now());
        let states: &[&str] =
            if self.settings.drop_waiting { &["overtaken", "waiting", "exhausted"] } else { &["overtaken"] };
        for state in states {
            let asked = expired(&self.job, state, self.clock.unix_seconds(), SWEPT_MAX);
            let answer = self.store.call(Method::POST, "/_find", Some(&asked)).await?;
            let gone = self.store.delete_found(&answer).await?;
            if *state != "overtaken" {
                self.metrics.worker_dropped.add(gone);
            }
            self.known = self.known.map(|known| known.saturating_sub(gone));
            if gone >= SWEPT_MAX {
                // More remain; deliveries proceed in between.
                self.swept_at = None;
            }
        }
        Ok(())
    }
}

pub(crate) async fn end_order(store: &Store, job: &str, order: &str) -> Result<(), StoreError> {
    let change = |document: &mut Value| {
        let Some(Value::Array(orders)) = document.get_mut("orders") else { return false };
        let before = orders.len();
        orders.retain(|other| text_of(other, "id") != order);
        orders.len() < before
    };
    store.update(&format!("{JOB}{job}"), change).await.map(drop)
}

impl Queue for Entries {
    async fn put(&mut self, entry: &Entry) -> Result<(), QueueError> {
        let id = entry.id();
        if let Err(full) = self.room().await {
            // Replacing an existing entry needs no room.
            let is_there = matches!(full, QueueError::Full(_)) && matches!(self.store.get(&id).await, Ok(Some(_)));
            return if is_there { Ok(()) } else { Err(full) };
        }
        let document = serde_json::to_value(entry).map_err(|error| QueueError::Failed(error.to_string()))?;
        let mut written = self.store.put(&id, &document).await;
        if written.as_ref().is_err_and(|error| error.status() == Some(413)) {
            // Nested JSON may exceed the limit of a document; a replay reads it from the source.
            let entry = Entry { doc_data: String::new(), ..entry.clone() };
            let document = serde_json::to_value(entry).map_err(|error| QueueError::Failed(error.to_string()))?;
            written = self.store.put(&id, &document).await;
        }
        match written {
            Ok(_) => {
                self.known = self.known.map(|known| known + 1);
                if entry.reason == "data_error:constraint" && self.again.len() < AGAIN_MAX {
                    self.again.push_back(id);
                }
                Ok(())
            }
            // A process that died has written it, and an administrator may have changed it since.
            Err(error) if error.status() == Some(409) => Ok(()),
            Err(error) => Err(QueueError::Failed(format!("an entry of {WORKER}: {error}"))),
        }
    }

    async fn wanted(&mut self, max: usize) -> Result<Vec<ReplayRequest>, String> {
        self.sweep().await.map_err(|error| error.to_string())?;
        self.next(max).await.map_err(|error| error.to_string())
    }

    async fn settle(&mut self, entry: &Entry, what: ReplayResult) -> Result<(), String> {
        let id = entry.id();
        let Some(rev) = self.revs.get(&id).cloned() else { return Ok(()) };
        let done = match what {
            ReplayResult::Delivered => self.store.delete(&id, &rev).await,
            ReplayResult::Changed => {
                let mut document = serde_json::to_value(entry).map_err(|error| error.to_string())?;
                set(&mut document, "_rev", rev);
                self.store.put(&id, &document).await.map(drop)
            }
            ReplayResult::Left => Ok(()),
        };
        match done {
            Ok(()) => {
                if what == ReplayResult::Delivered {
                    self.known = self.known.map(|known| known.saturating_sub(1));
                }
                Ok(())
            }
            // An administrator edited or deleted it meanwhile, which takes precedence.
            Err(error) if matches!(error.status(), Some(404 | 409)) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn keep(&mut self, checkpoint: &Checkpoint) -> Result<(), String> {
        let id = format!("{CHECKPOINT}{}", self.job);
        let text = checkpoint.write(None);
        let mut document: Value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
        set(&mut document, "type", "checkpoint");
        let put = |error: StoreError| error.to_string();
        if let Some(before) = self.store.get(&id).await.map_err(put)? {
            set(&mut document, "_rev", text_of(&before, "_rev"));
        }
        self.store.put(&id, &document).await.map(drop).map_err(put)
    }
}
