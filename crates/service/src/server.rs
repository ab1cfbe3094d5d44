//! The server in the hands of one of its administrators.

use crate::configuration::Configuration;
use flatbed_layer::{
    CompactionProgress, DatabaseUpdates, DatabaseUpdatesQuery, IndexBuild, IndexWait, Layer, NameRange, Result, Seq,
    ViewTask, ViewWait,
};

/// What is the server's, for its administrators.
#[derive(Clone, Copy)]
pub struct ServerAdministration<'c> {
    pub(crate) layer: &'c Layer,
    pub(crate) configuration: &'c Configuration,
}

impl<'c> ServerAdministration<'c> {
    /// The settings that may change while it serves.
    pub fn configuration(&self) -> &'c Configuration {
        self.configuration
    }

    /// See [`Layer::all_databases`].
    ///
    /// # Errors
    /// As there.
    pub async fn all_databases(&self, range: &NameRange) -> Result<Vec<String>> {
        self.layer.all_databases(range).await
    }

    /// See [`Layer::compactions`].
    pub fn compactions(&self) -> Vec<CompactionProgress> {
        self.layer.compactions()
    }

    /// See [`Layer::view_tasks`].
    pub fn view_tasks(&self) -> Vec<ViewTask> {
        self.layer.view_tasks()
    }

    /// See [`Layer::view_waits`].
    pub fn view_waits(&self) -> (Vec<ViewWait>, u64) {
        self.layer.view_waits()
    }

    /// See [`Layer::index_builds`].
    pub fn index_builds(&self) -> Vec<IndexBuild> {
        self.layer.index_builds()
    }

    /// See [`Layer::index_waits`].
    pub fn index_waits(&self) -> (Vec<IndexWait>, u64) {
        self.layer.index_waits()
    }

    /// See [`Layer::database_updates`].
    pub fn database_updates(&self, query: DatabaseUpdatesQuery) -> DatabaseUpdates {
        self.layer.database_updates(query)
    }

    /// See [`Layer::newest_database_update`].
    ///
    /// # Errors
    /// As there.
    pub async fn newest_database_update(&self) -> Result<Seq> {
        self.layer.newest_database_update().await
    }
}
