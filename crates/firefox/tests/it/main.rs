//! The tests of Firefox Sync over HTTP, one program.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "tests and their helpers")]

mod answers;
mod device;
mod hostile;
mod scripts;
mod signing;
mod support;
mod tokens;
mod torture;
mod vectors;
