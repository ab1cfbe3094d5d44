//! Writes that take place once, although the result of a commit may be unknown.

use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::timestamp::Timestamp;
use crate::transaction::Attempt;
use crate::values::{Head, WriteOutcome};

/// One write of a user. Each attempt notes the write's number in the user's clock. An attempt that finds it there knows
/// that an earlier one was committed, and when.
#[derive(Debug)]
pub(crate) struct UserWrite<A> {
    /// A random number.
    pub number: u64,
    /// The answer that each attempt would give, with its time.
    answers: Mutex<Vec<(Timestamp, A)>>,
}

impl<A: Clone> UserWrite<A> {
    pub(crate) fn new() -> Result<UserWrite<A>> {
        Ok(UserWrite { number: drawn()?, answers: Mutex::default() })
    }

    /// Returns the answer of an earlier attempt that was committed.
    pub(crate) fn answered(&self, attempt: Attempt, head: &Head) -> Result<Option<A>> {
        if !attempt.maybe_committed {
            return Ok(None);
        }
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(first) = answers.iter().map(|(at, _)| *at).min() else { return Ok(None) };
        match head.has_done(self.number, first) {
            WriteOutcome::At(at) => {
                let answer = answers.iter().find(|(time, _)| *time == at).map(|(_, answer)| answer.clone());
                answer.map(Some).ok_or(Error::Unknown)
            }
            WriteOutcome::No => Ok(None),
            WriteOutcome::Unknown => Err(Error::Unknown),
        }
    }

    /// Keeps the answer of this attempt, at this time of the user's, in case it is committed.
    pub(crate) fn answer(&self, at: Timestamp, answer: A) -> A {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).push((at, answer.clone()));
        answer
    }
}

/// Draws a random number, not 0.
pub(crate) fn drawn() -> Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|_| Error::NoRandomness)?;
    Ok(u64::from_le_bytes(bytes).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_been_forgotten_is_not_known() {
        let at = Timestamp::from_hundredths;
        let once = UserWrite::new().unwrap();
        let (first, again) = (Attempt::default(), Attempt { maybe_committed: true, after_unknown: true });
        let mut head = Head::default();
        // No attempt was made, or none may have been committed.
        assert!(matches!(once.answered(again, &head), Ok(None)));
        once.answer(at(1_000), 1);
        assert!(matches!(once.answered(again, &head), Ok(None)));
        once.answer(at(1_010), 2);
        head.note(once.number, at(1_010));
        assert!(matches!(once.answered(again, &head), Ok(Some(2))));
        // An attempt that knows that no earlier one was committed counts as the first.
        assert!(matches!(once.answered(first, &head), Ok(None)));
        // Since the first attempt other writes may have displaced its number, but not since the second.
        let mut head = Head::default();
        head.note(7, at(1_005));
        for other in 0..16 {
            head.note(100 + other, at(1_006));
        }
        assert!(matches!(once.answered(again, &head), Err(Error::Unknown)));
    }
}
