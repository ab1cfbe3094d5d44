//! Rights that were given, and are asked for again.
//!
//! A right is given when a request has come, or its body has. What it rests on may change before something is written: then
//! the layer refuses the write ([`Refusal::UserChanged`]), mostly of one who has the right still: their document has another
//! member, or their password was hashed anew. So it is found out who they are as of then, the right is judged once more, and
//! what was refused is written with that. A right that was given longer ago is asked for before anything is written at all.

use std::sync::Arc;

use flatbed_layer::{Error, Layer, Refusal, Result, USERS, is_replicator_name};

use crate::accounts::{Accounts, Fresh};
use crate::rights::{Denied, Granted, Needs, Rights, refusal};
use crate::standing::RestsOn;

/// How often a right is asked for again because what it rests on has changed: who changes all the time waits.
pub(crate) const AGAIN_MAX: usize = 3;

/// What somebody can write with who has a right. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Given<D> {
    /// As it was given first.
    pub(crate) first: D,
    /// `None`: it is the server's own.
    again: Option<Arc<Again<D>>>,
    /// Who knows users of the database, and its name.
    users: Option<(Arc<Accounts>, Arc<str>)>,
}

/// How it is asked for again.
struct Again<D> {
    layer: Layer,
    accounts: Arc<Accounts>,
    rights: Rights,
    name: Arc<str>,
    needs: Needs,
    make: fn(&Granted<'_>) -> D,
}

impl<D: Clone> Given<D> {
    pub(crate) fn new(granted: &Granted<'_>, needs: Needs, make: fn(&Granted<'_>) -> D) -> Given<D> {
        let again = || Again {
            layer: granted.layer.clone(),
            accounts: granted.accounts.clone(),
            rights: granted.rights.clone(),
            name: granted.name.into(),
            needs,
            make,
        };
        let is_servers = matches!(granted.rights.standing.rests_on(), RestsOn::Server);
        let users = Some((Arc::clone(granted.accounts), granted.name.into()));
        Given { first: make(granted), again: (!is_servers).then(|| Arc::new(again())), users }
    }

    /// What is not asked for again.
    #[cfg(test)]
    pub(crate) fn fixed(first: D) -> Given<D> {
        Given { first, again: None, users: None }
    }

    /// What may be written with now.
    ///
    /// # Errors
    /// That the right is there no longer, as the layer says it; those of the layer.
    pub(crate) async fn now(&self) -> Result<D> {
        match self.again.as_deref().filter(|again| again.rights.are_old()) {
            None => Ok(self.first.clone()),
            Some(again) => Box::pin(again.ask(Fresh::Second)).await,
        }
    }

    /// The same, after it was found that it has changed.
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn changed(&self) -> Result<D> {
        match self.again.as_deref() {
            None => Err(Refusal::UserChanged.into()),
            Some(again) => Box::pin(again.ask(Fresh::Since(again.layer.clock().now()))).await,
        }
    }

    /// This process has changed a user of the database, or may have: what it knows of them is of before.
    pub(crate) fn forget_user(&self, name: &str) {
        if let Some((accounts, database)) = &self.users {
            accounts.principals.forget(database, name);
        }
    }

    /// This process has written documents of the database, or may have. Those of `_users` are accounts, and whoever signs in with
    /// one from now on is to find it as it was written.
    pub(crate) fn forget_accounts<'i>(&self, ids: impl Iterator<Item = &'i str>) {
        if let Some((accounts, database)) = &self.users
            && **database == *USERS
        {
            accounts.forget(ids);
        }
    }

    /// Writes something, and again where the right has changed.
    ///
    /// # Errors
    /// [`Refusal::UserChanged`]: it changes all the time; as of [`Given::now`]; and those of what is done.
    pub(crate) async fn write<T, W: Future<Output = Result<T>>>(&self, mut write: impl FnMut(D) -> W) -> Result<T> {
        let mut done = write(self.now().await?).await;
        for _ in 0..AGAIN_MAX {
            if !matches!(done, Err(Error::Refused(Refusal::UserChanged))) {
                break;
            }
            done = write(self.changed().await?).await;
        }
        done
    }
}

impl<D> Again<D> {
    async fn ask(&self, fresh: Fresh) -> Result<D> {
        self.given(fresh).await.map_err(|denied| match denied {
            Denied::Refused(refused) => Error::Refused(refusal(refused)),
            Denied::Layer(error) => error,
        })
    }

    async fn given(&self, fresh: Fresh) -> std::result::Result<D, Denied> {
        let rights = self.rights.anew(&self.accounts, fresh).await?;
        let is_read = !rights.principal().is_admin || is_replicator_name(&self.name);
        if matches!(fresh, Fresh::Since(_)) && is_read {
            // What is known of the database's may be some of a second old.
            self.layer.securities(std::slice::from_ref(&self.name)).await?;
        }
        Ok((self.make)(&rights.grant(self.needs, &self.layer, &self.accounts, &self.name).await?))
    }
}

#[cfg(test)]
mod tests;
