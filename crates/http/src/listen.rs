//! Where a server listens.

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

use crate::metrics::Kind;
use crate::stream::Transport;
use crate::tls::Tls;

/// Connections that wait to be accepted; the system may allow fewer.
const BACKLOG: u32 = 4_096;

/// For whoever may listen on a socket of the file system to answer.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// When a connection is silent, and between the probes that find out whether its client is still there.
const KEEP_ALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(15));

/// What the system takes of a connection's answers before they are sent. With more, it says that it takes more only after
/// a third of megabytes has gone out: a client that reads slowly would look like one that does not read.
#[cfg(any(target_os = "linux", target_os = "android"))]
const UNSENT_BYTES_MAX: u32 = 128 * 1024;

/// Where to listen, and how.
#[derive(Debug, Clone)]
pub enum Listen {
    /// Plain HTTP; port 0 for a free one.
    Http(SocketAddr),
    /// HTTP over TLS, likewise.
    Https(SocketAddr, Arc<Tls>),
    /// Plain HTTP on a socket of the file system, which is made, with this mode, and removed at the end. One that is there
    /// and on which nobody answers is replaced.
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

/// What listens.
#[derive(Debug)]
pub(crate) struct Listener {
    /// With the port that was found.
    pub listen: Listen,
    socket: Socket,
    /// Removed with it.
    _made: Option<Made>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A socket of the file system, which is removed when this is dropped, if it is still the one that was made.
#[derive(Debug)]
struct Made {
    path: PathBuf,
    file: (u64, u64),
}

impl Drop for Made {
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

    pub(crate) fn kind(&self) -> Kind {
        match &self.listen {
            Listen::Http(_) => Kind::Http,
            Listen::Https(..) => Kind::Https,
            Listen::Unix(..) => Kind::Unix,
        }
    }

    pub(crate) fn tls(&self) -> Option<&Arc<Tls>> {
        match &self.listen {
            Listen::Https(_, tls) => Some(tls),
            _ => None,
        }
    }

    /// The next connection, and whom it comes from, if that has an address.
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

/// What is set here its connections have from the beginning; to set it of each would cost more than to accept one that is refused.
fn tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // What is left of connections of before is no reason not to listen.
    socket.set_reuseaddr(true)?;
    socket.set_nodelay(true)?;
    let options = socket2::SockRef::from(&socket);
    // A client that has vanished while nothing was to be sent is noticed all the same.
    options.set_tcp_keepalive(&KEEP_ALIVE)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    options.set_tcp_notsent_lowat(UNSENT_BYTES_MAX)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn unix(path: &Path, mode: u32) -> io::Result<(UnixListener, Made)> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is something else"));
        }
        Ok(_) => match tokio::time::timeout(ANSWER_MAX, UnixStream::connect(path)).await {
            Ok(Err(error)) if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {}
            Ok(Err(error)) => return Err(error),
            Ok(Ok(_)) | Err(_) => return Err(io::Error::new(io::ErrorKind::AddrInUse, "somebody listens there")),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // Its mode is set before anybody finds it, and it takes the place of a stale one at once.
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let new = path.with_file_name(name);
    let _ = fs::remove_file(&new);
    let listener = UnixListener::bind(&new)?;
    let found = fs::symlink_metadata(&new)?;
    let mut made = Made { path: new, file: (found.dev(), found.ino()) };
    fs::set_permissions(&made.path, fs::Permissions::from_mode(mode))?;
    fs::rename(&made.path, path)?;
    made.path = path.to_owned();
    Ok((listener, made))
}
