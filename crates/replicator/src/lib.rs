//! Runs a server's replications: those of documents in `_replicator` and other replicator databases, shared with the
//! other servers of the same storage by leases, and those of `POST /_replicate`, which belong to this server alone.
//!
//! This crate knows the layer and the protocol, but no server: connections to the server itself are passed in.
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
use flatbed_replicate::{Memory, MemoryUsage, PeerAccess};
use flatbed_service::{Accounts, Standing};
use tokio::io::DuplexStream;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::follow::Origins;
use crate::job_budget::{FILTERS_KB_MAX, JobBudget, USER_FILTERS_KB_MAX};
use crate::seats::SeatLimits;

pub use crate::description::Description;
pub use crate::follow::FollowedDocument;
pub use crate::owner::Owner;
pub use crate::replication::{Origin, Replication, RowExtent};
pub use flatbed_outward::{AllowedAddresses, AllowedError, Network, Resolve, Tls, TlsError};
pub use flatbed_replicate::{Error, Outcome, Progress, Spec, SpecDefaults};

/// The name of the node in answers, where CouchDB names a node of its cluster.
pub const NODE: &str = "flatbed@localhost";

/// The longest specification in bytes, a body or a document. It bounds the memory of each job.
pub const SPEC_BYTES_MAX: usize = 1 << 20;

/// The most documents that are parsed at once.
const TREES_MAX: usize = 2;

/// The time that replications have for their last checkpoint when the server stops.
const STOP_MAX: Duration = Duration::from_secs(5);

/// One of this many seats is reserved for administrators.
const ADMINS_PART: usize = 5;

/// Returns the seats for jobs of users who are not administrators.
fn users_jobs_max(jobs_max: usize) -> usize {
    jobs_max - jobs_max / ADMINS_PART
}

fn seat_limits(jobs_max: usize, user_jobs_max: usize, turn: Duration) -> SeatLimits {
    let users_jobs_max = users_jobs_max(jobs_max);
    let (filters_kb_max, user_filters_kb_max) = (FILTERS_KB_MAX, USER_FILTERS_KB_MAX);
    SeatLimits { jobs_max, users_jobs_max, user_jobs_max, filters_kb_max, user_filters_kb_max, turn }
}

/// The settings of a replicator.
#[derive(Debug, Clone)]
pub struct ReplicatorOptions {
    /// The pause after the first failure, doubled after each further one, up to 8 hours.
    pub first_pause: Duration,
    /// The lease time: a server that does not renew its lease on a replication for this long loses it to another.
    pub lease: Duration,
    /// The most replications that run, or wait for a retry, in this server.
    pub jobs_max: usize,
    /// The same limit for one user who is not an administrator.
    pub user_jobs_max: usize,
    /// The time for which a document's running replication keeps its seat when other owners wait for one.
    pub turn: Duration,
    /// The most unfinished documents of `_replicator` of a user who is not an administrator, including waiting ones.
    /// Further ones fail.
    pub user_documents_max: usize,
    /// The memory for answers of peers of all replications, in bytes; at least [`Memory::BYTES_MIN`].
    pub memory_bytes: usize,
    /// The trusted authorities for `https://`.
    pub tls: Tls,
    /// The resolution of host names.
    pub network: Network,
    /// The internal addresses that replications of users may reach; those of administrators may reach everything.
    pub allowed: Arc<AllowedAddresses>,
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

/// The longest pause, as in CouchDB.
const PAUSE_MAX: Duration = Duration::from_secs(8 * 3_600);

/// The time that a replication has for its last checkpoint when it must end. Its requests have shorter timeouts.
const GRACE: Duration = Duration::from_secs(600);

/// Makes connections to this server with the rights of an owner.
pub type Connect = Arc<dyn Fn(&Owner) -> DuplexStream + Send + Sync>;

/// The reason why `POST /_replicate` does not begin or end a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReplicateRefusal {
    /// A limit of jobs or filters is reached.
    #[error("Too many replications run at once")]
    NoRoom,
    /// The job belongs to another owner.
    #[error("You are not a server admin.")]
    Others,
    /// The job does not exist.
    #[error("no such replication")]
    Missing,
}

type FollowedMap = HashMap<Arc<str>, HashMap<String, Arc<FollowedDocument>>>;

/// All replications of one server.
pub struct Replicator {
    pub(crate) layer: Layer,
    /// The actor that writes outcomes into documents.
    actor: ServerActor,
    pub(crate) options: ReplicatorOptions,
    connect: Connect,
    memory: Memory,
    pub(crate) accounts: Arc<Accounts>,
    /// The jobs of `POST /_replicate`, by id.
    jobs: Mutex<HashMap<String, Arc<Replication>>>,
    /// The jobs of documents, whichever server runs them.
    followed: Mutex<FollowedMap>,
    /// The owner of this process's leases.
    pub(crate) owner: Process,
    pub(crate) budget: JobBudget,
    /// Permits for [`TREES_MAX`] parsed documents.
    pub(crate) trees: Semaphore,
    /// The state of the task that follows `_replicator`.
    pub(crate) supervisor: Status,
}

impl Replicator {
    /// Returns the options of specifications that do not name them, by the current settings.
    pub fn spec_defaults(&self) -> SpecDefaults {
        let settings = self.accounts.settings();
        SpecDefaults {
            checkpoint_interval: Duration::from_millis(settings.replication.checkpoint_interval_ms),
            use_checkpoints: settings.replication.use_checkpoints,
        }
    }

    /// Creates a replicator that runs nothing yet. `actor` writes outcomes into documents. `connect` makes connections
    /// to this server.
    pub fn new(
        layer: Layer,
        actor: ServerActor,
        options: ReplicatorOptions,
        accounts: Arc<Accounts>,
        connect: Connect,
    ) -> Arc<Replicator> {
        let mut owner = [0; 16];
        if getrandom::fill(&mut owner).is_err() {
            // Without randomness the rest of the server does not work either, but leases must differ all the same.
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

    pub(crate) fn clock(&self) -> &Clock {
        self.layer.clock()
    }

    /// Returns the connections to peers with the rights of an owner.
    pub(crate) fn ways(&self, owner: &Owner, is_admin: bool) -> PeerAccess {
        let memory = self.memory.of_owner((!is_admin).then(|| owner.name().unwrap_or_default()));
        let (connect, owner) = (self.connect.clone(), owner.clone());
        let network = &self.options.network;
        let network = if is_admin { network.clone() } else { network.bounded(self.options.allowed.clone()) };
        let local = Arc::new(move || connect(&owner));
        let (tls, clock) = (self.options.tls.clone(), self.clock().clone());
        PeerAccess { local, network, tls, memory, clock }
    }

    /// Starts to follow `_replicator` and the other replicator databases. Pass the task to [`Replicator::stop`].
    pub fn start(self: &Arc<Self>) -> JoinHandle<()> {
        tokio::spawn(supervisor::run(self.clone()))
    }

    pub(crate) fn reader(&self, name: &str) -> Reader {
        self.layer.reader(name)
    }

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

    /// Returns whether the database still exists with the same incarnation.
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

    pub(crate) fn followed(&self) -> Vec<Arc<FollowedDocument>> {
        self.followed_map().values().flat_map(HashMap::values).cloned().collect()
    }

    pub(crate) fn followed_in(&self, database: &str) -> Vec<Arc<FollowedDocument>> {
        self.followed_map().get(database).into_iter().flat_map(HashMap::values).cloned().collect()
    }

    /// Returns the job of a document in a replicator database, whichever server runs it; `None` if the document is not
    /// followed.
    pub fn followed_by(&self, database: &str, id: &str) -> Option<Arc<FollowedDocument>> {
        self.followed_map().get(database)?.get(id).cloned()
    }

    /// Returns the number of unfinished documents of a user in all databases, without this one.
    fn documents_of(&self, user: &str, database: &str, id: &str) -> usize {
        let all = self.followed_map();
        let others = all.values().flat_map(HashMap::values).filter(|followed| {
            (followed.database(), followed.id.as_str()) != (database, id) && followed.job.user.as_deref() == Some(user)
        });
        others.filter(|followed| !followed.job.status.has_ended()).count()
    }

    fn follow(self: &Arc<Self>, followed: Arc<FollowedDocument>, before: Option<Arc<FollowedDocument>>) {
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

    /// Returns all jobs that run or wait for a retry in this server.
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
            tracing::warn!("replications did not end in time; they resume from their last checkpoints");
        }
    }

    /// Returns the use of memory for answers of peers: texts, trees, and pages of changes.
    pub fn memory_usage(&self) -> [MemoryUsage; 3] {
        self.memory.usage()
    }

    fn jobs(&self) -> MutexGuard<'_, HashMap<String, Arc<Replication>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the jobs of `POST /_replicate`, sorted by id.
    pub(crate) fn all(&self) -> Vec<Arc<Replication>> {
        let mut jobs: Vec<_> = self.jobs().values().cloned().collect();
        jobs.sort_by(|a, b| a.id.cmp(&b.id));
        jobs
    }

    /// Returns the job of the replication that `standing` requests: an existing or a new one.
    ///
    /// # Errors
    /// [`ReplicateRefusal`]: the job belongs to another owner, or a limit is reached.
    pub fn begin(self: &Arc<Self>, mut spec: Spec, standing: &Standing) -> Result<Arc<Replication>, ReplicateRefusal> {
        let owner = Owner::of(standing);
        spec.owner = user_of(standing);
        let id = spec.job_id(self.layer.uuid());
        let mut jobs = self.jobs();
        if let Some(job) = jobs.get(&id).filter(|job| !job.status.has_ended()) {
            return if job.is_of(standing) { Ok(job.clone()) } else { Err(ReplicateRefusal::Others) };
        }
        let permit = self.budget.take(spec.filter_bytes(), spec.owner.as_deref(), self.clock().now());
        let permit = permit.ok_or(ReplicateRefusal::NoRoom)?;
        let job = Replication::new(id.clone(), &spec, owner, None, self.clock());
        jobs.insert(id.clone(), job.clone());
        drop(jobs);
        let (replicator, running) = (self.clone(), job.clone());
        tokio::spawn(async move {
            let asked =
                RequestedReplication { job: running.clone(), spec: Arc::new(spec), replicator: replicator.clone() };
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

    /// Ends a job of `POST /_replicate` and returns its id. The suffix that CouchDB appends to an id may be omitted.
    ///
    /// # Errors
    /// [`ReplicateRefusal`]: the job does not exist, or belongs to another owner.
    pub async fn cancel(&self, id: &str, standing: &Standing) -> Result<String, ReplicateRefusal> {
        let found = self.jobs().values().find(|job| job.id == id || job.id.split('+').next() == Some(id)).cloned();
        let job = found.ok_or(ReplicateRefusal::Missing)?;
        if !job.is_of(standing) {
            return Err(ReplicateRefusal::Others);
        }
        job.status.stop();
        let _ = job.ended().await;
        Ok(job.id.clone())
    }

    /// Ends the requesting user's job of `POST /_replicate` for this replication and returns its id.
    ///
    /// # Errors
    /// As [`Replicator::cancel`].
    pub async fn cancel_like(&self, mut spec: Spec, standing: &Standing) -> Result<String, ReplicateRefusal> {
        spec.owner = user_of(standing);
        self.cancel(&spec.id(self.layer.uuid()), standing).await
    }
}

/// Returns the user whose limits apply; `None` for an administrator.
fn user_of(standing: &Standing) -> Option<String> {
    let principal = standing.principal();
    (!principal.is_admin).then(|| principal.name.clone().unwrap_or_default())
}

/// A replication of `POST /_replicate`: once, or for a continuous one until it is stopped.
struct RequestedReplication {
    job: Arc<Replication>,
    spec: Arc<Spec>,
    replicator: Arc<Replicator>,
}

#[async_trait]
impl Job for RequestedReplication {
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
        // A deleted owner cannot cancel it, so it gives up its seat.
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
