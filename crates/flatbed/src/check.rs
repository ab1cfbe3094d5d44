//! `flatbed check`: the layer's checker on one database, or on all that is stored, for operators.

use std::error::Error;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fdb_embedded::{backup, check_data_file};
use flatbed_javascript::{Runner, RunnerOptions};
use flatbed_layer::{Layer, NameRange, check};
use flatbed_service::Functions;

use crate::{
    backup::{CopyError, directory, draw},
    output::say,
    progress::{Progress, Unit, megabytes},
    settings::Settings,
    storage::{Storage, StorageError},
    syncstorage,
};

/// Checks a database, and prints each problem on a line, and a summary.
///
/// Returns whether there is no problem.
///
/// # Errors
/// If the storage cannot be opened or read, or the database does not exist.
pub(crate) async fn check(database: &str, settings: &Settings) -> Result<bool, Box<dyn Error>> {
    let storage = Storage::open(settings).await?;
    let layer = open_layer(&storage, settings).await?;
    let is_clean = match check_one(database, &layer).await {
        Err(flatbed_layer::Error::DatabaseNotFound) => return Err(format!("there is no database {database:?}").into()),
        found => found?,
    };
    layer.shutdown();
    drop(layer);
    storage.close();
    Ok(is_clean)
}

/// Checks the pages and records of the embedded engine's file, all databases, and the storage of Firefox Sync. While a
/// server has the directory open, the databases are checked in a copy below `scratch`, which is removed.
///
/// Returns whether there is no problem.
///
/// # Errors
/// If the storage cannot be opened or read, or the file is damaged.
pub(crate) async fn check_all(scratch: Option<&Path>, settings: &Settings) -> Result<bool, Box<dyn Error>> {
    let directory = match directory(settings) {
        Ok(directory) => directory,
        Err(CopyError::Cluster(_)) => return check_storage(Storage::open(settings).await?, settings).await,
        Err(error) => return Err(error.into()),
    };
    let mut progress = Progress::new("check the data file".to_owned(), Unit::Bytes, None);
    let checked = check_data_file(&directory, |read| draw(&mut progress, read));
    progress.clear();
    let checked = checked?;
    say!("data file: clean; {} pages, {} records", checked.pages, checked.records);
    // Opening takes the lock of the directory and keeps it for the check. A lock that is only tried could refuse a
    // server that starts meanwhile, or be outdated when the directory is opened.
    match Storage::embedded(&directory) {
        Err(StorageError::InUse(_)) => {}
        storage => return check_storage(storage?, settings).await,
    }
    let copy = Scratch::below(scratch)?;
    let mut progress = Progress::new("copy".to_owned(), Unit::Bytes, None);
    let copied = backup(&directory, &copy.0, |copied| draw(&mut progress, copied));
    progress.clear();
    say!("a server is running: checking a copy of {} MB in {}", megabytes(copied?), copy.0.display());
    check_storage(Storage::embedded(&copy.0)?, settings).await
}

/// A directory that is removed when this is dropped. A kill leaves it.
struct Scratch(PathBuf);

impl Scratch {
    /// Creates a directory that only its owner may enter. Its name is random: in a directory such as `/tmp` another
    /// user could create a name that is known before, and keep the copy in it.
    fn below(parent: Option<&Path>) -> Result<Scratch, Box<dyn Error>> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|error| error.to_string())?;
        let path = parent.join(format!("flatbed-check-{}", u64::from_le_bytes(random)));
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        fs::create_dir_all(&parent).map_err(failed)?;
        // It fails if the name exists.
        DirBuilder::new().mode(0o700).create(&path).map_err(failed)?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            eprintln!("flatbed: {} is left: {error}", self.0.display());
        }
    }
}

/// Checks all databases, what belongs to none, and the storage of Firefox Sync.
async fn check_storage(storage: Storage, settings: &Settings) -> Result<bool, Box<dyn Error>> {
    let layer = open_layer(&storage, settings).await?;
    let mut is_clean = true;
    for name in layer.all_databases(&NameRange::default()).await? {
        match check_one(&name, &layer).await {
            Ok(is_database_clean) => is_clean &= is_database_clean,
            // On a cluster it may be deleted meanwhile.
            Err(flatbed_layer::Error::DatabaseNotFound) => {}
            Err(error @ flatbed_layer::Error::Storage(_)) => return Err(error.into()),
            Err(error) => {
                say!("{name}: not checked: {error}");
                is_clean = false;
            }
        }
    }
    let beyond = check::check_namespaces(&layer).await?;
    print_violations(&beyond);
    say!("beyond databases: {}; {} keys", verdict(&beyond), beyond.keys);
    layer.shutdown();
    drop(layer);
    if let Some(is_sync_clean) = syncstorage::check_in(storage.database(), settings).await? {
        is_clean &= is_sync_clean;
    }
    storage.close();
    Ok(is_clean && beyond.is_clean())
}

async fn open_layer(storage: &Storage, settings: &Settings) -> Result<Layer, Box<dyn Error>> {
    let (layer, _) = Layer::open(storage.database(), settings.layer_options(), None).await?;
    let functions = Runner::new(RunnerOptions::default())?;
    layer.run_views_by(Arc::new(Functions::new(functions)));
    Ok(layer)
}

async fn check_one(database: &str, layer: &Layer) -> flatbed_layer::Result<bool> {
    let mut progress = Progress::new(format!("check {database}"), Unit::Documents, None);
    let handle = layer.reader(database);
    if let Ok(info) = handle.info().await {
        progress.set_total(info.doc_count + info.doc_del_count);
    }
    let found = check::check_database(&handle, |documents| progress.draw(documents, documents)).await;
    progress.clear();
    let report = found?;
    print_violations(&report);
    let seconds = progress.elapsed().as_secs_f64();
    let sums = if report.sums_compared {
        ""
    } else {
        ", counters not compared because it was written to or compacted meanwhile"
    };
    let mapped = match report.mapped {
        0 => String::new(),
        mapped => format!(", {mapped} mapped anew"),
    };
    say!(
        "{database}: {}; {} documents{mapped}, {} keys in {seconds:.1} s{sums}",
        verdict(&report),
        report.documents,
        report.keys
    );
    Ok(report.is_clean())
}

fn print_violations(report: &check::Report) {
    for violation in &report.violations {
        say!("{violation}");
    }
}

fn verdict(report: &check::Report) -> String {
    match report.violation_count {
        0 => "clean".to_owned(),
        count => format!("{count} violations"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_scratch_directory_is_new_and_its_owners_alone() {
        let parent = tempfile::tempdir().unwrap();
        let (one, other) = (Scratch::below(Some(parent.path())).unwrap(), Scratch::below(Some(parent.path())).unwrap());
        assert_ne!(one.0, other.0);
        assert_eq!(fs::metadata(&one.0).unwrap().permissions().mode() & 0o777, 0o700);
        drop((one, other));
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
