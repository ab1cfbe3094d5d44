//! The sync function of a database: set, which also gives the database channels, and read.
//!
//! The function is stored beside the record, whose number selects it, so each writer has a read conflict on it.

use async_recursion::async_recursion as boxed;
use flatbed_databases::actor::Actor;
use flatbed_databases::asker::ReadPrincipal;
use flatbed_databases::confirmed::{ClosedReasons, DatabaseSecurity};
use flatbed_databases::document::edit::{Edit, GetOptions};
use flatbed_databases::document::verdict::Verdict;
use flatbed_databases::instance::Instance;
use flatbed_databases::record_change::{ChangeRecord, check_room};
use flatbed_databases::server::Inner;
use flatbed_operations::judge::ask::{ReplacedRevision, named_by, read_replaced, route_edit};
use flatbed_operations::judge::judgement::NO_FUNCTIONS;
use flatbed_operations::judge::judgement::judge_of;
use flatbed_operations::judge::rights;
use flatbed_operations::judge::routes::ReadFunction;
use flatbed_operations::write::batch::resolved;
use flatbed_store::database_name::DatabaseKind;
use flatbed_store::due::{self, DueKind};
use flatbed_store::error::{DesignFault, Error, NotJudged, Refusal, Result};
use flatbed_store::features::{check_record, is_replicator, name_features};
use flatbed_store::once::Once;
use flatbed_store::proto;
use flatbed_store::record_log::note_change;
use flatbed_store::sync_function::{begin_resync, draw_run, set_function};
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use prost::Message;

use crate::handle::{Database, Reader};

/// Byte limit of a sync function, which is one value.
pub const SYNC_FUNCTION_BYTES_MAX: usize = 80_000;

/// The rule that routes a database's documents to channels.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SyncFunctionInfo {
    /// The function's text; `None`: the documents' own members `channels`.
    pub source: Option<String>,
    /// Its number; each new rule of the database increments it.
    pub number: u64,
    /// The time when it was set, in milliseconds of Unix time; 0: at the creation of the database.
    pub since_ms: u64,
}

impl Reader {
    /// Returns its sync function; `None` if it has no channels.
    #[boxed]
    pub async fn sync_function(&self) -> Result<Option<SyncFunctionInfo>> {
        struct ReadSyncFunction<'a>(&'a Inner, &'a str);
        impl Operation for ReadSyncFunction<'_> {
            type Output = Option<SyncFunctionInfo>;
            async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<Self::Output> {
                let instance = self.0.resolve(trx, self.1).await?;
                let number = instance.channels();
                if number == 0 {
                    return Ok(None);
                }
                let stored = ReadFunction(&instance).attempt(trx, attempt).await?;
                let (source, since_ms) = stored.map_or((None, 0), |stored| (Some(stored.source), stored.since_ms));
                Ok(Some(SyncFunctionInfo { source, number, since_ms }))
            }
        }
        self.handle.read(&mut ReadSyncFunction(&self.handle.inner, &self.handle.name)).await
    }

    /// Returns the reasons for which it is closed to its users, if any.
    #[boxed]
    pub async fn closed(&self) -> Result<ClosedReasons> {
        self.of_instance(Instance::closed).await
    }

    /// Returns whether it has channels: [`ChannelsOptions`](crate::ChannelsOptions), [`Database::set_sync_function`].
    #[boxed]
    pub async fn has_channels(&self) -> Result<bool> {
        self.of_instance(|instance| instance.channels() > 0).await
    }
}

impl Database {
    /// Sets a database with channels offline or online. While it is offline, all processes refuse its users with
    /// [`Refusal::Closed`] and end their feeds. Administrators can still use it.
    ///
    /// # Errors
    /// [`Refusal::InvalidSetting`] if it has no channels.
    #[boxed]
    pub async fn set_offline(&self, is_offline: bool) -> Result<()> {
        if !self.has_channels().await? {
            return Err(Refusal::InvalidSetting("The database has no channels".to_owned()).into());
        }
        let change = |record: &mut proto::DatabaseRecord| {
            record.closed = ClosedReasons { is_offline, ..ClosedReasons::of(record.closed) }.stored();
            name_features(record);
        };
        let (inner, name, once) = (&*self.handle.inner, &*self.handle.name, self.handle.inner.once()?);
        let mut operation = ChangeRecord { inner, name, actor: self.actor(), change, once };
        transaction::write(&inner.db, &inner.metrics, &mut operation).await?;
        // This process sees the change at once.
        self.closed().await.map(drop)
    }

    /// Sets the sync function, of at most [`SYNC_FUNCTION_BYTES_MAX`] bytes, and gives the database channels if it had
    /// none; `None`: the documents' own members `channels` route them. No write commits later that another function
    /// judged. Existing documents keep their channels until [background work](crate::Background) has routed them. An
    /// equal function changes nothing.
    ///
    /// # Errors
    /// [`Refusal::InvalidDesign`] if it is not a function. [`Refusal::InvalidSetting`] if it is too long, or the
    /// database cannot have channels. [`Refusal::NotJudged`] if it could not be checked.
    #[boxed]
    pub async fn set_sync_function(&self, source: Option<&str>) -> Result<()> {
        check_has_channels(&self.handle.name, false)?;
        check_source(&self.handle.inner, &self.handle.name, source).await?;
        let mut set = SetFunction {
            inner: &self.handle.inner,
            name: &self.handle.name,
            actor: self.actor(),
            source,
            now_ms: self.handle.inner.clock.unix_ms(),
            run: draw_run()?,
            once: self.handle.inner.once()?,
        };
        transaction::write(&self.handle.inner.db, &self.handle.inner.metrics, &mut set).await?;
        self.handle.inner.due.wake.notify_one();
        Ok(())
    }

    /// Returns the verdict on an edit of a principal in a database with channels, for the revision as it would be
    /// stored. Writes nothing, and runs no validation function.
    ///
    /// # Errors
    /// [`Refusal::Rejected`] and others of a write; [`Refusal::InvalidSetting`] if it has no channels.
    #[boxed]
    pub async fn route(&self, edit: &Edit<'_>, asker: &ReadPrincipal) -> Result<Verdict> {
        let instance = resolved(&self.handle.inner, &self.handle.name).await?;
        let held = rights::held(&self.handle, &instance, asker, true).await?;
        let writer = held.as_ref().map(|held| rights::writer(asker, held)).transpose()?;
        let old = match read_replaced(&self.handle, edit, None, None).await? {
            ReplacedRevision::Revision(old) => Some(*old),
            ReplacedRevision::Itself | ReplacedRevision::Nothing if edit.history.is_some() || edit.parent.is_some() => {
                None
            }
            ReplacedRevision::Itself | ReplacedRevision::Nothing => {
                match self.get(&edit.id, &GetOptions::default()).await {
                    Ok(old) => Some(old),
                    Err(Error::Refused(Refusal::DocumentNotFound(_))) => None,
                    Err(error) => return Err(error),
                }
            }
        };
        Ok(route_edit(&self.handle, &instance, edit, old.as_ref(), writer.as_ref()).await??)
    }
}

/// Checks that a database of this name may have channels: replicator databases and the server's own databases may not,
/// since they have other rules for reading.
pub(crate) fn check_has_channels(name: &str, is_replicator: bool) -> std::result::Result<(), Refusal> {
    match DatabaseKind::of(name) {
        DatabaseKind::Ordinary if !is_replicator => Ok(()),
        _ => Err(Refusal::InvalidSetting("A system database has no channels".to_owned())),
    }
}

pub(crate) async fn check_source(inner: &Inner, name: &str, source: Option<&str>) -> std::result::Result<(), Refusal> {
    let Some(source) = source else { return Ok(()) };
    if source.len() > SYNC_FUNCTION_BYTES_MAX {
        let reason = format!("a sync function is at most {SYNC_FUNCTION_BYTES_MAX} bytes");
        return Err(Refusal::InvalidSetting(reason));
    }
    if source.contains('\0') {
        let reason = "a sync function has no NUL in it".to_owned();
        return Err(Refusal::InvalidDesign { what: DesignFault::Compilation, reason });
    }
    let judge = judge_of(inner).ok_or_else(|| Refusal::not_judged(NotJudged::Internal, NO_FUNCTIONS))?;
    judge.check_sync_function(&named_by(name, 0), source).await
}

struct SetFunction<'a> {
    inner: &'a Inner,
    name: &'a str,
    actor: &'a Actor,
    source: Option<&'a str>,
    now_ms: u64,
    /// The number of the resync that follows.
    run: u64,
    once: Once,
}

impl Operation for SetFunction<'_> {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<()> {
        // Other clients may have set another one since the earlier attempt.
        if self.once.happened(trx, attempt).await?.is_some() {
            return Ok(());
        }
        let key = self.inner.keys.database(self.name);
        let bytes = trx.get(&key, false);
        let writer = self.inner.writer(trx, self.actor);
        let (writer, _) = futures_util::try_join!(writer, self.inner.epoch_for_write(trx))?;
        let bytes = bytes.await?.ok_or(Error::DatabaseNotFound)?;
        let before = proto::DatabaseRecord::decode(&*bytes)?;
        check_record(&before, self.inner.collation)?;
        check_has_channels(self.name, is_replicator(&before))?;
        writer.admitted_by(trx, &DatabaseSecurity::new(&before.security, before.incarnation)).await?;
        let keys = self.inner.keys.namespace(before.namespace);
        if before.channels > 0 {
            let stored = trx.get(&keys.sync_function(), false).await?;
            let stored = stored.map(|bytes| proto::SyncFunction::decode(&*bytes)).transpose()?;
            if stored.as_ref().map(|stored| stored.source.as_str()) == self.source {
                return Ok(());
            }
        }
        let mut record = before.clone();
        set_function(trx, &keys, &mut record, self.source, self.now_ms);
        // It stays closed to its users until the documents are routed by the earlier function.
        let exclusive = ClosedReasons::of(record.closed).is_resyncing;
        let (number, begun_at_ms) = (record.channels, self.now_ms);
        let resync = proto::Resync { number, begun_at_ms, exclusive, run: self.run, ..proto::Resync::default() };
        begin_resync(trx, &keys, &resync);
        due::mark(trx, &self.inner.keys, DueKind::Resync, self.name, 0)?;
        check_room(&record.encode_to_vec(), &bytes)?;
        self.once.mark(trx);
        trx.set(&key, &record.encode_to_vec());
        note_change(trx, &self.inner.keys, self.name)
    }
}
