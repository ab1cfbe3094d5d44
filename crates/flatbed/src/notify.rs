//! Messages to the service manager that started the process (sd_notify(3)): systemd with `Type=notify`, or another one
//! that sets `NOTIFY_SOCKET`. Without that variable nothing is sent.

use std::{
    env,
    ffi::OsStr,
    io,
    os::unix::{
        ffi::OsStrExt,
        net::{SocketAddr, UnixDatagram},
    },
    time::Duration,
};

/// The time that the service manager has to read earlier messages. A message that finds no room then is lost.
const PATIENCE: Duration = Duration::from_secs(5);

/// A change of the state of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceState {
    /// The process does its work; also the end of a reload.
    Ready,
    /// The process reads its files again. [`ServiceState::Ready`] follows.
    Reloading,
    /// The process stops. Running requests may end.
    Stopping,
}

impl ServiceState {
    fn message(self) -> String {
        match self {
            ServiceState::Ready => "READY=1".to_owned(),
            // The time tells this reload from an earlier one.
            ServiceState::Reloading => format!("RELOADING=1\nMONOTONIC_USEC={}", monotonic_micros()),
            ServiceState::Stopping => "STOPPING=1".to_owned(),
        }
    }
}

/// Sends the state to the service manager, if there is one. A failure is logged: the process can work without it.
pub(crate) fn notify(state: ServiceState) {
    let Some(socket) = env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else { return };
    if let Err(error) = send(&socket, state) {
        tracing::warn!(socket = %socket.display(), %error, ?state, "the service manager does not get the state");
    }
}

fn send(socket: &OsStr, state: ServiceState) -> io::Result<()> {
    let message = state.message();
    let sender = UnixDatagram::unbound()?;
    sender.set_write_timeout(Some(PATIENCE))?;
    sender.send_to_addr(message.as_bytes(), &address(socket)?)?;
    Ok(())
}

/// Returns the address of a path, or on Linux of a name that begins with `@` and has no file.
fn address(name: &OsStr) -> io::Result<SocketAddr> {
    #[cfg(target_os = "linux")]
    if let Some(name) = name.as_bytes().strip_prefix(b"@") {
        use std::os::linux::net::SocketAddrExt;

        return SocketAddr::from_abstract_name(name);
    }
    SocketAddr::from_pathname(name)
}

fn monotonic_micros() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a value of this function's own.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 256];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    #[test]
    fn states_arrive_at_a_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), ServiceState::Ready).unwrap();
        send(path.as_os_str(), ServiceState::Reloading).unwrap();
        send(path.as_os_str(), ServiceState::Stopping).unwrap();
        assert_eq!(received(&socket), "READY=1");
        let reloading = received(&socket);
        let micros = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(micros.parse::<u64>().unwrap() > 0, "{reloading}");
        assert_eq!(received(&socket), "STOPPING=1");
        drop(socket);
        assert!(send(path.as_os_str(), ServiceState::Ready).is_err(), "nothing reads the socket");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn states_arrive_at_an_abstract_name() {
        use std::os::linux::net::SocketAddrExt;

        let name = format!("flatbed-notify-{}", std::process::id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send(OsStr::new(&format!("@{name}")), ServiceState::Ready).unwrap();
        assert_eq!(received(&socket), "READY=1");
    }
}
