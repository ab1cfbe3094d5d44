//! Grants that are renewed.
//!
//! A right is granted when a request or its body has arrived. Its basis may change before the write; then the layer
//! refuses the write ([`Refusal::UserChanged`]). Mostly the user still has the right: the user document has another
//! member, or the password was rehashed. So the service renews the standing, judges the right again, and retries the
//! write. An old grant is renewed before the first write.

use std::sync::Arc;

use flatbed_layer::{Error, Layer, Refusal, Result, USERS, is_replicator_name};

use crate::accounts::{Accounts, Freshness};
use crate::rights::{AccessError, DatabaseGrant, Requirement, Rights, refusal};
use crate::standing::RightsBasis;

/// The most renewals for one write; a user who keeps changing gets the refusal.
pub(crate) const RENEWALS_MAX: usize = 3;

/// A granted right to write, with its renewal. Cheap to clone.
#[derive(Clone)]
pub(crate) struct RenewableGrant<D> {
    pub(crate) first: D,
    /// `None`: the server's own right, which is never renewed.
    renewal: Option<Arc<Renewal<D>>>,
    /// The cache of the database's users, and the database's name.
    users: Option<(Arc<Accounts>, Arc<str>)>,
}

struct Renewal<D> {
    layer: Layer,
    accounts: Arc<Accounts>,
    rights: Rights,
    name: Arc<str>,
    needs: Requirement,
    make: fn(&DatabaseGrant<'_>) -> D,
}

impl<D: Clone> RenewableGrant<D> {
    pub(crate) fn new(
        granted: &DatabaseGrant<'_>,
        needs: Requirement,
        make: fn(&DatabaseGrant<'_>) -> D,
    ) -> RenewableGrant<D> {
        let renewal = || Renewal {
            layer: granted.layer.clone(),
            accounts: granted.accounts.clone(),
            rights: granted.rights.clone(),
            name: granted.name.into(),
            needs,
            make,
        };
        let is_servers = matches!(granted.rights.standing.basis(), RightsBasis::Server);
        let users = Some((Arc::clone(granted.accounts), granted.name.into()));
        RenewableGrant { first: make(granted), renewal: (!is_servers).then(|| Arc::new(renewal())), users }
    }

    #[cfg(test)]
    pub(crate) fn fixed(first: D) -> RenewableGrant<D> {
        RenewableGrant { first, renewal: None, users: None }
    }

    /// Returns the grant, renewed if it is old.
    pub(crate) async fn now(&self) -> Result<D> {
        match self.renewal.as_deref().filter(|renewal| renewal.rights.is_renewal_due()) {
            None => Ok(self.first.clone()),
            Some(renewal) => Box::pin(renewal.renew(Freshness::Second)).await,
        }
    }

    /// Renews the grant after a change of its basis.
    pub(crate) async fn changed(&self) -> Result<D> {
        match self.renewal.as_deref() {
            None => Err(Refusal::UserChanged.into()),
            Some(renewal) => Box::pin(renewal.renew(Freshness::Since(renewal.layer.clock().now()))).await,
        }
    }

    /// Drops cached state of a user after this process has changed the user, or may have.
    pub(crate) fn forget_user(&self, name: &str) {
        if let Some((accounts, database)) = &self.users {
            accounts.principals.forget(database, name);
        }
    }

    /// Drops cached accounts after this process has written documents of the database, or may have. A later sign-in
    /// with a document of `_users` must see the new revision.
    pub(crate) fn forget_accounts<'i>(&self, ids: impl Iterator<Item = &'i str>) {
        if let Some((accounts, database)) = &self.users
            && **database == *USERS
        {
            accounts.forget(ids);
        }
    }

    /// Writes, and retries with a renewed grant if the basis has changed.
    ///
    /// # Errors
    /// [`Refusal::UserChanged`] after [`RENEWALS_MAX`] renewals; the errors of [`RenewableGrant::now`] and of `write`.
    pub(crate) async fn write<T, W: Future<Output = Result<T>>>(&self, mut write: impl FnMut(D) -> W) -> Result<T> {
        let mut done = write(self.now().await?).await;
        for _ in 0..RENEWALS_MAX {
            if !matches!(done, Err(Error::Refused(Refusal::UserChanged))) {
                break;
            }
            done = write(self.changed().await?).await;
        }
        done
    }
}

impl<D> Renewal<D> {
    async fn renew(&self, fresh: Freshness) -> Result<D> {
        self.given(fresh).await.map_err(|denied| match denied {
            AccessError::Refused(refused) => Error::Refused(refusal(refused)),
            AccessError::Layer(error) => error,
        })
    }

    async fn given(&self, fresh: Freshness) -> std::result::Result<D, AccessError> {
        let rights = self.rights.renew(&self.accounts, fresh).await?;
        let is_read = !rights.principal().is_admin || is_replicator_name(&self.name);
        if matches!(fresh, Freshness::Since(_)) && is_read {
            // The cached `_security` may be up to a second old.
            self.layer.securities(std::slice::from_ref(&self.name)).await?;
        }
        Ok((self.make)(&rights.grant(self.needs, &self.layer, &self.accounts, &self.name).await?))
    }
}

#[cfg(test)]
mod tests;
