//! The lateness of this machine: events that no request triggers may be late by that much.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flatbed_testkit::pass;
use tokio::time::Instant;

use super::support::Layer;
use super::{World, lock};

const TICK: Duration = Duration::from_millis(10);

/// Longer than any span of a query.
const KEPT: Duration = Duration::from_secs(20);

/// The delays that follow a change: two checks, each with a timer, a read and a wake-up, and a line that is sent and
/// read.
const TIMES: u32 = 4;

/// Added to the measured lateness: another thread may be scheduled later than those that measure. The exact bound is
/// tested on a manual clock (`crates/service/src/accounts/tests.rs`).
const SPARE: Duration = Duration::from_secs(2);

#[derive(Default)]
pub struct Canary {
    /// The end of each measurement, and its lateness.
    late: Mutex<VecDeque<(Instant, Duration)>>,
    /// The due times of unfinished measurements.
    due: Mutex<Vec<Instant>>,
}

impl Canary {
    /// Begins a measurement that takes `takes` on an idle machine.
    fn begin(&self, takes: Duration) -> UnderWay<'_> {
        let due = Instant::now() + takes;
        lock(&self.due).push(due);
        UnderWay { canary: self, due }
    }

    /// Returns the allowed lateness of events that began after `since`.
    pub fn slack(&self, since: Instant) -> Duration {
        let now = Instant::now();
        let over = lock(&self.late).iter().rev().take_while(|(at, _)| *at >= since).map(|(_, late)| *late).max();
        let under_way = lock(&self.due).iter().map(|due| now.saturating_duration_since(*due)).max();
        TIMES * over.max(under_way).unwrap_or_default() + SPARE
    }
}

/// A running measurement. It ends when it is dropped, also by the end of its runtime.
struct UnderWay<'a> {
    canary: &'a Canary,
    due: Instant,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut all = lock(&self.canary.late);
        all.push_back((now, now.saturating_duration_since(self.due)));
        while all.front().is_some_and(|(at, _)| *at + KEPT < now) {
            all.pop_front();
        }
        drop(all);
        let mut due = lock(&self.canary.due);
        if let Some(at) = due.iter().position(|due| *due == self.due) {
            due.swap_remove(at);
        }
    }
}

/// Measures the lateness of timers.
pub async fn timers(world: Arc<World>) {
    while !world.is_ended() {
        let _tick = world.canary.begin(TICK);
        pass(TICK).await;
    }
}

/// Measures reads on a separate layer, so that the servers learn nothing from them.
pub async fn reads(world: Arc<World>, layer: Layer) {
    while !world.is_ended() {
        {
            let _read = world.canary.begin(Duration::ZERO);
            // An error counts as well: the measurement then includes the time until it.
            let _ = layer.ping().await;
        }
        pass(TICK).await;
    }
}
