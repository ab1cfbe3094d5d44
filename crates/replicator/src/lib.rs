//! The replications that a server runs: those of documents in `_replicator` and other replicator databases, shared with the other
//! servers of the same storage by leases, and those of `POST /_replicate`, which are this server's alone.
//!
//! It knows the layer and the protocol, and no server: how a connection to the server itself is made is passed in.
#![forbid(unsafe_code)]

mod description;
mod follow;
mod job_budget;
mod owner;
mod refusals;
mod replication;
mod seats;
mod supervisor;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use flatbed_clock::Clock;
use flatbed_jobs::{Backoff, Failure, Job, Next, Owner as Process, Run, Status, supervise};
use flatbed_layer::{Database, Layer, REPLICATOR, Reader, Result as LayerResult, ServerActor};
use flatbed_replicate::{Memory, MemoryUsage, Ways};
use flatbed_service::{Accounts, Standing};
use tokio::io::DuplexStream;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::follow::Origins;
use crate::job_budget::{FILTERS_KB_MAX, JobBudget, USER_FILTERS_KB_MAX};
use crate::seats::SeatLimits;

pub use crate::description::Description;
pub use crate::follow::Followed;
pub use crate::owner::Owner;
pub use crate::replication::{Extent, Origin, Replication};
pub use flatbed_outward::{Allowed, AllowedError, Network, Resolve, Tls, TlsError};
pub use flatbed_replicate::{Error, Outcome, Progress, Spec};

/// Where CouchDB names a node of its cluster.
pub const NODE: &str = "flatbed@localhost";

/// The longest specification, a body or a document: what is kept and read again of each is bounded by it.
pub const SPEC_BYTES_MAX: usize = 1 << 20;

/// Documents of which trees are made at once.
const TREES_MAX: usize = 2;

/// How long replications may take for their last checkpoint when the server stops.
const STOP_MAX: Duration = Duration::from_secs(5);

/// One of this many seats is reserved for administrators.
const ADMINS_PART: usize = 5;

/// The seats for the jobs of users who are not administrators.
fn users_jobs_max(jobs_max: usize) -> usize {
    jobs_max - jobs_max / ADMINS_PART
}

/// The limits of seats; see [`ReplicatorOptions`].
fn seat_limits(jobs_max: usize, user_jobs_max: usize, turn: Duration) -> SeatLimits {
    let users_jobs_max = users_jobs_max(jobs_max);
    let (filters_kb_max, user_filters_kb_max) = (FILTERS_KB_MAX, USER_FILTERS_KB_MAX);
    SeatLimits { jobs_max, users_jobs_max, user_jobs_max, filters_kb_max, user_filters_kb_max, turn }
}

/// How replications are tried again and shared between servers.
#[derive(Debug, Clone)]
pub struct ReplicatorOptions {
    /// After the first failure a replication waits this long; twice as long after each further one, up to 8 hours.
    pub first_pause: Duration,
    /// A server that has not renewed its hold on a replication for this long loses it to another.
    pub lease: Duration,
    /// Replications that run, or wait to be tried again, at once in this server.
    pub jobs_max: usize,
    /// The same of one user who is no administrator.
    pub user_jobs_max: usize,
    /// A running replication of a document keeps its seat at least this long when other owners wait for one.
    pub turn: Duration,
    /// Documents of `_replicator` that a user who is no administrator may have worked off at a time, those that wait included; a
    /// further one fails.
    pub user_documents_max: usize,
    /// Memory for what peers of all replications answer, in bytes; at least [`Memory::BYTES_MIN`].
    pub memory_bytes: usize,
    /// Whom to trust behind `https://`.
    pub tls: Tls,
    /// How hosts are found.
    pub network: Network,
    /// What replications of users may reach beside the internet; those of administrators reach everything.
    pub allowed: Arc<Allowed>,
}

impl Default for ReplicatorOptions {
    fn default() -> Self {
        ReplicatorOptions {
            first_pause: Duration::from_secs(30),
            lease: Duration::from_secs(15),
            jobs_max: 500,
            user_jobs_max: 20,
            turn: Duration::from_secs(60),
            user_documents_max: 100,
            memory_bytes: 512 << 20,
            tls: Tls::default(),
            network: Network::default(),
            allowed: Arc::default(),
        }
    }
}

/// No pause is longer, as in CouchDB.
const PAUSE_MAX: Duration = Duration::from_secs(8 * 3_600);

/// How long a replication may take for its last checkpoint when it is told to end: its requests end by themselves before.
const GRACE: Duration = Duration::from_secs(600);

/// Makes connections to the server itself, on somebody's behalf.
pub type Connect = Arc<dyn Fn(&Owner) -> DuplexStream + Send + Sync>;

/// Why `POST /_replicate` begins or ends nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotDone {
    /// A limit of jobs or filters is reached.
    #[error("Too many replications run at once")]
    NoRoom,
    /// It is another's.
    #[error("You are not a server admin.")]
    Others,
    /// There is no such job.
    #[error("no such replication")]
    Missing,
}

/// Documents that ask for replications, by database and id.
type FollowedMap = HashMap<Arc<str>, HashMap<String, Arc<Followed>>>;

/// All replications of one server.
pub struct Replicator {
    pub(crate) layer: Layer,
    /// Writes what becomes of documents that ask for replications.
    actor: ServerActor,
    pub(crate) options: ReplicatorOptions,
    connect: Connect,
    memory: Memory,
    /// Who has the accounts that jobs run with.
    pub(crate) accounts: Arc<Accounts>,
    /// By their ids, those asked for by `POST /_replicate`.
    jobs: Mutex<HashMap<String, Arc<Replication>>>,
    /// The replications of documents, whichever server runs them.
    followed: Mutex<FollowedMap>,
    /// This process, for leases.
    pub(crate) owner: Process,
    pub(crate) budget: JobBudget,
    /// Of [`TREES_MAX`].
    pub(crate) trees: Semaphore,
    /// Of what follows `_replicator`.
    pub(crate) supervisor: Status,
}

impl Replicator {
    /// Runs nothing yet. `actor`: on whose behalf what becomes of documents that ask for replications is written. `connect`
    /// makes connections to the server itself.
    pub fn new(
        layer: Layer,
        actor: ServerActor,
        options: ReplicatorOptions,
        accounts: Arc<Accounts>,
        connect: Connect,
    ) -> Arc<Replicator> {
        let mut owner = [0; 16];
        if getrandom::fill(&mut owner).is_err() {
            // Without randomness nothing else of the server works either; leases must differ all the same.
            owner = u128::from(std::process::id()).to_le_bytes();
        }
        let budget = JobBudget::new(seat_limits(options.jobs_max, options.user_jobs_max, options.turn));
        let trees = Semaphore::new(TREES_MAX);
        let (jobs, followed) = Default::default();
        let memory = Memory::new(options.memory_bytes);
        let supervisor = Status::new(layer.clock());
        Arc::new(Replicator {
            layer,
            actor,
            options,
            connect,
            memory,
            accounts,
            jobs,
            followed,
            owner,
            budget,
            trees,
            supervisor,
        })
    }

    /// The layer's clock.
    pub(crate) fn clock(&self) -> &Clock {
        self.layer.clock()
    }

    /// How peers are reached on somebody's behalf.
    pub(crate) fn ways(&self, owner: &Owner, is_admin: bool) -> Ways {
        let (connect, owner) = (self.connect.clone(), owner.clone());
        let network = &self.options.network;
        let network = if is_admin { network.clone() } else { network.bounded(self.options.allowed.clone()) };
        let local = Arc::new(move || connect(&owner));
        let (tls, memory, clock) = (self.options.tls.clone(), self.memory.clone(), self.clock().clone());
        Ways { local, network, tls, memory, clock }
    }

    /// Starts to follow `_replicator` and the other replicator databases. The returned task is for [`Replicator::stop`].
    pub fn start(self: &Arc<Self>) -> JoinHandle<()> {
        tokio::spawn(supervisor::run(self.clone()))
    }

    /// Opens a replicator database for reading.
    pub(crate) fn reader(&self, name: &str) -> Reader {
        self.layer.reader(name)
    }

    /// The same, to write to.
    fn database(&self, name: &str) -> Database {
        self.layer.database(name, self.actor.clone())
    }

    /// Returns the replicator database of this name; `None` if there is none now.
    pub(crate) async fn origins(&self, name: &Arc<str>) -> LayerResult<Option<Origins>> {
        if **name == *REPLICATOR {
            return Ok(Some(Origins { name: name.clone(), incarnation: None }));
        }
        // Reads in a new transaction, not from the cache.
        let (_, found) = self.layer.securities(std::slice::from_ref(name)).await?;
        let found = found.into_iter().flatten().find(|security| security.is_replicator());
        Ok(found.map(|security| Origins { name: name.clone(), incarnation: Some(security.incarnation()) }))
    }

    /// Whether the database still exists with the same incarnation.
    pub(crate) async fn is_still(&self, origins: &Origins) -> LayerResult<bool> {
        if origins.incarnation.is_none() {
            return Ok(true);
        }
        let now = self.origins(&origins.name).await?;
        Ok(now.is_some_and(|now| now.incarnation == origins.incarnation))
    }

    pub(crate) fn backoff(&self) -> Backoff {
        Backoff { first: self.options.first_pause, max: PAUSE_MAX }
    }

    fn followed_map(&self) -> MutexGuard<'_, FollowedMap> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn followed(&self) -> Vec<Arc<Followed>> {
        self.followed_map().values().flat_map(HashMap::values).cloned().collect()
    }

    /// The followed documents of a database.
    pub(crate) fn followed_in(&self, database: &str) -> Vec<Arc<Followed>> {
        self.followed_map().get(database).into_iter().flat_map(HashMap::values).cloned().collect()
    }

    /// The job of a document in a replicator database, whichever server runs it; `None` if the document is not followed.
    pub fn followed_by(&self, database: &str, id: &str) -> Option<Arc<Followed>> {
        self.followed_map().get(database)?.get(id).cloned()
    }

    /// How many unfinished documents a user has in all databases, without this one.
    fn documents_of(&self, user: &str, database: &str, id: &str) -> usize {
        let all = self.followed_map();
        let others = all.values().flat_map(HashMap::values).filter(|followed| {
            (followed.database(), followed.id.as_str()) != (database, id) && followed.job.user.as_deref() == Some(user)
        });
        others.filter(|followed| !followed.job.status.has_ended()).count()
    }

    /// Begins to work on a document.
    fn follow(self: &Arc<Self>, followed: Arc<Followed>, before: Option<Arc<Followed>>) {
        let name = followed.origins.name.clone();
        self.followed_map().entry(name).or_default().insert(followed.id.clone(), followed.clone());
        let replicator = self.clone();
        tokio::spawn(followed.run(replicator, before));
    }

    fn unfollow(&self, database: &str, id: &str) {
        let followed = self.followed_map().get_mut(database).and_then(|of| of.remove(id));
        if let Some(followed) = followed {
            followed.job.status.stop();
        }
    }

    /// Stops following all documents of a database except these.
    fn keep(&self, database: &str, ids: &HashSet<String>) {
        let mut all = self.followed_map();
        let Some(of) = all.get_mut(database) else { return };
        of.retain(|id, followed| {
            let is_kept = ids.contains(id);
            if !is_kept {
                followed.job.status.stop();
            }
            is_kept
        });
        if of.is_empty() {
            all.remove(database);
        }
    }

    /// All jobs that run here or are tried again here.
    pub fn here(&self) -> Vec<Arc<Replication>> {
        let of_documents = self.followed().into_iter().filter(|followed| followed.is_ours());
        let mut jobs: Vec<_> = of_documents.map(|followed| followed.job.clone()).chain(self.all()).collect();
        jobs.sort_by(|a, b| a.id.cmp(&b.id));
        jobs
    }

    /// Ends all replications, each after a checkpoint.
    pub async fn stop(&self, supervisor: JoinHandle<()>) {
        self.supervisor.stop();
        let jobs = self.all();
        for job in &jobs {
            job.status.stop();
        }
        let ended = async {
            let _ = supervisor.await;
            for job in &jobs {
                let _ = job.ended().await;
            }
        };
        if self.clock().timeout(STOP_MAX, ended).await.is_err() {
            tracing::warn!("replications did not end in time; they go on from their last checkpoints");
        }
    }

    /// Memory for what peers answer: texts, trees, and pages of changes.
    pub fn memory_usage(&self) -> [MemoryUsage; 3] {
        self.memory.usage()
    }

    fn jobs(&self) -> MutexGuard<'_, HashMap<String, Arc<Replication>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The jobs of `POST /_replicate`, in the order of their ids.
    pub(crate) fn all(&self) -> Vec<Arc<Replication>> {
        let mut jobs: Vec<_> = self.jobs().values().cloned().collect();
        jobs.sort_by(|a, b| a.id.cmp(&b.id));
        jobs
    }

    /// The job for a replication that `standing` asks for: the one that runs already, or a new one.
    ///
    /// # Errors
    /// [`NotDone`]: the job belongs to another owner, or a limit is reached.
    pub fn begin(self: &Arc<Self>, mut spec: Spec, standing: &Standing) -> Result<Arc<Replication>, NotDone> {
        let owner = Owner::of(standing);
        spec.owner = user_of(standing);
        let id = spec.job_id(self.layer.uuid());
        let mut jobs = self.jobs();
        if let Some(job) = jobs.get(&id).filter(|job| !job.status.has_ended()) {
            return if job.is_of(standing) { Ok(job.clone()) } else { Err(NotDone::Others) };
        }
        let permit = self.budget.take(spec.filter_bytes(), spec.owner.as_deref(), self.clock().now());
        let permit = permit.ok_or(NotDone::NoRoom)?;
        let job = Replication::new(id.clone(), &spec, owner, None, self.clock());
        jobs.insert(id.clone(), job.clone());
        drop(jobs);
        let (replicator, running) = (self.clone(), job.clone());
        tokio::spawn(async move {
            let asked = Asked { job: running.clone(), spec: Arc::new(spec), replicator: replicator.clone() };
            supervise(&asked, &replicator.backoff(), None).await;
            running.status.end();
            drop(asked);
            drop(permit);
            let mut jobs = replicator.jobs();
            // Its successor may have begun.
            if jobs.get(&id).is_some_and(|job| Arc::ptr_eq(job, &running)) {
                jobs.remove(&id);
            }
        });
        Ok(job)
    }

    /// Ends a job of `POST /_replicate` and returns its id. An id may be given without what CouchDB puts behind it.
    ///
    /// # Errors
    /// [`NotDone`]: there is no such job, or it is another's.
    pub async fn cancel(&self, id: &str, standing: &Standing) -> Result<String, NotDone> {
        let found = self.jobs().values().find(|job| job.id == id || job.id.split('+').next() == Some(id)).cloned();
        let job = found.ok_or(NotDone::Missing)?;
        if !job.is_of(standing) {
            return Err(NotDone::Others);
        }
        job.status.stop();
        let _ = job.ended().await;
        Ok(job.id.clone())
    }

    /// Ends the job of `POST /_replicate` for such a replication of theirs, and returns its id.
    ///
    /// # Errors
    /// As [`Replicator::cancel`].
    pub async fn cancel_like(&self, mut spec: Spec, standing: &Standing) -> Result<String, NotDone> {
        spec.owner = user_of(standing);
        self.cancel(&spec.id(self.layer.uuid()), standing).await
    }
}

/// Whose bounds hold: a user's; none are an administrator's.
fn user_of(standing: &Standing) -> Option<String> {
    let principal = standing.principal();
    (!principal.is_admin).then(|| principal.name.clone().unwrap_or_default())
}

/// A replication of `POST /_replicate`: once, or for a continuous one until it is stopped.
struct Asked {
    job: Arc<Replication>,
    spec: Arc<Spec>,
    replicator: Arc<Replicator>,
}

#[async_trait]
impl Job for Asked {
    fn kind(&self) -> &'static str {
        "replication"
    }

    fn id(&self) -> &str {
        &self.job.id
    }

    fn status(&self) -> &Status {
        &self.job.status
    }

    async fn run(&self, run: Run) -> Result<Next, Failure> {
        let done = self.job.run_once(&self.spec, &self.replicator, run).await;
        let failed = done.as_ref().err().map(ToString::to_string);
        // An owner who is gone could not end it: it gives up its place.
        let is_over = !self.spec.continuous || matches!(done, Err(Error::OwnerGone));
        *self.job.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
        match failed {
            None => Ok(Next::Done),
            Some(reason) if !is_over => Err(Failure::Failed(reason)),
            Some(reason) => {
                self.job.note_failure(&reason);
                Ok(Next::Done)
            }
        }
    }

    fn grace(&self) -> Duration {
        GRACE
    }

    fn log_failure(&self, reason: &str) {
        self.job.log_failure(reason);
    }
}
