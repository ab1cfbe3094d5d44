//! How late things happen on this machine: what is not asked by a request, but happens by itself, may be so much later.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::support::Layer;
use super::{World, lock};

const TICK: Duration = Duration::from_millis(10);

/// Longer than any span that is asked for.
const KEPT: Duration = Duration::from_secs(20);

/// What follows on a change: two looks, each with a timer, a read and a wake-up, and a line that is sent and read.
const TIMES: u32 = 4;

#[derive(Default)]
pub struct Canary {
    /// When something was over, and by how much it was late.
    late: Mutex<VecDeque<(Instant, Duration)>>,
    /// Since when something is read that is not there yet.
    reading: Mutex<Option<Instant>>,
}

impl Canary {
    fn note(&self, late: Duration) {
        let now = Instant::now();
        let mut all = lock(&self.late);
        all.push_back((now, late));
        while all.front().is_some_and(|(at, _)| *at + KEPT < now) {
            all.pop_front();
        }
    }

    /// By how much what happens by itself may be late that began after this.
    pub fn slack(&self, since: Instant) -> Duration {
        let all = lock(&self.late);
        // What is not over yet: the timer that would say so is late itself.
        let silent = all.back().map_or(Duration::ZERO, |(at, _)| at.elapsed().saturating_sub(TICK));
        let worst = all.iter().rev().take_while(|(at, _)| *at >= since).map(|(_, late)| *late).max();
        let reading = lock(&self.reading).map_or(Duration::ZERO, |since| since.elapsed());
        TIMES * worst.unwrap_or_default().max(silent).max(reading) + 2 * TICK
    }
}

/// How late timers fire.
pub async fn timers(world: Arc<World>) {
    while !world.is_ended() {
        let began = Instant::now();
        sleep(TICK).await;
        world.canary.note(began.elapsed().saturating_sub(TICK));
    }
}

/// How long it takes to read something, asked of a layer of its own: the servers learn nothing of it.
pub async fn reads(world: Arc<World>, layer: Layer) {
    while !world.is_ended() {
        let began = Instant::now();
        *lock(&world.canary.reading) = Some(began);
        // Where the storage does not answer, that has taken long.
        let _ = layer.ping().await;
        *lock(&world.canary.reading) = None;
        world.canary.note(began.elapsed());
        sleep(TICK).await;
    }
}
