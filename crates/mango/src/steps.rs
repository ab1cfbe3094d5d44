//! What matching may cost.

/// Steps for one document: some tenths of a second.
const STEPS_MAX: usize = 20_000_000;

/// So many steps are made between two looks at whether anybody waits.
const STEPS_BETWEEN: usize = 10_000;

/// Bytes of a string that count as a step.
const STEP_BYTES: usize = 64;

/// Matching was not done: it took too many steps, or nobody waited for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Exhausted {
    /// The document is too much for this selector.
    #[error("the selector takes too long to match a document")]
    TooLong,
    /// Nobody waits.
    #[error("nobody waits for the selector's matches any more")]
    Stopped,
}

pub(crate) struct Steps<'s> {
    left: usize,
    until_look: usize,
    stop: Option<&'s dyn Fn() -> bool>,
}

impl<'s> Steps<'s> {
    pub(crate) fn new(stop: &'s dyn Fn() -> bool) -> Steps<'s> {
        Steps { left: STEPS_MAX, until_look: STEPS_BETWEEN, stop: Some(stop) }
    }

    pub(crate) fn endless() -> Steps<'static> {
        Steps { left: usize::MAX, until_look: usize::MAX, stop: None }
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<(), Exhausted> {
        self.left = self.left.checked_sub(count).ok_or(Exhausted::TooLong)?;
        match self.until_look.checked_sub(count) {
            Some(left) => self.until_look = left,
            None => {
                self.until_look = STEPS_BETWEEN;
                if self.stop.is_some_and(|stop| stop()) {
                    return Err(Exhausted::Stopped);
                }
            }
        }
        Ok(())
    }

    /// For looking at so many bytes.
    pub(crate) fn take_bytes(&mut self, bytes: usize) -> Result<(), Exhausted> {
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
        assert_eq!(steps.take_bytes(STEP_BYTES * 2), Err(Exhausted::TooLong));
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
        assert_eq!((steps.take(1), asked.get()), (Err(Exhausted::Stopped), 2));
    }
}
