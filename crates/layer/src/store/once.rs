//! Operations that take place once, though it may be unknown whether an attempt's commit took place.
//!
//! What an operation writes says for most of them whether it has been written. Where others may have written over it
//! since, each attempt leaves a mark beside what it does. A later attempt that finds the mark changes nothing. All attempts
//! of one operation conflict on the mark, so that not even a commit that lands late takes place a second time.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::layer::{Inner, now_ms, random_id};
use crate::read::get::page_of;
use crate::store::root::epoch_for_write;
use crate::store::transaction::{self, Attempt, Operation, Transaction, conflict_with};

/// The mark of one operation; made before its first attempt.
#[derive(Debug)]
pub(crate) struct Once {
    key: Vec<u8>,
    attempts: u32,
}

impl Once {
    pub(crate) fn new(inner: &Inner) -> Result<Once> {
        Ok(Once { key: inner.keys.mark(now_ms(), &random_id()?), attempts: 0 })
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

/// Removes marks that are older than any operation is tried for. Returns whether there were any.
pub(crate) async fn sweep(inner: &Arc<Inner>, kept_for: Duration) -> Result<bool> {
    struct Sweep<'a>(&'a Inner, u64);
    impl Operation for Sweep<'_> {
        type Output = bool;
        async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<bool> {
            let range = self.0.keys.marks_until(self.1);
            if trx.get_range(&page_of(&range, 1, false), 1, true).await?.is_empty() {
                return Ok(false);
            }
            epoch_for_write(trx, &self.0.keys).await?;
            trx.clear_range(&range.begin, &range.end);
            Ok(true)
        }
    }
    let until_ms = now_ms().saturating_sub(kept_for.as_millis() as u64);
    transaction::write(&inner.db, &inner.metrics, &mut Sweep(inner, until_ms)).await
}
