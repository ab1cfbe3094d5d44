//! A user's feed: the row of a document in it ([`HeldChannels::row_of`]), and the merge of rows from the indexes of
//! channels ([`Merge`]).
//!
//! A document is one row. The row of a visible document is at the lowest position that one of its channels gives it:
//! its own sequence if the user had that channel before, otherwise under the sequence of the grant. The row of a
//! document that is no longer visible is at the sequence where the last of the user's channels lost it. A client that
//! has read up to a position has therefore seen everything before it: a row only moves to positions after all commits
//! so far.

mod merge;

pub use merge::{DocumentQuestion, Merge, MergeStep, ReadRange, Source};

use crate::change::{ChannelDeparture, DocumentState};
use crate::held::{HeldChannels, Periods};
use crate::name::ALL;
use crate::position::{Position, Stamp};

/// The reason for a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowKind {
    /// A visible document has changed, or became visible with a channel.
    Changed,
    /// The document has left the last of the user's channels.
    Removed,
    /// The user has lost the document's last channel. Or the user had lost it and got it again, and the document was
    /// gone by then.
    Revoked,
    /// The user's own record has changed.
    User,
}

/// A row of a user's feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedRow {
    /// Its position, which is unique.
    pub position: Position,
    /// The reason for it.
    pub kind: RowKind,
    /// The document's id; empty for the user's own record.
    pub doc: String,
    /// The winning revision; for [`RowKind::Removed`] the one with which the document left.
    pub rev: String,
    /// True if that is a tombstone.
    pub deleted: bool,
    /// The user's channels that the document left with this change, sorted.
    pub removed: Vec<String>,
}

/// A channel that a user has lost, and may have again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostChannel {
    /// Its name.
    pub channel: String,
    /// The remembered periods that have ended.
    pub had: Periods,
    /// The change with which it was last lost.
    pub at: Stamp,
}

/// The parameters of a feed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FeedScope {
    /// The user's channels, as far as the feed covers them.
    pub held: HeldChannels,
    /// True if the feed has rows of lost documents ([`HeldChannels::lost`]).
    pub revocations: bool,
    /// The change of the user's own record, if it is a row.
    pub user: Option<Stamp>,
    /// Without deletions and removed documents.
    pub active_only: bool,
}

impl FeedScope {
    /// The lost channels, if the feed has rows of them.
    pub fn lost(&self) -> &[LostChannel] {
        if self.revocations { self.held.lost() } else { &[] }
    }

    fn lost_channel(&self, channel: &str) -> Option<&LostChannel> {
        self.held.lost_channel(channel).filter(|_| self.revocations)
    }

    /// True if the row belongs to the feed.
    fn passes(&self, row: &FeedRow) -> bool {
        !self.active_only || !matches!(row.kind, RowKind::Changed | RowKind::Removed) || is_active(row)
    }

    /// Returns the row of a document.
    pub fn row_of(&self, doc: &str, state: &DocumentState) -> Option<FeedRow> {
        let row = self.held.row_of(doc, state).or_else(|| self.revoked(doc, state, LostDocuments::Known))?;
        // The last of several rows of an invisible document counts.
        let row = match row.kind {
            RowKind::Removed => {
                let revoked = self.revoked(doc, state, LostDocuments::Known);
                revoked.filter(|other| other.position > row.position).unwrap_or(row)
            }
            _ => row,
        };
        self.passes(&row).then_some(row)
    }

    /// Returns the row of a document that is not visible, even if it is not known to have been in the channel before
    /// the loss, so that the row tells of a later change.
    fn lost_row_of(&self, doc: &str, state: &DocumentState) -> Option<FeedRow> {
        let row = self.revoked(doc, state, LostDocuments::Any).filter(|_| self.held.row_of(doc, state).is_none())?;
        self.passes(&row).then_some(row)
    }

    /// The change with which the user got a lost channel again.
    fn given_again(&self, channel: &str) -> Option<Stamp> {
        let lost = self.lost_channel(channel)?;
        self.held.since(channel).filter(|since| *since > lost.at)
    }

    /// Returns the row of a document that is not visible because of a lost channel.
    fn revoked(&self, doc: &str, state: &DocumentState, rows: LostDocuments) -> Option<FeedRow> {
        // A user may have lost thousands of channels, while a document is in few.
        let names = state.channels.iter().chain(state.left.keys()).map(String::as_str).chain([ALL]);
        let places = names.filter_map(|name| self.lost_channel(name)).filter_map(|lost| {
            let is_in = lost.channel == ALL || state.channels.contains(&lost.channel);
            let left = if is_in { None } else { Some(state.left.get(&lost.channel)?) };
            let of = left.map_or(state.seq, |left| left.seq);
            let at = match self.given_again(&lost.channel) {
                // A document that left the channel after the loss does not return with it.
                Some(again) => Some(again).filter(|again| of <= *again)?,
                None if self.held.since(&lost.channel).is_some() => return None,
                None => lost.at,
            };
            // A user who had the channel while the document was in it may have a copy. The position of the reader
            // proves nothing: the user may not have read the document's last change at the loss, and have read on
            // since.
            let may_have = lost.may_have(state) || rows == LostDocuments::Any && (is_in || lost.is_before(of));
            may_have.then(|| Position::within(at, of))
        });
        let position = places.max()?;
        let (doc, rev) = (doc.to_owned(), state.rev.clone());
        // The user must not learn of a deletion after the loss.
        let deleted = state.deleted && position.of.is_none_or(|of| of <= position.at);
        Some(FeedRow { position, kind: RowKind::Revoked, doc, rev, deleted, removed: Vec::new() })
    }
}

/// The documents of a lost channel that the feed covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LostDocuments {
    /// Documents that are known to have been in the channel while it was held. The client may not have the others, so
    /// they get no row and a client that has a copy keeps it.
    Known,
    /// All documents that are or were in the channel.
    Any,
}

impl LostChannel {
    /// Returns whether the document was in the channel while the user held it.
    fn may_have(&self, state: &DocumentState) -> bool {
        if self.channel == ALL {
            return self.had.has_overlap(state.known_since(), None);
        }
        let now = match state.left.get(&self.channel) {
            // If the entry is unknown, the document was there at least just before it left.
            Some(left) => self.had.has_overlap(left.since.unwrap_or(left.seq.before()), Some(left.seq)),
            None => self.had.has_overlap(state.since.get(&self.channel).copied().unwrap_or(state.seq), None),
        };
        let before = || state.earlier.get(&self.channel).into_iter().flat_map(Periods::all);
        now || before().any(|stay| self.had.has_overlap(stay.from, stay.until))
    }

    /// Returns whether the first remembered grant of the channel was before `stamp`.
    fn is_before(&self, stamp: Stamp) -> bool {
        self.had.all().first().is_some_and(|first| first.from < stamp)
    }
}

impl DocumentState {
    /// The latest time at which the document can have been created.
    fn known_since(&self) -> Stamp {
        let since = self.since.values().copied().chain(self.left.values().filter_map(|left| left.since));
        let earlier = self.earlier.values().filter_map(|stays| stays.all().first()).map(|stay| stay.from);
        since.chain(earlier).chain(self.born).chain([self.seq]).min().unwrap_or(self.seq)
    }
}

fn is_active(row: &FeedRow) -> bool {
    row.kind == RowKind::Changed && !row.deleted
}

impl HeldChannels {
    /// The position of a visible document with these channels: the lowest that one of them gives it.
    pub(crate) fn place<'a>(&self, channels: impl IntoIterator<Item = &'a str>, seq: Stamp) -> Option<Position> {
        let channels = channels.into_iter().chain([ALL]);
        channels.filter_map(|channel| Some(Position::held_since(self.since(channel)?, seq))).min()
    }

    /// Returns the row of a document in a feed of these channels.
    pub fn row_of(&self, doc: &str, state: &DocumentState) -> Option<FeedRow> {
        let doc = doc.to_owned();
        let seen = self.place(state.channels.iter().map(String::as_str), state.seq);
        // Tombstones do not come with a grant.
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

    /// The channels that the document has left since they were granted, by name. No document leaves `*`.
    fn left_since<'a>(&self, state: &'a DocumentState) -> impl Iterator<Item = (&'a str, &'a ChannelDeparture)> {
        let left = state.left.iter().map(|(channel, left)| (&**channel, left)).filter(|(channel, _)| *channel != ALL);
        left.filter(|(channel, left)| self.since(channel).is_some_and(|since| left.seq > since))
    }
}
