//! The stored state that authentication depends on: the state of `_users`, and the secrets of sessions.
//!
//! The transaction that reads it also reads `\xff/metadataVersion`, which changes with each database record,
//! `_security` included, and with the stored settings. So one read confirms everything that answers depend on.

use async_recursion::async_recursion as boxed;
use flatbed_databases::confirmed::RecordState;
use flatbed_databases::server::Inner;
use flatbed_store::database_name::USERS;
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::{Counter, METADATA_VERSION};
use flatbed_store::once::random_id;
use flatbed_store::secrets::{MakeSecret, RotateSecret, SECRET_BYTES, SigningSecret, secrets_of};
use flatbed_store::seq::Seq;
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};

use crate::handle::Layer;

/// The state of `_users`, which changes with each write to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsersState {
    /// The newest sequence, which also identifies the database.
    pub update_seq: Seq,
    /// The number of purges, which have no sequences.
    pub purges: i64,
}

/// The stored state of authentication, of one read version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignInState {
    /// The state of `_users`; `None` if it does not exist.
    pub users: Option<UsersState>,
    /// The secrets of sessions, newest first: the newest one signs, the others verify.
    pub secrets: Vec<SigningSecret>,
}

impl Layer {
    /// Reads the state of authentication, with the state of all records at the same read version: cached records and
    /// [stored settings](Layer::stored_settings) are confirmed if that is unchanged. Creates the first secret.
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

    /// Makes another secret sign sessions from now on. Earlier sessions stay valid for their lifetime.
    ///
    /// # Errors
    /// [`Error::Storage`]. After an unknown commit result the rotation may have happened.
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
        let users = match self.inner.resolve(trx, USERS).await {
            Ok(instance) => {
                let update_seq = instance.buckets.begin_last_seq(trx, instance.epoch_begin());
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
    use crate::tests::fenced::layer;

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
