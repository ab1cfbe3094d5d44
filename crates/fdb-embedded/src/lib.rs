//! FoundationDB 7.3's transactions as a library: one directory, one process, LMDB below.
//!
//! An [`Engine`] is opened on a directory and creates [`Transaction`]s. Their answers, error codes and conflict ranges
//! are those of a FoundationDB cluster through its C API. Reads run on the caller's thread; calls that FoundationDB
//! completes later (commit, watch, versionstamp, `on_error`) take a callback.
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
//! design/embedded-engine.md describes the format on disk and the threads, docs/embedded-engine.md the differences
//! from a cluster.
//!
//! From the outside in: `engine` assembles the parts and starts the threads. `transaction` has the calls (`calls`) on
//! a transaction's `state`. `read` resolves selectors and ranges on a `view`, which lays the transaction's `write_map`
//! over a `snapshot`. Transactions reach the committer through the queue in `shared`; `commit` checks `conflict`s and
//! writes a `batch`. In `disk`, only `store` and `keys` know LMDB's records; `format` creates and opens the data file,
//! `data_file` and `scan` check it before LMDB opens it, and `directory` locks the directory. `backup` copies the data
//! file while another process serves it, and restores it. The table in design/embedded-engine.md lists the dependencies
//! between folders, and a test at the end of this file checks it.

mod backup;
mod base;
mod commit;
mod disk;
mod engine;
mod read;
mod shared;
mod transaction;

pub use backup::copy::CopyProgress;
pub use backup::create::backup;
pub use backup::error::BackupError;
pub use backup::restore::Restore;
pub use backup::verify::{CheckedFile, check_data_file};
pub use base::call::Completion;
pub use base::error::{Error, Result, error_message, error_predicate};
pub use base::key_space::METADATA_VERSION_KEY;
pub use disk::open_error::OpenError;
pub use engine::Engine;
pub use read::limits::RangeOptions;
pub use read::mapped::{MappedRange, Records};
pub use read::result::{PairAt, RangeResult};
pub use read::selector::KeySelector;
pub use shared::buggify::{Buggify, ClientBuggify};
pub use shared::connection::Connection;
pub use shared::environment::EnvironmentError;
pub use shared::observer::{KeyAccess, KeyObserver};
pub use shared::open_options::OpenOptions;
pub use shared::simulation::{CallKind, SimulatedCluster, VirtualClock};
pub use shared::stats::{FaultCount, Stats};
pub use shared::timer::wake_exactly;
pub use shared::watch::WatchId;
pub use transaction::calls::Transaction;
pub use transaction::late::{AnswerTime, Delivery, WithheldAnswer};
pub use transaction::options::check_transaction_option;

#[cfg(test)]
mod layers;

/// Mirrors the table in design/embedded-engine.md.
#[test]
fn folders_know_only_those_below_them() {
    let layers = layers::Layers::of(env!("CARGO_MANIFEST_DIR"));
    assert_eq!(layers.circles(), [""; 0]);
    let table: [(&str, &[&str]); 8] = [
        ("base", &[]),
        ("disk", &["base"]),
        ("read", &["base", "disk"]),
        ("shared", &["base", "disk", "read"]),
        ("commit", &["base", "disk", "shared"]),
        ("transaction", &["base", "read", "shared"]),
        ("backup", &["disk", "shared"]),
        ("engine", &["base", "disk", "shared", "commit", "transaction"]),
    ];
    assert_eq!(layers.beyond(&table), [""; 0]);
}
