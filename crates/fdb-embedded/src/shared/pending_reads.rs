//! The choice of reads that are answered from another thread, as a cluster answers all reads.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::stripe::{CacheAligned, STRIPES, own_stripe};

/// The default interval. Not a power of two: a program that repeats a round number of reads then meets a pending one at
/// each of its reads in turn.
const PENDING_READ_EVERY_DEFAULT: u32 = 257;
/// The number of answers on a stripe after which fewer are withheld. The thread that delivers an answer costs as much as twenty
/// reads, which a program with millions of reads need not pay as often.
const OFTEN: u64 = 1 << 16;
/// The default interval after that.
const PENDING_READ_EVERY_LATER: u64 = 4_099;

/// Selects reads to be answered from another thread although no fault delays them.
pub(crate) struct PendingReads {
    /// 0: none.
    every: u64,
    every_later: u64,
    /// One for each stripe, so that each thread meets every Nth of its own reads.
    counts: [CacheAligned<AtomicU64>; STRIPES],
}

impl PendingReads {
    pub(crate) fn new(every: Option<u32>) -> PendingReads {
        let every_later = every.map_or(PENDING_READ_EVERY_LATER, u64::from);
        let every = every.unwrap_or(PENDING_READ_EVERY_DEFAULT).into();
        PendingReads { every, every_later, counts: Default::default() }
    }

    #[inline]
    pub(crate) fn is_next(&self) -> bool {
        let Some(count) = self.counts.get(own_stripe()).filter(|_| self.every > 0) else { return false };
        let nth = count.0.fetch_add(1, Ordering::Relaxed) + 1;
        nth.is_multiple_of(if nth <= OFTEN { self.every } else { self.every_later })
    }

    pub(crate) fn selected(&self) -> u64 {
        let chosen = |count: u64| {
            let often = count.min(OFTEN).checked_div(self.every)?;
            Some(often + count.max(OFTEN) / self.every_later - OFTEN / self.every_later)
        };
        self.counts.iter().filter_map(|count| chosen(count.0.load(Ordering::Relaxed))).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_what_was_chosen() {
        for every in [None, Some(0), Some(1), Some(7)] {
            let reads = PendingReads::new(every);
            let chosen = |count: u64| (0..count).filter(|_| reads.is_next()).count() as u64;
            let often = chosen(OFTEN);
            assert_eq!((often, reads.selected()), (OFTEN.checked_div(every.unwrap_or(257).into()).unwrap_or(0), often));
            let later = chosen(8_200);
            assert_eq!(often + later, reads.selected());
            assert_eq!(every.is_none(), later == 2, "{later} of 8,200 with {every:?}");
        }
    }
}
