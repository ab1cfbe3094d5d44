//! The feed of a user: which row each document is in it ([`Held::row_of`]), and how the rows come out of the indexes of channels
//! ([`Merge`]).
//!
//! A document is one row. Of a document that the user sees it is at the least place that one of its channels gives it: its own
//! sequence, if the user had one of these channels before, else under the grant's. Of one that the user sees no more it is where
//! the last of their channels lost it. Whoever has read up to a place has therefore seen what was before it: a row moves only
//! to places behind all that has been committed.

mod merge;

pub use merge::{Asked, Merge, Source, Step, Want};

use crate::change::{DocumentState, Left};
use crate::held::{Held, Periods};
use crate::name::ALL;
use crate::position::{Position, Stamp};

/// Why there is a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowKind {
    /// A document that the user sees has changed, or came with a channel.
    Changed,
    /// It has left the last of the user's channels.
    Removed,
    /// The user has lost the last channel that it was in; or had, and it was gone when they were given that again.
    Revoked,
    /// The user's own record has changed.
    User,
}

/// A row of a user's feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedRow {
    /// Where it stands; no two are at one place.
    pub position: Position,
    /// Why it is there.
    pub kind: RowKind,
    /// The document's id; empty: the user's own record.
    pub doc: String,
    /// The winner, or of [`RowKind::Removed`] the one with which the document left.
    pub rev: String,
    /// Whether that is a tombstone.
    pub deleted: bool,
    /// The user's channels that the document left with this change, sorted.
    pub removed: Vec<String>,
}

/// A channel that a user had and has no more, or has again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// Which.
    pub channel: String,
    /// When it was had, each time that is remembered and has ended.
    pub had: Periods,
    /// With which change it was lost, the last time.
    pub at: Stamp,
}

/// What a feed is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FeedScope {
    /// What the user has, as far as the feed is about it.
    pub held: Held,
    /// Whether they want to hear of what they have lost ([`Held::lost`]).
    pub revocations: bool,
    /// The change of the user's own record, where that is a row.
    pub user: Option<Stamp>,
    /// Without deletions, and without documents that are seen no more.
    pub active_only: bool,
}

impl FeedScope {
    /// What the user has lost, where they want to hear of it.
    pub fn lost(&self) -> &[Lost] {
        if self.revocations { self.held.lost() } else { &[] }
    }

    /// The same of one channel.
    fn lost_channel(&self, channel: &str) -> Option<&Lost> {
        self.held.lost_channel(channel).filter(|_| self.revocations)
    }

    /// Whether a row is left out.
    fn passes(&self, row: &FeedRow) -> bool {
        !self.active_only || !matches!(row.kind, RowKind::Changed | RowKind::Removed) || is_active(row)
    }

    /// The row that a document is.
    pub fn row_of(&self, doc: &str, state: &DocumentState) -> Option<FeedRow> {
        let row = self.held.row_of(doc, state).or_else(|| self.revoked(doc, state, Of::Known))?;
        // Of what is seen no more, the last that happened.
        let row = match row.kind {
            RowKind::Removed => {
                let revoked = self.revoked(doc, state, Of::Known);
                revoked.filter(|other| other.position > row.position).unwrap_or(row)
            }
            _ => row,
        };
        self.passes(&row).then_some(row)
    }

    /// The row of a document that is not seen, also where it tells of what it came to behind the loss of its channel, and it is not
    /// known that it was there before.
    fn lost_row_of(&self, doc: &str, state: &DocumentState) -> Option<FeedRow> {
        let row = self.revoked(doc, state, Of::Any).filter(|_| self.held.row_of(doc, state).is_none())?;
        self.passes(&row).then_some(row)
    }

    /// Since when the user has a channel again that was lost.
    fn given_again(&self, channel: &str) -> Option<Stamp> {
        let lost = self.lost_channel(channel)?;
        self.held.since(channel).filter(|since| *since > lost.at)
    }

    /// The row of a document that is not seen, because of a channel that was lost.
    fn revoked(&self, doc: &str, state: &DocumentState, rows: Of) -> Option<FeedRow> {
        // Somebody may have lost thousands, and a document is in few.
        let names = state.channels.iter().chain(state.left.keys()).map(String::as_str).chain([ALL]);
        let places = names.filter_map(|name| self.lost_channel(name)).filter_map(|lost| {
            let is_in = lost.channel == ALL || state.channels.contains(&lost.channel);
            let left = if is_in { None } else { Some(state.left.get(&lost.channel)?) };
            let of = left.map_or(state.seq, |left| left.seq);
            let at = match self.given_again(&lost.channel) {
                // What has gone since it was lost does not come with it.
                Some(again) => Some(again).filter(|again| of <= *again)?,
                None if self.held.since(&lost.channel).is_some() => return None,
                None => lost.at,
            };
            // Who had the channel while the document was in it may have the document. How far they have read says nothing: perhaps
            // they had not read of what happened to it when they lost the channel, and have read on since.
            let may_have = lost.may_have(state) || rows == Of::Any && (is_in || lost.is_before(of));
            may_have.then(|| Position::within(at, of))
        });
        let position = places.max()?;
        let (doc, rev) = (doc.to_owned(), state.rev.clone());
        // What has become of it behind the loss is not for them.
        let deleted = state.deleted && position.of.is_none_or(|of| of <= position.at);
        Some(FeedRow { position, kind: RowKind::Revoked, doc, rev, deleted, removed: Vec::new() })
    }
}

/// Which documents of a lost channel the feed still speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    /// Those of which it is known that they were there when the channel was lost. Of others they may not know: so they keep what they
    /// have of them.
    Known,
    /// All that are or were in it.
    Any,
}

impl Lost {
    /// Whether the document was in the channel while that was had.
    fn may_have(&self, state: &DocumentState) -> bool {
        if self.channel == ALL {
            return self.had.overlap(state.known_since(), None);
        }
        let now = match state.left.get(&self.channel) {
            // Of one of which nobody knows since when it was there, it was just before it left.
            Some(left) => self.had.overlap(left.since.unwrap_or(left.seq.before()), Some(left.seq)),
            None => self.had.overlap(state.since.get(&self.channel).copied().unwrap_or(state.seq), None),
        };
        let before = || state.earlier.get(&self.channel).into_iter().flat_map(Periods::all);
        now || before().any(|stay| self.had.overlap(stay.from, stay.until))
    }

    /// Whether the channel was given before that, the first time that is remembered.
    fn is_before(&self, stamp: Stamp) -> bool {
        self.had.all().first().is_some_and(|first| first.from < stamp)
    }
}

impl DocumentState {
    /// Since when at the latest there is the document.
    fn known_since(&self) -> Stamp {
        let since = self.since.values().copied().chain(self.left.values().filter_map(|left| left.since));
        let earlier = self.earlier.values().filter_map(|stays| stays.all().first()).map(|stay| stay.from);
        since.chain(earlier).chain(self.born).chain([self.seq]).min().unwrap_or(self.seq)
    }
}

fn is_active(row: &FeedRow) -> bool {
    row.kind == RowKind::Changed && !row.deleted
}

impl Held {
    /// Where a document with these channels stands, if it is seen: at the least place that one of them gives it.
    pub(crate) fn place<'a>(&self, channels: impl IntoIterator<Item = &'a str>, seq: Stamp) -> Option<Position> {
        let channels = channels.into_iter().chain([ALL]);
        channels.filter_map(|channel| Some(Position::held_since(self.since(channel)?, seq))).min()
    }

    /// The row that a document is in a feed of these channels.
    pub fn row_of(&self, doc: &str, state: &DocumentState) -> Option<FeedRow> {
        let doc = doc.to_owned();
        let seen = self.place(state.channels.iter().map(String::as_str), state.seq);
        // What came with a channel has no tombstones.
        let seen = seen.filter(|position| !state.deleted || position.of.is_none());
        if let Some(position) = seen {
            let removed = if position.of.is_none() { self.left_at(state, state.seq) } else { Vec::new() };
            let (rev, deleted) = (state.rev.clone(), state.deleted);
            return Some(FeedRow { position, kind: RowKind::Changed, doc, rev, deleted, removed });
        }
        let left = self.left_since(state).map(|(_, left)| left).max_by_key(|left| left.seq)?;
        Some(FeedRow {
            position: Position::at(left.seq),
            kind: RowKind::Removed,
            doc,
            rev: left.rev.clone(),
            deleted: left.deleted,
            removed: self.left_at(state, left.seq),
        })
    }

    fn left_at(&self, state: &DocumentState, seq: Stamp) -> Vec<String> {
        self.left_since(state).filter(|(_, left)| left.seq == seq).map(|(channel, _)| channel.to_owned()).collect()
    }

    /// What a document has left since that was given, by name: nothing leaves all documents.
    fn left_since<'a>(&self, state: &'a DocumentState) -> impl Iterator<Item = (&'a str, &'a Left)> {
        let left = state.left.iter().map(|(channel, left)| (&**channel, left)).filter(|(channel, _)| *channel != ALL);
        left.filter(|(channel, left)| self.since(channel).is_some_and(|since| left.seq > since))
    }
}
