//! A database in the hands of somebody who has a right in it.

use std::ops::Deref;
use std::sync::Arc;

use flatbed_layer::{
    CreateOptions, Database, DocumentId, Edit, Error, LocalDocument, LocalEdit, LocalOutcome, Outcome, REPLICATOR,
    Reader, Refusal, Result, RevId, Unstaged, Updated, Upload, Uploaded,
};

use crate::replications;
use crate::rights::Again;
use crate::standing::Standing;
use crate::user_documents::{Entering, prepared};

/// A database to write documents to; what may write may read. Cheap to clone. Where a user's document has changed since the
/// user was identified, or an administrator of the database is none any more, the right is asked for once more.
#[derive(Clone)]
pub struct Writer {
    once: Once,
    again: Option<Arc<Again>>,
}

/// A right to write as it was given.
#[derive(Clone)]
struct Once {
    database: Database,
    /// What is seen of it.
    reader: Reader,
    /// What documents of `_users` go through; of other databases nothing.
    entering: Option<Entering>,
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
        &self.once.reader
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
    pub(crate) fn new(
        database: Database,
        reader: Reader,
        designs: std::result::Result<(), Refusal>,
        by: &Standing,
        entering: Option<Entering>,
        again: Option<Arc<Again>>,
    ) -> Writer {
        let owner = (database.name() == REPLICATOR).then(|| by.clone());
        Writer { once: Once { database, reader, entering, designs, owner }, again }
    }

    /// The same database in another's hands, where documents have owners.
    #[cfg(test)]
    pub(crate) fn of(&self, by: &Standing) -> Writer {
        Writer { once: Once { owner: Some(by.clone()), ..self.once.clone() }, again: None }
    }

    /// Whether a request may write these documents: in `_users` the first that somebody may not write refuses all of them.
    ///
    /// # Errors
    /// Why not.
    pub fn enter(&self, ids: impl IntoIterator<Item = impl AsRef<str>>) -> std::result::Result<(), Refusal> {
        let Some(entering) = &self.once.entering else { return Ok(()) };
        ids.into_iter().try_for_each(|id| entering.enters(id.as_ref()))
    }

    /// Whether local documents may be written: who may not is not let in by being asked about once more.
    fn local(&self) -> std::result::Result<(), Refusal> {
        self.once.entering.as_ref().map_or(Ok(()), Entering::local)
    }

    /// How the right is asked for once more, if it is to be.
    fn again<T>(&self, done: &Result<T>) -> Option<&Again> {
        let is_changed = matches!(done, Err(Error::Refused(Refusal::UserChanged)));
        if is_changed { self.again.as_deref() } else { None }
    }

    /// See [`Database::update`].
    ///
    /// # Errors
    /// As there; and that design documents are not theirs.
    pub async fn update(&self, edit: &Edit<'_>) -> Result<Updated> {
        let done = self.once.update(edit).await;
        match self.again(&done) {
            None => done,
            Some(again) => Box::pin(async { again.writer().await?.once.update(edit).await }).await,
        }
    }

    /// See [`Database::bulk_update`]. Design documents that are not theirs to write are refused each for itself.
    ///
    /// # Errors
    /// As there.
    pub async fn bulk_update(&self, edits: &[Edit<'_>]) -> Result<Vec<Outcome>> {
        let mut outcomes = self.once.bulk_update(edits).await?;
        let is_changed = |outcome: &Outcome| matches!(outcome, Err(Refusal::UserChanged));
        let Some(again) = self.again.as_deref().filter(|_| outcomes.iter().any(is_changed)) else {
            return Ok(outcomes);
        };
        Box::pin(async {
            let writer = again.writer().await?;
            let mut begin = 0;
            while begin < outcomes.len() {
                let rest = outcomes.get(begin..).unwrap_or_default();
                let of = rest.first().is_some_and(is_changed);
                let end = begin + rest.iter().take_while(|outcome| is_changed(outcome) == of).count();
                if of {
                    let done = writer.once.bulk_update(edits.get(begin..end).unwrap_or_default()).await?;
                    outcomes.iter_mut().skip(begin).zip(done).for_each(|(outcome, done)| *outcome = done);
                }
                begin = end;
            }
            Ok(outcomes)
        })
        .await
    }

    /// See [`Database::upload`].
    ///
    /// # Errors
    /// As there.
    pub async fn upload(&self, content_type: &str, is_gzip: bool) -> Result<Upload> {
        let done = self.once.database.upload(content_type, is_gzip).await;
        match self.again(&done) {
            None => done,
            Some(again) => {
                Box::pin(async { again.writer().await?.once.database.upload(content_type, is_gzip).await }).await
            }
        }
    }

    /// See [`Database::stage`].
    ///
    /// # Errors
    /// As there.
    pub async fn stage(&self, data: &[Unstaged]) -> Result<()> {
        let done = self.once.database.stage(data).await;
        match self.again(&done) {
            None => done,
            Some(again) => Box::pin(async { again.writer().await?.once.database.stage(data).await }).await,
        }
    }

    /// See [`Database::renew_uploads`].
    ///
    /// # Errors
    /// As there.
    pub async fn renew_uploads(&self, data: &[Uploaded]) -> Result<()> {
        let done = self.once.database.renew_uploads(data).await;
        match self.again(&done) {
            None => done,
            Some(again) => Box::pin(async { again.writer().await?.once.database.renew_uploads(data).await }).await,
        }
    }

    /// See [`Database::discard`].
    pub async fn discard(&self, data: &Uploaded) {
        self.once.database.discard(data).await;
    }

    /// See [`Database::put_local`].
    ///
    /// # Errors
    /// As there.
    pub async fn put_local(&self, document: &LocalDocument) -> Result<()> {
        self.local()?;
        let done = self.once.database.put_local(document).await;
        match self.again(&done) {
            None => done,
            Some(again) => Box::pin(async { again.writer().await?.once.database.put_local(document).await }).await,
        }
    }

    /// See [`Database::delete_local`].
    ///
    /// # Errors
    /// As there.
    pub async fn delete_local(&self, id: &str) -> Result<bool> {
        self.local()?;
        let done = self.once.database.delete_local(id).await;
        match self.again(&done) {
            None => done,
            Some(again) => Box::pin(async { again.writer().await?.once.database.delete_local(id).await }).await,
        }
    }

    /// See [`Database::edit_locals`].
    ///
    /// # Errors
    /// As there.
    pub async fn edit_locals(&self, edits: &[LocalEdit]) -> Result<Vec<LocalOutcome>> {
        if !edits.is_empty() {
            self.local()?;
        }
        let done = self.once.database.edit_locals(edits).await;
        match self.again(&done) {
            None => done,
            Some(again) => Box::pin(async { again.writer().await?.once.database.edit_locals(edits).await }).await,
        }
    }
}

impl Once {
    /// Whether this edit may be made: design documents are their database's administrators'.
    fn allows(&self, edit: &Edit<'_>) -> std::result::Result<(), Refusal> {
        if DocumentId::of(&edit.id).is_design() { self.designs.clone() } else { Ok(()) }
    }

    async fn update(&self, edit: &Edit<'_>) -> Result<Updated> {
        let edits = prepared(self.entering.as_ref(), std::slice::from_ref(edit)).await?;
        self.allows(edit)?;
        let edit = edits.first().unwrap_or(edit);
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
