//! The state that handlers of both surfaces share.

use std::sync::Arc;

use flatbed_http::Shell;
use flatbed_service::Service;

use crate::route::Route;

/// The clients that a surface serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// Users and anonymous clients.
    Public,
    /// Every client, as a server administrator without a password. The listener must be unreachable for others.
    Administrators {
        /// True if it may listen on addresses other than this machine's.
        anywhere: bool,
    },
}

/// Options of a surface.
#[derive(Debug, Clone)]
pub struct GatewayOptions {
    /// The clients that it serves.
    pub port: Port,
    /// This program's version.
    pub version: String,
}

/// One of the surfaces. The caller assembles its parts.
pub struct Gateway {
    pub(crate) port: Port,
    pub(crate) version: String,
    pub(crate) service: Service,
    pub(crate) shell: Arc<Shell<Route>>,
}

impl Gateway {
    /// Creates a surface on `service`.
    pub fn new(options: GatewayOptions, service: Service, shell: Arc<Shell<Route>>) -> Gateway {
        Gateway { port: options.port, version: options.version, service, shell }
    }

    pub(crate) fn is_for_administrators(&self) -> bool {
        matches!(self.port, Port::Administrators { .. })
    }
}
