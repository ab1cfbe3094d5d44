//! Sign-in to a database: a user's record, and the sessions of users.
//!
//! A session is stored under the hash of its id in the database that it was created in, and is valid only there. It
//! ends when the user's generation changes.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use flatbed_channels::PrincipalKind;
use flatbed_store::access::AccessNote;
use flatbed_store::error::Result;
use flatbed_store::keys::SESSION_HASH_BYTES;
use flatbed_store::once::Once;
use flatbed_store::proto;
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use prost::Message;

use crate::channels::grants::{self, GrantChanges};
use crate::channels::principals::{Principal, set_record, with_channels};
use crate::channels::sweep;
use crate::handles::{ReadHandle, WriteHandle};
use crate::instance::Instance;
use crate::server::Inner;

/// The key of a session: 20 bytes of the SHA-256 of its id.
pub type SessionHash = [u8; SESSION_HASH_BYTES];

/// A user at sign-in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignInUser {
    /// Its definition by an administrator.
    pub principal: Principal,
    /// The number that tells the database from others that had its name.
    pub incarnation: u64,
}

/// A session of a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrincipalSession {
    /// The user's name.
    pub name: String,
    /// The user's generation when the session began.
    pub generation: u64,
    /// The end of the session in milliseconds of Unix time.
    pub ends_at_ms: u64,
    /// The time by which each use prolongs the session, in milliseconds.
    pub lasts_ms: u64,
}

impl ReadHandle {
    /// Performs `Reader::user_at` of the layer.
    #[boxed]
    pub async fn user_at(&self, name: &str) -> Result<Option<SignInUser>> {
        self.read_about(&mut User { inner: &self.inner, database: &self.name, name }).await
    }

    /// Performs `Reader::principal_session` of the layer.
    #[boxed]
    pub async fn principal_session(&self, hash: &SessionHash) -> Result<Option<PrincipalSession>> {
        self.read_about(&mut FindSession { inner: &self.inner, database: &self.name, hash }).await
    }
}

impl WriteHandle {
    /// Performs `Database::begin_principal_session` of the layer.
    #[boxed]
    pub async fn begin_principal_session(&self, hash: &SessionHash, session: &PrincipalSession) -> Result<bool> {
        let mut begin = BeginSession { database: self, hash, session };
        transaction::write(&self.inner.db, &self.inner.metrics, &mut begin).await
    }

    /// Performs `Database::prolong_principal_session` of the layer.
    #[boxed]
    pub async fn prolong_principal_session(&self, hash: &SessionHash, ends_at_ms: u64) -> Result<bool> {
        let mut change = ChangeSession { database: self, hash, ends_at_ms: Some(ends_at_ms) };
        transaction::write(&self.inner.db, &self.inner.metrics, &mut change).await
    }

    /// Performs `Database::end_principal_session` of the layer.
    #[boxed]
    pub async fn end_principal_session(&self, hash: &SessionHash) -> Result<()> {
        let mut change = ChangeSession { database: self, hash, ends_at_ms: None };
        transaction::write(&self.inner.db, &self.inner.metrics, &mut change).await.map(drop)
    }

    /// Performs `Database::end_principal_sessions` of the layer.
    #[boxed]
    pub async fn end_principal_sessions(&self, name: &str) -> Result<bool> {
        let mut end = EndAll { database: self, name, once: self.inner.once()? };
        transaction::write(&self.inner.db, &self.inner.metrics, &mut end).await
    }
}

struct User<'a> {
    inner: &'a Inner,
    database: &'a str,
    name: &'a str,
}

impl Operation for User<'_> {
    type Output = Option<SignInUser>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Option<SignInUser>> {
        let instance = self.inner.resolve(trx, self.database).await?;
        if instance.channels() == 0 {
            return Ok(None);
        }
        let key = instance.keys.principal(PrincipalKind::User, self.name);
        let Some(bytes) = trx.get(&key, true).await? else { return Ok(None) };
        let principal = Principal::decode(self.name, &bytes)?;
        Ok(principal.map(|principal| SignInUser { principal, incarnation: instance.incarnation() }))
    }
}

struct FindSession<'a> {
    inner: &'a Inner,
    database: &'a str,
    hash: &'a SessionHash,
}

impl Operation for FindSession<'_> {
    type Output = Option<PrincipalSession>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Option<PrincipalSession>> {
        let instance = self.inner.resolve(trx, self.database).await?;
        let found = trx.get(&instance.keys.gateway_session(self.hash), true).await?;
        let session = |record: proto::GatewaySession| {
            let proto::GatewaySession { name, generation, ends_at_ms, lasts_ms } = record;
            PrincipalSession { name, generation, ends_at_ms, lasts_ms }
        };
        Ok(found.map(|bytes| proto::GatewaySession::decode(&*bytes)).transpose()?.map(session))
    }
}

async fn admitted(database: &WriteHandle, trx: &Transaction) -> Result<Arc<Instance>> {
    let (instance, writer) = database.inner.resolve_for(trx, &database.name, &database.actor).await?;
    writer.admitted(trx, &instance).await?;
    with_channels(instance)
}

struct BeginSession<'a> {
    database: &'a WriteHandle,
    hash: &'a SessionHash,
    session: &'a PrincipalSession,
}

impl Operation for BeginSession<'_> {
    type Output = bool;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<bool> {
        let instance = admitted(self.database, trx).await?;
        let PrincipalSession { name, generation, ends_at_ms, lasts_ms } = self.session.clone();
        let key = instance.keys.principal(PrincipalKind::User, &name);
        let Some(bytes) = trx.get(&key, false).await? else { return Ok(false) };
        let is_same = |user: &Principal| user.generation == generation && !user.is_disabled;
        if !Principal::decode(&name, &bytes)?.as_ref().is_some_and(is_same) {
            return Ok(false);
        }
        let record = proto::GatewaySession { name, generation, ends_at_ms, lasts_ms };
        trx.set(&instance.keys.gateway_session(self.hash), &record.encode_to_vec());
        sweep::note(trx, &instance)?;
        Ok(true)
    }
}

struct ChangeSession<'a> {
    database: &'a WriteHandle,
    hash: &'a SessionHash,
    /// The new end; `None` ends the session now.
    ends_at_ms: Option<u64>,
}

impl Operation for ChangeSession<'_> {
    type Output = bool;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<bool> {
        let instance = admitted(self.database, trx).await?;
        let key = instance.keys.gateway_session(self.hash);
        let Some(bytes) = trx.get(&key, false).await? else { return Ok(false) };
        match self.ends_at_ms {
            None => {
                // Requests that continue with the session learn of its end as of other changes of the user.
                let session = proto::GatewaySession::decode(&*bytes)?;
                let note = grants::note_followers(trx, &instance, [(PrincipalKind::User, &*session.name)])?;
                end_session(trx, &key, &note);
            }
            Some(ends_at_ms) => {
                let record = proto::GatewaySession { ends_at_ms, ..proto::GatewaySession::decode(&*bytes)? };
                trx.set(&key, &record.encode_to_vec());
            }
        }
        Ok(true)
    }
}

/// Removes a session. The transaction has noted the change of access.
fn end_session(trx: &Transaction, key: &[u8], _: &AccessNote) {
    trx.clear(key);
}

struct EndAll<'a> {
    database: &'a WriteHandle,
    name: &'a str,
    once: Once,
}

impl Operation for EndAll<'_> {
    type Output = bool;

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<bool> {
        if self.once.happened(trx, attempt).await?.is_some() {
            return Ok(true);
        }
        let instance = admitted(self.database, trx).await?;
        let key = instance.keys.principal(PrincipalKind::User, self.name);
        let record = trx.get(&key, false).await?.map(|bytes| proto::Principal::decode(&*bytes)).transpose()?;
        let Some(record) = record.filter(|record| record.exists) else { return Ok(false) };
        let user = (PrincipalKind::User, self.name);
        let note = GrantChanges::default().finish_with(trx, &instance, user).await?;
        let generation = record.generation + 1;
        set_record(trx, &instance, &key, proto::Principal { generation, ..record }, &note);
        instance.touch(trx, 0)?;
        self.once.mark(trx);
        Ok(true)
    }
}
