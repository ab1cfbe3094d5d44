//! Owners: the users with whose rights replications run.

use std::sync::Arc;
use std::time::Duration;

use flatbed_layer::Result;
use flatbed_replicate::Error;
use flatbed_service::{Accounts, OwnerAccount, RightsBasis, Standing};

/// The interval at which an owner's rights are compared with those at the start of a run.
const LOOK: Duration = Duration::from_millis(900);

/// The time after which a run ends if the owner's rights cannot be read.
const UNKNOWN_MAX: Duration = Duration::from_secs(10);

/// The owner of a replication. Its rights are resolved when needed, and again while the replication runs. Cheap to
/// clone.
#[derive(Debug, Clone)]
pub enum Owner {
    /// The server itself.
    Server,
    /// The user with the account of this name.
    Named {
        /// The user's name.
        name: Arc<str>,
        /// The account, among those that the name has had. `None`: an administrator named the owner, and any account of
        /// the name matches.
        account: Option<OwnerAccount>,
    },
    /// The unknown writer of a document while everyone is an administrator. Valid as long as that holds.
    Anybody,
    /// A user without an account, known from a token or a proxy; anyone while everyone is an administrator.
    Shown(Standing),
}

impl Owner {
    /// Returns the owner that stands for the user of a request.
    pub fn of(standing: &Standing) -> Owner {
        match standing.basis() {
            RightsBasis::Server => Owner::Server,
            RightsBasis::Admin { name, .. } | RightsBasis::Document { name, .. } => match OwnerAccount::of(standing) {
                // Without the account, any later holder of the name would match.
                Some(account) => Owner::Named { name: name.as_str().into(), account: Some(account) },
                None => Owner::Shown(standing.clone()),
            },
            RightsBasis::OpenServer
            | RightsBasis::Nothing
            | RightsBasis::Token { .. }
            | RightsBasis::Proxy
            | RightsBasis::Principal { .. } => Owner::Shown(standing.clone()),
        }
    }

    /// Returns whether the user of a request is this owner.
    pub(crate) fn is(&self, standing: &Standing) -> bool {
        match self {
            Owner::Server | Owner::Anybody => false,
            Owner::Named { name, account } => {
                let theirs = OwnerAccount::of(standing);
                let is_theirs = theirs.is_some() && (account.is_none() || theirs == *account);
                is_theirs && standing.principal().name.as_deref() == Some(name)
            }
            // The same name from the same kind of credentials.
            Owner::Shown(shown) => {
                let way = |of: &Standing| std::mem::discriminant(of.basis());
                let name = standing.principal().name.as_ref();
                name.is_some() && shown.principal().name.as_ref() == name && way(shown) == way(standing)
            }
        }
    }

    /// Returns the user's name.
    pub fn name(&self) -> Option<&str> {
        match self {
            Owner::Server | Owner::Anybody => None,
            Owner::Named { name, .. } => Some(name),
            Owner::Shown(standing) => standing.principal().name.as_deref(),
        }
    }

    /// Returns the owner's current standing, at most a second old. `None`: the owner no longer exists.
    ///
    /// # Errors
    /// The storage failed, and the standing is unknown.
    pub async fn now(&self, accounts: &Accounts) -> Result<Option<Standing>> {
        match self {
            Owner::Server => Ok(Some(Standing::of_server())),
            Owner::Named { name, account } => {
                let is_theirs = |now: &Standing| account.is_none() || OwnerAccount::of(now) == *account;
                Ok(accounts.named(name).await?.filter(is_theirs))
            }
            Owner::Anybody => accounts.standing_of_everyone().await,
            Owner::Shown(standing) => Ok(accounts.now(standing).await?.map(|_| standing.clone())),
        }
    }

    /// Returns whether the owner is an administrator.
    ///
    /// # Errors
    /// [`Error::OwnerGone`], [`Error::OwnerUnknown`]: the owner no longer exists; [`Error::Owner`]: unknown.
    pub(crate) async fn is_admin(&self, accounts: &Accounts) -> std::result::Result<bool, Error> {
        match self.now(accounts).await {
            Ok(Some(standing)) => Ok(standing.principal().is_admin),
            Ok(None) if matches!(self, Owner::Anybody) => Err(Error::OwnerUnknown),
            Ok(None) => Err(Error::OwnerGone),
            Err(error) => {
                tracing::debug!(%error, "the account of a replication's owner could not be read");
                Err(Error::Owner("the account of the replication's owner could not be read"))
            }
        }
    }

    /// Resolves when the owner's rights have changed: the owner is gone, or gained or lost administrator rights.
    pub(crate) async fn changed(&self, was_admin: bool, accounts: &Accounts) -> Error {
        if let Owner::Server = self {
            return std::future::pending().await;
        }
        let (mut changes, clock) = (accounts.changes(), accounts.clock());
        let mut known = clock.now();
        loop {
            // Not all changes are notified, so the rights are also polled.
            let _ = clock.timeout(LOOK, changes.changed()).await;
            match self.now(accounts).await {
                Ok(Some(standing)) if standing.principal().is_admin == was_admin => known = clock.now(),
                // Requests that need the account fail meanwhile.
                Err(_) if clock.since(known) < UNKNOWN_MAX => {}
                Err(_) => return Error::Owner("the account of the replication's owner could not be read"),
                Ok(_) => return Error::Owner("the rights of the replication's owner have changed"),
            }
            if changes.has_changed().is_err() {
                clock.sleep(LOOK).await;
            }
        }
    }
}
