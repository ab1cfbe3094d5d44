//! Heartbeats of waiting feeds.

use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_clock::Clock;
use tokio::time::Instant;

/// The interval of heartbeats, which applies while a feed waits, reads or filters.
#[derive(Debug)]
pub struct Heartbeats {
    clock: Clock,
    every: Option<Duration>,
    /// When the last heartbeat was sent, or the reader had received all current rows.
    last: Instant,
}

impl Heartbeats {
    /// The first one is due after `every`; `None`: never.
    pub fn new(every: Option<Duration>, clock: &Clock) -> Heartbeats {
        Heartbeats { clock: clock.clone(), every, last: clock.now() }
    }

    /// True if there are heartbeats: such a feed waits until its reader leaves.
    pub fn are_wanted(&self) -> bool {
        self.every.is_some()
    }

    /// Restarts the interval, after a heartbeat or after all current rows.
    pub fn restart(&mut self) {
        self.last = self.clock.now();
    }

    /// Waits until a heartbeat is due.
    #[boxed]
    pub async fn due(&self) {
        match self.every {
            Some(every) => self.clock.sleep_until(self.last + every).await,
            None => std::future::pending().await,
        }
    }
}
