//! Connections to peers, limited to allowed addresses.
//!
//! Each connection resolves the name once and connects to the address that was checked, so that a name that resolves
//! differently later (DNS rebinding) gains nothing. Redirects are not followed, and the environment's proxies are not
//! used.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use flatbed_client::Url;
use futures_util::future::BoxFuture;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::addresses::{AllowedAddresses, is_public};

const CONNECT_MAX: Duration = Duration::from_secs(10);

/// The shortest time to a refusal. It hides how long an internal name server takes.
const REFUSED_AFTER: Duration = Duration::from_secs(1);

/// Resolves `host:port`.
pub type Resolve = Arc<dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync>;

/// The reachable part of the network. Cheap to clone.
#[derive(Clone)]
pub struct Network {
    resolve: Resolve,
    /// The internal addresses that are allowed beside the public ones. `None`: all addresses are allowed.
    bounds: Option<Arc<AllowedAddresses>>,
}

/// The reason why a connection failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// An error of the system or the peer.
    #[error("{0}")]
    Broken(String),
    /// The host has no allowed address, or none at all. The error does not tell which.
    #[error("the host has no address that may be reached from here")]
    OutOfBounds,
}

impl Default for Network {
    /// Returns the whole network, with the system's resolver.
    fn default() -> Network {
        Network::new(Arc::new(|authority| {
            Box::pin(async move { Ok(tokio::net::lookup_host(authority).await?.collect()) })
        }))
    }
}

impl Network {
    /// Returns the whole network.
    pub fn new(resolve: Resolve) -> Network {
        Network { resolve, bounds: None }
    }

    /// Returns the public addresses and the listed ones, without unlisted addresses of this machine.
    #[must_use]
    pub fn bounded(&self, allowed: Arc<AllowedAddresses>) -> Network {
        Network { resolve: self.resolve.clone(), bounds: Some(allowed) }
    }

    /// Connects to the first allowed address of a host that answers.
    pub async fn connect(&self, url: &Url) -> Result<TcpStream, ConnectError> {
        let begun = Instant::now();
        let mut failure = ConnectError::Broken("the host has no address".to_owned());
        for address in self.addresses(url).await? {
            match timeout_at(begun + CONNECT_MAX, TcpStream::connect(address)).await {
                Err(_) => return Err(late()),
                Ok(Err(error)) => failure = broken(error),
                Ok(Ok(stream)) => {
                    // Small requests wait for their answers: Nagle's algorithm would delay them.
                    stream.set_nodelay(true).map_err(broken)?;
                    return Ok(stream);
                }
            }
        }
        Err(failure)
    }

    /// Returns a host's allowed addresses, for a library that connects by itself. It must not resolve the name again.
    pub async fn addresses(&self, url: &Url) -> Result<Vec<SocketAddr>, ConnectError> {
        let begun = Instant::now();
        let found = timeout_at(begun + CONNECT_MAX, (self.resolve)(url.authority())).await;
        match (found, &self.bounds) {
            (found, Some(allowed)) => {
                let found = found.ok().and_then(Result::ok).unwrap_or_default().into_iter();
                let is_listed = allowed.has_host(url.host());
                let is_in = |address: &SocketAddr| is_listed || is_within(*address, allowed);
                let addresses: Vec<SocketAddr> = found.filter(is_in).collect();
                if addresses.is_empty() {
                    sleep_until(begun + REFUSED_AFTER).await;
                    return Err(ConnectError::OutOfBounds);
                }
                Ok(addresses)
            }
            (found, None) => found.map_err(|_| late())?.map_err(broken),
        }
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("bounds", &self.bounds).finish_non_exhaustive()
    }
}

fn late() -> ConnectError {
    ConnectError::Broken("no connection in time".to_owned())
}

fn broken(error: io::Error) -> ConnectError {
    ConnectError::Broken(error.to_string())
}

fn is_within(address: SocketAddr, allowed: &AllowedAddresses) -> bool {
    allowed.has_address(address.ip()) || is_public(address.ip()) && !is_own(address)
}

/// Returns whether an address is this machine's own, to which a connection passes no firewall: the system would use the
/// address itself as the source. Sends nothing.
fn is_own(address: SocketAddr) -> bool {
    let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let from = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(address)?;
        socket.local_addr()
    });
    // Without a route a connection fails anyway.
    from.is_ok_and(|from| from.ip().to_canonical() == address.ip().to_canonical())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Mutex;

    use tokio::net::TcpListener;

    use super::*;

    /// Resolves names to the given answers in turn, and counts the requests.
    fn resolver(answers: &[(&str, &[&str])]) -> (Resolve, Arc<Mutex<HashMap<String, usize>>>) {
        let answers: HashMap<String, Vec<String>> = answers
            .iter()
            .map(|(name, each)| ((*name).to_owned(), each.iter().map(|text| (*text).to_owned()).collect()))
            .collect();
        let asked: Arc<Mutex<HashMap<String, usize>>> = Arc::default();
        let counts = asked.clone();
        let resolve: Resolve = Arc::new(move |authority| {
            let (host, port) = authority.rsplit_once(':').expect("a port");
            let port: u16 = port.parse().expect("a number");
            let mut counts = counts.lock().unwrap();
            let count = counts.entry(host.to_owned()).or_default();
            let texts = answers.get(host).and_then(|each| each.get(*count).or(each.last())).cloned();
            *count += 1;
            let addresses = texts.map(|texts| {
                texts.split(' ').map(|text| SocketAddr::new(text.parse().expect("an address"), port)).collect()
            });
            let found = addresses.ok_or_else(|| io::Error::other("no such host"));
            Box::pin(async move { found })
        });
        (resolve, asked)
    }

    async fn listen(address: &str) -> (TcpListener, u16) {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, port)
    }

    fn url(host: &str, port: u16) -> Url {
        Url::parse_either(&format!("http://{host}:{port}/db")).unwrap()
    }

    /// All spellings that the system reads as an internal address.
    #[tokio::test(start_paused = true)]
    async fn spellings_of_closed_addresses() {
        let (listener, port) = listen("127.0.0.1").await;
        let bounded = Network::default().bounded(Arc::default());
        for host in [
            "127.0.0.1",
            "127.1",
            "127.0.1",
            "2130706433",
            "0x7f000001",
            "0x7f.1",
            "0177.0.0.1",
            "017700000001",
            "0",
            "0.0.0.0",
            "localhost",
            "LOCALHOST",
            "localhost.",
            "[::1]",
            "[::]",
            "[::ffff:127.0.0.1]",
            "[::ffff:7f00:1]",
            "[0:0:0:0:0:0:0:1]",
            "[fe80::1%1]",
            "[fe80::1%lo]",
            "[::1%1]",
            "169.254.169.254",
            "[fd00:ec2::254]",
            "10.0.0.1",
            "user:pw@127.0.0.1",
            "a@b@127.0.0.1",
            "8.8.8.8%40@127.0.0.1",
            "8.8.8.8\\@127.0.0.1",
            "x:8.8.8.8@[::1]",
        ] {
            let due = Instant::now() + REFUSED_AFTER;
            let refused = bounded.connect(&url(host, port)).await;
            assert!(matches!(refused, Err(ConnectError::OutOfBounds)), "{host}: {refused:?}");
            assert!(Instant::now() >= due, "{host} is refused too early");
        }
        let untouched = tokio::time::timeout(Duration::from_millis(50), listener.accept()).await;
        assert!(untouched.is_err(), "a connection was made");
        Network::default().connect(&url("127.1", port)).await.unwrap();
        Network::default().connect(&url("localhost", port)).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn names_are_resolved_once_for_each_connection() {
        let (inner, port) = listen("127.0.0.1").await;
        let listed = TcpListener::bind(("127.0.0.2", port)).await.unwrap();
        // An allowed address before a forbidden one; both together; none.
        let (resolve, asked) = resolver(&[
            ("rebinding", &["127.0.0.2", "127.0.0.1"]),
            ("both", &["127.0.0.1 127.0.0.2 ::1"]),
            ("inner", &["127.0.0.1"]),
            ("named", &["127.0.0.1"]),
        ]);
        let bounded =
            Network::new(resolve.clone()).bounded(Arc::new(AllowedAddresses::parse("127.0.0.2,named").unwrap()));
        for (host, reached) in [
            ("rebinding", Some("127.0.0.2")),
            ("rebinding", None),
            ("both", Some("127.0.0.2")),
            ("inner", None),
            ("nowhere", None),
            ("named", Some("127.0.0.1")),
            ("NAMED.", None),
        ] {
            let stream = bounded.connect(&url(host, port)).await.ok();
            let found = stream.map(|stream| stream.peer_addr().unwrap().ip().to_string());
            assert_eq!(found.as_deref(), reached, "{host}");
        }
        assert_eq!(asked.lock().unwrap()["rebinding"], 2);
        drop((inner, listed));
        // Without a listener an allowed address yields an error of the system, a forbidden one does not.
        assert!(matches!(bounded.connect(&url("both", port)).await, Err(ConnectError::Broken(_))));
        assert!(matches!(bounded.connect(&url("inner", port)).await, Err(ConnectError::OutOfBounds)));
        let anywhere = Network::new(resolve);
        let Err(ConnectError::Broken(reason)) = anywhere.connect(&url("nowhere", port)).await else { panic!() };
        assert_eq!(reason, "no such host");
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_server_that_does_not_answer_is_not_waited_for() {
        let resolve: Resolve = Arc::new(|_| Box::pin(std::future::pending()));
        let url = url("slow", 80);
        assert!(matches!(Network::new(resolve.clone()).connect(&url).await, Err(ConnectError::Broken(_))));
        let bounded = Network::new(resolve).bounded(Arc::default());
        assert!(matches!(bounded.connect(&url).await, Err(ConnectError::OutOfBounds)));
    }

    #[test]
    fn this_machines_own_address() {
        // Without a route to the internet there is nothing to check.
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        if socket.connect("192.0.2.1:9").is_err() {
            return;
        }
        let own = socket.local_addr().unwrap();
        assert!(is_own(SocketAddr::new(own.ip(), 1)));
        assert!(!is_own("192.0.2.1:9".parse().unwrap()));
    }
}
