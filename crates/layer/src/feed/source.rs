//! Where the rows of a feed come from.
//!
//! A feed ([`crate::Changes`]) reads pages until it is at the end, and follows then: it waits at the hub of the database,
//! which reads by-seq once for all. Which rows it gets either way, its source says. A feed asks its source once for each page
//! and once for each row that is shared, so the sources are a list ([`AnySource`]) and no objects: a call through a table
//! for each row of each follower would cost more than what most sources do there. The trait is what the compiler holds a
//! source to. How one is added: design/feeds.md.

pub(super) mod by_id;
pub(super) mod by_seq;
pub(super) mod channels;
pub(super) mod selected;
#[cfg(test)]
mod words;

use std::sync::Arc;

use crate::asker::Asker;
use crate::error::Result;
use crate::feed::hub::Interest;
use crate::feed::place::Place;
use crate::feed::query::{ChangesQuery, Extras, Scope, Since};
use crate::feed::row::{ChangeRow, ChangesPage};
use crate::feed::source::by_id::ByIds;
use crate::feed::source::by_seq::BySeq;
use crate::feed::source::channels::{Channels, Counting};
use crate::feed::source::selected::Selected;
use crate::feed::tail::TailRow;
use crate::held::HeldAt;
use crate::instance::Instance;
use crate::layer::Inner;
use crate::read::all_docs::{PAGE_DOCUMENTS_MAX, PAGE_ROWS_MAX};
use crate::read::get::show_documents;
use crate::store::seq::Seq;
use crate::store::transaction::Transaction;

/// What a feed asks of its source.
pub(super) trait Source {
    /// What the source itself has to see of a row to tell whether it is the feed's. Rows carry it beside what the feed asks
    /// for, both those of pages ([`Page::extras`]) and those that are shared; the feed takes out what it did not ask for.
    fn needs(&self) -> Extras {
        Extras::default()
    }

    /// Reads what comes next, a bounded part of one read version: by [`Page::rows_max`] and [`Page::complete`]. It may be
    /// attempted again: what it keeps for the next page must not count twice.
    ///
    /// Rows come by their sequences, ascending (or not: [`Page::descending`]), each behind the page's cursor, and `last_seq`
    /// is where the feed stands then; a document that changes meanwhile comes behind it. Where the cursor is of another
    /// incarnation, what is read begins anew.
    fn read(
        &mut self,
        trx: &Transaction,
        instance: &Arc<Instance>,
        page: &Page<'_>,
    ) -> impl Future<Output = Result<ChangesPage>> + Send;

    /// What a row of by-seq, as followers share it, is in this feed: the same that [`Source::read`] would make of it. It is
    /// asked of rows that carry what the source needs.
    fn sees(&self, row: &TailRow) -> Seen;

    /// How many rows lie behind a place: exact as far as that is cheap, beyond it an estimate; `None`: another transaction is to go on.
    fn pending(
        &self,
        trx: &Transaction,
        inner: &Inner,
        instance: &Instance,
        behind: &mut Behind,
    ) -> impl Future<Output = Result<Option<u64>>> + Send;
}

/// What a row of by-seq is in a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// Nothing: its document is none of the feed's.
    Other,
    /// A change of one of its documents.
    Changed,
    /// What there is in memory does not say: a page is read.
    Unknown,
    /// The change with which its document has left the feed ([`RowKind::Lost`](crate::RowKind::Lost)).
    #[cfg_attr(not(test), expect(dead_code, reason = "a document can leave no feed that there is yet"))]
    Lost,
}

/// The sources that there are.
pub(super) enum AnySource {
    BySeq(BySeq),
    ByIds(ByIds),
    Selected(Selected),
    Channels(Box<Channels>),
    #[cfg(test)]
    Words(words::Words),
}

impl AnySource {
    /// What a feed is read from on somebody's behalf.
    pub(super) fn of(query: &ChangesQuery, asker: &Asker) -> AnySource {
        match Channels::of(query, asker) {
            Some(channels) => AnySource::Channels(Box::new(channels)),
            None => match Plain::of(query) {
                Plain::BySeq(source) => AnySource::BySeq(source),
                Plain::ByIds(source) => AnySource::ByIds(source),
                Plain::Selected(source) => AnySource::Selected(source),
            },
        }
    }

    /// By what its reader follows, where that are channels; `None`: all changes are looked at.
    pub(super) fn interest(&self) -> Option<Interest<'_>> {
        match self {
            AnySource::Channels(source) => source.interest(),
            _ => None,
        }
    }

    /// Whether a feed may begin with what followers share: that of before an index was defined says nothing of it.
    pub(super) fn begins_with_shared(&self) -> bool {
        !self.is_of_index()
    }

    /// By what the rows of the last page were judged, and those that come behind the end of what was read; `None`: by nothing that somebody
    /// could lose.
    pub(super) fn judged_by(&self) -> Option<Arc<HeldAt>> {
        match self {
            AnySource::Channels(source) => source.judged_by(),
            _ => None,
        }
    }

    /// Whether what was read has cost so much that more is to be read behind these rows of a page before its reader has it.
    pub(super) fn goes_on(&self, rows: &[ChangeRow], extras: Extras) -> bool {
        matches!(self, AnySource::Channels(source) if source.goes_on(rows, extras))
    }

    /// The reader takes a page of these rows: what is large is not held meanwhile.
    pub(super) fn rest(&mut self, rows: &[ChangeRow]) {
        if let AnySource::Channels(source) = self {
            source.rest(rows);
        }
    }

    /// Whether it is of a selector index.
    pub(super) fn is_of_index(&self) -> bool {
        match self {
            AnySource::Selected(_) => true,
            AnySource::Channels(source) => source.is_of_index(),
            _ => false,
        }
    }

    /// Of a feed whose rows are not those of by-seq, in a database with this number of its function: up to where it has read all that
    /// there is, if it has.
    pub(super) fn judged(&self, channels: u64) -> Option<Option<Seq>> {
        match self {
            AnySource::Channels(source) if source.judges(channels) => Some(source.until()),
            _ => None,
        }
    }
}

/// Those of them that are for who sees all documents.
enum Plain {
    BySeq(BySeq),
    ByIds(ByIds),
    Selected(Selected),
}

impl Plain {
    fn of(query: &ChangesQuery) -> Plain {
        let walk = BySeq::new(query.scope.clone());
        match &query.scope {
            Scope::Ids(ids) => Plain::ByIds(ByIds::new(ids.clone(), walk)),
            Scope::Selected(name) => Plain::Selected(Selected::new(name.clone(), query.active_only)),
            Scope::All | Scope::Designs | Scope::Channels(_) => {
                Plain::BySeq(if query.active_only { walk.without_tombstones() } else { walk })
            }
        }
    }
}

/// Does with each source the same.
macro_rules! of_any {
    ($any:expr, $source:ident => $done:expr) => {
        match $any {
            AnySource::BySeq($source) => $done,
            AnySource::ByIds($source) => $done,
            AnySource::Selected($source) => $done,
            AnySource::Channels($source) => $done,
            #[cfg(test)]
            AnySource::Words($source) => $done,
        }
    };
}

impl Source for AnySource {
    fn needs(&self) -> Extras {
        of_any!(self, source => source.needs())
    }

    async fn read(&mut self, trx: &Transaction, instance: &Arc<Instance>, page: &Page<'_>) -> Result<ChangesPage> {
        of_any!(self, source => source.read(trx, instance, page).await)
    }

    fn sees(&self, row: &TailRow) -> Seen {
        of_any!(self, source => source.sees(row))
    }

    async fn pending(
        &self,
        trx: &Transaction,
        inner: &Inner,
        instance: &Instance,
        behind: &mut Behind,
    ) -> Result<Option<u64>> {
        of_any!(self, source => source.pending(trx, inner, instance, behind).await)
    }
}

/// What is left behind a place, being counted.
pub(super) struct Behind {
    pub(super) cursor: Place,
    /// What earlier transactions have counted.
    pub(super) counting: Option<Counting>,
    /// No other transaction goes on.
    pub(super) is_last: bool,
}

/// What is to be read of a feed.
pub(super) struct Page<'a> {
    pub(super) inner: &'a Inner,
    pub(super) since: Since,
    /// Newest first, down to `since`.
    pub(super) descending: bool,
    /// What the rows are to carry.
    pub(super) extras: Extras,
    /// Read up to here; `None` at first.
    pub(super) cursor: Option<Place>,
    /// How many rows at most; reached, the page is the last one.
    pub(super) limit: u64,
    /// So many rows of the same page have come: what follows is of who they were judged by, or there is nothing.
    pub(super) before: usize,
}

/// How many rows that carry this are read at once.
fn rows_max(extras: Extras) -> usize {
    if extras.has_documents() { PAGE_DOCUMENTS_MAX } else { PAGE_ROWS_MAX }
}

impl Page<'_> {
    /// How many rows are read at once.
    fn rows_max(&self) -> usize {
        rows_max(self.extras)
    }

    /// Up to where all changes have been read; `None` at first.
    fn cursor(&self) -> Option<Seq> {
        self.cursor.as_ref().map(Place::seq)
    }

    /// After what the whole feed begins; `None`: after the newest sequence, behind which there is nothing yet.
    fn since(&self, incarnation: u64) -> Option<Seq> {
        match self.since {
            Since::Beginning => Some(Seq::zero(incarnation)),
            Since::Now => None,
            Since::After(place) => Some(of_incarnation(incarnation, place.seq())),
        }
    }

    /// The page of these rows, with what they are to carry: where documents are more than fit, it ends before.
    async fn complete(
        &self,
        trx: &Transaction,
        instance: &Instance,
        mut rows: Vec<ChangeRow>,
        mut at_end: bool,
        mut last_seq: Seq,
    ) -> Result<ChangesPage> {
        if self.extras.leaves {
            for row in rows.iter_mut().filter(|row| row.lacks_leaves()) {
                row.read_leaves(trx, instance).await?;
            }
        } else {
            rows.iter_mut().for_each(|row| row.leaves.truncate(1));
        }
        let conflicts = self.extras.conflicts();
        if self.extras.has_documents()
            && show_documents(trx, self.inner, instance, &mut rows, Vec::new(), conflicts).await?
        {
            at_end = false;
            last_seq = rows.last().map_or(last_seq, |row| row.seq);
        }
        Ok(ChangesPage { rows, at_end, last_seq: last_seq.into() })
    }
}

/// A sequence of another incarnation means the beginning.
fn of_incarnation(incarnation: u64, seq: Seq) -> Seq {
    if seq.incarnation() == incarnation { seq } else { Seq::zero(incarnation) }
}
