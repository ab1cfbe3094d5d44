//! Builds indexes in the background: each is a job under a lease of the root, so that of all processes one builds it.
//!
//! That is for speed alone: two that build an index at once leave it as right (`index::build`). What is to be built stands in the
//! databases' records, and whoever changes one of these changes metadataVersion too: as long as that stays what it was and
//! nothing is being built, a process reads nothing else.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flatbed_jobs::{Backoff, Claim, Failure, Job, Next, Owner, Room, Run, Standing, Status, lead, supervise};
use prost::Message;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::actor::ServerActor;
use crate::error::{Error, Result};
use crate::index::build::{Step, Stepped, unbuilt};
use crate::index::kinds::KINDS;
use crate::layer::{Inner, Layer};
use crate::lease::RootLeases;
use crate::store::keys::{KeyRange, METADATA_VERSION};
use crate::store::once::random_id;
use crate::store::proto;
use crate::store::transaction::{self, Attempt, Operation, Transaction, page_of};

/// Between two looks at what is to be built.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A process that was not heard of for so long has lost its leases.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// After a step, or a look, that went wrong.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), max: Duration::from_secs(60) };

/// Indexes that a process builds at once.
const BUILDS_AT_ONCE: usize = 2;

/// Records of databases that are read at once. One may have 64 indexes.
const PAGE_RECORDS_MAX: usize = 100;

/// The builder of one process.
pub struct IndexBuilder {
    layer: Layer,
    /// What is built is written by right of it.
    _actor: ServerActor,
    owner: Owner,
    look_every: Duration,
    silence_max: Duration,
    status: Status,
    /// Those that are being built, here or elsewhere, by their leases.
    builds: Mutex<HashMap<String, Arc<Build>>>,
    rooms: Arc<Semaphore>,
}

/// An index that is being built, as this process sees it.
#[derive(Debug, Clone)]
pub struct IndexBuild {
    /// The database.
    pub database: String,
    /// The index's number in it.
    pub number: u64,
    /// What keeps it.
    pub kind: String,
    /// The design document that defines it.
    pub design_document: String,
    /// Whether this process builds it.
    pub is_ours: bool,
    /// Documents that it has entered, those of earlier owners included.
    pub entered: u64,
    /// How it stands.
    pub standing: Standing,
}

impl IndexBuilder {
    /// Of a layer; what it writes is the server's own.
    ///
    /// # Errors
    /// [`NoRandomness`](Error::NoRandomness).
    pub fn new(layer: &Layer, actor: ServerActor) -> Result<Arc<IndexBuilder>> {
        IndexBuilder::with_times(layer, actor, LOOK_EVERY, SILENCE_MAX)
    }

    pub(crate) fn with_times(
        layer: &Layer,
        actor: ServerActor,
        look_every: Duration,
        silence_max: Duration,
    ) -> Result<Arc<IndexBuilder>> {
        let (owner, rooms) = (random_id()?, Arc::new(Semaphore::new(BUILDS_AT_ONCE)));
        let (layer, status, builds) = (layer.clone(), Status::new(), Mutex::default());
        Ok(Arc::new(IndexBuilder { layer, _actor: actor, owner, look_every, silence_max, status, builds, rooms }))
    }

    /// Begins it, in a task of its own; [`IndexBuilder::stop`] ends it.
    pub fn start(self: &Arc<Self>) {
        tokio::spawn(Arc::clone(self).run());
    }

    /// Ends it. What is half built another process goes on with, or this one when it is started again.
    pub async fn stop(&self) {
        self.status.stop();
        self.status.ended().await;
    }

    /// What is being built, here and in other processes.
    pub fn builds(&self) -> Vec<IndexBuild> {
        let mut all: Vec<IndexBuild> = self.all().values().map(|build| build.shown()).collect();
        all.sort_by(|a, b| (&a.database, a.number).cmp(&(&b.database, b.number)));
        all
    }

    /// Builds until it is stopped. All that is under way ends where it stands if this is dropped.
    pub(crate) async fn run(self: Arc<Self>) {
        if !KINDS.is_empty() {
            let supervisor = Supervisor { builder: self.clone(), tasks: Mutex::default(), seen: Mutex::default() };
            supervise(&supervisor, &BACKOFF, None).await;
            self.all().values().for_each(|build| build.status.stop());
            let tasks = std::mem::take(&mut *supervisor.tasks.lock().unwrap_or_else(PoisonError::into_inner));
            tasks.join_all().await;
        }
        self.status.end();
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<Build>>> {
        self.builds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks what is to be built, and by whom.
struct Supervisor {
    builder: Arc<IndexBuilder>,
    tasks: Mutex<JoinSet<()>>,
    /// metadataVersion as of the last look at all records.
    seen: Mutex<Option<Vec<u8>>>,
}

impl Job for Supervisor {
    fn kind(&self) -> &'static str {
        "indexes"
    }

    fn id(&self) -> &str {
        "all databases"
    }

    fn status(&self) -> &Status {
        &self.builder.status
    }

    async fn run(&self, _: Run) -> std::result::Result<Next, Failure> {
        if tokio::time::timeout(self.builder.look_every, self.builder.status.stopped()).await.is_ok() {
            return Ok(Next::Done);
        }
        self.look().await.map_err(|error| Failure::Failed(error.to_string()))?;
        Ok(Next::Again(Duration::ZERO))
    }
}

impl Supervisor {
    async fn look(&self) -> Result<()> {
        let inner = &self.builder.layer.inner;
        // Before the records are read: a change meanwhile is seen with the next look.
        let now = transaction::read(&inner.db, &inner.metrics, &mut MetadataVersion).await?;
        if *self.seen() != Some(now.clone()) {
            let mut wanted = HashMap::new();
            let mut after = None;
            while let Some((found, last)) =
                transaction::read(&inner.db, &inner.metrics, &mut Unbuilt { inner, after }).await?
            {
                wanted.extend(found.into_iter().map(|build| (build.lease_id(), build)));
                after = Some(last);
            }
            self.follow(wanted);
            *self.seen() = Some(now);
        }
        let leases = RootLeases(inner.clone());
        let waiting: Vec<_> = self.builder.all().values().filter(|build| !build.claim.is_ours()).cloned().collect();
        for build in waiting {
            let found = leases.look(&build.id).await?;
            build.claim.note(found, Instant::now());
        }
        Ok(())
    }

    /// Begins what is to be built, and ends what is not.
    fn follow(&self, wanted: HashMap<String, ToBuild>) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        let mut builds = self.builder.all();
        builds.retain(|id, build| {
            if !wanted.contains_key(id) {
                build.status.stop();
            }
            wanted.contains_key(id) && !build.status.has_ended()
        });
        for (id, to_build) in wanted {
            builds.entry(id).or_insert_with_key(|id| {
                let build = Arc::new(Build::new(&self.builder, id.clone(), to_build));
                tasks.spawn(build.clone().lead());
                build
            });
        }
    }

    fn seen(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Changes whenever a database's record does.
struct MetadataVersion;

impl Operation for MetadataVersion {
    type Output = Vec<u8>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Vec<u8>> {
        Ok(trx.get(METADATA_VERSION, true).await?.map(|version| version.to_vec()).unwrap_or_default())
    }
}

/// An index that may not be read yet.
struct ToBuild {
    database: String,
    namespace: u64,
    index: proto::Index,
}

impl ToBuild {
    fn lease_id(&self) -> String {
        format!("index/{}/{}", self.namespace, self.index.number)
    }
}

/// A page of databases' records: what is to be built in these, and the last one's key; `None`: no more.
struct Unbuilt<'a> {
    inner: &'a Inner,
    after: Option<Vec<u8>>,
}

impl Operation for Unbuilt<'_> {
    type Output = Option<(Vec<ToBuild>, Vec<u8>)>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let KeyRange { mut begin, end } = self.inner.keys.databases();
        if let Some(after) = &self.after {
            begin = [after.as_slice(), &[0]].concat();
        }
        let range = KeyRange { begin, end };
        let page = trx.get_range(&page_of(&range, PAGE_RECORDS_MAX, false), 1, true).await?;
        let Some(last) = page.last().map(|row| row.key().to_vec()) else { return Ok(None) };
        let mut found = Vec::new();
        for row in &page {
            // One that cannot be read is not built, and keeps none of the others from it.
            let Ok(record) = proto::DatabaseRecord::decode(row.value()) else { continue };
            let Ok(database) = self.inner.keys.database_name(row.key()) else { continue };
            let namespace = record.namespace;
            // Of one with kinds that are not known nothing may be written.
            let known = unbuilt(record).filter(|index| KINDS.iter().any(|kind| kind.name() == index.kind));
            found.extend(known.map(|index| ToBuild { database: database.clone(), namespace, index }));
        }
        Ok(Some((found, last)))
    }
}

/// An index that is built, by whoever has its lease.
struct Build {
    inner: Arc<Inner>,
    /// Of the lease.
    id: String,
    to_build: ToBuild,
    claim: Claim,
    status: Status,
    rooms: Arc<Semaphore>,
    entered: AtomicU64,
}

impl Build {
    fn new(builder: &IndexBuilder, id: String, to_build: ToBuild) -> Build {
        Build {
            inner: builder.layer.inner.clone(),
            id,
            to_build,
            claim: Claim::new(builder.owner, builder.silence_max),
            status: Status::new(),
            rooms: builder.rooms.clone(),
            entered: AtomicU64::new(0),
        }
    }

    async fn lead(self: Arc<Self>) {
        let leases = Arc::new(RootLeases(self.inner.clone()));
        lead(&self, &self.claim, &leases, &BACKOFF).await;
    }

    fn shown(&self) -> IndexBuild {
        let ToBuild { database, index, .. } = &self.to_build;
        IndexBuild {
            database: database.clone(),
            number: index.number,
            kind: index.kind.clone(),
            design_document: index.source.clone(),
            is_ours: self.claim.is_ours(),
            entered: self.entered.load(Ordering::Relaxed),
            standing: self.status.standing().clone(),
        }
    }
}

/// Counts a build that is under way.
struct Running<'a>(&'a Inner);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.metrics.index_builds_running.add(-1);
    }
}

impl Job for Build {
    fn kind(&self) -> &'static str {
        "index"
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn status(&self) -> &Status {
        &self.status
    }

    async fn run(&self, run: Run) -> std::result::Result<Next, Failure> {
        let (inner, number) = (&*self.inner, self.to_build.index.number);
        self.status.begin();
        inner.metrics.index_builds_running.add(1);
        let _running = Running(inner);
        while !run.is_stopped() {
            let mut step = Step::new(inner, &self.to_build.database, number);
            let done = match transaction::write(&inner.db, &inner.metrics, &mut step).await {
                Ok(done) => done,
                Err(Error::DatabaseNotFound) => Stepped::Gone,
                Err(error) => {
                    inner.metrics.index_build_failures.add(1);
                    return Err(Failure::Failed(error.to_string()));
                }
            };
            inner.metrics.index_documents_entered.add(step.entered);
            self.entered.fetch_add(step.entered, Ordering::Relaxed);
            match done {
                Stepped::On => continue,
                Stepped::Built => inner.metrics.indexes_built.add(1),
                Stepped::Gone => {}
            }
            break;
        }
        self.status.succeed();
        Ok(Next::Done)
    }

    /// How many documents are entered.
    fn state(&self) -> Vec<u8> {
        self.entered.load(Ordering::Relaxed).to_le_bytes().to_vec()
    }

    fn restore(&self, state: &[u8]) {
        let entered = state.try_into().map_or(0, u64::from_le_bytes);
        self.entered.store(entered, Ordering::Relaxed);
    }

    fn room(&self) -> Option<Room> {
        Some(Box::new(self.rooms.clone().try_acquire_owned().ok()?))
    }
}
