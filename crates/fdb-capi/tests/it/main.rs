//! The tests of the C API, one program: linking takes longer than compiling them. What needs a process of its own
//! is a program beside this one and says why.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "tests and their helpers")]

mod common;
mod database;
mod futures;
mod mapped;
mod pending;
mod simulated;
mod threads;
