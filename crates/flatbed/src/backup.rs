//! `flatbed backup`: a copy of the embedded engine's database, also while a server has it open.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use fdb_capi::cluster_file::{self, ClusterFile, ClusterFileError};
use fdb_embedded::{BackupError, CopyProgress};

use crate::{
    data_directory,
    output::say,
    progress::{Progress, Unit, megabytes},
    settings::{Settings, StorageChoice},
    storage::StorageError,
};

/// The reason why a copy or a restore failed. Each message stands alone and says what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyError {
    /// The data are on a cluster, which has its own backup.
    #[error(
        "{} names a FoundationDB cluster: use FoundationDB's own fdbbackup and fdbrestore, \
         or name the embedded engine's directory with --data-dir",
        .0.display()
    )]
    Cluster(PathBuf),
    /// The cluster file cannot be used.
    #[error("{0}: give the embedded engine's directory with --data-dir")]
    ClusterFile(#[from] ClusterFileError),
    #[error(transparent)]
    Copy(#[from] BackupError),
    /// The copy does not open.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The data in the copy cannot be used.
    #[error("the copy cannot be used: {0}")]
    Layer(#[from] flatbed_layer::Error),
}

/// Copies the database to `out/data.mdb`, records the time in the data directory for `/metrics`, and prints a summary.
///
/// # Errors
/// [`CopyError`]; then `out` is as it was before.
pub(crate) fn backup(out: &Path, settings: &Settings) -> Result<(), CopyError> {
    let directory = directory(settings)?;
    let mut progress = Progress::new("backup".to_owned(), Unit::Bytes, None);
    let began_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let bytes = fdb_embedded::backup(&directory, out, |copied| draw(&mut progress, copied))?;
    progress.clear();
    if let Err(error) = data_directory::record_backup(&directory, began_s) {
        // The copy is complete, so the command has done its work.
        eprintln!("flatbed: the time of the backup is not recorded in {}: {error}", directory.display());
    }
    let seconds = progress.elapsed().as_secs_f64();
    say!("{} MB copied from {} to {} in {seconds:.1} s", megabytes(bytes), directory.display(), out.display());
    Ok(())
}

pub(crate) fn directory(settings: &Settings) -> Result<PathBuf, CopyError> {
    match &settings.storage {
        StorageChoice::DataDirectory(directory) => Ok(directory.clone()),
        StorageChoice::ClusterFile(path) => match cluster_file::read(path)? {
            ClusterFile::Embedded { directory, .. } => Ok(directory),
            ClusterFile::Cluster => Err(CopyError::Cluster(path.clone())),
        },
    }
}

pub(crate) fn draw(progress: &mut Progress, copied: CopyProgress) {
    progress.set_total(copied.total_bytes);
    progress.draw(copied.done_bytes, copied.done_bytes);
}
