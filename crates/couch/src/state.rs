//! The CouchDB surface: what its handlers share.

use std::sync::Arc;

use flatbed_http::Shell;
use flatbed_replicator::Replicator;
use flatbed_service::Service;
use tokio::sync::Semaphore;

use crate::health::StorageHealth;
use crate::ids::Uuids;
use crate::metrics::{Feeds, FiguresElsewhere, Queries};
use crate::route::Route;

/// Large answers that functions have made, while they wait for room.
const LARGE_ANSWERS_MAX: usize = 4;

/// How the surface is set up.
#[derive(Debug, Clone)]
pub struct CouchOptions {
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
    pub(crate) version: String,
    pub(crate) feeds: Arc<Feeds>,
    pub(crate) queries: Arc<Queries>,
    pub(crate) uuids: Uuids,
    pub(crate) health: StorageHealth,
    pub(crate) figures: FiguresElsewhere,
    pub(crate) replicator: Arc<Replicator>,
    /// Whose large answers, made by functions, wait for room.
    pub(crate) large_answers: Semaphore,
}

impl State {
    /// `replicator` runs `_replicate`, and is started and stopped by whoever made it.
    pub fn new(
        options: CouchOptions,
        service: Service,
        shell: Arc<Shell<Route>>,
        replicator: Arc<Replicator>,
    ) -> State {
        State {
            service,
            shell,
            version: options.version,
            feeds: Arc::default(),
            queries: Arc::default(),
            uuids: Uuids::default(),
            health: options.health,
            figures: options.figures,
            replicator,
            large_answers: Semaphore::new(LARGE_ANSWERS_MAX),
        }
    }
}
