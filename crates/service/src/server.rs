//! The server, as granted to its administrators.

use std::net::IpAddr;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use flatbed_auth::Principal;
use flatbed_layer::{
    CompactionProgress, DatabaseSecurity, DatabaseUpdates, DatabaseUpdatesQuery, Error, Gate, IndexBuild, IndexWait,
    Layer, NameRange, Refusal, Result, ResyncTask, Seq, ViewTask, ViewWait,
};

use crate::accounts::{Accounts, Freshness};
use crate::configuration::{ChangeError, ChangedBy, Configuration};
use crate::given::RENEWALS_MAX;
use crate::rights::{AccessError, Requirement, Rights, refusal};

/// Server-wide state and settings, for administrators.
#[derive(Clone)]
pub struct ServerAdministration<'c> {
    pub(crate) layer: &'c Layer,
    pub(crate) configuration: &'c Configuration,
    pub(crate) accounts: &'c Accounts,
    pub(crate) rights: Rights,
}

/// The list of databases.
#[derive(Clone, Copy)]
pub struct Databases<'c> {
    pub(crate) layer: &'c Layer,
}

impl Databases<'_> {
    /// See [`Layer::all_databases`].
    #[boxed]
    pub async fn all_databases(&self, range: &NameRange) -> Result<Vec<String>> {
        self.layer.all_databases(range).await
    }
}

/// Allows writes to administrators of the server.
#[derive(Debug)]
struct ServerAdminGate(Principal);

impl Gate for ServerAdminGate {
    fn judge(&self, _: &DatabaseSecurity) -> std::result::Result<(), Refusal> {
        Requirement::Server.in_server(&self.0).map_err(refusal)
    }
}

fn of_denied(denied: AccessError) -> Error {
    match denied {
        AccessError::Refused(refused) => Error::Refused(refusal(refused)),
        AccessError::Layer(error) => error,
    }
}

impl<'c> ServerAdministration<'c> {
    /// The settings that may change at run time.
    pub fn configuration(&self) -> &'c Configuration {
        self.configuration
    }

    /// Stores a setting on behalf of the principal: see [`Configuration::set`]. `from` is the client's address, for
    /// the log.
    ///
    /// # Errors
    /// As there; a refusal if the principal no longer administers the server.
    #[boxed]
    pub async fn set(
        &self,
        section: &str,
        key: &str,
        text: &str,
        from: Option<IpAddr>,
    ) -> std::result::Result<String, ChangeError> {
        self.change(section, key, Some(text), from).await
    }

    /// Removes a stored setting: see [`Configuration::remove`].
    #[boxed]
    pub async fn remove(
        &self,
        section: &str,
        key: &str,
        from: Option<IpAddr>,
    ) -> std::result::Result<String, ChangeError> {
        self.change(section, key, None, from).await
    }

    /// Sets a setting of this process, or removes it if there is no text: see [`Configuration::set_here`].
    ///
    /// # Errors
    /// As there; a refusal if the principal no longer administers the server.
    #[boxed]
    pub async fn change_here(
        &self,
        section: &str,
        key: &str,
        text: Option<&str>,
        from: Option<IpAddr>,
    ) -> std::result::Result<String, ChangeError> {
        // No transaction judges the change, so the rights are those of now.
        let rights = self.rights.renew(self.accounts, Freshness::Since(self.layer.clock().now())).await;
        let rights = rights.map_err(of_denied)?;
        Requirement::Server.in_server(rights.principal()).map_err(|refused| Error::Refused(refusal(refused)))?;
        let name = rights.principal().name.as_deref();
        match text {
            Some(text) => self.configuration.set_here(section, key, text, name, from).await,
            None => self.configuration.remove_here(section, key, name, from).await,
        }
    }

    /// Changes a setting, or removes it if there is no text. Retries once with renewed rights if their basis has
    /// changed.
    async fn change(
        &self,
        section: &str,
        key: &str,
        text: Option<&str>,
        from: Option<IpAddr>,
    ) -> std::result::Result<String, ChangeError> {
        let mut rights = self.rights.clone();
        for _ in 0..=RENEWALS_MAX {
            let actor = rights.user().through(Arc::new(ServerAdminGate(rights.principal().clone())));
            let by = ChangedBy { actor: &actor, name: rights.principal().name.as_deref(), from };
            let done = match text {
                Some(text) => self.configuration.set(section, key, text, by).await,
                None => self.configuration.remove(section, key, by).await,
            };
            match done {
                Err(ChangeError::Layer(Error::Refused(Refusal::UserChanged))) => {}
                done => return done,
            }
            let now = rights.renew(self.accounts, Freshness::Since(self.layer.clock().now())).await;
            rights = now.map_err(of_denied)?;
        }
        Err(Error::from(Refusal::UserChanged).into())
    }

    /// See [`Layer::resyncs`].
    pub fn resyncs(&self) -> Vec<ResyncTask> {
        self.layer.resyncs()
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

    /// Returns the names of the current replicator databases beside `_replicator`, sorted. See
    /// [`Layer::replicator_databases`].
    #[boxed]
    pub async fn replicator_databases(&self) -> Result<Vec<Arc<str>>> {
        self.layer.replicator_databases().names().await
    }

    /// See [`Layer::newest_database_update`].
    #[boxed]
    pub async fn newest_database_update(&self) -> Result<Seq> {
        self.layer.newest_database_update().await
    }
}
