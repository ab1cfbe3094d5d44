//! The newest changes of a database in memory, for all its followers: the content of by-seq behind a certain sequence.
//!
//! As in by-seq there is one row for each document: a newer change replaces the older one. The fact that the document
//! left a channel with the older change is kept as [`Departure`]: a follower before it that holds the channel reads the
//! channel's index.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use flatbed_channels::PrincipalKind;
use flatbed_clock::Clock;
use flatbed_databases::document::edit::Document;
use flatbed_store::seq::Seq;
use tokio::time::Instant;

use crate::feed::row::{ChangeRow, RowChannels};

/// Approximate bytes that a follower takes at once; a single row may exceed it.
const PART_BYTES_MAX: usize = 32 * 1024;

/// Age limit of rows; a follower that is further behind reads by-seq.
const AGE_MAX: Duration = Duration::from_secs(60);

/// Approximate bytes of a row beside its id and document: its structures and its text.
const ROW_BYTES: usize = 500;

/// Limit of the kept changes of users and roles.
const PRINCIPALS_MAX: usize = 1_000;

/// Limit of the kept departures.
const DEPARTURES_MAX: usize = 1_000;

/// Number of cached texts of a row.
pub const TEXTS: usize = 6;

/// A change, read once for all followers.
#[derive(Debug)]
pub struct TailRow {
    /// The row with all leaves and without a document.
    pub row: ChangeRow,
    /// Its document, if a follower wants it; never the document of a loss.
    pub document: TailDocument,
    /// Cached texts of the row: the first follower that needs a text writes it, the others send it. The followers
    /// define the meaning of each.
    pub texts: [OnceLock<Bytes>; TEXTS],
    pub channels: RowChannels,
    read_at: Instant,
}

/// A document beside its row, of the same read version.
#[derive(Debug)]
pub enum TailDocument {
    /// It is large, or no follower wanted it: a follower that needs it reads it.
    NotRead,
    /// The winner, or a tombstone.
    Read {
        /// The document, with all its other leaves, deleted ones included, if `with_conflicts`.
        document: Box<Document>,
        /// True if the document names its other leaves.
        with_conflicts: bool,
    },
}

impl TailRow {
    /// Creates a row that was read at `read_at`. The document is beside it, so `row.doc` is dropped.
    pub fn new(mut row: ChangeRow, document: TailDocument, read_at: Instant) -> TailRow {
        row.doc = None;
        let (texts, channels) = Default::default();
        TailRow { row, document, texts, channels, read_at }
    }

    pub fn with_channels(self, channels: RowChannels) -> TailRow {
        TailRow { channels, ..self }
    }

    /// Returns the row for a reader who still sees the document, which left some of their channels with the change.
    pub fn removed_from(&self, removed: Vec<String>) -> TailRow {
        let document = match &self.document {
            TailDocument::NotRead => TailDocument::NotRead,
            TailDocument::Read { document, with_conflicts } => {
                TailDocument::Read { document: document.clone(), with_conflicts: *with_conflicts }
            }
        };
        let (row, texts) = (ChangeRow { removed, ..self.row.clone() }, Default::default());
        TailRow { row, document, texts, channels: RowChannels::default(), read_at: self.read_at }
    }

    /// Returns the row for a reader who saw the document before the change and does not see it any more.
    pub fn left(&self, removed: Vec<String>) -> TailRow {
        let lost = self.lost();
        TailRow { row: ChangeRow { removed, deleted: self.row.deleted, ..lost.row.clone() }, ..lost }
    }

    /// Returns the row that says that the document left the feed with this change.
    pub fn lost(&self) -> TailRow {
        let (row, document) = (self.row.lost(), TailDocument::NotRead);
        let (texts, channels) = Default::default();
        TailRow { row, document, texts, channels, read_at: self.read_at }
    }

    /// Returns the row of a document that has expired since it was read: a tombstone without a body.
    fn ended(&self) -> TailRow {
        let document = match &self.document {
            TailDocument::NotRead => TailDocument::NotRead,
            TailDocument::Read { document, with_conflicts } => {
                let (body, attachments) = Default::default();
                let document = Document { deleted: true, body, attachments, ..Document::clone(document) };
                TailDocument::Read { document: Box::new(document), with_conflicts: *with_conflicts }
            }
        };
        let (row, texts) = (ChangeRow { deleted: true, ..self.row.clone() }, Default::default());
        TailRow { row, document, texts, channels: self.channels.clone(), read_at: self.read_at }
    }

    fn weight(&self) -> usize {
        let document = match &self.document {
            TailDocument::NotRead => 0,
            // In memory and as text.
            TailDocument::Read { document, .. } => 2 * document.body.len() + 200 * document.attachments.len(),
        };
        ROW_BYTES + 3 * self.row.id.len() + 100 * self.row.leaves.len() + document + self.channels.bytes()
    }
}

/// A departure of a document from a channel that no row shows, because a newer change of the document replaced it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Departure {
    pub at: Seq,
    /// The channel; `None` for any channel.
    pub channel: Option<Arc<str>>,
}

#[derive(Debug, Default)]
pub struct TailPart {
    pub rows: Vec<Arc<TailRow>>,
    /// The position after these rows.
    pub last_seq: Option<Seq>,
    /// True if there are no more rows.
    pub is_all: bool,
    /// A read version as of which the part was complete, if known.
    pub version: Option<i64>,
    /// The number of the database's sync function at the last read; 0 if it has no channels.
    pub channels: u64,
    /// Users and roles of the database that have changed in this part and behind it.
    pub principals: Vec<(PrincipalKind, Arc<str>)>,
    /// Departures in this part and behind it that no row shows.
    pub departures: Vec<Departure>,
}

/// The tail; see the module.
#[derive(Debug)]
pub struct Tail {
    clock: Clock,
    /// The tail has all changes behind this sequence up to `drained`.
    begin: Seq,
    drained: Seq,
    /// Rows in the order of commits; `None` where a newer row replaced one.
    rows: VecDeque<(Seq, Option<Arc<TailRow>>)>,
    /// The number of each document's row, counted from the first row that was ever added.
    places: HashMap<String, u64>,
    passed: u64,
    weight: usize,
    /// A read version as of which by-seq had been read to its end.
    version: Option<i64>,
    channels: u64,
    /// Changed users and roles in the order of commits.
    principals: VecDeque<(Seq, PrincipalKind, Arc<str>)>,
    /// Unordered.
    departures: Vec<Departure>,
}

impl Tail {
    /// Creates an empty tail that has read nothing behind `at`.
    pub fn new(at: Seq, clock: &Clock) -> Tail {
        let (rows, places, principals, departures) = Default::default();
        let clock = clock.clone();
        let (passed, weight, version, channels) = (0, 0, None, 0);
        Tail { clock, begin: at, drained: at, rows, places, passed, weight, version, channels, principals, departures }
    }

    /// Returns the sequence up to which by-seq has been read.
    pub fn drained(&self) -> Seq {
        self.drained
    }

    /// Records that by-seq has been read to its end as of a read version.
    pub fn complete_as_of(&mut self, version: i64) {
        self.version = Some(version);
    }

    /// Returns the number of the database's sync function at the last read.
    pub fn channels(&self) -> u64 {
        self.channels
    }

    /// Sets the number of the database's sync function; called before the rows of the same read are added.
    pub fn read_with(&mut self, channels: u64) {
        self.channels = channels;
    }

    /// Adds changed users and roles, in the order of commits and behind those added before.
    pub fn push_principals(&mut self, principals: Vec<(Seq, PrincipalKind, Arc<str>)>) {
        let last = self.principals.back().map(|(seq, ..)| *seq);
        self.principals.extend(principals.into_iter().filter(|(seq, ..)| last.is_none_or(|last| *seq > last)));
    }

    /// Adds departures that the rows of this page and the next do not show.
    pub fn push_departures(&mut self, departures: impl IntoIterator<Item = Departure>) {
        self.departures.extend(departures);
        if self.departures.len() > DEPARTURES_MAX
            && let Some(at) = self.departures.iter().map(|departure| departure.at).max()
        {
            self.departures = vec![Departure { at, channel: None }];
        }
    }

    /// Adds rows in the order of commits, and sets the sequence up to which by-seq has been read with them.
    pub fn push(&mut self, rows: Vec<TailRow>, drained: Seq) {
        for row in rows {
            self.weight += row.weight();
            let at = self.passed + self.rows.len() as u64;
            if let Some(before) = self.places.insert(row.row.id.clone(), at) {
                self.supersede(before, &row.channels);
            }
            self.rows.push_back((row.row.seq, Some(Arc::new(row))));
        }
        self.drained = self.drained.max(drained);
    }

    fn supersede(&mut self, place: u64, by: &RowChannels) {
        let row = place.checked_sub(self.passed).and_then(|at| self.rows.get_mut(usize::try_from(at).ok()?));
        if let Some(row) = row.and_then(|(_, row)| row.take()) {
            self.weight -= row.weight();
            self.push_departures(
                row.channels.departures_missing_in(by).map(|channel| Departure { at: row.row.seq, channel }),
            );
        }
    }

    /// Drops old rows, and the oldest ones until at most `weight_max` bytes are left.
    pub fn trim(&mut self, weight_max: usize, now: Instant) {
        self.trim_rows(weight_max, now);
        // A follower before the tail's begin reads by-seq anyway.
        let passed = self.principals.partition_point(|(seq, ..)| *seq <= self.begin);
        self.principals.drain(..passed);
        self.departures.retain(|departure| departure.at > self.begin);
    }

    fn trim_rows(&mut self, weight_max: usize, now: Instant) {
        let many = self.principals.len().checked_sub(PRINCIPALS_MAX + 1);
        if let Some((at, ..)) = many.and_then(|last| self.principals.get(last)) {
            self.begin = self.begin.max(*at);
        }
        while let Some((seq, row)) = self.rows.front() {
            let is_old = row.as_ref().is_none_or(|row| now.saturating_duration_since(row.read_at) > AGE_MAX);
            if !is_old && self.weight <= weight_max && *seq > self.begin {
                return;
            }
            self.begin = self.begin.max(*seq);
            if let Some(row) = row {
                self.weight -= row.weight();
                self.places.remove(&row.row.id);
            }
            self.rows.pop_front();
            self.passed += 1;
        }
        // An empty tail releases its memory.
        self.rows.shrink_to(64);
        self.places.shrink_to(64);
    }

    /// Drops all rows: followers that have not taken them read by-seq.
    pub fn clear(&mut self, drained: Seq) {
        *self = Tail { channels: self.channels, ..Tail::new(drained.max(self.drained), &self.clock) };
    }

    /// Returns a bounded part behind a sequence; `None` if the tail no longer reaches back that far.
    pub fn after(&self, cursor: Seq) -> Option<TailPart> {
        let from = self.rows.partition_point(|(seq, _)| *seq <= cursor);
        self.part(cursor, self.rows.range(from..).filter_map(|(_, row)| row.as_ref()))
    }

    /// As [`Tail::after`], with the rows of these ascending sequences alone.
    pub fn these_after(&self, cursor: Seq, these: &[Seq]) -> Option<TailPart> {
        let row = |seq: &Seq| {
            let at = self.rows.binary_search_by_key(seq, |(seq, _)| *seq).ok()?;
            self.rows.get(at)?.1.as_ref()
        };
        let behind = these.get(these.partition_point(|seq| *seq <= cursor)..).unwrap_or_default();
        self.part(cursor, behind.iter().filter_map(row))
    }

    fn part<'a>(&self, cursor: Seq, mut behind: impl Iterator<Item = &'a Arc<TailRow>>) -> Option<TailPart> {
        // A later epoch than that of all rows is one of a lost store.
        let is_other = cursor.incarnation() != self.begin.incarnation() || cursor.epoch() > self.drained.epoch();
        if is_other || cursor < self.begin {
            return None;
        }
        let (mut rows, mut bytes) = (Vec::new(), 0);
        let more = loop {
            match behind.next() {
                Some(_) if bytes > PART_BYTES_MAX => break true,
                Some(row) => {
                    bytes += row.weight();
                    rows.push(if row.row.has_ended(&self.clock) { Arc::new(row.ended()) } else { row.clone() });
                }
                None => break false,
            }
        };
        let last = rows.last().map(|row| row.row.seq);
        let last_seq = if more { last } else { Some(self.drained.max(cursor)) };
        let version = self.version.filter(|_| !more);
        let from = self.principals.partition_point(|(seq, ..)| *seq <= cursor);
        let principals = self.principals.range(from..).map(|(_, kind, name)| (*kind, Arc::clone(name))).collect();
        let departures = self.departures.iter().filter(|departure| departure.at > cursor).cloned().collect();
        Some(TailPart { rows, last_seq, is_all: !more, version, channels: self.channels, principals, departures })
    }

    /// Returns the age of the first change behind a commit version; zero if there is none.
    pub fn age_behind(&self, version: u64, now: Instant) -> Duration {
        let from = self.rows.partition_point(|(seq, _)| seq.version() <= version);
        let next = self.rows.range(from..).find_map(|(_, row)| row.as_ref());
        next.map_or(Duration::ZERO, |row| now.saturating_duration_since(row.read_at))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use flatbed_revtree::RevId;
    use proptest::prelude::*;

    use super::*;
    use flatbed_operations::read::get::plain;

    fn seq(at: u64) -> Seq {
        let mut stamp = [0; 16];
        stamp[4..12].copy_from_slice(&at.to_be_bytes());
        Seq::new(7, stamp)
    }

    fn row(at: u64, id: u8) -> TailRow {
        let rev: RevId = "1-a".parse().unwrap();
        let (id, leaves) = (id.to_string(), vec![rev.clone()]);
        let row = ChangeRow::changed(seq(at), id, rev, leaves);
        TailRow::new(row, TailDocument::NotRead, Instant::now())
    }

    /// Returns the rows of a follower that starts at `from` and takes one part after another.
    fn follow(tail: &Tail, from: u64) -> Option<Vec<(u64, String)>> {
        let (mut cursor, mut got) = (seq(from), Vec::new());
        loop {
            let part = tail.after(cursor)?;
            got.extend(part.rows.iter().map(|row| (row.row.seq.version(), row.row.id.clone())));
            let last = part.last_seq.expect("a place");
            assert!(last >= cursor);
            if part.rows.is_empty() {
                return Some(got);
            }
            cursor = last;
        }
    }

    proptest! {
        /// A follower in the tail's reach gets the by-seq rows behind its place in order; others get `None`.
        #[test]
        fn holds_what_by_seq_holds(
            commits in prop::collection::vec(prop::collection::vec(0..20u8, 0..12), 0..30),
            weight_max in 0..400_usize * ROW_BYTES,
        ) {
            let mut tail = Tail::new(seq(0), &Clock::system());
            let mut by_seq: BTreeMap<u64, String> = BTreeMap::new();
            let mut at = 0;
            for commit in commits {
                let mut rows = Vec::new();
                for id in commit {
                    at += 1;
                    by_seq.retain(|_, other| *other != id.to_string());
                    by_seq.insert(at, id.to_string());
                    rows.push(row(at, id));
                }
                at += 1;
                tail.push(rows, seq(at));
                tail.trim(weight_max, Instant::now());
                prop_assert!(tail.weight <= weight_max.max(1) || tail.rows.is_empty());
                prop_assert_eq!(tail.weight, tail.rows.iter().filter_map(|(_, row)| row.as_ref()).map(|row| row.weight()).sum::<usize>());
                for from in 0..=at {
                    let expected: Vec<_> = by_seq.range(from + 1..).map(|(at, id)| (*at, id.clone())).collect();
                    match follow(&tail, from) {
                        Some(got) => prop_assert_eq!(got, expected),
                        None => prop_assert!(seq(from) < tail.begin),
                    }
                }
                prop_assert_eq!(tail.drained(), seq(at));
            }
        }
    }

    #[test]
    fn what_has_ended_since_it_was_read_is_a_tombstone() {
        let with_end = |at, id, ends_at_ms| {
            let row = row(at, id);
            let document = plain("d", row.row.rev.clone(), false, b"\"n\":1".to_vec());
            let document = TailDocument::Read { document: Box::new(document), with_conflicts: false };
            TailRow::new(ChangeRow { ends_at_ms: Some(ends_at_ms), ..row.row }, document, Instant::now())
        };
        let mut tail = Tail::new(seq(1), &Clock::system());
        tail.push(vec![with_end(2, 1, 1), with_end(3, 2, u64::MAX), row(4, 3)], seq(4));
        let part = tail.after(seq(1)).unwrap();
        let deleted = part.rows.iter().map(|row| match &row.document {
            TailDocument::Read { document, .. } => (row.row.deleted, document.deleted, document.body.len()),
            TailDocument::NotRead => (row.row.deleted, false, 0),
        });
        assert_eq!(deleted.collect::<Vec<_>>(), [(true, true, 0), (false, false, 5), (false, false, 0)]);
    }

    #[test]
    fn forgets_what_is_old_and_what_another_incarnation_asks_for() {
        let mut tail = Tail::new(seq(1), &Clock::system());
        tail.push(vec![row(2, 1), row(3, 2)], seq(3));
        assert!(tail.after(Seq::zero(8)).is_none() && tail.after(seq(0)).is_none());
        assert_eq!(follow(&tail, 2), Some(vec![(3, "2".to_owned())]));
        let later = Instant::now() + AGE_MAX;
        assert!(tail.age_behind(1, later) >= AGE_MAX);
        assert_eq!(tail.age_behind(3, later), Duration::ZERO);
        tail.trim(usize::MAX, Instant::now() + AGE_MAX * 2);
        assert!(tail.after(seq(2)).is_none() && tail.weight == 0 && tail.places.is_empty());
        assert_eq!(follow(&tail, 3), Some(Vec::new()));
        tail.push(vec![row(4, 1)], seq(4));
        tail.clear(seq(5));
        assert!(tail.after(seq(4)).is_none() && follow(&tail, 5) == Some(Vec::new()));
    }
}
