//! The writes of a transaction: into its write map, or directly to the commit without read-your-writes.

use std::sync::Arc;

use crate::base::atomic::{AtomicOp, VALUE_BYTES_MAX};
use crate::base::error::{Error, Result};
use crate::base::key_space::{KeyRange, METADATA_VERSION_KEY, key_after};
use crate::base::mutation::Mutation;
use crate::read::write_map::Op;
use crate::shared::core::Core;
use crate::transaction::state::{TransactionState, WrittenValue};

/// The only operand that may set `\xff/metadataVersion`: ten bytes of stamp and their offset, all zero.
const METADATA_VERSION_OPERAND: [u8; 14] = [0; 14];

/// Sets a key; the errors are those of [`crate::Transaction::set`].
pub(crate) fn set(
    state: &mut TransactionState,
    core: &Arc<Core>,
    key: &[u8],
    value: &[u8],
    conflicts: bool,
) -> Result<()> {
    check_write(state, key, value)?;
    state.count_mutation(key.len(), value.len(), conflicts.then_some(2 * key.len() + 1));
    if state.options.read_your_writes_disabled {
        state.outgoing.mutations.push(Mutation::Set(key.to_vec(), value.to_vec()));
        if conflicts {
            state.outgoing.conflicts.push_key(key);
        }
        return Ok(());
    }
    state.writes.mutate(key.to_vec(), Op::Set(Some(value.to_vec())), conflicts);
    if !state.watches.is_empty() {
        state.trigger_watches(core, key, &key_after(key), WrittenValue::Value(value));
    }
    Ok(())
}

fn check_write(state: &TransactionState, key: &[u8], value: &[u8]) -> Result<()> {
    if key >= state.max_write_key() {
        Err(Error::KEY_OUTSIDE_LEGAL_RANGE)
    } else if key.len() > state.key_bytes_max(key) {
        Err(Error::KEY_TOO_LARGE)
    } else if value.len() > VALUE_BYTES_MAX {
        Err(Error::VALUE_TOO_LARGE)
    } else {
        Ok(())
    }
}

/// Removes `[begin, end)`, which must be legal and not empty.
pub(crate) fn clear(state: &mut TransactionState, core: &Arc<Core>, begin: &[u8], end: &[u8], conflicts: bool) {
    let bytes = begin.len() + end.len();
    state.count_mutation(begin.len(), end.len(), conflicts.then_some(bytes));
    if state.options.read_your_writes_disabled {
        state.outgoing.mutations.push(Mutation::Clear((begin.to_vec(), end.to_vec())));
        if conflicts {
            state.outgoing.conflicts.push(begin, end);
        }
        return;
    }
    state.writes.clear(begin, end, conflicts);
    state.trigger_watches(core, begin, end, WrittenValue::Cleared);
}

/// Applies an atomic operation by its number; the errors are those of [`crate::Transaction::atomic_op`].
pub(crate) fn atomic_op(
    state: &mut TransactionState,
    core: &Arc<Core>,
    key: &[u8],
    operand: &[u8],
    code: i32,
    conflicts: bool,
) -> Result<()> {
    /// FDBMutationType numbers.
    const STAMP_KEY: i32 = 14;
    const STAMP_VALUE: i32 = 15;
    if key == METADATA_VERSION_KEY {
        if code != STAMP_VALUE || operand != METADATA_VERSION_OPERAND {
            return Err(Error::CLIENT_INVALID_OPERATION);
        }
    } else if key >= state.max_write_key() {
        return Err(Error::KEY_OUTSIDE_LEGAL_RANGE);
    }
    let op = match (code, AtomicOp::from_code(code)) {
        (STAMP_KEY, _) => Op::StampKey(operand.to_vec()),
        (STAMP_VALUE, _) => Op::StampValue(operand.to_vec()),
        (_, Some(op)) => Op::Atomic(op, operand.to_vec()),
        (_, None) => return Err(Error::INVALID_MUTATION_TYPE),
    };
    if key.len() > state.key_bytes_max(key) {
        return Err(Error::KEY_TOO_LARGE);
    }
    if operand.len() > VALUE_BYTES_MAX {
        return Err(Error::VALUE_TOO_LARGE);
    }
    // Only the committer knows the final key of a stamped key, and it adds the conflict.
    let conflicts = conflicts && code != STAMP_KEY;
    let mut stored_key = key.to_vec();
    match code {
        STAMP_KEY => {
            let place = stamp_place(key)?;
            let read_version = state.known_read_version();
            let (begin, end) = stamp_range_at(key, place, read_version, state.max_read_key());
            state.stamped_keys.push(key.to_vec());
            if !state.options.read_your_writes_disabled {
                // Earlier writes in the range stay before the stamped key.
                let TransactionState { outgoing, writes, .. } = state;
                outgoing.take_range(writes, &begin, &end);
                if begin < end {
                    state.writes.make_unreadable(&begin, &end);
                }
            }
            stored_key[place..place + 10].copy_from_slice(&least_stamp(read_version));
        }
        STAMP_VALUE => {
            stamp_place(operand)?;
        }
        _ => {}
    }
    state.count_mutation(key.len(), operand.len(), conflicts.then_some(2 * key.len() + 1));
    if state.options.read_your_writes_disabled {
        state.outgoing.mutations.push(match op {
            Op::StampKey(value) => Mutation::StampKey(stored_key, value),
            Op::StampValue(value) => Mutation::StampValue(stored_key, value),
            Op::Atomic(op, operand) => Mutation::Atomic(op, stored_key, operand),
            Op::Set(value) => Mutation::Set(stored_key, value.unwrap_or_default()),
        });
        if conflicts {
            state.outgoing.conflicts.push_key(key);
        }
        return Ok(());
    }
    state.trigger_watches(core, &stored_key, &key_after(&stored_key), WrittenValue::Unknown);
    state.writes.mutate(stored_key, op, conflicts);
    Ok(())
}

/// Returns the offset of a versionstamp from the last four bytes (little-endian): 2000 if ten bytes do not fit there.
fn stamp_place(bytes: &[u8]) -> Result<usize> {
    let place = bytes.last_chunk::<4>().map(|place| i32::from_le_bytes(*place));
    let place = place.and_then(|place| usize::try_from(place).ok()).ok_or(Error::CLIENT_INVALID_OPERATION)?;
    if place + 10 > bytes.len() - 4 { Err(Error::CLIENT_INVALID_OPERATION) } else { Ok(place) }
}

fn least_stamp(read_version: i64) -> [u8; 10] {
    let mut stamp = [0; 10];
    stamp[..8].copy_from_slice(&read_version.to_be_bytes());
    stamp
}

/// Returns the range of keys that a key with a versionstamp may become; empty if the stamp does not fit.
pub(crate) fn stamp_range(state: &TransactionState, key: &[u8]) -> KeyRange {
    let read_version = state.known_read_version();
    let place = stamp_place(key).ok();
    place.map(|place| stamp_range_at(key, place, read_version, state.max_read_key())).unwrap_or_default()
}

fn stamp_range_at(key: &[u8], place: usize, read_version: i64, max_key: &[u8]) -> KeyRange {
    let mut begin = key[..key.len() - 4].to_vec();
    let mut end = begin.clone();
    begin[place..place + 10].copy_from_slice(&least_stamp(read_version));
    end[place..place + 10].fill(0xff);
    end.push(0);
    if end.as_slice() > max_key {
        end = max_key.to_vec();
    }
    (begin, end)
}
