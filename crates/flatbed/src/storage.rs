//! Opening FoundationDB: the embedded engine, or a cluster through an installed `libfdb_c`.

use std::{
    fmt,
    path::{Path, PathBuf},
    ptr::NonNull,
    sync::Arc,
    time::Duration,
};

use fdb_capi::cluster_file::{self, ClusterFile, ClusterFileError};
use fdb_embedded::{Buggify, EnvironmentError, OpenError, OpenOptions, SimulatedCluster, Stats};
use flatbed_couch::{MetricSources, StorageHealth};
use flatbed_http::Listen;
use flatbed_metrics::{Family, Kind, Value};
use foundationdb::{
    Database, FdbError,
    api::{FdbApiBuilder, NetworkAutoStop},
    options::TransactionOption,
};
use foundationdb_sys::backend::{self, Backend, LoadError};

use crate::data_directory;
use crate::settings::{Settings, StorageChoice};

/// The time that a cluster has to answer at the start.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// FoundationDB's error `transaction_timed_out`.
const TIMED_OUT: i32 = 1031;

/// The reason why the storage cannot be opened. Each message stands alone and says what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StorageError {
    /// The cluster file cannot be used.
    #[error("{0}: give a cluster file with --cluster-file, or a directory for the embedded engine with --data-dir")]
    ClusterFile(#[from] ClusterFileError),
    /// The client library for a cluster is missing or does not fit.
    #[error("libfdb_c cannot be used: {0}")]
    Library(#[from] LoadError),
    /// The data directory is in use.
    #[error("{0}: stop that process, or give another directory with --data-dir")]
    InUse(OpenError),
    /// The data directory cannot be opened for another reason.
    #[error(transparent)]
    Directory(OpenError),
    /// An invalid setting for tests.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// The cluster did not answer within [`ANSWER_WAIT`].
    #[error(
        "the cluster of {} does not answer within {} s: see what fdbcli -C {} --exec status says",
        .0.display(), ANSWER_WAIT.as_secs(), .0.display()
    )]
    Unreachable(PathBuf),
    /// Any other error of FoundationDB's.
    #[error("FoundationDB refuses to start: {0}")]
    Fdb(#[from] FdbError),
    /// The binding accepts only UTF-8 paths.
    #[error("the path {0:?} is not UTF-8")]
    Path(PathBuf),
}

/// An open database, with the network thread of FoundationDB's client.
pub(crate) struct Storage {
    database: Arc<Database>,
    network: NetworkAutoStop,
    description: String,
    /// The embedded engine's directory; `None` on a cluster.
    directory: Option<PathBuf>,
    health: StorageHealth,
    figures: MetricSources,
}

impl Storage {
    /// Opens the storage of the settings, once in a process.
    ///
    /// # Errors
    /// [`StorageError`], also for a cluster that does not answer within 10 s.
    pub(crate) async fn open(settings: &Settings) -> Result<Storage, StorageError> {
        match &settings.storage {
            StorageChoice::DataDirectory(directory) => Storage::embedded(directory),
            StorageChoice::ClusterFile(path) => match cluster_file::read(path)? {
                ClusterFile::Embedded { directory, .. } => Storage::embedded(&directory),
                ClusterFile::Cluster => Storage::cluster(path, settings.fdb_library.clone()).await,
            },
        }
    }

    /// Opens the embedded engine in a directory.
    ///
    /// # Errors
    /// [`StorageError`].
    pub(crate) fn embedded(directory: &Path) -> Result<Storage, StorageError> {
        let options = OpenOptions::from_env()?;
        if let Some(Buggify { probability, seed, short_pages, .. }) = options.buggify {
            tracing::warn!(
                probability,
                seed,
                short_pages,
                "FLATBED_FDB_BUGGIFY is set: the engine injects faults, for tests only"
            );
        }
        if let Some(SimulatedCluster { read, read_version, commit, has_server, .. }) = &options.simulated {
            tracing::warn!(
                ?read,
                ?read_version,
                ?commit,
                server = has_server,
                "FLATBED_FDB_LATENCY_US or FLATBED_FDB_SERVER is set: the engine answers as late as a cluster, for tests only"
            );
        }
        let has_faults = options.buggify.is_some();
        backend::select(Backend::Embedded)?;
        // Before the network, which a process can start only once: the caller may open another directory after a
        // failure of this one.
        let pointer = fdb_capi::open_embedded(directory, options).map_err(|error| match error {
            OpenError::InUse(_) => StorageError::InUse(error),
            error => StorageError::Directory(error),
        })?;
        let pointer = NonNull::new(pointer).ok_or_else(|| StorageError::Path(directory.to_owned()))?;
        let network = boot()?;
        // The record of a server that was killed. Commands send passwords to a recorded server while another process
        // has the directory open, which need not be a server.
        let _ = data_directory::forget_server(directory);
        let health = StorageHealth::new("embedded");
        // SAFETY: the pointer was just made, and is given away only below.
        let engine = unsafe { fdb_capi::engine_of(pointer.as_ptr()) };
        engine.on_failure({
            let health = health.clone();
            move |reason| {
                tracing::error!(reason, "the storage has failed: writes are refused until a restart, reads continue");
                health.fail(reason);
            }
        });
        let figures = MetricSources::default().and({
            let engine = engine.clone();
            move || engine_figures(&engine.stats(), has_faults)
        });
        let figures = figures.and({
            let directory = directory.to_owned();
            move || data_directory::figures(&directory)
        });
        // SAFETY: the pointer was just made by the backend that answers in this process, and has this one owner.
        let database = unsafe { Database::new_from_pointer(pointer) };
        let description = format!("the embedded engine in {}", directory.display());
        let directory = Some(directory.to_owned());
        Ok(Storage { database: Arc::new(database), network, description, directory, health, figures })
    }

    async fn cluster(path: &Path, library: Option<PathBuf>) -> Result<Storage, StorageError> {
        let text = path.to_str().ok_or_else(|| StorageError::Path(path.to_owned()))?;
        backend::select(Backend::Library(library))?;
        let network = boot()?;
        let database = Database::from_path(text)?;
        let transaction = database.create_trx()?;
        let wait_ms = i32::try_from(ANSWER_WAIT.as_millis()).unwrap_or(i32::MAX);
        transaction.set_option(TransactionOption::Timeout(wait_ms))?;
        match transaction.get_read_version().await {
            Err(error) if error.code() == TIMED_OUT => return Err(StorageError::Unreachable(path.to_owned())),
            answer => answer?,
        };
        drop(transaction);
        let description = format!("the cluster of {}", path.display());
        // The health of a cluster is seen only by a request.
        let (health, figures) = (StorageHealth::new("cluster"), MetricSources::default());
        Ok(Storage { database: Arc::new(database), network, description, directory: None, health, figures })
    }

    /// Returns the database, which must be dropped everywhere before [`Storage::close`].
    pub(crate) fn database(&self) -> Arc<Database> {
        self.database.clone()
    }

    /// Returns the health of the engine's disk.
    pub(crate) fn health(&self) -> StorageHealth {
        self.health.clone()
    }

    /// Returns the engine's metrics, which must be dropped as the database is.
    pub(crate) fn figures(&self) -> MetricSources {
        self.figures.clone()
    }

    /// Records the server's address in the embedded engine's directory. Without it, commands cannot ask the server by
    /// themselves, so a failure is only logged.
    pub(crate) fn record_server(&self, listening: &[Listen]) {
        let recorded = self.directory.as_deref().map(|directory| data_directory::record_server(directory, listening));
        if let Some(Err(error)) = recorded {
            tracing::warn!(%error, "the server's address cannot be written into the data directory");
        }
    }

    /// Removes the record.
    pub(crate) fn forget_server(&self) {
        // A record that stays names a server that no longer has the directory open, so no command reads it.
        let _ = self.directory.as_deref().map(data_directory::forget_server);
    }

    /// Closes the database and stops the network thread.
    pub(crate) fn close(self) {
        drop((self.database, self.figures));
        drop(self.network);
    }
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.description)
    }
}

/// Returns the embedded engine's metrics; a cluster has its own (`fdbcli --exec status`).
fn engine_figures(stats: &Stats, has_faults: bool) -> Vec<Family> {
    let mut families: Vec<Family> = vec![
        Family::gauge("flatbed_engine_map_bytes", "Address space that the data file has.", stats.map_bytes as f64),
        Family::gauge("flatbed_engine_data_bytes", "Bytes of the data file in use.", stats.data_bytes as f64),
        Family::gauge(
            "flatbed_engine_snapshots",
            "States of the database that can be read now.",
            stats.open_snapshots as f64,
        ),
        Family::gauge("flatbed_engine_watches", "Watches that wait.", stats.open_watches as f64),
        Family::gauge(
            "flatbed_engine_conflict_ranges",
            "Writes of recent commits kept for the conflicts of others.",
            stats.conflict_ranges as f64,
        ),
        Family::gauge(
            "flatbed_engine_pending_clears",
            "Cleared ranges whose records are still being removed.",
            stats.pending_clears as f64,
        ),
        Family::counter("flatbed_engine_commits", "Commits that wrote and succeeded.", stats.commits),
        Family::counter(
            "flatbed_engine_batches",
            "Transactions of the data file that commits were written in, each with a sync.",
            stats.batches,
        ),
        Family::counter("flatbed_engine_mutations", "Mutations in commits.", stats.mutations),
        Family::counter(
            "flatbed_engine_mutation_bytes",
            "Bytes of keys and values in mutations.",
            stats.mutation_bytes,
        ),
        Family::counter("flatbed_engine_reads", "Reads of single keys.", stats.reads),
        Family::counter("flatbed_engine_range_reads", "Range reads.", stats.range_reads),
        Family::counter("flatbed_engine_keys_read", "Pairs that range reads returned.", stats.keys_read),
        Family::counter("flatbed_engine_read_bytes", "Bytes of keys and values that reads returned.", stats.bytes_read),
        Family::counter(
            "flatbed_engine_snapshots_opened",
            "Read transactions of the data file opened.",
            stats.snapshots_opened,
        ),
    ];
    if has_faults {
        let help = "Faults that FLATBED_FDB_BUGGIFY injected, by kind.";
        let mut faults = Family::new("flatbed_faults_injected", help, Kind::Counter);
        for fault in &stats.faults {
            faults.push(&[("kind", fault.kind.into())], Value::Count(fault.count));
        }
        families.push(faults);
    }
    families
}

fn boot() -> Result<NetworkAutoStop, FdbError> {
    let network = FdbApiBuilder::default().build()?;
    // SAFETY: the guard is dropped before the process ends: by `Storage::close`, or on the way out with an error. Where
    // the process exits without that, foundationdb-sys stops the network. A second signal runs nothing of the
    // library's.
    unsafe { network.boot() }
}
