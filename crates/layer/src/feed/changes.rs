//! Following a database's changes in the order of commits.

use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_metrics::Held;
use tokio::sync::watch;

use crate::error::{Error, Result};
use crate::feed::hub::{Following, Taken};
use crate::feed::place::Place;
use crate::feed::query::{ChangesQuery, Extras, Since};
use crate::feed::row::{ChangeRow, ChangesPage};
use crate::feed::source::channels::{Counting, Live};
use crate::feed::source::{AnySource, Behind, Page, Seen, Source};
use crate::feed::tail::{Part, TailRow};
use crate::handle::Reader;
use crate::held::HeldAt;
use crate::instance::Instance;
use crate::layer::Inner;
use crate::store::transaction::{Attempt, Operation, Transaction, bounded};

/// Transactions that one page of a feed of very many channels is read by, at most.
const PARTS_MAX: usize = 16;

/// For how long others follow once there is something to show.
const PARTS_TIME: Duration = Duration::from_secs(if cfg!(test) { 600 } else { 5 });

/// Whether another transaction may follow so many, which have taken so long: where nothing has come of them yet there would be nothing to
/// show.
fn has_time(parts: usize, has_come: bool, taken: Duration) -> bool {
    parts < PARTS_MAX && (!has_come || taken < PARTS_TIME)
}

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Read on: there may be something.
    MayHaveChanged,
    /// The server is stopping.
    Shutdown,
}

/// What following gave.
#[derive(Debug)]
pub enum Followed {
    /// What came next, in order, at least one row, as all followers of the database share it: with what this feed's rows
    /// carry, and perhaps with what those of others do ([`Changes::shown`] takes that out). Rows of documents that have left
    /// this feed are its own.
    Rows(Vec<Arc<TailRow>>),
    /// There is something that is not shared: it comes with [`Changes::next_page`].
    ReadOn,
    /// The server is stopping.
    Shutdown,
}

/// A feed under way.
pub struct Changes {
    database: Reader,
    query: ChangesQuery,
    source: AnySource,
    /// Read up to here; `None` at first.
    cursor: Option<Place>,
    limit: u64,
    following: Option<Following>,
    instance: Option<Arc<Instance>>,
    /// Counts it among those that follow a selector index, once it does.
    selects: Option<Held>,
    /// Whether it is asked as of when it has come to the end.
    asks_version: bool,
    ended_as_of: Option<i64>,
}

impl Changes {
    pub(crate) fn new(database: Reader, query: ChangesQuery) -> Self {
        let source = AnySource::of(&query, database.asker());
        Changes::from_source(database, query, source)
    }

    /// A feed of rows from a source, whatever the scope says.
    pub(super) fn from_source(database: Reader, query: ChangesQuery, source: AnySource) -> Self {
        let limit = query.limit.unwrap_or(u64::MAX);
        let (following, instance, selects, ended_as_of) = Default::default();
        let (cursor, asks_version) = (None, false);
        Changes { database, query, source, cursor, limit, following, instance, selects, asks_version, ended_as_of }
    }

    /// The same, which says in [`Changes::ended_as_of`] how fresh it is.
    pub(crate) fn asking_version(self) -> Changes {
        Changes { asks_version: true, ..self }
    }

    /// A read version as of which the feed has given all that there was, if what it gave last is the end.
    pub(crate) fn ended_as_of(&self) -> Option<i64> {
        self.ended_as_of
    }

    /// What is there after the cursor, one bounded page of it: of one read version, but where its reader has very many channels, which are
    /// read by several transactions.
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
            && self.source.goes_on(&page.rows, extras)
            && has_time(parts, !page.rows.is_empty(), clock.since(began))
        {
            parts += 1;
            let before = page.rows.len();
            let more = match self.read_part(Some(page.last_seq), limit.saturating_sub(before as u64), before).await {
                Ok((_, more, _)) => more,
                // What has come is told: whoever asks for the next page hears of it.
                Err(_) if before > 0 => break,
                Err(error) => return Err(error),
            };
            page.rows.extend(more.rows);
            (page.at_end, page.last_seq) = (more.at_end, more.last_seq);
        }
        self.source.rest(&page.rows);
        if extras != self.query.extras {
            page.rows.iter_mut().for_each(|row| self.query.extras.leave_in(row));
        }
        // Not before: whoever drops this has nothing of it.
        self.limit = limit.saturating_sub(page.rows.len() as u64);
        self.cursor = Some(page.last_seq);
        self.instance = Some(instance);
        Ok(page)
    }

    /// A page behind this place, or what comes behind the first so many rows of one, in a transaction.
    pub(in crate::feed) async fn read_part(
        &mut self,
        cursor: Option<Place>,
        limit: u64,
        before: usize,
    ) -> Result<(Arc<Instance>, ChangesPage, Option<i64>)> {
        let extras = self.carried();
        let Changes { database, query, source, .. } = self;
        let (since, descending) = (query.since, query.descending);
        let page = Page { inner: &database.inner, since, descending, extras, cursor, limit, before };
        let mut read = Read { name: &database.name, source, page, asks_version: self.asks_version };
        // Boxed: a follower that waits would keep room for the read's state, which is large.
        Box::pin(database.read_judged(&mut read)).await
    }

    /// By what the rows were judged that [`Changes::next_page`] or [`Changes::follow`] gave last; `None`: by nothing that its reader could
    /// lose.
    pub fn judged_by(&self) -> Option<Arc<HeldAt>> {
        self.source.judged_by()
    }

    /// What rows carry, for who reads the feed and for its source.
    fn carried(&self) -> Extras {
        self.query.extras.and(self.source.needs())
    }

    /// A feed that begins near the end is answered from what followers share, once that is complete as of a read version
    /// that is taken now. `None`: nobody follows, or the feed begins further back.
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
        let following = Following::at_running(inner, &instance, self.carried())?;
        let version = async { Ok(Transaction::begin(&inner.db, &inner.metrics)?.get_read_version().await?) };
        let version = bounded(version).await.ok()?;
        if !bounded(async { Ok(following.fresh(version).await) }).await.ok()? {
            return None;
        }
        self.cursor = Some(match self.query.since {
            Since::After(place) => place,
            _ => following.drained()?.into(),
        });
        (self.following, self.instance) = (Some(following), Some(instance));
        let (rows, at_end) = match self.take() {
            Step::Rows(rows, at_end) => (rows, at_end),
            Step::Filtered => (Vec::new(), false),
            Step::Nothing => (Vec::new(), true),
            Step::NotRead | Step::ReadOn => return None,
        };
        let rows = rows.iter().map(|row| self.query.extras.of(row)).collect();
        Some(ChangesPage { rows, at_end, last_seq: self.cursor? })
    }

    /// Waits for what comes after the cursor, on what all followers of the database share, and takes it. It may be dropped
    /// and called again at any time.
    #[boxed]
    pub async fn follow(&mut self) -> Followed {
        let mut closing = self.database.inner.closing.subscribe();
        loop {
            if *closing.borrow_and_update() {
                return Followed::Shutdown;
            }
            match self.take() {
                Step::Rows(rows, _) => return Followed::Rows(rows),
                Step::ReadOn => return Followed::ReadOn,
                Step::Filtered => {}
                Step::Nothing | Step::NotRead => self.changed(&mut closing).await,
            }
        }
    }

    /// As [`Changes::follow`]; `None`: there are no rows, but the feed stands further on.
    pub(crate) async fn follow_place(&mut self) -> Option<Followed> {
        let mut closing = self.database.inner.closing.subscribe();
        loop {
            if *closing.borrow_and_update() {
                return Some(Followed::Shutdown);
            }
            let before = self.cursor;
            match self.take() {
                Step::Rows(rows, _) => return Some(Followed::Rows(rows)),
                Step::ReadOn => return Some(Followed::ReadOn),
                Step::Filtered => return None,
                Step::Nothing | Step::NotRead if self.cursor != before => return None,
                Step::Nothing | Step::NotRead => self.changed(&mut closing).await,
            }
        }
    }

    /// Waits as [`Changes::follow`] does until there is something after the cursor, and takes nothing.
    #[boxed]
    pub async fn wait(&mut self) -> Wait {
        let mut closing = self.database.inner.closing.subscribe();
        loop {
            if *closing.borrow_and_update() {
                return Wait::Shutdown;
            }
            match self.look() {
                Some(Taken::Part(part)) if part.rows.is_empty() && !self.may_have_changed(&part) => {}
                Some(_) => return Wait::MayHaveChanged,
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

    /// What is shared behind the cursor; `None`: it is being read for the first time.
    fn look(&mut self) -> Option<Taken> {
        // Nothing was read yet.
        let (Some(instance), Some(cursor)) = (&self.instance, self.cursor) else { return Some(Taken::ReadBySeq) };
        let following = match self.following.take() {
            Some(following) if following.is_at(instance) => following,
            _ => Following::new(&self.database.inner, instance, self.query.extras.and(self.source.needs())),
        };
        if self.selects.is_none() && self.source.is_of_index() {
            self.selects = Some(self.database.inner.metrics.selector_index_followers.hold());
        }
        // Of a feed that is not read from what is shared, all is read up to where nothing more was there.
        let cursor = self.source.judged(instance.channels()).flatten().unwrap_or(cursor.seq());
        let taken = self.following.insert(following).take(cursor, self.source.interest());
        if let Some(Taken::Ended) = taken {
            self.following = None;
        }
        taken
    }

    fn take(&mut self) -> Step {
        let step = match self.look() {
            None => Step::NotRead,
            Some(Taken::Part(part)) => match self.source.judged(part.channels) {
                None => self.take_part(part),
                Some(_) => self.take_judged(part),
            },
            Some(Taken::ReadBySeq | Taken::Ended) => Step::ReadOn,
        };
        let channels = self.instance.as_ref().map_or(0, |instance| instance.channels());
        let judged = self.source.judged(channels);
        let is_behind = matches!(step, Step::ReadOn) && judged.is_none();
        let metrics = &self.database.inner.metrics;
        if let Some(following) = &self.following {
            let stands = judged.unwrap_or(self.cursor.map(|cursor| cursor.seq()));
            following.stands_at(stands.filter(|_| !is_behind));
            metrics.tail_misses.add(u64::from(is_behind));
        }
        if let Step::Rows(rows, _) = &step {
            metrics.tail_rows.add(rows.len() as u64);
        }
        step
    }

    /// Takes what the feed's reader sees of a part; where that cannot be said of it, a page is read.
    fn take_judged(&mut self, part: Part) -> Step {
        let (was_new, was_empty) = (self.is_new(&part), part.rows.is_empty());
        let extras = self.query.extras;
        let AnySource::Channels(source) = &mut self.source else { return Step::ReadOn };
        if !was_new && was_empty {
            return Step::Nothing;
        }
        if !source.is_as_it_was(&part.principals) || source.may_miss(&part.untold) {
            return Step::ReadOn;
        }
        let mut rows = Vec::with_capacity(part.rows.len());
        for row in part.rows {
            let seq = row.row.seq;
            match source.judge(&row, extras) {
                Live::Other => {}
                Live::Row(removed) if removed.is_empty() => rows.push(row),
                Live::Row(removed) => rows.push(Arc::new(row.removed_from(removed))),
                Live::Left(removed) => rows.push(Arc::new(row.left(removed))),
                // It comes with the next page.
                Live::Unknown if rows.is_empty() => return Step::ReadOn,
                Live::Unknown => return Step::Rows(rows, false),
            }
            if let Some(shown) = rows.last().filter(|shown| shown.row.seq == seq) {
                self.cursor = Some(shown.row.place());
                self.limit = self.limit.saturating_sub(1);
            }
            source.stands_at(self.cursor, seq);
            if self.limit == 0 {
                return Step::Rows(rows, true);
            }
        }
        if let Some(last_seq) = part.last_seq {
            source.stands_at(self.cursor, last_seq);
        }
        match (rows.is_empty(), was_empty) {
            (false, _) => Step::Rows(rows, part.is_all),
            (true, false) => Step::Filtered,
            (true, true) => Step::Nothing,
        }
    }

    /// Whether a part without rows may be something for a feed that is not read from what is shared.
    fn may_have_changed(&self, part: &Part) -> bool {
        let AnySource::Channels(source) = &self.source else { return false };
        self.is_new(part) && (!source.is_as_it_was(&part.principals) || source.may_miss(&part.untold))
    }

    /// Whether there may be something new for a feed that is not read from what is shared.
    fn is_new(&self, part: &Part) -> bool {
        self.source.judged(part.channels).is_some_and(|until| part.last_seq > until)
    }

    fn take_part(&mut self, part: Part) -> Step {
        self.ended_as_of = None;
        let mut rows = Vec::with_capacity(part.rows.len());
        let was_empty = part.rows.is_empty();
        let needs = self.source.needs();
        for row in part.rows {
            let place = row.row.place();
            let seen = if needs.are_in(&row) { Some(self.source.sees(&row)) } else { None };
            let shown = match seen {
                Some(Seen::Other) => None,
                Some(Seen::Changed) if self.query.extras.are_in(&row) => Some(row),
                Some(Seen::Lost) => Some(Arc::new(row.lost())),
                // It comes with the next page.
                None | Some(Seen::Changed | Seen::Unknown) if rows.is_empty() => return Step::ReadOn,
                None | Some(Seen::Changed | Seen::Unknown) => return Step::Rows(rows, false),
            };
            if let Some(shown) = shown {
                self.limit = self.limit.saturating_sub(1);
                rows.push(shown);
            }
            self.cursor = Some(place);
            if self.limit == 0 {
                return Step::Rows(rows, true);
            }
        }
        self.cursor = part.last_seq.map(Place::from).or(self.cursor);
        self.ended_as_of = part.version;
        match (rows.is_empty(), was_empty) {
            (false, _) => Step::Rows(rows, part.is_all),
            (true, false) => Step::Filtered,
            (true, true) => Step::Nothing,
        }
    }

    /// How many rows lie after the cursor: exact up to 500 (0 means none), beyond it an estimate that is never less. Of a feed of channels it
    /// is an estimate, too, where 16 transactions find nothing but what it leaves out, or it takes too long to count them.
    #[boxed]
    pub async fn pending(&mut self) -> Result<u64> {
        let Some(cursor) = self.cursor else { return Ok(0) };
        let Reader { inner, name, .. } = &self.database;
        let (began, mut parts) = (inner.clock.now(), 0);
        let mut behind = Behind { cursor, counting: None, is_last: false };
        loop {
            parts += 1;
            let known = behind.counting.as_ref().and_then(Counting::known);
            behind.is_last = !has_time(parts, known.is_some(), inner.clock.since(began));
            let mut pending = Pending { inner, name, source: &self.source, behind: &mut behind };
            match Box::pin(self.database.read_judged(&mut pending)).await {
                Ok(Some(pending)) => return Ok(pending),
                Ok(None) => {}
                // That there is something was counted.
                Err(error) => match behind.counting.as_ref().and_then(Counting::known) {
                    Some(known) if matches!(error, Error::Storage(_)) => return Ok(known),
                    _ => return Err(error),
                },
            }
        }
    }

    /// Goes back to a row of what came last: what stood behind it has not been taken.
    pub fn stand_at(&mut self, place: impl Into<Place>) {
        self.cursor = Some(place.into());
    }

    /// A shared row as this feed shows it.
    pub fn shown(&self, row: &TailRow) -> ChangeRow {
        self.query.extras.of(row)
    }

    /// Where the feed stands; `None` before the first page.
    pub fn last_seq(&self) -> Option<Place> {
        self.cursor
    }
}

/// What a feed took from what is shared.
enum Step {
    /// Rows; whether that was all.
    Rows(Vec<Arc<TailRow>>, bool),
    /// The filter passed nothing of what was there.
    Filtered,
    /// There was nothing.
    Nothing,
    /// Nothing is shared yet.
    NotRead,
    /// What is needed is not shared.
    ReadOn,
}

/// Reads a page.
struct Read<'a> {
    name: &'a str,
    source: &'a mut AnySource,
    page: Page<'a>,
    asks_version: bool,
}

impl Operation for Read<'_> {
    type Output = (Arc<Instance>, ChangesPage, Option<i64>);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.page.inner.resolve(trx, self.name).await?;
        let page = self.source.read(trx, &instance, &self.page).await?;
        let version = if self.asks_version { Some(trx.get_read_version().await?) } else { None };
        Ok((instance, page, version))
    }
}

/// Counts what lies behind a place.
struct Pending<'a> {
    inner: &'a Inner,
    name: &'a str,
    source: &'a AnySource,
    behind: &'a mut Behind,
}

impl Operation for Pending<'_> {
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
        let late = PARTS_TIME;
        assert!(has_time(1, true, late / 2) && has_time(PARTS_MAX - 1, false, 3 * late));
        assert!(!has_time(1, true, late) && !has_time(PARTS_MAX, false, Duration::ZERO));
    }
}
