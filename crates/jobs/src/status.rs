//! The status of a job, and the handle to stop it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use flatbed_clock::Clock;
use tokio::sync::watch;

/// The events that a job keeps.
pub const HISTORY_MAX: usize = 20;

/// The longest error that is kept, in characters: errors are part of a lease's state.
const REASON_CHARACTERS_MAX: usize = 500;

/// Something that happened to a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobEvent {
    /// The time, in seconds of Unix time.
    pub at: u64,
    /// `added`, `started`, `stopped` or `crashed`.
    pub kind: &'static str,
    /// The error of a `crashed` event.
    pub reason: Option<String>,
}

/// The state of a job.
#[derive(Debug, Clone, Default)]
pub struct JobState {
    /// Newest first, at most [`HISTORY_MAX`].
    pub history: VecDeque<JobEvent>,
    /// Failures since the last success.
    pub error_count: u32,
    /// The last error since the last success.
    pub error: Option<String>,
    /// True while a run works.
    pub is_running: bool,
    /// The time of the last event, in seconds of Unix time.
    pub updated_at: u64,
}

impl JobState {
    /// Returns CouchDB's name of the state.
    pub fn state(&self) -> &'static str {
        match (&self.error, self.is_running) {
            (_, true) => "running",
            (Some(_), false) => "crashing",
            (None, false) => "pending",
        }
    }

    fn note(&mut self, clock: &Clock, kind: &'static str, reason: Option<String>) {
        self.updated_at = clock.unix_seconds();
        self.history.push_front(JobEvent { at: self.updated_at, kind, reason });
        self.history.truncate(HISTORY_MAX);
    }
}

/// A job's status, shared with its observers and with those that may stop it.
#[derive(Debug)]
pub struct Status {
    clock: Clock,
    standing: Mutex<JobState>,
    stop: watch::Sender<bool>,
    ended: watch::Sender<bool>,
}

impl Status {
    /// Creates the status of a job that was just added and uses `clock`.
    pub fn new(clock: &Clock) -> Status {
        let mut standing = JobState::default();
        standing.note(clock, "added", None);
        let (standing, stop, ended) = (Mutex::new(standing), watch::Sender::new(false), watch::Sender::new(false));
        Status { clock: clock.clone(), standing, stop, ended }
    }

    /// Returns the job's clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the job's state.
    pub fn standing(&self) -> MutexGuard<'_, JobState> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a run starts to work.
    pub fn begin(&self) {
        let mut standing = self.standing();
        standing.is_running = true;
        standing.note(&self.clock, "started", None);
    }

    /// Notes a success.
    pub fn succeed(&self) {
        let mut standing = self.standing();
        standing.is_running = false;
        standing.error_count = 0;
        standing.error = None;
        standing.note(&self.clock, "stopped", None);
    }

    /// Notes a failure, which lengthens the next pause. Returns the error as shown.
    pub fn fail(&self, reason: &str) -> String {
        let reason: String = reason.chars().take(REASON_CHARACTERS_MAX).collect();
        let mut standing = self.standing();
        standing.is_running = false;
        standing.error_count = standing.error_count.saturating_add(1);
        standing.error = Some(reason.clone());
        standing.note(&self.clock, "crashed", Some(reason.clone()));
        reason
    }

    /// Restores the count of failures from elsewhere.
    pub fn restore(&self, error_count: u32) {
        let mut standing = self.standing();
        standing.error_count = standing.error_count.max(error_count);
    }

    /// Forgets earlier failures, after a long run.
    pub(crate) fn forgive(&self) {
        self.standing().error_count = 0;
    }

    /// Notes that nothing of the job runs.
    pub(crate) fn rest(&self) {
        self.standing().is_running = false;
    }

    /// Stops the job.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Returns whether the job was stopped.
    pub fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }

    /// Returns a receiver that becomes true when the job is stopped.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// Waits until the job is stopped.
    pub async fn stopped(&self) {
        let mut stop = self.stop.subscribe();
        // `self` keeps the sender, so this cannot fail.
        let _ = stop.wait_for(|stop| *stop).await;
    }

    /// Notes that the job will not run again in this process.
    pub fn end(&self) {
        self.ended.send_replace(true);
    }

    /// Returns whether the job will not run again in this process.
    pub fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Waits until the job will not run again in this process.
    pub async fn ended(&self) {
        let mut ended = self.ended.subscribe();
        // `self` keeps the sender, so this cannot fail.
        let _ = ended.wait_for(|ended| *ended).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_is_remembered() {
        let manual = flatbed_clock::ManualClock::new();
        let status = Status::new(&manual.clock());
        assert_eq!(status.standing().state(), "pending");
        status.begin();
        assert_eq!(status.standing().state(), "running");
        assert_eq!(status.fail(&"\u{e4}".repeat(600)), "\u{e4}".repeat(500));
        assert_eq!(status.standing().state(), "crashing");
        assert_eq!(status.standing().error_count, 1);
        status.restore(7);
        status.restore(3);
        assert_eq!(status.standing().error_count, 7);
        status.begin();
        status.succeed();
        {
            let standing = status.standing();
            let kinds: Vec<_> = standing.history.iter().map(|event| event.kind).collect();
            assert_eq!(kinds, ["stopped", "started", "crashed", "started", "added"]);
            assert_eq!((standing.state(), standing.error_count, &standing.error), ("pending", 0, &None));
        }
        let added_at = status.standing().updated_at;
        manual.advance(std::time::Duration::from_secs(60));
        for _ in 0..HISTORY_MAX {
            status.fail("no");
        }
        let standing = status.standing();
        assert_eq!(standing.updated_at, added_at + 60);
        assert_eq!(standing.history.len(), HISTORY_MAX);
        assert!(standing.history.iter().all(|event| event.kind == "crashed" && event.at == standing.updated_at));
    }
}
