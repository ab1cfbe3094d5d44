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

use crate::error::{Error, Result};
use crate::store::keys::RootKeys;
use crate::store::transaction::{Attempt, COMMIT_UNKNOWN_RESULT, Transaction, conflict_with};

/// The mark of one operation; made before its first attempt.
#[derive(Debug)]
pub(crate) struct Once {
    key: Vec<u8>,
    /// The time in the key.
    at_ms: u64,
    /// The key of the time before which marks are gone.
    removed: Vec<u8>,
    attempts: u32,
}

impl Once {
    pub(crate) fn new(keys: &RootKeys, clock: &Clock) -> Result<Once> {
        let at_ms = clock.unix_ms();
        Ok(Once { key: keys.mark(at_ms, &random_id()?), at_ms, removed: keys.marks_removed(), attempts: 0 })
    }

    /// Before an attempt does anything: which earlier one has taken place, by the number that [`Once::mark`] gave, if one
    /// has.
    ///
    /// # Errors
    /// `commit_unknown_result`: the mark of an earlier attempt may have been removed.
    pub(crate) async fn happened(&self, trx: &Transaction, attempt: Attempt) -> Result<Option<u32>> {
        if !attempt.maybe_committed {
            conflict_with(trx, &self.key)?;
            return Ok(None);
        }
        let (mark, removed) = futures_util::try_join!(trx.get(&self.key, false), trx.get(&self.removed, false))?;
        let Some(mark) = mark else {
            return match removed_before(removed.as_deref())? > self.at_ms {
                true => Err(Error::Storage(FdbError::from_code(COMMIT_UNKNOWN_RESULT))),
                false => Ok(None),
            };
        };
        let number = mark[..].try_into().map_err(|_| Error::Corrupt("a mark is not 4 bytes".into()))?;
        Ok(Some(u32::from_le_bytes(number)))
    }

    /// Leaves the mark, in an attempt that changes something; gives its number, counted from 0.
    pub(crate) fn mark(&mut self, trx: &Transaction) -> u32 {
        let number = self.attempts;
        self.attempts += 1;
        trx.set(&self.key, &number.to_le_bytes());
        number
    }
}

/// Decodes the stored time, in milliseconds of Unix time, before which marks have been removed; 0 if there is none.
pub(crate) fn removed_before(stored: Option<&[u8]>) -> Result<u64> {
    let Some(stored) = stored else { return Ok(0) };
    let time = stored.try_into().map_err(|_| Error::Corrupt("the time of removed marks is not 8 bytes".into()))?;
    Ok(u64::from_le_bytes(time))
}

/// An id that nobody else has. Keys write a zero byte as two, so it has none: what an operation writes is always as long.
pub(crate) fn random_id() -> Result<[u8; 16]> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|_| Error::NoRandomness)?;
    Ok(id.map(|byte| byte.max(1)))
}
