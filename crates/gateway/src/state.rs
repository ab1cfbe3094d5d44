//! The two surfaces: what their handlers share.

use std::sync::Arc;

use flatbed_http::Shell;
use flatbed_service::Service;

use crate::route::Route;

/// Whom a surface serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// Users, and who is nobody.
    Public,
    /// Whoever can connect, as an administrator of the server: nobody is asked for a password. It belongs behind a listener
    /// that nobody else reaches.
    Administrators {
        /// Whether it may listen on other addresses than those of this machine.
        anywhere: bool,
    },
}

/// How a surface is set up.
#[derive(Debug, Clone)]
pub struct GatewayOptions {
    /// Whom it serves.
    pub port: Port,
    /// This program's version.
    pub version: String,
}

/// One of the surfaces. Whoever puts a program together makes its parts.
pub struct Gateway {
    pub(crate) port: Port,
    pub(crate) version: String,
    pub(crate) service: Service,
    pub(crate) shell: Arc<Shell<Route>>,
}

impl Gateway {
    /// A surface of what `service` serves.
    pub fn new(options: GatewayOptions, service: Service, shell: Arc<Shell<Route>>) -> Gateway {
        Gateway { port: options.port, version: options.version, service, shell }
    }

    /// Whether it is that of administrators.
    pub(crate) fn is_for_administrators(&self) -> bool {
        matches!(self.port, Port::Administrators { .. })
    }
}
