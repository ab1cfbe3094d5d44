//! The torture tests of the HTTP API in one program, because linking takes longer than compiling.
//!
//! They run one at a time: both ends of their connections are in this process, and several at once would exceed the
//! usual limit of 1,024 file descriptors and compete for the processors.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "tests and their helpers")]
#![allow(
    clippy::duplicate_mod,
    reason = "those of rights and of channels share some modules, each with its own `World`"
)]

mod channels_torture;
mod feeds_torture;
mod queries_torture;
mod rights_torture;

use flatbed_scenarios as support;

/// Locked by the running torture test.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
