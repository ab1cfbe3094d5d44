//! The stub of the changes worker in a build without the feature `worker`. Its settings are refused
//! ([`part`](crate::part)), and no document is written to `_worker`.

use std::collections::HashMap;
use std::sync::Arc;

use flatbed_couch::Couch;
use flatbed_javascript::Runner;
use flatbed_layer::ServerActor;
use flatbed_metrics::Family;
use flatbed_replicator::Tls;
use flatbed_service::Functions;
use tokio::io::DuplexStream;

use crate::serve::ServeError;
use crate::settings::{Layer, SettingsError};

/// Makes a connection to the server itself.
pub(crate) type Connect = Arc<dyn Fn() -> DuplexStream + Send + Sync>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkerSettings;

impl WorkerSettings {
    /// Reads none of `layers`.
    ///
    /// # Errors
    /// None.
    pub(crate) fn resolve(_: &[Layer]) -> Result<WorkerSettings, SettingsError> {
        Ok(WorkerSettings)
    }
}

pub(crate) fn judging(functions: Functions) -> Functions {
    functions
}

/// A worker without jobs and without an API.
pub(crate) struct Worker;

impl Worker {
    /// Creates the stub.
    ///
    /// # Errors
    /// None.
    pub(crate) fn new(
        _: &WorkerSettings,
        _: (&HashMap<String, String>, Tls, Runner),
        _: (flatbed_layer::Layer, ServerActor),
        _: Connect,
    ) -> Result<Worker, ServeError> {
        Ok(Worker)
    }

    pub(crate) fn with_api(&self, couch: Couch) -> Couch {
        couch
    }

    /// Returns no metrics.
    pub(crate) fn figures(&self) -> fn() -> Vec<Family> {
        Vec::new
    }

    pub(crate) fn start(&self) -> impl Future<Output = ()> + 'static {
        std::future::ready(())
    }
}
