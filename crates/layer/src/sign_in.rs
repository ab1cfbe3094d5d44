//! What who signs in is judged by, as far as it is stored: up to where `_users` was written, and the secrets of sessions.
//!
//! The transaction that reads it brings `\xff/metadataVersion` with its read version, which is another one after each change of
//! a database's record, `_security` among it, and of the stored settings. So one look confirms all that answers rest on.

use async_recursion::async_recursion as boxed;

use crate::confirmed::RecordState;
use crate::error::{Error, Result};
use crate::layer::{Inner, Layer};
use crate::store::database_name::USERS;
use crate::store::keys::{Counter, METADATA_VERSION};
use crate::store::once::random_id;
use crate::store::secrets::{MakeSecret, RotateSecret, SECRET_BYTES, SigningSecret, secrets_of};
use crate::store::seq::Seq;
use crate::store::transaction::{self, Attempt, Operation, Transaction};

/// Which state `_users` is in: another one after each write to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsersState {
    /// The newest sequence, which tells this database from others that had the name.
    pub update_seq: Seq,
    /// How often something was purged: no feed has that.
    pub purges: i64,
}

/// What is stored of signing in, of one read version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignInState {
    /// Of `_users`; `None`: there is no such database.
    pub users: Option<UsersState>,
    /// The secrets of sessions, newest first: the one that signs, and those before it.
    pub secrets: Vec<SigningSecret>,
}

impl Layer {
    /// What is stored of signing in, and the state of all records at the same read version: what was cached of these, and of
    /// the [stored settings](Layer::stored_settings), is confirmed where that has not moved. Makes the first secret.
    ///
    /// # Errors
    /// [`Error::Storage`].
    #[boxed]
    pub async fn sign_in_state(&self) -> Result<(SignInState, RecordState)> {
        let inner = &*self.inner;
        let (users, secrets, records) = transaction::read(&inner.db, &inner.metrics, &mut ReadState { inner }).await?;
        let secrets = match secrets {
            Some(secrets) => secrets,
            None => {
                let mut make = MakeSecret { keys: &inner.keys, new: random_secret()? };
                transaction::write(&inner.db, &inner.metrics, &mut make).await?
            }
        };
        Ok((SignInState { users, secrets }, records))
    }

    /// Has another secret sign sessions from now on. What those before have signed counts for as long as a session lasts.
    ///
    /// # Errors
    /// [`Error::Storage`]. It may have taken place where it is not known whether a commit was made.
    #[boxed]
    pub async fn rotate_secret(&self) -> Result<()> {
        let inner = &*self.inner;
        let mut rotate = RotateSecret { keys: &inner.keys, new: random_secret()?, now_ms: inner.clock.unix_ms() };
        transaction::write(&inner.db, &inner.metrics, &mut rotate).await
    }
}

fn random_secret() -> Result<[u8; SECRET_BYTES]> {
    let mut secret = [0; SECRET_BYTES];
    let (first, second) = (random_id()?, random_id()?);
    for (byte, random) in secret.iter_mut().zip(first.into_iter().chain(second)) {
        *byte = random;
    }
    Ok(secret)
}

struct ReadState<'a> {
    inner: &'a Inner,
}

impl Operation for ReadState<'_> {
    type Output = (Option<UsersState>, Option<Vec<SigningSecret>>, RecordState);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let key = self.inner.keys.secrets();
        let secrets = trx.get(&key, true);
        let version = trx.get(METADATA_VERSION, true).await?;
        let records = RecordState::of(version.as_deref());
        self.inner.confirmed.see(records.version(), self.inner.confirmed.us(trx.began()));
        let users = match self.inner.resolve(trx, USERS).await {
            Ok(instance) => {
                let update_seq = instance.buckets.begin_last_seq(trx, instance.incarnation());
                let purges = instance.buckets.begin_count(trx, Counter::Purges);
                Some(UsersState { update_seq: update_seq.await?, purges: purges.await? })
            }
            Err(Error::DatabaseNotFound) => None,
            Err(error) => return Err(error),
        };
        Ok((users, secrets.await?.map(|found| secrets_of(&found)).transpose()?, records))
    }
}

#[cfg(test)]
mod tests {
    use crate::fenced::layer;

    #[tokio::test]
    async fn one_secret_signs_at_all_servers_and_rotation_keeps_those_before() {
        let (layer, _, _storage) = layer().await;
        let (first, _) = layer.sign_in_state().await.unwrap();
        assert_eq!((first.users, first.secrets.len()), (None, 1));
        assert_eq!(layer.sign_in_state().await.unwrap().0, first);
        assert!(!format!("{first:?}").contains("bytes"));
        for at in 1..6 {
            layer.rotate_secret().await.unwrap();
            let found = layer.sign_in_state().await.unwrap().0.secrets;
            assert_eq!(found.len(), (at + 1).min(4));
            assert!(found[0].retired_at_ms.is_none() && found[1..].iter().all(|old| old.retired_at_ms.is_some()));
            assert_eq!(found.iter().any(|secret| secret.bytes == first.secrets[0].bytes), at < 4);
        }
        let report = crate::check::check_namespaces(&layer).await.unwrap();
        assert!(report.is_clean(), "{report:?}");
    }
}
