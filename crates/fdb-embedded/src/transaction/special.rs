//! The special keys from `\xff\xff` on: the status, the connection, and a transaction's reads, writes and conflicts.
//!
//! FoundationDB divides them into modules, and a read must lie in one module. An unsupported module answers every read
//! with 2113. A supported module without content here has none on a cluster of one process either: nothing is excluded
//! or locked, and no configuration is shared.

use crate::base::error::{Error, Result};
use crate::base::key_space::{SYSTEM_END, key_after};
use crate::base::mutation::place_versionstamp;
use crate::base::range_set::{RangeList, RangeSet};
use crate::read::limits::{CLIENT_PAIR_OVERHEAD, Limits};
use crate::read::result::RangeResult;
use crate::read::selector::KeySelector;
use crate::shared::owner::Handle;
use crate::shared::status;
use crate::transaction::state::TransactionState;
use crate::transaction::write;

/// The end of the special keys, exclusive.
const SPECIAL_END: &[u8] = b"\xff\xff\xff";

type Range = (&'static [u8], &'static [u8]);

const CLUSTER_FILE_PATH: Range = (b"\xff\xff/cluster_file_path", b"\xff\xff/cluster_file_path\0");
const CONNECTION_STRING: Range = (b"\xff\xff/connection_string", b"\xff\xff/connection_string\0");
const STATUS: Range = (b"\xff\xff/status/json", b"\xff\xff/status/json\0");

/// The tenant management keys; a cluster has no tenants unless it is configured for them.
const TENANTS: Range = (b"\xff\xff/management/tenant/", b"\xff\xff/management/tenant0");

/// The modules of 7.3, ascending. No two of them touch.
const MODULES: [Range; 14] = [
    (b"\xff\xff/actor_lineage/", b"\xff\xff/actor_lineage0"),
    (b"\xff\xff/actor_profiler_conf/", b"\xff\xff/actor_profiler_conf0"),
    CLUSTER_FILE_PATH,
    (b"\xff\xff/cluster_id", b"\xff\xff/cluster_id\0"),
    (b"\xff\xff/configuration/", b"\xff\xff/configuration0"),
    CONNECTION_STRING,
    (b"\xff\xff/error_message", b"\xff\xff/error_message\0"),
    (b"\xff\xff/global_config/", b"\xff\xff/global_config0"),
    (b"\xff\xff/management/", b"\xff\xff/management0"),
    (b"\xff\xff/metrics/", b"\xff\xff/metrics0"),
    STATUS,
    (b"\xff\xff/tracing/", b"\xff\xff/tracing0"),
    (b"\xff\xff/transaction/", b"\xff\xff/transaction0"),
    (b"\xff\xff/worker_interfaces/", b"\xff\xff/worker_interfaces0"),
];

const UNSUPPORTED: [Range; 10] = [
    (b"\xff\xff/actor_lineage/", b"\xff\xff/actor_lineage0"),
    (b"\xff\xff/actor_profiler_conf/", b"\xff\xff/actor_profiler_conf0"),
    (b"\xff\xff/cluster_id", b"\xff\xff/cluster_id\0"),
    (b"\xff\xff/configuration/", b"\xff\xff/configuration0"),
    (b"\xff\xff/management/auto_coordinators", b"\xff\xff/management/auto_coordinators\0"),
    (b"\xff\xff/management/data_distribution/", b"\xff\xff/management/data_distribution0"),
    (b"\xff\xff/management/profiling/", b"\xff\xff/management/profiling0"),
    (b"\xff\xff/metrics/", b"\xff\xff/metrics0"),
    (b"\xff\xff/tracing/", b"\xff\xff/tracing0"),
    (b"\xff\xff/worker_interfaces/", b"\xff\xff/worker_interfaces0"),
];

const CONFLICTING_KEYS: &[u8] = b"\xff\xff/transaction/conflicting_keys/";
const READ_CONFLICT_RANGE: &[u8] = b"\xff\xff/transaction/read_conflict_range/";
const WRITE_CONFLICT_RANGE: &[u8] = b"\xff\xff/transaction/write_conflict_range/";

pub(crate) fn is_special(key: &[u8]) -> bool {
    (SYSTEM_END..SPECIAL_END).contains(&key)
}

/// Returns whether a range read is one of special keys.
pub(crate) fn is_special_range(begin: &[u8], end: &[u8]) -> bool {
    is_special(begin) && (SYSTEM_END..=SPECIAL_END).contains(&end)
}

/// Handles a write to the special keys of `[begin, end)`: 2114 without the option for it, 2115 and 2116 if no module
/// accepts it. Only tenants accept writes, and then fail the commit.
pub(crate) fn write(state: &mut TransactionState, begin: &[u8], end: &[u8]) -> Result<()> {
    if !state.options.special_key_space_writes {
        return Err(Error::SPECIAL_KEYS_WRITE_DISABLED);
    }
    if begin >= end {
        return Ok(());
    }
    let begins_in_tenants = TENANTS.0 <= begin && begin < TENANTS.1;
    let ends_in_tenants = TENANTS.0 < end && end <= TENANTS.1;
    match (begins_in_tenants, ends_in_tenants) {
        (false, false) => Err(Error::SPECIAL_KEYS_NO_WRITE_MODULE_FOUND),
        (true, true) => {
            state.writes_tenants = true;
            Ok(())
        }
        _ => Err(Error::SPECIAL_KEYS_CROSS_MODULE_CLEAR),
    }
}

/// Returns the value of a special key; the errors are those of [`get_range`].
pub(crate) fn get(state: &TransactionState, handle: &Handle, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let end = key_after(key);
    let (begin, end) = (KeySelector::first_greater_or_equal(key), KeySelector::first_greater_or_equal(&end));
    let found = get_range(state, handle, begin, end, Limits::NONE, false)?;
    Ok(found.get(0).map(|(_, value)| value.to_vec()))
}

/// Reads a range of special keys. It must lie in one module (2112) that exists and is supported (2113), unless
/// `special_key_space_relaxed` is set.
pub(crate) fn get_range(
    state: &TransactionState,
    handle: &Handle,
    begin: KeySelector<'_>,
    end: KeySelector<'_>,
    mut limits: Limits,
    reverse: bool,
) -> Result<RangeResult> {
    // The client alone answers, without a server.
    limits.pair_overhead = CLIENT_PAIR_OVERHEAD;
    let (from, to) = (begin.base(), end.base());
    let mut result = RangeResult::default();
    if begin.offset >= end.offset && from >= to {
        return Ok(result);
    }
    let boundary = boundary(&from, &to, state.options.special_key_space_relaxed)?;
    let walks = begin.offset != 1 || end.offset != 1;
    let scanned = if walks { boundary } else { (&*from, &*to) };
    check_supported(scanned, state.options.special_key_space_relaxed)?;
    let mut pairs = content(state, handle, scanned);
    pairs.sort();
    // A selector that runs off an end of the boundary means that end.
    let at = |key: &[u8], offset: i32| {
        let first = pairs.partition_point(|(other, _)| other.as_slice() < key) as i64;
        usize::try_from(first + i64::from(offset) - 1).unwrap_or(0).min(pairs.len())
    };
    let inside = at(&from, begin.offset)..at(&to, end.offset);
    let mut found: Vec<_> = pairs.get(inside).unwrap_or_default().iter().collect();
    if reverse {
        found.reverse();
    }
    for (key, value) in found {
        result.push(key, value);
        limits.take(key, value);
        if limits.is_reached() {
            result.more = true;
            break;
        }
    }
    Ok(result)
}

/// The boundary of a read: its module, or all special keys.
fn boundary(begin: &[u8], end: &[u8], is_relaxed: bool) -> Result<Range> {
    if is_relaxed {
        return Ok((SYSTEM_END, SPECIAL_END));
    }
    let next = MODULES.partition_point(|module| module.0 <= begin);
    let module = next.checked_sub(1).and_then(|at| MODULES.get(at)).filter(|module| begin < module.1);
    // The key space between two modules is unknown.
    let before = next.checked_sub(1).and_then(|at| MODULES.get(at)).map_or(SYSTEM_END, |module| module.1);
    let after = MODULES.get(next).map_or(SPECIAL_END, |module| module.0);
    let (first, last) = module.copied().unwrap_or((before, after));
    match module {
        _ if end < first || last < end => Err(Error::SPECIAL_KEYS_CROSS_MODULE_READ),
        Some(module) => Ok(*module),
        None => Err(Error::SPECIAL_KEYS_NO_MODULE_FOUND),
    }
}

/// Returns 2113 for a read that touches an unsupported module; if reads may cross modules, only for a read of nothing
/// else.
fn check_supported((begin, end): (&[u8], &[u8]), is_relaxed: bool) -> Result<()> {
    let is_refused = UNSUPPORTED.iter().any(|(from, to)| match is_relaxed {
        true => *from <= begin && end <= *to,
        false => begin < *to && *from < end,
    });
    if is_refused { Err(Error::SPECIAL_KEYS_NO_MODULE_FOUND) } else { Ok(()) }
}

fn content(state: &TransactionState, handle: &Handle, (begin, end): (&[u8], &[u8])) -> Vec<(Vec<u8>, Vec<u8>)> {
    let core = handle.core();
    let mut pairs = Vec::new();
    let is_in = |range: Range| begin < range.1 && range.0 < end;
    let mut add = |range: Range, value: Option<Vec<u8>>| pairs.extend(value.map(|value| (range.0.to_vec(), value)));
    if is_in(STATUS) {
        add(STATUS, Some(status::document(core, &handle.connection).into_bytes()));
    }
    if is_in(CONNECTION_STRING) {
        add(CONNECTION_STRING, Some(handle.connection.string(&core.dir)));
    }
    if is_in(CLUSTER_FILE_PATH) {
        let path = handle.connection.cluster_file.clone();
        add(CLUSTER_FILE_PATH, path.map(|path| path.into_os_string().into_encoded_bytes()));
    }
    if is_in((b"\xff\xff/transaction/", b"\xff\xff/transaction0")) {
        let mut conflicting = RangeSet::default();
        for (begin, end) in &state.conflicting {
            conflicting.insert(begin, end);
        }
        pairs.extend(edges(CONFLICTING_KEYS, &conflicting));
        pairs.extend(edges(READ_CONFLICT_RANGE, &state.read_conflicts));
        pairs.extend(edges(WRITE_CONFLICT_RANGE, &write_conflicts(state)));
    }
    pairs.retain(|(key, _)| begin <= key.as_slice() && key.as_slice() < end);
    pairs
}

/// The write conflicts that the commit will have. For a stamped key that is a range until the stamp is known.
fn write_conflicts(state: &TransactionState) -> RangeSet {
    let mut written = RangeSet::default();
    let mut open = RangeList::default();
    state.writes.conflicts(b"", SYSTEM_END, &mut open);
    for (begin, end) in state.outgoing.conflicts.iter().chain(open.iter()) {
        written.insert(begin, end);
    }
    for key in &state.stamped_keys {
        let (begin, end) = match state.committed {
            Some(committed) => {
                let key = place_versionstamp(key.clone(), committed.stamp);
                (key.clone(), key_after(&key))
            }
            None => write::stamp_range(state, key),
        };
        written.insert(&begin, &end);
    }
    written
}

/// Shows ranges as FoundationDB does: "1" at each begin, "0" at each end.
fn edges(prefix: &[u8], ranges: &RangeSet) -> Vec<(Vec<u8>, Vec<u8>)> {
    let edge = |key: &[u8], value: &[u8]| ([prefix, key].concat(), value.to_vec());
    ranges.in_order().iter().flat_map(|(begin, end)| [edge(begin, b"1"), edge(end, b"0")]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_lies_in_one_module() {
        let check = |begin: &[u8], end: &[u8], expected: Result<Range>| {
            assert_eq!(boundary(begin, end, false), expected, "{begin:?} {end:?}");
        };
        let (crosses, none) = (Err(Error::SPECIAL_KEYS_CROSS_MODULE_READ), Err(Error::SPECIAL_KEYS_NO_MODULE_FOUND));
        check(STATUS.0, STATUS.1, Ok(STATUS));
        check(STATUS.0, b"\xff\xff/status/json\0\0", crosses);
        check(b"\xff\xff/transaction/a", b"\xff\xff/transaction0", Ok(MODULES[12]));
        check(b"\xff\xff/a", b"\xff\xff/b", crosses);
        check(b"\xff\xff/a", b"\xff\xff/ab", none);
        check(b"\xff\xff/a", b"\xff\xff/actor_lineage/", none);
        check(b"\xff\xff/x", SPECIAL_END, none);
        check(SYSTEM_END, SPECIAL_END, crosses);
        assert_eq!(boundary(SYSTEM_END, SPECIAL_END, true), Ok((SYSTEM_END, SPECIAL_END)));
    }

    #[test]
    fn modules_ascend_and_do_not_touch() {
        assert!(MODULES.is_sorted_by(|a, b| a.1 < b.0) && UNSUPPORTED.is_sorted_by(|a, b| a.1 < b.0));
        for range in UNSUPPORTED {
            assert!(boundary(range.0, range.1, false).is_ok(), "{range:?}");
        }
    }
}
