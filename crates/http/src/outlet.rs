//! What of answers lies in memory: counted, bounded for each connection and in all, and let go of where a client does not
//! take it.
//!
//! There are two budgets, both in bytes and both waited for in order. A *page* is what has been read of the storage and is
//! being written out; who reads one takes the most that it can be beforehand, and gives back what it is not. A *piece* is
//! text on its way to a connection, wherever it waits: in the answer's own queue, in hyper, in a stream of HTTP/2 whose
//! window is closed. A task takes a page's room only while it has none, and room for pieces while it has no other: so
//! whoever holds room waits for nobody but its client, and a client that takes nothing is cut.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::metrics::Usage;

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

/// Where little room is left, what makes no progress is cut after this part of the time that it has otherwise.
const HURRY: u32 = 6;

/// Between two looks for what makes no progress.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// The answers of one server that are under way, and the room that they share.
#[derive(Debug)]
pub(crate) struct Outlets {
    pieces: Budget,
    pages: Budget,
    /// The most that a page with documents takes while it is read.
    page_bytes_max: usize,
    began: Instant,
    under_way: Mutex<HashMap<u64, Weak<Outlet>>>,
    came: AtomicU64,
}

/// Bytes that are given out and come back.
#[derive(Debug)]
struct Budget {
    free: Arc<Semaphore>,
    limit: usize,
}

impl Budget {
    fn new(limit: usize) -> Budget {
        let limit = limit.min(u32::MAX as usize);
        Budget { free: Arc::new(Semaphore::new(limit)), limit }
    }

    /// Waits for room, in order; who wants more than there is gets all of it.
    async fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = u32::try_from(bytes.min(self.limit)).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        self.free.clone().acquire_many_owned(bytes).await.ok()
    }

    fn usage(&self) -> Usage {
        Usage { used: self.limit.saturating_sub(self.free.available_permits()), limit: self.limit }
    }
}

impl Outlets {
    /// `bytes`: for all answers; `document_bytes_max`: the largest document.
    pub(crate) fn new(bytes: usize, document_bytes_max: usize) -> Arc<Outlets> {
        // The rows of a document, the text that they make, which may have twice the room that it needs, and what is read
        // ahead of it.
        let page_bytes_max = 3 * document_bytes_max + 4 * 1024 * 1024;
        Arc::new(Outlets {
            pieces: Budget::new(bytes / 3),
            pages: Budget::new(bytes - bytes / 3),
            page_bytes_max,
            began: Instant::now(),
            under_way: Mutex::default(),
            came: AtomicU64::new(0),
        })
    }

    /// Bytes of pages that are being read or written out.
    pub(crate) fn page_usage(&self) -> Usage {
        self.pages.usage()
    }

    /// Bytes of answers that no connection has taken yet.
    pub(crate) fn piece_usage(&self) -> Usage {
        self.pieces.usage()
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// A connection whose answers share the room.
    pub(crate) fn connect(self: &Arc<Self>, is_known: bool) -> Arc<Connection> {
        Arc::new(Connection {
            of: self.clone(),
            pieces: Budget::new(CONNECTION_PIECES_BYTES.min(self.pieces.limit)),
            pages: Budget::new((CONNECTION_PAGES * self.page_bytes_max).min(self.pages.limit)),
            answers: AtomicUsize::new(0),
            is_known: AtomicBool::new(is_known),
            is_blocked: AtomicBool::new(false),
            unblocked: Notify::new(),
            cut: Notify::new(),
        })
    }

    /// Cuts connections that take nothing of an answer for `stall_max`, until it is dropped.
    pub(crate) async fn watch(&self, stall_max: Duration) {
        loop {
            tokio::time::sleep((stall_max / 12).clamp(Duration::from_millis(10), LOOK_MAX)).await;
            let Usage { used, limit } = self.pieces.usage();
            let pages = self.pages.usage();
            let is_scarce = used > limit / 4 * 3 || pages.used > pages.limit / 4 * 3;
            let most = if is_scarce { stall_max / HURRY } else { stall_max };
            let (now, most) = (self.now(), u64::try_from(most.as_millis()).unwrap_or(u64::MAX));
            let all: Vec<Arc<Outlet>> = {
                let under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
                // None is dropped here, which would take the lock again.
                under_way.values().filter_map(Weak::upgrade).collect()
            };
            for outlet in all.iter().filter(|outlet| outlet.is_stalled(now, most)) {
                tracing::debug!("a connection is cut: its client takes nothing of an answer");
                outlet.connection.cut.notify_one();
            }
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
    /// The system takes no more of what is sent.
    is_blocked: AtomicBool,
    unblocked: Notify,
    cut: Notify,
}

impl Connection {
    /// A request begins, whose answer goes out here; `None`: there are too many. It is one of them until nothing works
    /// for it any more, though its client has given it up.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<Arc<Outlet>> {
        let most = if self.is_known.load(Ordering::Relaxed) { ANSWERS_MAX } else { ANSWERS_MAX_UNKNOWN };
        if self.answers.fetch_add(1, Ordering::Relaxed) >= most {
            self.answers.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let number = self.of.came.fetch_add(1, Ordering::Relaxed);
        let (unsent, moved) = (AtomicUsize::new(0), AtomicU64::new(0));
        let outlet = Arc::new(Outlet { number, connection: self.clone(), unsent, moved });
        let mut under_way = self.of.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.insert(number, Arc::downgrade(&outlet));
        drop(under_way);
        Some(outlet)
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

    /// Resolves when the connection is to be cut.
    pub(crate) async fn cut(&self) {
        self.cut.notified().await;
    }
}

/// Where one answer goes out.
#[derive(Debug)]
pub(crate) struct Outlet {
    number: u64,
    connection: Arc<Connection>,
    /// Pieces that are not sent.
    unsent: AtomicUsize,
    /// When something was sent last, in milliseconds since the server began.
    moved: AtomicU64,
}

impl Outlet {
    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Waits for room for so many bytes of text.
    pub(crate) async fn room(&self, bytes: usize) -> Room {
        let bytes = bytes.saturating_add(PIECE_BYTES);
        let of_connection = self.connection.pieces.take(bytes).await;
        Room { of_connection, of_all: self.connection.of.pieces.take(bytes).await }
    }

    /// Waits for the room that a page may take while it is read; `has_documents`: with documents, of any size.
    pub(crate) async fn page_room(&self, has_documents: bool) -> Room {
        let all = &self.connection.of;
        let bytes = if has_documents { all.page_bytes_max } else { all.page_bytes_max.min(4 * 1024 * 1024) };
        let of_connection = self.connection.pages.take(bytes).await;
        Room { of_connection, of_all: all.pages.take(bytes).await }
    }

    fn moves(&self) {
        self.moved.store(self.connection.of.now(), Ordering::Relaxed);
    }

    fn is_stalled(&self, now: u64, most: u64) -> bool {
        self.unsent.load(Ordering::Relaxed) > 0 && now.saturating_sub(self.moved.load(Ordering::Relaxed)) >= most
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.connection.answers.fetch_sub(1, Ordering::Relaxed);
        let mut under_way = self.connection.of.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.remove(&self.number);
    }
}

/// Room that is held until this is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    of_connection: Option<OwnedSemaphorePermit>,
    of_all: Option<OwnedSemaphorePermit>,
}

impl Room {
    /// Gives back what is more than so many bytes.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        for permit in [&mut self.of_connection, &mut self.of_all].into_iter().flatten() {
            drop(permit.split(permit.num_permits().saturating_sub(bytes)));
        }
    }
}

/// Text on its way to a connection.
#[derive(Debug)]
pub struct Outgoing {
    bytes: Bytes,
    outlet: Option<Arc<Outlet>>,
    _room: Option<Arc<Room>>,
}

impl Outgoing {
    /// `room`: what is held for it until it is sent.
    pub(crate) fn new(bytes: Bytes, outlet: Option<Arc<Outlet>>, room: Option<Arc<Room>>) -> Outgoing {
        if let Some(outlet) = &outlet {
            if outlet.unsent.load(Ordering::Relaxed) == 0 {
                outlet.moves();
            }
            outlet.unsent.fetch_add(1, Ordering::Relaxed);
        }
        Outgoing { bytes, outlet, _room: room }
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
            outlet.moves();
        }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        if let Some(outlet) = &self.outlet {
            outlet.unsent.fetch_sub(1, Ordering::Relaxed);
            outlet.moves();
        }
    }
}
