//! The log of changed database records: `{root}/23/{versionstamp}/{name}`.
//!
//! `\xff/metadataVersion` says that some record has changed, and the log says of which databases. A process that reads
//! another value reads the entries in between, one range, and keeps everything else that it has cached. Each transaction
//! that changes or removes a record calls [`note_change`]. A new record needs no entry: no process has cached it.

use foundationdb::options::MutationType;

use crate::error::Result;
use crate::keys::RootKeys;
use crate::transaction::{Quiet, Rows, Transaction};

/// The most entries that a process reads to keep its cache. After more changes it reads each record again.
pub const CHANGES_READ_MAX: usize = 1_000;

/// The retention of entries, in commit versions: 50 minutes at FoundationDB's million per second, so that the sweep an
/// hour after a change finds its entry old. A process that has not read `\xff/metadataVersion` for longer reads each
/// record again.
const KEPT_VERSIONS: u64 = 3_000_000_000;

/// Logs that the record of a database has changed or is gone, and changes `\xff/metadataVersion`.
///
/// # Errors
/// FoundationDB's, of an option.
pub fn note_change(trx: &Transaction, keys: &RootKeys, name: &str) -> Result<()> {
    Quiet(trx).atomic(&keys.record_change_stamped(name), &[], MutationType::SetVersionstampedKey)?;
    trx.update_metadata_version();
    Ok(())
}

/// Reads, as a snapshot, the names of the databases whose records have changed behind a value of
/// `\xff/metadataVersion` that the process has read. `None` if they are not all known: the log is too long, or its
/// entries are gone.
///
/// # Errors
/// [`Error::Storage`](crate::error::Error::Storage), [`Error::Corrupt`](crate::error::Error::Corrupt).
pub async fn read_changes(trx: &Transaction, keys: &RootKeys, after: &[u8]) -> Result<Option<Vec<String>>> {
    // Before the first change of the cluster the value is empty, and all entries are later.
    let after = if after.is_empty() { &[0; 10] } else { after };
    let Ok(after) = after.try_into() else { return Ok(None) };
    let rows = trx.range(&keys.record_changes_after(after), true).first(CHANGES_READ_MAX + 1).await?;
    if rows.len() > CHANGES_READ_MAX {
        return Ok(None);
    }
    let names = names_of(keys, &rows)?;
    Ok((!names.iter().any(String::is_empty)).then_some(names))
}

/// Removes old entries, and leaves one in place of the last of them, for processes that have not read
/// it. Returns whether there were any.
///
/// # Errors
/// As [`read_changes`].
pub async fn sweep_changes(trx: &Transaction, keys: &RootKeys) -> Result<bool> {
    let version = u64::try_from(trx.get_read_version().await?).unwrap_or_default();
    sweep_changes_before(trx, keys, version.saturating_sub(KEPT_VERSIONS)).await
}

/// As [`sweep_changes`], of entries with commit versions below one.
///
/// # Errors
/// As [`read_changes`].
pub async fn sweep_changes_before(trx: &Transaction, keys: &RootKeys, version: u64) -> Result<bool> {
    let old = keys.record_changes_before(version);
    let newest = trx.range(&old, true).reverse(true).first(1).await?;
    let Some(newest) = newest.first().map(|row| row.key()) else { return Ok(false) };
    if keys.record_change_name(newest)?.is_empty() {
        return Ok(false);
    }
    let gone = keys.record_changes_gone(newest)?;
    trx.clear_range(&old.begin, &gone);
    trx.set(&gone, &[]);
    Ok(true)
}

fn names_of(keys: &RootKeys, rows: &Rows) -> Result<Vec<String>> {
    rows.iter().map(|row| keys.record_change_name(row.key())).collect()
}
