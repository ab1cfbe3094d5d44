//! FoundationDB 7.3's transactions as a library: one directory, one process, LMDB below.
//!
//! An [`Engine`] is opened on a directory and hands out [`Transaction`]s. What they answer, with which error code and
//! with which conflict ranges, is what a FoundationDB cluster answers through its C API. Reads are made on the
//! caller's thread; what FoundationDB answers later (commit, watch, versionstamp, `on_error`) takes a callback.
//!
//! `design/embedded-engine.md` of the repository tells the format on disk and the threads.

mod engine;
mod error;
mod transaction;

pub use engine::{Buggify, Engine, OpenError, OpenOptions, Stats, WatchId};
pub use error::{Error, Result, error_message, error_predicate};
pub use transaction::{Done, KeySelector, PairAt, RangeOptions, RangeResult, Transaction};
