//! A database in the hands of somebody who has a right in it.

use std::ops::Deref;

use flatbed_layer::{
    CreateOptions, Database, Edit, LocalDocument, LocalEdit, LocalOutcome, Outcome, Reader, Result, RevId, Unstaged,
    Updated, Upload, Uploaded,
};

/// A database to write documents to; what may write may read. Cheap to clone.
#[derive(Clone)]
pub struct Writer(pub(crate) Database);

/// A database to set up and to keep in order. Cheap to clone.
#[derive(Clone)]
pub struct Administration(pub(crate) Database);

/// A database to create and to delete. Cheap to clone.
#[derive(Clone)]
pub struct Ownership(pub(crate) Database);

impl Deref for Writer {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        self.0.reader()
    }
}

impl Deref for Administration {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        self.0.reader()
    }
}

impl Writer {
    /// See [`Database::update`].
    ///
    /// # Errors
    /// As there.
    pub async fn update(&self, edit: &Edit<'_>) -> Result<Updated> {
        self.0.update(edit).await
    }

    /// See [`Database::bulk_update`].
    ///
    /// # Errors
    /// As there.
    pub async fn bulk_update(&self, edits: &[Edit<'_>]) -> Result<Vec<Outcome>> {
        self.0.bulk_update(edits).await
    }

    /// See [`Database::upload`].
    ///
    /// # Errors
    /// As there.
    pub async fn upload(&self, content_type: &str, is_gzip: bool) -> Result<Upload> {
        self.0.upload(content_type, is_gzip).await
    }

    /// See [`Database::stage`].
    ///
    /// # Errors
    /// As there.
    pub async fn stage(&self, data: &[Unstaged]) -> Result<()> {
        self.0.stage(data).await
    }

    /// See [`Database::renew_uploads`].
    ///
    /// # Errors
    /// As there.
    pub async fn renew_uploads(&self, data: &[Uploaded]) -> Result<()> {
        self.0.renew_uploads(data).await
    }

    /// See [`Database::discard`].
    pub async fn discard(&self, data: &Uploaded) {
        self.0.discard(data).await;
    }

    /// See [`Database::put_local`].
    ///
    /// # Errors
    /// As there.
    pub async fn put_local(&self, document: &LocalDocument) -> Result<()> {
        self.0.put_local(document).await
    }

    /// See [`Database::delete_local`].
    ///
    /// # Errors
    /// As there.
    pub async fn delete_local(&self, id: &str) -> Result<bool> {
        self.0.delete_local(id).await
    }

    /// See [`Database::edit_locals`].
    ///
    /// # Errors
    /// As there.
    pub async fn edit_locals(&self, edits: &[LocalEdit]) -> Result<Vec<LocalOutcome>> {
        self.0.edit_locals(edits).await
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

    /// See [`Database::set_security`].
    ///
    /// # Errors
    /// As there.
    pub async fn set_security(&self, security: &[u8]) -> Result<()> {
        self.0.set_security(security).await
    }

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
