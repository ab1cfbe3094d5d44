//! Outgoing connections of a server, for replications and jobs of the changes worker: allowed addresses, and TLS. The
//! crate has no other way to reach a peer.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod addresses;
mod network;
mod tls;

pub use addresses::{AllowedAddresses, AllowedError, is_public};
pub use network::{ConnectError, Network, Resolve};
pub use tls::{Tls, TlsError};

use std::time::Duration;

pub use flatbed_client::Stream;
use flatbed_client::Url;
use tokio::io::{AsyncRead, AsyncWrite};

const TLS_MAX: Duration = Duration::from_secs(10);

/// Connects to a server, with TLS if its URL requires it. Each step has a timeout of 10 s.
pub async fn connect(url: &Url, network: &Network, tls: &Tls) -> Result<Box<dyn Stream>, ConnectError> {
    let stream = network.connect(url).await?;
    if !url.is_secure() {
        return Ok(Box::new(stream));
    }
    Ok(Box::new(secure(url.host(), stream, tls).await?))
}

/// Begins TLS on a connection to `host` and verifies its certificate, for protocols that start without TLS. The timeout
/// is 10 s.
pub async fn secure<S>(host: &str, stream: S, tls: &Tls) -> Result<impl Stream + use<S>, ConnectError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin,
{
    match tokio::time::timeout(TLS_MAX, tls.connect(host, stream)).await {
        Err(_) => Err(ConnectError::Broken("no TLS in time".to_owned())),
        Ok(connected) => connected.map_err(ConnectError::Broken),
    }
}
