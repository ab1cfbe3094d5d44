//! The layer of one server: databases by name, their cache, and their creation and deletion.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use dashmap::DashMap;
use flatbed_clock::Clock;
use flatbed_kit::RetryPolicy;
use foundationdb::{Database as Fdb, FdbError};
use prost::Message;
use tokio::sync::watch;

use crate::actor::{Actor, Authority};
use crate::compactions::{CompactionProgress, Compactions};
use crate::confirmed::{ClosedReasons, Confirmed, SecurityOf};
use crate::error::{Error, Refusal, Result};
use crate::feed::hub::{Followers, Hub};
use crate::feed::updates::UpdatesHub;
use crate::feed::watches::Watches;
use crate::held::HeldCache;
use crate::index::definitions::reorder;
use crate::index_builds::{IndexBuild, IndexBuilds};
use crate::index_waits::{IndexWait, IndexWaits};
use crate::instance::{CachedDatabase, Instance, InstanceId, RUN_BYTES_MAX, first_incarnation};
use crate::judge::judgement::Judge;
use crate::lanes::Lanes;
use crate::line_pacer::LinePacer;
use crate::resyncs::{ResyncTask, Resyncs};
use crate::store::buckets::{Buckets, Writer};
use crate::store::database_name::is_replicator_name;
use crate::store::due::{DueNotes, Kind};
use crate::store::features::{check_record, is_outdated, is_replicator, name_features, name_replicator, own_collation};
use crate::store::instruments::Instruments;
use crate::store::keys::{FORMAT_VERSION, METADATA_VERSION, RootKeys};
use crate::store::namespaces::{Block, Namespaces};
use crate::store::once::{self, Once, random_id};
use crate::store::proto;
use crate::store::root::{OpenRoot, Ping, RootIdentity, epoch_for_write, in_use};
use crate::store::sync_function::{ChannelsOptions, set_function};
use crate::store::transaction::{self, Attempt, NOT_COMMITTED, Operation, Transaction};
use crate::store::updated::{UpdatedKeys, note_event, note_replicator, touch_last_seq};
use crate::turns::Turns;
use crate::view_bounds::ViewBounds;
use crate::view_updates::ViewUpdates;
use crate::view_updates::memory::bytes_by_default;

/// The default of `run_bytes`: measured best for documents of 0.2 to 20 kB
/// (design/data-model.md).
pub const DEFAULT_RUN_BYTES: u32 = 8_000;

/// The default limit of a database's field ids.
pub const DEFAULT_FIELD_IDS_MAX: u32 = 4_096;

/// The default limit of a document's leaves.
pub(crate) const LEAVES_MAX: usize = 10_000;

/// The default limit of leaves that the edits of one request read: about 15 s of processor time.
pub(crate) const LEAVES_READ_MAX: u64 = 15_000_000;

/// The default limit of revisions in a branch (CouchDB's default `_revs_limit`).
pub const REVS_LIMIT: u64 = 1_000;

/// Below FoundationDB's limit of 10,000, because other keys are watched, too, and some watches are being replaced.
const WATCHES_MAX: usize = 8_000;

const DATABASES_CACHED_MAX: usize = 4_096;

/// The part of a full cache that is evicted at once, so that its scan pays off for many insertions.
const PART_THAT_GOES: usize = 8;

/// The default age after which a staged blob that no document took counts as abandoned.
pub(crate) const UPLOADS_BROKEN_AFTER: Duration = Duration::from_secs(60 * 60);

/// Bytes that a process supersedes in a database before it schedules a check for compaction: a quarter of the bytes
/// that make a compaction due.
const SUPERSEDED_NOTED_EACH: u64 = 4_000_000;

/// Options of the layer.
#[derive(Debug, Clone)]
pub struct LayerOptions {
    /// First element of every key, so that several services share a cluster. At most 64 bytes.
    pub root: Vec<u8>,
    /// The largest document, in bytes of JSON text of its body. At most 8 MB: a revision in blobs must be readable and
    /// writable within FoundationDB's 5 s.
    pub document_bytes_max: u64,
    /// The approximate bound of one database, in bytes, attachments and views included. Writes beyond it fail with
    /// [`crate::Refusal::DatabaseFull`]. 0: no bound.
    pub database_bytes_max: u64,
    /// `run_bytes` of databases created without one.
    pub default_run_bytes: u32,
    /// Databases whose changes are followed by a watch each; further ones share a poll. FoundationDB allows 10,000
    /// watches for each connection.
    pub watches_max: usize,
    /// Limit of a document's leaves, all of which each edit reads. Replication adds no more.
    pub leaves_max: usize,
    /// Limit of leaves that the edits of one request read: each edit of a document with several reads all.
    pub leaves_read_max: u64,
    /// Databases in the cache, about 40 kB each; further ones evict unused ones.
    pub databases_cached_max: usize,
    /// The age after which uploads that no document took are removed; a renewal restarts it.
    pub uploads_broken_after: Duration,
    /// Selects a database's shard to write to, as the remainder of this number. `None`: drawn for each database when
    /// the layer is opened.
    pub shard: Option<u32>,
    /// Transactions of single writes of a database that run at once; further writes wait and are committed together.
    /// `None`: chosen by the layer.
    pub single_writes_at_once: Option<usize>,
    /// Limits of a document in a group of views: a larger one is in none of its views.
    pub view_bounds: ViewBounds,
    /// The bound of a database's local documents, in bytes, with an overhead for keys. Anonymous writers may fill an
    /// eighth of it, and each user of a database with channels has an eighth. Administrators and the server have no
    /// bound.
    pub local_bytes_max: u64,
    /// The memory budget of emitted rows until they are written, in bytes. One database may hold half of it. A single
    /// document may exceed that, one at a time. The default is 128 MB plus 64 MB per processor.
    pub view_memory_bytes: usize,
    /// Queries that wait for an index fail once its builder has failed for this long.
    pub index_stuck_max: Duration,
    /// The time for which a failing transaction is retried before the caller gets its error, such as that of a database
    /// that an operator has locked.
    pub retry_max: Duration,
    /// The clock of the layer and of everything above it.
    pub clock: Clock,
}

/// The checkpoints of 10,000 devices with 50 kB each. CouchDB's checkpoints, with a history of 50 sessions, are
/// smaller.
const LOCAL_DOCUMENTS_BYTES_MAX: u64 = 512 << 20;

impl Default for LayerOptions {
    fn default() -> Self {
        LayerOptions {
            root: b"fb".to_vec(),
            document_bytes_max: 8_000_000,
            database_bytes_max: 0,
            default_run_bytes: DEFAULT_RUN_BYTES,
            watches_max: WATCHES_MAX,
            leaves_max: LEAVES_MAX,
            leaves_read_max: LEAVES_READ_MAX,
            databases_cached_max: DATABASES_CACHED_MAX,
            uploads_broken_after: UPLOADS_BROKEN_AFTER,
            shard: None,
            single_writes_at_once: None,
            view_bounds: ViewBounds::default(),
            local_bytes_max: LOCAL_DOCUMENTS_BYTES_MAX,
            view_memory_bytes: bytes_by_default(),
            index_stuck_max: Duration::from_secs(30),
            retry_max: RetryPolicy::RETRY_MAX,
            clock: Clock::system(),
        }
    }
}

/// Options of a new database.
#[derive(Debug, Clone, Default)]
pub struct CreateOptions {
    /// Bytes of consecutive leaves in one value; 0: one key for each leaf. At most 60,000.
    pub run_bytes: Option<u32>,
    /// Limit of field names with an id; further names are stored literally in paths. At most 1,000,000.
    pub field_ids_max: Option<u32>,
    /// Drops bodies of revisions that are not leaves at once, and not only by compaction.
    pub leaves_only: bool,
    /// Number of places for by-seq, `last_seq` and counters, of which each process writes one: 1 (the default) to
    /// [`SHARDS_MAX`](crate::SHARDS_MAX). For databases with more writes than one storage server takes; each page of a
    /// feed reads all places.
    pub shards: Option<u32>,
    /// The number of shards that a client asked CouchDB for (`q`): shown in [`DatabaseInfo`](crate::DatabaseInfo),
    /// without effect. Not stored if [`shards`](Self::shards) is given.
    pub hinted_shards: Option<u16>,
    /// True if document ids begin with a partition's name and a colon, `partition:id`, and partitions have counters.
    pub partitioned: bool,
    /// Makes users see only documents in their channels, and sets the function that routes documents to channels.
    pub channels: Option<ChannelsOptions>,
}

/// The document layer of one server. Cheap to clone; it holds all state, and none is process-wide.
#[derive(Clone)]
pub struct Layer {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub db: Arc<Fdb>,
    pub keys: RootKeys,
    pub options: LayerOptions,
    pub metrics: Arc<Instruments>,
    pub clock: Clock,
    pub compactions: Compactions,
    pub resyncs: Resyncs,
    pub index_builds: IndexBuilds,
    pub index_waits: IndexWaits,
    /// Single writes that wait to be committed together.
    pub lanes: Lanes,
    pub watches: Watches,
    /// Number of hubs that run.
    pub hubs_running: AtomicUsize,
    /// Becomes true when the server stops.
    pub closing: watch::Sender<bool>,
    /// The followers of `_db_updates`.
    pub updates: UpdatesHub,
    /// Semaphores of kinds of work.
    pub turns: Turns,
    /// The judge of writes.
    pub judge: Option<Arc<dyn Judge>>,
    /// The view groups that are being built, followed or waited for.
    pub views: ViewUpdates,
    /// Reserved namespaces for new databases.
    pub namespaces: Namespaces,
    /// The signature of the collation of json indexes; tests replace it.
    pub collation: &'static str,
    uuid: String,
    /// Selects the bucket of a database that this process writes to.
    pub writer: Writer,
    pub databases: DashMap<String, CachedDatabase>,
    /// The cached rights of principals.
    pub held: HeldCache,
    /// The time up to which `databases` is known to be current.
    pub confirmed: Confirmed,
    /// Work to be scheduled.
    pub due: DueNotes,
    /// Limits log lines about expired documents that cannot be given tombstones.
    pub expiry_lines: LinePacer<()>,
    epoch: Mutex<u64>,
}

impl Layer {
    /// Opens the layer on a FoundationDB database, and creates the root's record the first time. The authority makes
    /// the actors that write as the server; the program hands them to jobs by name.
    ///
    /// Without a judge, writes of users are refused in databases with validation functions.
    ///
    /// # Errors
    /// [`Error::FormatTooNew`], [`Error::FormatTooOld`], [`Error::Renewing`], [`Error::StampsAhead`],
    /// [`Error::Storage`].
    #[boxed]
    pub async fn open(
        db: Arc<Fdb>,
        options: LayerOptions,
        judge: Option<Arc<dyn Judge>>,
    ) -> Result<(Layer, Authority)> {
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
        let views = ViewUpdates::new(random_id()?, options.view_bounds, options.view_memory_bytes, &clock);
        let (closing, databases) = (watch::Sender::new(false), DashMap::new());
        let lanes = Lanes::new(options.single_writes_at_once);
        let index_waits = IndexWaits::new(options.index_stuck_max, &clock);
        let (compactions, watches) = (Compactions::new(&clock), Watches::new(options.watches_max));
        let inner = Arc::new(Inner {
            db,
            keys,
            options,
            metrics,
            compactions,
            resyncs: Resyncs::default(),
            index_builds: IndexBuilds::new(&clock),
            index_waits,
            lanes,
            watches,
            hubs_running: AtomicUsize::new(0),
            closing,
            updates: UpdatesHub::default(),
            turns: Turns::default(),
            judge,
            views,
            namespaces: Namespaces::default(),
            collation: own_collation(),
            uuid,
            writer,
            databases,
            held: HeldCache::of(&clock),
            confirmed: Confirmed::new(&clock),
            due: DueNotes::default(),
            expiry_lines: LinePacer::new(&clock),
            epoch: Mutex::new(epoch),
            clock,
        });
        Ok((Layer { inner }, Authority::new()))
    }

    /// Returns the root's own id, 32 hexadecimal digits; the same for every server of the root.
    pub fn uuid(&self) -> &str {
        &self.inner.uuid
    }

    /// Returns the limit of a document, in bytes of JSON text of its body.
    pub fn document_bytes_max(&self) -> u64 {
        self.inner.options.document_bytes_max
    }

    /// Returns the clock of the layer.
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// Reads a key of the root, to check that the storage answers reads. Does not write.
    ///
    /// # Errors
    /// [`Error::Storage`], after about 30 s at most.
    #[boxed]
    pub async fn ping(&self) -> Result<()> {
        transaction::read(&self.inner.db, &self.inner.metrics, &mut Ping { keys: &self.inner.keys }).await
    }

    /// Returns the indexes that this process is building.
    pub fn index_builds(&self) -> Vec<IndexBuild> {
        self.inner.index_builds.all()
    }

    /// Returns the queries of this process that wait for indexes, grouped by index: the 500 longest waits, and the
    /// number of further queries.
    pub fn index_waits(&self) -> (Vec<IndexWait>, u64) {
        self.inner.index_waits.all(&self.index_builds())
    }

    /// Returns the databases that this process resyncs with their sync functions.
    pub fn resyncs(&self) -> Vec<ResyncTask> {
        self.inner.resyncs.all()
    }

    /// Returns the compactions that this process runs.
    pub fn compactions(&self) -> Vec<CompactionProgress> {
        self.inner.compactions.all()
    }

    /// Returns statistics of the followers of all databases.
    pub fn followers(&self) -> Followers {
        let mut all = Followers::default();
        for cached in &self.inner.databases {
            all.add(cached.instance.hub.standing(self.inner.clock.now()));
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

impl Inner {
    /// Returns the database's instance as of the transaction's read version: from the cache if `\xff/metadataVersion`
    /// is unchanged, else from its record. An older instance than the cached one is not cached.
    pub(crate) async fn resolve(&self, trx: &Transaction, name: &str) -> Result<Arc<Instance>> {
        let version = trx.get(METADATA_VERSION, true).await?;
        let version: &[u8] = version.as_deref().unwrap_or_default();
        // A read of the past says nothing of the present.
        let as_of_us = if trx.is_pinned() { 0 } else { self.confirmed.us(trx.began()) };
        if let Some(cached) = self.databases.get(name)
            && cached.seen.version() == version
        {
            cached.seen.confirm(as_of_us);
            return Ok(cached.instance.clone());
        }
        let record_key = self.keys.database(name);
        let (record, root) = (trx.get(&record_key, true), trx.get(&self.keys.instance(), true));
        self.enter_epoch(trx, in_use(root.await?.as_deref())?.epoch);
        let Some(bytes) = record.await? else {
            self.databases.remove_if(name, |_, _| !trx.is_pinned());
            if !trx.is_pinned() {
                // A missing database confirms the version as well, so its readers need no confirmation of their own.
                self.confirmed.see(version, as_of_us);
            }
            return Err(Error::DatabaseNotFound);
        };
        let record = proto::DatabaseRecord::decode(&*bytes)?;
        check_record(&record, self.collation)?;
        let known = self.databases.get(name).map(|cached| cached.instance.clone());
        let instance = match known {
            Some(instance) if instance.record == record => instance,
            known => {
                let keys = self.keys.namespace(record.namespace);
                let of_this = known.as_ref().filter(|known| known.id() == InstanceId::from(&record));
                let (fields, size) =
                    of_this.map(|known| (known.fields.clone(), known.size.clone())).unwrap_or_default();
                let has_channels = record.channels > 0;
                let same = of_this.filter(|known| {
                    let is_same = known.record.security == record.security && known.record.closed == record.closed;
                    is_same && known.security.has_channels() == has_channels
                });
                let security = same.map(|known| known.security.clone());
                let of_record = || {
                    let security = SecurityOf::new(&record.security, record.incarnation);
                    let security = security.of_replicator(is_replicator(&record));
                    security.with_channels(has_channels, ClosedReasons::of(record.closed))
                };
                let security = security.unwrap_or_else(|| Arc::new(of_record()));
                let is_resynced = |known: &Arc<Instance>| {
                    (known.record.channels, known.record.closed) != (record.channels, record.closed)
                };
                if record.indexes.iter().any(|index| !index.readable) || of_this.is_some_and(is_resynced) {
                    // New indexes or a new sync function may have been defined, by any process: look for work at once.
                    self.due.wake.notify_one();
                }
                if is_outdated(&record, self.collation) {
                    self.due.note(Kind::Indexes, name);
                }
                // Running selectors continue.
                let selecting = known.as_ref().map(|known| known.selecting.clone()).unwrap_or_default();
                // Settings change without effect on followers.
                let hub = known.map(|known| known.hub.clone());
                let hub = hub.filter(|hub| hub.is_of(record.namespace, record.incarnation));
                let buckets = Buckets::of_record(&keys, &record, self.writer);
                let new_hub = || Hub::new(name, record.namespace, record.incarnation, buckets.clone());
                let hub = hub.unwrap_or_else(|| Arc::new(new_hub()));
                let (updated, root) = (UpdatedKeys::new(&self.keys, name, buckets.own_number()), self.keys.clone());
                let (name, rules) = (name.to_owned(), Default::default());
                let reordering = Default::default();
                let superseded_bytes = AtomicU64::new(RandomState::new().hash_one(0) % SUPERSEDED_NOTED_EACH);
                Arc::new(Instance {
                    name,
                    keys,
                    buckets,
                    updated,
                    root,
                    record,
                    record_key,
                    fields,
                    size,
                    security,
                    hub,
                    rules,
                    reordering,
                    selecting,
                    superseded_bytes,
                })
            }
        };
        let is_past =
            trx.is_pinned() || self.databases.get(name).is_some_and(|cached| *cached.seen.version() > *version);
        if !is_past {
            let seen = self.confirmed.see(version, as_of_us);
            self.databases.insert(name.to_owned(), CachedDatabase { seen, instance: instance.clone() });
            self.make_room();
        }
        Ok(instance)
    }

    /// Evicts entries of a full cache, except those that are followed or used.
    fn make_room(&self) {
        let most = self.options.databases_cached_max;
        if self.databases.len() <= most {
            return;
        }
        let mut left = most / PART_THAT_GOES + 1;
        self.databases.retain(|_, cached| {
            let Instance { hub, selecting, .. } = &*cached.instance;
            let is_used = [Arc::strong_count(&cached.instance), Arc::strong_count(hub), Arc::strong_count(selecting)];
            let is_used = is_used.into_iter().any(|count| count > 1);
            let goes = left > 0 && !is_used;
            left -= usize::from(goes);
            !goes
        });
    }

    /// Evicts the entries of another epoch.
    fn enter_epoch(&self, trx: &Transaction, epoch: u64) {
        let mut entered = self.epoch.lock().unwrap_or_else(PoisonError::into_inner);
        if *entered != epoch && !trx.is_pinned() {
            *entered = epoch;
            self.databases.clear();
            self.views.enter_epoch();
        }
    }

    /// As [`Inner::resolve`], for a writing transaction: it conflicts if the database is deleted or changed, or the
    /// store renewed, before the commit.
    pub(crate) async fn resolve_for_write(&self, trx: &Transaction, name: &str) -> Result<Arc<Instance>> {
        let instance = self.resolve(trx, name).await?;
        if is_outdated(&instance.record, self.collation) {
            self.reorder_indexes(name).await.map_err(transaction::of_nested)?;
            // This transaction has read an older state: it must retry.
            return Err(Error::Storage(FdbError::from_code(NOT_COMMITTED)));
        }
        transaction::conflict_with(trx, &instance.record_key)?;
        transaction::conflict_with(trx, &self.keys.instance())?;
        Ok(instance)
    }

    /// Replaces a database's indexes of another collation by this program's, one call at a time in each process.
    pub(crate) async fn reorder_indexes(&self, name: &str) -> Result<()> {
        let instance = self.cached(name);
        let _alone = match &instance {
            Some(instance) => Some(instance.reordering.lock().await),
            None => None,
        };
        reorder(self, name).await
    }

    /// Returns the cached instance of a name, which may be outdated: a transaction that resolves it checks.
    pub(crate) fn cached(&self, name: &str) -> Option<Arc<Instance>> {
        self.databases.get(name).map(|cached| cached.instance.clone())
    }

    pub(crate) fn once(&self) -> Result<Once> {
        self.due.note_mark();
        once::new_mark(&self.keys, &self.clock)
    }

    /// Counts bytes that a write of this process supersedes in a database if it commits.
    pub(crate) fn note_superseded(&self, instance: &Instance, bytes: u64) {
        let before = instance.superseded_bytes.fetch_add(bytes, Ordering::Relaxed);
        if before / SUPERSEDED_NOTED_EACH != before.saturating_add(bytes) / SUPERSEDED_NOTED_EACH {
            self.due.note(Kind::Superseded, &instance.name);
        }
    }

    pub(crate) fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }
}

pub(crate) struct Create<'a> {
    pub inner: &'a Inner,
    pub name: &'a str,
    pub actor: &'a Actor,
    pub run_bytes: u32,
    pub field_ids_max: u32,
    pub leaves_only: bool,
    /// 0: none.
    pub shards: u32,
    /// 0: none.
    pub hinted_shards: u32,
    pub partitioned: bool,
    pub channels: Option<&'a ChannelsOptions>,
    pub created_at_ms: u64,
    pub once: Once,
    /// The namespace of the last attempts.
    pub namespace: Option<ReservedNamespace>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct ReservedNamespace {
    number: u64,
    epoch: u64,
    /// The number of namespaces that the transaction takes, and the block that remains.
    taken: Option<(u64, Block)>,
}

impl Create<'_> {
    /// Keeps the remaining block; to be called after the commit.
    pub(crate) fn keep_namespaces(&self) {
        if let Some((taken, left)) = self.namespace.and_then(|given| given.taken) {
            self.inner.namespaces.keep(taken, left, &self.inner.clock);
        }
    }

    /// Takes a reserved namespace of this process, or else reserves a block in the store.
    async fn take_namespace(&mut self, trx: &Transaction, epoch: u64, next: Option<u64>) -> Result<u64> {
        // An attempt with an unknown result cannot commit beside a later one: both leave a mark.
        if let Some(given) = self.namespace.filter(|given| given.epoch == epoch && given.taken.is_none()) {
            return Ok(given.number);
        }
        if let Some(number) = self.inner.namespaces.take(epoch) {
            self.namespace = Some(ReservedNamespace { number, epoch, taken: None });
            return Ok(number);
        }
        let number = match next {
            Some(next) => next,
            None => next_namespace(trx.get(&self.inner.keys.next_namespace(), false).await?.as_deref())?,
        };
        let taken = self.inner.namespaces.wanted(&self.inner.clock);
        let left = Block { epoch, from: number + 1, until: number + taken };
        trx.set(&self.inner.keys.next_namespace(), &proto::FieldId { id: left.until }.encode_to_vec());
        self.namespace = Some(ReservedNamespace { number, epoch, taken: Some((taken, left)) });
        Ok(number)
    }
}

fn next_namespace(bytes: Option<&[u8]>) -> Result<u64> {
    bytes.map_or(Ok(1), |bytes| Ok(proto::FieldId::decode(bytes)?.id))
}

impl Operation for Create<'_> {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<()> {
        // Another client may have deleted it since the earlier attempt.
        if self.once.happened(trx, attempt).await?.is_some() {
            // It is unknown which attempt committed, and so which block remains.
            self.namespace = None;
            return Ok(());
        }
        let key = self.inner.keys.database(self.name);
        let namespace_key = self.inner.keys.next_namespace();
        let (found, next) =
            (trx.get(&key, false), (!self.inner.namespaces.has_some()).then(|| trx.get(&namespace_key, false)));
        let writer = self.inner.writer(trx, self.actor);
        let (writer, epoch) = futures_util::try_join!(writer, epoch_for_write(trx, &self.inner.keys))?;
        // A new database has no `_security` yet.
        writer.admitted_by(trx, &SecurityOf::new(&[], 0)).await?;
        if found.await?.is_some() {
            return Err(Error::DatabaseExists);
        }
        let next = match next {
            Some(next) => Some(next_namespace(next.await?.as_deref())?),
            None => None,
        };
        let namespace = self.take_namespace(trx, epoch, next).await?;
        let mut record = proto::DatabaseRecord {
            format_version: FORMAT_VERSION,
            namespace,
            incarnation: first_incarnation(namespace, epoch),
            run_bytes: self.run_bytes,
            field_ids_max: self.field_ids_max,
            created_at_ms: self.created_at_ms,
            leaves_only: self.leaves_only,
            epoch,
            shards: self.shards,
            hinted_shards: self.hinted_shards,
            partitioned: self.partitioned,
            ..proto::DatabaseRecord::default()
        };
        if let Some(ChannelsOptions { sync }) = self.channels {
            let keys = self.inner.keys.namespace(namespace);
            set_function(trx, &keys, &mut record, sync.as_deref(), self.created_at_ms);
        }
        if is_replicator_name(self.name) {
            name_replicator(&mut record);
            note_replicator(trx, &self.inner.keys, self.name, true)?;
        }
        name_features(&mut record);
        trx.set(&key, &record.encode_to_vec());
        // Written at creation, so that the deletion of a database without writes changes it as well and wakes
        // followers.
        let buckets = Buckets::of_record(&self.inner.keys.namespace(namespace), &record, self.inner.writer);
        touch_last_seq(trx, buckets.own(), 0)?;
        // No cache has an absent database; the deletion of an earlier one of the name has invalidated all.
        note_event(trx, &self.inner.keys, self.name, None)?;
        self.once.mark(trx);
        Ok(())
    }
}

pub(crate) struct Delete<'a> {
    pub inner: &'a Inner,
    pub name: &'a str,
    pub actor: &'a Actor,
    pub once: Once,
}

impl Operation for Delete<'_> {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<()> {
        // Another database of the name may exist since the earlier attempt.
        if self.once.happened(trx, attempt).await?.is_some() {
            return Ok(());
        }
        let key = self.inner.keys.database(self.name);
        let bytes = trx.get(&key, false);
        let writer = self.inner.writer(trx, self.actor);
        let (writer, _) = futures_util::try_join!(writer, epoch_for_write(trx, &self.inner.keys))?;
        let bytes = bytes.await?.ok_or(Error::DatabaseNotFound)?;
        let record = proto::DatabaseRecord::decode(&*bytes)?;
        check_record(&record, self.inner.collation)?;
        writer.admitted_by(trx, &SecurityOf::new(&record.security, record.incarnation)).await?;
        let all = self.inner.keys.namespace(record.namespace).all();
        trx.clear(&key);
        trx.clear_range(&all.begin, &all.end);
        note_event(trx, &self.inner.keys, self.name, Some(record.shards))?;
        if is_replicator(&record) {
            note_replicator(trx, &self.inner.keys, self.name, false)?;
        }
        trx.update_metadata_version();
        self.once.mark(trx);
        Ok(())
    }
}
