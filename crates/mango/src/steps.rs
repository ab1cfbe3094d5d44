//! Bounds on the work of matching.

use regex_automata::util::primitives::StateID;

/// The step limit for one document: some tenths of a second.
const STEPS_MAX: usize = 20_000_000;

/// The number of steps between two calls of `stop`.
pub(crate) const STEPS_BETWEEN: usize = 10_000;

/// Bytes of a string that count as a step.
const STEP_BYTES: usize = 64;

/// The steps of a slice inside a small document: about 20 ms.
const SLICE_STEPS: usize = 1_000_000;

/// Bytes of a document that lengthen a slice by a step. A match that resumes reads its document again, so a slice takes
/// at least about as long as that.
const BYTES_PER_SLICE_STEP: usize = 4;

/// Returns the steps of a slice inside a document of this size.
pub fn slice_steps(document_bytes: usize) -> usize {
    SLICE_STEPS + document_bytes / BYTES_PER_SLICE_STEP
}

/// The point inside a document at which its match paused. The default is the beginning.
///
/// It holds positions and states of one regular expression, none of the document's data, and is valid for the same
/// selector and the same document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// The position in each loop under way, the innermost first. The innermost may be the search of a regular
    /// expression.
    path: Vec<usize>,
    /// The states of that search.
    states: Vec<StateID>,
    taken: usize,
}

/// The callbacks that end a match early.
#[derive(Clone, Copy)]
pub struct Interrupts<'s> {
    /// Called about every 10,000 steps. The match ends with [`MatchInterrupted::Stopped`] if it returns true.
    pub stop: &'s dyn Fn() -> bool,
    /// Called when the slice is over, and about every 10,000 steps after that. The match pauses if it returns true.
    pub pause: &'s dyn Fn() -> bool,
    /// The steps of a slice: see [`slice_steps`].
    pub steps: usize,
}

/// Why a match did not finish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MatchInterrupted {
    /// The selector takes too many steps on the document.
    #[error("the selector takes too long to match a document")]
    TooLong,
    /// The client is gone.
    #[error("the client stopped waiting for the matches of the selector")]
    Stopped,
    /// The slice is over. Only a match with [`Progress`] pauses.
    #[error("the match is paused")]
    Paused,
}

pub(crate) struct Steps<'s> {
    left: usize,
    until_look: usize,
    stop: Option<&'s dyn Fn() -> bool>,
    pause: Option<&'s dyn Fn() -> bool>,
    slice: usize,
    /// The slice is over when at most this number of steps is left.
    pause_at: usize,
    /// The positions of the loops to resume, or of the paused loops: the innermost first.
    path: Vec<usize>,
    states: Vec<StateID>,
    /// The steps left at the point to resume. The steps on the way there are not counted again.
    left_there: usize,
}

impl<'s> Steps<'s> {
    pub(crate) fn new(stop: &'s dyn Fn() -> bool) -> Steps<'s> {
        Steps { left: STEPS_MAX, until_look: STEPS_BETWEEN, stop: Some(stop), ..Steps::endless() }
    }

    pub(crate) fn endless() -> Steps<'static> {
        Steps {
            left: usize::MAX,
            until_look: usize::MAX,
            stop: None,
            pause: None,
            slice: 0,
            pause_at: 0,
            path: Vec::new(),
            states: Vec::new(),
            left_there: 0,
        }
    }

    pub(crate) fn of_slice(interrupts: Interrupts<'s>, progress: Progress) -> Steps<'s> {
        let Interrupts { stop, pause, steps: slice } = interrupts;
        let Progress { path, states, taken } = progress;
        let left_there = STEPS_MAX.saturating_sub(taken);
        let pause_at = STEPS_MAX.saturating_sub(slice);
        Steps { pause: Some(pause), slice, pause_at, path, states, left_there, ..Steps::new(stop) }
    }

    pub(crate) fn into_progress(self) -> Progress {
        Progress { path: self.path, states: self.states, taken: STEPS_MAX.saturating_sub(self.left) }
    }

    /// Begins a loop over conditions or items, and returns its first position: the paused position, or 0.
    pub(crate) fn begin_loop(&mut self) -> usize {
        let Some(at) = self.path.pop() else { return 0 };
        if self.path.is_empty() {
            self.left = self.left_there;
            self.pause_at = self.left.saturating_sub(self.slice);
        }
        at
    }

    /// Returns whether to pause, between two rounds of a loop. Each slice thus does at least one round of the innermost
    /// loop.
    pub(crate) fn is_slice_over(&mut self) -> bool {
        if self.left > self.pause_at {
            return false;
        }
        let is_over = self.pause.is_some_and(|pause| pause());
        self.pause_at = self.left.saturating_sub(STEPS_BETWEEN);
        is_over
    }

    /// Pauses before this round of a loop.
    pub(crate) fn pause_before(&mut self, at: usize) -> MatchInterrupted {
        self.path.clear();
        self.path.push(at);
        MatchInterrupted::Paused
    }

    /// Takes steps before they are spent one after another; see [`Steps::spend`].
    pub(crate) fn take_ahead(&mut self, count: usize) -> Result<(), MatchInterrupted> {
        self.take(count)?;
        self.pause_at = self.pause_at.saturating_sub(count);
        Ok(())
    }

    /// Spends steps that were [taken ahead](Steps::take_ahead).
    pub(crate) fn spend(&mut self, count: usize) -> Result<(), MatchInterrupted> {
        self.pause_at = self.pause_at.saturating_add(count);
        match self.stop.is_some_and(|stop| stop()) {
            true => Err(MatchInterrupted::Stopped),
            false => Ok(()),
        }
    }

    /// Returns whether the point to resume is still ahead.
    pub(crate) fn is_resuming(&self) -> bool {
        !self.path.is_empty()
    }

    /// Returns the byte and the states at which a search has paused.
    pub(crate) fn resume_search(&mut self) -> Option<(usize, Vec<StateID>)> {
        self.is_resuming().then(|| (self.begin_loop(), std::mem::take(&mut self.states)))
    }

    pub(crate) fn pause_search(&mut self, (at, states): (usize, Vec<StateID>)) -> MatchInterrupted {
        self.states = states;
        self.pause_before(at)
    }

    /// Notes the round of a loop inside which the match ended.
    pub(crate) fn note_round(&mut self, at: usize, ended: MatchInterrupted) {
        if ended == MatchInterrupted::Paused {
            self.path.push(at);
        }
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<(), MatchInterrupted> {
        self.left = self.left.checked_sub(count).ok_or(MatchInterrupted::TooLong)?;
        match self.until_look.checked_sub(count) {
            Some(left) => self.until_look = left,
            None => {
                self.until_look = STEPS_BETWEEN;
                if self.stop.is_some_and(|stop| stop()) {
                    return Err(MatchInterrupted::Stopped);
                }
            }
        }
        Ok(())
    }

    /// Takes the steps of scanning `bytes` bytes.
    pub(crate) fn take_bytes(&mut self, bytes: usize) -> Result<(), MatchInterrupted> {
        self.take(bytes / STEP_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_by_the_step() {
        let mut steps = Steps { left: 10, ..Steps::endless() };
        assert_eq!((steps.take_bytes(STEP_BYTES * 9), steps.left), (Ok(()), 1));
        assert_eq!((steps.take_bytes(STEP_BYTES - 1), steps.left), (Ok(()), 1));
        assert_eq!(steps.take_bytes(STEP_BYTES * 2), Err(MatchInterrupted::TooLong));
    }

    #[test]
    fn it_looks_now_and_then_whether_anybody_waits() {
        let asked = std::cell::Cell::new(0);
        let stop = || {
            asked.set(asked.get() + 1);
            asked.get() > 1
        };
        let mut steps = Steps::new(&stop);
        assert_eq!((steps.take(STEPS_BETWEEN), asked.get()), (Ok(()), 0));
        assert_eq!((steps.take(1), asked.get()), (Ok(()), 1));
        assert_eq!((steps.take(STEPS_BETWEEN), asked.get()), (Ok(()), 1));
        assert_eq!((steps.take(1), asked.get()), (Err(MatchInterrupted::Stopped), 2));
    }
}
