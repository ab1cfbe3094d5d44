//! The secrets of a root that sign sessions: the current one, and the earlier ones that are still accepted.

use std::fmt;

use prost::Message;

use crate::error::{Error, Result};
use crate::keys::RootKeys;
use crate::proto;
use crate::root::epoch_for_write;
use crate::transaction::{Attempt, Operation, Transaction, conflict_with};

pub const SECRET_BYTES: usize = 32;

/// The number of secrets kept: the current one, and those before it.
const SECRETS_MAX: usize = 4;

/// A secret that signs sessions. Its `Debug` text does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningSecret {
    /// 32 random bytes.
    pub bytes: Vec<u8>,
    /// When it was replaced, in milliseconds of Unix time; `None`: it is the current one.
    pub retired_at_ms: Option<u64>,
}

impl fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningSecret").field("retired_at_ms", &self.retired_at_ms).finish_non_exhaustive()
    }
}

/// Decodes the secrets of their record, newest first.
pub fn secrets_of(bytes: &[u8]) -> Result<Vec<SigningSecret>> {
    let record = proto::SigningSecrets::decode(bytes)?;
    let is_whole = |at: usize, secret: &proto::SigningSecretRecord| {
        secret.secret.len() == SECRET_BYTES && (at == 0) == (secret.retired_at_ms == 0)
    };
    if record.secrets.is_empty() || !record.secrets.iter().enumerate().all(|(at, secret)| is_whole(at, secret)) {
        return Err(Error::Corrupt("the record of secrets is not one".to_owned()));
    }
    let secret = |secret: proto::SigningSecretRecord| {
        let retired_at_ms = Some(secret.retired_at_ms).filter(|at| *at > 0);
        SigningSecret { bytes: secret.secret, retired_at_ms }
    };
    Ok(record.secrets.into_iter().map(secret).collect())
}

fn put(trx: &Transaction, keys: &RootKeys, secrets: &[SigningSecret]) {
    let secret = |secret: &SigningSecret| proto::SigningSecretRecord {
        secret: secret.bytes.clone(),
        retired_at_ms: secret.retired_at_ms.unwrap_or_default(),
    };
    let record = proto::SigningSecrets { secrets: secrets.iter().map(secret).collect() };
    trx.set(&keys.secrets(), &record.encode_to_vec());
}

/// Creates the first secret unless one exists, and returns the stored ones.
pub struct MakeSecret<'a> {
    pub keys: &'a RootKeys,
    pub new: [u8; SECRET_BYTES],
}

impl Operation for MakeSecret<'_> {
    type Output = Vec<SigningSecret>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Vec<SigningSecret>> {
        epoch_for_write(trx, self.keys).await?;
        if let Some(found) = trx.get(&self.keys.secrets(), false).await? {
            return secrets_of(&found);
        }
        let secrets = vec![SigningSecret { bytes: self.new.to_vec(), retired_at_ms: None }];
        put(trx, self.keys, &secrets);
        Ok(secrets)
    }
}

/// Makes another secret the current one.
pub struct RotateSecret<'a> {
    pub keys: &'a RootKeys,
    pub new: [u8; SECRET_BYTES],
    pub now_ms: u64,
}

impl Operation for RotateSecret<'_> {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<()> {
        epoch_for_write(trx, self.keys).await?;
        conflict_with(trx, &self.keys.secrets())?;
        let found = trx.get(&self.keys.secrets(), true).await?;
        let mut secrets = found.map(|found| secrets_of(&found)).transpose()?.unwrap_or_default();
        if secrets.first().is_some_and(|first| first.bytes == self.new) {
            // An earlier attempt was committed.
            return Ok(());
        }
        if let Some(first) = secrets.first_mut() {
            first.retired_at_ms = Some(self.now_ms.max(1));
        }
        secrets.insert(0, SigningSecret { bytes: self.new.to_vec(), retired_at_ms: None });
        secrets.truncate(SECRETS_MAX);
        put(trx, self.keys, &secrets);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_record_of_secrets_is_none() {
        let record = |secrets: &[(usize, u64)]| {
            let secret = |(bytes, retired_at_ms): &(usize, u64)| proto::SigningSecretRecord {
                secret: vec![7; *bytes],
                retired_at_ms: *retired_at_ms,
            };
            proto::SigningSecrets { secrets: secrets.iter().map(secret).collect() }.encode_to_vec()
        };
        let found = secrets_of(&record(&[(32, 0), (32, 5)])).unwrap();
        assert_eq!(found.iter().map(|secret| secret.retired_at_ms).collect::<Vec<_>>(), [None, Some(5)]);
        for wrong in [vec![], vec![(31, 0)], vec![(32, 1)], vec![(32, 0), (32, 0)], vec![(32, 0), (0, 5)]] {
            assert!(secrets_of(&record(&wrong)).is_err(), "{wrong:?}");
        }
        assert!(secrets_of(b"\xff").is_err());
        assert!(!format!("{:?}", found).contains('7'));
    }
}
