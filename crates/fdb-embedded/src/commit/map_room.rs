//! Room in LMDB's memory map, made before a batch needs it.
//!
//! LMDB writes no page past its map. The map is address space, not memory, so it begins as large as the system allows
//! (`format`); where that is little, it grows here, between two batches.

use std::sync::atomic::Ordering;

use crate::disk::store::StoreResult;
use crate::shared::core::Core;
use crate::shared::queue::CommitRequest;

/// Pages that one mutation may make LMDB write, beside those of a large value: the way down the tree, splits on it, and
/// the list of pages that it frees.
const PAGES_A_MUTATION: usize = 12;
/// What a batch may need beside its mutations.
const SPARE_BYTES: usize = 4 << 20;
/// The map grows in steps of this, a multiple of every page size.
const STEP_BYTES: usize = 1 << 20;

/// Lets the map grow if a batch might not fit. Where the system refuses, the batch is tried all the same: this is an upper
/// bound, and pages that are free within the file count for nothing in it.
///
/// # Errors
/// The old map is gone and no new one could be made: the environment must not be touched again.
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
            // SAFETY: the committer has no transaction open, and within this call nobody has a read transaction, nor
            // can open one.
            return Ok(core.versions.with_all_closed(|| unsafe { core.env.resize(wanted_bytes) })?);
        }
    }
    Ok(())
}

/// Whether the process may have so much more address space. LMDB gives its old map up before it asks for the new one.
fn is_free(bytes: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a mapping of its own, without access, which nobody else knows and which is given back at once.
    unsafe {
        let place = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0);
        place != libc::MAP_FAILED && libc::munmap(place, bytes) == 0
    }
}
