//! The special keys from `\xff\xff` on that a client may read: status, the way to the cluster, and what a transaction
//! read, wrote and conflicted with.

use crate::engine::Core;
use crate::error::{Error, Result};
use crate::range_set::RangeSet;
use crate::read::{KeySelector, RangeResult};
use crate::state::{SYSTEM_END, State};

/// A part of the special key space.
struct Module {
    begin: &'static [u8],
    end: &'static [u8],
    content: Content,
}

#[derive(Clone, Copy)]
enum Content {
    Status,
    ConnectionString,
    ClusterFilePath,
    Transaction,
}

const MODULES: [Module; 4] = [
    Module {
        begin: b"\xff\xff/cluster_file_path",
        end: b"\xff\xff/cluster_file_path\0",
        content: Content::ClusterFilePath,
    },
    Module {
        begin: b"\xff\xff/connection_string",
        end: b"\xff\xff/connection_string\0",
        content: Content::ConnectionString,
    },
    Module { begin: b"\xff\xff/status/json", end: b"\xff\xff/status/json\0", content: Content::Status },
    Module { begin: b"\xff\xff/transaction/", end: b"\xff\xff/transaction0", content: Content::Transaction },
];

const CONFLICTING_KEYS: &[u8] = b"\xff\xff/transaction/conflicting_keys/";
const READ_CONFLICT_RANGE: &[u8] = b"\xff\xff/transaction/read_conflict_range/";
const WRITE_CONFLICT_RANGE: &[u8] = b"\xff\xff/transaction/write_conflict_range/";

/// Whether a key belongs here.
pub(crate) fn is_special(key: &[u8]) -> bool {
    key.starts_with(SYSTEM_END)
}

/// Why a write to a special key is refused: no module takes writes.
pub(crate) fn write_error(state: &State) -> Error {
    if state.options.special_key_space_writes {
        Error::SPECIAL_KEYS_NO_WRITE_MODULE_FOUND
    } else {
        Error::SPECIAL_KEYS_WRITE_DISABLED
    }
}

/// The value of a special key: 2113 where no module has it.
pub(crate) fn get(state: &State, core: &Core, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let module = MODULES.iter().find(|module| module.begin <= key && key < module.end);
    let module = module.ok_or(Error::SPECIAL_KEYS_NO_MODULE_FOUND)?;
    let mut pairs = content(module.content, state, core).into_iter();
    Ok(pairs.find(|(found, _)| found == key).map(|(_, value)| value))
}

/// A range of special keys. Selectors must be first-greater-or-equal or first-greater-than; the range must lie in one
/// module (2112) that exists (2113), unless `special_key_space_relaxed` is set.
pub(crate) fn get_range(
    state: &State,
    core: &Core,
    begin: KeySelector<'_>,
    end: KeySelector<'_>,
    limit: usize,
    reverse: bool,
) -> Result<RangeResult> {
    if begin.offset != 1 || end.offset != 1 {
        return Err(Error::UNSUPPORTED_OPERATION);
    }
    let (begin, end) = (begin.base(), end.base());
    let mut result = RangeResult::default();
    if begin >= end {
        return Ok(result);
    }
    if !state.options.special_key_space_relaxed {
        let module = MODULES.iter().find(|module| module.begin <= begin.as_slice() && begin.as_slice() < module.end);
        let module = module.ok_or(Error::SPECIAL_KEYS_NO_MODULE_FOUND)?;
        if module.end < end.as_slice() {
            return Err(Error(2112));
        }
    }
    let mut pairs: Vec<_> = MODULES.iter().flat_map(|module| content(module.content, state, core)).collect();
    pairs.retain(|(key, _)| begin <= *key && *key < end);
    if reverse {
        pairs.reverse();
    }
    result.more = pairs.len() > limit;
    for (key, value) in pairs.iter().take(limit) {
        result.push(key, value);
    }
    Ok(result)
}

/// All pairs of a module, ascending.
fn content(content: Content, state: &State, core: &Core) -> Vec<(Vec<u8>, Vec<u8>)> {
    let directory = || core.dir.display().to_string().into_bytes();
    match content {
        Content::Status => vec![(MODULES[2].begin.to_vec(), core.status_json().into_bytes())],
        Content::ConnectionString => {
            vec![(MODULES[1].begin.to_vec(), [b"embedded:flatbed@", &directory()[..]].concat())]
        }
        Content::ClusterFilePath => vec![(MODULES[0].begin.to_vec(), directory())],
        Content::Transaction => {
            let mut conflicting = RangeSet::default();
            for (begin, end) in &state.conflicting {
                conflicting.insert(begin, end);
            }
            let mut written = RangeSet::default();
            let open = state.writes.conflicts(b"", SYSTEM_END);
            for (begin, end) in state.outgoing.conflicts.iter().chain(&open) {
                written.insert(begin, end);
            }
            let mut pairs = edges(CONFLICTING_KEYS, &conflicting);
            pairs.extend(edges(READ_CONFLICT_RANGE, &state.read_conflicts));
            pairs.extend(edges(WRITE_CONFLICT_RANGE, &written));
            pairs
        }
    }
}

/// FoundationDB's way to show ranges: "1" at each begin, "0" at each end.
fn edges(prefix: &[u8], ranges: &RangeSet) -> Vec<(Vec<u8>, Vec<u8>)> {
    let edge = |key: &[u8], value: &[u8]| ([prefix, key].concat(), value.to_vec());
    ranges.iter().flat_map(|(begin, end)| [edge(begin, b"1"), edge(end, b"0")]).collect()
}
