//! Another root on the storage of a test, whose records change all the time: `\xff/metadataVersion` is one key for all roots.
//!
//! With `FLATBED_TEST_NEIGHBOUR` set each storage that a test opens has one. What a test says of caches must hold beside it.
#![cfg(test)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use foundationdb::Database;
use foundationdb::tuple::{Bytes, pack};

/// Between two changes.
const EVERY: Duration = Duration::from_millis(3);

/// Begins a neighbour if the environment asks for one.
pub(crate) fn begin_if_asked(database: &Arc<Database>) {
    if is_asked() {
        begin(database);
    }
}

/// Returns whether the environment asks for a neighbour.
pub(crate) fn is_asked() -> bool {
    std::env::var_os("FLATBED_TEST_NEIGHBOUR").is_some()
}

/// Whether this process has begun one.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

/// Begins a neighbour, which ends with the database.
pub(crate) fn begin(database: &Arc<Database>) {
    HAS_BEGUN.store(true, Ordering::Relaxed);
    let database = Arc::downgrade(database);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async move {
            while change(&database).await {
                tokio::time::sleep(EVERY).await;
            }
        });
    });
}

/// Changes a key of the neighbour's, as a change of a record does; false: the database is closed.
async fn change(database: &Weak<Database>) -> bool {
    let Some(database) = database.upgrade() else { return false };
    let mut trx = database.create_trx().expect("a transaction");
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

/// Whether no record of any root has changed since `since`, a [`version`] of before: only then a test can say exactly what is
/// read of caches. On an engine without a neighbour it must be so.
pub(crate) async fn is_quiet(database: &Database, since: &[u8]) -> bool {
    let is_quiet = version(database).await == since;
    let is_shared = HAS_BEGUN.load(Ordering::Relaxed) || std::env::var_os("FLATBED_CLUSTER_FILE").is_some();
    assert!(is_quiet || is_shared, "a record has changed");
    is_quiet
}

/// The value that all caches look at.
pub(crate) async fn version(database: &Database) -> Vec<u8> {
    let mut trx = database.create_trx().expect("a transaction");
    loop {
        match trx.get(b"\xff/metadataVersion", true).await {
            Ok(version) => return version.as_deref().unwrap_or_default().to_vec(),
            Err(error) => trx = trx.on_error(error).await.expect("an error that a retry mends"),
        }
    }
}
