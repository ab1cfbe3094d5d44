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

mod backup;
mod base;
mod commit;
mod disk;
mod engine;
mod read;
mod shared;
mod transaction;

pub use backup::copy::CopyProgress;
pub use backup::create::{BackupError, backup};
pub use backup::restore::Restore;
pub use base::error::{Error, Result, error_message, error_predicate};
pub use disk::open_error::OpenError;
pub use engine::{Engine, OpenOptions};
pub use read::mapped::{MappedRange, Records};
pub use read::range::{KeySelector, PairAt, RangeOptions, RangeResult};
pub use shared::buggify::{Buggify, ClientBuggify};
pub use shared::connection::Connection;
pub use shared::environment::EnvironmentError;
pub use shared::simulation::{Question, SimulatedCluster, VirtualClock};
pub use shared::stats::{FaultCount, Stats};
pub use shared::timer::wake_exactly;
pub use shared::watch::WatchId;
pub use transaction::calls::{Done, Transaction};
pub use transaction::late::{Delivery, Due, Withheld};
pub use transaction::options::check_transaction_option;
pub use transaction::state::METADATA_VERSION_KEY;
