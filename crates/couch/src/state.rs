//! The state that handlers share.

use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "worker")]
use flatbed_dispatcher::Dispatcher;
use flatbed_http::{Cors, Limits, Shell};
use flatbed_replicator::Replicator;
use flatbed_service::Service;
use flatbed_service::configuration::{CorsSettings, LimitSettings};
use tokio::sync::Semaphore;

use crate::error::Result;
use crate::health::StorageHealth;
use crate::ids::Uuids;
use crate::metrics::{Feeds, MetricSources, Queries};
use crate::path::Target;
use crate::query::QueryBounds;
use crate::route::Route;

/// The number of large function answers that may wait for memory at once.
const LARGE_ANSWERS_MAX: usize = 4;

/// The CouchDB version that clients see and choose their requests by.
pub(crate) const COUCHDB_VERSION: &str = "3.5.2";

/// Returns the `Server` header. Clients look for `CouchDB/` at its beginning.
#[must_use]
pub fn server_header(version: &str) -> String {
    format!("CouchDB/{COUCHDB_VERSION} (Flatbed/{version})")
}

/// Options of the surface.
#[derive(Debug, Clone)]
pub struct CouchOptions {
    /// This program's version, shown in `GET /`.
    pub version: String,
    /// Receives failures of the storage.
    pub health: StorageHealth,
    /// Further metrics of `/metrics`, besides those of the server, this surface and its layer.
    pub figures: MetricSources,
    /// True to serve the console at `/_utils/`. Its files need the feature `console`.
    pub has_console: bool,
    /// Timeout of the body of a sign-in, which needs no credentials.
    pub session_body_max: Duration,
}

impl Default for CouchOptions {
    fn default() -> Self {
        CouchOptions {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            health: StorageHealth::default(),
            figures: MetricSources::default(),
            has_console: true,
            session_body_max: Duration::from_secs(30),
        }
    }
}

/// CouchDB's API on a layer; see the crate's documentation. The caller assembles its parts.
pub struct State {
    pub(crate) service: Service,
    pub(crate) shell: Arc<Shell<Route>>,
    pub(crate) version: String,
    pub(crate) feeds: Arc<Feeds>,
    pub(crate) queries: Arc<Queries>,
    pub(crate) uuids: Uuids,
    pub(crate) health: StorageHealth,
    pub(crate) figures: MetricSources,
    pub(crate) has_console: bool,
    pub(crate) session_body_max: Duration,
    pub(crate) replicator: Arc<Replicator>,
    #[cfg(feature = "worker")]
    pub(crate) dispatcher: Option<Arc<Dispatcher>>,
    /// Bounds the large function answers that wait for memory.
    pub(crate) large_answers: Semaphore,
}

fn cors_of(settings: &CorsSettings) -> Cors {
    let CorsSettings { is_enabled, origins, credentials, headers, methods, max_age_s } = settings.clone();
    if !is_enabled {
        return Cors::default();
    }
    Cors { origins, credentials, headers, methods, max_age_seconds: max_age_s }
}

/// Returns the limits from the start of the server, overridden by the stored ones.
fn limits_of(mut limits: Limits, settings: &LimitSettings) -> Limits {
    for (name, text) in &settings.of_clients {
        if let Err(error) = limits.set(name, text) {
            tracing::error!(%error, "a stored limit is invalid");
        }
    }
    limits
}

impl State {
    /// Returns a new id for a document.
    pub(crate) fn next_uuid(&self) -> Result<String> {
        self.uuids.next(&self.service.configuration().now().uuids, self.service.clock().unix_ms())
    }

    /// Returns the settings' bounds of parameters.
    pub(crate) fn query_bounds(&self) -> QueryBounds {
        let settings = self.service.configuration().now();
        let limits = &settings.limits;
        QueryBounds {
            rows: limits.view_rows,
            partition_rows: limits.partition_view_rows,
            feed_wait_ms: limits.feed_wait_ms,
        }
    }

    /// Parses a path. The settings decide whether a `+` in it is a space.
    pub(crate) fn parse_path(&self, path: &str) -> Result<Target> {
        if self.service.configuration().now().keeps_plus {
            Target::parse(&path.replace('+', "%2B"))
        } else {
            Target::parse(path)
        }
    }

    /// Creates the surface. The caller starts and stops `replicator`, which runs `_replicate`.
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
            of_shell.bound_bodies(usize::try_from(settings.limits.request_bytes).unwrap_or(usize::MAX));
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

    /// Adds the worker's API. The caller starts and stops `dispatcher`, if it runs in this process.
    #[cfg(feature = "worker")]
    #[must_use]
    pub fn with_worker(self, dispatcher: Arc<Dispatcher>) -> State {
        State { dispatcher: Some(dispatcher), ..self }
    }
}
