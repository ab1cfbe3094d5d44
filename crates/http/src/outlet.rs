//! The memory of answers: counted, bounded per connection and in total, and released if a client does not read.
//!
//! There are two kinds of budgets, in bytes. A *page* is data read from storage that is being written out; its reader
//! reserves the largest size beforehand and then returns the excess. Pages are granted in turns by address and by
//! user. A *piece* is text on its way to a connection, in the answer's queue, in hyper, or in an HTTP/2 stream whose
//! window is closed. Pieces are granted in order. A task waits for page memory only while it holds none, and for piece
//! memory only while it holds no other pieces. So a task that holds memory waits only for its client, and there is no
//! deadlock. A client that reads nothing is cut in the end; a client that reads slowly is cut at once if others wait
//! for the memory of its answer.
//!
//! Pages of rows are small and have their own budget, so they do not wait for documents.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use flatbed_admission::{Budget, Grant, Shares};
use slab::Slab;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::awaited::{AwaitedBodies, AwaitedBody};
use crate::budget::{Share, take, take_in_turn, try_take};
use crate::limits::{AddressRequest, UserRequest};
use crate::metrics::{Bound, Traffic, Usage};
use crate::pace::Pace;
use crate::turns::{ClientNetwork, PageKey, PageTurns};

const PIECE_BYTES: usize = 256;

const CONNECTION_PIECES_BYTES: usize = 16 * 1024 * 1024;

/// The most pages of the largest size that one connection may read at once.
const CONNECTION_PAGES: usize = 2;

/// The most concurrent answers on a connection without an authenticated administrator.
const ANSWERS_MAX_UNKNOWN: usize = 100;

/// The most concurrent answers on any other connection.
pub(crate) const ANSWERS_MAX: usize = 1_000;

/// The page memory divided by this is for pages without documents.
const ROWS_PART: usize = 4;

/// The largest page without documents, in bytes.
const ROWS_BYTES: usize = 4 * 1024 * 1024;

/// The memory of a small object and of the data read to build it.
const LITTLE_BYTES: usize = 2 * LITTLE_MAX + 4 * 1024;

/// The largest small object, in bytes.
pub const LITTLE_MAX: usize = 64 * 1024;

/// The memory to read a part of an attachment.
const ATTACHMENT_BYTES: usize = 1_536 * 1024;

/// The most tasks that wait for page memory in turns. Others wait in the budget's own order.
const PAGES_WAITING_MAX: usize = 100_000;

/// An offset of times, so that times before the server's start are representable.
const AGES_MS: u64 = 1 << 40;

const CHECK_INTERVAL_MAX: Duration = Duration::from_secs(5);

const CONTENTION_CHECK_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(crate) struct Outlets {
    pieces: Arc<Budget>,
    documents: Arc<Budget>,
    rows: Arc<Budget>,
    /// The order in which tasks wait for `documents`, and for `rows`.
    document_turns: Arc<PageTurns>,
    row_turns: Arc<PageTurns>,
    page_bytes_max: usize,
    /// The longest wait of an answer for memory. Then it is refused.
    room_max: Duration,
    shares: Shares<ClientNetwork, Share>,
    began: Instant,
    under_way: Mutex<Slab<Weak<Outlet>>>,
    traffic: Arc<Traffic>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageKind {
    Documents,
    Rows,
    Little,
    Attachment,
}

impl Outlets {
    /// `bytes`: the memory for all answers; `document_bytes_max`: the largest document in bytes; `room_max`: the
    /// longest wait of an answer for memory.
    pub(crate) fn new(
        bytes: usize,
        document_bytes_max: usize,
        room_max: Duration,
        traffic: Arc<Traffic>,
    ) -> Arc<Outlets> {
        // The rows of a document, their text with up to twice the needed capacity, and the read-ahead.
        let page_bytes_max = 3 * document_bytes_max + 4 * 1024 * 1024;
        let pages = bytes - bytes / 3;
        Arc::new(Outlets {
            pieces: Budget::new(bytes / 3, 1),
            documents: Budget::new(pages - pages / ROWS_PART, 1),
            rows: Budget::new(pages / ROWS_PART, 1),
            document_turns: PageTurns::new(1, PAGES_WAITING_MAX),
            row_turns: PageTurns::new(1, PAGES_WAITING_MAX),
            page_bytes_max,
            room_max,
            shares: Shares::default(),
            began: Instant::now(),
            under_way: Mutex::default(),
            traffic,
        })
    }

    /// Returns the memory of pages that are being read or written out.
    pub(crate) fn page_usage(&self) -> Usage {
        Usage::of(&[&self.documents, &self.rows])
    }

    /// Returns the memory of pieces that no connection has sent yet.
    pub(crate) fn piece_usage(&self) -> Usage {
        Usage::of(&[&self.pieces])
    }

    /// Returns the share of an address: a percentage of each budget, and at least the needs of one answer.
    pub(crate) fn share(&self, who: ClientNetwork, percent: usize) -> Arc<Share> {
        let part = |budget: &Budget, least: usize| {
            let limit = budget.limit();
            Budget::new((limit / 100 * percent).max(least.min(limit)), 1)
        };
        let new = || {
            Arc::new(Share {
                who,
                pieces: part(&self.pieces, CONNECTION_PIECES_BYTES),
                documents: part(&self.documents, CONNECTION_PAGES * self.page_bytes_max),
                rows: part(&self.rows, CONNECTION_PAGES * ROWS_BYTES),
            })
        };
        self.shares.of(who, new)
    }

    fn are_shares_waited_for(&self) -> bool {
        self.shares.all().iter().any(|share| share.is_waited_for())
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn connect(self: &Arc<Self>, is_known: bool) -> Arc<Connection> {
        Arc::new(Connection {
            of: self.clone(),
            pieces: Budget::new(CONNECTION_PIECES_BYTES.min(self.pieces.limit()), 1),
            pages: Budget::new((CONNECTION_PAGES * self.page_bytes_max).min(self.documents.limit()), 1),
            answers: AtomicUsize::new(0),
            is_known: AtomicBool::new(is_known),
            idle_since: AtomicU64::new(0),
            bodies: AwaitedBodies::default(),
            is_blocked: AtomicBool::new(false),
            unblocked: Notify::new(),
            cut: Notify::new(),
            is_slow_cut: AtomicBool::new(false),
        })
    }

    /// Cuts connections whose clients read nothing for `stall_max`, and those of slow readers while others wait for
    /// their memory, until dropped. Each is counted.
    pub(crate) async fn watch(&self, stall_max: Duration) {
        let most = u64::try_from(stall_max.as_millis()).unwrap_or(u64::MAX);
        let look = (stall_max / 12).clamp(Duration::from_millis(10), CHECK_INTERVAL_MAX);
        let mut looked = Instant::now();
        loop {
            tokio::time::sleep(look.min(CONTENTION_CHECK_INTERVAL)).await;
            let wanted = ContendedBudgets {
                pieces: self.pieces.is_waited_for(),
                documents: self.documents.is_waited_for(),
                rows: self.rows.is_waited_for(),
            };
            let is_wanted = wanted != ContendedBudgets::default() || self.are_shares_waited_for();
            if !is_wanted && looked.elapsed() < look {
                continue;
            }
            looked = Instant::now();
            let now = self.now();
            let all: Vec<Arc<Outlet>> = {
                let under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
                // The vector keeps the outlets alive: dropping one takes the lock again.
                under_way.iter().filter_map(|(_, outlet)| outlet.upgrade()).collect()
            };
            for outlet in all.iter().filter(|outlet| outlet.is_stalled(now, most) || outlet.is_in_the_way(now, wanted))
            {
                outlet.count_slow_reader();
                outlet.connection.end();
            }
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct ContendedBudgets {
    pieces: bool,
    documents: bool,
    rows: bool,
}

impl ContendedBudgets {
    fn or_of(self, share: Option<&Arc<Share>>) -> ContendedBudgets {
        let of_share = |budget: fn(&Share) -> &Arc<Budget>| share.is_some_and(|share| budget(share).is_waited_for());
        ContendedBudgets {
            pieces: self.pieces || of_share(|share| &share.pieces),
            documents: self.documents || of_share(|share| &share.documents),
            rows: self.rows || of_share(|share| &share.rows),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Connection {
    of: Arc<Outlets>,
    pieces: Arc<Budget>,
    pages: Arc<Budget>,
    answers: AtomicUsize,
    /// True if an administrator has authenticated on it.
    is_known: AtomicBool,
    /// The end of the last answer, in milliseconds since the server's start; 0 before the first end, `u64::MAX` after
    /// a protocol switch.
    idle_since: AtomicU64,
    bodies: AwaitedBodies,
    is_blocked: AtomicBool,
    unblocked: Notify,
    cut: Notify,
    /// True if it was cut because its client reads too slowly.
    is_slow_cut: AtomicBool,
}

impl Connection {
    /// Begins an answer. Returns `None` if there are too many. The answer counts until all tasks for it have ended,
    /// even if its client has cancelled it.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<Arc<Outlet>> {
        let most = if self.is_known.load(Ordering::Relaxed) { ANSWERS_MAX } else { ANSWERS_MAX_UNKNOWN };
        if self.answers.fetch_add(1, Ordering::Relaxed) >= most {
            self.answers.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let mut under_way = self.of.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        let place = under_way.vacant_entry();
        let outlet = Arc::new(Outlet {
            place: place.key(),
            connection: self.clone(),
            unsent: AtomicUsize::new(0),
            moved: AtomicU64::new(0),
            pace: Pace::default(),
            documents: AtomicUsize::new(0),
            rows: AtomicUsize::new(0),
            user: OnceLock::new(),
            address: OnceLock::new(),
            share: OnceLock::new(),
        });
        place.insert(Arc::downgrade(&outlet));
        Some(outlet)
    }

    pub(crate) fn share(&self, who: ClientNetwork, percent: usize) -> Arc<Share> {
        self.of.share(who, percent)
    }

    pub(crate) fn know(&self) {
        self.is_known.store(true, Ordering::Relaxed);
    }

    pub(crate) fn set_blocked(&self, is_blocked: bool) {
        if self.is_blocked.swap(is_blocked, Ordering::Relaxed) && !is_blocked {
            self.unblocked.notify_waiters();
        }
    }

    /// Waits while earlier answers are not read: a client that sends requests without reading gets no further
    /// answers.
    pub(crate) async fn unblocked(&self) {
        // The common case. A wait takes two locks.
        if !self.is_blocked.load(Ordering::Relaxed) {
            return;
        }
        loop {
            let unblocked = self.unblocked.notified();
            let mut unblocked = std::pin::pin!(unblocked);
            unblocked.as_mut().enable();
            if !self.is_blocked.load(Ordering::Relaxed) {
                return;
            }
            unblocked.await;
        }
    }

    /// Returns the time since when it waits for a further request, in milliseconds since the server's start; `None`
    /// if it does not.
    pub(crate) fn idle_since(&self) -> Option<u64> {
        let is_idle = self.answers.load(Ordering::Relaxed) == 0;
        Some(self.idle_since.load(Ordering::Relaxed)).filter(|since| is_idle && *since != 0 && *since != u64::MAX)
    }

    pub(crate) fn awaits_body(&self, waited: Duration, bytes: u64) -> AwaitedBody<'_> {
        let waited = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        self.bodies.begin((AGES_MS + self.of.now()).saturating_sub(waited), bytes)
    }

    pub(crate) fn is_awaiting_body(&self) -> bool {
        self.bodies.is_any()
    }

    pub(crate) fn slow_body(&self) -> Option<u64> {
        self.bodies.slow(AGES_MS + self.of.now())
    }

    pub(crate) fn speak_on(&self) {
        self.idle_since.store(u64::MAX, Ordering::Relaxed);
    }

    /// Counts a cut because of a slow reader, once per connection: a connection may have several answers and is
    /// checked again until it closes.
    pub(crate) fn count_slow_reader(&self) {
        if !self.is_slow_cut.swap(true, Ordering::Relaxed) {
            tracing::debug!("a connection is cut: its client reads too slowly");
            self.of.traffic.refused.of(Bound::SlowReader).add(1);
        }
    }

    pub(crate) fn end(&self) {
        self.cut.notify_one();
    }

    pub(crate) async fn cut(&self) {
        self.cut.notified().await;
    }
}

#[derive(Debug)]
pub(crate) struct Outlet {
    place: usize,
    connection: Arc<Connection>,
    unsent: AtomicUsize,
    /// The time of the last progress, in milliseconds since the server's start.
    moved: AtomicU64,
    pace: Pace,
    documents: AtomicUsize,
    rows: AtomicUsize,
    user: OnceLock<UserRequest>,
    address: OnceLock<AddressRequest>,
    share: OnceLock<Arc<Share>>,
}

impl Outlet {
    pub(crate) fn room_max(&self) -> Duration {
        self.connection.of.room_max
    }

    pub(crate) fn is_of(&self, user: UserRequest) {
        // A request has one user.
        let _ = self.user.set(user);
    }

    pub(crate) fn is_from(&self, address: AddressRequest) {
        let _ = self.address.set(address);
    }

    pub(crate) fn follows(&self) {
        if let Some(address) = self.address.get() {
            address.follows();
        }
    }

    pub(crate) fn shares(&self, share: Arc<Share>) {
        let _ = self.share.set(share);
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Waits until there is memory for a little text, without taking any.
    pub(crate) async fn until_there_is_room(&self) {
        let lacks = |budget: &Budget| budget.free() < PIECE_BYTES.min(budget.limit());
        let of_address = self.share.get().is_some_and(|share| lacks(&share.pieces));
        // Freed memory goes to waiting tasks first: if some is free, no task waits.
        if of_address || lacks(&self.connection.pieces) || lacks(&self.connection.of.pieces) {
            drop(self.room(0).await);
        }
    }

    pub(crate) fn try_room(&self, bytes: usize) -> Option<AnswerMemory> {
        let bytes = bytes.saturating_add(PIECE_BYTES);
        let of_connection = try_take(&self.connection.pieces, bytes)?;
        let of_address = match self.share.get() {
            Some(share) => Some(try_take(&share.pieces, bytes)?),
            None => None,
        };
        let of_all = try_take(&self.connection.of.pieces, bytes)?;
        Some(AnswerMemory { of_connection: Some(of_connection), of_address, of_all: Some(of_all), _page: None })
    }

    pub(crate) async fn room(&self, bytes: usize) -> AnswerMemory {
        let bytes = bytes.saturating_add(PIECE_BYTES);
        let of_connection = take(&self.connection.pieces, bytes).await;
        let of_address = match self.share.get() {
            Some(share) => take(&share.pieces, bytes).await,
            None => None,
        };
        AnswerMemory { of_connection, of_address, of_all: take(&self.connection.of.pieces, bytes).await, _page: None }
    }

    pub(crate) async fn page_room(self: &Arc<Self>, kind: PageKind) -> AnswerMemory {
        let (budget, of_share, bytes) = self.page_budgets(kind);
        let of_connection = take(&self.connection.pages, bytes).await;
        let of_address = match of_share {
            Some(share) => take(share, bytes).await,
            None => None,
        };
        let of_all = match try_take(budget, bytes) {
            Some(taken) => Some(taken),
            // Boxed: it is rare, and its state would be part of every feed's.
            None => Box::pin(self.take_in_turn(kind, budget, bytes)).await,
        };
        AnswerMemory { of_connection, of_address, of_all, _page: Some(HeldPage::new(self.clone(), kind)) }
    }

    /// Waits for page memory. Addresses take turns, and so do users: thousands of feeds that begin do not delay the
    /// answers of others. Only the task that has the turn waits in the budget.
    ///
    /// It is a task of its own. The caller may pause, as a feed does while its client does not take a heartbeat, and
    /// must not have the turn meanwhile.
    async fn take_in_turn(&self, kind: PageKind, budget: &Arc<Budget>, bytes: usize) -> Option<Grant> {
        let all = &self.connection.of;
        let turns = match kind {
            PageKind::Documents | PageKind::Attachment => &all.document_turns,
            PageKind::Rows | PageKind::Little => &all.row_turns,
        };
        // Without a limit of memory by address there are no shares.
        let address = match self.address.get() {
            Some(address) => address.who(),
            None => self.share.get().and_then(|share| share.who),
        };
        let user = self.user.get().map(|user| user.user().clone());
        let keys = [PageKey::Address(address), PageKey::User(user)];
        let mut waiting = JoinSet::new();
        waiting.spawn(take_in_turn(turns.clone(), keys, budget.clone(), bytes));
        waiting.join_next().await?.ok().flatten()
    }

    /// The same, without a wait: for a task that already holds a page.
    pub(crate) fn try_page_room(self: &Arc<Self>, kind: PageKind) -> Option<AnswerMemory> {
        let (budget, of_share, bytes) = self.page_budgets(kind);
        let of_connection = Some(try_take(&self.connection.pages, bytes)?);
        let of_address = match of_share {
            Some(share) => Some(try_take(share, bytes)?),
            None => None,
        };
        let of_all = Some(try_take(budget, bytes)?);
        Some(AnswerMemory { of_connection, of_address, of_all, _page: Some(HeldPage::new(self.clone(), kind)) })
    }

    fn page_budgets(&self, kind: PageKind) -> (&Arc<Budget>, Option<&Arc<Budget>>, usize) {
        let (all, share) = (&self.connection.of, self.share.get());
        let rows = |bytes| (&all.rows, share.map(|share| &share.rows), bytes);
        let documents = |bytes| (&all.documents, share.map(|share| &share.documents), bytes);
        match kind {
            PageKind::Documents => documents(all.page_bytes_max),
            PageKind::Attachment => documents(ATTACHMENT_BYTES),
            PageKind::Rows => rows(all.page_bytes_max.min(ROWS_BYTES)),
            PageKind::Little => rows(all.page_bytes_max.min(LITTLE_BYTES)),
        }
    }

    fn pages(&self, kind: PageKind) -> &AtomicUsize {
        match kind {
            PageKind::Documents | PageKind::Attachment => &self.documents,
            PageKind::Rows | PageKind::Little => &self.rows,
        }
    }

    fn now(&self) -> u64 {
        self.connection.of.now()
    }

    pub(crate) fn count_slow_reader(&self) {
        self.connection.count_slow_reader();
    }

    fn has_unsent(&self) -> bool {
        self.unsent.load(Ordering::Acquire) > 0
    }

    fn is_stalled(&self, now: u64, most: u64) -> bool {
        self.has_unsent() && now.saturating_sub(self.moved.load(Ordering::Relaxed)) >= most
    }

    /// Returns true if it holds memory that others wait for and its client reads slowly.
    fn is_in_the_way(&self, now: u64, wanted: ContendedBudgets) -> bool {
        let has = |kind| self.pages(kind).load(Ordering::Relaxed) > 0;
        let wanted = wanted.or_of(self.share.get());
        let holds =
            wanted.pieces || (wanted.documents && has(PageKind::Documents)) || (wanted.rows && has(PageKind::Rows));
        holds && self.has_unsent() && self.pace.is_slow(now)
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        let connection = &self.connection;
        if connection.answers.fetch_sub(1, Ordering::Relaxed) == 1
            && connection.idle_since.load(Ordering::Relaxed) != u64::MAX
        {
            connection.idle_since.store(self.now().max(1), Ordering::Relaxed);
        }
        let mut under_way = self.connection.of.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.remove(self.place);
    }
}

/// Reserved memory; released when dropped.
#[derive(Debug)]
pub struct AnswerMemory {
    of_connection: Option<Grant>,
    of_address: Option<Grant>,
    of_all: Option<Grant>,
    _page: Option<HeldPage>,
}

#[derive(Debug)]
struct HeldPage {
    of: Arc<Outlet>,
    kind: PageKind,
}

impl HeldPage {
    fn new(of: Arc<Outlet>, kind: PageKind) -> HeldPage {
        of.pages(kind).fetch_add(1, Ordering::Relaxed);
        HeldPage { of, kind }
    }
}

impl Drop for HeldPage {
    fn drop(&mut self) {
        self.of.pages(self.kind).fetch_sub(1, Ordering::Relaxed);
    }
}

impl AnswerMemory {
    pub(crate) fn shrink(&mut self, bytes: usize) {
        for grant in [&mut self.of_connection, &mut self.of_address, &mut self.of_all].into_iter().flatten() {
            grant.shrink(bytes);
        }
    }
}

/// Text on its way to a connection.
#[derive(Debug)]
pub struct OutgoingText {
    pub(crate) bytes: Bytes,
    pub(crate) outlet: Option<Arc<Outlet>>,
    pub(crate) room: Option<Arc<AnswerMemory>>,
    /// True if the piece must be one chunk.
    pub(crate) is_whole: bool,
}

impl OutgoingText {
    pub(crate) fn new(bytes: Bytes, outlet: Option<Arc<Outlet>>, room: Option<Arc<AnswerMemory>>) -> OutgoingText {
        if let Some(outlet) = &outlet {
            // Before the piece is counted: a concurrent check must not see it with the time of the last progress.
            if outlet.unsent.load(Ordering::Relaxed) == 0 {
                let now = outlet.now();
                outlet.moved.store(now, Ordering::Relaxed);
                outlet.pace.restart(now);
            }
            outlet.unsent.fetch_add(1, Ordering::Release);
        }
        OutgoingText { bytes, outlet, room, is_whole: false }
    }

    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

impl Buf for OutgoingText {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        if let Some(outlet) = &self.outlet {
            let now = outlet.now();
            outlet.moved.store(now, Ordering::Relaxed);
            outlet.pace.moved(count, now);
        }
    }
}

impl Drop for OutgoingText {
    fn drop(&mut self) {
        if let Some(outlet) = &self.outlet {
            outlet.unsent.fetch_sub(1, Ordering::Relaxed);
            // A piece that was sent has already updated the time.
            if self.bytes.has_remaining() {
                outlet.moved.store(outlet.now(), Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
