//! Rows of feeds: one for each document, with its newest change.

use std::sync::Arc;

use flatbed_channels::Stamp;
use flatbed_clock::Clock;
use flatbed_databases::document::edit::Document;
use flatbed_databases::document::tree::Leaves;
use flatbed_databases::instance::Instance;
use flatbed_operations::read::get::ShowsDocument;
use flatbed_revtree::{RevId, rank};
use flatbed_store::error::Result;
use flatbed_store::proto;
use flatbed_store::records::{is_over, revision};
use flatbed_store::seq::Seq;
use flatbed_store::transaction::Transaction;
use prost::Message;

use crate::feed::place::FeedPosition;

/// The reason for a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowKind {
    /// The document was changed or deleted.
    Changed,
    /// The document left the feed, or the reader lost access to it. The row names the document and its revision at that
    /// change, and nothing else. Filters pass it.
    Lost,
    /// As `Lost`, where the reader lost access and the document did not move.
    Revoked,
    /// The user's channels or record have changed. The id is `_user/` and the user's name; there is no revision.
    User,
}

/// A document's newest change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeRow {
    /// The reason for the row.
    pub kind: RowKind,
    /// The sequence of the document's change.
    pub seq: Seq,
    /// The other change that caused the row: the grant or the loss of a channel.
    pub because: Option<Seq>,
    /// The id of the document.
    pub id: String,
    /// The winner; without meaning for [`RowKind::User`].
    pub rev: RevId,
    /// The winner, or all leaves from the best to the worst if the query asks for them; empty for [`RowKind::User`].
    pub leaves: Vec<RevId>,
    /// Number of leaves.
    pub leaf_count: usize,
    /// True if the winner is a tombstone; for a lost document, if its revision at the loss was one.
    pub deleted: bool,
    /// Channels of the reader that the document left with this change, sorted.
    pub removed: Vec<String>,
    /// The document, if the query asks for it.
    pub doc: Option<Document>,
    /// The expiry time of the document in milliseconds of Unix time, if it has one. From then on the document is shown
    /// as a tombstone without a body; a row that is read later is marked as deleted.
    pub ends_at_ms: Option<u64>,
}

impl ChangeRow {
    /// Creates a row of a changed document that is not deleted and has one leaf.
    pub fn changed(seq: Seq, id: String, rev: RevId, leaves: Vec<RevId>) -> ChangeRow {
        let (kind, removed, ends_at_ms) = (RowKind::Changed, Vec::new(), None);
        let (because, deleted, doc) = (None, false, None);
        ChangeRow { kind, seq, because, id, rev, leaves, leaf_count: 1, deleted, removed, doc, ends_at_ms }
    }

    /// Sets the expiry time of the document; 0: none.
    #[must_use]
    pub fn ending(self, expires_at_ms: u64, clock: &Clock) -> ChangeRow {
        let ends_at_ms = Some(expires_at_ms).filter(|at| *at > 0 && !self.deleted);
        ChangeRow { deleted: self.deleted || is_over(expires_at_ms, clock), ends_at_ms, ..self }
    }

    /// Returns whether the document has expired since the row was read.
    pub fn has_ended(&self, clock: &Clock) -> bool {
        !self.deleted && self.ends_at_ms.is_some_and(|at| is_over(at, clock))
    }

    /// Returns the position of the row.
    pub fn place(&self) -> FeedPosition {
        match self.because {
            None => self.seq.into(),
            Some(because) => FeedPosition::within(because, self.seq),
        }
    }

    /// Returns the row of the same change that says that the document left the feed.
    #[must_use]
    pub fn lost(&self) -> ChangeRow {
        let leaves = vec![self.rev.clone()];
        ChangeRow { kind: RowKind::Lost, ..ChangeRow::changed(self.seq, self.id.clone(), self.rev.clone(), leaves) }
    }

    /// Returns whether the document has more leaves than the by-seq entry names.
    pub fn lacks_leaves(&self) -> bool {
        self.leaf_count > self.leaves.len()
    }

    pub async fn read_leaves(&mut self, trx: &Transaction, instance: &Instance) -> Result<()> {
        let leaves = Leaves::read(trx, &instance.keys.document(&self.id)).await?.0;
        let mut leaves: Vec<_> = leaves.into_iter().map(|leaf| (leaf.deleted, leaf.rev)).collect();
        leaves.sort_by(|a, b| rank(b.0, &b.1).cmp(&rank(a.0, &a.1)));
        self.leaves = leaves.into_iter().map(|(_, rev)| rev).collect();
        Ok(())
    }
}

/// A page of a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangesPage {
    /// Rows in the feed's order; may be empty if a filter drops all.
    pub rows: Vec<ChangeRow>,
    /// True if everything was read, or the limit is reached.
    pub at_end: bool,
    /// The position of the feed after this page.
    pub last_seq: FeedPosition,
}

impl ShowsDocument for ChangeRow {
    fn id(&self) -> &str {
        &self.id
    }

    fn show(&mut self, document: Option<Document>) {
        self.doc = document;
    }
}

/// The facts of a change for channels and selector indexes; `None` where the names are too many for an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowChannels {
    /// The channels of the winner.
    pub entered: Option<Vec<String>>,
    /// The channels that the document left with the change.
    pub left: Option<Vec<String>>,
    /// The change before, if the document left channels with it or earlier: this entry does not name those.
    pub before: Option<Stamp>,
    /// The numbers of the selector indexes that took the change.
    pub selected: Vec<u64>,
}

/// The value for a database without channels.
impl Default for RowChannels {
    fn default() -> Self {
        RowChannels { entered: Some(Vec::new()), left: Some(Vec::new()), before: None, selected: Vec::new() }
    }
}

impl RowChannels {
    /// Returns the channels left with this change that a later change does not name; `None` for any channel.
    pub fn departures_missing_in(&self, later: &RowChannels) -> impl Iterator<Item = Option<Arc<str>>> {
        let is_told =
            |name: &&String| [&later.entered, &later.left].into_iter().flatten().flatten().any(|of| of == *name);
        let named = self.left.iter().flatten().filter(move |name| !is_told(name)).map(|name| Some(Arc::from(&**name)));
        named.chain(self.left.is_none().then_some(None))
    }

    pub fn bytes(&self) -> usize {
        let names = self.entered.iter().chain(&self.left).flatten();
        names.map(|name| name.len() + size_of::<String>()).sum::<usize>() + self.selected.len() * size_of::<u64>()
    }
}

fn names(of: Option<proto::ChannelNames>) -> Option<Vec<String>> {
    match of {
        None => Some(Vec::new()),
        Some(names) => Some(names.names).filter(|_| !names.are_elsewhere),
    }
}

pub fn change_row(seq: Seq, value: &[u8], clock: &Clock) -> Result<ChangeRow> {
    Ok(row_of(seq, proto::SequenceEntry::decode(value)?, clock)?.0)
}

/// As [`change_row`], with the facts for channels.
pub fn change_row_with_channels(seq: Seq, value: &[u8], clock: &Clock) -> Result<(ChangeRow, RowChannels)> {
    row_of(seq, proto::SequenceEntry::decode(value)?, clock)
}

fn row_of(seq: Seq, entry: proto::SequenceEntry, clock: &Clock) -> Result<(ChangeRow, RowChannels)> {
    let before = entry.before.try_into().ok().map(Stamp);
    let (entered, left) = (names(entry.channels), names(entry.left));
    let channels = RowChannels { entered, left, before, selected: entry.selected };
    let rev = revision(entry.winner.as_ref())?;
    let mut leaves = vec![rev.clone()];
    for leaf in &entry.leaves {
        let leaf = revision(Some(leaf))?;
        if leaf != rev {
            leaves.push(leaf);
        }
    }
    let leaf_count = usize::try_from(entry.leaf_count).unwrap_or(usize::MAX);
    let deleted = entry.deleted;
    let row = ChangeRow { leaf_count, deleted, ..ChangeRow::changed(seq, entry.document_id, rev, leaves) };
    Ok((row.ending(entry.expires_at_ms, clock), channels))
}
