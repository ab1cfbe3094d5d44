//! Following a database's changes in the order of commits.

use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_databases::handles::ReadHandle;
use flatbed_databases::held::HeldRights;
use flatbed_databases::instance::Instance;
use flatbed_databases::limits::Limit;
use flatbed_databases::server::Inner;
use flatbed_metrics::GaugeGuard;
use flatbed_store::error::{Error, Result};
use flatbed_store::transaction::{Attempt, Operation, Transaction, bounded};
use tokio::sync::watch;

use crate::feed::hub::{HubAnswer, HubFollower};
use crate::feed::place::FeedPosition;
use crate::feed::query::{ChangesQuery, Extras, Since};
use crate::feed::row::{ChangeRow, ChangesPage};
use crate::feed::source::channels::{LiveVerdict, RunningCount};
use crate::feed::source::{AnySource, FeedPage, PendingCount, RowVerdict, Source};
use crate::feed::tail::{TailPart, TailRow};

/// The largest number of transactions that read one page of a feed of very many channels.
const PARTS_MAX: usize = 16;

/// Time limit after which no further transaction follows, if the page has a row.
const PARTS_TIME: Limit<Duration> = Limit::new(Duration::from_secs(5), Duration::from_secs(600));

/// Returns whether another transaction may follow. A page without rows has no time limit, since it would show nothing.
fn has_time(parts: usize, has_come: bool, taken: Duration) -> bool {
    parts < PARTS_MAX && (!has_come || taken < PARTS_TIME.get())
}

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitOutcome {
    /// There may be changes: read on.
    MayHaveChanged,
    /// The server is stopping.
    Shutdown,
}

/// The outcome of [`Changes::follow`].
#[derive(Debug)]
pub enum FollowOutcome {
    /// The next rows in order, at least one, as all followers of the database share them. They carry what this feed
    /// asked for and possibly more for other followers, which [`Changes::shown`] removes. Rows of documents that left
    /// this feed are not shared.
    Rows(Vec<Arc<TailRow>>),
    /// There are changes that are not shared: [`Changes::next_page`] reads them.
    ReadOn,
    /// The server is stopping.
    Shutdown,
}

/// A feed under way.
pub struct Changes {
    database: ReadHandle,
    query: ChangesQuery,
    source: AnySource,
    /// The position up to which the feed has read; `None` at first.
    cursor: Option<FeedPosition>,
    limit: u64,
    following: Option<HubFollower>,
    instance: Option<Arc<Instance>>,
    /// Counts this feed among the followers of a selector index, once it follows.
    selects: Option<GaugeGuard>,
    /// True if the feed reports its read version at its end.
    asks_version: bool,
    ended_as_of: Option<i64>,
}

impl Changes {
    pub fn new(database: ReadHandle, query: ChangesQuery) -> Self {
        let source = AnySource::of(&query, database.asker());
        Changes::from_source(database, query, source)
    }

    /// Creates a feed of rows from a source, regardless of the query's scope.
    pub fn from_source(database: ReadHandle, query: ChangesQuery, source: AnySource) -> Self {
        let limit = query.limit.unwrap_or(u64::MAX);
        let (following, instance, selects, ended_as_of) = Default::default();
        let (cursor, asks_version) = (None, false);
        Changes { database, query, source, cursor, limit, following, instance, selects, asks_version, ended_as_of }
    }

    /// Makes the feed report the read version of its end in [`Changes::ended_as_of`].
    pub fn asking_version(self) -> Changes {
        Changes { asks_version: true, ..self }
    }

    /// Returns a read version as of which the feed was complete, if the last rows ended it.
    pub fn ended_as_of(&self) -> Option<i64> {
        self.ended_as_of
    }

    /// Reads the next bounded page behind the cursor. A page is of one read version, except for a reader with very many
    /// channels, which several transactions read.
    #[boxed]
    pub async fn next_page(&mut self) -> Result<ChangesPage> {
        if self.cursor.is_none()
            && let Some(page) = self.first_shared_page().await
        {
            return Ok(page);
        }
        let (extras, limit) = (self.carried(), self.limit);
        let clock = self.database.inner.clock.clone();
        let (began, mut parts) = (clock.now(), 1);
        let (instance, mut page, version) = self.read_part(self.cursor, limit, 0).await?;
        self.ended_as_of = version.filter(|_| page.at_end);
        while !page.at_end
            && self.source.should_continue(&page.rows, extras)
            && has_time(parts, !page.rows.is_empty(), clock.since(began))
        {
            parts += 1;
            let before = page.rows.len();
            let more = match self.read_part(Some(page.last_seq), limit.saturating_sub(before as u64), before).await {
                Ok((_, more, _)) => more,
                // The rows read so far are returned; the next page reports the error.
                Err(_) if before > 0 => break,
                Err(error) => return Err(error),
            };
            page.rows.extend(more.rows);
            (page.at_end, page.last_seq) = (more.at_end, more.last_seq);
        }
        self.source.rest(&page.rows);
        if extras != self.query.extras {
            page.rows.iter_mut().for_each(|row| self.query.extras.retain_in(row));
        }
        // Only now, so that a dropped future consumes nothing.
        self.limit = limit.saturating_sub(page.rows.len() as u64);
        self.cursor = Some(page.last_seq);
        self.instance = Some(instance);
        Ok(page)
    }

    /// Reads a page behind a place, or the part behind its first `before` rows, in one transaction.
    pub async fn read_part(
        &mut self,
        cursor: Option<FeedPosition>,
        limit: u64,
        before: usize,
    ) -> Result<(Arc<Instance>, ChangesPage, Option<i64>)> {
        let extras = self.carried();
        let Changes { database, query, source, .. } = self;
        let (since, descending) = (query.since, query.descending);
        let page = FeedPage { inner: &database.inner, since, descending, extras, cursor, limit, before };
        let mut read = ReadPage { name: &database.name, source, page, asks_version: self.asks_version };
        // Boxed: the read's state is large, and a waiting follower would keep its memory.
        Box::pin(database.read_judged(&mut read)).await
    }

    /// Returns the rights that judged the rows of the last [`Changes::next_page`] or [`Changes::follow`]; `None` if
    /// they depend on no right that the reader could lose.
    pub fn judged_by(&self) -> Option<Arc<HeldRights>> {
        self.source.judged_by()
    }

    /// Returns the extras that the feed and its source need in rows.
    fn carried(&self) -> Extras {
        self.query.extras.and(self.source.needs())
    }

    /// Answers a feed that begins near the end from the shared rows, once these are complete as of a read version that
    /// is taken now. `None` if there are no followers or the feed begins further back.
    async fn first_shared_page(&mut self) -> Option<ChangesPage> {
        if self.query.descending || self.limit == 0 || self.query.since == Since::Beginning {
            return None;
        }
        if !self.source.begins_with_shared() {
            return None;
        }
        let inner = &self.database.inner;
        let instance = inner.cached(&self.database.name)?;
        if self.source.judged(instance.channels()).is_some() {
            return None;
        }
        let following = HubFollower::join_running(inner, &instance, self.carried())?;
        let version = async { Ok(Transaction::begin(&inner.db, &inner.metrics)?.get_read_version().await?) };
        let version = bounded(version).await.ok()?;
        if !bounded(async { Ok(following.wait_until_fresh(version).await) }).await.ok()? {
            return None;
        }
        self.cursor = Some(match self.query.since {
            Since::After(place) => place,
            _ => following.drained()?.into(),
        });
        (self.following, self.instance) = (Some(following), Some(instance));
        let (rows, at_end) = match self.take() {
            TakeOutcome::Rows(rows, at_end) => (rows, at_end),
            TakeOutcome::Filtered => (Vec::new(), false),
            TakeOutcome::Nothing => (Vec::new(), true),
            TakeOutcome::NotRead | TakeOutcome::ReadOn => return None,
        };
        let rows = rows.iter().map(|row| self.query.extras.of(row)).collect();
        Some(ChangesPage { rows, at_end, last_seq: self.cursor? })
    }

    /// Waits for changes behind the cursor on the hub that all followers of the database share, and takes them. Safe to
    /// drop and call again at any time.
    #[boxed]
    pub async fn follow(&mut self) -> FollowOutcome {
        let mut closing = self.database.inner.closing.subscribe();
        loop {
            if *closing.borrow_and_update() {
                return FollowOutcome::Shutdown;
            }
            match self.take() {
                TakeOutcome::Rows(rows, _) => return FollowOutcome::Rows(rows),
                TakeOutcome::ReadOn => return FollowOutcome::ReadOn,
                TakeOutcome::Filtered => {}
                TakeOutcome::Nothing | TakeOutcome::NotRead => self.changed(&mut closing).await,
            }
        }
    }

    /// As [`Changes::follow`]; `None` if the feed has advanced without rows.
    pub async fn follow_place(&mut self) -> Option<FollowOutcome> {
        let mut closing = self.database.inner.closing.subscribe();
        loop {
            if *closing.borrow_and_update() {
                return Some(FollowOutcome::Shutdown);
            }
            let before = self.cursor;
            match self.take() {
                TakeOutcome::Rows(rows, _) => return Some(FollowOutcome::Rows(rows)),
                TakeOutcome::ReadOn => return Some(FollowOutcome::ReadOn),
                TakeOutcome::Filtered => return None,
                TakeOutcome::Nothing | TakeOutcome::NotRead if self.cursor != before => return None,
                TakeOutcome::Nothing | TakeOutcome::NotRead => self.changed(&mut closing).await,
            }
        }
    }

    /// Waits as [`Changes::follow`] does until there is a change behind the cursor, without taking it.
    #[boxed]
    pub async fn wait(&mut self) -> WaitOutcome {
        let mut closing = self.database.inner.closing.subscribe();
        loop {
            if *closing.borrow_and_update() {
                return WaitOutcome::Shutdown;
            }
            match self.look() {
                Some(HubAnswer::Part(part)) if part.rows.is_empty() && !self.may_have_changed(&part) => {}
                Some(_) => return WaitOutcome::MayHaveChanged,
                None => {}
            }
            self.changed(&mut closing).await;
        }
    }

    async fn changed(&mut self, closing: &mut watch::Receiver<bool>) {
        let Some(following) = &mut self.following else { return };
        tokio::select! {
            () = following.changed() => {}
            _ = closing.wait_for(|closing| *closing) => {}
        }
    }

    /// Returns the shared changes behind the cursor; `None` while the hub reads for the first time.
    fn look(&mut self) -> Option<HubAnswer> {
        let (Some(instance), Some(cursor)) = (&self.instance, self.cursor) else { return Some(HubAnswer::ReadBySeq) };
        let following = match self.following.take() {
            Some(following) if following.is_at(instance) => following,
            _ => HubFollower::new(&self.database.inner, instance, self.query.extras.and(self.source.needs())),
        };
        if self.selects.is_none() && self.source.is_of_index() {
            self.selects = Some(self.database.inner.metrics.selector_index_followers.hold());
        }
        // A feed of channels has read everything up to its last judged end.
        let cursor = self.source.judged(instance.channels()).flatten().unwrap_or(cursor.seq());
        let taken = self.following.insert(following).take(cursor, self.source.interest());
        if let Some(HubAnswer::Ended) = taken {
            self.following = None;
        }
        taken
    }

    fn take(&mut self) -> TakeOutcome {
        let step = match self.look() {
            None => TakeOutcome::NotRead,
            Some(HubAnswer::Part(part)) => match self.source.judged(part.channels) {
                None => self.take_part(part),
                Some(_) => self.take_judged(part),
            },
            Some(HubAnswer::ReadBySeq | HubAnswer::Ended) => TakeOutcome::ReadOn,
        };
        let channels = self.instance.as_ref().map_or(0, |instance| instance.channels());
        let judged = self.source.judged(channels);
        let is_behind = matches!(step, TakeOutcome::ReadOn) && judged.is_none();
        let metrics = &self.database.inner.metrics;
        if let Some(following) = &self.following {
            let stands = judged.unwrap_or(self.cursor.map(|cursor| cursor.seq()));
            following.stands_at(stands.filter(|_| !is_behind));
            metrics.tail_misses.add(u64::from(is_behind));
        }
        if let TakeOutcome::Rows(rows, _) = &step {
            metrics.tail_rows.add(rows.len() as u64);
        }
        step
    }

    /// Takes the rows of a part that the reader sees; a part that memory cannot judge is read as a page.
    fn take_judged(&mut self, part: TailPart) -> TakeOutcome {
        let (was_new, was_empty) = (self.is_new(&part), part.rows.is_empty());
        let extras = self.query.extras;
        let AnySource::Channels(source) = &mut self.source else { return TakeOutcome::ReadOn };
        if !was_new && was_empty {
            return TakeOutcome::Nothing;
        }
        if !source.is_as_it_was(&part.principals) || source.may_miss(&part.departures) {
            return TakeOutcome::ReadOn;
        }
        let mut rows = Vec::with_capacity(part.rows.len());
        for row in part.rows {
            let seq = row.row.seq;
            match source.judge(&row, extras) {
                LiveVerdict::Other => {}
                LiveVerdict::Row(removed) if removed.is_empty() => rows.push(row),
                LiveVerdict::Row(removed) => rows.push(Arc::new(row.removed_from(removed))),
                LiveVerdict::Left(removed) => rows.push(Arc::new(row.left(removed))),
                // The next page has it.
                LiveVerdict::Unknown if rows.is_empty() => return TakeOutcome::ReadOn,
                LiveVerdict::Unknown => return TakeOutcome::Rows(rows, false),
            }
            if let Some(shown) = rows.last().filter(|shown| shown.row.seq == seq) {
                self.cursor = Some(shown.row.place());
                self.limit = self.limit.saturating_sub(1);
            }
            source.stands_at(self.cursor, seq);
            if self.limit == 0 {
                return TakeOutcome::Rows(rows, true);
            }
        }
        if let Some(last_seq) = part.last_seq {
            source.stands_at(self.cursor, last_seq);
        }
        match (rows.is_empty(), was_empty) {
            (false, _) => TakeOutcome::Rows(rows, part.is_all),
            (true, false) => TakeOutcome::Filtered,
            (true, true) => TakeOutcome::Nothing,
        }
    }

    /// Returns whether a part without rows may matter to a feed that is not read from shared rows.
    fn may_have_changed(&self, part: &TailPart) -> bool {
        let AnySource::Channels(source) = &self.source else { return false };
        self.is_new(part) && (!source.is_as_it_was(&part.principals) || source.may_miss(&part.departures))
    }

    /// Returns whether a part may matter to a feed that is not read from shared rows.
    fn is_new(&self, part: &TailPart) -> bool {
        self.source.judged(part.channels).is_some_and(|until| part.last_seq > until)
    }

    fn take_part(&mut self, part: TailPart) -> TakeOutcome {
        self.ended_as_of = None;
        let mut rows = Vec::with_capacity(part.rows.len());
        let was_empty = part.rows.is_empty();
        let needs = self.source.needs();
        for row in part.rows {
            let place = row.row.place();
            let seen = if needs.are_in(&row) { Some(self.source.sees(&row)) } else { None };
            let shown = match seen {
                Some(RowVerdict::Other) => None,
                Some(RowVerdict::Changed) if self.query.extras.are_in(&row) => Some(row),
                Some(RowVerdict::Lost) => Some(Arc::new(row.lost())),
                // The next page has it.
                None | Some(RowVerdict::Changed | RowVerdict::Unknown) if rows.is_empty() => {
                    return TakeOutcome::ReadOn;
                }
                None | Some(RowVerdict::Changed | RowVerdict::Unknown) => return TakeOutcome::Rows(rows, false),
            };
            if let Some(shown) = shown {
                self.limit = self.limit.saturating_sub(1);
                rows.push(shown);
            }
            self.cursor = Some(place);
            if self.limit == 0 {
                return TakeOutcome::Rows(rows, true);
            }
        }
        self.cursor = part.last_seq.map(FeedPosition::from).or(self.cursor);
        self.ended_as_of = part.version;
        match (rows.is_empty(), was_empty) {
            (false, _) => TakeOutcome::Rows(rows, part.is_all),
            (true, false) => TakeOutcome::Filtered,
            (true, true) => TakeOutcome::Nothing,
        }
    }

    /// Counts the rows behind the cursor: exact up to 500 (0 means none), beyond that an estimate that is never too
    /// low. For a feed of channels the result is an estimate as well if 16 transactions see only omitted rows, or time
    /// runs out.
    #[boxed]
    pub async fn pending(&mut self) -> Result<u64> {
        let Some(cursor) = self.cursor else { return Ok(0) };
        let ReadHandle { inner, name, .. } = &self.database;
        let (began, mut parts) = (inner.clock.now(), 0);
        let mut behind = PendingCount { cursor, counting: None, is_last: false };
        loop {
            parts += 1;
            let known = behind.counting.as_ref().and_then(RunningCount::known);
            behind.is_last = !has_time(parts, known.is_some(), inner.clock.since(began));
            let mut pending = CountRows { inner, name, source: &self.source, behind: &mut behind };
            match Box::pin(self.database.read_judged(&mut pending)).await {
                Ok(Some(pending)) => return Ok(pending),
                Ok(None) => {}
                // At least one row was counted.
                Err(error) => match behind.counting.as_ref().and_then(RunningCount::known) {
                    Some(known) if matches!(error, Error::Storage(_)) => return Ok(known),
                    _ => return Err(error),
                },
            }
        }
    }

    /// Moves back to a row of the last result; the rows behind it count as not taken.
    pub fn stand_at(&mut self, place: impl Into<FeedPosition>) {
        self.cursor = Some(place.into());
    }

    /// Returns a shared row with what this feed asked for.
    pub fn shown(&self, row: &TailRow) -> ChangeRow {
        self.query.extras.of(row)
    }

    /// Returns the position of the feed; `None` before the first page.
    pub fn last_seq(&self) -> Option<FeedPosition> {
        self.cursor
    }
}

/// The outcome of taking shared changes.
enum TakeOutcome {
    /// Rows, and whether they were all.
    Rows(Vec<Arc<TailRow>>, bool),
    /// Changes that the filter dropped.
    Filtered,
    Nothing,
    NotRead,
    ReadOn,
}

struct ReadPage<'a> {
    name: &'a str,
    source: &'a mut AnySource,
    page: FeedPage<'a>,
    asks_version: bool,
}

impl Operation for ReadPage<'_> {
    type Output = (Arc<Instance>, ChangesPage, Option<i64>);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.page.inner.resolve(trx, self.name).await?;
        let page = self.source.read(trx, &instance, &self.page).await?;
        let version = if self.asks_version { Some(trx.get_read_version().await?) } else { None };
        Ok((instance, page, version))
    }
}

/// Counts what lies behind a place.
struct CountRows<'a> {
    inner: &'a Inner,
    name: &'a str,
    source: &'a AnySource,
    behind: &'a mut PendingCount,
}

impl Operation for CountRows<'_> {
    type Output = Option<u64>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Option<u64>> {
        let instance = self.inner.resolve(trx, self.name).await?;
        self.source.pending(trx, self.inner, &instance, self.behind).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_transactions_follow_for_as_long_as_a_reader_can_wait() {
        let late = PARTS_TIME.get();
        assert!(has_time(1, true, late / 2) && has_time(PARTS_MAX - 1, false, 3 * late));
        assert!(!has_time(1, true, late) && !has_time(PARTS_MAX, false, Duration::ZERO));
    }
}
