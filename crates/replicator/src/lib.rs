//! The replications that a server runs: those that documents of `_replicator` ask for, shared with the other servers of the
//! same storage by leases, and those of `POST /_replicate`, which are this server's alone.
//!
//! It knows the layer and the protocol, and no server: how a connection to the server itself is made is passed in.
#![forbid(unsafe_code)]

mod description;
mod follow;
mod job;
mod supervisor;
mod words;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flatbed_layer::{Database, Layer, Owner, Reader, ServerActor};
use flatbed_replicate::{Memory, MemoryUsage, Ways};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinHandle;

pub use crate::description::Description;
pub use crate::follow::Followed;
pub use crate::job::{Event, Extent, Job, Origin, Standing};
pub use flatbed_replicate::{Error, LocalConnect, Outcome, Progress, Spec, Tls, TlsError};

/// The database whose documents ask for replications.
pub const REPLICATOR: &str = "_replicator";

/// Where CouchDB names a node of its cluster.
pub const NODE: &str = "flatbed@localhost";

/// The longest specification, a body or a document: what is kept and read again of each is bounded by it.
pub const SPEC_BYTES_MAX: usize = 1 << 20;

/// Filters of this server's jobs together, each counted twice: it is sent with each request for changes.
const FILTER_BYTES_MAX: usize = 64 << 20;

/// Filters below this are not counted.
const FILTER_BYTES_FREE: usize = 16 << 10;

/// Documents of which trees are made at once.
const TREES_MAX: usize = 2;

/// How long replications may take for their last checkpoint when the server stops.
const STOP_MAX: Duration = Duration::from_secs(5);

/// How replications are tried again and shared between servers.
#[derive(Debug, Clone)]
pub struct ReplicatorOptions {
    /// After the first failure a replication waits this long; twice as long after each further one, up to 8 hours.
    pub first_pause: Duration,
    /// A server that has not renewed its hold on a replication for this long loses it to another.
    pub lease: Duration,
    /// Replications that run, or wait to be tried again, at once in this server.
    pub jobs_max: usize,
    /// Memory for what peers of all replications answer, in bytes; at least [`Memory::BYTES_MIN`].
    pub memory_bytes: usize,
    /// Whom to trust behind `https://`.
    pub tls: Tls,
}

impl Default for ReplicatorOptions {
    fn default() -> Self {
        ReplicatorOptions {
            first_pause: Duration::from_secs(30),
            lease: Duration::from_secs(15),
            jobs_max: 500,
            memory_bytes: 512 << 20,
            tls: Tls::default(),
        }
    }
}

/// What a job takes of what all jobs of a server share.
pub(crate) struct Room {
    _job: OwnedSemaphorePermit,
    _filter: OwnedSemaphorePermit,
}

/// All replications of one server.
pub struct Replicator {
    pub(crate) layer: Layer,
    /// Writes what becomes of documents that ask for replications.
    actor: ServerActor,
    pub(crate) options: ReplicatorOptions,
    pub(crate) ways: Ways,
    /// By their ids, those asked for by `POST /_replicate`.
    jobs: Mutex<HashMap<String, Arc<Job>>>,
    /// By their documents' ids, those that `_replicator` asks for, whichever server runs them.
    followed: Mutex<HashMap<String, Arc<Followed>>>,
    /// This process, for leases.
    pub(crate) owner: Owner,
    /// Jobs that run here or are tried again here.
    running: Arc<Semaphore>,
    /// Of [`FILTER_BYTES_MAX`], in kB.
    filters: Arc<Semaphore>,
    /// Of [`TREES_MAX`].
    pub(crate) trees: Semaphore,
    pub(crate) closing: watch::Sender<bool>,
}

impl Replicator {
    /// Runs nothing yet. `actor`: on whose behalf what becomes of documents that ask for replications is written. `local` makes connections to the server itself.
    pub fn new(layer: Layer, actor: ServerActor, options: ReplicatorOptions, local: LocalConnect) -> Arc<Replicator> {
        let closing = watch::Sender::new(false);
        let mut owner = [0; 16];
        if getrandom::fill(&mut owner).is_err() {
            // Without randomness nothing else of the server works either; leases must differ all the same.
            owner = u128::from(std::process::id()).to_le_bytes();
        }
        let running = Arc::new(Semaphore::new(options.jobs_max));
        let filters = Arc::new(Semaphore::new(FILTER_BYTES_MAX >> 10));
        let trees = Semaphore::new(TREES_MAX);
        let (jobs, followed) = Default::default();
        let ways = Ways { local, tls: options.tls.clone(), memory: Memory::new(options.memory_bytes) };
        Arc::new(Replicator { layer, actor, options, ways, jobs, followed, owner, running, filters, trees, closing })
    }

    /// Begins to work off the `_replicator` database. The task is for [`Replicator::stop`].
    pub fn start(self: &Arc<Self>) -> JoinHandle<()> {
        tokio::spawn(supervisor::run(self.clone()))
    }

    /// The database whose documents ask for replications.
    pub(crate) fn reader(&self) -> Reader {
        self.layer.reader(REPLICATOR)
    }

    /// The same, to write to.
    fn database(&self) -> Database {
        self.layer.database(REPLICATOR, self.actor.clone())
    }

    fn followed_map(&self) -> MutexGuard<'_, HashMap<String, Arc<Followed>>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn followed(&self) -> Vec<Arc<Followed>> {
        self.followed_map().values().cloned().collect()
    }

    /// What is made of a document that asks for a replication, whichever server runs it.
    pub fn followed_by(&self, id: &str) -> Option<Arc<Followed>> {
        self.followed_map().get(id).cloned()
    }

    /// Begins to work on a document.
    fn follow(self: &Arc<Self>, followed: Arc<Followed>, before: Option<Arc<Followed>>) {
        self.followed_map().insert(followed.id.clone(), followed.clone());
        let replicator = self.clone();
        tokio::spawn(async move { followed.run(&replicator, before).await });
    }

    fn unfollow(&self, id: &str) {
        if let Some(followed) = self.followed_map().remove(id) {
            followed.job.stop();
        }
    }

    /// Follows no other documents than these any more.
    fn keep(&self, ids: &HashSet<String>) {
        self.followed_map().retain(|id, followed| {
            let is_kept = ids.contains(id);
            if !is_kept {
                followed.job.stop();
            }
            is_kept
        });
    }

    /// All jobs that run here or are tried again here.
    pub fn here(&self) -> Vec<Arc<Job>> {
        let of_documents = self.followed().into_iter().filter(|followed| *followed.is_ours.borrow());
        let mut jobs: Vec<_> = of_documents.map(|followed| followed.job.clone()).chain(self.all()).collect();
        jobs.sort_by(|a, b| a.id.cmp(&b.id));
        jobs
    }

    /// Ends all replications, each after a checkpoint.
    pub async fn stop(&self, supervisor: JoinHandle<()>) {
        self.closing.send_replace(true);
        let jobs = self.all();
        for job in &jobs {
            job.stop();
        }
        let ended = async {
            let _ = supervisor.await;
            for job in &jobs {
                let _ = job.ended().await;
            }
        };
        if tokio::time::timeout(STOP_MAX, ended).await.is_err() {
            tracing::warn!("replications did not end in time; they go on from their last checkpoints");
        }
    }

    /// Memory for what peers answer: texts, trees, and pages of changes.
    pub fn memory_usage(&self) -> [MemoryUsage; 3] {
        self.ways.memory.usage()
    }

    fn jobs(&self) -> MutexGuard<'_, HashMap<String, Arc<Job>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The jobs of `POST /_replicate`, in the order of their ids.
    pub(crate) fn all(&self) -> Vec<Arc<Job>> {
        let mut jobs: Vec<_> = self.jobs().values().cloned().collect();
        jobs.sort_by(|a, b| a.id.cmp(&b.id));
        jobs
    }

    /// Room for one more job with such a filter. `None`: it is all taken.
    pub(crate) fn room(&self, filter_bytes: usize) -> Option<Room> {
        let job = self.running.clone().try_acquire_owned().ok()?;
        let bytes = if filter_bytes > FILTER_BYTES_FREE { 2 * filter_bytes } else { 0 };
        let filter = u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX);
        Some(Room { _job: job, _filter: self.filters.clone().try_acquire_many_owned(filter).ok()? })
    }

    /// The job for a replication: the one that runs already, or a new one. `None`: there is no room for one more.
    pub fn begin(self: &Arc<Self>, spec: Spec, user: Option<String>) -> Option<Arc<Job>> {
        let id = spec.job_id(self.layer.uuid());
        let mut jobs = self.jobs();
        if let Some(job) = jobs.get(&id).filter(|job| !job.has_ended()) {
            return Some(job.clone());
        }
        let room = self.room(spec.filter_bytes())?;
        let job = Job::new(id.clone(), &spec, user, None);
        jobs.insert(id.clone(), job.clone());
        drop(jobs);
        let (replicator, running) = (self.clone(), job.clone());
        tokio::spawn(async move {
            running.run(&Arc::new(spec), &replicator).await;
            drop(room);
            let mut jobs = replicator.jobs();
            // Its successor may have begun.
            if jobs.get(&id).is_some_and(|job| Arc::ptr_eq(job, &running)) {
                jobs.remove(&id);
            }
        });
        Some(job)
    }

    /// Ends a job of `POST /_replicate` and returns its id; `None`: there is no such job. An id may be given without what CouchDB puts behind it.
    pub async fn cancel(&self, id: &str) -> Option<String> {
        let found = self.jobs().values().find(|job| job.id == id || job.id.split('+').next() == Some(id)).cloned();
        let job = found?;
        job.stop();
        let _ = job.ended().await;
        Some(job.id.clone())
    }
}
