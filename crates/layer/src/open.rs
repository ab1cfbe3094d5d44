//! Opening the layer of a server, and what it tells of its running work.

use std::sync::{Arc, Mutex};

use async_recursion::async_recursion as boxed;
use flatbed_clock::Clock;
use flatbed_databases::actor::Authority;
use flatbed_databases::cache::DatabaseCache;
use flatbed_databases::confirmed::VersionCache;
use flatbed_databases::document::upload::ATTACHMENT_BYTES_MAX;
use flatbed_databases::instance::RUN_BYTES_MAX;
use flatbed_databases::limits;
use flatbed_databases::server::{Inner, LayerOptions};
use flatbed_databases::size_bounds::SizeBounds;
use flatbed_databases::slots::Slots;
use flatbed_databases::turns::Turns;
use flatbed_feeds::feed::hub::{Followers, known_hub};
use flatbed_operations::compactions::{CompactionProgress, Compactions};
use flatbed_operations::index::definitions::reorder_alone;
use flatbed_operations::index_builds::{IndexBuild, IndexBuilds};
use flatbed_operations::index_waits::{IndexWait, IndexWaits};
use flatbed_operations::judge::ask::named_by;
use flatbed_operations::judge::judgement::{AppointedJudge, Judge, judge_of};
use flatbed_store::buckets::Writer;
use flatbed_store::due::DueNotes;
use flatbed_store::error::{Refusal, Result};
use flatbed_store::features::own_collation;
use flatbed_store::instruments::Instruments;
use flatbed_store::keys::RootKeys;
use flatbed_store::namespaces::Namespaces;
use flatbed_store::once::random_id;
use flatbed_store::root::{OpenRoot, Ping, RootIdentity};
use flatbed_store::transaction;
use foundationdb::Database as Fdb;
use tokio::sync::watch;

use crate::handle::Layer;
use crate::resyncs::{ResyncTask, Resyncs};

impl Layer {
    /// Opens the layer on a FoundationDB database, and creates the root's record the first time. The authority makes
    /// the actors that write as the server; the program hands them to jobs by name.
    ///
    /// Without a judge, writes of users are refused in databases with validation functions.
    ///
    /// # Errors
    /// [`crate::Error::FormatTooNew`], [`crate::Error::FormatTooOld`],
    /// [`crate::Error::StampsAhead`], [`crate::Error::Storage`].
    #[boxed]
    pub async fn open(
        db: Arc<Fdb>,
        options: LayerOptions,
        judge: Option<Arc<dyn Judge>>,
    ) -> Result<(Layer, Authority)> {
        if cfg!(test) {
            limits::lower();
        }
        if options.root.len() > 64 || options.default_run_bytes > RUN_BYTES_MAX {
            return Err(Refusal::InvalidSetting("root is at most 64 bytes, run_bytes at most 60000".into()).into());
        }
        let keys = RootKeys::new(&options.root);
        let clock = options.clock.clone();
        let metrics = Instruments::new(&clock, options.retry_max);
        let mut open = OpenRoot { keys: &keys, uuid: random_id()? };
        let RootIdentity { uuid, epoch } = transaction::write(&db, &metrics, &mut open).await?;
        let uuid = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        let writer = Writer::new(options.shard, random_id()?);
        let inner = Arc::new(Inner {
            db,
            keys,
            sizes: SizeBounds::new(options.document_bytes_max, ATTACHMENT_BYTES_MAX),
            databases: DatabaseCache::new(options.database_cache_bytes, &metrics),
            metrics,
            states: Slots::with(AppointedJudge(judge)),
            reorder_indexes: |inner, name| Box::pin(reorder_alone(inner, name)),
            note_security: |inner, instance| {
                if let Some(judge) = judge_of(inner) {
                    judge.note_security(&named_by(&instance.name, instance.cache_number()), &instance.security);
                }
            },
            closing: watch::Sender::new(false),
            turns: Turns::default(),
            namespaces: Namespaces::default(),
            collation: own_collation(),
            uuid,
            process: random_id()?,
            writer,
            confirmed: VersionCache::new(&clock),
            due: DueNotes::default(),
            epoch: Mutex::new(epoch),
            clock,
            options,
        });
        Ok((Layer { inner }, flatbed_databases::actor::authority()))
    }

    /// Returns the root's own id, 32 hexadecimal digits; the same for every server of the root.
    pub fn uuid(&self) -> &str {
        &self.inner.uuid
    }

    /// Returns the limit of a document that the layer was opened with, in bytes of JSON text of its body.
    pub fn document_bytes_max(&self) -> u64 {
        self.inner.options.document_bytes_max
    }

    /// Bounds documents and attachments, in bytes, below the bounds that the layer was opened with, and partitions; 0
    /// bounds no partition.
    pub fn bound_sizes(&self, document_bytes: u64, attachment_bytes: u64, partition_bytes: u64) {
        self.inner.sizes.set(document_bytes, attachment_bytes, partition_bytes);
    }

    /// Returns the clock of the layer.
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// Reads a key of the root, to check that the storage answers reads. Does not write.
    ///
    /// # Errors
    /// [`crate::Error::Storage`], after about 30 s at most.
    #[boxed]
    pub async fn ping(&self) -> Result<()> {
        transaction::read(&self.inner.db, &self.inner.metrics, &mut Ping { keys: &self.inner.keys }).await
    }

    /// Returns the indexes that this process is building.
    pub fn index_builds(&self) -> Vec<IndexBuild> {
        self.inner.state::<IndexBuilds>().all()
    }

    /// Returns the queries of this process that wait for indexes, grouped by index: the 500 longest waits, and the
    /// number of further queries.
    pub fn index_waits(&self) -> (Vec<IndexWait>, u64) {
        self.inner.state::<IndexWaits>().all(&self.index_builds())
    }

    /// Returns the databases that this process resyncs with their sync functions.
    pub fn resyncs(&self) -> Vec<ResyncTask> {
        self.inner.state::<Resyncs>().all()
    }

    /// Returns the compactions that this process runs.
    pub fn compactions(&self) -> Vec<CompactionProgress> {
        self.inner.state::<Compactions>().all()
    }

    /// Returns statistics of the followers of all databases.
    pub fn followers(&self) -> Followers {
        let mut all = Followers::default();
        for cached in self.inner.databases.iter() {
            if let Some(hub) = known_hub(&cached.instance) {
                all.add(hub.standing(self.inner.clock.now()));
            }
        }
        all
    }

    /// Returns the number of databases in the cache.
    pub fn databases_cached(&self) -> usize {
        self.inner.databases.len()
    }

    /// Wakes every waiting feed, which then reports that the server is stopping.
    pub fn shutdown(&self) {
        self.inner.closing.send_replace(true);
    }
}
