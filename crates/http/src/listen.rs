//! The sockets on which a server listens.

use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use socket2::TcpKeepalive;
use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixStream};

use crate::metrics::ListenerKind;
use crate::stream::Transport;
use crate::tls::Tls;

const BACKLOG: u32 = 4_096;

/// The timeout of a probe whether another process listens on a Unix socket.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// The silence after which TCP probes a client, and the interval of the probes.
const KEEP_ALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(15));

/// The most unsent bytes that the system buffers for a connection. With a larger buffer it reports progress only
/// after about a third of a megabyte, so a slow reader would look like a stalled one.
#[cfg(any(target_os = "linux", target_os = "android"))]
const UNSENT_BYTES_MAX: u32 = 128 * 1024;

/// An address to listen on.
#[derive(Debug, Clone)]
pub enum Listen {
    /// Plain HTTP; port 0 chooses a free port.
    Http(SocketAddr),
    /// HTTP over TLS; port 0 chooses a free port.
    Https(SocketAddr, Arc<Tls>),
    /// Plain HTTP on a Unix socket, which is created with this mode and removed at the end. An existing socket
    /// without a listener is replaced.
    Unix(PathBuf, u32),
}

impl From<SocketAddr> for Listen {
    fn from(address: SocketAddr) -> Listen {
        Listen::Http(address)
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Http(address) => write!(formatter, "http://{address}"),
            Listen::Https(address, _) => write!(formatter, "https://{address}"),
            Listen::Unix(path, _) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Listener {
    /// The address with its actual port.
    pub listen: Listen,
    socket: Socket,
    _made: Option<SocketFile>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A Unix socket file. Dropping this removes the file if it is still the created one.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    file: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Listener {
    pub(crate) async fn bind(listen: &Listen) -> io::Result<Listener> {
        let (listen, socket, made) = match listen {
            Listen::Http(address) => {
                let listener = tcp(*address)?;
                (Listen::Http(listener.local_addr()?), Socket::Tcp(listener), None)
            }
            Listen::Https(address, tls) => {
                let listener = tcp(*address)?;
                (Listen::Https(listener.local_addr()?, tls.clone()), Socket::Tcp(listener), None)
            }
            Listen::Unix(path, mode) => {
                let (listener, made) = unix(path, *mode).await?;
                (listen.clone(), Socket::Unix(listener), Some(made))
            }
        };
        Ok(Listener { listen, socket, _made: made })
    }

    pub(crate) fn address(&self) -> Option<SocketAddr> {
        match &self.listen {
            Listen::Http(address) | Listen::Https(address, _) => Some(*address),
            Listen::Unix(..) => None,
        }
    }

    pub(crate) fn kind(&self) -> ListenerKind {
        match &self.listen {
            Listen::Http(_) => ListenerKind::Http,
            Listen::Https(..) => ListenerKind::Https,
            Listen::Unix(..) => ListenerKind::Unix,
        }
    }

    pub(crate) fn tls(&self) -> Option<&Arc<Tls>> {
        match &self.listen {
            Listen::Https(_, tls) => Some(tls),
            _ => None,
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<(Transport, Option<SocketAddr>)> {
        match &self.socket {
            Socket::Unix(listener) => Ok((Transport::Unix(listener.accept().await?.0), None)),
            Socket::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok((Transport::Tcp(stream), Some(peer)))
            }
        }
    }
}

/// Options set here are inherited by all connections, which is cheaper than setting them for each.
fn tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Connections of an earlier process in `TIME_WAIT` must not prevent binding.
    socket.set_reuseaddr(true)?;
    socket.set_nodelay(true)?;
    let options = socket2::SockRef::from(&socket);
    // Detects a vanished client while no data is sent.
    options.set_tcp_keepalive(&KEEP_ALIVE)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    options.set_tcp_notsent_lowat(UNSENT_BYTES_MAX)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn unix(path: &Path, mode: u32) -> io::Result<(UnixListener, SocketFile)> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path is not a socket"));
        }
        Ok(_) => match tokio::time::timeout(ANSWER_MAX, UnixStream::connect(path)).await {
            Ok(Err(error)) if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {}
            Ok(Err(error)) => return Err(error),
            Ok(Ok(_)) | Err(_) => {
                return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there"));
            }
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // The mode is set before the file appears under its name, and the rename replaces a stale socket atomically.
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let new = path.with_file_name(name);
    let _ = fs::remove_file(&new);
    let listener = UnixListener::bind(&new)?;
    let found = fs::symlink_metadata(&new)?;
    let mut made = SocketFile { path: new, file: (found.dev(), found.ino()) };
    fs::set_permissions(&made.path, fs::Permissions::from_mode(mode))?;
    fs::rename(&made.path, path)?;
    made.path = path.to_owned();
    Ok((listener, made))
}
