//! The feed of a restricted reader in a database with channels: the merge of their channels (design/channels.md, "The
//! feed").
//!
//! A page reads what the merge needs, and beside it the versions of the principal. If their rights have changed, the
//! merge ends there and another one continues. A merge omits changes since its start: they come behind it, in the next
//! merge.
//!
//! In a database without channels the feed is that of an unrestricted reader.

pub mod counting;
pub mod reading;
pub mod showing;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use flatbed_channels::{
    ALL, DocumentQuestion, FeedRow, FeedScope, GUEST, HeldChannels, Merge, MergeStep, Position, PrincipalKind, Stamp,
};
use flatbed_databases::asker::ReadPrincipal;
use flatbed_databases::channels::holding::RightsRead;
use flatbed_databases::held::HeldRights;
use flatbed_databases::instance::{Instance, InstanceId};
use flatbed_databases::limits::Limit;
use flatbed_databases::server::Inner;
use flatbed_operations::read::all_docs::PAGE_ROWS_MAX;
use flatbed_operations::read::get::READ_BYTES_MAX;
use flatbed_revtree::DocumentId;
use flatbed_store::error::{NotFound, Refusal, Result};
use flatbed_store::seq::{Seq, epoch_of};
use flatbed_store::transaction::Transaction;
use futures_util::future::try_join;

use crate::feed::hub::Interest;
use crate::feed::place::FeedPosition;
use crate::feed::query::{ChangesQuery, Documents, Extras, Scope, Since};
use crate::feed::row::{ChangeRow, ChangesPage};
use crate::feed::source::{FeedPage, PendingCount, RowVerdict, Source, UnrestrictedSource, rows_max};
use crate::feed::tail::{Departure, TailRow};

pub(crate) use counting::RunningCount;
pub(crate) use reading::channels_of_revision;

pub const ROWS_MAX: Limit<usize> = Limit::new(PAGE_ROWS_MAX, 5);

/// Rounds of reads in one transaction, beside the first read of each stream; the page ends then, even if it is empty. A
/// merge that is not kept has only these, for slow storage leaves no time for more: 4,096 ranges.
pub const ROUNDS_MAX: Limit<usize> = Limit::new(16, 2);

/// Streams that a page looks at before it yields to other tasks.
const LOOKS_IN_TURN: usize = 100_000;

/// Entries that a merge keeps between two pages. The rest is read again.
const KEPT_MAX: Limit<usize> = Limit::new(500, 3);

/// Unsent rows that a merge keeps between two pages.
const LEFT_MAX: usize = 1_000;

/// Streams of a merge that is kept between two pages, since streams take memory, too. Several transactions read each
/// page of a larger merge.
const KEPT_STREAMS_MAX: Limit<usize> = Limit::new(500, 10);

/// Documents of an id list that a page looks up at once; a longer list filters the merge instead.
const IDS_MAX: usize = 10_000;

/// The source for restricted readers; see the module.
pub struct Channels {
    asker: ReadPrincipal,
    query: ScopeRequest,
    plain: UnrestrictedSource,
    under_way: Option<RunningMerge>,
    reached: Option<FeedProgress>,
    live: Option<FollowerRights>,
    /// The rights that judged the last page.
    judged: Option<Arc<HeldRights>>,
}

/// The meaning of a by-seq row for a follower at the end.
pub(crate) enum LiveVerdict {
    /// None.
    Other,
    /// A row of a visible document, with the reader's channels that it left.
    Row(Vec<String>),
    /// The document left the last of the reader's channels.
    Left(Vec<String>),
    /// Memory does not tell: a page must be read.
    Unknown,
}

/// The rights that judge a follower: those at the read of the end.
struct FollowerRights {
    held: Arc<HeldRights>,
    /// The rights restricted to the feed's channels, if it names some.
    only: Option<HeldChannels>,
}

/// Returns the position, or the beginning if it is of another incarnation or of an epoch of a lost store.
fn known_position(instance: &Instance, place: &FeedPosition) -> Position {
    let position = place.position(instance.incarnation());
    let has = |stamp: Stamp| instance.epochs.has(epoch_of(&stamp.0));
    if has(position.at) && position.of.is_none_or(has) { position } else { Position::BEGIN }
}

struct ScopeRequest {
    scope: Scope,
    active_only: bool,
    revocations: bool,
}

#[derive(Clone, Copy)]
struct FeedProgress {
    instance: InstanceId,
    /// The position that the reader was given.
    shown: FeedPosition,
    /// The position up to which everything was read; no rows lie between.
    stands: Position,
    /// The sequence up to which everything was read, at the end.
    until: Option<Seq>,
}

/// A merge that continues with the next page.
struct RunningMerge {
    instance: InstanceId,
    incarnation: u64,
    held: Arc<HeldRights>,
    merge: Merge,
    /// The number of entries to request next from each stream.
    limits: Vec<usize>,
    /// Rows of the merge that did not fit the last page.
    left: VecDeque<MergeRow>,
    /// The scope of a list of documents, which needs no merge.
    of_ids: Option<FeedScope>,
    index: Option<u64>,
}

/// A result of a merge or of an id list.
#[derive(Clone)]
enum MergeRow {
    Row(FeedRow),
    /// A row if the document is still in the same state.
    Asked(DocumentQuestion),
    /// As `Asked`, for a document that was looked up by id.
    Id(Position, String),
}

impl Channels {
    /// Creates the source for a principal; `None` if the principal is unrestricted and the query names no channels.
    pub(super) fn of(query: &ChangesQuery, asker: &ReadPrincipal) -> Option<Channels> {
        if *asker == ReadPrincipal::All && !matches!(query.scope, Scope::Channels(_)) {
            return None;
        }
        let wanted =
            ScopeRequest { scope: query.scope.clone(), active_only: query.active_only, revocations: query.revocations };
        let plain = UnrestrictedSource::of(query);
        let (under_way, reached, live, judged) = Default::default();
        Some(Channels { asker: asker.clone(), query: wanted, plain, under_way, reached, live, judged })
    }

    /// Returns whether a database with this number of its sync function is read by channels.
    pub(super) fn judges(&self, channels: u64) -> bool {
        channels > 0 || matches!(self.query.scope, Scope::Channels(_))
    }

    pub(crate) fn is_of_index(&self) -> bool {
        matches!(self.plain, UnrestrictedSource::Selected(_))
    }

    /// Returns the sequence up to which everything was read, if the feed is at its end.
    pub(super) fn until(&self) -> Option<Seq> {
        self.reached.and_then(|reached| reached.until)
    }

    /// Returns the followed channels, if the end was read.
    pub(crate) fn interest(&self) -> Option<Interest<'_>> {
        // A design document announces the end of an index, and it is in no channel.
        let live = self.live.as_ref().filter(|_| !self.is_of_index())?;
        Some(Interest { found: &live.held, held: live.only.as_ref().unwrap_or(&live.held.held) })
    }

    /// Returns the rights that judged the last page and judge changes behind the end.
    pub(super) fn judged_by(&self) -> Option<Arc<HeldRights>> {
        self.judged.clone()
    }

    /// See [`crate::feed::source::AnySource::should_continue`].
    pub(super) fn should_continue(&self, rows: &[ChangeRow], extras: Extras) -> bool {
        let bytes =
            || rows.iter().filter_map(|row| row.doc.as_ref()).map(|document| document.body.len()).sum::<usize>();
        let is_large = self.under_way.as_ref().is_some_and(RunningMerge::is_large);
        is_large && rows.len() < rows_max(extras).min(ROWS_MAX.get()) && bytes() < READ_BYTES_MAX / 2
    }

    /// See [`crate::feed::source::AnySource::rest`]. A page without rows keeps its state: a new merge would find none
    /// again.
    pub(super) fn rest(&mut self, rows: &[ChangeRow]) {
        self.under_way.take_if(|under_way| under_way.is_large() && !rows.is_empty());
    }

    /// Returns whether the reader's rights are unchanged if these users and roles have changed.
    pub(crate) fn is_as_it_was(&self, principals: &[(PrincipalKind, Arc<str>)]) -> bool {
        let Some(live) = &self.live else { return false };
        let versions = &live.held.versions;
        !principals.iter().any(|(kind, name)| versions.iter().any(|(of, own, _)| of == kind && own == name))
    }

    /// Returns whether the reader's channels may have departures that no row shows.
    pub(crate) fn may_miss(&self, departures: &[Departure]) -> bool {
        let Some(live) = &self.live else { return !departures.is_empty() };
        let held = live.only.as_ref().unwrap_or(&live.held.held);
        // A lost channel takes nothing from an unrestricted reader.
        let is_held = |name: &Arc<str>| **name != *ALL && held.since(name).is_some();
        !held.has_all() && departures.iter().any(|departure| departure.channel.as_ref().is_none_or(is_held))
    }

    /// Judges a change behind the end, while the reader's rights are unchanged.
    pub(crate) fn judge(&self, row: &TailRow, extras: Extras) -> LiveVerdict {
        let Some(live) = &self.live else { return LiveVerdict::Unknown };
        let held = live.only.as_ref().unwrap_or(&live.held.held);
        let seen = match &self.plain {
            UnrestrictedSource::Selected(index) => index.sees(row),
            UnrestrictedSource::BySeq(_) | UnrestrictedSource::ByIds(_) => RowVerdict::Changed,
        };
        if seen == RowVerdict::Unknown {
            return LiveVerdict::Unknown;
        }
        if !self.is_about(&row.row.id) {
            return LiveVerdict::Other;
        }
        let (Some(entered), Some(left)) = (&row.channels.entered, &row.channels.left) else {
            return LiveVerdict::Unknown;
        };
        let is_seen = held.can_see(entered.iter().map(String::as_str));
        let is_held = |name: &&String| *name != ALL && held.since(name).is_some();
        let mut left: Vec<String> = left.iter().filter(is_held).cloned().collect();
        left.sort_unstable();
        let is_active = is_seen && !row.row.deleted;
        let active_only = self.query.active_only && !matches!(self.query.scope, Scope::Ids(_));
        if !is_seen && left.is_empty() || active_only && !is_active {
            return LiveVerdict::Other;
        }
        if !is_seen {
            return if extras.has_documents() { LiveVerdict::Unknown } else { LiveVerdict::Left(left) };
        }
        if seen == RowVerdict::Other {
            return LiveVerdict::Other;
        }
        // Some other leaves may be hidden from the reader.
        let names_others = extras.leaves || extras.documents >= Documents::WithConflicts;
        if names_others && row.row.leaf_count > 1 && !live.held.has_all() || !extras.are_in(row) {
            return LiveVerdict::Unknown;
        }
        LiveVerdict::Row(left)
    }

    /// Records that a follower has taken all up to a sequence, and the position that its reader was given.
    pub(crate) fn stands_at(&mut self, shown: Option<FeedPosition>, seq: Seq) {
        if let (Some(reached), Some(shown)) = (&mut self.reached, shown) {
            let until = reached.until.map_or(seq, |until| until.max(seq));
            let stands = reached.stands.max(Position::at(Stamp(*until.stamp())));
            *reached = FeedProgress { shown, stands, until: Some(until), ..*reached };
        }
    }

    /// Returns the scope of the feed under some rights.
    fn scope(&self, held: &HeldRights) -> FeedScope {
        let of = match &self.query.scope {
            Scope::Channels(channels) if self.asker == ReadPrincipal::All => {
                HeldChannels::since_ever(channels.iter().map(String::as_str))
            }
            Scope::Channels(channels) => held.held.only(channels.iter().map(String::as_str)),
            Scope::All | Scope::Designs | Scope::Ids(_) | Scope::Selected(_) => held.held.clone(),
        };
        let has_row = !matches!(self.query.scope, Scope::Designs | Scope::Ids(_)) && self.name().is_some();
        let active_only = self.query.active_only && !matches!(self.query.scope, Scope::Ids(_));
        FeedScope { held: of, revocations: self.query.revocations, user: held.user_at.filter(|_| has_row), active_only }
    }

    /// Returns the name in the user's own row.
    fn name(&self) -> Option<&str> {
        match &self.asker {
            ReadPrincipal::Principal(name) | ReadPrincipal::Account { name, .. } => Some(name),
            ReadPrincipal::Guest => Some(GUEST),
            ReadPrincipal::All => None,
        }
    }

    fn is_about(&self, id: &str) -> bool {
        match &self.query.scope {
            Scope::Ids(ids) if !ids.contains(id) => false,
            Scope::Designs if !DocumentId::of(id).is_design() => false,
            // Design documents are visible to administrators alone and are in no channel.
            _ => self.asker == ReadPrincipal::All || !DocumentId::of(id).is_design(),
        }
    }

    /// Returns the ids to look up, if the feed is read that way.
    fn ids(&self) -> Option<&Arc<HashSet<String>>> {
        match &self.query.scope {
            Scope::Ids(ids) if ids.len() <= IDS_MAX => Some(ids),
            _ => None,
        }
    }

    /// Returns the start of a page, as given to its reader and as a position; `None` if it starts at the feed's newest
    /// row.
    fn begin(&self, instance: &Instance, page: &FeedPage<'_>) -> Option<(FeedPosition, Position)> {
        let incarnation = instance.incarnation();
        let at = |place: FeedPosition| {
            let position = known_position(instance, &place);
            Some((FeedPosition::new(incarnation, position), position))
        };
        match (page.cursor, self.reached.filter(|reached| reached.instance == instance.id())) {
            (Some(cursor), Some(reached)) if cursor == reached.shown => Some((cursor, reached.stands)),
            (Some(cursor), _) => at(cursor),
            (None, _) => match page.since {
                Since::Beginning => at(FeedPosition::new(incarnation, Position::BEGIN)),
                Since::After(place) => at(place),
                Since::Now => None,
            },
        }
    }

    async fn read_judged(
        &mut self,
        trx: &Transaction,
        instance: &Instance,
        page: &FeedPage<'_>,
    ) -> Result<ChangesPage> {
        if page.descending {
            return Err(Refusal::NoSuchFeed("a feed of channels is not read the other way round").into());
        }
        if instance.channels() == 0 {
            // A channel filter would be a function of a design document, and this one does not exist.
            return Err(Refusal::DocumentNotFound(NotFound::Missing).into());
        }
        let incarnation = instance.incarnation();
        let index = match &mut self.plain {
            UnrestrictedSource::Selected(index) => Some(index.number(page.inner, instance)?),
            UnrestrictedSource::BySeq(_) | UnrestrictedSource::ByIds(_) => None,
        };
        let begin = self.begin(instance, page);
        // The merge is lost if this fails: the next attempt begins where the last page ended.
        let is_on = |of: &RunningMerge| {
            let goes_on = self.reached.is_some_and(|reached| page.cursor == Some(reached.shown));
            of.instance == instance.id() && goes_on
        };
        let under_way = self.under_way.take().filter(is_on);
        if page.before > 0 && under_way.is_none() {
            return Ok(nothing(page));
        }
        let holding = RightsRead::begin(page.inner, trx, instance, &self.asker);
        let most = page
            .rows_max()
            .min(ROWS_MAX.get())
            .saturating_sub(page.before)
            .min(usize::try_from(page.limit).unwrap_or(usize::MAX));
        let last_seq = || instance.buckets.begin_last_seq(trx, instance.epoch_begin());
        let (held, under_way, until) = match under_way {
            Some(mut under_way) => {
                // Requested together with the versions.
                let reads = under_way.begin_reads(trx, page.inner, instance);
                let (held, read) = try_join(holding.held(), reads).await?;
                let is_same = held.is_as(&under_way.held);
                if page.before > 0 && !is_same {
                    // The rows so far were judged with the old rights.
                    return Ok(nothing(page));
                }
                under_way.give(read);
                (held, Some(under_way).filter(|_| is_same), None)
            }
            None => {
                let (held, until) = try_join(holding.held(), last_seq()).await?;
                (held, None, Some(until))
            }
        };
        // A running feed also needs an admitted reader: it ends where the reader is locked out, and keeps its position.
        self.asker.admitted(&held)?;
        self.judged = Some(Arc::clone(&held));
        let (shown, stands) = match begin {
            Some(begin) => begin,
            None => {
                let newest = reading::newest(trx, instance, &self.scope(&held)).await?;
                (FeedPosition::new(incarnation, newest), newest)
            }
        };
        if page.limit == 0 {
            self.reached = Some(FeedProgress { instance: instance.id(), shown, stands, until: None });
            return Ok(ChangesPage { rows: Vec::new(), at_end: true, last_seq: shown });
        }
        let mut under_way = match under_way {
            Some(under_way) => under_way,
            None => {
                let until = match until {
                    Some(until) => until,
                    None => last_seq().await?,
                };
                self.set_out(trx, instance, &held, (stands, until), most, index).await?
            }
        };
        let mut rounds = under_way.rounds_max();
        let is_end = self.collect(trx, page.inner, instance, &mut under_way, most, &mut rounds).await?;
        let slots: Vec<MergeRow> = under_way.left.drain(..most.min(under_way.left.len())).collect();
        let found = reading::complete_rows(trx, instance, &under_way, slots).await?;
        let passed = found.last().map(|row| row.position);
        let found = reading::selected(trx, &page.inner.metrics, instance, index, found).await?;
        let (inner, extras) = (page.inner, page.extras);
        let show = showing::Show { trx, inner, instance, held: &held, extras, name: self.name() };
        let (rows, behind) = show.rows(found).await?;
        let is_passed = behind.is_empty();
        behind.into_iter().rev().for_each(|row| under_way.left.push_front(MergeRow::Row(row)));
        let is_full = rows.len() as u64 >= page.limit;
        let last_seq = rows.last().map_or(shown, |row| row.place());
        let at_end = is_full || (is_end && under_way.left.is_empty());
        let stands = match rows.last() {
            _ if under_way.left.is_empty() => under_way.merge.stands(),
            // Behind this position are rows that the index does not have.
            _ if is_passed => passed.unwrap_or(stands),
            Some(last) => last.place().position(incarnation),
            None => stands,
        };
        let until = (at_end && !is_full).then(|| under_way.until());
        self.live = until.map(|_| self.following(&held));
        self.reached = Some(FeedProgress { instance: instance.id(), shown: last_seq, stands, until });
        // A page without rows keeps its merge: a new one would find none again.
        if !at_end && (under_way.is_large() || under_way.is_kept() || rows.is_empty()) {
            // A large merge may have unread streams, and would make no progress if it began again.
            if !under_way.is_large() {
                under_way.merge.forget_beyond(KEPT_MAX.get());
            }
            self.under_way = Some(under_way);
        }
        Ok(ChangesPage { rows, at_end, last_seq })
    }

    /// Returns the rights that judge followers from here on.
    fn following(&self, held: &Arc<HeldRights>) -> FollowerRights {
        let is_whole = !matches!(self.query.scope, Scope::Channels(_));
        FollowerRights { held: Arc::clone(held), only: (!is_whole).then(|| self.scope(held).held) }
    }

    /// Starts a merge, or looks up the documents of a list.
    async fn set_out(
        &self,
        trx: &Transaction,
        instance: &Instance,
        held: &Arc<HeldRights>,
        (since, until): (Position, Seq),
        most: usize,
        index: Option<u64>,
    ) -> Result<RunningMerge> {
        let (id, incarnation) = (instance.id(), instance.incarnation());
        let (scope, held) = (self.scope(held), Arc::clone(held));
        let Some(ids) = self.ids() else {
            let merge = Merge::new(scope, since, Stamp(*until.stamp()));
            let limits = reading::first_limits(merge.streams(), most);
            return Ok(RunningMerge {
                instance: id,
                incarnation,
                held,
                merge,
                limits,
                left: VecDeque::new(),
                of_ids: None,
                index,
            });
        };
        let left = reading::look(trx, instance, ids, &scope, since, |id| self.is_about(id)).await?;
        let merge = Merge::new(FeedScope::default(), since, Stamp(*until.stamp()));
        Ok(RunningMerge {
            instance: id,
            incarnation,
            held,
            merge,
            limits: Vec::new(),
            left: left.into(),
            of_ids: Some(scope),
            index,
        })
    }

    /// Takes rows from the merge until the page is full or the transaction's rounds are used, and returns whether the
    /// merge has ended.
    async fn collect(
        &self,
        trx: &Transaction,
        inner: &Inner,
        instance: &Instance,
        under_way: &mut RunningMerge,
        most: usize,
        rounds: &mut usize,
    ) -> Result<bool> {
        let mut looks = 0;
        while under_way.left.len() < most {
            // Each step looks at each stream.
            looks += under_way.merge.streams();
            if looks > LOOKS_IN_TURN {
                looks = 0;
                tokio::task::yield_now().await;
            }
            match under_way.merge.step() {
                MergeStep::Row(row) if row.doc.is_empty() || self.is_about(&row.doc) => {
                    under_way.left.push_back(MergeRow::Row(row));
                }
                MergeStep::Ask(asked) if self.is_about(&asked.doc) => under_way.left.push_back(MergeRow::Asked(asked)),
                MergeStep::Row(_) | MergeStep::Ask(_) => {}
                MergeStep::Read if *rounds == 0 => return Ok(false),
                MergeStep::Read => {
                    *rounds -= 1;
                    let read = under_way.begin_reads(trx, inner, instance).await?;
                    under_way.give(read);
                }
                MergeStep::End => return Ok(true),
            }
        }
        Ok(false)
    }
}

/// An empty page that must be followed by another one.
fn nothing(page: &FeedPage<'_>) -> ChangesPage {
    let last_seq = page.cursor.unwrap_or_else(|| FeedPosition::new(0, Position::BEGIN));
    ChangesPage { rows: Vec::new(), at_end: false, last_seq }
}

impl Source for Channels {
    async fn read(&mut self, trx: &Transaction, instance: &Arc<Instance>, page: &FeedPage<'_>) -> Result<ChangesPage> {
        if self.judges(instance.channels()) {
            return self.read_judged(trx, instance, page).await;
        }
        if page.before > 0 {
            return Ok(nothing(page));
        }
        (self.under_way, self.reached, self.judged) = (None, None, None);
        match &mut self.plain {
            UnrestrictedSource::BySeq(source) => source.read(trx, instance, page).await,
            UnrestrictedSource::ByIds(source) => source.read(trx, instance, page).await,
            UnrestrictedSource::Selected(source) => source.read(trx, instance, page).await,
        }
    }

    fn sees(&self, row: &TailRow) -> RowVerdict {
        match &self.plain {
            UnrestrictedSource::BySeq(source) => source.sees(row),
            UnrestrictedSource::ByIds(source) => source.sees(row),
            UnrestrictedSource::Selected(source) => source.sees(row),
        }
    }

    async fn pending(
        &self,
        trx: &Transaction,
        inner: &Inner,
        instance: &Instance,
        behind: &mut PendingCount,
    ) -> Result<Option<u64>> {
        if self.judges(instance.channels()) {
            return self.count(trx, inner, instance, behind).await;
        }
        match &self.plain {
            UnrestrictedSource::BySeq(source) => source.pending(trx, inner, instance, behind).await,
            UnrestrictedSource::ByIds(source) => source.pending(trx, inner, instance, behind).await,
            UnrestrictedSource::Selected(source) => source.pending(trx, inner, instance, behind).await,
        }
    }
}

impl RunningMerge {
    /// Returns the scope of the feed under its reader's rights.
    fn scope(&self) -> &FeedScope {
        self.of_ids.as_ref().unwrap_or(self.merge.scope())
    }

    /// Returns whether it has many streams, which take memory even if they are empty.
    fn is_large(&self) -> bool {
        self.merge.streams() > KEPT_STREAMS_MAX.get()
    }

    /// Returns the number of rounds of reads that a transaction may do.
    fn rounds_max(&self) -> usize {
        ROUNDS_MAX.get() + if self.is_large() { 0 } else { self.merge.streams().div_ceil(reading::AT_ONCE.get()) }
    }

    /// Returns whether it is small enough to keep while its reader takes a page.
    fn is_kept(&self) -> bool {
        !self.is_large() && (self.of_ids.is_some() || self.left.len() <= LEFT_MAX)
    }

    /// Returns the sequence up to which everything has been read at the end.
    fn until(&self) -> Seq {
        Seq::new(self.incarnation, self.merge.stands().at.0)
    }
}
