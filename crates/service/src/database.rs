//! Databases with a granted right.

use std::ops::Deref;

use async_recursion::async_recursion as boxed;
use flatbed_channels::PrincipalKind;
use flatbed_layer::channels::{PrincipalWrite, PrincipalWriteOutcome, ReadPrincipal};
use flatbed_layer::{
    CreateOptions, Database, DocumentId, Edit, LocalDocument, LocalEdit, LocalOutcome, Outcome, Reader, Refusal,
    Result, ResyncAction, RevId, SmallUpload, StagedUpload, Upload, Verdict, WrittenRevision,
};

use crate::given::{RENEWALS_MAX, RenewableGrant};
use crate::replications::{self, ReplicationWriter};
use crate::rights::{DatabaseGrant, Requirement};
use crate::user_documents::{UserDocumentWriter, prepared};

/// A database to write documents to, and to read. Cheap to clone.
///
/// Each write needs the right as of less than a second ago. If the layer finds that the right's basis has changed,
/// the writer renews the right and retries.
#[derive(Clone)]
pub struct Writer(pub(crate) RenewableGrant<WriterGrant>);

/// A right to write as of one grant.
#[derive(Clone)]
pub(crate) struct WriterGrant {
    database: Database,
    /// The same database for staged attachment data, which has no owner yet.
    staging: Database,
    /// The readable part of the database.
    reader: Reader,
    /// The rules for documents of `_users`; `None` in other databases.
    entering: Option<UserDocumentWriter>,
    /// The refusal of design documents, if the user may not write them.
    designs: std::result::Result<(), Refusal>,
    /// The refusal of local documents. Replicator databases allow them to administrators only, as at `_local/{id}`;
    /// for `_users` see `entering`.
    locals: std::result::Result<(), Refusal>,
    /// The writer, in databases whose documents have owners.
    owner: Option<ReplicationWriter>,
}

/// A database to configure. Cheap to clone.
#[derive(Clone)]
pub struct Administration(pub(crate) RenewableGrant<Database>);

/// A database to maintain. Cheap to clone.
#[derive(Clone)]
pub struct Maintenance(pub(crate) RenewableGrant<Database>);

/// A database to purge documents from. Cheap to clone.
#[derive(Clone)]
pub struct PurgeAccess(pub(crate) RenewableGrant<Database>);

/// A database to create and to delete. Cheap to clone.
#[derive(Clone)]
pub struct Ownership(pub(crate) RenewableGrant<Database>);

impl Deref for Writer {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        &self.0.first.reader
    }
}

impl Deref for Administration {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        self.0.first.reader()
    }
}

impl Deref for Maintenance {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        self.0.first.reader()
    }
}

impl Deref for PurgeAccess {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        self.0.first.reader()
    }
}

impl Writer {
    /// The same database for another writer, if documents have owners.
    #[cfg(test)]
    pub(crate) fn of(&self, standing: &crate::standing::Standing) -> Writer {
        let by = self.0.first.owner.clone().map(|by| ReplicationWriter { standing: standing.clone(), ..by });
        Writer(RenewableGrant::fixed(WriterGrant { owner: by, ..self.0.first.clone() }))
    }

    /// Checks whether a request may write these documents. In `_users`, one forbidden document refuses the whole
    /// request; so does a local document in a replicator database.
    pub fn enter(&self, ids: impl IntoIterator<Item = impl AsRef<str>>) -> std::result::Result<(), Refusal> {
        let WriterGrant { entering, locals, .. } = &self.0.first;
        if entering.is_none() && locals.is_ok() {
            return Ok(());
        }
        ids.into_iter().try_for_each(|id| match entering {
            Some(entering) => entering.enters(id.as_ref()),
            None if DocumentId::of(id.as_ref()).is_local() => locals.clone(),
            None => Ok(()),
        })
    }

    /// See [`Database::update`].
    ///
    /// # Errors
    /// As there; a refusal of design documents.
    #[boxed]
    pub async fn update(&self, edit: &Edit<'_>) -> Result<WrittenRevision> {
        let updated = self.0.write(|once| async move { once.update(edit).await }).await;
        self.0.forget_accounts(std::iter::once(&*edit.id));
        updated
    }

    /// See [`Database::bulk_update`]. Forbidden design documents are refused one by one.
    ///
    /// # Errors
    /// As there; [`Refusal::UserChanged`] is never one of the outcomes.
    #[boxed]
    pub async fn bulk_update(&self, edits: &[Edit<'_>]) -> Result<Vec<Outcome>> {
        let outcomes = self.bulk_update_now(edits).await;
        self.0.forget_accounts(edits.iter().map(|edit| &*edit.id));
        outcomes
    }

    async fn bulk_update_now(&self, edits: &[Edit<'_>]) -> Result<Vec<Outcome>> {
        let mut outcomes = self.0.now().await?.bulk_update(edits).await?;
        for _ in 0..RENEWALS_MAX {
            if !outcomes.iter().any(is_changed) {
                break;
            }
            self.0.changed().await?.update_changed(edits, &mut outcomes).await?;
        }
        // Replicators do not retry a single refused document, so the whole request fails.
        if outcomes.iter().any(is_changed) { Err(Refusal::UserChanged.into()) } else { Ok(outcomes) }
    }

    /// See [`Database::upload`].
    #[boxed]
    pub async fn upload(&self, content_type: &str, is_gzip: bool) -> Result<Upload> {
        self.0.write(|once| async move { once.staging.upload(content_type, is_gzip).await }).await
    }

    /// See [`Database::stage`].
    #[boxed]
    pub async fn stage(&self, data: &[SmallUpload]) -> Result<()> {
        self.0.write(|once| async move { once.staging.stage(data).await }).await
    }

    /// See [`Database::renew_uploads`].
    #[boxed]
    pub async fn renew_uploads(&self, data: &[StagedUpload]) -> Result<()> {
        self.0.write(|once| async move { once.staging.renew_uploads(data).await }).await
    }

    /// See [`Database::discard`].
    #[boxed]
    pub async fn discard(&self, data: &StagedUpload) {
        self.0.first.staging.discard(data).await;
    }

    /// See [`Database::put_local`].
    #[boxed]
    pub async fn put_local(&self, document: &LocalDocument) -> Result<()> {
        self.0.write(|once| async move { once.locals()?.put_local(document).await }).await
    }

    /// See [`Database::delete_local`].
    #[boxed]
    pub async fn delete_local(&self, id: &str) -> Result<bool> {
        self.0.write(|once| async move { once.locals()?.delete_local(id).await }).await
    }

    /// See [`Database::edit_locals`].
    #[boxed]
    pub async fn edit_locals(&self, edits: &[LocalEdit]) -> Result<Vec<LocalOutcome>> {
        self.0
            .write(|once| async move {
                let database = if edits.is_empty() { &once.database } else { once.locals()? };
                database.edit_locals(edits).await
            })
            .await
    }
}

/// True if an edit was refused because the user's rights must be renewed.
fn is_changed(outcome: &Outcome) -> bool {
    matches!(outcome, Err(Refusal::UserChanged))
}

impl WriterGrant {
    pub(crate) fn of(granted: &DatabaseGrant<'_>) -> WriterGrant {
        let (database, staging) = (granted.database(Requirement::Member), granted.staging());
        let by = || ReplicationWriter { standing: granted.rights.standing.clone(), accounts: granted.accounts.clone() };
        let owner = granted.is_replicator().then(by);
        let (reader, entering) = (granted.reader(), granted.entering());
        let designs = granted.designs();
        let locals = if owner.is_some() { designs.clone() } else { Ok(()) };
        WriterGrant { database, staging, reader, entering, designs, locals, owner }
    }

    /// Retries the edits that were refused because the user changed.
    async fn update_changed(&self, edits: &[Edit<'_>], outcomes: &mut [Outcome]) -> Result<()> {
        let mut at = 0;
        let changed: Vec<bool> = outcomes.iter().map(is_changed).collect();
        for run in changed.chunk_by(|one, next| one == next) {
            let end = at + run.len();
            if run.first() == Some(&true) {
                let done = self.bulk_update(edits.get(at..end).unwrap_or_default()).await?;
                outcomes.iter_mut().skip(at).zip(done).for_each(|(outcome, done)| *outcome = done);
            }
            at = end;
        }
        Ok(())
    }

    /// Checks whether the user may make this edit. Only administrators of the database write design documents, and
    /// user documents with the name of a configured administrator.
    fn allows(&self, edit: &Edit<'_>) -> std::result::Result<(), Refusal> {
        self.entering.as_ref().map_or(Ok(()), |entering| entering.may_register(edit))?;
        if DocumentId::of(&edit.id).is_design() { self.designs.clone() } else { Ok(()) }
    }

    fn locals(&self) -> std::result::Result<&Database, Refusal> {
        self.entering.as_ref().map_or(Ok(()), UserDocumentWriter::local)?;
        self.locals.clone()?;
        Ok(&self.database)
    }

    async fn update(&self, edit: &Edit<'_>) -> Result<WrittenRevision> {
        let edits = prepared(self.entering.as_ref(), std::slice::from_ref(edit)).await?;
        let edit = edits.first().unwrap_or(edit);
        self.allows(edit)?;
        match &self.owner {
            None => self.database.update(edit).await,
            Some(by) => {
                let edit = replications::before_update(&self.database, by, edit).await?;
                self.database.update(&edit).await
            }
        }
    }

    async fn bulk_update(&self, edits: &[Edit<'_>]) -> Result<Vec<Outcome>> {
        let edits = &*prepared(self.entering.as_ref(), edits).await?;
        if edits.iter().all(|edit| self.allows(edit).is_ok()) {
            return self.bulk(edits).await;
        }
        let mut outcomes = Vec::with_capacity(edits.len());
        // Runs of allowed edits are written without copying them.
        for run in edits.chunk_by(|one, next| self.allows(one).is_ok() == self.allows(next).is_ok()) {
            match run.first().map(|edit| self.allows(edit)) {
                Some(Err(refusal)) => outcomes.extend(run.iter().map(|_| Err(refusal.clone()))),
                _ => outcomes.extend(self.bulk(run).await?),
            }
        }
        Ok(outcomes)
    }

    async fn bulk(&self, edits: &[Edit<'_>]) -> Result<Vec<Outcome>> {
        match &self.owner {
            None => self.database.bulk_update(edits).await,
            Some(by) => replications::bulk_update(&self.database, by, edits).await,
        }
    }
}

impl Administration {
    /// See [`Database::set_revs_limit`].
    #[boxed]
    pub async fn set_revs_limit(&self, revs_limit: u64) -> Result<()> {
        self.0.write(|database| async move { database.set_revs_limit(revs_limit).await }).await
    }

    /// See [`Database::set_security`].
    #[boxed]
    pub async fn set_security(&self, security: &[u8]) -> Result<()> {
        self.0.write(|database| async move { database.set_security(security).await }).await
    }
}

impl Administration {
    /// See [`Database::put_principal`].
    #[boxed]
    pub async fn put_principal(&self, write: &PrincipalWrite) -> Result<PrincipalWriteOutcome> {
        let written = self.0.write(|database| async move { database.put_principal(write).await }).await;
        self.0.forget_user(&write.name);
        written
    }

    /// See [`Database::set_sync_function`].
    #[boxed]
    pub async fn set_sync_function(&self, source: Option<&str>) -> Result<()> {
        self.0.write(|database| async move { database.set_sync_function(source).await }).await
    }

    /// See [`Database::resync`].
    #[boxed]
    pub async fn resync(&self, action: ResyncAction) -> Result<bool> {
        self.0.write(|database| async move { database.resync(action).await }).await
    }

    /// See [`Database::set_offline`].
    #[boxed]
    pub async fn set_offline(&self, is_offline: bool) -> Result<()> {
        self.0.write(|database| async move { database.set_offline(is_offline).await }).await
    }

    /// See [`Database::route`].
    #[boxed]
    pub async fn route(&self, edit: &Edit<'_>, asker: &ReadPrincipal) -> Result<Verdict> {
        self.0.write(|database| async move { database.route(edit, asker).await }).await
    }

    /// See [`Database::delete_principal`].
    #[boxed]
    pub async fn delete_principal(&self, kind: PrincipalKind, name: &str) -> Result<bool> {
        let deleted = self.0.write(|database| async move { database.delete_principal(kind, name).await }).await;
        self.0.forget_user(name);
        deleted
    }

    /// See [`Database::end_principal_sessions`].
    #[boxed]
    pub async fn end_principal_sessions(&self, name: &str) -> Result<bool> {
        let ended = self.0.write(|database| async move { database.end_principal_sessions(name).await }).await;
        self.0.forget_user(name);
        ended
    }
}

impl Maintenance {
    /// See [`Database::view_cleanup`].
    #[boxed]
    pub async fn view_cleanup(&self) -> Result<()> {
        self.0.write(|database| async move { database.view_cleanup().await }).await
    }

    /// See [`Database::compact`].
    #[boxed]
    pub async fn compact(&self) -> Result<()> {
        self.0.write(|database| async move { database.compact().await }).await
    }
}

impl PurgeAccess {
    /// See [`Database::purge`].
    #[boxed]
    pub async fn purge(&self, id: &str, revs: &[RevId]) -> Result<Vec<RevId>> {
        let purged = self.0.write(|database| async move { database.purge(id, revs).await }).await;
        self.0.forget_accounts(std::iter::once(id));
        purged
    }

    /// See [`Database::set_purged_infos_limit`].
    #[boxed]
    pub async fn set_purged_infos_limit(&self, limit: u64) -> Result<()> {
        self.0.write(|database| async move { database.set_purged_infos_limit(limit).await }).await
    }
}

impl Ownership {
    /// See [`Database::create`].
    #[boxed]
    pub async fn create(&self, options: &CreateOptions) -> Result<()> {
        self.0.write(|database| async move { database.create(options).await }).await
    }

    /// See [`Database::delete`].
    #[boxed]
    pub async fn delete(&self) -> Result<()> {
        self.0.write(|database| async move { database.delete().await }).await
    }
}
