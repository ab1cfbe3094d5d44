//! The CouchDB surface: what its handlers share.

use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "worker")]
use flatbed_dispatcher::Dispatcher;
use flatbed_http::{Cors, Limits, Shell};
use flatbed_replicator::Replicator;
use flatbed_service::Service;
use flatbed_service::configuration::{CorsSettings, LimitSettings};
use tokio::sync::Semaphore;

use crate::health::StorageHealth;
use crate::ids::Uuids;
use crate::metrics::{Feeds, FiguresElsewhere, Queries};
use crate::route::Route;

/// Large answers that functions have made, while they wait for room.
const LARGE_ANSWERS_MAX: usize = 4;

/// The version of CouchDB that clients are told. Clients choose their requests by it.
pub(crate) const COUCHDB_VERSION: &str = "3.5.2";

/// Returns the header `Server` of a program of this version: clients look for `CouchDB/` at its beginning.
#[must_use]
pub fn server_header(version: &str) -> String {
    format!("CouchDB/{COUCHDB_VERSION} (Flatbed/{version})")
}

/// How the surface is set up.
#[derive(Debug, Clone)]
pub struct CouchOptions {
    /// This program's version, told in `GET /`.
    pub version: String,
    /// Where a failure of the storage is reported.
    pub health: StorageHealth,
    /// What `/metrics` tells besides the figures of the server, of this surface and of its layer.
    pub figures: FiguresElsewhere,
    /// Serves the console at `/_utils/`. Its files need the feature `console`.
    pub has_console: bool,
    /// For the body of a sign-in to come: anybody may send one.
    pub session_body_max: Duration,
}

impl Default for CouchOptions {
    fn default() -> Self {
        CouchOptions {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            health: StorageHealth::default(),
            figures: FiguresElsewhere::default(),
            has_console: true,
            session_body_max: Duration::from_secs(30),
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
    pub(crate) has_console: bool,
    pub(crate) session_body_max: Duration,
    pub(crate) replicator: Arc<Replicator>,
    /// The jobs of the worker.
    #[cfg(feature = "worker")]
    pub(crate) dispatcher: Option<Arc<Dispatcher>>,
    /// Whose large answers, made by functions, wait for room.
    pub(crate) large_answers: Semaphore,
}

/// Which pages of other origins may call.
fn cors_of(settings: &CorsSettings) -> Cors {
    let CorsSettings { is_enabled, origins, credentials, headers, max_age_s } = settings.clone();
    if !is_enabled {
        return Cors::default();
    }
    Cors { origins, credentials, headers, max_age_seconds: max_age_s }
}

/// The limits that a server was started with, but for those that are stored.
fn limits_of(mut limits: Limits, settings: &LimitSettings) -> Limits {
    for (name, text) in &settings.of_clients {
        if let Err(error) = limits.set(name, text) {
            tracing::error!(%error, "a stored limit does not fit");
        }
    }
    limits
}

impl State {
    /// `replicator` runs `_replicate`, and is started and stopped by whoever made it.
    pub fn new(
        options: CouchOptions,
        service: Service,
        shell: Arc<Shell<Route>>,
        replicator: Arc<Replicator>,
    ) -> State {
        let (of_shell, limits) = (Arc::clone(&shell), shell.limits());
        service.configuration().on_change(move |settings| {
            of_shell.set_cors(cors_of(&settings.cors));
            of_shell.set_limits(limits_of(limits, &settings.limits));
        });
        State {
            service,
            shell,
            version: options.version,
            feeds: Arc::default(),
            queries: Arc::default(),
            uuids: Uuids::default(),
            health: options.health,
            figures: options.figures,
            has_console: options.has_console,
            session_body_max: options.session_body_max,
            replicator,
            #[cfg(feature = "worker")]
            dispatcher: None,
            large_answers: Semaphore::new(LARGE_ANSWERS_MAX),
        }
    }

    /// With the worker's jobs, which whoever made it starts and stops, if they run in this process.
    #[cfg(feature = "worker")]
    #[must_use]
    pub fn with_worker(self, dispatcher: Arc<Dispatcher>) -> State {
        State { dispatcher: Some(dispatcher), ..self }
    }
}
