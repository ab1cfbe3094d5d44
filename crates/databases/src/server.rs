//! The layer of one server: its options, and its databases by name with their cache.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use flatbed_clock::Clock;
use flatbed_kit::RetryPolicy;
use flatbed_store::buckets::Writer;
use flatbed_store::due::DueNotes;
use flatbed_store::error::Result;
use flatbed_store::instruments::Instruments;
use flatbed_store::keys::RootKeys;
use flatbed_store::namespaces::Namespaces;
use flatbed_store::once::{self, Once};
use flatbed_store::sync_function::ChannelsOptions;
use flatbed_store::view_bounds::{ViewBounds, bytes_by_default};
use foundationdb::Database as Fdb;
use futures_util::future::BoxFuture;
use tokio::sync::watch;

use crate::cache::DatabaseCache;
use crate::confirmed::VersionCache;
use crate::instance::Instance;
use crate::size_bounds::SizeBounds;
use crate::slots::{Slots, State};
use crate::turns::Turns;

/// The default of `run_bytes`: measured best for documents of 0.2 to 20 kB
/// (design/data-model.md).
pub const DEFAULT_RUN_BYTES: u32 = 8_000;

/// The default limit of a database's field ids.
pub const DEFAULT_FIELD_IDS_MAX: u32 = 4_096;

/// The default limit of a document's leaves.
pub const LEAVES_MAX: usize = 10_000;

/// The default limit of leaves that the edits of one request read: about 15 s of processor time.
pub const LEAVES_READ_MAX: u64 = 15_000_000;

/// Below FoundationDB's limit of 10,000, because other keys are watched, too, and some watches are being replaced.
const WATCHES_MAX: usize = 8_000;

/// Returns the default of `database_cache_bytes`: 128 MB and 64 MB per processor, up to 64.
fn database_cache_bytes_by_default() -> u64 {
    let processors = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    (processors.clamp(2, 64) as u64 + 2) * (64 << 20)
}

/// The default age after which a staged blob that no document took counts as abandoned.
pub const UPLOADS_BROKEN_AFTER: Duration = Duration::from_secs(60 * 60);

/// Options of the layer.
#[derive(Debug, Clone)]
pub struct LayerOptions {
    /// First element of every key, so that several services share a cluster. At most 64 bytes.
    pub root: Vec<u8>,
    /// The largest document, in bytes of JSON text of its body. At most 8 MB: a revision in blobs must be readable and
    /// writable within FoundationDB's 5 s.
    pub document_bytes_max: u64,
    /// The approximate bound of one database, in bytes, attachments and views included. Writes beyond it fail with
    /// [`flatbed_store::error::Refusal::DatabaseFull`]. 0: no bound.
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
    /// The memory budget of the cache of databases, in bytes as estimated: records with what is compiled of them, and
    /// names of fields, 5 kB to 1 MB each. Further databases evict unused ones. Those in use may exceed the budget. The
    /// default is 128 MB plus 64 MB per processor.
    pub database_cache_bytes: u64,
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
            database_cache_bytes: database_cache_bytes_by_default(),
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
    /// [`SHARDS_MAX`](flatbed_store::buckets::SHARDS_MAX). For databases with more writes than one storage server
    /// takes; each page of a feed reads all places.
    pub shards: Option<u32>,
    /// The number of shards that a client asked CouchDB for (`q`): shown in `DatabaseInfo`,
    /// without effect. Not stored if [`shards`](Self::shards) is given.
    pub hinted_shards: Option<u16>,
    /// True if document ids begin with a partition's name and a colon, `partition:id`, and partitions have counters.
    pub partitioned: bool,
    /// Makes users see only documents in their channels, and sets the function that routes documents to channels.
    pub channels: Option<ChannelsOptions>,
    /// `_security` as JSON text; `None`: the default, which admits administrators of the server only.
    pub security: Option<Vec<u8>>,
}

/// The parts of a server that every transaction needs, and the state of each subsystem.
pub struct Inner {
    pub db: Arc<Fdb>,
    pub keys: RootKeys,
    pub options: LayerOptions,
    pub sizes: SizeBounds,
    pub metrics: Arc<Instruments>,
    pub clock: Clock,
    /// The states of subsystems: see [`Inner::state`].
    pub states: Slots<Inner>,
    /// Replaces a database's indexes of another collation by this program's, one call at a time in each process.
    pub reorder_indexes: for<'a> fn(&'a Inner, &'a str) -> BoxFuture<'a, Result<()>>,
    /// Notes a database's `_security`, which is new to this process.
    pub note_security: fn(&Inner, &Instance),
    /// Becomes true when the server stops.
    pub closing: watch::Sender<bool>,
    /// Semaphores of kinds of work.
    pub turns: Turns,
    /// Reserved namespaces for new databases.
    pub namespaces: Namespaces,
    /// The signature of the collation of json indexes; tests replace it.
    pub collation: &'static str,
    pub uuid: String,
    /// The mark of this process in leases and shared work.
    pub process: [u8; 16],
    /// Selects the bucket of a database that this process writes to.
    pub writer: Writer,
    pub databases: DatabaseCache,
    /// The time up to which `databases` is known to be current.
    pub confirmed: VersionCache,
    /// Work to be scheduled.
    pub due: DueNotes,
    pub epoch: Mutex<u32>,
}

impl Inner {
    /// Returns the state of a subsystem.
    pub fn state<T: State<Inner>>(&self) -> &T {
        self.states.get(self)
    }

    pub fn once(&self) -> Result<Once> {
        self.due.note_mark();
        once::new_mark(&self.keys, &self.clock)
    }

    #[inline]
    pub fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }
}
