//! The tests of the library in one program.
#![allow(clippy::unwrap_used, reason = "tests and their helpers")]

mod exports;
mod loaded;
