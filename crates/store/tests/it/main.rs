//! The tests of this crate, one program.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod generated_proto;
