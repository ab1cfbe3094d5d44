//! The ranges of a resync: made from the storage's split points, taken by processes, and ended together.
//!
//! A range belongs to the process whose owner id it has. Each change of it increments its beats. A process that has
//! seen the beats unchanged for 15 s takes the range over at its stored position. Each change is conditional on the
//! owner and the beats, so two processes that both take a range for theirs count no document twice.

use std::sync::Arc;
use std::time::Duration;

use flatbed_clock::Clock;
use flatbed_databases::instance::Instance;
use flatbed_databases::limits::Limit;
use flatbed_databases::server::Inner;
use flatbed_jobs::Owner;
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::Subspace;
use flatbed_store::proto;
use flatbed_store::sync_function::begin_resync;
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use futures_util::future::try_join_all;
use futures_util::try_join;
use prost::Message;
use tokio::time::Instant;

use crate::resync::state::{RANGES_MAX, close, state_of};

/// The least bytes of a range.
const RANGE_BYTES_MIN: Limit<i64> = Limit::new(8_000_000, 2_000);

/// The most bytes of the ids that divide a database; beyond it the last range has the rest.
const IDS_BYTES_MAX: usize = 100_000;

/// The interval at which the position in a range is stored while nothing else is written.
const NOTE_EVERY: Duration = Duration::from_secs(1);

/// The time after which a range with unchanged beats may be taken over.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(15);

/// Divides a resync into ranges, unless that has happened.
pub(super) async fn divide(inner: &Inner, instance: &Instance, run: u64) -> Result<()> {
    let found = transaction::read(&inner.db, &inner.metrics, &mut ReadSplits { inner, instance, run }).await?;
    let Some(ranges) = found else { return Ok(()) };
    transaction::write(&inner.db, &inner.metrics, &mut Divide { inner, name: &instance.name, run, ranges }).await
}

/// Reads the first ids of ranges of about equal size, and the first id behind each. `None`: there is nothing to divide.
///
/// Documents behind the last one of now are written later than the function was set, so it has judged them.
struct ReadSplits<'a> {
    inner: &'a Inner,
    instance: &'a Instance,
    run: u64,
}

impl Operation for ReadSplits<'_> {
    type Output = Option<Vec<(String, String)>>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = same(self.inner, trx, self.instance).await?;
        let keys = &instance.keys;
        let documents = keys.subspace(Subspace::Documents);
        let last = trx.range(&documents, true).reverse(true).first(1);
        let size = trx.get_estimated_range_size_bytes(&documents.begin, &documents.end);
        let state = state_of(trx, &instance, true);
        let (last, size, state) =
            try_join!(async { last.await.map_err(Error::from) }, async { size.await.map_err(Error::from) }, state)?;
        if !state.is_some_and(|state| state.run == self.run && !state.divided) {
            return Ok(None);
        }
        let Some(last) = last.first() else { return Ok(Some(Vec::new())) };
        let (last, ..) = keys.split_document(last.key())?;
        let part = (size / RANGES_MAX as i64).max(RANGE_BYTES_MIN.get());
        let points = trx.get_range_split_points(&documents.begin, &documents.end, part).await?;
        let step = points.len().div_ceil(RANGES_MAX).max(1);
        let (mut firsts, mut bytes) = (vec![String::new()], 0);
        for point in points.iter().step_by(step) {
            // A split point is a hint, and may lie between documents.
            let Ok((id, ..)) = keys.split_document(point.key()) else { continue };
            bytes += 2 * id.len();
            if firsts.len() >= RANGES_MAX || bytes > IDS_BYTES_MAX {
                break;
            }
            if firsts.last().is_some_and(|first| *first < id) && id <= last {
                firsts.push(id);
            }
        }
        let end = format!("{last}\0");
        let untils = firsts.iter().skip(1).cloned().chain([end]).collect::<Vec<_>>();
        Ok(Some(firsts.into_iter().zip(untils).collect()))
    }
}

struct Divide<'a> {
    inner: &'a Inner,
    name: &'a str,
    run: u64,
    ranges: Vec<(String, String)>,
}

impl Operation for Divide<'_> {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<()> {
        let instance = self.inner.resolve_for_write(trx, self.name).await?;
        let state = state_of(trx, &instance, false).await?;
        let Some(state) = state.filter(|state| state.run == self.run && !state.divided) else { return Ok(()) };
        begin_resync(trx, &instance.keys, &proto::Resync { divided: true, ..state });
        for (first, until) in &self.ranges {
            let range = proto::ResyncRange { run: self.run, until: until.clone(), ..proto::ResyncRange::default() };
            trx.set(&instance.keys.resync_range(first), &range.encode_to_vec());
        }
        Ok(())
    }
}

/// Begins a resync anew, because the database has another function than the one that it began with.
pub(super) struct BeginAnew<'a> {
    pub(super) inner: &'a Inner,
    pub(super) name: &'a str,
    /// The resync as it was read.
    pub(super) state: &'a proto::Resync,
    /// The number of the new one.
    pub(super) run: u64,
}

impl Operation for BeginAnew<'_> {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<()> {
        let instance = self.inner.resolve_for_write(trx, self.name).await?;
        let state = state_of(trx, &instance, false).await?;
        if state.as_ref() == Some(self.state) && instance.channels() != self.state.number {
            let proto::Resync { begun_at_ms, exclusive, stopped, .. } = *self.state;
            let (number, run, divided) = (instance.channels(), self.run, false);
            let anew = proto::Resync { number, begun_at_ms, exclusive, stopped, run, divided };
            begin_resync(trx, &instance.keys, &anew);
        }
        Ok(())
    }
}

/// Takes ranges that are free, or unchanged since they were seen.
pub(super) struct TakeRanges<'a> {
    pub(super) inner: &'a Inner,
    pub(super) name: &'a str,
    pub(super) run: u64,
    pub(super) owner: &'a Owner,
    /// The ranges as they were seen.
    pub(super) wanted: &'a [(String, proto::ResyncRange)],
}

impl Operation for TakeRanges<'_> {
    type Output = Vec<(String, proto::ResyncRange)>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.inner.resolve_for_write(trx, self.name).await?;
        let keys: Vec<Vec<u8>> = self.wanted.iter().map(|(first, _)| instance.keys.resync_range(first)).collect();
        let found = try_join_all(keys.iter().map(|key| trx.get(key, false))).await?;
        let mut taken = Vec::new();
        for (((first, seen), key), found) in self.wanted.iter().zip(&keys).zip(found) {
            let Some(found) = found else { continue };
            let range = proto::ResyncRange::decode(&*found)?;
            // An earlier attempt may have taken it.
            let is_free = range.owner.is_empty() || range.owner == self.owner;
            if range.run != self.run || range.done || !(is_free || range == *seen) {
                continue;
            }
            let range = proto::ResyncRange { owner: self.owner.to_vec(), beats: range.beats + 1, ..range };
            trx.set(key, &range.encode_to_vec());
            taken.push((first.clone(), range));
        }
        Ok(taken)
    }
}

/// Ends a resync whose ranges are all done.
pub(super) struct Finish<'a> {
    pub(super) inner: &'a Inner,
    pub(super) name: &'a str,
    pub(super) run: u64,
}

impl Operation for Finish<'_> {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<()> {
        let instance = self.inner.resolve_for_write(trx, self.name).await?;
        let state = state_of(trx, &instance, false).await?;
        let is_due = |state: proto::Resync| state.run == self.run && state.divided && !state.stopped;
        if !state.is_some_and(is_due) {
            return Ok(());
        }
        let ranges = trx.range(&instance.keys.resync_ranges(), false).all(RANGES_MAX).await?;
        for row in ranges.iter() {
            if !proto::ResyncRange::decode(row.value())?.done {
                return Ok(());
            }
        }
        let all = instance.keys.resync_all();
        trx.clear_range(&all.begin, &all.end);
        close(self.inner, trx, &instance, false)
    }
}

/// Returns the instance, if the name still belongs to it.
pub(super) async fn same(inner: &Inner, trx: &Transaction, instance: &Instance) -> Result<Arc<Instance>> {
    let found = inner.resolve(trx, &instance.name).await?;
    if found.id() == instance.id() { Ok(found) } else { Err(Error::DatabaseNotFound) }
}

/// A range that this process has taken.
pub(super) struct HeldRange<'a> {
    inner: &'a Inner,
    name: &'a str,
    pub(super) first: String,
    /// The progress, with documents that are not stored as processed yet.
    pub(super) range: proto::ResyncRange,
    /// The range as it is stored.
    stored: proto::ResyncRange,
    stored_at: Instant,
}

/// The state in which a range is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    /// It stays this process's.
    Held,
    /// Any process may take it.
    Released,
    /// All of it is through.
    Done,
}

impl<'a> HeldRange<'a> {
    pub(super) fn new(inner: &'a Inner, name: &'a str, first: String, range: proto::ResyncRange) -> HeldRange<'a> {
        HeldRange { inner, name, first, stored: range.clone(), range, stored_at: inner.clock.now() }
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// Returns the range as it would be stored next.
    pub(super) fn next(&self) -> proto::ResyncRange {
        proto::ResyncRange { beats: self.stored.beats + 1, ..self.range.clone() }
    }

    /// Returns the range as it must be found for the next change.
    pub(super) fn stored(&self) -> &proto::ResyncRange {
        &self.stored
    }

    /// Notes that a transaction has stored the range.
    pub(super) fn has_stored(&mut self, range: proto::ResyncRange) {
        let metrics = &self.inner.metrics;
        metrics.resync_documents.add(range.documents.saturating_sub(self.stored.documents));
        metrics.resync_documents_changed.add(range.changed.saturating_sub(self.stored.changed));
        metrics.resync_leaves_refused.add(range.refused.saturating_sub(self.stored.refused));
        self.range = range.clone();
        self.stored = range;
        self.stored_at = self.inner.clock.now();
    }

    /// Returns whether the position should be stored although nothing was written.
    pub(super) fn is_note_due(&self) -> bool {
        self.inner.clock.since(self.stored_at) >= NOTE_EVERY
    }

    /// Stores the progress. False: the range is no longer this process's.
    pub(super) async fn note(&mut self, keep: Keep) -> Result<bool> {
        let mut next = self.next();
        if keep != Keep::Held {
            next.owner = Vec::new();
        }
        next.done |= keep == Keep::Done;
        let (inner, name, first, stored) = (self.inner, self.name, &*self.first, &self.stored);
        let mut note = Note { inner, name, first, stored, next: &next };
        let is_noted = transaction::write(&inner.db, &inner.metrics, &mut note).await?;
        if is_noted {
            self.has_stored(next);
        }
        Ok(is_noted)
    }
}

struct Note<'a> {
    inner: &'a Inner,
    name: &'a str,
    first: &'a str,
    stored: &'a proto::ResyncRange,
    next: &'a proto::ResyncRange,
}

impl Operation for Note<'_> {
    type Output = bool;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<bool> {
        let instance = self.inner.resolve_for_write(trx, self.name).await?;
        let key = instance.keys.resync_range(self.first);
        let found = trx.get(&key, false).await?;
        let found = found.map(|bytes| proto::ResyncRange::decode(&*bytes)).transpose()?;
        match found {
            // An earlier attempt has committed.
            Some(found) if found == *self.next => Ok(true),
            Some(found) if found == *self.stored => {
                trx.set(&key, &self.next.encode_to_vec());
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}
