//! Metrics of the embedded engine's directory: the room on its disk, and the time of its last backup.
//!
//! `flatbed backup` writes the time into the file `last-backup` of the directory that it copies, in seconds of Unix
//! time. A server reads it at each scrape, so backups by other processes are seen. Other means of backup may write the
//! file, too.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use flatbed_metrics::Family;

const LAST_BACKUP: &str = "last-backup";
const LAST_BACKUP_NEW: &str = "last-backup.new";

/// The most bytes that are read of the file.
const TEXT_BYTES_MAX: u64 = 32;

/// The room on a disk, in bytes.
struct DiskRoom {
    /// The room that this process may use.
    free: u64,
    total: u64,
}

/// Returns the metrics. Those of the disk are missing if the system does not tell them.
pub(crate) fn figures(directory: &Path) -> Vec<Family> {
    let mut families = Vec::new();
    if let Ok(DiskRoom { free, total }) = room(directory) {
        let help = "Bytes that the server may still write to the disk of its data directory.";
        families.push(Family::gauge("flatbed_disk_free_bytes", help, free as f64));
        families.push(Family::gauge("flatbed_disk_size_bytes", "Bytes of that disk.", total as f64));
    }
    let help = "When the last successful backup began, in seconds of Unix time; 0: there was none.";
    let seconds = last_backup_s(directory).unwrap_or(0);
    families.push(Family::gauge("flatbed_backup_timestamp_seconds", help, seconds as f64));
    families
}

/// Records a successful backup that began at this second of Unix time. The file is replaced by a rename, so a reader
/// finds the old or the new time.
///
/// # Errors
/// The operating system's; the file is then as it was.
pub(crate) fn record_backup(directory: &Path, seconds: u64) -> io::Result<()> {
    let new = directory.join(LAST_BACKUP_NEW);
    let mut file = File::create(&new)?;
    writeln!(file, "{seconds}")?;
    file.sync_all()?;
    fs::rename(&new, directory.join(LAST_BACKUP))
}

fn last_backup_s(directory: &Path) -> Option<u64> {
    let mut text = String::new();
    File::open(directory.join(LAST_BACKUP)).ok()?.take(TEXT_BYTES_MAX).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

// The fields' types differ between systems.
#[allow(clippy::unnecessary_cast, clippy::useless_conversion, reason = "the fields are narrower on other systems")]
fn room(directory: &Path) -> io::Result<DiskRoom> {
    let path = CString::new(directory.as_os_str().as_bytes())?;
    let mut found = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends with a zero byte, and the pointer is to a value of this function's own.
    if unsafe { libc::statvfs(path.as_ptr(), found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it has filled the value.
    let found = unsafe { found.assume_init() };
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize as u64);
    Ok(DiskRoom { free: bytes(found.f_bavail as u64), total: bytes(found.f_blocks as u64) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(directory: &Path, name: &str) -> u64 {
        flatbed_metrics::total(&figures(directory), name)
    }

    #[test]
    fn the_disk_has_room() {
        let directory = tempfile::tempdir().unwrap();
        let DiskRoom { free, total } = room(directory.path()).unwrap();
        assert!(0 < total && free <= total, "{free} of {total}");
        assert_eq!(value(directory.path(), "flatbed_disk_size_bytes"), total);
        assert!(room(Path::new("/no such directory")).is_err());
    }

    #[test]
    fn a_backup_is_recorded() {
        let directory = tempfile::tempdir().unwrap();
        let of = || value(directory.path(), "flatbed_backup_timestamp_seconds");
        assert_eq!(of(), 0);
        record_backup(directory.path(), 1_700_000_000).unwrap();
        assert_eq!(of(), 1_700_000_000);
        record_backup(directory.path(), 1_700_000_001).unwrap();
        assert_eq!(of(), 1_700_000_001);
        for text in ["", "yesterday", "-1", "99999999999999999999999999999999999"] {
            fs::write(directory.path().join(LAST_BACKUP), text).unwrap();
            assert_eq!(of(), 0, "{text:?}");
        }
    }
}
