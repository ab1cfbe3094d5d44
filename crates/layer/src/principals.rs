//! Users and roles of databases with channels, and their sessions.

use std::sync::Arc;

use flatbed_channels::Kind;
use flatbed_store::error::Result;

use flatbed_databases::channels::changed::{self, UsersChanged, UsersPosition};
use flatbed_databases::channels::principals::{PrincipalWrite, PrincipalWriteOutcome};
use flatbed_databases::channels::sessions::{PrincipalSession, SessionHash};
use crate::handle::{Database, Layer};

impl Layer {
    /// Returns the users of these databases that were changed or lost a session since the last look, with one range
    /// read for each database, all in one transaction. For a first look, or if the database was replaced meanwhile, all
    /// users count as changed. `None`: the database does not exist or has no channels.
    ///
    /// Each loss of a right stays recorded for an hour.
    ///
    /// # Errors
    /// [`Storage`](crate::Error::Storage).
    pub async fn users_changed(
        &self,
        asked: &[(Arc<str>, Option<UsersPosition>)],
    ) -> Result<Vec<Option<UsersChanged>>> {
        changed::users_changed(&self.inner, asked).await
    }
}

impl Database {
    /// Creates or changes a user or role, with effect at once in every process. All sessions end if the password
    /// changes or the user is disabled.
    ///
    /// # Errors
    /// [`Refusal::InvalidSetting`](crate::Refusal::InvalidSetting) for invalid or too many names, or a database without
    /// channels; those of the write's admission.
    pub async fn put_principal(&self, write: &PrincipalWrite) -> Result<PrincipalWriteOutcome> {
        self.handle.put_principal(write).await
    }

    /// Deletes a user or role, with an administrator's grants and all sessions. Grants of documents by this name stay,
    /// for the next principal of the name. Returns whether it existed.
    ///
    /// # Errors
    /// [`Refusal::InvalidSetting`](crate::Refusal::InvalidSetting) for a database without channels; those of the
    /// write's admission.
    pub async fn delete_principal(&self, kind: Kind, name: &str) -> Result<bool> {
        self.handle.delete_principal(kind, name).await
    }

    /// Stores a session, if there is an enabled user of this name and generation; returns whether there is.
    ///
    /// # Errors
    /// As of [`Database::put_principal`].
    pub async fn begin_principal_session(&self, hash: &SessionHash, session: &PrincipalSession) -> Result<bool> {
        self.handle.begin_principal_session(hash, session).await
    }

    /// Prolongs a session; returns whether it exists.
    ///
    /// # Errors
    /// As of [`Database::put_principal`].
    pub async fn prolong_principal_session(&self, hash: &SessionHash, ends_at_ms: u64) -> Result<bool> {
        self.handle.prolong_principal_session(hash, ends_at_ms).await
    }

    /// Ends a session.
    ///
    /// # Errors
    /// As of [`Database::put_principal`].
    pub async fn end_principal_session(&self, hash: &SessionHash) -> Result<()> {
        self.handle.end_principal_session(hash).await
    }

    /// Ends all sessions of a user; returns whether the user exists.
    ///
    /// # Errors
    /// As of [`Database::put_principal`].
    pub async fn end_principal_sessions(&self, name: &str) -> Result<bool> {
        self.handle.end_principal_sessions(name).await
    }
}
