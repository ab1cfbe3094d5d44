//! Operations that take place once, though it may be unknown whether an attempt's commit took place.
//!
//! What an operation writes says for most of them whether it has been written. Where others may have written over it
//! since, each attempt leaves a mark beside what it does. A later attempt that finds the mark changes nothing. All attempts
//! of one operation conflict on the mark, so that not even a commit that lands late takes place a second time.

use flatbed_clock::Clock;

use crate::error::{Error, Result};
use crate::store::keys::RootKeys;
use crate::store::transaction::{Attempt, Transaction, conflict_with};

/// The mark of one operation; made before its first attempt.
#[derive(Debug)]
pub(crate) struct Once {
    key: Vec<u8>,
    attempts: u32,
}

impl Once {
    pub(crate) fn new(keys: &RootKeys, clock: &Clock) -> Result<Once> {
        Ok(Once { key: keys.mark(clock.unix_ms(), &random_id()?), attempts: 0 })
    }

    /// Before an attempt does anything: which earlier one has taken place, by the number that [`Once::mark`] gave, if one
    /// has.
    pub(crate) async fn happened(&self, trx: &Transaction, attempt: Attempt) -> Result<Option<u32>> {
        if !attempt.maybe_committed {
            conflict_with(trx, &self.key)?;
            return Ok(None);
        }
        let Some(mark) = trx.get(&self.key, false).await? else { return Ok(None) };
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

/// An id that nobody else has. Keys write a zero byte as two, so it has none: what an operation writes is always as long.
pub(crate) fn random_id() -> Result<[u8; 16]> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|_| Error::NoRandomness)?;
    Ok(id.map(|byte| byte.max(1)))
}
