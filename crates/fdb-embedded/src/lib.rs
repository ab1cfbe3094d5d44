//! FoundationDB 7.3's transactions as a library: one directory, one process, LMDB below.
//!
//! An [`Engine`] is opened on a directory and hands out [`Transaction`]s. What they answer, with which error code and
//! with which conflict ranges, is what a FoundationDB cluster answers through its C API. Reads are made on the
//! caller's thread; what FoundationDB answers later (commit, watch, versionstamp, `on_error`) takes a callback.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! use fdb_embedded::{Engine, OpenOptions};
//! let engine = Engine::open(dir.path(), OpenOptions::default())?;
//! let transaction = engine.transaction();
//! transaction.set(b"hello", b"world");
//! let (sender, receiver) = std::sync::mpsc::channel();
//! transaction.commit(Box::new(move |result| sender.send(result).unwrap_or(())));
//! receiver.recv()??;
//! assert_eq!(engine.transaction().get(b"hello", false)?.as_deref(), Some(&b"world"[..]));
//! # Ok(()) }
//! ```
//!
//! design/embedded-engine.md tells the format on disk, the threads, and what differs from a cluster.
//!
//! From the outside in: `transaction` has the calls, `state` what a transaction remembers and when it may be used;
//! `read` (and `mapped`) resolves selectors and ranges over a `view`, which lays the transaction's `write_map` over a
//! `snapshot`;
//! `committer` checks `conflict`s and writes a `batch`; `store` and `keys` are the only ones that know LMDB's records,
//! `format` opens and makes the data file, `data_file` looks at it before LMDB does, and `directory` locks its directory;
//! `backup` and `restore` copy it (`copy`) while another process serves it, and back.

mod atomic;
mod backup;
mod batch;
mod buggify;
mod clears;
mod commit;
mod committer;
mod conflict;
mod connection;
mod copy;
mod cost;
mod data_file;
mod directory;
mod engine;
mod environment;
mod error;
mod failure;
mod format;
mod json;
mod keys;
mod late;
mod look;
mod map_room;
mod mapped;
mod messages;
mod open_error;
mod options;
mod range_set;
mod range_size;
mod read;
mod readers;
mod restore;
mod retry;
mod simulation;
mod snapshot;
mod sorted_keys;
mod special;
mod state;
mod stats;
mod status;
mod store;
mod stored;
mod timekeeper;
mod timer;
mod transaction;
mod tree_sample;
mod tuple;
mod version_tree;
mod view;
mod watch;
mod write;
mod write_map;

pub use backup::{BackupError, backup};
pub use buggify::{Buggify, ClientBuggify};
pub use connection::Connection;
pub use copy::CopyProgress;
pub use engine::{Engine, OpenOptions};
pub use environment::EnvironmentError;
pub use error::{Error, Result, error_message, error_predicate};
pub use late::{Delivery, Due, Withheld};
pub use mapped::{MappedRange, Records};
pub use open_error::OpenError;
pub use options::check_transaction_option;
pub use read::{KeySelector, PairAt, RangeOptions, RangeResult};
pub use restore::Restore;
pub use simulation::{Question, SimulatedCluster, VirtualClock};
pub use state::METADATA_VERSION_KEY;
pub use stats::{FaultCount, Stats};
pub use timer::wake_exactly;
pub use transaction::{Done, Transaction};
pub use watch::WatchId;
