//! The options of a transaction, by FoundationDB's numbers.

use std::time::Duration;

use crate::base::error::{Error, Result};

/// The default of the longest delay of `on_error`.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);
/// The default size limit of a transaction, in bytes of its mutations and conflict ranges.
const SIZE_BYTES_MAX: i64 = 10_000_000;
/// The most tags of a transaction, and their greatest length.
const TAGS_MAX: usize = 5;
const TAG_BYTES_MAX: usize = 255;
/// The greatest length of a transaction's name in logs.
const IDENTIFIER_BYTES_MAX: usize = 100;
/// Bytes of the parent of a transaction's span.
const SPAN_BYTES: usize = 33;

#[derive(Clone, Debug)]
pub(crate) struct TransactionOptions {
    pub(crate) read_your_writes_disabled: bool,
    pub(crate) next_write_no_conflict: bool,
    pub(crate) may_read_system_keys: bool,
    pub(crate) may_write_system_keys: bool,
    /// True if keys may have the length of a tenant's key with its prefix.
    pub(crate) has_raw_access: bool,
    pub(crate) is_lock_aware: bool,
    /// True for a transaction that may read a locked database but not write to it.
    pub(crate) is_read_only: bool,
    /// `None`: no timeout. Measured from the creation or the last reset of the transaction.
    pub(crate) timeout: Option<Duration>,
    /// `None`: no limit.
    pub(crate) retry_limit: Option<u32>,
    pub(crate) max_retry_delay: Duration,
    pub(crate) size_bytes_max: i64,
    /// Snapshot reads see the transaction's own writes while this is above 0.
    pub(crate) snapshot_ryw: i32,
    pub(crate) used_during_commit_protection_disabled: bool,
    pub(crate) report_conflicting_keys: bool,
    pub(crate) special_key_space_relaxed: bool,
    pub(crate) special_key_space_writes: bool,
    pub(crate) bypass_unreadable: bool,
    /// True for low priority, which affects only injected faults.
    pub(crate) is_batch: bool,
    tags: Vec<Vec<u8>>,
    /// The transaction's name in logs; the engine writes none.
    identifier: Option<Vec<u8>>,
}

impl Default for TransactionOptions {
    fn default() -> Self {
        TransactionOptions {
            read_your_writes_disabled: false,
            next_write_no_conflict: false,
            may_read_system_keys: false,
            may_write_system_keys: false,
            has_raw_access: false,
            is_lock_aware: false,
            is_read_only: false,
            timeout: None,
            retry_limit: None,
            max_retry_delay: MAX_RETRY_DELAY,
            size_bytes_max: SIZE_BYTES_MAX,
            snapshot_ryw: 1,
            used_during_commit_protection_disabled: false,
            report_conflicting_keys: false,
            special_key_space_relaxed: false,
            special_key_space_writes: false,
            bypass_unreadable: false,
            is_batch: false,
            tags: Vec::new(),
            identifier: None,
        }
    }
}

/// Returns whether 7.3 has a transaction option of this number.
pub(crate) fn is_known(code: u32) -> bool {
    matches!(
        code,
        10 | 20 | 21 | 23 | 30 | 40 | 50..=52 | 110 | 120 | 130 | 200 | 201 | 300..=304 | 400..=406 | 500..=511
            | 600 | 601 | 700..=702 | 710..=714 | 800 | 801 | 900 | 1000 | 1100..=1102 | 2000
    )
}

/// Returns whether `on_error` keeps the option (`reset` does not).
pub(crate) fn is_persistent(code: u32) -> bool {
    matches!(code, 500..=502 | 2000)
}

/// Checks whether an option accepts a value.
///
/// # Errors
/// 2007 for an unknown number, else the errors that [`crate::Transaction::set_option`] keeps.
pub fn check_transaction_option(code: u32, value: Option<&[u8]>) -> Result<()> {
    TransactionOptions::default().set(code, value)
}

/// Returns the transaction option that a database option presets: 2007 if it presets none.
pub(crate) fn default_for(database_option: u32) -> Result<u32> {
    Ok(match database_option {
        500..=503 => database_option,
        504 => 20,
        505 => 23,
        506 => 505,
        405 => 405,
        700 => 1100,
        701 => 701,
        702 => 712,
        26 => 600,
        27 => 601,
        _ => return Err(Error::INVALID_OPTION),
    })
}

impl TransactionOptions {
    /// Sets an option: 2007 for an unknown number, 2006 for a value of the wrong shape or out of its bounds, and the
    /// errors of single options.
    pub(crate) fn set(&mut self, code: u32, value: Option<&[u8]>) -> Result<()> {
        let int_max = i64::from(i32::MAX);
        match code {
            30 => flag(value, &mut self.next_write_no_conflict)?,
            51 => flag(value, &mut self.read_your_writes_disabled)?,
            301 => {
                flag(value, &mut self.may_read_system_keys)?;
                (self.may_write_system_keys, self.has_raw_access) = (true, true);
            }
            302 => {
                flag(value, &mut self.may_read_system_keys)?;
                self.has_raw_access = true;
            }
            303 => flag(value, &mut self.has_raw_access)?,
            402 => {
                self.set(403, value)?;
                self.set(404, None)?;
            }
            403 => self.identify(present(value)?)?,
            404 => {
                no_value(value)?;
                self.identifier.as_ref().map(|_| ()).ok_or(Error::CLIENT_INVALID_OPERATION)?;
            }
            405 => {
                integer(value, -1, int_max)
                    .and_then(|length| if length == 0 { Err(Error::INVALID_OPTION_VALUE) } else { Ok(()) })?;
            }
            500 => {
                let timeout_ms = integer(value, 0, int_max)?;
                self.timeout = (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms.unsigned_abs()));
            }
            501 => self.retry_limit = u32::try_from(integer(value, -1, int_max)?).ok(),
            502 => self.max_retry_delay = Duration::from_millis(integer(value, 0, int_max)?.unsigned_abs()),
            503 => self.size_bytes_max = integer(value, 32, SIZE_BYTES_MAX)?,
            504 if !(16..256).contains(&present(value)?.len()) => return Err(Error::INVALID_OPTION),
            600 => {
                no_value(value)?;
                self.snapshot_ryw = self.snapshot_ryw.saturating_add(1);
            }
            601 => {
                no_value(value)?;
                self.snapshot_ryw = self.snapshot_ryw.saturating_sub(1);
            }
            700 => {
                flag(value, &mut self.is_lock_aware)?;
                self.is_read_only = false;
            }
            701 => flag(value, &mut self.used_during_commit_protection_disabled)?,
            702 => {
                no_value(value)?;
                if !std::mem::replace(&mut self.is_lock_aware, true) {
                    self.is_read_only = true;
                }
            }
            712 => flag(value, &mut self.report_conflicting_keys)?,
            713 => flag(value, &mut self.special_key_space_relaxed)?,
            714 => flag(value, &mut self.special_key_space_writes)?,
            800 | 801 => self.tag(present(value)?)?,
            900 if present(value)?.len() != SPAN_BYTES => return Err(Error::INVALID_OPTION_VALUE),
            1100 => flag(value, &mut self.bypass_unreadable)?,
            200 => {
                no_value(value)?;
                self.is_batch = false;
            }
            201 => flag(value, &mut self.is_batch)?,
            // Tracing, locality and the like have no effect in one process.
            10 | 20 | 23 | 40 | 50 | 52 | 300 | 400 | 406 | 505 | 710 | 711 | 1000 | 1101 | 1102 => {
                no_value(value)?;
            }
            code if is_known(code) => {}
            _ => return Err(Error::INVALID_OPTION),
        }
        Ok(())
    }

    pub(crate) fn has_tags(&self) -> bool {
        !self.tags.is_empty()
    }

    fn identify(&mut self, identifier: &[u8]) -> Result<()> {
        if identifier.is_empty() || identifier.len() > IDENTIFIER_BYTES_MAX {
            return Err(Error::INVALID_OPTION_VALUE);
        }
        match &self.identifier {
            Some(other) if other != identifier => Err(Error::CLIENT_INVALID_OPERATION),
            _ => {
                self.identifier = Some(identifier.to_vec());
                Ok(())
            }
        }
    }

    fn tag(&mut self, tag: &[u8]) -> Result<()> {
        if tag.len() > TAG_BYTES_MAX {
            return Err(Error::TAG_TOO_LONG);
        }
        if self.tags.len() >= TAGS_MAX {
            return Err(Error::TOO_MANY_TAGS);
        }
        if !self.tags.iter().any(|other| other == tag) {
            self.tags.push(tag.to_vec());
        }
        Ok(())
    }
}

fn present(value: Option<&[u8]>) -> Result<&[u8]> {
    value.ok_or(Error::INVALID_OPTION_VALUE)
}

fn no_value(value: Option<&[u8]>) -> Result<()> {
    if value.is_some_and(|value| !value.is_empty()) { Err(Error::INVALID_OPTION_VALUE) } else { Ok(()) }
}

fn flag(value: Option<&[u8]>, flag: &mut bool) -> Result<()> {
    no_value(value)?;
    *flag = true;
    Ok(())
}

/// Parses a value of eight bytes, little-endian, within bounds.
fn integer(value: Option<&[u8]>, min: i64, max: i64) -> Result<i64> {
    let bytes: [u8; 8] = value.and_then(|value| value.try_into().ok()).ok_or(Error::INVALID_OPTION_VALUE)?;
    let number = i64::from_le_bytes(bytes);
    if (min..=max).contains(&number) { Ok(number) } else { Err(Error::INVALID_OPTION_VALUE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked() {
        let mut options = TransactionOptions::default();
        let mut check = |code, value: Option<&[u8]>, expected: Result<()>| {
            assert_eq!(options.set(code, value), expected, "{code} {value:?}");
        };
        check(500, Some(&100i64.to_le_bytes()), Ok(()));
        check(500, Some(&(-1i64).to_le_bytes()), Err(Error::INVALID_OPTION_VALUE));
        check(500, Some(&[1]), Err(Error::INVALID_OPTION_VALUE));
        check(500, None, Err(Error::INVALID_OPTION_VALUE));
        check(501, Some(&(-1i64).to_le_bytes()), Ok(()));
        check(503, Some(&31i64.to_le_bytes()), Err(Error::INVALID_OPTION_VALUE));
        check(30, Some(b"x"), Err(Error::INVALID_OPTION_VALUE));
        check(200, None, Ok(()));
        check(200, Some(b"x"), Err(Error::INVALID_OPTION_VALUE));
        check(404, None, Err(Error::CLIENT_INVALID_OPERATION));
        check(403, Some(&[b'x'; 101]), Err(Error::INVALID_OPTION_VALUE));
        check(402, Some(b"name"), Ok(()));
        check(403, Some(b"other"), Err(Error::CLIENT_INVALID_OPERATION));
        check(405, Some(&0i64.to_le_bytes()), Err(Error::INVALID_OPTION_VALUE));
        check(504, Some(&[0; 15]), Err(Error::INVALID_OPTION));
        check(504, Some(&[0; 16]), Ok(()));
        check(800, Some(&[0; 256]), Err(Error::TAG_TOO_LONG));
        for tag in [b"a", b"a", b"b", b"c", b"d", b"e"] {
            check(800, Some(tag), Ok(()));
        }
        check(801, Some(b"a"), Err(Error::TOO_MANY_TAGS));
        check(900, Some(&[0; 32]), Err(Error::INVALID_OPTION_VALUE));
        check(9_999, None, Err(Error::INVALID_OPTION));
        assert_eq!(options.timeout, Some(Duration::from_millis(100)));
        assert_eq!(options.retry_limit, None);
    }
}
