//! The embedded engine's directory: the room on its disk, the time of its last backup, and the address of its server.
//!
//! `flatbed backup` writes the time into the file `last-backup` of the directory that it copies, in seconds of Unix
//! time. A server reads it at each scrape, so backups by other processes are seen. Other means of backup may write the
//! file, too.
//!
//! A server writes its URL into the file `server`, for commands that need the running server. The file is valid while
//! another process has the directory open: the next process that opens it removes what a killed server has left.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use flatbed_client::Url;
use flatbed_http::Listen;
use flatbed_metrics::Family;

const LAST_BACKUP: &str = "last-backup";
const LAST_BACKUP_NEW: &str = "last-backup.new";

const SERVER: &str = "server";
const SERVER_NEW: &str = "server.new";

/// The most bytes that are read of a file.
const TEXT_BYTES_MAX: u64 = 128;

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

/// Records where the directory's server is reached from this machine: its first address without TLS. Without such an
/// address it removes the record of an earlier server.
///
/// # Errors
/// The operating system's; the file is then as it was.
pub(crate) fn record_server(directory: &Path, listening: &[Listen]) -> io::Result<()> {
    let address = listening.iter().find_map(|listen| match listen {
        Listen::Http(address) => Some(reachable(*address)),
        Listen::Https(..) | Listen::Unix(..) => None,
    });
    let Some(address) = address else { return forget_server(directory) };
    let new = directory.join(SERVER_NEW);
    fs::write(&new, format!("http://{address}\n"))?;
    fs::rename(&new, directory.join(SERVER))
}

/// Removes the record of the directory's server.
///
/// # Errors
/// The operating system's.
pub(crate) fn forget_server(directory: &Path) -> io::Result<()> {
    match fs::remove_file(directory.join(SERVER)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Returns the URL of the server that has the directory open; `None` if it is not known.
pub(crate) fn server_of(directory: &Path) -> Option<Url> {
    Url::parse(read_text(&directory.join(SERVER))?.trim()).ok()
}

/// Returns the address at which this machine reaches a listener: a loopback address if it listens on all addresses.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip: IpAddr = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

fn read_text(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(TEXT_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

fn last_backup_s(directory: &Path) -> Option<u64> {
    read_text(&directory.join(LAST_BACKUP))?.trim().parse().ok()
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
    fn a_server_is_recorded() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let found = || server_of(directory).map(|url| url.to_string());
        let http = |text: &str| Listen::Http(text.parse().unwrap());
        let unix = || Listen::Unix("s".into(), 0o600);
        assert_eq!(found(), None);
        for (listening, url) in [
            (vec![unix(), http("127.0.0.1:1"), http("127.0.0.1:2")], Some("http://127.0.0.1:1")),
            (vec![http("0.0.0.0:3")], Some("http://127.0.0.1:3")),
            (vec![http("[::]:4")], Some("http://[::1]:4")),
            (vec![http("192.0.2.1:5")], Some("http://192.0.2.1:5")),
            (vec![unix()], None),
        ] {
            record_server(directory, &listening).unwrap();
            assert_eq!(found().as_deref(), url);
        }
        record_server(directory, &[http("127.0.0.1:6")]).unwrap();
        forget_server(directory).unwrap();
        forget_server(directory).unwrap();
        assert_eq!(found(), None);
        fs::write(directory.join(SERVER), "elsewhere").unwrap();
        assert_eq!(found(), None);
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
