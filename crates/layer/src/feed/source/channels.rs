//! What somebody sees of a database that has channels: the merge of what lies in theirs (design/channels.md, "The feed").
//!
//! A page reads what the merge wants, and the versions of who asks beside it: where they have something else by now, the merge ends
//! where it stands and another one begins there. Of what has changed since a merge began it says nothing: that stands behind it, and
//! comes with the next one.
//!
//! In a database without channels it is the same as for everybody.

mod counting;
mod reading;
mod showing;
#[cfg(test)]
mod tests;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use flatbed_channels::{ALL, Asked, FeedRow, FeedScope, GUEST, Held, Kind, Merge, Position, Stamp, Step};
use flatbed_revtree::DocumentId;
use futures_util::future::try_join;

use crate::asker::Asker;
use crate::channels::holding::Holding;
use crate::error::{NotFound, Refusal, Result};
use crate::feed::hub::Interest;
use crate::feed::place::Place;
use crate::feed::query::{ChangesQuery, Documents, Extras, Scope, Since};
use crate::feed::row::{ChangeRow, ChangesPage};
use crate::feed::source::{Behind, Page, Plain, Seen, Source, rows_max};
use crate::feed::tail::{TailRow, Untold};
use crate::held::HeldAt;
use crate::instance::Instance;
use crate::layer::Inner;
use crate::read::all_docs::PAGE_ROWS_MAX;
use crate::read::get::READ_BYTES_MAX;
use crate::store::seq::Seq;
use crate::store::transaction::Transaction;

pub(in crate::feed) use counting::Counting;
pub(in crate::feed) use reading::channels_of_revision;

/// Rows of a page at most.
const ROWS_MAX: usize = if cfg!(test) { 5 } else { PAGE_ROWS_MAX };

/// How often a transaction asks for what a merge wants, beside what it takes to ask for each of its streams once: behind it comes the next
/// page, be this one empty. For one that is not kept this is all, as there is no time for more where the storage is slow: 4,096 ranges.
const ROUNDS_MAX: usize = if cfg!(test) { 2 } else { 16 };

/// How many streams a page looks at before others have their turn.
const LOOKS_IN_TURN: usize = 100_000;

/// Entries that a merge holds from one page to the next. What is more is read again.
const KEPT_MAX: usize = if cfg!(test) { 3 } else { 500 };

/// And rows that have come of it.
const LEFT_MAX: usize = 1_000;

/// One that reads more streams is not kept while its reader takes a page: they take memory, too. So its pages are read by several
/// transactions.
const KEPT_STREAMS_MAX: usize = if cfg!(test) { 10 } else { 500 };

/// A page of a list of ids looks at so many documents at once, and longer lists are looked for in what comes.
const IDS_MAX: usize = 10_000;

/// See the module.
pub(crate) struct Channels {
    asker: Asker,
    query: Wanted,
    /// In a database without channels.
    plain: Plain,
    under_way: Option<UnderWay>,
    reached: Option<Reached>,
    live: Option<Following>,
    /// By what the last page was judged.
    judged: Option<Arc<HeldAt>>,
}

/// What a change of by-seq is for who follows at the end.
pub(in crate::feed) enum Live {
    /// Nothing.
    Other,
    /// A row of a document that is seen, which has left these channels of theirs with it.
    Row(Vec<String>),
    /// The document has left the last of their channels.
    Left(Vec<String>),
    /// What there is in memory does not say.
    Unknown,
}

/// By what somebody is judged who follows: as it was when the end was read.
struct Following {
    held: Arc<HeldAt>,
    /// Where the feed is about some of it.
    only: Option<Held>,
}

/// What a feed of channels is asked for.
struct Wanted {
    scope: Scope,
    active_only: bool,
    revocations: bool,
}

/// How far a feed has come.
#[derive(Clone, Copy)]
struct Reached {
    incarnation: u64,
    /// As its reader was told.
    shown: Place,
    /// There was nothing between that and here.
    stands: Position,
    /// All is read up to here, if it is at the end.
    until: Option<Seq>,
}

/// A merge that goes on with the next page.
struct UnderWay {
    incarnation: u64,
    held: Arc<HeldAt>,
    merge: Merge,
    /// How many entries each of its streams is asked for next.
    limits: Vec<usize>,
    /// What has come of it and stands behind the last page.
    left: VecDeque<Slot>,
    /// Of a list of documents, which no merge is made of.
    of_ids: Option<FeedScope>,
    /// The number of the index that the feed is of.
    index: Option<u64>,
}

/// What comes of a merge, or of a list of ids.
#[derive(Clone)]
enum Slot {
    Row(FeedRow),
    /// A row if the document is still there where it was.
    Asked(Asked),
    /// The same, of a document that was looked at.
    Id(Position, String),
}

impl Channels {
    /// Of who asks; `None`: nobody's rights are asked about, and the query names channels no more than anybody else's.
    pub(super) fn of(query: &ChangesQuery, asker: &Asker) -> Option<Channels> {
        if *asker == Asker::All && !matches!(query.scope, Scope::Channels(_)) {
            return None;
        }
        let wanted =
            Wanted { scope: query.scope.clone(), active_only: query.active_only, revocations: query.revocations };
        let plain = Plain::of(query);
        let (under_way, reached, live, judged) = Default::default();
        Some(Channels { asker: asker.clone(), query: wanted, plain, under_way, reached, live, judged })
    }

    /// Whether a database with this number of its function is read by channels.
    pub(super) fn judges(&self, channels: u64) -> bool {
        channels > 0 || matches!(self.query.scope, Scope::Channels(_))
    }

    /// Whether it is of a selector index.
    pub(in crate::feed) fn is_of_index(&self) -> bool {
        matches!(self.plain, Plain::Selected(_))
    }

    /// Up to where all has been read, if the feed is at its end there.
    pub(super) fn until(&self) -> Option<Seq> {
        self.reached.and_then(|reached| reached.until)
    }

    /// What is followed, if the end was read.
    pub(in crate::feed) fn interest(&self) -> Option<Interest<'_>> {
        // That its index goes says a row of a design document, which is in no channel.
        let live = self.live.as_ref().filter(|_| !self.is_of_index())?;
        Some(Interest { found: &live.held, held: live.only.as_ref().unwrap_or(&live.held.held) })
    }

    /// By what the last page was judged, and what comes behind the end is.
    pub(super) fn judged_by(&self) -> Option<Arc<HeldAt>> {
        self.judged.clone()
    }

    /// See [`crate::feed::source::AnySource::goes_on`].
    pub(super) fn goes_on(&self, rows: &[ChangeRow], extras: Extras) -> bool {
        let bytes =
            || rows.iter().filter_map(|row| row.doc.as_ref()).map(|document| document.body.len()).sum::<usize>();
        let is_large = self.under_way.as_ref().is_some_and(UnderWay::is_large);
        is_large && rows.len() < rows_max(extras).min(ROWS_MAX) && bytes() < READ_BYTES_MAX / 2
    }

    /// See [`crate::feed::source::AnySource::rest`]. Where no row has come none would, if the next page began anew.
    pub(super) fn rest(&mut self, rows: &[ChangeRow]) {
        self.under_way.take_if(|under_way| under_way.is_large() && !rows.is_empty());
    }

    /// Whether nothing that is had has changed where these users and roles have.
    pub(in crate::feed) fn is_as_it_was(&self, principals: &[(Kind, Arc<str>)]) -> bool {
        let Some(live) = &self.live else { return false };
        let versions = &live.held.versions;
        !principals.iter().any(|(kind, name)| versions.iter().any(|(of, own, _)| of == kind && own == name))
    }

    /// Whether something may stand in their channels that rows do not tell.
    pub(in crate::feed) fn may_miss(&self, untold: &[Untold]) -> bool {
        let Some(live) = &self.live else { return !untold.is_empty() };
        let held = live.only.as_ref().unwrap_or(&live.held.held);
        // Who sees all has lost nothing with a channel.
        let is_held = |name: &Arc<str>| **name != *ALL && held.since(name).is_some();
        !held.has_all() && untold.iter().any(|untold| untold.channel.as_ref().is_none_or(is_held))
    }

    /// What a change is that stands behind the end of what was read, while nothing that is had changes.
    pub(in crate::feed) fn judge(&self, row: &TailRow, extras: Extras) -> Live {
        let Some(live) = &self.live else { return Live::Unknown };
        let held = live.only.as_ref().unwrap_or(&live.held.held);
        let seen = match &self.plain {
            Plain::Selected(index) => index.sees(row),
            Plain::BySeq(_) | Plain::ByIds(_) => Seen::Changed,
        };
        if seen == Seen::Unknown {
            return Live::Unknown;
        }
        if !self.is_about(&row.row.id) {
            return Live::Other;
        }
        let (Some(entered), Some(left)) = (&row.channels.entered, &row.channels.left) else { return Live::Unknown };
        let is_seen = held.sees(entered.iter().map(String::as_str));
        let is_held = |name: &&String| *name != ALL && held.since(name).is_some();
        let mut left: Vec<String> = left.iter().filter(is_held).cloned().collect();
        left.sort_unstable();
        let is_active = is_seen && !row.row.deleted;
        let active_only = self.query.active_only && !matches!(self.query.scope, Scope::Ids(_));
        if !is_seen && left.is_empty() || active_only && !is_active {
            return Live::Other;
        }
        if !is_seen {
            return if extras.has_documents() { Live::Unknown } else { Live::Left(left) };
        }
        if seen == Seen::Other {
            return Live::Other;
        }
        // Of other leaves not all may be seen.
        let names_others = extras.leaves || extras.documents >= Documents::WithConflicts;
        if names_others && row.row.leaf_count > 1 && !live.held.has_all() || !extras.are_in(row) {
            return Live::Unknown;
        }
        Live::Row(left)
    }

    /// A follower has taken all up to a sequence, and its reader stands there.
    pub(in crate::feed) fn stands_at(&mut self, shown: Option<Place>, seq: Seq) {
        if let (Some(reached), Some(shown)) = (&mut self.reached, shown) {
            let until = reached.until.map_or(seq, |until| until.max(seq));
            let stands = reached.stands.max(Position::at(Stamp(*until.stamp())));
            *reached = Reached { shown, stands, until: Some(until), ..*reached };
        }
    }

    /// What it is asked for, of what somebody has.
    fn scope(&self, held: &HeldAt) -> FeedScope {
        let of = match &self.query.scope {
            Scope::Channels(channels) if self.asker == Asker::All => {
                Held::since_ever(channels.iter().map(String::as_str))
            }
            Scope::Channels(channels) => held.held.only(channels.iter().map(String::as_str)),
            Scope::All | Scope::Designs | Scope::Ids(_) | Scope::Selected(_) => held.held.clone(),
        };
        let has_row = !matches!(self.query.scope, Scope::Designs | Scope::Ids(_)) && self.name().is_some();
        let active_only = self.query.active_only && !matches!(self.query.scope, Scope::Ids(_));
        FeedScope { held: of, revocations: self.query.revocations, user: held.user_at.filter(|_| has_row), active_only }
    }

    /// By which name the user's own row goes.
    fn name(&self) -> Option<&str> {
        match &self.asker {
            Asker::Principal(name) | Asker::Account { name, .. } => Some(name),
            Asker::Guest => Some(GUEST),
            Asker::All => None,
        }
    }

    /// Whether it is about a document.
    fn is_about(&self, id: &str) -> bool {
        match &self.query.scope {
            Scope::Ids(ids) if !ids.contains(id) => false,
            Scope::Designs if !DocumentId::of(id).is_design() => false,
            // Design documents are shown to administrators alone, and they are in no channel.
            _ => self.asker == Asker::All || !DocumentId::of(id).is_design(),
        }
    }

    /// The ids that are looked at, where that is how the feed is read.
    fn ids(&self) -> Option<&Arc<HashSet<String>>> {
        match &self.query.scope {
            Scope::Ids(ids) if ids.len() <= IDS_MAX => Some(ids),
            _ => None,
        }
    }

    /// Where a page begins, and as what its reader knows that; `None`: where the newest of the feed's rows stands.
    fn begin(&self, incarnation: u64, page: &Page<'_>) -> Option<(Place, Position)> {
        let at = |place: Place| {
            let position = place.position(incarnation);
            Some((Place::new(incarnation, position), position))
        };
        match (page.cursor, self.reached.filter(|reached| reached.incarnation == incarnation)) {
            (Some(cursor), Some(reached)) if cursor == reached.shown => Some((cursor, reached.stands)),
            (Some(cursor), _) => at(cursor),
            (None, _) => match page.since {
                Since::Beginning => at(Place::new(incarnation, Position::BEGIN)),
                Since::After(place) => at(place),
                Since::Now => None,
            },
        }
    }

    async fn read_judged(&mut self, trx: &Transaction, instance: &Instance, page: &Page<'_>) -> Result<ChangesPage> {
        if page.descending {
            return Err(Refusal::NoSuchFeed("a feed of channels is not read the other way round").into());
        }
        if instance.channels() == 0 {
            // What would filter by channels there is a function of a design document, and there is none of this name.
            return Err(Refusal::DocumentNotFound(NotFound::Missing).into());
        }
        let incarnation = instance.incarnation();
        let index = match &mut self.plain {
            Plain::Selected(index) => Some(index.number(page.inner, instance)?),
            Plain::BySeq(_) | Plain::ByIds(_) => None,
        };
        let begin = self.begin(incarnation, page);
        // What is taken out here is gone if this fails: another attempt begins where the last page ended.
        let is_on = |of: &UnderWay| {
            let goes_on = self.reached.is_some_and(|reached| page.cursor == Some(reached.shown));
            of.incarnation == incarnation && goes_on
        };
        let under_way = self.under_way.take().filter(is_on);
        if page.before > 0 && under_way.is_none() {
            return Ok(nothing(page));
        }
        let holding = Holding::begin(page.inner, trx, instance, &self.asker);
        let most = page
            .rows_max()
            .min(ROWS_MAX)
            .saturating_sub(page.before)
            .min(usize::try_from(page.limit).unwrap_or(usize::MAX));
        let last_seq = || instance.buckets.begin_last_seq(trx, incarnation);
        let (held, under_way, until) = match under_way {
            Some(mut under_way) => {
                // Asked for beside the versions.
                let reads = under_way.begin_reads(trx, page.inner, instance);
                let (held, read) = try_join(holding.held(), reads).await?;
                let is_same = held.is_as(&under_way.held);
                if page.before > 0 && !is_same {
                    // What has come was judged by what they had.
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
        // A feed under way, too, is one of somebody who is let in: it ends here where its reader is kept out, and stands where it stood.
        self.asker.admitted(&held)?;
        self.judged = Some(Arc::clone(&held));
        let (shown, stands) = match begin {
            Some(begin) => begin,
            None => {
                let newest = reading::newest(trx, instance, &self.scope(&held)).await?;
                (Place::new(incarnation, newest), newest)
            }
        };
        if page.limit == 0 {
            self.reached = Some(Reached { incarnation, shown, stands, until: None });
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
        let slots: Vec<Slot> = under_way.left.drain(..most.min(under_way.left.len())).collect();
        let found = reading::answered(trx, instance, &under_way, slots).await?;
        let passed = found.last().map(|row| row.position);
        let found = reading::selected(trx, &page.inner.metrics, instance, index, found).await?;
        let (inner, extras) = (page.inner, page.extras);
        let show = showing::Show { trx, inner, instance, held: &held, extras, name: self.name() };
        let (rows, behind) = show.rows(found).await?;
        let is_passed = behind.is_empty();
        behind.into_iter().rev().for_each(|row| under_way.left.push_front(Slot::Row(row)));
        let is_full = rows.len() as u64 >= page.limit;
        let last_seq = rows.last().map_or(shown, |row| row.place());
        let at_end = is_full || (is_end && under_way.left.is_empty());
        let stands = match rows.last() {
            _ if under_way.left.is_empty() => under_way.merge.stands(),
            // Behind it are rows that the index does not have.
            _ if is_passed => passed.unwrap_or(stands),
            Some(last) => last.place().position(incarnation),
            None => stands,
        };
        let until = (at_end && !is_full).then(|| under_way.until());
        self.live = until.map(|_| self.following(&held));
        self.reached = Some(Reached { incarnation, shown: last_seq, stands, until });
        // Where nothing has come nothing would, if the next page began with the same.
        if !at_end && (under_way.is_large() || under_way.is_kept() || rows.is_empty()) {
            // One that is large has not read all of its streams, perhaps, and would come no further.
            if !under_way.is_large() {
                under_way.merge.forget_beyond(KEPT_MAX);
            }
            self.under_way = Some(under_way);
        }
        Ok(ChangesPage { rows, at_end, last_seq })
    }

    /// By what its reader is judged from here on.
    fn following(&self, held: &Arc<HeldAt>) -> Following {
        let is_whole = !matches!(self.query.scope, Scope::Channels(_));
        Following { held: Arc::clone(held), only: (!is_whole).then(|| self.scope(held).held) }
    }

    /// Begins a merge, or looks at the documents of a list.
    async fn set_out(
        &self,
        trx: &Transaction,
        instance: &Instance,
        held: &Arc<HeldAt>,
        (since, until): (Position, Seq),
        most: usize,
        index: Option<u64>,
    ) -> Result<UnderWay> {
        let (incarnation, scope, held) = (instance.incarnation(), self.scope(held), Arc::clone(held));
        let Some(ids) = self.ids() else {
            let merge = Merge::new(scope, since, Stamp(*until.stamp()));
            let limits = reading::first_limits(merge.streams(), most);
            return Ok(UnderWay { incarnation, held, merge, limits, left: VecDeque::new(), of_ids: None, index });
        };
        let left = reading::look(trx, instance, ids, &scope, since, |id| self.is_about(id)).await?;
        let merge = Merge::new(FeedScope::default(), since, Stamp(*until.stamp()));
        Ok(UnderWay { incarnation, held, merge, limits: Vec::new(), left: left.into(), of_ids: Some(scope), index })
    }

    /// Takes from the merge until there is a page, or it has asked as often as is left to the transaction, and says whether it has come to
    /// its end.
    async fn collect(
        &self,
        trx: &Transaction,
        inner: &Inner,
        instance: &Instance,
        under_way: &mut UnderWay,
        most: usize,
        rounds: &mut usize,
    ) -> Result<bool> {
        let mut looks = 0;
        while under_way.left.len() < most {
            // A step looks at each stream.
            looks += under_way.merge.streams();
            if looks > LOOKS_IN_TURN {
                looks = 0;
                tokio::task::yield_now().await;
            }
            match under_way.merge.step() {
                Step::Row(row) if row.doc.is_empty() || self.is_about(&row.doc) => {
                    under_way.left.push_back(Slot::Row(row));
                }
                Step::Ask(asked) if self.is_about(&asked.doc) => under_way.left.push_back(Slot::Asked(asked)),
                Step::Row(_) | Step::Ask(_) => {}
                Step::Read if *rounds == 0 => return Ok(false),
                Step::Read => {
                    *rounds -= 1;
                    let read = under_way.begin_reads(trx, inner, instance).await?;
                    under_way.give(read);
                }
                Step::End => return Ok(true),
            }
        }
        Ok(false)
    }
}

/// What comes behind rows of a page where it cannot go on.
fn nothing(page: &Page<'_>) -> ChangesPage {
    let last_seq = page.cursor.unwrap_or_else(|| Place::new(0, Position::BEGIN));
    ChangesPage { rows: Vec::new(), at_end: false, last_seq }
}

impl Source for Channels {
    async fn read(&mut self, trx: &Transaction, instance: &Arc<Instance>, page: &Page<'_>) -> Result<ChangesPage> {
        if self.judges(instance.channels()) {
            return self.read_judged(trx, instance, page).await;
        }
        if page.before > 0 {
            return Ok(nothing(page));
        }
        (self.under_way, self.reached, self.judged) = (None, None, None);
        match &mut self.plain {
            Plain::BySeq(source) => source.read(trx, instance, page).await,
            Plain::ByIds(source) => source.read(trx, instance, page).await,
            Plain::Selected(source) => source.read(trx, instance, page).await,
        }
    }

    fn sees(&self, row: &TailRow) -> Seen {
        match &self.plain {
            Plain::BySeq(source) => source.sees(row),
            Plain::ByIds(source) => source.sees(row),
            Plain::Selected(source) => source.sees(row),
        }
    }

    async fn pending(
        &self,
        trx: &Transaction,
        inner: &Inner,
        instance: &Instance,
        behind: &mut Behind,
    ) -> Result<Option<u64>> {
        if self.judges(instance.channels()) {
            return self.count(trx, inner, instance, behind).await;
        }
        match &self.plain {
            Plain::BySeq(source) => source.pending(trx, inner, instance, behind).await,
            Plain::ByIds(source) => source.pending(trx, inner, instance, behind).await,
            Plain::Selected(source) => source.pending(trx, inner, instance, behind).await,
        }
    }
}

impl UnderWay {
    /// What the feed is asked for, of what its reader has.
    fn scope(&self) -> &FeedScope {
        self.of_ids.as_ref().unwrap_or(self.merge.scope())
    }

    /// Whether it takes much memory, whatever it holds.
    fn is_large(&self) -> bool {
        self.merge.streams() > KEPT_STREAMS_MAX
    }

    /// How often a transaction asks for what the merge wants.
    fn rounds_max(&self) -> usize {
        ROUNDS_MAX + if self.is_large() { 0 } else { self.merge.streams().div_ceil(reading::AT_ONCE) }
    }

    /// Whether it is small enough to lie while its reader takes a page.
    fn is_kept(&self) -> bool {
        !self.is_large() && (self.of_ids.is_some() || self.left.len() <= LEFT_MAX)
    }

    /// Up to where all has been read, at the end.
    fn until(&self) -> Seq {
        Seq::new(self.incarnation, self.merge.stands().at.0)
    }
}
