//! Operations that take place once, although the result of a commit may be unknown.
//!
//! Most operations detect an earlier commit from their own data. If other writers may have overwritten that data,
//! each attempt also writes a mark. A later attempt that finds the mark changes nothing. All attempts of one operation
//! conflict on the mark, so a commit that lands late does not take place a second time.
//!
//! A mark's key carries the time of the writing process's clock; another process removes the mark by its own clock. The
//! removal stores the time before which marks are gone. An attempt that finds no mark, and whose mark would be older
//! than that time, cannot tell whether an earlier attempt committed. It fails with `commit_unknown_result` and changes
//! nothing.

use flatbed_clock::Clock;
use foundationdb::FdbError;
use futures_util::future::try_join;

use crate::context::{Corruption, TransactionContext};
use crate::runner::{Attempt, COMMIT_UNKNOWN_RESULT, conflict_with};
use crate::transaction::Transaction;

/// The system cannot provide randomness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no randomness from the system")]
pub struct NoRandomness;

/// The mark of one operation. It is made before the first attempt.
#[derive(Debug)]
pub struct Once {
    key: Vec<u8>,
    /// The time in the mark's key, in milliseconds of Unix time.
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

    /// Returns the number, as given by [`Once::mark`], of the earlier attempt that committed. Must run before the
    /// attempt changes anything.
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

    /// Writes the mark, in an attempt that changes something. Returns the mark's number, counted from 0.
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

/// Returns a unique random id. It has no zero bytes, which keys would encode as two bytes each, so its encoding has a
/// fixed length.
///
/// # Errors
/// [`NoRandomness`].
pub fn random_id() -> Result<[u8; 16], NoRandomness> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|_| NoRandomness)?;
    Ok(id.map(|byte| byte.max(1)))
}
