//! The operations of a database for code above the layer.

use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_databases::asker::ReadPrincipal;
use flatbed_databases::create::{Create, Delete};
use flatbed_databases::document::attachments::AttachmentReader;
use flatbed_databases::document::edit::{Conflicts, Document, Edit, GetOptions, Outcome, WrittenRevision};
use flatbed_databases::document::upload::{SmallUpload, StagedUpload, Upload};
use flatbed_databases::handles::ReadHandle;
use flatbed_databases::instance::{Instance, RUN_BYTES_MAX};
use flatbed_databases::record_change::ChangeRecord;
use flatbed_databases::server::{CreateOptions, DEFAULT_FIELD_IDS_MAX, Inner};
use flatbed_feeds::feed::changes::Changes;
use flatbed_feeds::feed::query::ChangesQuery;
use flatbed_operations::compactions::Compactions;
use flatbed_operations::judge::rights;
use flatbed_operations::read::all_docs::{AllDocs, AllDocsKeys, AllDocsQuery, AllDocsRow};
use flatbed_operations::read::attachment::OpenAttachment;
use flatbed_operations::read::get::{self, GetOpenRevs, GetOutcome, OpenRevs};
use flatbed_operations::read::missing;
use flatbed_operations::read::partition::{self, PartitionInfo};
use flatbed_operations::read::routings::{DocumentRouting, Routings};
use flatbed_operations::read::seen_info::{seen_info, seen_seq};
use flatbed_operations::read::viewer::{PendingViewer, is_judged};
use flatbed_operations::write::compact;
use flatbed_revtree::RevId;
use flatbed_store::buckets::SHARDS_MAX;
use flatbed_store::database_name::{DatabaseKind, check_name, is_replicator_name};
use flatbed_store::due::{self, DueKind};
use flatbed_store::error::{Error, NotFound, Refusal, Result};
use flatbed_store::proto::DatabaseRecord;
use flatbed_store::seq::Seq;
use flatbed_store::sync_function::ChannelsOptions;
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use flatbed_views::group::attend::{wake, wake_purged};
use futures_util::FutureExt;

use crate::handle::{Database, Reader};
use crate::sync_function::{check_has_channels, check_source};

/// Statistics of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseInfo {
    /// Documents that are not deleted.
    pub doc_count: u64,
    /// Documents whose winner is a tombstone.
    pub doc_del_count: u64,
    /// The newest sequence.
    pub update_seq: Seq,
    /// Bytes of the winners' bodies as JSON text, and of their decoded attachments.
    pub external_size_bytes: u64,
    /// Bytes of all bodies in keys and values.
    pub active_size_bytes: u64,
    /// The part of them in bodies of revisions that are not leaves: what a compaction frees.
    pub superseded_size_bytes: u64,
    /// Number of purges.
    pub purge_seq: u64,
    /// True if a compaction is due or running, in any process.
    pub is_compacting: bool,
    /// FoundationDB's estimate for the whole database, in bytes; at least the active size.
    pub file_size_bytes: u64,
    /// The number that tells this database from others that had its name.
    pub incarnation: u64,
    /// The time of creation in milliseconds of Unix time.
    pub created_at_ms: u64,
    /// Bytes of consecutive leaves in one value; 0: one key for each leaf.
    pub run_bytes: u32,
    /// Number of places for by-seq, `last_seq` and counters: 1 to [`SHARDS_MAX`].
    pub shards: u32,
    /// See [`CreateOptions::hinted_shards`].
    pub hinted_shards: Option<u32>,
    /// See [`CreateOptions::partitioned`].
    pub is_partitioned: bool,
    /// True if its users see only documents in their channels: [`CreateOptions::channels`].
    pub has_channels: bool,
}

impl Reader {
    /// Reads counts and sizes. A reader with [`DocumentFilter`](crate::DocumentFilter) gets zeros and the first sequence,
    /// since the figures include hidden documents.
    ///
    /// # Errors
    /// [`Error::DatabaseNotFound`], as all operations here.
    #[boxed]
    pub async fn info(&self) -> Result<DatabaseInfo> {
        let (asker, is_part) = (self.asker(), self.handle.seen().is_some());
        let info = self
            .handle
            .read_about(&mut ReadInfo { inner: &self.handle.inner, name: &self.handle.name, asker, is_part })
            .await?;
        if !info.is_compacting && compact::is_wanted(info.active_size_bytes, info.superseded_size_bytes) {
            self.handle.inner.due.note(DueKind::Superseded, &self.handle.name);
        }
        Ok(info)
    }

    /// Reads a partition's counters and sizes, without its documents; `None` if the database has no partitions. An
    /// unused partition has zeros.
    pub async fn partition_info(&self, partition: &str) -> Result<Option<PartitionInfo>> {
        partition::partition_info(&self.handle, partition).await
    }

    /// Returns whether it has partitions: see [`CreateOptions::partitioned`].
    #[boxed]
    pub async fn is_partitioned(&self) -> Result<bool> {
        self.of_instance(|instance| instance.record.partitioned).await
    }

    /// Returns whether it has partitions, from the cache; `None` if the database is not cached.
    pub fn is_partitioned_known(&self) -> Option<bool> {
        self.handle.inner.cached(&self.handle.name).map(|instance| instance.record.partitioned)
    }

    /// Checks that it exists.
    #[boxed]
    pub async fn exists(&self) -> Result<()> {
        self.of_instance(|_| ()).await
    }

    /// Waits until it exists or the server stops, on a watch and with an occasional read.
    pub async fn wait_until_there(&self) -> Result<()> {
        flatbed_feeds::feed::watches::wait_until_there(&self.handle.inner, &self.handle.name).await
    }

    /// Returns the newest sequence for an unrestricted reader; `None` for a restricted one, whose feed may have rows
    /// without new writes.
    ///
    /// # Errors
    /// [`Error::DatabaseNotFound`], and those of the storage.
    #[boxed]
    pub async fn whole_update_seq(&self) -> Result<Option<Seq>> {
        struct LastSeq<'a>(&'a Reader);
        impl Operation for LastSeq<'_> {
            type Output = Option<Seq>;
            async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Option<Seq>> {
                let ReadHandle { inner, name, .. } = &self.0.handle;
                let instance = inner.resolve(trx, name).await?;
                match is_judged(&instance, self.0.asker()) {
                    true => Ok(None),
                    false => get::last_seq(trx, &instance).await.map(Some),
                }
            }
        }
        self.handle.read_about(&mut LastSeq(self)).await
    }

    /// Returns the newest sequence.
    #[boxed]
    pub async fn update_seq(&self) -> Result<Seq> {
        struct LastSeq<'a>(&'a Reader);
        impl Operation for LastSeq<'_> {
            type Output = Seq;
            async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Seq> {
                let ReadHandle { inner, name, .. } = &self.0.handle;
                let instance = inner.resolve(trx, name).await?;
                match is_judged(&instance, self.0.asker()) {
                    true => seen_seq(inner, trx, &instance, self.0.asker()).boxed().await,
                    false => get::last_seq(trx, &instance).await,
                }
            }
        }
        self.handle.read_about(&mut LastSeq(self)).await
    }

    /// Reads one document.
    ///
    /// # Errors
    /// [`Refusal::DocumentNotFound`].
    pub async fn get(&self, id: &str, options: &GetOptions) -> Result<Document> {
        get::document(&self.handle, id, options).await
    }

    /// Reads revisions of one document in order, all leaves or the named revisions (with `latest`: the leaves above
    /// them), from number `from` up to about 1 MB of bodies, 1 to 500. A missing revision is returned as its name. The
    /// second result is the total number.
    /// the number is of all there are.
    #[boxed]
    pub async fn open_revs(
        &self,
        id: &str,
        revs: &OpenRevs,
        from: usize,
        descending: bool,
        options: &GetOptions,
    ) -> Result<(Vec<std::result::Result<Document, RevId>>, usize)> {
        let ReadHandle { inner, name, .. } = &self.handle;
        let asker = self.asker();
        self.handle.read_judged(&mut GetOpenRevs { inner, name, asker, id, revs, from, descending, options }).await
    }

    /// Reads documents in one transaction: the first requests up to about 1 MB of bodies, at least one.
    pub async fn get_many(&self, requests: &[(String, GetOptions)]) -> Result<Vec<GetOutcome>> {
        get::documents(&self.handle, requests).await
    }

    /// Scans the documents by id.
    pub fn all_docs(&self, query: AllDocsQuery) -> AllDocs {
        AllDocs::new(self.handle.clone(), query)
    }

    /// Looks up documents by their ids: `None` for one that never existed. With documents: the first ids up to about 1
    /// MB of bodies, at least one.
    #[boxed]
    pub async fn all_docs_keys(
        &self,
        keys: &[String],
        include_docs: bool,
        conflicts: Conflicts,
    ) -> Result<Vec<Option<AllDocsRow>>> {
        let ReadHandle { inner, name, .. } = &self.handle;
        let asker = self.asker();
        self.handle.read_judged(&mut AllDocsKeys { inner, name, asker, keys, include_docs, conflicts }).await
    }

    /// Looks up the routing of documents' winners, for as many of the first ids as fit one transaction, at least one:
    /// `None` for one that never existed.
    #[boxed]
    pub async fn routings(&self, ids: &[String]) -> Result<Vec<Option<DocumentRouting>>> {
        self.handle.read(&mut Routings { inner: &self.handle.inner, name: &self.handle.name, ids }).await
    }

    /// Opens a feed of the changes.
    pub fn changes(&self, query: ChangesQuery) -> Changes {
        Changes::new(self.handle.clone(), query)
    }

    /// Returns the revisions that the documents do not have, ascending, or, if the document does not exist, in the
    /// order of the request, as in CouchDB; and the leaves that might be ancestors of them, those of a lower generation
    /// than a missing one, descending.
    pub async fn missing_revs(&self, wanted: &[(String, Vec<RevId>)]) -> Result<Vec<(Vec<RevId>, Vec<RevId>)>> {
        missing::missing_revs(&self.handle, wanted).await
    }

    /// Returns the limit of revisions in each branch.
    #[boxed]
    pub async fn revs_limit(&self) -> Result<u64> {
        self.of_whole(Instance::revs_limit).await
    }

    /// Returns the interval at which to renew uploads: they are removed after four times as long.
    pub fn renew_uploads_every(&self) -> Duration {
        self.handle.inner.options.uploads_broken_after / 4
    }

    /// Finds an attachment of a revision (`None`: the winner), to read its data.
    ///
    /// # Errors
    /// [`Refusal::DocumentNotFound`], [`Refusal::AttachmentNotFound`].
    #[boxed]
    pub async fn attachment(&self, id: &str, rev: Option<&RevId>, attachment: &str) -> Result<AttachmentReader> {
        if let Some(seen) = self.handle.seen() {
            seen.asks(id)?;
            if !seen.is_whole(id) {
                return Err(Refusal::DocumentNotFound(NotFound::Missing).into());
            }
        }
        let (inner, name, asker) = (&self.handle.inner, &self.handle.name, self.asker());
        let mut open = OpenAttachment { inner, name, asker, id, rev, attachment };
        Ok(AttachmentReader::new(self.handle.unrestricted(), self.handle.read_about(&mut open).await?))
    }

    /// Returns the limit of recorded purges.
    #[boxed]
    pub async fn purged_infos_limit(&self) -> Result<u64> {
        self.of_whole(Instance::purged_infos_limit).await
    }

    /// Returns `_security` as JSON text; `None` if none was set.
    #[boxed]
    pub async fn security(&self) -> Result<Option<Vec<u8>>> {
        let security = self.of_whole(|instance| instance.record.security.clone()).await?;
        Ok(Some(security).filter(|security| !security.is_empty()))
    }

    /// Returns the time of creation in milliseconds of Unix time.
    #[boxed]
    pub async fn created_at_ms(&self) -> Result<u64> {
        self.of_instance(|instance| instance.record.created_at_ms).await
    }

    /// Returns a fact of the database's record that each reader of the database may know.
    pub(crate) async fn of_instance<T: Send>(&self, of: fn(&Instance) -> T) -> Result<T> {
        self.handle.read_about(&mut ReadInstance { reader: self, of }).await
    }

    /// As `of_instance`, for unrestricted readers only.
    async fn of_whole<T: Send>(&self, of: fn(&Instance) -> T) -> Result<T> {
        self.handle.read_whole(&mut ReadInstance { reader: self, of }).await
    }
}

impl Database {
    /// Creates the database.
    ///
    /// # Errors
    /// [`Refusal::IllegalDatabaseName`], [`Refusal::InvalidSetting`], [`Error::DatabaseExists`].
    #[boxed]
    pub async fn create(&self, options: &CreateOptions) -> Result<()> {
        check_name(&self.handle.name)?;
        let run_bytes = options.run_bytes.unwrap_or(self.handle.inner.options.default_run_bytes);
        if run_bytes > RUN_BYTES_MAX {
            return Err(Refusal::InvalidSetting(format!("run_bytes is at most {RUN_BYTES_MAX}")).into());
        }
        let field_ids_max = options.field_ids_max.unwrap_or(DEFAULT_FIELD_IDS_MAX);
        if field_ids_max > 1_000_000 {
            return Err(Refusal::InvalidSetting("field_ids_max is at most 1000000".into()).into());
        }
        let shards = match options.shards {
            None | Some(1) => 0,
            Some(shards @ 2..=SHARDS_MAX) => shards,
            Some(_) => return Err(Refusal::InvalidSetting(format!("shards is 1 to {SHARDS_MAX}")).into()),
        };
        let created_at_ms = self.handle.inner.clock.unix_ms();
        let is_systems =
            DatabaseKind::of(&self.handle.name) != DatabaseKind::Ordinary || is_replicator_name(&self.handle.name);
        if options.partitioned && is_systems {
            return Err(Refusal::InvalidSetting("Cannot partition a system database".into()).into());
        }
        if let Some(ChannelsOptions { sync }) = &options.channels {
            check_has_channels(&self.handle.name, is_replicator_name(&self.handle.name))?;
            check_source(&self.handle.inner, &self.handle.name, sync.as_deref()).await?;
        }
        let security = options.security.as_deref().unwrap_or_default();
        check_security_size(security)?;
        let (leaves_only, once) = (options.leaves_only, self.handle.inner.once()?);
        let mut create = Create {
            inner: &self.handle.inner,
            name: &self.handle.name,
            actor: self.actor(),
            run_bytes,
            field_ids_max,
            leaves_only,
            shards,
            hinted_shards: options.hinted_shards.filter(|_| options.shards.is_none()).unwrap_or_default().into(),
            partitioned: options.partitioned,
            channels: options.channels.as_ref(),
            security,
            created_at_ms,
            once,
            namespace: None,
        };
        transaction::write(&self.handle.inner.db, &self.handle.inner.metrics, &mut create).await?;
        create.keep_namespaces();
        self.handle.inner.due.note_event();
        Ok(())
    }

    /// Deletes the database with all its data.
    ///
    /// # Errors
    /// [`Error::DatabaseNotFound`].
    #[boxed]
    pub async fn delete(&self) -> Result<()> {
        check_name(&self.handle.name).map_err(|_| Error::DatabaseNotFound)?;
        let mut delete = Delete {
            inner: &self.handle.inner,
            name: &self.handle.name,
            actor: self.actor(),
            once: self.handle.inner.once()?,
        };
        transaction::write(&self.handle.inner.db, &self.handle.inner.metrics, &mut delete).await?;
        self.handle.inner.databases.remove(&self.handle.name);
        self.handle.inner.due.note_event();
        Ok(())
    }

    /// Writes one document.
    ///
    /// [`Refusal::Conflict`] if the parent is not the current leaf, [`Refusal::InvalidDocument`],
    /// [`Refusal::DocumentTooLarge`]; for a user the refusals of the [gate](crate::Gate), as for all writes, and
    /// [`Refusal::UserChanged`].
    pub async fn update(&self, edit: &Edit<'_>) -> Result<WrittenRevision> {
        let updated = flatbed_operations::write::batch::write_document(&self.handle, edit).await?;
        wake(&self.handle, [&*edit.id]);
        Ok(updated)
    }

    /// Writes documents, and returns an outcome for each in order. Edits of one document are applied one after the
    /// other; those of different documents in any order. A failed edit does not stop others.
    ///
    /// # Errors
    /// For the whole request: the database was deleted, or the storage gave up. The outcomes are then unknown.
    pub async fn bulk_update(&self, edits: &[Edit<'_>]) -> Result<Vec<Outcome>> {
        let outcomes = flatbed_operations::write::batch::write_documents(&self.handle, edits).await?;
        wake(&self.handle, edits.iter().map(|edit| &*edit.id));
        Ok(outcomes)
    }

    /// Sets the limit of revisions in each branch: 1 to [`REVS_LIMIT_MAX`]. A branch is shortened at its next edit.
    ///
    /// # Errors
    /// [`Refusal::InvalidSetting`].
    #[boxed]
    pub async fn set_revs_limit(&self, revs_limit: u64) -> Result<()> {
        if !(1..=REVS_LIMIT_MAX).contains(&revs_limit) {
            return Err(Refusal::InvalidSetting(format!("_revs_limit is 1 to {REVS_LIMIT_MAX}")).into());
        }
        self.change_record(|record| record.revs_limit = revs_limit).await
    }

    /// Begins an upload of an attachment's data; `is_gzip`: the client sends compressed bytes. The edit that adds it to
    /// a document follows.
    #[boxed]
    pub async fn upload(&self, content_type: &str, is_gzip: bool) -> Result<Upload> {
        let instance = flatbed_operations::write::batch::instance_of(&self.handle.inner, &self.handle.name).await?;
        rights::admitted(&self.handle, &instance).await?;
        Upload::new(Arc::clone(&self.handle.inner), instance, self.actor().clone(), content_type, is_gzip)
    }

    /// Stages complete small data, as much in each transaction as fits, before the edits that add it to documents.
    ///
    /// # Errors
    /// [`Error::Storage`]. Data for a deleted database is not staged; its edit fails.
    #[boxed]
    pub async fn stage(&self, data: &[SmallUpload]) -> Result<()> {
        let instance = flatbed_operations::write::batch::instance_of(&self.handle.inner, &self.handle.name).await?;
        let of_it: Vec<&SmallUpload> = data.iter().filter(|data| data.instance == instance.id()).collect();
        rights::admitted(&self.handle, &instance).await?;
        flatbed_databases::document::upload::stage_small(&self.handle.inner, &instance, self.actor(), &of_it).await
    }

    /// Restarts the lifetime of uploads that no document has taken. A caller that waits before its edit calls this each
    /// [`Reader::renew_uploads_every`]. Removed uploads stay removed; their edit fails.
    pub async fn renew_uploads(&self, data: &[StagedUpload]) -> Result<()> {
        let instance = flatbed_operations::write::batch::instance_of(&self.handle.inner, &self.handle.name).await?;
        let of_it = data.iter().filter(|data| data.instance == instance.id());
        let blob_ids: Vec<&[u8]> = of_it.map(|data| data.blob_id.as_slice()).collect();
        flatbed_databases::document::staging::renew(&self.handle.inner, &instance, &blob_ids).await
    }

    /// Removes an upload that no document has taken; data of a document stays. If the removal fails, the sweeper
    /// removes it later.
    pub async fn discard(&self, data: &StagedUpload) {
        match flatbed_operations::write::batch::instance_of(&self.handle.inner, &self.handle.name).await {
            Ok(instance) if instance.id() == data.instance => {
                flatbed_databases::document::staging::discard(&self.handle.inner, &instance, &data.blob_id).await;
            }
            // It was removed with its database, or by a restore.
            Ok(_) | Err(Error::DatabaseNotFound) => {}
            Err(error) => tracing::debug!(%error, "an upload is left to the sweeper"),
        }
    }

    /// Removes leaves of a document without a trace, and the document with its last leaf. Returns the leaves among
    /// `revs`. A large document is purged in steps: see the module `purge`.
    pub async fn purge(&self, id: &str, revs: &[RevId]) -> Result<Vec<RevId>> {
        let purged = flatbed_operations::write::purge::purge(&self.handle, id, revs).await?;
        wake_purged(&self.handle, id);
        Ok(purged)
    }

    /// Sets the limit of recorded purges, at least one.
    ///
    /// # Errors
    /// [`Refusal::InvalidSetting`].
    #[boxed]
    pub async fn set_purged_infos_limit(&self, limit: u64) -> Result<()> {
        if limit == 0 {
            return Err(Refusal::InvalidSetting("`purged_infos_limit` must be a positive integer.".into()).into());
        }
        self.change_record(|record| record.purged_infos_limit = limit).await
    }

    /// Sets `_security`, JSON text of at most [`SECURITY_BYTES_MAX`] bytes. No write commits later that functions of
    /// design documents judged under the old one.
    ///
    /// # Errors
    /// [`Refusal::InvalidSetting`].
    #[boxed]
    pub async fn set_security(&self, security: &[u8]) -> Result<()> {
        check_security_size(security)?;
        self.change_record(|record| record.set_security(security)).await
    }

    /// Changes `_security` by a function of its text, empty for the default, in one transaction: no other change is lost.
    /// The function may be called again. `None` changes nothing, nor do more than [`SECURITY_BYTES_MAX`] bytes.
    pub async fn change_security(&self, change: impl Fn(&[u8]) -> Option<Vec<u8>> + Send) -> Result<()> {
        let bounded = move |text: &[u8]| change(text).filter(|changed| changed.len() <= SECURITY_BYTES_MAX);
        let changed = move |record: &mut DatabaseRecord| bounded(&record.security).map(|to| record.set_security(&to));
        self.change_record(move |record| changed(record).unwrap_or_default()).await
    }

    /// Requests a compaction, which any process of the root with time for it runs in the background
    /// ([`crate::Background`]). Does nothing if one is due.
    pub async fn compact(&self) -> Result<()> {
        compact::ask(&self.handle).await
    }

    async fn change_record(&self, change: impl Fn(&mut DatabaseRecord) + Send) -> Result<()> {
        let once = self.handle.inner.once()?;
        let mut change =
            ChangeRecord { inner: &self.handle.inner, name: &self.handle.name, actor: self.actor(), change, once };
        transaction::write(&self.handle.inner.db, &self.handle.inner.metrics, &mut change).await?;
        // This process sees its own change of `_security` at once, and not a second later.
        self.handle.inner.note_own_change(&self.handle.name);
        Ok(())
    }
}

/// Byte limit of `_security`, which is stored in the database's record.
pub const SECURITY_BYTES_MAX: usize = 50_000;

fn check_security_size(security: &[u8]) -> Result<()> {
    if security.len() > SECURITY_BYTES_MAX {
        return Err(Refusal::InvalidSetting(format!("_security is at most {SECURITY_BYTES_MAX} bytes")).into());
    }
    Ok(())
}

/// The largest `_revs_limit`: one transaction reads all records of a document's revisions.
pub const REVS_LIMIT_MAX: u64 = 10_000;

struct ReadInstance<'a, T> {
    reader: &'a Reader,
    of: fn(&Instance) -> T,
}

impl<T: Send> Operation for ReadInstance<'_, T> {
    type Output = T;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<T> {
        let ReadHandle { inner, name, .. } = &self.reader.handle;
        let instance = inner.resolve(trx, name).await?;
        // The rights decide whether the reader may read in the database.
        let asker = self.reader.asker();
        if is_judged(&instance, asker) {
            PendingViewer::begin(inner, trx, &instance, asker).viewer().boxed().await?;
        }
        Ok((self.of)(&instance))
    }
}

struct ReadInfo<'a> {
    inner: &'a Inner,
    name: &'a str,
    asker: &'a ReadPrincipal,
    /// The reader has [`DocumentFilter`](crate::DocumentFilter), so it gets no figures.
    is_part: bool,
}

impl Operation for ReadInfo<'_> {
    type Output = DatabaseInfo;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<DatabaseInfo> {
        let instance = self.inner.resolve(trx, self.name).await?;
        if self.is_part {
            return Ok(info_of_part(&instance, 0, Seq::zero(instance.incarnation())));
        }
        if is_judged(&instance, self.asker) {
            let info = seen_info(self.inner, trx, &instance, self.asker).boxed().await?;
            return Ok(info_of_part(&instance, info.doc_count, info.update_seq));
        }
        let all = instance.keys.all();
        let meta = instance.buckets.begin_meta(trx, instance.epoch_begin());
        let now = trx.clock().now();
        let known = instance.size.known(now);
        let size = known.is_none().then(|| trx.get_estimated_range_size_bytes(&all.begin, &all.end));
        let compaction = due::key_of(DueKind::Compaction, self.name, 0);
        let compaction = trx.get(&self.inner.keys.due(&compaction), true);
        let (update_seq, sums) = meta.await?;
        let [doc_count, doc_del_count, external_size_bytes, active_size_bytes, superseded_size_bytes, purge_seq] =
            sums.map(|sum| sum.max(0) as u64);
        let file_size_bytes = match (known, size) {
            (Some(known), _) => known,
            (None, Some(size)) => {
                let size = (size.await?.max(0) as u64).max(active_size_bytes);
                instance.size.enter(now, size);
                size
            }
            (None, None) => 0,
        };
        Ok(DatabaseInfo {
            doc_count,
            doc_del_count,
            update_seq,
            external_size_bytes,
            active_size_bytes,
            superseded_size_bytes,
            purge_seq,
            is_compacting: compaction.await?.is_some()
                || self.inner.state::<Compactions>().is_running(instance.record.namespace),
            // FoundationDB's estimate may not include the latest writes.
            file_size_bytes: file_size_bytes.max(active_size_bytes),
            incarnation: instance.incarnation(),
            created_at_ms: instance.record.created_at_ms,
            run_bytes: instance.record.run_bytes,
            shards: instance.record.shards.max(1),
            hinted_shards: Some(instance.record.hinted_shards).filter(|shards| *shards > 0),
            is_partitioned: instance.record.partitioned,
            has_channels: instance.channels() > 0,
        })
    }
}

/// The figures for a restricted reader. They reveal nothing about hidden documents.
fn info_of_part(instance: &Instance, doc_count: u64, update_seq: Seq) -> DatabaseInfo {
    DatabaseInfo {
        doc_count,
        doc_del_count: 0,
        update_seq,
        external_size_bytes: 0,
        active_size_bytes: 0,
        superseded_size_bytes: 0,
        purge_seq: 0,
        is_compacting: false,
        file_size_bytes: 0,
        incarnation: instance.incarnation(),
        created_at_ms: instance.record.created_at_ms,
        run_bytes: instance.record.run_bytes,
        shards: instance.record.shards.max(1),
        hinted_shards: Some(instance.record.hinted_shards).filter(|shards| *shards > 0),
        has_channels: instance.channels() > 0,
        is_partitioned: instance.record.partitioned,
    }
}
