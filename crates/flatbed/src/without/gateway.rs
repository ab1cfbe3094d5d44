//! The stub of Sync Gateway's API in a build without the feature `gateway`. Its settings are refused
//! ([`part`](crate::part)).

use flatbed_http::Listen;
use flatbed_metrics::Family;
use flatbed_service::Service;

use crate::serve::ServeError;
use crate::settings::{Layer, Settings, SettingsError};

/// Settings of Sync Gateway's API: no value exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GatewaySettings {}

impl GatewaySettings {
    /// Reads none of `layers`.
    ///
    /// # Errors
    /// None.
    pub(crate) fn resolve(_: &[Layer]) -> Result<Option<GatewaySettings>, SettingsError> {
        Ok(None)
    }

    pub(crate) fn servers(&self) -> usize {
        match *self {}
    }
}

/// A server of Sync Gateway's API: no value exists.
pub(crate) enum GatewayServer {}

impl GatewayServer {
    /// Never called, since there are no settings.
    ///
    /// # Errors
    /// None.
    pub(crate) async fn open(
        (_, gateway): (&Settings, &GatewaySettings),
        _: &Service,
        _: usize,
        _: usize,
    ) -> Result<Vec<GatewayServer>, ServeError> {
        match *gateway {}
    }

    pub(crate) fn name(&self) -> &'static str {
        match *self {}
    }

    /// Its addresses.
    pub(crate) fn listening(&self) -> Vec<Listen> {
        match *self {}
    }

    /// Its metrics.
    pub(crate) fn figures(&self) -> fn() -> Vec<Family> {
        match *self {}
    }

    /// Serves until `shutdown` resolves.
    pub(crate) async fn serve(self, _: impl Future<Output = ()>) {
        match self {}
    }
}
