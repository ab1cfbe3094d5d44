//! The CouchDB surface: what its handlers share.

use std::collections::HashMap;
use std::sync::Arc;

use flatbed_auth::PasswordHash;
use flatbed_http::Shell;
use flatbed_javascript::Runner;
use flatbed_replicator::Replicator;
use flatbed_service::{Selectors, Service};

use crate::auth::Admins;
use crate::health::StorageHealth;
use crate::ids::Uuids;
use crate::metrics::{Feeds, FiguresElsewhere};
use crate::route::Route;

/// How the surface is set up.
#[derive(Debug, Clone)]
pub struct CouchOptions {
    /// Administrators and their passwords' hashes; none: everyone is one.
    pub admins: HashMap<String, PasswordHash>,
    /// This program's version, told in `GET /`.
    pub version: String,
    /// Where a failure of the storage is reported.
    pub health: StorageHealth,
    /// What `/metrics` tells besides the figures of the server, of this surface and of its layer.
    pub figures: FiguresElsewhere,
}

impl Default for CouchOptions {
    fn default() -> Self {
        CouchOptions {
            admins: HashMap::new(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            health: StorageHealth::default(),
            figures: FiguresElsewhere::default(),
        }
    }
}

/// CouchDB's API on a layer: see the crate's documentation. Whoever puts a program together makes its parts.
pub struct State {
    pub(crate) service: Service,
    pub(crate) shell: Arc<Shell<Route>>,
    pub(crate) admins: Admins,
    pub(crate) version: String,
    pub(crate) feeds: Arc<Feeds>,
    pub(crate) uuids: Uuids,
    pub(crate) health: StorageHealth,
    pub(crate) figures: FiguresElsewhere,
    pub(crate) functions: Runner,
    pub(crate) selectors: Selectors,
    pub(crate) replicator: Arc<Replicator>,
}

impl State {
    /// `functions` runs filters, and what the layer validates with; `replicator` runs `_replicate`, and is started
    /// and stopped by whoever made it.
    pub fn new(
        options: CouchOptions,
        service: Service,
        shell: Arc<Shell<Route>>,
        functions: Runner,
        replicator: Arc<Replicator>,
    ) -> State {
        State {
            service,
            shell,
            admins: Admins::new(options.admins),
            version: options.version,
            feeds: Arc::default(),
            uuids: Uuids::default(),
            health: options.health,
            figures: options.figures,
            functions,
            selectors: Selectors::new(),
            replicator,
        }
    }
}
