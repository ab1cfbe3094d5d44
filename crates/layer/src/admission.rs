//! Whether those who write may still do so, found out in the transaction that writes.
//!
//! What a request may do was judged before it came here, by the database's `_security` and by who the user was less than a second
//! ago. The transaction judges it again by what holds as it is committed: the `_security` of the record that it resolves, which
//! every writer has as a read conflict, and the user's document in `_users`, whose info it reads beside whatever else it reads.
//! So nothing is committed behind a change that takes the right to it away, not even a moment behind it. Several requests'
//! writes in one transaction are refused one by one.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use foundationdb::FdbResult;
use foundationdb::future::FdbSlice;
use futures_util::future::join_all;

use crate::actor::{Actor, UserFence};
use crate::confirmed::SecurityOf;
use crate::error::{Error, Refusal, Result};
use crate::instance::Instance;
use crate::layer::Inner;
use crate::store::database_name::{USER_ID_PREFIX, USERS};
use crate::store::records::Info;
use crate::store::transaction::{self, Attempt, Operation, Transaction, conflict_with};

type Admitted = std::result::Result<(), Refusal>;

/// A user document's info, under way.
struct InfoRead {
    fence: UserFence,
    key: Vec<u8>,
    read: Pin<Box<dyn Future<Output = FdbResult<Option<FdbSlice>>> + Send + Sync>>,
}

/// Those on whose behalf a transaction writes, their documents being read.
pub(crate) struct Arriving {
    reads: Vec<InfoRead>,
    /// Without `_users` nobody has a document.
    nowhere: Vec<UserFence>,
    users_record: Vec<u8>,
}

impl Arriving {
    /// Issues the reads. Nothing is waited for but the transaction's read version where `_users` is in the cache, and nothing at
    /// all where there are no fences.
    pub(crate) async fn begin(
        inner: &Inner,
        trx: &Transaction,
        actors: impl Iterator<Item = &Actor> + Send,
    ) -> Result<Arriving> {
        let mut fences: Vec<UserFence> = actors.filter_map(|actor| actor.user()?.fence.clone()).collect();
        fences.sort_unstable_by(|a, b| (&a.name, &a.rev).cmp(&(&b.name, &b.rev)));
        fences.dedup();
        let mut arriving = Arriving { reads: Vec::new(), nowhere: Vec::new(), users_record: Vec::new() };
        if fences.is_empty() {
            return Ok(arriving);
        }
        arriving.users_record = inner.keys.database(USERS);
        let users = match inner.resolve(trx, USERS).await {
            Ok(users) => users,
            Err(Error::DatabaseNotFound) => {
                arriving.nowhere = fences;
                return Ok(arriving);
            }
            Err(error) => return Err(error),
        };
        arriving.reads = fences
            .into_iter()
            .map(|fence| {
                let key = users.keys.document(&format!("{USER_ID_PREFIX}{}", fence.name)).info();
                // Those conflict that write: who is refused makes nobody else wait.
                let read = Box::pin(trx.get(&key, true));
                InfoRead { fence, key, read }
            })
            .collect();
        Ok(arriving)
    }

    /// Waits for the reads.
    pub(crate) async fn arrived(self) -> Result<Admissions> {
        let reads = self.reads.into_iter().map(|InfoRead { fence, key, read }| async move {
            let info = read.await?.map(|bytes| Info::decode(&bytes)).transpose()?;
            let is_same = info.map(|info| info.winner) == fence.rev;
            Ok::<_, Error>((fence, Judged { is_same, key: Some(key) }))
        });
        let mut judged = HashMap::new();
        for read in join_all(reads).await {
            let (fence, found) = read?;
            judged.insert(fence, found);
        }
        for fence in self.nowhere {
            let is_same = fence.rev.is_none();
            judged.insert(fence, Judged { is_same, key: None });
        }
        Ok(Admissions { judged, users_record: self.users_record, said: HashMap::new() })
    }
}

/// What was found of a fence.
struct Judged {
    is_same: bool,
    key: Option<Vec<u8>>,
}

/// Those on whose behalf a transaction writes, as of its read version.
pub(crate) struct Admissions {
    judged: HashMap<UserFence, Judged>,
    users_record: Vec<u8>,
    /// What gates have said, by the address of whose they are: the transaction's operation holds these.
    said: HashMap<usize, Admitted>,
}

impl Admissions {
    /// Whether somebody may write. What is written for them then fails where that changes before it is committed; the
    /// database's record is a read conflict already.
    pub(crate) fn admit(&mut self, trx: &Transaction, actor: &Actor, security: &SecurityOf) -> Result<Admitted> {
        let Actor::User(entrant) = actor else { return Ok(Ok(())) };
        let said = self.said.entry(Arc::as_ptr(entrant).addr()).or_insert_with(|| entrant.gate().judge(security));
        if let Err(refusal) = said {
            return Ok(Err(refusal.clone()));
        }
        let Some(fence) = &entrant.user().fence else { return Ok(Ok(())) };
        match self.judged.get(fence) {
            Some(Judged { is_same: true, key }) => {
                key.iter().try_for_each(|key| conflict_with(trx, key))?;
                conflict_with(trx, &self.users_record)?;
                Ok(Ok(()))
            }
            _ => Ok(Err(Refusal::UserChanged)),
        }
    }
}

/// One on whose behalf a transaction writes.
pub(crate) struct Writer<'a> {
    actor: &'a Actor,
    arriving: Arriving,
}

impl Writer<'_> {
    /// Before anything is committed, and behind the question whether an earlier attempt was.
    ///
    /// # Errors
    /// The gate's refusal, [`Refusal::UserChanged`].
    pub(crate) async fn admitted(self, trx: &Transaction, instance: &Instance) -> Result<()> {
        self.admitted_by(trx, &instance.security).await
    }

    /// The same, of a record that was read besides.
    pub(crate) async fn admitted_by(self, trx: &Transaction, security: &SecurityOf) -> Result<()> {
        Ok(self.arriving.arrived().await?.admit(trx, self.actor, security)??)
    }
}

/// Asks whether somebody may write to a database, where what they ask for is of no consequence if they may not a moment later.
pub(crate) async fn ask(inner: &Inner, name: &str, actor: &Actor) -> Result<()> {
    struct Ask<'a>(&'a Inner, &'a str, &'a Actor);
    impl Operation for Ask<'_> {
        type Output = ();
        async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<()> {
            let writer = self.0.writer(trx, self.2);
            let (instance, writer) = futures_util::try_join!(self.0.resolve(trx, self.1), writer)?;
            writer.admitted(trx, &instance).await
        }
    }
    transaction::read(&inner.db, &inner.metrics, &mut Ask(inner, name, actor)).await
}

impl Inner {
    /// As [`Inner::resolve_for_write`], on somebody's behalf: what is read of the user is under way with it.
    pub(crate) async fn resolve_for<'a>(
        &self,
        trx: &Transaction,
        name: &str,
        actor: &'a Actor,
    ) -> Result<(Arc<Instance>, Writer<'a>)> {
        let arriving = Arriving::begin(self, trx, std::iter::once(actor));
        let (instance, arriving) = futures_util::try_join!(self.resolve_for_write(trx, name), arriving)?;
        Ok((instance, Writer { actor, arriving }))
    }

    /// Of what a user asks for of the record itself, which the transaction reads besides.
    pub(crate) async fn writer<'a>(&self, trx: &Transaction, actor: &'a Actor) -> Result<Writer<'a>> {
        Ok(Writer { actor, arriving: Arriving::begin(self, trx, std::iter::once(actor)).await? })
    }
}
