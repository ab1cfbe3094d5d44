//! Sources of a feed's rows.
//!
//! A feed ([`crate::feed::changes::Changes`]) reads pages until its end and then follows: it waits at the hub of the
//! database, which reads by-seq once for all followers. The source decides in both modes which rows the feed has. A
//! feed calls its source once for each page and once for each shared row, so sources are an enum ([`AnySource`]): a
//! call through a vtable for each row of each follower would cost more than the work of most sources. The trait states
//! what each source must provide. CONTRIBUTING.md lists the steps to add one.

pub mod by_id;
pub mod by_seq;
pub mod channels;
pub mod selected;
#[cfg(feature = "test-hooks")]
pub mod words;

use std::sync::Arc;

use flatbed_databases::asker::ReadPrincipal;
use flatbed_databases::held::HeldRights;
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_operations::read::all_docs::{PAGE_DOCUMENTS_MAX, PAGE_ROWS_MAX};
use flatbed_operations::read::get::show_documents;
use flatbed_store::error::Result;
use flatbed_store::seq::Seq;
use flatbed_store::transaction::Transaction;

use crate::feed::hub::Interest;
use crate::feed::place::FeedPosition;
use crate::feed::query::{ChangesQuery, Extras, Scope, Since};
use crate::feed::row::{ChangeRow, ChangesPage};
use crate::feed::source::by_id::ByIds;
use crate::feed::source::by_seq::BySeq;
use crate::feed::source::channels::{Channels, RunningCount};
use crate::feed::source::selected::BySelector;
use crate::feed::tail::TailRow;

pub trait Source {
    /// Returns the extras that the source itself needs in rows. They are added to those of the feed's query, in pages
    /// ([`FeedPage::extras`]) and in shared rows; the feed removes what its query did not ask for.
    fn needs(&self) -> Extras {
        Extras::default()
    }

    /// Reads the next bounded page, of one read version, with [`FeedPage::rows_max`] and [`FeedPage::complete`]. It may
    /// be attempted again, so state kept for the next page must not be counted twice.
    ///
    /// Rows ascend by sequence (or descend: [`FeedPage::descending`]), behind the page's cursor, and `last_seq` is the
    /// position after them; a document that changes meanwhile comes behind it. A cursor of another incarnation means
    /// the beginning.
    fn read(
        &mut self,
        trx: &Transaction,
        instance: &Arc<Instance>,
        page: &FeedPage<'_>,
    ) -> impl Future<Output = Result<ChangesPage>> + Send;

    /// Judges a shared row of by-seq as [`Source::read`] would. The row carries what the source needs.
    fn sees(&self, row: &TailRow) -> RowVerdict;

    /// Counts the rows behind a place: exact while that is cheap, else an estimate; `None` if another transaction must
    /// continue.
    fn pending(
        &self,
        trx: &Transaction,
        inner: &Inner,
        instance: &Instance,
        behind: &mut PendingCount,
    ) -> impl Future<Output = Result<Option<u64>>> + Send;
}

/// The meaning of a by-seq row for a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowVerdict {
    Other,
    Changed,
    /// Memory does not tell: a page must be read.
    Unknown,
    /// The change with which its document has left the feed ([`RowKind::Lost`](crate::feed::row::RowKind::Lost)).
    Lost,
}

pub enum AnySource {
    BySeq(BySeq),
    ByIds(ByIds),
    Selected(BySelector),
    Channels(Box<Channels>),
    #[cfg(feature = "test-hooks")]
    Words(words::Words),
}

impl AnySource {
    pub fn of(query: &ChangesQuery, asker: &ReadPrincipal) -> AnySource {
        match Channels::of(query, asker) {
            Some(channels) => AnySource::Channels(Box::new(channels)),
            None => match UnrestrictedSource::of(query) {
                UnrestrictedSource::BySeq(source) => AnySource::BySeq(source),
                UnrestrictedSource::ByIds(source) => AnySource::ByIds(source),
                UnrestrictedSource::Selected(source) => AnySource::Selected(source),
            },
        }
    }

    /// Returns the channels that the feed follows; `None` if it looks at all changes.
    pub(super) fn interest(&self) -> Option<Interest<'_>> {
        match self {
            AnySource::Channels(source) => source.interest(),
            _ => None,
        }
    }

    /// Returns whether a feed may begin with shared rows. Rows older than an index do not name it.
    pub(super) fn begins_with_shared(&self) -> bool {
        !self.is_of_index()
    }

    /// Returns the rights that judged the rows of the last page and judge those behind the end; `None` if they depend
    /// on no right that the reader could lose.
    pub(super) fn judged_by(&self) -> Option<Arc<HeldRights>> {
        match self {
            AnySource::Channels(source) => source.judged_by(),
            _ => None,
        }
    }

    /// Returns whether another transaction should read behind these rows before the reader gets the page, because the
    /// state of the read was costly to build.
    pub(super) fn should_continue(&self, rows: &[ChangeRow], extras: Extras) -> bool {
        matches!(self, AnySource::Channels(source) if source.should_continue(rows, extras))
    }

    /// Drops large state while the reader takes a page of these rows.
    pub(super) fn rest(&mut self, rows: &[ChangeRow]) {
        if let AnySource::Channels(source) = self {
            source.rest(rows);
        }
    }

    pub(super) fn is_of_index(&self) -> bool {
        match self {
            AnySource::Selected(_) => true,
            AnySource::Channels(source) => source.is_of_index(),
            _ => false,
        }
    }

    /// For a feed whose rows are not those of by-seq, in a database with this number of its sync function: returns the
    /// sequence up to which it has read everything, if it has.
    pub(super) fn judged(&self, channels: u64) -> Option<Option<Seq>> {
        match self {
            AnySource::Channels(source) if source.judges(channels) => Some(source.until()),
            _ => None,
        }
    }
}

pub enum UnrestrictedSource {
    BySeq(BySeq),
    ByIds(ByIds),
    Selected(BySelector),
}

impl UnrestrictedSource {
    fn of(query: &ChangesQuery) -> UnrestrictedSource {
        let walk = BySeq::new(query.scope.clone());
        match &query.scope {
            Scope::Ids(ids) => UnrestrictedSource::ByIds(ByIds::new(ids.clone(), walk)),
            Scope::Selected(name) => UnrestrictedSource::Selected(BySelector::new(name.clone(), query.active_only)),
            Scope::All | Scope::Designs | Scope::Channels(_) => {
                UnrestrictedSource::BySeq(if query.active_only { walk.without_tombstones() } else { walk })
            }
        }
    }
}

macro_rules! of_any {
    ($any:expr, $source:ident => $done:expr) => {
        match $any {
            AnySource::BySeq($source) => $done,
            AnySource::ByIds($source) => $done,
            AnySource::Selected($source) => $done,
            AnySource::Channels($source) => $done,
            #[cfg(feature = "test-hooks")]
            AnySource::Words($source) => $done,
        }
    };
}

impl Source for AnySource {
    fn needs(&self) -> Extras {
        of_any!(self, source => source.needs())
    }

    async fn read(&mut self, trx: &Transaction, instance: &Arc<Instance>, page: &FeedPage<'_>) -> Result<ChangesPage> {
        of_any!(self, source => source.read(trx, instance, page).await)
    }

    fn sees(&self, row: &TailRow) -> RowVerdict {
        of_any!(self, source => source.sees(row))
    }

    async fn pending(
        &self,
        trx: &Transaction,
        inner: &Inner,
        instance: &Instance,
        behind: &mut PendingCount,
    ) -> Result<Option<u64>> {
        of_any!(self, source => source.pending(trx, inner, instance, behind).await)
    }
}

/// A running count of the rows behind a place.
pub struct PendingCount {
    pub(super) cursor: FeedPosition,
    /// The state of earlier transactions.
    pub(super) counting: Option<RunningCount>,
    pub(super) is_last: bool,
}

pub struct FeedPage<'a> {
    pub(super) inner: &'a Inner,
    pub(super) since: Since,
    /// Newest first, down to `since`.
    pub(super) descending: bool,
    pub(super) extras: Extras,
    /// The position up to which the feed has read; `None` at first.
    pub(super) cursor: Option<FeedPosition>,
    /// Row limit; the page that reaches it is the last one.
    pub(super) limit: u64,
    /// Number of rows that the page has already: the next ones need the same rights, else there are none.
    pub(super) before: usize,
}

pub fn rows_max(extras: Extras) -> usize {
    if extras.has_documents() { PAGE_DOCUMENTS_MAX } else { PAGE_ROWS_MAX }
}

impl FeedPage<'_> {
    fn rows_max(&self) -> usize {
        rows_max(self.extras)
    }

    /// Returns the sequence up to which all changes have been read; `None` at first.
    fn cursor(&self) -> Option<Seq> {
        self.cursor.as_ref().map(FeedPosition::seq)
    }

    /// Returns the sequence behind which the whole feed begins; `None`: behind the newest one, so it is empty.
    fn since(&self, instance: &Instance) -> Option<Seq> {
        match self.since {
            Since::Beginning => Some(Seq::zero(instance.incarnation())),
            Since::Now => None,
            Since::After(place) => Some(known_seq(instance, place.seq())),
        }
    }

    /// Completes a page of these rows with their extras, and ends it early if their documents exceed its memory.
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

/// Returns the sequence, or the beginning if it is of another incarnation or of an epoch of a lost store.
fn known_seq(instance: &Instance, seq: Seq) -> Seq {
    if instance.has_seq(&seq) { seq } else { Seq::zero(instance.incarnation()) }
}
