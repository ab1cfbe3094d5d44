//! `flatbed renew`: what a store must go through after `fdbrestore`, before it is served.

use flatbed_layer::renew;

use crate::{
    progress::{Progress, Unit},
    settings::{Settings, StorageChoice},
    storage::Storage,
};

/// Renews what lies under the root, and prints a summary.
///
/// # Errors
/// If the storage cannot be opened, or there is nothing under the root. What was interrupted goes on the next time.
pub(crate) async fn renew(settings: &Settings) -> Result<(), Box<dyn std::error::Error>> {
    let storage = Storage::open(settings).await?;
    let root = settings.layer_options().root;
    let mut progress = Progress::new("renew".to_owned(), Unit::Documents, None);
    let database = storage.database();
    let renewed = renew::renew(&database, &root, false, |moved| progress.draw(moved, moved)).await;
    progress.clear();
    let renewed = match renewed {
        Err(flatbed_layer::Error::StoreNotFound) => {
            let root = String::from_utf8_lossy(&root);
            return Err(format!("there is nothing of Flatbed's under the root {root:?} in {storage}").into());
        }
        renewed => renewed?,
    };
    println!(
        "databases: {}, documents and tombstones: {}; renewed in {storage} in {:.1} s",
        renewed.databases,
        renewed.entries,
        progress.elapsed().as_secs_f64()
    );
    drop(database);
    storage.close();
    Ok(())
}

/// The command that renews what the settings name.
pub(crate) fn command(settings: &Settings) -> String {
    let storage = match &settings.storage {
        StorageChoice::ClusterFile(path) => format!("--cluster-file {}", path.display()),
        StorageChoice::DataDirectory(path) => format!("--data-dir {}", path.display()),
    };
    let root = settings.root.as_ref().map(|root| format!(" --root {root}")).unwrap_or_default();
    format!("flatbed renew {storage}{root}")
}
