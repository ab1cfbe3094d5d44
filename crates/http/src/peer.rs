//! The origin of a request.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// The client behind a connection, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    /// The address, with port 0 if the port is unknown; `None` for a connection without an address.
    pub address: Option<SocketAddr>,
    /// True if the path to the client is encrypted, by TLS here or as a trusted proxy states.
    pub is_secure: bool,
}

impl Peer {
    /// Returns the peer at the other end of a connection.
    pub(crate) fn new(address: SocketAddr, is_secure: bool) -> Peer {
        Peer { address: Some(SocketAddr::new(address.ip().to_canonical(), address.port())), is_secure }
    }

    pub(crate) fn ip(&self) -> Option<IpAddr> {
        self.address.map(|address| address.ip())
    }
}

/// The scheme of the address that a client asked for, as far as the server knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestScheme {
    /// TLS ends at this server, or a trusted proxy states `https`.
    Https,
    /// A trusted proxy states `http`, or the request came without TLS and from none of the configured proxies.
    Http,
    /// The connection has no TLS. A proxy that is not configured may have ended it.
    Unknown,
}

impl fmt::Display for Peer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) if address.port() == 0 => address.ip().fmt(formatter),
            Some(address) => address.fmt(formatter),
            None => formatter.write_str("unix"),
        }
    }
}
