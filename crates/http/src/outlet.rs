//! What of answers lies in memory: counted, bounded for each connection and in all, and let go of where a client does not
//! take it.
//!
//! There are two budgets, both in bytes and both waited for in order. A *page* is what has been read of the storage and is
//! being written out; who reads one takes the most that it can be beforehand, and gives back what it is not. A *piece* is
//! text on its way to a connection, wherever it waits: in the answer's own queue, in hyper, in a stream of HTTP/2 whose
//! window is closed. A task takes a page's room only while it has none, and room for pieces while it has no other: so
//! whoever holds room waits for nobody but its client. A client that takes nothing is cut in the end, and one that takes
//! little, of an answer that holds what others wait for, at once.
//!
//! Pages of rows alone, which are small, have a part of their own: they wait for no document's.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use slab::Slab;
use tokio::sync::{Notify, OwnedSemaphorePermit};

use crate::awaited::{BodiesAwaited, BodyAwaited};
use crate::budget::{self, Budget, Share, Shares};
use crate::limits::{FromAddress, UnderWay};
use crate::metrics::{Bound, Traffic, Usage};
use crate::pace::Pace;
use crate::turns::Who;

/// What a piece takes beside its bytes.
const PIECE_BYTES: usize = 256;

/// Of the room for pieces, what one connection may take.
const CONNECTION_PIECES_BYTES: usize = 16 * 1024 * 1024;

/// Of the room for pages: two of the largest that are being read.
const CONNECTION_PAGES: usize = 2;

/// Answers at once on a connection on which nobody has shown to be an administrator.
const ANSWERS_MAX_UNKNOWN: usize = 100;

/// Answers at once on any other.
pub(crate) const ANSWERS_MAX: usize = 1_000;

/// Of the room for pages, the part of those that have no documents.
const ROWS_PART: usize = 4;

/// What such a page takes at most.
const ROWS_BYTES: usize = 4 * 1024 * 1024;

/// What an object takes that is known not to be large, and what is read to put it together.
const LITTLE_BYTES: usize = 2 * LITTLE_MAX + 4 * 1024;

/// The largest of these.
pub const LITTLE_MAX: usize = 64 * 1024;

/// What is read at once of an attachment, while it is put together.
const ATTACHMENT_BYTES: usize = 1_536 * 1024;

/// Before the server began, so that there are times before it.
const AGES_MS: u64 = 1 << 40;

/// Between two looks for what makes no progress.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// Between two looks for somebody who waits for room.
const LOOK_FOR_WAITING: Duration = Duration::from_millis(250);

/// The answers of one server that are under way, and the room that they share.
#[derive(Debug)]
pub(crate) struct Outlets {
    pieces: Budget,
    documents: Budget,
    rows: Budget,
    /// The most that a page with documents takes while it is read.
    page_bytes_max: usize,
    /// How long an answer waits for room before it is refused.
    room_max: Duration,
    shares: Arc<Shares>,
    began: Instant,
    under_way: Mutex<Slab<Weak<Outlet>>>,
    traffic: Arc<Traffic>,
}

/// What a page is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageKind {
    /// Documents, of any size.
    Documents,
    /// Rows without.
    Rows,
    /// One object of at most [`LITTLE_MAX`].
    Little,
    /// A part of an attachment.
    Attachment,
}

impl Outlets {
    /// `bytes`: the memory for all answers; `document_bytes_max`: the largest document in bytes; `room_max`: how long an answer
    /// waits for room.
    pub(crate) fn new(
        bytes: usize,
        document_bytes_max: usize,
        room_max: Duration,
        traffic: Arc<Traffic>,
    ) -> Arc<Outlets> {
        // The rows of a document, the text that they make, which may have twice the room that it needs, and what is read
        // ahead of it.
        let page_bytes_max = 3 * document_bytes_max + 4 * 1024 * 1024;
        let pages = bytes - bytes / 3;
        Arc::new(Outlets {
            pieces: Budget::new(bytes / 3),
            documents: Budget::new(pages - pages / ROWS_PART),
            rows: Budget::new(pages / ROWS_PART),
            page_bytes_max,
            room_max,
            shares: Arc::default(),
            began: Instant::now(),
            under_way: Mutex::default(),
            traffic,
        })
    }

    /// Bytes of pages that are being read or written out.
    pub(crate) fn page_usage(&self) -> Usage {
        let (documents, rows) = (self.documents.usage(), self.rows.usage());
        Usage { used: documents.used + rows.used, limit: documents.limit + rows.limit }
    }

    /// Bytes of answers that no connection has taken yet.
    pub(crate) fn piece_usage(&self) -> Usage {
        self.pieces.usage()
    }

    /// What the answers to an address may take: so many hundredths of each kind of room, and no less than one answer needs.
    pub(crate) fn share(&self, who: Who, percent: usize) -> Arc<Share> {
        let part = |budget: &Budget, least: usize| (budget.limit / 100 * percent).max(least.min(budget.limit));
        let limits = budget::Limits {
            pieces: part(&self.pieces, CONNECTION_PIECES_BYTES),
            documents: part(&self.documents, CONNECTION_PAGES * self.page_bytes_max),
            rows: part(&self.rows, CONNECTION_PAGES * ROWS_BYTES),
        };
        self.shares.of(who, limits)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// A connection whose answers share the room.
    pub(crate) fn connect(self: &Arc<Self>, is_known: bool) -> Arc<Connection> {
        Arc::new(Connection {
            of: self.clone(),
            pieces: Budget::new(CONNECTION_PIECES_BYTES.min(self.pieces.limit)),
            pages: Budget::new((CONNECTION_PAGES * self.page_bytes_max).min(self.documents.limit)),
            answers: AtomicUsize::new(0),
            is_known: AtomicBool::new(is_known),
            idle_since: AtomicU64::new(0),
            bodies: BodiesAwaited::default(),
            is_blocked: AtomicBool::new(false),
            unblocked: Notify::new(),
            cut: Notify::new(),
            is_slow_cut: AtomicBool::new(false),
        })
    }

    /// Cuts connections that take nothing of an answer for `stall_max`, and those that take little of one that holds what
    /// others wait for, until it is dropped. Each is counted.
    pub(crate) async fn watch(&self, stall_max: Duration) {
        let most = u64::try_from(stall_max.as_millis()).unwrap_or(u64::MAX);
        let look = (stall_max / 12).clamp(Duration::from_millis(10), LOOK_MAX);
        let mut looked = Instant::now();
        loop {
            tokio::time::sleep(look.min(LOOK_FOR_WAITING)).await;
            let wanted = Wanted {
                pieces: self.pieces.is_waited_for(),
                documents: self.documents.is_waited_for(),
                rows: self.rows.is_waited_for(),
            };
            let is_wanted = wanted != Wanted::default() || self.shares.are_waited_for();
            if !is_wanted && looked.elapsed() < look {
                continue;
            }
            looked = Instant::now();
            let now = self.now();
            let all: Vec<Arc<Outlet>> = {
                let under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
                // None is dropped here, which would take the lock again.
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

/// What is waited for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Wanted {
    pieces: bool,
    documents: bool,
    rows: bool,
}

impl Wanted {
    /// By others, or by the same address of its share.
    fn or_of(self, share: Option<&Arc<Share>>) -> Wanted {
        let of_share = |budget: fn(&Share) -> &Budget| share.is_some_and(|share| budget(share).is_waited_for());
        Wanted {
            pieces: self.pieces || of_share(|share| &share.pieces),
            documents: self.documents || of_share(|share| &share.documents),
            rows: self.rows || of_share(|share| &share.rows),
        }
    }
}

/// What the answers of one connection share.
#[derive(Debug)]
pub(crate) struct Connection {
    of: Arc<Outlets>,
    pieces: Budget,
    pages: Budget,
    answers: AtomicUsize,
    /// An administrator has asked on it.
    is_known: AtomicBool,
    /// When the last of its answers ended, in milliseconds since the server began; 0: none has ended,
    /// `u64::MAX`: it speaks another protocol by now.
    idle_since: AtomicU64,
    bodies: BodiesAwaited,
    /// The system takes no more of what is sent.
    is_blocked: AtomicBool,
    unblocked: Notify,
    cut: Notify,
    /// It is cut as its client takes too little of an answer.
    is_slow_cut: AtomicBool,
}

impl Connection {
    /// A request begins, whose answer goes out here; `None`: there are too many. It is one of them until nothing works
    /// for it, though its client has given it up.
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

    /// What the answers to an address may take of the room that this connection's are made in.
    pub(crate) fn share(&self, who: Who, percent: usize) -> Arc<Share> {
        self.of.share(who, percent)
    }

    /// An administrator asks on it.
    pub(crate) fn know(&self) {
        self.is_known.store(true, Ordering::Relaxed);
    }

    /// Whether the system takes what is sent.
    pub(crate) fn set_blocked(&self, is_blocked: bool) {
        if self.is_blocked.swap(is_blocked, Ordering::Relaxed) && !is_blocked {
            self.unblocked.notify_waiters();
        }
    }

    /// Waits while answers of before are not taken: who asks on and does not read gets no more made for it.
    pub(crate) async fn unblocked(&self) {
        // Nearly always: to wait takes two locks.
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

    /// Since when it has been waiting for a further request, in milliseconds since the server began; `None`: it is not.
    pub(crate) fn idle_since(&self) -> Option<u64> {
        let is_idle = self.answers.load(Ordering::Relaxed) == 0;
        Some(self.idle_since.load(Ordering::Relaxed)).filter(|since| is_idle && *since != 0 && *since != u64::MAX)
    }

    /// A request on it waits for more of its body, until what this gives is dropped; so long it has waited before, and so
    /// many bytes have come.
    pub(crate) fn awaits_body(&self, waited: Duration, bytes: u64) -> BodyAwaited<'_> {
        let waited = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        self.bodies.begin((AGES_MS + self.of.now()).saturating_sub(waited), bytes)
    }

    /// How slowly the body comes that a request on it waits for, in bytes a second; `None`: nothing comes, or not slowly.
    pub(crate) fn slow_body(&self) -> Option<u64> {
        self.bodies.slow(AGES_MS + self.of.now())
    }

    /// Another protocol is spoken on it from now on.
    pub(crate) fn speak_on(&self) {
        self.idle_since.store(u64::MAX, Ordering::Relaxed);
    }

    /// It is cut as its client takes too little of an answer. It counts once, whoever finds it: it is looked at again until
    /// it is closed, and may have several answers.
    pub(crate) fn count_slow_reader(&self) {
        if !self.is_slow_cut.swap(true, Ordering::Relaxed) {
            tracing::debug!("a connection is cut: its client takes nothing of an answer, or too little");
            self.of.traffic.refused.of(Bound::SlowReader).add(1);
        }
    }

    /// Has it cut.
    pub(crate) fn end(&self) {
        self.cut.notify_one();
    }

    /// Resolves when the connection is to be cut.
    pub(crate) async fn cut(&self) {
        self.cut.notified().await;
    }
}

/// Where one answer goes out.
#[derive(Debug)]
pub(crate) struct Outlet {
    /// Among those under way.
    place: usize,
    connection: Arc<Connection>,
    /// Pieces that are not sent.
    unsent: AtomicUsize,
    /// When something was sent last, in milliseconds since the server began.
    moved: AtomicU64,
    /// How fast, while there is something to be sent.
    pace: Pace,
    /// Pages that it holds.
    documents: AtomicUsize,
    rows: AtomicUsize,
    /// Whose request it answers, if that is bounded.
    user: OnceLock<UnderWay>,
    address: OnceLock<FromAddress>,
    /// What its address may take.
    share: OnceLock<Arc<Share>>,
}

impl Outlet {
    /// How long the answer waits for room.
    pub(crate) fn room_max(&self) -> Duration {
        self.connection.of.room_max
    }

    /// It answers a user's request.
    pub(crate) fn is_of(&self, user: UnderWay) {
        // Who asks is said once.
        let _ = self.user.set(user);
    }

    /// It answers a request of an address.
    pub(crate) fn is_from(&self, address: FromAddress) {
        let _ = self.address.set(address);
    }

    /// It goes on for as long as its client likes, and is no longer one of the requests that are under way.
    pub(crate) fn follows(&self) {
        if let Some(address) = self.address.get() {
            address.follows();
        }
    }

    /// It takes its room of an address' share.
    pub(crate) fn shares(&self, share: Arc<Share>) {
        let _ = self.share.set(share);
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Waits until there is room for a little text, and takes none.
    pub(crate) async fn until_there_is_room(&self) {
        let of_address = self.share.get().is_some_and(|share| share.pieces.lacks(PIECE_BYTES));
        let budgets = [&self.connection.pieces, &self.connection.of.pieces];
        // What comes free goes to those who wait first: where some is left, nobody waits.
        if of_address || budgets.iter().any(|budget| budget.lacks(PIECE_BYTES)) {
            drop(self.room(0).await);
        }
    }

    /// Room for so many bytes of text, if it is there.
    pub(crate) fn try_room(&self, bytes: usize) -> Option<Room> {
        let bytes = bytes.saturating_add(PIECE_BYTES);
        let of_connection = self.connection.pieces.try_take(bytes)?;
        let of_address = match self.share.get() {
            Some(share) => Some(share.pieces.try_take(bytes)?),
            None => None,
        };
        let of_all = self.connection.of.pieces.try_take(bytes)?;
        Some(Room { of_connection: Some(of_connection), of_address, of_all: Some(of_all), _page: None })
    }

    /// Waits for room for so many bytes of text.
    pub(crate) async fn room(&self, bytes: usize) -> Room {
        let bytes = bytes.saturating_add(PIECE_BYTES);
        let of_connection = self.connection.pieces.take(bytes).await;
        let of_address = match self.share.get() {
            Some(share) => share.pieces.take(bytes).await,
            None => None,
        };
        Room { of_connection, of_address, of_all: self.connection.of.pieces.take(bytes).await, _page: None }
    }

    /// Waits for the room that a page may take while it is read.
    pub(crate) async fn page_room(self: &Arc<Self>, kind: PageKind) -> Room {
        let (budget, of_share, bytes) = self.page_budgets(kind);
        let of_connection = self.connection.pages.take(bytes).await;
        let of_address = match of_share {
            Some(share) => share.take(bytes).await,
            None => None,
        };
        let of_all = budget.take(bytes).await;
        Room { of_connection, of_address, of_all, _page: Some(Page::new(self.clone(), kind)) }
    }

    /// The same room, if it is there and nobody waits for it: for who has another page, and must wait for none.
    pub(crate) fn try_page_room(self: &Arc<Self>, kind: PageKind) -> Option<Room> {
        let (budget, of_share, bytes) = self.page_budgets(kind);
        let of_connection = Some(self.connection.pages.try_take(bytes)?);
        let of_address = match of_share {
            Some(share) => Some(share.try_take(bytes)?),
            None => None,
        };
        let of_all = Some(budget.try_take(bytes)?);
        Some(Room { of_connection, of_address, of_all, _page: Some(Page::new(self.clone(), kind)) })
    }

    /// Whose room a page takes beside its connection's: of all, and of its address; and how much it takes at most.
    fn page_budgets(&self, kind: PageKind) -> (&Budget, Option<&Budget>, usize) {
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

    /// See [`Connection::count_slow_reader`].
    pub(crate) fn count_slow_reader(&self) {
        self.connection.count_slow_reader();
    }

    fn has_unsent(&self) -> bool {
        self.unsent.load(Ordering::Acquire) > 0
    }

    fn is_stalled(&self, now: u64, most: u64) -> bool {
        self.has_unsent() && now.saturating_sub(self.moved.load(Ordering::Relaxed)) >= most
    }

    /// Whether it holds what others wait for, and its client is slow to take it.
    fn is_in_the_way(&self, now: u64, wanted: Wanted) -> bool {
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

/// Room that is held until this is dropped.
#[derive(Debug)]
pub struct Room {
    of_connection: Option<OwnedSemaphorePermit>,
    of_address: Option<OwnedSemaphorePermit>,
    of_all: Option<OwnedSemaphorePermit>,
    /// Where it is a page's.
    _page: Option<Page>,
}

/// A page that an answer holds, until this is dropped.
#[derive(Debug)]
struct Page {
    of: Arc<Outlet>,
    kind: PageKind,
}

impl Page {
    fn new(of: Arc<Outlet>, kind: PageKind) -> Page {
        of.pages(kind).fetch_add(1, Ordering::Relaxed);
        Page { of, kind }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.of.pages(self.kind).fetch_sub(1, Ordering::Relaxed);
    }
}

impl Room {
    /// Gives back what is more than so many bytes.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        for permit in [&mut self.of_connection, &mut self.of_address, &mut self.of_all].into_iter().flatten() {
            drop(permit.split(permit.num_permits().saturating_sub(bytes)));
        }
    }
}

/// Text on its way to a connection.
#[derive(Debug)]
pub struct Outgoing {
    pub(crate) bytes: Bytes,
    pub(crate) outlet: Option<Arc<Outlet>>,
    pub(crate) room: Option<Arc<Room>>,
    /// The piece must be sent as one chunk.
    pub(crate) is_whole: bool,
}

impl Outgoing {
    /// `room`: what is held for it until it is sent.
    pub(crate) fn new(bytes: Bytes, outlet: Option<Arc<Outlet>>, room: Option<Arc<Room>>) -> Outgoing {
        if let Some(outlet) = &outlet {
            // Before the piece is counted: who looks between would see one that has been there since the last one was sent.
            if outlet.unsent.load(Ordering::Relaxed) == 0 {
                let now = outlet.now();
                outlet.moved.store(now, Ordering::Relaxed);
                outlet.pace.restart(now);
            }
            outlet.unsent.fetch_add(1, Ordering::Release);
        }
        Outgoing { bytes, outlet, room, is_whole: false }
    }

    /// The text.
    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

impl Buf for Outgoing {
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

impl Drop for Outgoing {
    fn drop(&mut self) {
        if let Some(outlet) = &self.outlet {
            outlet.unsent.fetch_sub(1, Ordering::Relaxed);
            // What was sent to its end has said so.
            if self.bytes.has_remaining() {
                outlet.moved.store(outlet.now(), Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
