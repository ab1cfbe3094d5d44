//! How a range shall be read, and how much of it.

use crate::base::error::{Error, Result};

/// How a range shall be read; the fields are the arguments of `fdb_transaction_get_range`.
#[derive(Clone, Debug)]
pub struct RangeOptions {
    /// Most pairs to return; 0 is no limit; negative is refused (2012).
    pub limit: i32,
    /// Bytes to aim at; 0 is no limit but the mode's.
    pub target_bytes: i32,
    /// Streaming mode: -2 want all, -1 iterator, 0 exact, 1 small, 2 medium, 3 large, 4 serial.
    pub mode: i32,
    /// Which call of an iteration this is, from 1; counts in mode -1 only.
    pub iteration: i32,
    /// Whether the read makes no read conflict.
    pub snapshot: bool,
    /// Whether to read from the end.
    pub reverse: bool,
}

impl Default for RangeOptions {
    fn default() -> Self {
        RangeOptions { limit: 0, target_bytes: 0, mode: -2, iteration: 1, snapshot: false, reverse: false }
    }
}

/// How much of a range may still be returned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) rows: Option<u32>,
    pub(crate) bytes: Option<usize>,
    /// Bytes that count beside those of each pair.
    pub(crate) pair_overhead: usize,
    /// A limit is negative, which is reported once the transaction and the range were looked at.
    pub(crate) is_invalid: bool,
}

/// Bytes that FoundationDB's client counts for each pair beside those of its key and value.
pub(crate) const CLIENT_PAIR_OVERHEAD: usize = 8;
/// Bytes that a storage server counts for each pair of a reply beside those of its key and value.
pub(crate) const SERVER_PAIR_OVERHEAD: usize = 24;
/// The longest reply of a storage server, in bytes.
pub(crate) const REPLY_BYTES_MAX: usize = 80_000;

impl Limits {
    /// None at all.
    pub(crate) const NONE: Limits =
        Limits { rows: None, bytes: None, pair_overhead: CLIENT_PAIR_OVERHEAD, is_invalid: false };

    /// The limits that `fdb_transaction_get_range` makes of its arguments: 2210 or 2000 where they are not valid.
    pub(crate) fn of(options: &RangeOptions) -> Result<Limits> {
        /// Bytes of small, medium, large and serial.
        const MODE_BYTES: [usize; 4] = [256, 1_000, 4_096, 80_000];
        const ITERATION_BYTES: [usize; 10] =
            [4_096, 6_144, 9_216, 13_824, 20_736, 31_104, 46_656, 69_984, 80_000, 120_000];
        let given = |number: i32| usize::try_from(number).ok().filter(|&number| number > 0);
        // Beside 0, -1 is no limit as well.
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

    /// Takes one pair off.
    pub(crate) fn take(&mut self, key: &[u8], value: &[u8]) {
        self.rows = self.rows.map(|rows| rows.saturating_sub(1));
        self.bytes = self.bytes.map(|bytes| bytes.saturating_sub(self.pair_overhead + key.len() + value.len()));
    }

    /// At least one pair was taken when this is asked.
    pub(crate) fn is_reached(&self) -> bool {
        self.rows == Some(0) || self.bytes == Some(0)
    }
}
