//! The merge of a feed from the indexes of channels.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::change::DocumentState;
use crate::codec::ChannelEntry;
use crate::feed::{FeedRow, FeedScope, RowKind};
use crate::name::ALL;
use crate::position::{Position, Stamp};

/// Merges the rows of a feed between a position and a sequence, without I/O: the caller reads what [`Merge::wants`]
/// names, passes it to [`Merge::give`], and gets the next step from [`Merge::step`].
///
/// The caller reads `until`, the newest sequence of the database, in the transaction of the first read; later reads
/// may use further transactions. Later changes have sequences after `until` and belong to the next merge. The merge
/// uses the channels that the user had at the beginning; if they change, the caller starts a new merge at this one's
/// position.
#[derive(Debug)]
pub struct Merge {
    scope: FeedScope,
    until: Stamp,
    streams: Vec<ChannelStream>,
    /// Each unfinished stream once, by its position or an earlier one.
    queue: BinaryHeap<Reverse<(Position, usize)>>,
    found: Vec<(usize, Stamp, ChannelEntry)>,
    stands: Position,
}

/// The source of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The index of a channel.
    Channel(String),
    /// All documents of the database, each with its channels.
    All,
}

/// A range to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRange<'m> {
    /// For [`Merge::give`].
    pub stream: usize,
    /// The source.
    pub source: &'m Source,
    /// The exclusive lower bound.
    pub after: Stamp,
    /// The inclusive upper bound.
    pub until: Stamp,
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MergeStep {
    /// A row.
    Row(FeedRow),
    /// The row depends on the document's current state: call [`Merge::answer`].
    Ask(DocumentQuestion),
    /// At least the first range of [`Merge::wants`] must be read.
    Read,
    /// No more rows; the feed is at [`Merge::stands`].
    End,
}

/// A question about a document, for a position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentQuestion {
    /// The document's id.
    pub doc: String,
    position: Position,
    /// True if it was in a channel there just before the loss.
    was_there: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamPhase {
    /// The changes while the channel was held, since this sequence.
    Usual(Stamp),
    /// The documents of the channel when it was granted at this sequence.
    Given(Stamp),
    /// The documents of the channel when it was lost at this sequence.
    Lost(Stamp),
}

#[derive(Debug)]
struct ChannelStream {
    source: Source,
    phase: StreamPhase,
    /// True if the channel is held again: documents that left it since the loss get rows, too.
    is_again: bool,
    /// Everything up to here is read.
    after: Stamp,
    until: Stamp,
    is_read: bool,
    rows: VecDeque<(Stamp, ChannelEntry)>,
}

impl ChannelStream {
    /// The position of the next row, or the lowest one that an unread row can have.
    fn place(&self) -> Option<Position> {
        let of = |stamp| match self.phase {
            StreamPhase::Usual(_) => Position::at(stamp),
            StreamPhase::Given(at) | StreamPhase::Lost(at) => Position::within(at, stamp),
        };
        match self.rows.front() {
            Some((stamp, _)) => Some(of(*stamp)),
            None if self.is_read => None,
            None => Some(of(self.after.behind())),
        }
    }

    fn channel(&self) -> &str {
        match &self.source {
            Source::Channel(name) => name,
            Source::All => ALL,
        }
    }
}

impl Merge {
    /// Starts a merge of the rows after `since`, up to `until`.
    pub fn new(scope: FeedScope, since: Position, until: Stamp) -> Merge {
        let mut streams = Vec::new();
        // Inside the rows of a grant, those at the sequence of the grant itself are still to come.
        let usual_after = if since.of.is_some() { since.at.before() } else { since.at };
        let mut add = |source: &Source, (phase, is_again), after: Stamp, until: Stamp| {
            if after < until {
                let (rows, is_read) = (VecDeque::new(), false);
                streams.push(ChannelStream { source: source.clone(), phase, is_again, after, until, is_read, rows });
            }
        };
        for (channel, held_since) in scope.held.channels() {
            let source = if channel == ALL { Source::All } else { Source::Channel(channel.to_owned()) };
            add(&source, (StreamPhase::Usual(held_since), false), usual_after.max(held_since.before()), until);
            if let Some(after) = within(since, held_since).filter(|_| held_since <= until) {
                // A document that leaves a channel with the change that grants it again has also left since the loss.
                let again = scope.given_again(channel);
                let last = again.unwrap_or_else(|| held_since.before());
                add(&source, (StreamPhase::Given(held_since), again.is_some()), after, last);
            }
        }
        let gone = scope.lost().iter().filter(|lost| scope.held.since(&lost.channel).is_none());
        for lost in gone {
            let source = if lost.channel == ALL { Source::All } else { Source::Channel(lost.channel.clone()) };
            if let Some(after) = within(since, lost.at).filter(|_| lost.at <= until) {
                // Documents that change during the merge move ahead of it, and no other stream reports them.
                add(&source, (StreamPhase::Lost(lost.at), false), after, Stamp::MAX);
            }
        }
        let queue = streams.iter().enumerate().filter_map(|(number, stream)| Some(Reverse((stream.place()?, number))));
        let queue = queue.collect();
        Merge { scope, until, streams, queue, found: Vec::new(), stands: since }
    }

    /// The parameters.
    pub fn scope(&self) -> &FeedScope {
        &self.scope
    }

    /// The position after all rows so far. A new merge can resume here.
    pub fn stands(&self) -> Position {
        self.stands
    }

    /// Returns ranges to read, the most urgent first: of streams that hold no entries, then of those that hold at
    /// most `low` for their number. The caller may read any prefix of them.
    pub fn wants(&self, low: impl Fn(usize) -> usize) -> Vec<ReadRange<'_>> {
        let is_low = |number: usize, stream: &ChannelStream| stream.rows.is_empty() || stream.rows.len() <= low(number);
        let lacking = self.streams.iter().enumerate().filter(|(number, of)| !of.is_read && is_low(*number, of));
        let mut wants: Vec<_> =
            lacking.map(|(number, stream)| ((!stream.rows.is_empty(), stream.place()), number, stream)).collect();
        wants.sort_unstable_by_key(|(place, number, _)| (*place, *number));
        wants
            .into_iter()
            .map(|(_, stream, of)| ReadRange { stream, source: &of.source, after: of.after, until: of.until })
            .collect()
    }

    /// Takes entries that were read, in the order of sequences; `at_end`: the whole range was read.
    pub fn give(&mut self, stream: usize, rows: impl IntoIterator<Item = (Stamp, ChannelEntry)>, at_end: bool) {
        let Some(stream) = self.streams.get_mut(stream) else { return };
        for (stamp, entry) in rows {
            if stamp <= stream.after || stamp > stream.until {
                continue;
            }
            stream.after = stamp;
            let is_told = match stream.phase {
                // The user did not have the channel before, so a departure with the change that grants it is no row.
                StreamPhase::Usual(since) => !entry.removed || stamp > since,
                // Documents that enter with the change that grants the channel come as usual.
                StreamPhase::Given(since) if stamp == since => entry.removed,
                // Tombstones and documents that had left at the grant are no rows.
                StreamPhase::Given(_) => stream.is_again || !(entry.deleted || entry.removed),
                StreamPhase::Lost(_) => true,
            };
            if is_told {
                stream.rows.push_back((stamp, entry));
            }
        }
        stream.is_read = stream.is_read || at_end || stream.after >= stream.until;
    }

    /// The number of entries that are held for later rows.
    pub fn held_entries(&self) -> usize {
        self.streams.iter().map(|stream| stream.rows.len()).sum()
    }

    /// The number of streams, finished ones included.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Drops entries beyond `most` in total, the last of each stream, which will be wanted again. For a caller that
    /// keeps an idle merge.
    pub fn forget_beyond(&mut self, most: usize) {
        let holding = self.streams.iter().filter(|stream| !stream.rows.is_empty()).count();
        let each = most / holding.max(1);
        for stream in &mut self.streams {
            if let Some((first, _)) = stream.rows.get(each) {
                stream.after = first.before();
                stream.is_read = false;
                stream.rows.truncate(each);
                stream.rows.shrink_to_fit();
            }
        }
    }

    /// Advances to the next step.
    pub fn step(&mut self) -> MergeStep {
        loop {
            let place = self.first();
            let user = self.scope.user.filter(|user| *user <= self.until).map(Position::at);
            if let Some(position) = user.filter(|user| *user > self.stands && place.is_none_or(|place| *user < place)) {
                self.stands = position;
                let (doc, rev) = Default::default();
                return MergeStep::Row(FeedRow {
                    position,
                    kind: RowKind::User,
                    doc,
                    rev,
                    deleted: false,
                    removed: Vec::new(),
                });
            }
            let Some(place) = place else {
                self.stands = self.stands.max(Position::at(self.until));
                return MergeStep::End;
            };
            if !self.take(place) {
                return MergeStep::Read;
            }
            self.stands = place;
            if let Some(step) = self.judge(place) {
                return step;
            }
        }
    }

    /// The lowest position of any stream, or that any unread stream can have.
    fn first(&mut self) -> Option<Position> {
        while let Some(Reverse((known, number))) = self.queue.peek().copied() {
            let place = self.streams.get(number).and_then(ChannelStream::place);
            if place == Some(known) {
                return place;
            }
            self.queue.pop();
            self.queue.extend(place.map(|place| Reverse((place, number))));
        }
        None
    }

    /// Takes all entries at `place`. Returns false if one of them must be read first.
    fn take(&mut self, place: Position) -> bool {
        self.found.clear();
        let mut taken = Vec::new();
        let mut is_read = true;
        while self.first() == Some(place) {
            let Some(Reverse((_, number))) = self.queue.pop() else { break };
            is_read &= self.streams.get(number).is_some_and(|stream| !stream.rows.is_empty());
            taken.push(number);
        }
        for number in taken {
            let Some(stream) = self.streams.get_mut(number) else { continue };
            if is_read {
                self.found.extend(stream.rows.pop_front().map(|(stamp, entry)| (number, stamp, entry)));
            }
            self.queue.extend(stream.place().map(|place| Reverse((place, number))));
        }
        is_read
    }

    /// Judges the entries at a position. They are all of one document, since sequences are unique.
    fn judge(&mut self, position: Position) -> Option<MergeStep> {
        let phase = |number: usize| self.streams.get(number).map(|stream| stream.phase);
        // A document in a channel at the change that loses the channel may have entered with that change.
        let was_there = |(stream, stamp, entry): &(usize, Stamp, ChannelEntry)| match phase(*stream) {
            Some(StreamPhase::Lost(at)) => *stamp < at || *stamp == at && entry.removed,
            _ => false,
        };
        let was_there = self.found.iter().any(was_there);
        let asked = |doc: &str| Some(MergeStep::Ask(DocumentQuestion { doc: doc.to_owned(), position, was_there }));
        let is_lost = |number: usize| matches!(phase(number), Some(StreamPhase::Lost(_)));
        let is_current = |(stream, _, entry): &(usize, Stamp, ChannelEntry)| match phase(*stream) {
            Some(StreamPhase::Usual(_)) => !entry.removed,
            Some(StreamPhase::Given(_)) => !entry.removed && !entry.deleted,
            Some(StreamPhase::Lost(_)) | None => false,
        };
        let place = |channels: &[String], seq| self.scope.held.place(channels.iter().map(String::as_str), seq);
        let current = self.found.iter().position(is_current);
        let Some(at) = current else {
            // A document of a lost channel may be visible through another channel.
            let seen_elsewhere = |(stream, seq, entry): &(usize, Stamp, ChannelEntry)| {
                let channels = entry.channels.as_deref().filter(|_| is_lost(*stream) && !entry.removed);
                let place = channels.and_then(|channels| place(channels, *seq));
                place.is_some_and(|place| !entry.deleted || place.of.is_none())
            };
            let (.., entry) = self.found.first()?;
            return if self.found.iter().any(seen_elsewhere) { None } else { asked(&entry.doc) };
        };
        let mut removed = Vec::new();
        if position.of.is_some() {
            // The document may be in another channel that was held before.
            let (_, seq, entry) = self.found.get(at)?;
            let Some(channels) = entry.channels.as_deref() else { return asked(&entry.doc) };
            if place(channels, *seq) != Some(position) {
                return None;
            }
        } else {
            let left = self.found.iter().filter(|(.., entry)| entry.removed);
            let left = left.filter_map(|(stream, ..)| Some(self.streams.get(*stream)?.channel().to_owned()));
            removed.extend(left);
            removed.sort_unstable();
        }
        let (.., ChannelEntry { doc, rev, deleted, .. }) = self.found.swap_remove(at);
        let row = FeedRow { position, kind: RowKind::Changed, doc, rev, deleted, removed };
        self.scope.passes(&row).then_some(MergeStep::Row(row))
    }

    /// Returns the row at the position that was asked about, from the document's current state; `None` if its row is
    /// elsewhere or the document is gone. A document that changed after `until` comes later.
    pub fn answer(&self, asked: &DocumentQuestion, state: Option<&DocumentState>) -> Option<FeedRow> {
        let (state, known) = (state?, asked.position);
        let told = self.scope.row_of(&asked.doc, state);
        if told.as_ref().is_some_and(|row| row.position == known) {
            return told;
        }
        // The document has moved ahead, perhaps past entries that were read, and no other stream reports it. If it
        // had a row here before, another channel that was lost at the same change reports it.
        let has_moved = |row: &FeedRow| {
            let place = row.position;
            place.at == known.at && known.of.is_some() && place > known && place.of.is_some_and(|of| of > self.until)
        };
        let told = told.filter(|row| row.kind == RowKind::Revoked && has_moved(row));
        let other = || self.scope.lost_row_of(&asked.doc, state).filter(|row| asked.was_there && has_moved(row));
        Some(FeedRow { position: known, ..told.or_else(other)? })
    }
}

/// The exclusive lower bound of the rows of a grant or loss that are still to come.
fn within(since: Position, at: Stamp) -> Option<Stamp> {
    if at > since.at { Some(Stamp::ZERO) } else { since.of.filter(|_| at == since.at) }
}
