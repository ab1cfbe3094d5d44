//! The options and limits of a range read.

use crate::base::error::{Error, Result};

/// The options of a range read: the arguments of `fdb_transaction_get_range`.
#[derive(Clone, Debug)]
pub struct RangeOptions {
    /// Most pairs to return; 0 is no limit; negative is refused (2012).
    pub limit: i32,
    /// Target in bytes; 0 leaves the mode's limit alone.
    pub target_bytes: i32,
    /// Streaming mode: -2 want all, -1 iterator, 0 exact, 1 small, 2 medium, 3 large, 4 serial.
    pub mode: i32,
    /// The number of this call within an iteration, from 1; used in mode -1 only.
    pub iteration: i32,
    /// True for a read without a read conflict.
    pub snapshot: bool,
    /// True to read from the end.
    pub reverse: bool,
}

impl Default for RangeOptions {
    fn default() -> Self {
        RangeOptions { limit: 0, target_bytes: 0, mode: -2, iteration: 1, snapshot: false, reverse: false }
    }
}

/// The rows and bytes that a range read may still return.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) rows: Option<u32>,
    pub(crate) bytes: Option<usize>,
    /// Bytes counted for each pair beside its key and value.
    pub(crate) pair_overhead: usize,
    /// True for a negative limit, which is reported after the checks of the transaction and the range.
    pub(crate) is_invalid: bool,
}

/// Bytes that FoundationDB's client counts for each pair beside its key and value.
pub(crate) const CLIENT_PAIR_OVERHEAD: usize = 8;
/// Bytes that a storage server counts for each pair of a reply beside its key and value.
pub(crate) const SERVER_PAIR_OVERHEAD: usize = 24;
/// The longest reply of a storage server, in bytes.
pub(crate) const REPLY_BYTES_MAX: usize = 80_000;

impl Limits {
    /// No limit.
    pub(crate) const NONE: Limits =
        Limits { rows: None, bytes: None, pair_overhead: CLIENT_PAIR_OVERHEAD, is_invalid: false };

    /// Converts the arguments of `fdb_transaction_get_range`: 2210 or 2000 if they are invalid.
    pub(crate) fn of(options: &RangeOptions) -> Result<Limits> {
        /// Bytes of the modes small, medium, large and serial.
        const MODE_BYTES: [usize; 4] = [256, 1_000, 4_096, 80_000];
        const ITERATION_BYTES: [usize; 10] =
            [4_096, 6_144, 9_216, 13_824, 20_736, 31_104, 46_656, 69_984, 80_000, 120_000];
        let given = |number: i32| usize::try_from(number).ok().filter(|&number| number > 0);
        // -1 means no limit too.
        let is_unlimited = |number: i32| number == 0 || number == -1;
        if options.mode == 0 && is_unlimited(options.limit) && is_unlimited(options.target_bytes) {
            return Err(Error::EXACT_MODE_WITHOUT_LIMITS);
        }
        let mode_bytes = match options.mode {
            -2 => Some(MODE_BYTES[3]),
            -1 => {
                let iteration = given(options.iteration).ok_or(Error::CLIENT_INVALID_OPERATION)?;
                Some(ITERATION_BYTES[iteration.min(ITERATION_BYTES.len()) - 1])
            }
            0 => None,
            mode @ 1..=4 => Some(MODE_BYTES[mode as usize - 1]),
            _ => return Err(Error::CLIENT_INVALID_OPERATION),
        };
        let bytes = match (given(options.target_bytes), mode_bytes) {
            (Some(target), Some(mode)) => Some(target.min(mode)),
            (target, mode) => target.or(mode),
        };
        let is_invalid = options.limit < -1 || options.target_bytes < -1;
        let rows = given(options.limit).map(|rows| rows as u32);
        Ok(Limits { rows, bytes, pair_overhead: SERVER_PAIR_OVERHEAD, is_invalid })
    }

    /// 2012 for a negative limit.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_invalid { Err(Error::RANGE_LIMITS_INVALID) } else { Ok(()) }
    }

    pub(crate) fn take(&mut self, key: &[u8], value: &[u8]) {
        self.rows = self.rows.map(|rows| rows.saturating_sub(1));
        self.bytes = self.bytes.map(|bytes| bytes.saturating_sub(self.pair_overhead + key.len() + value.len()));
    }

    /// Returns whether a limit is reached; at least one pair must have been counted.
    pub(crate) fn is_reached(&self) -> bool {
        self.rows == Some(0) || self.bytes == Some(0)
    }
}
