//! Another root on the storage of a test, whose records change all the time. `\xff/metadataVersion` is one key for all
//! roots.
//!
//! With `FLATBED_TEST_NEIGHBOUR` set, each storage of [`Storage::new`](crate::Storage::new) has one. Tests of caches
//! must also pass beside it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use foundationdb::tuple::{Bytes, pack};
use foundationdb::{Database, FdbError, Transaction};

/// The pause between two changes.
const PAUSE: Duration = Duration::from_millis(3);

/// True if this process has started a neighbour.
static IS_STARTED: AtomicBool = AtomicBool::new(false);

/// Starts a neighbour if the environment requests one.
pub(crate) fn start_if_asked(database: &Arc<Database>) {
    if std::env::var_os("FLATBED_TEST_NEIGHBOUR").is_some() {
        start_neighbour(database);
    }
}

/// Starts a neighbour, which ends with the database.
///
/// # Panics
/// The thread cannot be started.
pub fn start_neighbour(database: &Arc<Database>) {
    IS_STARTED.store(true, Ordering::Relaxed);
    let database = Arc::downgrade(database);
    std::thread::spawn(move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_time().build() else { return };
        runtime.block_on(async move {
            while change_record(&database).await {
                tokio::time::sleep(PAUSE).await;
            }
        });
    });
}

/// Changes a record of the neighbour. Returns false if the database is closed.
async fn change_record(database: &Weak<Database>) -> bool {
    let Some(database) = database.upgrade() else { return false };
    let Ok(mut trx) = database.create_trx() else { return false };
    loop {
        trx.set(&pack(&(Bytes::from(&b"neighbour"[..]), 1)), b"record");
        trx.update_metadata_version();
        match trx.commit().await {
            Ok(_) => return true,
            Err(failed) => match failed.on_error().await {
                Ok(again) => trx = again,
                // The test's engine has failed, or is closed.
                Err(_) => return false,
            },
        }
    }
}

/// Returns whether no record of any root has changed since `since`, an earlier [`metadata_version`]. Only then can a
/// test predict the exact reads of the caches.
///
/// # Panics
/// A record has changed on an engine without a neighbour.
pub async fn is_quiet(database: &Database, since: &[u8]) -> bool {
    let is_quiet = metadata_version(database).await == since;
    let is_shared = IS_STARTED.load(Ordering::Relaxed) || std::env::var_os("FLATBED_CLUSTER_FILE").is_some();
    assert!(is_quiet || is_shared, "a record has changed");
    is_quiet
}

/// Returns the value of `\xff/metadataVersion`, which validates all caches.
///
/// # Panics
/// The storage fails with an error that is not retryable.
pub async fn metadata_version(database: &Database) -> Vec<u8> {
    async fn read(mut trx: Transaction) -> Result<Vec<u8>, FdbError> {
        loop {
            match trx.get(b"\xff/metadataVersion", true).await {
                Ok(version) => return Ok(version.as_deref().unwrap_or_default().to_vec()),
                Err(error) => trx = trx.on_error(error).await?,
            }
        }
    }
    let version = match database.create_trx() {
        Ok(trx) => read(trx).await,
        Err(error) => Err(error),
    };
    version.unwrap_or_else(|error| panic!("the storage fails: {error}"))
}
