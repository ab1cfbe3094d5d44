//! When somebody who waits is to hear that the feed goes on.

use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_clock::Clock;
use tokio::time::Instant;

/// How often whoever follows a feed is to hear of it, whatever the feed is at: waiting, reading, filtering.
#[derive(Debug)]
pub struct Heartbeats {
    clock: Clock,
    every: Option<Duration>,
    /// When there was one last, or its reader had all that there was.
    last: Instant,
}

impl Heartbeats {
    /// The first is due after `every`; `None`: none ever is.
    pub fn new(every: Option<Duration>, clock: &Clock) -> Heartbeats {
        Heartbeats { clock: clock.clone(), every, last: clock.now() }
    }

    /// Whether there are any: a feed with heartbeats waits for as long as its reader is there.
    pub fn are_wanted(&self) -> bool {
        self.every.is_some()
    }

    /// One was sent, or all that there was.
    pub fn sent(&mut self) {
        self.last = self.clock.now();
    }

    /// Waits until one is due.
    #[boxed]
    pub async fn due(&self) {
        match self.every {
            Some(every) => self.clock.sleep_until(self.last + every).await,
            None => std::future::pending().await,
        }
    }
}
