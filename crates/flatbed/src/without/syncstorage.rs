//! In the place of Firefox Sync in a build without the feature `firefox`. Its settings are refused
//! ([`part`](crate::part)).

use std::collections::HashMap;
use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;

use flatbed_http::{Listen, Mount};
use flatbed_metrics::Family;
use foundationdb::Database;

use crate::part::FIREFOX;
use crate::serve::ServeError;
use crate::settings::{Layer, Settings, SettingsError};

/// There are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SyncSettings {}

impl SyncSettings {
    /// Takes none of `layers`.
    ///
    /// # Errors
    /// None.
    pub(crate) fn resolve(_: &[Layer]) -> Result<Option<SyncSettings>, SettingsError> {
        Ok(None)
    }

    /// The secret.
    ///
    /// # Errors
    /// None.
    pub(crate) fn secret(&self, _: &HashMap<String, String>) -> Result<Infallible, ServeError> {
        match *self {}
    }

    /// Whether it has a listener of its own.
    pub(crate) fn has_listener(&self) -> bool {
        match *self {}
    }

    /// The path of CouchDB's listeners that it is at.
    pub(crate) fn path(&self) -> Option<&str> {
        match *self {}
    }
}

/// There is none.
pub(crate) enum FirefoxSync {}

impl FirefoxSync {
    /// Is not called, as there are no settings.
    ///
    /// # Errors
    /// None.
    pub(crate) async fn open(
        (_, sync): (&Settings, &SyncSettings),
        _: Infallible,
        _: Arc<Database>,
        _: usize,
    ) -> Result<FirefoxSync, ServeError> {
        match *sync {}
    }

    /// What CouchDB's server has at a path of its listeners.
    pub(crate) fn mount(&self) -> Mount {
        match *self {}
    }

    /// Where it listens.
    pub(crate) fn listening(&self) -> Vec<Listen> {
        match *self {}
    }

    /// What it has counted, whenever it is asked.
    pub(crate) fn figures(&self) -> fn() -> Vec<Family> {
        match *self {}
    }

    /// Serves until `shutdown` resolves.
    pub(crate) async fn serve(self, _: impl Future<Output = ()>) {
        match self {}
    }
}

/// Refuses to check what is stored of Firefox Sync.
///
/// # Errors
/// Always.
pub(crate) async fn check(_: &Settings) -> Result<bool, Box<dyn Error>> {
    Err(FIREFOX.not_built("flatbed check --syncstorage").into())
}
