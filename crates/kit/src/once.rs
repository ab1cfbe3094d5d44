//! Operations that take place once, though it may be unknown whether an attempt's commit took place.
//!
//! What an operation writes says for most of them whether it has been written. Where others may have written over it
//! since, each attempt leaves a mark beside what it does. A later attempt that finds the mark changes nothing. All attempts
//! of one operation conflict on the mark, so that not even a commit that lands late takes place a second time.
//!
//! A mark has the time of the clock of the process that wrote it, and is removed by the clock of another process. The removal stores
//! the time before which marks are gone. An attempt that finds no mark, and whose mark would be older than that time, cannot tell
//! whether an earlier attempt committed: it fails with `commit_unknown_result` and changes nothing.

use flatbed_clock::Clock;
use foundationdb::FdbError;
use futures_util::future::try_join;

use crate::context::{Corruption, TransactionContext};
use crate::runner::{Attempt, COMMIT_UNKNOWN_RESULT, conflict_with};
use crate::transaction::Transaction;

/// The system has no randomness to give.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no randomness from the system")]
pub struct NoRandomness;

/// The mark of one operation; made before its first attempt.
#[derive(Debug)]
pub struct Once {
    key: Vec<u8>,
    /// The time in the key.
    at_ms: u64,
    /// The key of the time before which marks are gone.
    removed: Vec<u8>,
    attempts: u32,
}

impl Once {
    /// Makes a mark. `mark` builds its key from a time, in milliseconds of Unix time, and a random id; `removed` is the key of the
    /// time before which marks are gone.
    ///
    /// # Errors
    /// [`NoRandomness`].
    pub fn new(
        clock: &Clock,
        mark: impl FnOnce(u64, &[u8; 16]) -> Vec<u8>,
        removed: Vec<u8>,
    ) -> Result<Once, NoRandomness> {
        let at_ms = clock.unix_ms();
        Ok(Once { key: mark(at_ms, &random_id()?), at_ms, removed, attempts: 0 })
    }

    /// Before an attempt does anything: which earlier one has taken place, by the number that [`Once::mark`] gave, if one
    /// has.
    ///
    /// # Errors
    /// `commit_unknown_result`: the mark of an earlier attempt may have been removed.
    pub async fn happened<C: TransactionContext>(
        &self,
        trx: &Transaction<C>,
        attempt: Attempt,
    ) -> Result<Option<u32>, C::Error> {
        if !attempt.maybe_committed {
            conflict_with(trx, &self.key)?;
            return Ok(None);
        }
        let (mark, removed) = try_join(trx.get(&self.key, false), trx.get(&self.removed, false)).await?;
        let Some(mark) = mark else {
            return match removed_before(removed.as_deref())? > self.at_ms {
                true => Err(FdbError::from_code(COMMIT_UNKNOWN_RESULT).into()),
                false => Ok(None),
            };
        };
        let number = mark[..].try_into().map_err(|_| Corruption::Mark)?;
        Ok(Some(u32::from_le_bytes(number)))
    }

    /// Leaves the mark, in an attempt that changes something; gives its number, counted from 0.
    pub fn mark<C: TransactionContext>(&mut self, trx: &Transaction<C>) -> u32 {
        let number = self.attempts;
        self.attempts += 1;
        trx.set(&self.key, &number.to_le_bytes());
        number
    }
}

/// Decodes the stored time, in milliseconds of Unix time, before which marks have been removed; 0 if there is none.
///
/// # Errors
/// [`Corruption::RemovedMarks`].
pub fn removed_before(stored: Option<&[u8]>) -> Result<u64, Corruption> {
    let Some(stored) = stored else { return Ok(0) };
    let time = stored.try_into().map_err(|_| Corruption::RemovedMarks)?;
    Ok(u64::from_le_bytes(time))
}

/// An id that nobody else has. Keys write a zero byte as two, so it has none: what an operation writes is always as long.
///
/// # Errors
/// [`NoRandomness`].
pub fn random_id() -> Result<[u8; 16], NoRandomness> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|_| NoRandomness)?;
    Ok(id.map(|byte| byte.max(1)))
}
