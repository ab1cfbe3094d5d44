//! A database in the hands of somebody who has a right in it.

use std::ops::Deref;

use flatbed_layer::{
    CreateOptions, Database, DocumentId, Edit, LocalDocument, LocalEdit, LocalOutcome, Outcome, REPLICATOR, Reader,
    Refusal, Result, RevId, Unstaged, Updated, Upload, Uploaded,
};

use crate::replications;
use crate::standing::Standing;

/// A database to write documents to; what may write may read. Cheap to clone.
#[derive(Clone)]
pub struct Writer {
    database: Database,
    /// Whether design documents may be written, too.
    designs: std::result::Result<(), Refusal>,
    /// Where documents have owners: who writes.
    owner: Option<Standing>,
}

/// A database to set up. Cheap to clone.
#[derive(Clone)]
pub struct Administration(pub(crate) Database);

/// A database to keep in order. Cheap to clone.
#[derive(Clone)]
pub struct Maintenance(pub(crate) Database);

/// A database to remove documents from without a trace. Cheap to clone.
#[derive(Clone)]
pub struct Purging(pub(crate) Database);

/// A database to create and to delete. Cheap to clone.
#[derive(Clone)]
pub struct Ownership(pub(crate) Database);

impl Deref for Writer {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        self.database.reader()
    }
}

impl Deref for Administration {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        self.0.reader()
    }
}

impl Deref for Maintenance {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        self.0.reader()
    }
}

impl Deref for Purging {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        self.0.reader()
    }
}

impl Writer {
    pub(crate) fn new(database: Database, designs: std::result::Result<(), Refusal>, by: &Standing) -> Writer {
        let owner = (database.name() == REPLICATOR).then(|| by.clone());
        Writer { database, designs, owner }
    }

    /// The same database in another's hands, where documents have owners.
    #[cfg(test)]
    pub(crate) fn of(&self, by: &Standing) -> Writer {
        Writer { owner: Some(by.clone()), ..self.clone() }
    }

    /// Whether this edit may be made: design documents are their database's administrators'.
    fn allows(&self, edit: &Edit<'_>) -> std::result::Result<(), Refusal> {
        if DocumentId::of(&edit.id).is_design() { self.designs.clone() } else { Ok(()) }
    }

    /// See [`Database::update`].
    ///
    /// # Errors
    /// As there; and that design documents are not theirs.
    pub async fn update(&self, edit: &Edit<'_>) -> Result<Updated> {
        self.allows(edit)?;
        match &self.owner {
            None => self.database.update(edit).await,
            Some(by) => {
                let edit = replications::before_update(&self.database, by, edit).await?;
                self.database.update(&edit).await
            }
        }
    }

    /// See [`Database::bulk_update`]. Design documents that are not theirs to write are refused each for itself.
    ///
    /// # Errors
    /// As there.
    pub async fn bulk_update(&self, edits: &[Edit<'_>]) -> Result<Vec<Outcome>> {
        if edits.iter().all(|edit| self.allows(edit).is_ok()) {
            return self.bulk(edits).await;
        }
        let mut outcomes = Vec::with_capacity(edits.len());
        // What lies between them is written as it stands: edits are not copied.
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

    /// See [`Database::upload`].
    ///
    /// # Errors
    /// As there.
    pub async fn upload(&self, content_type: &str, is_gzip: bool) -> Result<Upload> {
        self.database.upload(content_type, is_gzip).await
    }

    /// See [`Database::stage`].
    ///
    /// # Errors
    /// As there.
    pub async fn stage(&self, data: &[Unstaged]) -> Result<()> {
        self.database.stage(data).await
    }

    /// See [`Database::renew_uploads`].
    ///
    /// # Errors
    /// As there.
    pub async fn renew_uploads(&self, data: &[Uploaded]) -> Result<()> {
        self.database.renew_uploads(data).await
    }

    /// See [`Database::discard`].
    pub async fn discard(&self, data: &Uploaded) {
        self.database.discard(data).await;
    }

    /// See [`Database::put_local`].
    ///
    /// # Errors
    /// As there.
    pub async fn put_local(&self, document: &LocalDocument) -> Result<()> {
        self.database.put_local(document).await
    }

    /// See [`Database::delete_local`].
    ///
    /// # Errors
    /// As there.
    pub async fn delete_local(&self, id: &str) -> Result<bool> {
        self.database.delete_local(id).await
    }

    /// See [`Database::edit_locals`].
    ///
    /// # Errors
    /// As there.
    pub async fn edit_locals(&self, edits: &[LocalEdit]) -> Result<Vec<LocalOutcome>> {
        self.database.edit_locals(edits).await
    }
}

impl Administration {
    /// See [`Database::set_revs_limit`].
    ///
    /// # Errors
    /// As there.
    pub async fn set_revs_limit(&self, revs_limit: u64) -> Result<()> {
        self.0.set_revs_limit(revs_limit).await
    }

    /// See [`Database::set_security`].
    ///
    /// # Errors
    /// As there.
    pub async fn set_security(&self, security: &[u8]) -> Result<()> {
        self.0.set_security(security).await
    }
}

impl Maintenance {
    /// See [`Database::view_cleanup`].
    ///
    /// # Errors
    /// As there.
    pub async fn view_cleanup(&self) -> Result<()> {
        self.0.view_cleanup().await
    }

    /// See [`Database::compact`].
    ///
    /// # Errors
    /// As there.
    pub async fn compact(&self) -> Result<()> {
        self.0.compact().await
    }
}

impl Purging {
    /// See [`Database::purge`].
    ///
    /// # Errors
    /// As there.
    pub async fn purge(&self, id: &str, revs: &[RevId]) -> Result<Vec<RevId>> {
        self.0.purge(id, revs).await
    }

    /// See [`Database::set_purged_infos_limit`].
    ///
    /// # Errors
    /// As there.
    pub async fn set_purged_infos_limit(&self, limit: u64) -> Result<()> {
        self.0.set_purged_infos_limit(limit).await
    }
}

impl Ownership {
    /// See [`Database::create`].
    ///
    /// # Errors
    /// As there.
    pub async fn create(&self, options: &CreateOptions) -> Result<()> {
        self.0.create(options).await
    }

    /// See [`Database::delete`].
    ///
    /// # Errors
    /// As there.
    pub async fn delete(&self) -> Result<()> {
        self.0.delete().await
    }
}
