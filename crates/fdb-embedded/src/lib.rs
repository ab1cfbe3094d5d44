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
//! From the outside in: `engine` puts the parts together and starts the threads. `transaction` has the calls (`calls`)
//! over what a transaction remembers (`state`); `read` resolves selectors and ranges over a `view`, which lays the
//! transaction's `write_map` over a `snapshot`. Transactions and the committer know each other by the queue in `shared`;
//! `commit` checks `conflict`s and writes a `batch`. In `disk`, `store` and `keys` are the only ones that know LMDB's
//! records, `format` opens and makes the data file, `data_file` looks at it before LMDB does, and `directory` locks its
//! directory. `backup` copies it while another process serves it, and back. design/embedded-engine.md says which folder
//! knows which, and a test at the end of this file holds it.

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
pub use base::call::Done;
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
pub use shared::open_options::OpenOptions;
pub use shared::simulation::{Question, SimulatedCluster, VirtualClock};
pub use shared::stats::{FaultCount, Stats};
pub use shared::timer::wake_exactly;
pub use shared::watch::WatchId;
pub use transaction::calls::Transaction;
pub use transaction::late::{Delivery, Due, Withheld};
pub use transaction::options::check_transaction_option;

#[cfg(test)]
mod layers;

/// The table in design/embedded-engine.md.
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
