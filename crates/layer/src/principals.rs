//! Users and roles of databases with channels, and their sessions.

use std::sync::Arc;

use flatbed_channels::PrincipalKind;
use flatbed_databases::channels::changed::{self, AccessChanges, AccessState, UserChanges, UsersPosition};
use flatbed_databases::channels::principals::{PrincipalWithRights, PrincipalWrite, PrincipalWriteOutcome};
use flatbed_databases::channels::sessions::{PrincipalSession, SessionHash, SignInUser};
use flatbed_databases::held::HeldRights;
use flatbed_store::error::Result;
use tokio::time::Instant;

use crate::handle::{Database, Layer, Reader};

impl Layer {
    /// Returns the parts of all databases in which users, roles, grants or sessions have changed since a known state:
    /// one transaction with one range read, and one for each changed bucket that `wants` names. `wants` says whether
    /// the caller follows a database of a bucket; it is called after the transaction has its read version. So a follower
    /// that comes later, and then reads its own rights, reads them as of this look or later. `None`: a first look.
    ///
    /// # Errors
    /// [`Storage`](crate::Error::Storage).
    pub async fn access_changes(
        &self,
        known: Option<&AccessState>,
        wants: &(dyn Fn(u8) -> bool + Send + Sync),
    ) -> Result<AccessChanges> {
        changed::access_changes(&self.inner, known, wants).await
    }

    /// Returns the users of these databases that were changed or lost a session since the last look, with one range
    /// read for each database, all in one transaction. For a first look, or if the database was replaced meanwhile, all
    /// users count as changed. `None`: the database does not exist or has no channels.
    ///
    /// Each loss of a right stays recorded for an hour.
    ///
    /// # Errors
    /// [`Storage`](crate::Error::Storage).
    pub async fn users_changed(&self, asked: &[(Arc<str>, Option<UsersPosition>)]) -> Result<Vec<Option<UserChanges>>> {
        changed::users_changed(&self.inner, asked).await
    }
}

impl Reader {
    /// Returns whether the reader is known to be unrestricted, without a read.
    pub fn can_see_all(&self) -> bool {
        self.handle.can_see_all()
    }

    /// Returns whether the reader has lost, as of now or shortly before, any right of `judged_by`, the rights that
    /// admitted the content. `None`: any right that the reader had at `since` or later. Gained rights do not matter.
    ///
    /// # Errors
    /// [`crate::Error::DatabaseNotFound`]; a [`crate::Refusal`] if they may read nothing any more.
    pub async fn has_lost(&self, since: Instant, judged_by: Option<&HeldRights>) -> Result<bool> {
        self.handle.has_lost(since, judged_by).await
    }

    /// Returns a user or role with its rights; `None` if there is none of the name.
    pub async fn principal(&self, kind: PrincipalKind, name: &str) -> Result<Option<PrincipalWithRights>> {
        self.handle.principal(kind, name).await
    }

    /// Returns a page of names of users or roles in bytewise order, behind `behind`; an empty page is the end.
    pub async fn principals(&self, kind: PrincipalKind, behind: Option<&str>) -> Result<Vec<String>> {
        self.handle.principals(kind, behind).await
    }

    /// Returns a user at sign-in; `None` if there is none of the name or the database has no channels.
    ///
    /// # Errors
    /// [`DatabaseNotFound`](crate::Error::DatabaseNotFound), [`Storage`](crate::Error::Storage).
    pub async fn user_at(&self, name: &str) -> Result<Option<SignInUser>> {
        self.handle.user_at(name).await
    }

    /// Returns the session of a hash, valid or not.
    ///
    /// # Errors
    /// As of [`Reader::user_at`].
    pub async fn principal_session(&self, hash: &SessionHash) -> Result<Option<PrincipalSession>> {
        self.handle.principal_session(hash).await
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
    pub async fn delete_principal(&self, kind: PrincipalKind, name: &str) -> Result<bool> {
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
