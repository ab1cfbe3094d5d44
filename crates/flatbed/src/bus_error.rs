//! The last words of a process that the system ends because a page of the data file cannot be read.
//!
//! LMDB reads the file through a memory map. If another program cuts the file off, or the disk fails to read a block,
//! the access ends the process with `SIGBUS`. No code can continue from there, but the operator is told the cause.

const LAST_WORDS: &[u8] =
    b"flatbed: a page of the data file cannot be read (SIGBUS): the file was cut off, or the disk fails; \
look at the system's log, keep a copy of the file, and restore a backup\n";

/// Has the process name the cause before `SIGBUS` ends it.
pub(crate) fn name_it() {
    // SAFETY: the handler calls only functions that are safe in one.
    unsafe { libc::signal(libc::SIGBUS, end as *const () as libc::sighandler_t) };
}

extern "C" fn end(_: libc::c_int) {
    // SAFETY: both calls are safe in a handler of signals, and the text is static. The access that failed is repeated
    // when this returns, and then ends the process.
    unsafe {
        let _ = libc::write(libc::STDERR_FILENO, LAST_WORDS.as_ptr().cast(), LAST_WORDS.len());
        libc::signal(libc::SIGBUS, libc::SIG_DFL);
    }
}
