//! On whose behalf replications run.

use std::sync::Arc;
use std::time::Duration;

use flatbed_layer::Result;
use flatbed_replicate::Error;
use flatbed_service::{Accounts, OwnerAccount, RestsOn, Standing};

/// How often it is looked whether an owner still has the rights that a run began with.
const LOOK: Duration = Duration::from_millis(900);

/// A run does not go on for longer without that.
const UNKNOWN_MAX: Duration = Duration::from_secs(10);

/// On whose behalf a replication runs. What they may do is found out when it is needed, and again while it runs. Cheap to
/// clone.
#[derive(Debug, Clone)]
pub enum Owner {
    /// The server itself.
    Server,
    /// Whoever has the account of this name.
    Named {
        /// The name.
        name: Arc<str>,
        /// Which of those that the name has had. `None`: an administrator has said whose it is, whichever that is.
        account: Option<OwnerAccount>,
    },
    /// Whoever wrote the document, where everyone was an administrator: for as long as everyone is one.
    Anybody,
    /// Who has no account here, as their token or their proxy said it; anybody, as long as everyone is an administrator.
    Shown(Standing),
}

impl Owner {
    /// Whoever makes a request.
    pub fn of(standing: &Standing) -> Owner {
        match standing.rests_on() {
            RestsOn::Server => Owner::Server,
            RestsOn::Admin { name, .. } | RestsOn::Document { name, .. } => match OwnerAccount::of(standing) {
                // Named without one it would be whoever has the name.
                Some(account) => Owner::Named { name: name.as_str().into(), account: Some(account) },
                None => Owner::Shown(standing.clone()),
            },
            RestsOn::OpenServer
            | RestsOn::Nothing
            | RestsOn::Token { .. }
            | RestsOn::Proxy
            | RestsOn::Principal { .. } => Owner::Shown(standing.clone()),
        }
    }

    /// Whether it is whoever makes a request.
    pub(crate) fn is(&self, standing: &Standing) -> bool {
        match self {
            Owner::Server | Owner::Anybody => false,
            Owner::Named { name, account } => {
                let theirs = OwnerAccount::of(standing);
                let is_theirs = theirs.is_some() && (account.is_none() || theirs == *account);
                is_theirs && standing.principal().name.as_deref() == Some(name)
            }
            // The same name that was said in the same way.
            Owner::Shown(shown) => {
                let way = |of: &Standing| std::mem::discriminant(of.rests_on());
                let name = standing.principal().name.as_ref();
                name.is_some() && shown.principal().name.as_ref() == name && way(shown) == way(standing)
            }
        }
    }

    /// The user's name.
    pub fn name(&self) -> Option<&str> {
        match self {
            Owner::Server | Owner::Anybody => None,
            Owner::Named { name, .. } => Some(name),
            Owner::Shown(standing) => standing.principal().name.as_deref(),
        }
    }

    /// Who it is at this moment, as of less than a second ago. `None`: nobody any more.
    ///
    /// # Errors
    /// Those of the storage, which then does not say it.
    pub async fn now(&self, accounts: &Accounts) -> Result<Option<Standing>> {
        match self {
            Owner::Server => Ok(Some(Standing::of_server())),
            Owner::Named { name, account } => {
                let is_theirs = |now: &Standing| account.is_none() || OwnerAccount::of(now) == *account;
                Ok(accounts.named(name).await?.filter(is_theirs))
            }
            Owner::Anybody => accounts.anybody().await,
            Owner::Shown(standing) => Ok(accounts.now(standing).await?.map(|_| standing.clone())),
        }
    }

    /// Whether they administer the server.
    ///
    /// # Errors
    /// [`Error::OwnerGone`], [`Error::OwnerUnknown`]: they are nobody any more; [`Error::Owner`]: it is not known.
    pub(crate) async fn is_admin(&self, accounts: &Accounts) -> std::result::Result<bool, Error> {
        match self.now(accounts).await {
            Ok(Some(standing)) => Ok(standing.principal().is_admin),
            Ok(None) if matches!(self, Owner::Anybody) => Err(Error::OwnerUnknown),
            Ok(None) => Err(Error::OwnerGone),
            Err(error) => {
                tracing::debug!(%error, "the account of who asked for a replication could not be read");
                Err(Error::Owner("the account of who asked for it could not be read"))
            }
        }
    }

    /// Resolves when they have no longer the rights of before: they are nobody any more, or no administrator, or one now.
    pub(crate) async fn changed(&self, was_admin: bool, accounts: &Accounts) -> Error {
        if let Owner::Server = self {
            return std::future::pending().await;
        }
        let (mut changes, clock) = (accounts.changes(), accounts.clock());
        let mut known = clock.now();
        loop {
            // What has not been looked at is not told either: so it is looked at.
            let _ = clock.timeout(LOOK, changes.changed()).await;
            match self.now(accounts).await {
                Ok(Some(standing)) if standing.principal().is_admin == was_admin => known = clock.now(),
                // What needs the account here is refused meanwhile.
                Err(_) if clock.since(known) < UNKNOWN_MAX => {}
                Err(_) => return Error::Owner("the account of who asked for it could not be read"),
                Ok(_) => return Error::Owner("who asked for it has other rights now"),
            }
            if changes.has_changed().is_err() {
                clock.sleep(LOOK).await;
            }
        }
    }
}
