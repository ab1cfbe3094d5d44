//! Lines on stdout. If they cannot be written, because the reader has gone or the disk is full, the work continues;
//! `println!` would panic.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// True if a part of the output was lost. There is one stdout in a process.
static IS_LOST: AtomicBool = AtomicBool::new(false);

/// Writes a line to stdout, as `println!` does.
macro_rules! say {
    ($($text:tt)*) => {
        $crate::output::write(format_args!("{}\n", format_args!($($text)*)))
    };
}
pub(crate) use say;

/// Writes a text to stdout. Reports the first failure on stderr, unless the reader has closed its end, as `head` does.
pub(crate) fn write(text: Arguments<'_>) {
    if let Err(error) = io::stdout().lock().write_fmt(text)
        && error.kind() != ErrorKind::BrokenPipe
        && !IS_LOST.swap(true, Ordering::Relaxed)
    {
        let _ = writeln!(io::stderr(), "flatbed: stdout cannot be written: {error}");
    }
}

/// Returns whether a part of the output was lost.
pub(crate) fn is_lost() -> bool {
    IS_LOST.load(Ordering::Relaxed)
}
