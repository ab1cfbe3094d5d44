//! The layer of one server: databases by name, what is cached of them, and how they come and go.

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
use crate::confirmed::{Closed, Confirmed, SecurityOf};
use crate::error::{Error, Refusal, Result};
use crate::feed::hub::{Followers, Hub};
use crate::feed::updates::UpdatesHub;
use crate::feed::watches::Watches;
use crate::held::HeldCache;
use crate::index::definitions::reorder;
use crate::index_builds::{IndexBuild, IndexBuilds};
use crate::index_waits::{IndexWait, IndexWaits};
use crate::instance::{Cached, Instance, InstanceId, RUN_BYTES_MAX, first_incarnation};
use crate::judge::judgement::Judge;
use crate::lanes::Lanes;
use crate::line_pacer::LinePacer;
use crate::resyncs::{ResyncTask, Resyncs};
use crate::store::buckets::{Buckets, Writer};
use crate::store::database_name::is_replicator_name;
use crate::store::due::{Kind, Noted};
use crate::store::features::{check_record, is_outdated, is_replicator, name_features, name_replicator, own_collation};
use crate::store::instruments::Instruments;
use crate::store::keys::{FORMAT_VERSION, METADATA_VERSION, RootKeys};
use crate::store::namespaces::{Block, Namespaces};
use crate::store::once::{self, Once, random_id};
use crate::store::proto;
use crate::store::root::{OpenRoot, Opened, Ping, epoch_for_write, in_use};
use crate::store::sync_function::{ChannelsOptions, set_function};
use crate::store::transaction::{self, Attempt, NOT_COMMITTED, Operation, Transaction};
use crate::store::updated::{UpdatedKeys, note_event, note_replicator, touch_last_seq};
use crate::turns::Turns;
use crate::view_bounds::ViewBounds;
use crate::view_updates::ViewUpdates;
use crate::view_updates::memory::bytes_by_default;

/// `run_bytes` of a database that is created without one: measured best for documents of 0.2 to 20 kB
/// (design/data-model.md).
pub const DEFAULT_RUN_BYTES: u32 = 8_000;

/// Most field ids of a database that is created without another bound.
pub const DEFAULT_FIELD_IDS_MAX: u32 = 4_096;

/// Most leaves of a document, unless the layer is set up otherwise.
pub(crate) const LEAVES_MAX: usize = 10_000;

/// Most leaves that the edits of one request go through, unless the layer is set up otherwise: some 15 s of processor.
pub(crate) const LEAVES_READ_MAX: u64 = 15_000_000;

/// How many revisions of a branch are kept where a database says nothing else (CouchDB's default `_revs_limit`).
pub const REVS_LIMIT: u64 = 1_000;

/// Room is left below FoundationDB's 10,000 for what else is watched, and for watches that are being set again.
const WATCHES_MAX: usize = 8_000;

/// Databases that are held in memory.
const DATABASES_CACHED_MAX: usize = 4_096;

/// Of a full cache of databases this part goes at once: so the look at all entries is paid for by many that come.
const PART_THAT_GOES: usize = 8;

/// A staged blob that no document took for this long is a broken upload, unless the layer is set up otherwise.
pub(crate) const UPLOADS_BROKEN_AFTER: Duration = Duration::from_secs(60 * 60);

/// Whenever a process has superseded so many bytes of a database, it notes that somebody is to see whether the database
/// should be compacted: a quarter of what makes it so.
const SUPERSEDED_NOTED_EACH: u64 = 4_000_000;

/// How the layer is set up.
#[derive(Debug, Clone)]
pub struct LayerOptions {
    /// First element of every key, so that several services share a cluster. At most 64 bytes.
    pub root: Vec<u8>,
    /// The largest document, in bytes of JSON text of its body. At most 8 MB: one revision must be readable and
    /// writable by pointers to blobs within FoundationDB's 5 s.
    pub document_bytes_max: u64,
    /// The approximate bound of one database, in bytes, attachments and views included. Writes beyond it fail with
    /// [`crate::Refusal::DatabaseFull`]. 0: no bound.
    pub database_bytes_max: u64,
    /// `run_bytes` of databases created without one.
    pub default_run_bytes: u32,
    /// Databases whose changes are followed on a watch of their own; further ones share a poll. FoundationDB allows a
    /// connection 10,000 watches.
    pub watches_max: usize,
    /// How many leaves a document may have: each edit of it reads them all. Replication makes no more.
    pub leaves_max: usize,
    /// How many leaves the edits of one request may go through: each edit of a document with several goes through all.
    pub leaves_read_max: u64,
    /// Databases that are held in memory, some 40 kB each: further ones take the place of others that nobody is using.
    pub databases_cached_max: usize,
    /// What was uploaded longer ago and not renewed since, and no document took, is removed.
    pub uploads_broken_after: Duration,
    /// Which of a database's shards is written to: the remainder of this number. `None`: drawn for each database when the
    /// layer is opened.
    pub shard: Option<u32>,
    /// How many transactions of single writes of a database are under way at once before others wait for them, to be
    /// committed together; `None`: as many as is good.
    pub single_writes_at_once: Option<usize>,
    /// What a document may have in a group of views: one with more is in none of them.
    pub view_bounds: ViewBounds,
    /// The bound of a database's local documents, in bytes, with an overhead for keys. Anonymous writers may fill an eighth of it, and
    /// each user of a database with channels has an eighth. Administrators and the server have no bound.
    pub local_bytes_max: u64,
    /// The memory budget of emitted rows until they are written, in bytes. One database may hold half of it. A single document may
    /// exceed that, one at a time. The default is 128 MB plus 64 MB per processor.
    pub view_memory_bytes: usize,
    /// Queries that wait for an index fail once its builder has failed for this long.
    pub index_stuck_max: Duration,
    /// How long a failing transaction is retried before the caller gets its error, such as that of a database that an operator has
    /// locked.
    pub retry_max: Duration,
    /// Where all of the layer takes the time from, and what is built on it.
    pub clock: Clock,
}

/// The checkpoints of 10,000 devices with 50 kB each. CouchDB's checkpoints, with a history of 50 sessions, are smaller.
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

/// Settings of a new database.
#[derive(Debug, Clone, Default)]
pub struct CreateOptions {
    /// How many bytes of consecutive leaves lie in one value; 0: one key a leaf. At most 60,000.
    pub run_bytes: Option<u32>,
    /// How many field names get an id; later names stand literally in paths. At most 1,000,000.
    pub field_ids_max: Option<u32>,
    /// Bodies of revisions that are no leaves are dropped at once, and not only by compaction.
    pub leaves_only: bool,
    /// In how many places writers keep by-seq, `last_seq` and counters, each process in one: 1 (as where nothing is said) to
    /// [`SHARDS_MAX`](crate::SHARDS_MAX). For databases that many processes write to faster than one storage server takes: each page of a feed
    /// reads all places.
    pub shards: Option<u32>,
    /// The number of shards that a client asked CouchDB for (`q`): shown in [`DatabaseInfo`](crate::DatabaseInfo), without effect. Not
    /// stored if [`shards`](Self::shards) is given.
    pub hinted_shards: Option<u16>,
    /// Whether ids of documents begin with a partition's name and a colon, `partition:id`, and partitions are counted.
    pub partitioned: bool,
    /// Whether its users see what is in their channels alone, and what says which documents those are.
    pub channels: Option<ChannelsOptions>,
}

/// The document layer of one server. Cheap to clone; all state is in it, none is process-wide.
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
    /// Single writes that wait for each other.
    pub lanes: Lanes,
    pub watches: Watches,
    /// Databases that are followed.
    pub hubs_running: AtomicUsize,
    /// Becomes true when the server stops.
    pub closing: watch::Sender<bool>,
    /// Followers of `_db_updates`.
    pub updates: UpdatesHub,
    /// What is done of one kind at once.
    pub turns: Turns,
    /// What judges writes.
    pub judge: Option<Arc<dyn Judge>>,
    /// Groups of views that are built, followed or waited for.
    pub views: ViewUpdates,
    /// For databases that are created.
    pub namespaces: Namespaces,
    /// The signature of the order that json indexes have; tests have programs with others.
    pub collation: &'static str,
    uuid: String,
    /// Chooses which of a database's buckets this process writes to.
    pub writer: Writer,
    pub databases: DashMap<String, Cached>,
    /// What principals of databases have.
    pub held: HeldCache,
    /// Up to when `databases` is known to be as it is stored.
    pub confirmed: Confirmed,
    /// What is to be noted as due.
    pub due: Noted,
    /// Limits log lines about expired documents that cannot be given tombstones.
    pub expiry_lines: LinePacer<()>,
    /// In which `databases` was filled.
    epoch: Mutex<u64>,
}

impl Layer {
    /// Opens the layer on a FoundationDB database; creates the root's record the first time. The authority is what writes
    /// as the server are made with: whoever puts the program together hands it out, to jobs by name.
    ///
    /// Without a judge no write of a user is taken where design documents judge.
    ///
    /// # Errors
    /// [`Error::FormatTooNew`], [`Error::FormatTooOld`], [`Error::Renewing`], [`Error::StampsAhead`], [`Error::Storage`].
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
        let Opened { uuid, epoch } = transaction::write(&db, &metrics, &mut open).await?;
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
            due: Noted::default(),
            expiry_lines: LinePacer::new(&clock),
            epoch: Mutex::new(epoch),
            clock,
        });
        Ok((Layer { inner }, Authority::new()))
    }

    /// The root's own id, 32 hexadecimal digits; the same for every server on it.
    pub fn uuid(&self) -> &str {
        &self.inner.uuid
    }

    /// The largest document, in bytes of JSON text of its body.
    pub fn document_bytes_max(&self) -> u64 {
        self.inner.options.document_bytes_max
    }

    /// Where the layer takes the time from, for what is built on it.
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// Reads a key of the root: whether the storage answers. Whether it takes writes is not tried.
    ///
    /// # Errors
    /// [`Error::Storage`], after some 30 s at most.
    #[boxed]
    pub async fn ping(&self) -> Result<()> {
        transaction::read(&self.inner.db, &self.inner.metrics, &mut Ping { keys: &self.inner.keys }).await
    }

    /// The indexes that this process is building.
    pub fn index_builds(&self) -> Vec<IndexBuild> {
        self.inner.index_builds.all()
    }

    /// Queries of this process that wait for indexes that are being built, together by index: those that have waited the
    /// longest, 500 at most; and how many queries more wait than these.
    pub fn index_waits(&self) -> (Vec<IndexWait>, u64) {
        self.inner.index_waits.all(&self.index_builds())
    }

    /// The databases whose documents this process brings to where their sync functions put them.
    pub fn resyncs(&self) -> Vec<ResyncTask> {
        self.inner.resyncs.all()
    }

    /// The compactions that this process is at.
    pub fn compactions(&self) -> Vec<CompactionProgress> {
        self.inner.compactions.all()
    }

    /// How the followers of all databases do.
    pub fn followers(&self) -> Followers {
        let mut all = Followers::default();
        for cached in &self.inner.databases {
            all.add(cached.instance.hub.standing(self.inner.clock.now()));
        }
        all
    }

    /// Databases that are held in memory.
    pub fn databases_cached(&self) -> usize {
        self.inner.databases.len()
    }

    /// Wakes every waiting feed, which then says that the server is going away.
    pub fn shutdown(&self) {
        self.inner.closing.send_replace(true);
    }
}

impl Inner {
    /// The database's instance as of the transaction's read version: from the cache where `\xff/metadataVersion` has not
    /// changed, else from its record. What is older than what the cache has does not go into it.
    pub(crate) async fn resolve(&self, trx: &Transaction, name: &str) -> Result<Arc<Instance>> {
        let version = trx.get(METADATA_VERSION, true).await?;
        let version: &[u8] = version.as_deref().unwrap_or_default();
        // What reads the past says nothing of now.
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
                // As true as where there is one: who asks for what is not there has nobody else ask in line.
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
                    security.with_channels(has_channels, Closed::of(record.closed))
                };
                let security = security.unwrap_or_else(|| Arc::new(of_record()));
                let is_resynced = |known: &Arc<Instance>| {
                    (known.record.channels, known.record.closed) != (record.channels, record.closed)
                };
                if record.indexes.iter().any(|index| !index.readable) || of_this.is_some_and(is_resynced) {
                    // Some may be defined just now, by this process or another, or a sync function has been given: whoever has time
                    // is at it at once.
                    self.due.wake.notify_one();
                }
                if is_outdated(&record, self.collation) {
                    self.due.note(Kind::Indexes, name);
                }
                // What is at work for it goes on.
                let selecting = known.as_ref().map(|known| known.selecting.clone()).unwrap_or_default();
                // Settings change without followers noticing.
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
            self.databases.insert(name.to_owned(), Cached { seen, instance: instance.clone() });
            self.make_room();
        }
        Ok(instance)
    }

    /// Makes room in a full cache: what goes is read again when it is asked for. What is being followed or used stays.
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

    /// What is cached of another epoch goes, also of databases that nobody asks for again.
    fn enter_epoch(&self, trx: &Transaction, epoch: u64) {
        let mut entered = self.epoch.lock().unwrap_or_else(PoisonError::into_inner);
        if *entered != epoch && !trx.is_pinned() {
            *entered = epoch;
            self.databases.clear();
            self.views.enter_epoch();
        }
    }

    /// As [`Inner::resolve`], for a transaction that writes: it fails if the database is deleted or changed meanwhile, or
    /// the store renewed.
    pub(crate) async fn resolve_for_write(&self, trx: &Transaction, name: &str) -> Result<Arc<Instance>> {
        let instance = self.resolve(trx, name).await?;
        if is_outdated(&instance.record, self.collation) {
            self.reorder_indexes(name).await.map_err(transaction::of_nested)?;
            // This transaction reads what was before: let it begin anew.
            return Err(Error::Storage(FdbError::from_code(NOT_COMMITTED)));
        }
        transaction::conflict_with(trx, &instance.record_key)?;
        transaction::conflict_with(trx, &self.keys.instance())?;
        Ok(instance)
    }

    /// Puts indexes of this program's collation in the place of a database's others. This process does so once at a time.
    pub(crate) async fn reorder_indexes(&self, name: &str) -> Result<()> {
        let instance = self.cached(name);
        let _alone = match &instance {
            Some(instance) => Some(instance.reordering.lock().await),
            None => None,
        };
        reorder(self, name).await
    }

    /// What the cache holds for a name, which may be out of date: a transaction that resolves says so.
    pub(crate) fn cached(&self, name: &str) -> Option<Arc<Instance>> {
        self.databases.get(name).map(|cached| cached.instance.clone())
    }

    /// The mark of an operation that is about to begin.
    pub(crate) fn once(&self) -> Result<Once> {
        self.due.note_mark();
        once::new_mark(&self.keys, &self.clock)
    }

    /// A write of this process supersedes so many bytes more of a database, if it is committed.
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
    /// What the attempts are for.
    pub namespace: Option<Given>,
}

/// The namespace of a database that is created.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Given {
    number: u64,
    epoch: u64,
    /// The transaction takes so many, and leaves these.
    taken: Option<(u64, Block)>,
}

impl Create<'_> {
    /// To be called once it is committed.
    pub(crate) fn keep_namespaces(&self) {
        if let Some((taken, left)) = self.namespace.and_then(|given| given.taken) {
            self.inner.namespaces.keep(taken, left, &self.inner.clock);
        }
    }

    /// Takes a namespace from those that this process has; else from the store, and some more with it.
    async fn take_namespace(&mut self, trx: &Transaction, epoch: u64, next: Option<u64>) -> Result<u64> {
        // An attempt whose commit is not known cannot land beside a later one: both leave a mark.
        if let Some(given) = self.namespace.filter(|given| given.epoch == epoch && given.taken.is_none()) {
            return Ok(given.number);
        }
        if let Some(number) = self.inner.namespaces.take(epoch) {
            self.namespace = Some(Given { number, epoch, taken: None });
            return Ok(number);
        }
        let number = match next {
            Some(next) => next,
            None => next_namespace(trx.get(&self.inner.keys.next_namespace(), false).await?.as_deref())?,
        };
        let taken = self.inner.namespaces.wanted(&self.inner.clock);
        let left = Block { epoch, from: number + 1, until: number + taken };
        trx.set(&self.inner.keys.next_namespace(), &proto::FieldId { id: left.until }.encode_to_vec());
        self.namespace = Some(Given { number, epoch, taken: Some((taken, left)) });
        Ok(number)
    }
}

fn next_namespace(bytes: Option<&[u8]>) -> Result<u64> {
    bytes.map_or(Ok(1), |bytes| Ok(proto::FieldId::decode(bytes)?.id))
}

impl Operation for Create<'_> {
    type Output = ();

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<()> {
        // Others may have deleted it since.
        if self.once.happened(trx, attempt).await?.is_some() {
            // Which attempt that was is not known, and so not what is left of what it took.
            self.namespace = None;
            return Ok(());
        }
        let key = self.inner.keys.database(self.name);
        let namespace_key = self.inner.keys.next_namespace();
        let (found, next) =
            (trx.get(&key, false), (!self.inner.namespaces.has_some()).then(|| trx.get(&namespace_key, false)));
        let writer = self.inner.writer(trx, self.actor);
        let (writer, epoch) = futures_util::try_join!(writer, epoch_for_write(trx, &self.inner.keys))?;
        // There is nothing to be judged by yet.
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
        // There from the beginning, so that deletion changes it even if nobody ever wrote, and wakes followers.
        let buckets = Buckets::of_record(&self.inner.keys.namespace(namespace), &record, self.inner.writer);
        touch_last_seq(trx, buckets.own(), 0)?;
        // No cache holds what is not there, so none has to be dropped; the deletion of one of that name has dropped them all.
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
        // Others may have created another one since.
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
