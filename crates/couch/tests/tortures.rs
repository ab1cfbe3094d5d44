//! The tortures of the HTTP API, one program: linking takes longer than compiling them.
//!
//! They take turns: both ends of their connections are in this process, several tortures at once would need more than the
//! 1,024 descriptors that a process often may have, and each is to have the processors for itself.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "tests and their helpers")]
#![allow(
    clippy::duplicate_mod,
    reason = "those of rights and of channels share some modules, each with its own `World`"
)]

mod channels_torture;
mod feeds_torture;
mod queries_torture;
mod rights_torture;
#[path = "it/support.rs"]
#[allow(dead_code, reason = "the tests of `it` use the rest")]
mod support;

/// Whose turn it is.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
