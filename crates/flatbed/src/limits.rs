//! The process's requests to the operating system before it serves.

/// Raises the limit of open files to the hard limit: each connection needs one, and a login shell often sets 1,024.
/// Returns the limit, or `None` if the system does not report it.
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

/// Uses pages of 4 kB even where the allocator asks for pages of 2 MB. A connection touches only the start of its
/// buffers: with large pages the whole buffers would be resident, a third more memory for each idle follower.
pub(crate) fn use_small_pages() {
    // SAFETY: sets a flag of this process and takes no pointer. An old kernel refuses it, which changes nothing.
    #[cfg(target_os = "linux")]
    unsafe {
        libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0);
    }
}
