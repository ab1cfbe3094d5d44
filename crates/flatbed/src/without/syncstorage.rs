//! The stub of Firefox Sync in a build without the feature `firefox`. Its settings are refused ([`part`](crate::part)).

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

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SyncSettings {}

impl SyncSettings {
    /// Reads none of `layers`.
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

    /// Returns whether it has a listener of its own.
    pub(crate) fn has_listener(&self) -> bool {
        match *self {}
    }

    /// Returns its path on CouchDB's listeners.
    pub(crate) fn path(&self) -> Option<&str> {
        match *self {}
    }
}

pub(crate) enum FirefoxSync {}

impl FirefoxSync {
    /// Never called, since there are no settings.
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

    /// The mount at a path of CouchDB's listeners.
    pub(crate) fn mount(&self) -> Mount {
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

/// Refuses to check the stored data of Firefox Sync.
///
/// # Errors
/// Always.
pub(crate) async fn check(_: &Settings) -> Result<bool, Box<dyn Error>> {
    Err(FIREFOX.not_built("flatbed check --syncstorage").into())
}

/// Checks nothing.
///
/// # Errors
/// None.
pub(crate) async fn check_in(_: Arc<Database>, _: &Settings) -> Result<Option<bool>, Box<dyn Error>> {
    Ok(None)
}
