//! What the process asks of the operating system before it serves.

/// Takes as many open files as the system grants this process: each connection is one, and what a login shell gives at
/// first is often 1,024. Gives the limit, or `None` where the system does not tell it.
pub(crate) fn raise_open_files() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a struct of the kind that the call fills in.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return None;
    }
    let before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the pointer is to a struct of the kind that the call reads.
    let raised = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } == 0;
    Some(if raised { limit.rlim_cur } else { before })
}

/// Memory comes in pages of 4 kB even where the allocator asks for pages of 2 MB. Each connection has buffers of which it
/// touches the beginning alone: in large pages all of them would be resident, a third as much again for each idle follower.
pub(crate) fn use_small_pages() {
    // SAFETY: sets a flag of this process and takes no pointer. An old kernel refuses it, and all goes on as it was.
    #[cfg(target_os = "linux")]
    unsafe {
        libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0);
    }
}
