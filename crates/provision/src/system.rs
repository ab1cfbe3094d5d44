//! The system's own databases, which CouchDB's setup of a single node creates.

use std::sync::atomic::Ordering;

use flatbed_layer::{CreateOptions, Error, REPLICATOR, Result, USERS};
use flatbed_service::Settings;

use crate::{PAUSE, Provision};

/// The databases. `_global_changes` is none of them, as in CouchDB's setup.
const DATABASES: [&str; 2] = [USERS, REPLICATOR];

/// Returns whether the databases must exist: the server has an administrator, whose users and replications they hold.
pub(crate) fn are_wanted(settings: &Settings) -> bool {
    !settings.admins.is_empty()
}

/// Creates the databases once there is an administrator. Databases that are deleted later stay deleted until a server
/// starts.
pub(crate) async fn run(provision: &Provision) {
    if !provision.options.has_system_databases || provision.had_system_databases.load(Ordering::Relaxed) {
        return;
    }
    let mut settings = provision.configuration.changes();
    tokio::select! {
        // It fails only if the settings are gone, with the server.
        wanted = async { settings.wait_for(|settings| are_wanted(settings)).await.is_ok() } => if !wanted { return },
        () = provision.status.stopped() => return,
    }
    tokio::select! {
        () = create(provision) => {}
        () = provision.status.stopped() => {}
    }
}

/// Creates the databases that do not exist, with retries. An existing one stays as it is.
pub(crate) async fn create(provision: &Provision) {
    for name in DATABASES {
        while let Err(error) = create_one(provision, name).await {
            tracing::warn!(%error, database = name, "a database of the system could not be created");
            provision.layer.clock().sleep(PAUSE).await;
        }
    }
    provision.had_system_databases.store(true, Ordering::Relaxed);
}

async fn create_one(provision: &Provision, name: &str) -> Result<()> {
    let database = provision.database(name);
    // A read alone, where it exists: processes that start at once then do not wait for each other's commits.
    match database.exists().await {
        Err(Error::DatabaseNotFound) => {}
        found => return found,
    }
    match database.create(&CreateOptions::default()).await {
        Ok(()) => {
            tracing::info!(database = name, "created a database of the system");
            Ok(())
        }
        Err(Error::DatabaseExists) => Ok(()),
        Err(error) => Err(error),
    }
}
