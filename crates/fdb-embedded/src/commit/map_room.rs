//! Growth of LMDB's memory map ahead of a batch.
//!
//! LMDB writes no page past its map. The map is address space, not memory, so it starts as large as the system allows
//! (`format`). If that is little, it grows here, between two batches.

use std::sync::atomic::Ordering;

use crate::disk::store::StoreResult;
use crate::shared::core::Core;
use crate::shared::queue::CommitRequest;

/// Pages that one mutation may dirty in LMDB, apart from those of a large value: the path down the tree, splits on it,
/// and the list of freed pages.
const PAGES_A_MUTATION: usize = 12;
/// Bytes that a batch may need apart from its mutations.
const SPARE_BYTES: usize = 4 << 20;
/// The step of the map's growth, a multiple of every page size.
const STEP_BYTES: usize = 1 << 20;

/// Grows the map if a batch might not fit. If the system refuses, the batch is tried all the same: the estimate is an
/// upper bound and ignores free pages inside of the file.
///
/// # Errors
/// The old map was released and no new one could be made. The environment must not be used again.
pub(crate) fn make_room(core: &Core, requests: &[CommitRequest]) -> StoreResult<()> {
    let map_bytes = core.env.info().map_size;
    let page_bytes = core.env.unnamed_database_stat().page_size as usize;
    let mutations: usize = requests.iter().map(|request| request.mutations.len()).sum();
    let bytes: usize = requests.iter().map(CommitRequest::bytes).sum();
    let used_bytes = core.data_bytes.load(Ordering::Relaxed) as usize;
    let needed_bytes = used_bytes + 2 * bytes + mutations * PAGES_A_MUTATION * page_bytes + SPARE_BYTES;
    if needed_bytes <= map_bytes {
        return Ok(());
    }
    for wanted_bytes in [needed_bytes.max(2 * map_bytes), needed_bytes] {
        let wanted_bytes = wanted_bytes.next_multiple_of(STEP_BYTES);
        if is_free(wanted_bytes - map_bytes) {
            // SAFETY: the committer has no transaction open, and during this call no thread has a read transaction or
            // can open one.
            return Ok(core.versions.with_all_closed(|| unsafe { core.env.resize(wanted_bytes) })?);
        }
    }
    Ok(())
}

/// Returns whether the process can reserve this much more address space. LMDB releases its old map before it maps a
/// new one.
fn is_free(bytes: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a private mapping without access, unmapped at once; no other code sees it.
    unsafe {
        let place = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0);
        place != libc::MAP_FAILED && libc::munmap(place, bytes) == 0
    }
}
