//! `flatbed restore`: copies a backup into a new data directory, which can then be served.

use std::path::Path;

use fdb_embedded::Restore;
use flatbed_layer::LayerOptions;
use flatbed_layer::renew::{self, Roots, roots};

use crate::{
    backup::{CopyError, directory, draw},
    output::say,
    progress::{Progress, Unit},
    settings::Settings,
    storage::Storage,
};

/// Copies the backup into the data directory, begins another epoch in it, and prints a summary.
///
/// # Errors
/// [`CopyError`]. The data directory then has no database.
pub(crate) async fn restore(backup: &Path, settings: &Settings) -> Result<(), CopyError> {
    let directory = directory(settings)?;
    let mut progress = Progress::new("restore".to_owned(), Unit::Bytes, None);
    let restore = Restore::begin(backup, &directory, |copied| draw(&mut progress, copied))?;
    progress.clear();
    renew(restore.staging()).await?;
    restore.finish()?;
    say!("restored from {} to {} in {:.1} s", backup.display(), directory.display(), progress.elapsed().as_secs_f64());
    Ok(())
}

/// Opens the copy and renews it, so that its changes sort after all of the lost history. Roots of an older format are
/// named, and stay as they are.
async fn renew(staging: &Path) -> Result<(), CopyError> {
    let storage = Storage::embedded(staging)?;
    let database = storage.database();
    let Roots { known, too_old } = roots(&database).await?;
    for (root, error) in &too_old {
        eprintln!("flatbed: root {:?} is copied and cannot be served: {error}", String::from_utf8_lossy(root));
    }
    if let (true, Some((_, error))) = (known.is_empty(), too_old.into_iter().next()) {
        return Err(error.into());
    }
    let clock = LayerOptions::default().clock;
    for root in known {
        renew::renew(&database, &root, &clock).await?;
    }
    drop(database);
    storage.close();
    Ok(())
}
