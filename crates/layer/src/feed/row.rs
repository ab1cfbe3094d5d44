//! What a feed gives: of each document that it is about a row, where it stands.

use std::sync::Arc;

use flatbed_channels::Stamp;
use flatbed_clock::Clock;
use flatbed_revtree::{RevId, rank};
use prost::Message;

use crate::document::edit::Document;
use crate::document::tree::Leaves;
use crate::error::Result;
use crate::feed::place::Place;
use crate::instance::Instance;
use crate::read::get::ShowsDocument;
use crate::store::proto;
use crate::store::records::{is_over, revision};
use crate::store::seq::Seq;
use crate::store::transaction::Transaction;

/// Why a document is in a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowKind {
    /// It has changed, or was deleted.
    Changed,
    /// It is no longer one of the feed's documents: it has left them, or the reader has lost the right to it. Such a row
    /// names the document and the revision with which that was so. It says nothing else of it, and filters let it pass.
    Lost,
    /// The same, where it is the reader who has lost it, and not the document that has left.
    Revoked,
    /// What the reader has has changed, or their own record: `_user/` and their name in the place of an id, and no revision.
    User,
}

/// A document's newest change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeRow {
    /// Whether the document is still one of the feed's.
    pub kind: RowKind,
    /// Its own sequence.
    pub seq: Seq,
    /// The change because of which it comes, where that is another one: a grant of a channel, or its loss.
    pub because: Option<Seq>,
    /// The document's id.
    pub id: String,
    /// The winner; of [`RowKind::User`] it says nothing.
    pub rev: RevId,
    /// The winner; of [`RowKind::User`] none; where asked for all leaves, each better than the next.
    pub leaves: Vec<RevId>,
    /// How many leaves there are.
    pub leaf_count: usize,
    /// Whether the winner is a tombstone; `false` of a document that is lost, but where the revision with which that was so is one.
    pub deleted: bool,
    /// Channels of the reader's that the document has left with this change, sorted.
    pub removed: Vec<String>,
    /// When asked for.
    pub doc: Option<Document>,
    /// When the document ends, in milliseconds of Unix time, where it does: from then on it is shown as a tombstone without a body.
    /// A row that is read later says that it is deleted.
    pub ends_at_ms: Option<u64>,
}

impl ChangeRow {
    /// A document that has changed and is not deleted; its winner is its only leaf.
    pub(crate) fn changed(seq: Seq, id: String, rev: RevId, leaves: Vec<RevId>) -> ChangeRow {
        let (kind, removed, ends_at_ms) = (RowKind::Changed, Vec::new(), None);
        let (because, deleted, doc) = (None, false, None);
        ChangeRow { kind, seq, because, id, rev, leaves, leaf_count: 1, deleted, removed, doc, ends_at_ms }
    }

    /// The same of a document that ends, or has: 0, it does not.
    #[must_use]
    pub(crate) fn ending(self, expires_at_ms: u64, clock: &Clock) -> ChangeRow {
        let ends_at_ms = Some(expires_at_ms).filter(|at| *at > 0 && !self.deleted);
        ChangeRow { deleted: self.deleted || is_over(expires_at_ms, clock), ends_at_ms, ..self }
    }

    /// Whether the document has ended since the row was read.
    pub(crate) fn has_ended(&self, clock: &Clock) -> bool {
        !self.deleted && self.ends_at_ms.is_some_and(|at| is_over(at, clock))
    }

    /// Where it stands.
    pub fn place(&self) -> Place {
        match self.because {
            None => self.seq.into(),
            Some(because) => Place::within(because, self.seq),
        }
    }

    /// The row that says of the same change that the document has left the feed.
    #[must_use]
    pub fn lost(&self) -> ChangeRow {
        let leaves = vec![self.rev.clone()];
        ChangeRow { kind: RowKind::Lost, ..ChangeRow::changed(self.seq, self.id.clone(), self.rev.clone(), leaves) }
    }

    /// Whether there are more leaves than the by-seq entry names.
    pub(crate) fn lacks_leaves(&self) -> bool {
        self.leaf_count > self.leaves.len()
    }

    pub(crate) async fn read_leaves(&mut self, trx: &Transaction, instance: &Instance) -> Result<()> {
        let leaves = Leaves::read(trx, &instance.keys.document(&self.id)).await?.0;
        let mut leaves: Vec<_> = leaves.into_iter().map(|leaf| (leaf.deleted, leaf.rev)).collect();
        leaves.sort_by(|a, b| rank(b.0, &b.1).cmp(&rank(a.0, &a.1)));
        self.leaves = leaves.into_iter().map(|(_, rev)| rev).collect();
        Ok(())
    }
}

/// Part of a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangesPage {
    /// In the feed's order; may be empty where a filter passes nothing.
    pub rows: Vec<ChangeRow>,
    /// All is read that was there, or the limit is reached.
    pub at_end: bool,
    /// Where the feed stands after this page.
    pub last_seq: Place,
}

impl ShowsDocument for ChangeRow {
    fn id(&self) -> &str {
        &self.id
    }

    fn show(&mut self, document: Option<Document>) {
        self.doc = document;
    }
}

/// What channels and selector indexes know of a change: names, or `None` where an entry names none of so many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RowChannels {
    /// Those of the winner.
    pub(crate) entered: Option<Vec<String>>,
    /// Those that the document left with it.
    pub(crate) left: Option<Vec<String>>,
    /// The change before, if the document had left channels with it or earlier: who has not seen that one does not learn of these here.
    pub(crate) before: Option<Stamp>,
    /// The numbers of the selector indexes that have taken it.
    pub(crate) selected: Vec<u64>,
}

/// Of a database without channels.
impl Default for RowChannels {
    fn default() -> Self {
        RowChannels { entered: Some(Vec::new()), left: Some(Vec::new()), before: None, selected: Vec::new() }
    }
}

impl RowChannels {
    /// Of the channels that a document left with this change those that a later change of it says nothing of; `None`: perhaps any.
    pub(crate) fn untold_by(&self, later: &RowChannels) -> impl Iterator<Item = Option<Arc<str>>> {
        let is_told =
            |name: &&String| [&later.entered, &later.left].into_iter().flatten().flatten().any(|of| of == *name);
        let named = self.left.iter().flatten().filter(move |name| !is_told(name)).map(|name| Some(Arc::from(&**name)));
        named.chain(self.left.is_none().then_some(None))
    }

    /// Bytes of the names.
    pub(crate) fn bytes(&self) -> usize {
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

pub(crate) fn change_row(seq: Seq, value: &[u8], clock: &Clock) -> Result<ChangeRow> {
    Ok(row_of(seq, proto::SequenceEntry::decode(value)?, clock)?.0)
}

/// The same with what channels know of it.
pub(crate) fn change_row_with_channels(seq: Seq, value: &[u8], clock: &Clock) -> Result<(ChangeRow, RowChannels)> {
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
