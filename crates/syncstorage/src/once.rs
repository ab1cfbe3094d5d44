//! Writes that take place once, though it may be unknown whether an attempt's commit did.

use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::timestamp::Timestamp;
use crate::transaction::Attempt;
use crate::values::{Done, Head};

/// One write of a user. Each attempt notes its number in the user's clock; an attempt that finds it there knows that an
/// earlier one was committed, and when.
#[derive(Debug)]
pub(crate) struct Once<A> {
    /// Drawn by lot.
    pub number: u64,
    /// What each attempt would have answered, at its time.
    answers: Mutex<Vec<(Timestamp, A)>>,
}

impl<A: Clone> Once<A> {
    pub(crate) fn new() -> Result<Once<A>> {
        Ok(Once { number: drawn()?, answers: Mutex::default() })
    }

    /// What was answered, if an earlier attempt has been committed.
    pub(crate) fn answered(&self, attempt: Attempt, head: &Head) -> Result<Option<A>> {
        if !attempt.maybe_committed {
            return Ok(None);
        }
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(first) = answers.iter().map(|(at, _)| *at).min() else { return Ok(None) };
        match head.has_done(self.number, first) {
            Done::At(at) => {
                let answer = answers.iter().find(|(time, _)| *time == at).map(|(_, answer)| answer.clone());
                answer.map(Some).ok_or(Error::Unknown)
            }
            Done::No => Ok(None),
            Done::Unknown => Err(Error::Unknown),
        }
    }

    /// Keeps what this attempt answers if it is committed, at this time of the user's.
    pub(crate) fn answer(&self, at: Timestamp, answer: A) -> A {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).push((at, answer.clone()));
        answer
    }
}

/// A number drawn by lot, not 0.
pub(crate) fn drawn() -> Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|_| Error::NoRandomness)?;
    Ok(u64::from_le_bytes(bytes).max(1))
}
