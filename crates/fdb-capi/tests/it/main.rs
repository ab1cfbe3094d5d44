//! The tests of the C API in one program, because linking takes longer than compiling. Tests that need a process of
//! their own are separate programs, with the reason in each.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "tests and their helpers")]

mod common;
mod database;
mod futures;
mod mapped;
mod pending;
mod simulated;
mod threads;
