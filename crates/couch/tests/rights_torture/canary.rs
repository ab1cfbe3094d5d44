//! How late things happen on this machine: what is not asked by a request, but happens by itself, may be so much later.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flatbed_testkit::pass;
use tokio::time::Instant;

use super::support::Layer;
use super::{World, lock};

const TICK: Duration = Duration::from_millis(10);

/// Longer than any span that is asked for.
const KEPT: Duration = Duration::from_secs(20);

/// What follows on a change: two looks, each with a timer, a read and a wake-up, and a line that is sent and read.
const TIMES: u32 = 4;

/// Added to the measured lateness: another thread may be scheduled later than those that measure. The exact bound is tested on a
/// manual clock (`crates/service/src/accounts/tests.rs`).
const SPARE: Duration = Duration::from_secs(2);

#[derive(Default)]
pub struct Canary {
    /// When something was over, and by how much it was late.
    late: Mutex<VecDeque<(Instant, Duration)>>,
    /// By when each thing should be over that is not over yet.
    due: Mutex<Vec<Instant>>,
}

impl Canary {
    /// Something begins that takes so long on a machine that does nothing else.
    fn begin(&self, takes: Duration) -> UnderWay<'_> {
        let due = Instant::now() + takes;
        lock(&self.due).push(due);
        UnderWay { canary: self, due }
    }

    /// By how much what happens by itself may be late that began after this.
    pub fn slack(&self, since: Instant) -> Duration {
        let now = Instant::now();
        let over = lock(&self.late).iter().rev().take_while(|(at, _)| *at >= since).map(|(_, late)| *late).max();
        let under_way = lock(&self.due).iter().map(|due| now.saturating_duration_since(*due)).max();
        TIMES * over.max(under_way).unwrap_or_default() + SPARE
    }
}

/// Something under way whose lateness is measured. It is over where this is dropped, with its runtime too.
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

/// How late timers fire.
pub async fn timers(world: Arc<World>) {
    while !world.is_ended() {
        let _tick = world.canary.begin(TICK);
        pass(TICK).await;
    }
}

/// How long it takes to read something, asked of a layer of its own: the servers learn nothing of it.
pub async fn reads(world: Arc<World>, layer: Layer) {
    while !world.is_ended() {
        {
            let _read = world.canary.begin(Duration::ZERO);
            // Where the storage does not answer, that has taken long.
            let _ = layer.ping().await;
        }
        pass(TICK).await;
    }
}
