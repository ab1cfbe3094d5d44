//! A feed as it is sent to a client: pages within the memory for answers, waits and heartbeats.
//!
//! The surface writes the rows, the beginning and the end of the answer, and the reason of an early end.

use std::collections::HashSet;
use std::sync::Arc;

use flatbed_http::{AnonymousFeed, PagePermit, Pages, Sender, shrink};
use flatbed_layer::{ChangeRow, ChangesPage, RevId, TailRow};
use flatbed_service::{Feed, FeedError, FeedWaitOutcome, Heartbeats};

use crate::interrupted::{Interrupted, page_bytes};

type Result<T> = std::result::Result<T, Interrupted>;

/// Returns the memory of a filter by ids, in bytes.
pub fn id_set_bytes(ids: &HashSet<String>) -> usize {
    const EACH: usize = size_of::<String>() + 1;
    // Allocations of strings are rounded up to 16 bytes.
    EACH * ids.capacity() / 7 * 8 + ids.iter().map(|id| id.len().next_multiple_of(16)).sum::<usize>()
}

/// Returns the size of a feed's page in bytes.
pub fn feed_page_bytes(page: &ChangesPage) -> usize {
    let leaves = page.rows.iter().map(|row| row.leaves.len() * size_of::<RevId>()).sum::<usize>();
    leaves + page_bytes(page.rows.len(), page.rows.iter().filter_map(|row| row.doc.as_ref()))
}

/// A feed and the answer that it is sent in.
pub struct FeedOutput {
    /// The rows.
    pub feed: Feed,
    /// The answer.
    pub sender: Sender,
    /// The reason why the reader lost its rights.
    pub lost: Option<FeedError>,
    pages: Pages,
    heartbeats: Heartbeats,
    /// The bytes of a heartbeat.
    heartbeat: &'static [u8],
    /// The place of an anonymous client's feed among the bounded number of followers.
    following: Option<AnonymousFeed>,
}

/// The end of a wait.
#[derive(Debug)]
pub enum FeedWait {
    /// Rows that all followers share.
    Shared(Vec<Arc<TailRow>>),
    /// Rows that a function accepted.
    Passed(Vec<ChangeRow>),
    /// The next rows come with [`FeedOutput::next_page`].
    ReadOn,
    /// The feed ends.
    Over,
}

impl FeedOutput {
    /// Joins a feed and its answer. `heartbeat`: the bytes of a heartbeat.
    pub fn new(
        feed: Feed,
        sender: Sender,
        pages: Pages,
        heartbeats: Heartbeats,
        heartbeat: &'static [u8],
        following: Option<AnonymousFeed>,
    ) -> FeedOutput {
        FeedOutput { feed, sender, lost: None, pages, heartbeats, heartbeat, following }
    }

    /// Returns the next page with its memory reservation, after releasing the last one. Sends heartbeats while a filter
    /// skips rows, while the feed waits for memory, and while the storage does not answer.
    pub async fn next_page(&mut self, room: PagePermit) -> Result<(PagePermit, ChangesPage)> {
        let FeedOutput { feed, sender, lost, pages, heartbeats, heartbeat, .. } = self;
        // A follower holds memory only while it reads.
        drop(room);
        let gone = sender.watch();
        let mut next = Box::pin(async {
            let mut room = gone.page_room(pages).await?;
            let read = feed.read_page().await.map_err(|error| interruption(lost, error))?;
            // Before the filter's function, which may take seconds.
            shrink(&mut room, feed_page_bytes(&read));
            let page = feed.filter_page(read).await.map_err(|error| interruption(lost, error))?;
            shrink(&mut room, feed_page_bytes(&page));
            Ok((room, page))
        });
        loop {
            tokio::select! {
                // Heartbeats come first, so that ready pages do not starve them.
                biased;
                () = heartbeats.due() => {}
                next = &mut next => return next,
                // A filter may run long, so it stops when its client disconnects.
                () = sender.wait_until_gone() => return Err(Interrupted),
            }
            sender.mark_heartbeat();
            sender.buffer.extend_from_slice(heartbeat);
            sender.flush().await?;
            heartbeats.restart();
        }
    }

    /// Waits for new rows, and sends heartbeats meanwhile.
    pub async fn wait(&mut self) -> Result<FeedWait> {
        loop {
            // A client that does not read must not hold rows in memory.
            self.sender.ready().await?;
            tokio::select! {
                waited = self.feed.wait(&mut self.heartbeats) => match waited
                    .map_err(|error| interruption(&mut self.lost, error))?
                {
                    FeedWaitOutcome::Shared(rows) => return Ok(FeedWait::Shared(rows)),
                    FeedWaitOutcome::Passed(rows) => return Ok(FeedWait::Passed(rows)),
                    FeedWaitOutcome::ReadOn => return Ok(FeedWait::ReadOn),
                    FeedWaitOutcome::Over => return Ok(FeedWait::Over),
                    FeedWaitOutcome::Heartbeat => {}
                },
                () = self.sender.wait_until_gone() => return Err(Interrupted),
                // Ends as a timeout does: the client reconnects and may be refused then.
                () = gives_way(self.following.as_ref()) => return Ok(FeedWait::Over),
            }
            self.sender.mark_heartbeat();
            self.sender.buffer.extend_from_slice(self.heartbeat);
            self.sender.flush().await?;
        }
    }

    /// Tells the sender when and under which rules the next rows were judged.
    pub async fn mark_judged(&mut self) -> Result<()> {
        let (at, by) = self.feed.decision();
        Ok(self.sender.mark_judged(at, by).await?)
    }
}

/// Resolves when an anonymous client's feed must end in favour of another address. `None`: never.
pub async fn gives_way(following: Option<&AnonymousFeed>) {
    match following {
        Some(following) => following.gives_way().await,
        None => std::future::pending().await,
    }
}

/// Records the reason if the reader lost its rights, and returns the interruption.
fn interruption(lost: &mut Option<FeedError>, error: FeedError) -> Interrupted {
    if error.is_refusal() {
        *lost = Some(error);
        return Interrupted;
    }
    error.into()
}
