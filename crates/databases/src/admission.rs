//! Admission: checks in the writing transaction that the writers may still write.
//!
//! The request was authorized before, by a `_security` and a user document that may be up to a second old. The
//! transaction authorizes it again as of its commit: by the `_security` of the record that it resolves, on which every
//! writer has a read conflict, and by the user's document in `_users`, whose info it reads beside its other reads. For
//! an administrator from the stored settings it checks the setting, without a read if the transaction's read version
//! shows that no setting has changed. So no write commits after its right was revoked. Writes of several requests in
//! one transaction are refused individually.

use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::Arc;

use flatbed_store::database_name::{USER_ID_PREFIX, USERS};
use flatbed_store::error::{Error, Refusal, Result};
use flatbed_store::keys::{KeyRange, METADATA_VERSION};
use flatbed_store::records::Info;
use flatbed_store::transaction::{self, Attempt, BoxedPageRead, Operation, Transaction, conflict_with};
use foundationdb::FdbResult;
use foundationdb::future::FdbSlice;
use foundationdb::options::ConflictRangeType;
use futures_util::future::join_all;

use crate::actor::{Actor, SettingFence, UserFence};
use crate::confirmed::{DatabaseSecurity, RecordState};
use crate::instance::Instance;
use crate::server::Inner;

type Admission = std::result::Result<(), Refusal>;

struct InfoRead {
    fence: UserFence,
    key: Vec<u8>,
    read: Pin<Box<dyn Future<Output = FdbResult<Option<FdbSlice>>> + Send + Sync>>,
}

/// A stored setting that was judged, with a pending read if it may have changed.
struct SettingRead {
    fence: Arc<SettingFence>,
    range: KeyRange,
    read: Option<BoxedPageRead>,
}

impl SettingRead {
    fn begin(inner: &Inner, trx: &Transaction, fence: &Arc<SettingFence>, records: &RecordState) -> SettingRead {
        let range = match &fence.found {
            None => inner.keys.settings_of(fence.section),
            Some((key, _)) => {
                let begin = inner.keys.setting(fence.section, key);
                let end = [begin.as_slice(), &[0]].concat();
                KeyRange { begin, end }
            }
        };
        let is_same = fence.state.as_ref().is_some_and(|state| state.is_as_of(records));
        let read = (!is_same).then(|| trx.range(&range, true).begin(Some(1)).boxed());
        SettingRead { fence: Arc::clone(fence), range, read }
    }

    async fn judged(self, trx: &Transaction) -> Result<JudgedSetting> {
        let SettingRead { fence, range, read } = self;
        let is_same = match read {
            None => true,
            Some(read) => {
                let first = read.finish(trx).await?;
                let found = first.get(0).map(|row| row.value());
                found == fence.found.as_ref().map(|(_, text)| text.as_bytes())
            }
        };
        Ok(JudgedSetting { fence, range, is_same })
    }
}

struct JudgedSetting {
    fence: Arc<SettingFence>,
    range: KeyRange,
    is_same: bool,
}

/// The writers of a transaction, with pending reads of their documents.
pub struct PendingAdmissions {
    reads: Vec<InfoRead>,
    settings: Vec<SettingRead>,
    /// The fences of users while `_users` does not exist.
    nowhere: Vec<UserFence>,
    users_record: Vec<u8>,
}

impl PendingAdmissions {
    /// Issues the reads. Waits at most for the transaction's read version if `_users` is cached, and not at all without
    /// fences.
    pub async fn begin(
        inner: &Inner,
        trx: &Transaction,
        actors: impl Iterator<Item = &Actor> + Send,
    ) -> Result<PendingAdmissions> {
        let (mut fences, mut of_settings, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        for user in actors.filter_map(Actor::user) {
            fences.extend(user.fence.clone());
            of_settings.extend(user.setting.as_ref().filter(|fence| seen.insert(Arc::as_ptr(fence).addr())));
        }
        fences.sort_unstable_by(|a, b| (&a.name, &a.rev).cmp(&(&b.name, &b.rev)));
        fences.dedup();
        let (reads, settings) = (Vec::new(), Vec::new());
        let mut arriving = PendingAdmissions { reads, settings, nowhere: Vec::new(), users_record: Vec::new() };
        if !of_settings.is_empty() {
            let records = RecordState::of(trx.get(METADATA_VERSION, true).await?.as_deref());
            let begin = |fence| SettingRead::begin(inner, trx, fence, &records);
            arriving.settings = of_settings.into_iter().map(begin).collect();
        }
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
                // Only applied edits conflict: a refused writer does not delay the others.
                let read = Box::pin(trx.get(&key, true));
                InfoRead { fence, key, read }
            })
            .collect();
        Ok(arriving)
    }

    pub async fn arrived(self, trx: &Transaction) -> Result<Admissions> {
        let reads = self.reads.into_iter().map(|InfoRead { fence, key, read }| async move {
            let info = read.await?.map(|bytes| Info::decode(&bytes)).transpose()?;
            let is_same = info.map(|info| info.winner) == fence.rev;
            Ok::<_, Error>((fence, UserCheck { is_same, key: Some(key) }))
        });
        let settings = join_all(self.settings.into_iter().map(|setting| setting.judged(trx)));
        let (reads, settings) = futures_util::future::join(join_all(reads), settings).await;
        let settings = settings.into_iter().collect::<Result<_>>()?;
        let mut judged = HashMap::new();
        for read in reads {
            let (fence, found) = read?;
            judged.insert(fence, found);
        }
        for fence in self.nowhere {
            let is_same = fence.rev.is_none();
            judged.insert(fence, UserCheck { is_same, key: None });
        }
        Ok(Admissions { judged, settings, users_record: self.users_record, said: HashMap::new() })
    }
}

struct UserCheck {
    is_same: bool,
    key: Option<Vec<u8>>,
}

/// The admitted writers of a transaction as of its read version.
pub struct Admissions {
    judged: HashMap<UserFence, UserCheck>,
    settings: Vec<JudgedSetting>,
    users_record: Vec<u8>,
    /// The answers of gates, by the address of their actors, which the transaction's operation holds.
    said: HashMap<usize, Admission>,
}

impl Admissions {
    /// Returns whether an actor may write. If so, adds read conflicts, so that the commit fails if that changes; the
    /// database's record is a read conflict already.
    pub fn admit(&mut self, trx: &Transaction, actor: &Actor, security: &DatabaseSecurity) -> Result<Admission> {
        let Actor::User(entrant) = actor else { return Ok(Ok(())) };
        let said = self.said.entry(Arc::as_ptr(entrant).addr()).or_insert_with(|| entrant.gate().judge(security));
        if let Err(refusal) = said {
            return Ok(Err(refusal.clone()));
        }
        if let Some(fence) = &entrant.user().setting {
            match self.settings.iter().find(|judged| Arc::ptr_eq(&judged.fence, fence)) {
                Some(JudgedSetting { is_same: true, range, .. }) => {
                    trx.add_conflict_range(&range.begin, &range.end, ConflictRangeType::Read)?;
                }
                _ => return Ok(Err(Refusal::UserChanged)),
            }
        }
        let Some(fence) = &entrant.user().fence else { return Ok(Ok(())) };
        match self.judged.get(fence) {
            Some(UserCheck { is_same: true, key }) => {
                key.iter().try_for_each(|key| conflict_with(trx, key))?;
                conflict_with(trx, &self.users_record)?;
                Ok(Ok(()))
            }
            _ => Ok(Err(Refusal::UserChanged)),
        }
    }
}

pub struct Writer<'a> {
    actor: &'a Actor,
    arriving: PendingAdmissions,
}

impl Writer<'_> {
    /// Checks the writer: before any write, and after the check for an earlier attempt's commit.
    ///
    /// # Errors
    /// The refusal of the gate, [`Refusal::UserChanged`].
    pub async fn admitted(self, trx: &Transaction, instance: &Instance) -> Result<()> {
        self.admitted_by(trx, &instance.security).await
    }

    /// As `admitted`, by the `_security` of a record that was read separately.
    pub async fn admitted_by(self, trx: &Transaction, security: &DatabaseSecurity) -> Result<()> {
        Ok(self.arriving.arrived(trx).await?.admit(trx, self.actor, security)??)
    }
}

/// Checks whether an actor may write to a database, without a later check at a commit.
pub async fn ask(inner: &Inner, name: &str, actor: &Actor) -> Result<()> {
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
    /// As [`Inner::resolve_for_write`], with concurrent reads of the actor's document.
    pub async fn resolve_for<'a>(
        &self,
        trx: &Transaction,
        name: &str,
        actor: &'a Actor,
    ) -> Result<(Arc<Instance>, Writer<'a>)> {
        let arriving = PendingAdmissions::begin(self, trx, std::iter::once(actor));
        let (instance, arriving) = futures_util::try_join!(self.resolve_for_write(trx, name), arriving)?;
        Ok((instance, Writer { actor, arriving }))
    }

    /// Begins the admission of a writer whose transaction reads the record separately.
    pub async fn writer<'a>(&self, trx: &Transaction, actor: &'a Actor) -> Result<Writer<'a>> {
        Ok(Writer { actor, arriving: PendingAdmissions::begin(self, trx, std::iter::once(actor)).await? })
    }
}
