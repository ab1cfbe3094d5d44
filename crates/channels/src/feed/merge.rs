//! A feed, put together from the indexes of channels.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::change::DocumentState;
use crate::codec::Entry;
use crate::feed::{FeedRow, FeedScope, RowKind};
use crate::name::ALL;
use crate::position::{Position, Stamp};

/// The rows of a feed between a place and a sequence, as a machine without I/O: it says what it wants to have read ([`Merge::wants`]),
/// is given that ([`Merge::give`]) and says what comes next ([`Merge::step`]).
///
/// Whoever reads takes `until`, the newest sequence of the database, in the transaction that reads first, and reads in further ones as
/// they come: what changes meanwhile lies behind `until`, and is in the next merge. The merge is of what the user had then; who finds
/// that they have something else begins a new one where this one stands.
#[derive(Debug)]
pub struct Merge {
    scope: FeedScope,
    until: Stamp,
    streams: Vec<Stream>,
    /// Streams by their places, or by earlier ones of theirs: each that goes on once.
    queue: BinaryHeap<Reverse<(Position, usize)>>,
    /// Entries at one place, while they are looked at.
    found: Vec<(usize, Stamp, Entry)>,
    stands: Position,
}

/// What a stream reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The index of a channel.
    Channel(String),
    /// All documents of the database, each with the channels that it is in.
    All,
}

/// What is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Want<'m> {
    /// For [`Merge::give`].
    pub stream: usize,
    /// What of.
    pub source: &'m Source,
    /// Behind this one.
    pub after: Stamp,
    /// Up to this one, and it too.
    pub until: Stamp,
}

/// What comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A row.
    Row(FeedRow),
    /// It rests on what the document is now: [`Merge::answer`].
    Ask(Asked),
    /// Something is to be read first: at least the first that [`Merge::wants`] has.
    Read,
    /// There is nothing more up to where it was asked for; the feed stands at [`Merge::stands`].
    End,
}

/// Which document is asked about, and for which place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The document's id.
    pub doc: String,
    position: Position,
    /// Whether it was in a channel just before that was lost there.
    was_there: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// What has happened while the channel was held, since this sequence.
    Usual(Stamp),
    /// What it had when it was given, at this sequence.
    Given(Stamp),
    /// What it had when it was lost, at this sequence.
    Lost(Stamp),
}

#[derive(Debug)]
struct Stream {
    source: Source,
    phase: Phase,
    /// The channel is held again, and what has gone since it was lost has rows, too.
    is_again: bool,
    /// Read up to here.
    after: Stamp,
    until: Stamp,
    is_read: bool,
    rows: VecDeque<(Stamp, Entry)>,
}

impl Stream {
    /// The place of its next row, or of what may come.
    fn place(&self) -> Option<Position> {
        let of = |stamp| match self.phase {
            Phase::Usual(_) => Position::at(stamp),
            Phase::Given(at) | Phase::Lost(at) => Position::within(at, stamp),
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
    /// What comes behind `since`, up to `until`.
    pub fn new(scope: FeedScope, since: Position, until: Stamp) -> Merge {
        let mut streams = Vec::new();
        // Within what came with a grant, what has the grant's sequence itself is still to come.
        let usual_after = if since.of.is_some() { since.at.before() } else { since.at };
        let mut add = |source: &Source, (phase, is_again), after: Stamp, until: Stamp| {
            if after < until {
                let (rows, is_read) = (VecDeque::new(), false);
                streams.push(Stream { source: source.clone(), phase, is_again, after, until, is_read, rows });
            }
        };
        for (channel, held_since) in scope.held.channels() {
            let source = if channel == ALL { Source::All } else { Source::Channel(channel.to_owned()) };
            add(&source, (Phase::Usual(held_since), false), usual_after.max(held_since.before()), until);
            if let Some(after) = within(since, held_since).filter(|_| held_since <= until) {
                // What leaves a channel with the change that gives it again has gone since it was lost, too.
                let again = scope.given_again(channel);
                let last = again.unwrap_or_else(|| held_since.before());
                add(&source, (Phase::Given(held_since), again.is_some()), after, last);
            }
        }
        let gone = scope.lost().iter().filter(|lost| scope.held.since(&lost.channel).is_none());
        for lost in gone {
            let source = if lost.channel == ALL { Source::All } else { Source::Channel(lost.channel.clone()) };
            if let Some(after) = within(since, lost.at).filter(|_| lost.at <= until) {
                // What changes while it is read moves ahead of it, and no other stream tells of it.
                add(&source, (Phase::Lost(lost.at), false), after, Stamp::MAX);
            }
        }
        let queue = streams.iter().enumerate().filter_map(|(number, stream)| Some(Reverse((stream.place()?, number))));
        let queue = queue.collect();
        Merge { scope, until, streams, queue, found: Vec::new(), stands: since }
    }

    /// What it is asked for.
    pub fn scope(&self) -> &FeedScope {
        &self.scope
    }

    /// Where the feed stands: behind all rows that have come. It goes on from here, be it in a merge of its own.
    pub fn stands(&self) -> Position {
        self.stands
    }

    /// What may be read now: of the streams that hold at most so many entries, by their numbers, those that hold none first,
    /// and of these what is needed first. As much of it as one reads at once.
    pub fn wants(&self, low: impl Fn(usize) -> usize) -> Vec<Want<'_>> {
        let is_low = |number: usize, stream: &Stream| stream.rows.is_empty() || stream.rows.len() <= low(number);
        let lacking = self.streams.iter().enumerate().filter(|(number, of)| !of.is_read && is_low(*number, of));
        let mut wants: Vec<_> =
            lacking.map(|(number, stream)| ((!stream.rows.is_empty(), stream.place()), number, stream)).collect();
        wants.sort_unstable_by_key(|(place, number, _)| (*place, *number));
        wants
            .into_iter()
            .map(|(_, stream, of)| Want { stream, source: &of.source, after: of.after, until: of.until })
            .collect()
    }

    /// What was read, in the order of sequences; `at_end`: that is all that was wanted.
    pub fn give(&mut self, stream: usize, rows: impl IntoIterator<Item = (Stamp, Entry)>, at_end: bool) {
        let Some(stream) = self.streams.get_mut(stream) else { return };
        for (stamp, entry) in rows {
            if stamp <= stream.after || stamp > stream.until {
                continue;
            }
            stream.after = stamp;
            let is_told = match stream.phase {
                // What leaves with the change that gives the channel, the user had not.
                Phase::Usual(since) => !entry.removed || stamp > since,
                // What is there with the change that gives the channel comes as usual.
                Phase::Given(since) if stamp == since => entry.removed,
                // What was there when the channel was given: neither tombstones nor what was gone then.
                Phase::Given(_) => stream.is_again || !(entry.deleted || entry.removed),
                Phase::Lost(_) => true,
            };
            if is_told {
                stream.rows.push_back((stamp, entry));
            }
        }
        stream.is_read = stream.is_read || at_end || stream.after >= stream.until;
    }

    /// How many entries it holds that were given and have not come yet.
    pub fn held_entries(&self) -> usize {
        self.streams.iter().map(|stream| stream.rows.len()).sum()
    }

    /// How many streams it reads, those among them that have been read to their ends.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Holds so many entries at most, of each stream the first; the others are wanted again. For who keeps it while nothing of it is
    /// asked for.
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

    /// What comes next.
    pub fn step(&mut self) -> Step {
        loop {
            let place = self.first();
            let user = self.scope.user.filter(|user| *user <= self.until).map(Position::at);
            if let Some(position) = user.filter(|user| *user > self.stands && place.is_none_or(|place| *user < place)) {
                self.stands = position;
                let (doc, rev) = Default::default();
                return Step::Row(FeedRow {
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
                return Step::End;
            };
            if !self.take(place) {
                return Step::Read;
            }
            self.stands = place;
            if let Some(step) = self.judge(place) {
                return step;
            }
        }
    }

    /// The least place that a stream has, or may have once it has been read.
    fn first(&mut self) -> Option<Position> {
        while let Some(Reverse((known, number))) = self.queue.peek().copied() {
            let place = self.streams.get(number).and_then(Stream::place);
            if place == Some(known) {
                return place;
            }
            self.queue.pop();
            self.queue.extend(place.map(|place| Reverse((place, number))));
        }
        None
    }

    /// Takes all entries at the least place there is; not if one of those is still to be read.
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

    /// What the entries at a place come to: all are of one document, as no two have one sequence.
    fn judge(&mut self, position: Position) -> Option<Step> {
        let phase = |number: usize| self.streams.get(number).map(|stream| stream.phase);
        // What is in a channel with the change that loses it may have come with that change.
        let was_there = |(stream, stamp, entry): &(usize, Stamp, Entry)| match phase(*stream) {
            Some(Phase::Lost(at)) => *stamp < at || *stamp == at && entry.removed,
            _ => false,
        };
        let was_there = self.found.iter().any(was_there);
        let asked = |doc: &str| Some(Step::Ask(Asked { doc: doc.to_owned(), position, was_there }));
        let is_lost = |number: usize| matches!(phase(number), Some(Phase::Lost(_)));
        let is_current = |(stream, _, entry): &(usize, Stamp, Entry)| match phase(*stream) {
            Some(Phase::Usual(_)) => !entry.removed,
            Some(Phase::Given(_)) => !entry.removed && !entry.deleted,
            Some(Phase::Lost(_)) | None => false,
        };
        let place = |channels: &[String], seq| self.scope.held.place(channels.iter().map(String::as_str), seq);
        let current = self.found.iter().position(is_current);
        let Some(at) = current else {
            // Of what is lost, some is seen through another channel.
            let seen_elsewhere = |(stream, seq, entry): &(usize, Stamp, Entry)| {
                let channels = entry.channels.as_deref().filter(|_| is_lost(*stream) && !entry.removed);
                let place = channels.and_then(|channels| place(channels, *seq));
                place.is_some_and(|place| !entry.deleted || place.of.is_none())
            };
            let (.., entry) = self.found.first()?;
            return if self.found.iter().any(seen_elsewhere) { None } else { asked(&entry.doc) };
        };
        let mut removed = Vec::new();
        if position.of.is_some() {
            // It may be in another channel that was held before.
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
        let (.., Entry { doc, rev, deleted, .. }) = self.found.swap_remove(at);
        let row = FeedRow { position, kind: RowKind::Changed, doc, rev, deleted, removed };
        self.scope.passes(&row).then_some(Step::Row(row))
    }

    /// The row at the place that was asked about, by what the document is now: none if it stands elsewhere, or is gone. One that has
    /// changed since `until` comes later.
    pub fn answer(&self, asked: &Asked, state: Option<&DocumentState>) -> Option<FeedRow> {
        let (state, known) = (state?, asked.position);
        let told = self.scope.row_of(&asked.doc, state);
        if told.as_ref().is_some_and(|row| row.position == known) {
            return told;
        }
        // It has moved ahead since, perhaps behind what was read already, and nothing else tells of it. Where it stood there before,
        // another channel that was lost with this one does.
        let has_moved = |row: &FeedRow| {
            let place = row.position;
            place.at == known.at && known.of.is_some() && place > known && place.of.is_some_and(|of| of > self.until)
        };
        let told = told.filter(|row| row.kind == RowKind::Revoked && has_moved(row));
        let other = || self.scope.lost_row_of(&asked.doc, state).filter(|row| asked.was_there && has_moved(row));
        Some(FeedRow { position: known, ..told.or_else(other)? })
    }
}

/// From where on what came, or went, with a change is still to come.
fn within(since: Position, at: Stamp) -> Option<Stamp> {
    if at > since.at { Some(Stamp::ZERO) } else { since.of.filter(|_| at == since.at) }
}
