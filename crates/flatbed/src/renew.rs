//! `flatbed renew`: the renewal of a store after `fdbrestore`, before it is served.

use flatbed_layer::renew;

use crate::{
    output::say,
    settings::{Settings, StorageChoice},
    storage::Storage,
};

/// Renews the store under the root, and prints a summary.
///
/// # Errors
/// If the storage cannot be opened, or the root has no store.
pub(crate) async fn renew(settings: &Settings) -> Result<(), Box<dyn std::error::Error>> {
    let storage = Storage::open(settings).await?;
    let options = settings.layer_options();
    let database = storage.database();
    let renewed = match renew::renew(&database, &options.root, &options.clock).await {
        Err(flatbed_layer::Error::StoreNotFound) => {
            let root = String::from_utf8_lossy(&options.root);
            return Err(format!("there is nothing of Flatbed's under the root {root:?} in {storage}").into());
        }
        renewed => renewed?,
    };
    say!("renewed in {storage}: epoch {}", renewed.epoch);
    drop(database);
    storage.close();
    Ok(())
}

/// Returns the command line that renews the store of these settings.
pub(crate) fn command(settings: &Settings) -> String {
    let storage = match &settings.storage {
        StorageChoice::ClusterFile(path) => format!("--cluster-file {}", path.display()),
        StorageChoice::DataDirectory(path) => format!("--data-dir {}", path.display()),
    };
    let root = settings.root.as_ref().map(|root| format!(" --root {root}")).unwrap_or_default();
    // Only for a cluster: the embedded engine needs no library.
    let library = match (&settings.storage, &settings.fdb_library) {
        (StorageChoice::ClusterFile(_), Some(path)) => format!(" --fdb-library {}", path.display()),
        _ => String::new(),
    };
    format!("flatbed renew {storage}{root}{library}")
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::settings::from_environment;

    #[test]
    fn the_command_renews_the_storage_that_was_named() {
        let command = |variables: &[(&str, &str)]| {
            let variables: HashMap<String, String> =
                variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            command(&Settings::resolve(&[from_environment(&variables)]).unwrap())
        };
        let (file, library) = (("FLATBED_CLUSTER_FILE", "/c"), ("FLATBED_FDB_LIBRARY", "/l/libfdb_c.so"));
        let root = ("FLATBED_ROOT", "r");
        assert_eq!(command(&[file]), "flatbed renew --cluster-file /c");
        assert_eq!(
            command(&[file, root, library]),
            "flatbed renew --cluster-file /c --root r --fdb-library /l/libfdb_c.so"
        );
        assert_eq!(command(&[("FLATBED_DATA_DIR", "/d"), root, library]), "flatbed renew --data-dir /d --root r");
    }
}
