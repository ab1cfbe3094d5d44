//! Runs the jobs of the changes worker: documents of `_worker`, shared between the processes of one storage by leases,
//! and the queue of documents that targets refused.
//!
//! This crate uses the layer for leases and for changes, and reads and writes documents through CouchDB's API, over
//! connections passed to it. `flatbed-worker` does the work of a job.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod api;
mod board;
mod dlq;
mod entries;
mod follow;
mod home;
mod leases;
mod metrics;
mod scripts;
mod store;
mod work;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flatbed_client::Url;
use flatbed_clock::Clock;
use flatbed_javascript::Runner;
use flatbed_jobs::{Backoff, LeaseBatch, Owner, Status};
use flatbed_layer::{Layer, ServerActor};
use flatbed_outward::{Network, Tls, connect, secure};
use flatbed_worker::connect::{Local, Reach, Secrets};
use flatbed_worker::memory::Memory;
use flatbed_worker::output::lines::turns::Turns;
use flatbed_worker::peer::{Addresses, Dial, Secure, Stream};
use flatbed_worker::script::Scripts;
use flatbed_worker::secret::Secret;
use tokio::io::DuplexStream;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::home::Home;
use crate::metrics::Metrics;

pub use api::{ApiError, Refusal};
pub use dlq::{EntryOrder, Export, PageRequest};
pub use store::{Filter, Store, StoreError};
pub use work::{FollowedJob, HaltReason, JobReport};

/// The time that jobs have to end when the server stops.
const STOP_MAX: Duration = Duration::from_secs(8);

/// Checks that a document of `_worker` may be written under an id.
///
/// # Errors
/// The reason, without the values of members that may be secrets.
pub fn check_document(id: &str, text: &[u8]) -> Result<(), String> {
    flatbed_worker::documents::check(id, text).map_err(|error| error.to_string())
}

/// Makes a connection to this server, as an administrator.
pub type Connect = Arc<dyn Fn() -> DuplexStream + Send + Sync>;

/// The remote server that holds the jobs of a process without a storage.
#[derive(Debug, Clone)]
pub struct Server {
    /// Its URL, including a path prefix.
    pub url: Url,
    /// An administrator's name and password. `None`: the server needs no sign-in.
    pub account: Option<(String, Secret)>,
}

/// The settings of a dispatcher.
#[derive(Clone)]
pub struct DispatcherOptions {
    /// The most jobs that run at once in this process.
    pub jobs_max: usize,
    /// The lease time: a process that does not renew its lease on a job for this long loses it to another.
    pub lease: Duration,
    /// The pauses before a job that could not begin is retried.
    pub backoff: Backoff,
    /// The memory budget of all jobs.
    pub memory: Memory,
    /// The places of secrets and files, and the reachable servers. With a storage, the layer's clock replaces its
    /// clock.
    pub reach: Reach,
    /// The runner of functions. `None`: jobs whose mapping has a function are broken.
    pub scripts: Option<Scripts>,
}

impl DispatcherOptions {
    /// Creates settings for jobs in this process's storage. `connect` connects to this server; `network` and `tls`
    /// define the other servers that may be reached and the trusted authorities.
    pub fn new(
        secrets: Secrets,
        files: Option<std::path::PathBuf>,
        network: Network,
        tls: Tls,
        connect: Connect,
    ) -> Self {
        let local = Local::new("http://localhost".to_owned(), None, inward(connect));
        DispatcherOptions::of(reach(secrets, files, network, tls, local))
    }

    /// Creates settings for a process whose jobs lie at a remote server, which may be reached regardless of `network`.
    /// That server defines the lease time.
    pub fn for_remote_server(
        secrets: Secrets,
        files: Option<std::path::PathBuf>,
        network: Network,
        tls: Tls,
        server: &Server,
    ) -> Self {
        let dial = outward(Network::default(), tls.clone());
        let local = Local::new(server.url.to_string(), server.account.clone(), dial);
        DispatcherOptions::of(reach(secrets, files, network, tls, local))
    }

    fn of(reach: Reach) -> Self {
        let backoff = Backoff { first: Duration::from_secs(1), max: Duration::from_secs(60) };
        DispatcherOptions {
            jobs_max: 100,
            lease: Duration::from_secs(15),
            backoff,
            memory: Memory::default(),
            reach,
            scripts: None,
        }
    }

    /// Runs functions of mappings in the server's JavaScript processes.
    #[must_use]
    pub fn with_functions(self, runner: Runner) -> Self {
        DispatcherOptions { scripts: Some(scripts::scripts(runner)), ..self }
    }
}

fn reach(secrets: Secrets, files: Option<std::path::PathBuf>, network: Network, tls: Tls, local: Local) -> Reach {
    let dial = outward(network.clone(), tls.clone());
    let (addresses, authorities) = (judged(network), tls.authorities());
    let turns = Turns::default();
    let (secure, local, clock) = (over(tls), Some(local), Clock::system());
    Reach { secrets, files, turns, dial, secure, addresses, authorities, local, clock }
}

fn outward(network: Network, tls: Tls) -> Dial {
    Arc::new(move |url: &Url| {
        let (url, network, tls) = (url.clone(), network.clone(), tls.clone());
        Box::pin(async move { connect(&url, &network, &tls).await.map_err(|error| error.to_string()) })
    })
}

fn over(tls: Tls) -> Secure {
    Arc::new(move |host: String, stream: Box<dyn Stream>| {
        let tls = tls.clone();
        Box::pin(async move {
            let stream = secure(&host, stream, &tls).await.map_err(|error| error.to_string())?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    })
}

fn judged(network: Network) -> Addresses {
    Arc::new(move |url: &Url| {
        let (url, network) = (url.clone(), network.clone());
        Box::pin(async move {
            let found = network.addresses(&url).await.map_err(|error| error.to_string())?;
            Ok(found.into_iter().map(|address| address.ip()).collect())
        })
    })
}

fn inward(connect: Connect) -> Dial {
    Arc::new(move |_: &Url| {
        let stream = connect();
        Box::pin(async move { Ok(Box::new(stream) as Box<dyn Stream>) })
    })
}

/// The jobs of one process.
pub struct Dispatcher {
    home: Home,
    /// Takes leases for the jobs of this process and renews them together.
    leases: Arc<LeaseBatch<Home>>,
    options: DispatcherOptions,
    lease_ms: AtomicU64,
    store: Store,
    /// Enabled jobs by id, whichever process runs them.
    jobs: Mutex<HashMap<String, Arc<FollowedJob>>>,
    /// Stopped jobs that may still run, by id. Their successors wait for them.
    leaving: Mutex<HashMap<String, Arc<FollowedJob>>>,
    owner: Owner,
    rooms: Arc<Semaphore>,
    metrics: Arc<Metrics>,
    /// The state of the task that follows `_worker`.
    follower: Status,
}

impl Dispatcher {
    /// Creates a dispatcher that runs no jobs yet.
    ///
    /// # Errors
    /// [`StoreError::Address`].
    pub fn new(layer: Layer, actor: ServerActor, options: DispatcherOptions) -> Result<Arc<Dispatcher>, StoreError> {
        let reach = Reach { clock: layer.clock().clone(), ..options.reach };
        Dispatcher::at(|_| Home::Here { layer, actor }, DispatcherOptions { reach, ..options })
    }

    /// Creates a dispatcher without a storage: the server of [`DispatcherOptions::for_remote_server`] stores its jobs.
    /// Runs no jobs yet.
    ///
    /// # Errors
    /// [`StoreError::Address`].
    pub fn for_remote_server(options: DispatcherOptions) -> Result<Arc<Dispatcher>, StoreError> {
        let time_max = options.lease;
        Dispatcher::at(|store| Home::There { store, time_max }, options)
    }

    fn at(home: impl FnOnce(Store) -> Home, options: DispatcherOptions) -> Result<Arc<Dispatcher>, StoreError> {
        let mut owner = [0; 16];
        if getrandom::fill(&mut owner).is_err() {
            owner = u128::from(std::process::id()).to_le_bytes();
        }
        let nowhere = StoreError::Address("there is no way to this server".to_owned());
        let store = Store::new(options.reach.local.as_ref().ok_or(nowhere)?, &options.reach.clock)?;
        let home = home(store.clone());
        let lease_ms = AtomicU64::new(u64::try_from(options.lease.as_millis()).unwrap_or(u64::MAX));
        let rooms = Arc::new(Semaphore::new(options.jobs_max.min(Semaphore::MAX_PERMITS)));
        let (jobs, leaving, metrics) = (Mutex::default(), Mutex::default(), Arc::default());
        let follower = Status::new(&options.reach.clock);
        let leases = Arc::new(LeaseBatch::new(home.clone(), &options.reach.clock));
        Ok(Arc::new(Dispatcher {
            home,
            leases,
            options,
            lease_ms,
            store,
            jobs,
            leaving,
            owner,
            rooms,
            metrics,
            follower,
        }))
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.options.reach.clock
    }

    /// Starts to follow `_worker`. Pass the task to [`Dispatcher::stop`].
    pub fn start(self: &Arc<Self>) -> JoinHandle<()> {
        tokio::spawn(follow::run(self.clone()))
    }

    /// Ends all jobs, each after its current batch.
    pub async fn stop(&self, follower: JoinHandle<()>) {
        self.follower.stop();
        if self.clock().timeout(STOP_MAX, follower).await.is_err() {
            tracing::warn!("jobs of the worker did not end in time; they resume from their last checkpoints");
        }
    }

    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms.load(Ordering::Relaxed))
    }

    /// Returns the display name of this process.
    pub fn node(&self) -> String {
        self.owner.iter().take(4).fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
    }

    fn map(&self) -> MutexGuard<'_, HashMap<String, Arc<FollowedJob>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn followed(&self) -> Vec<Arc<FollowedJob>> {
        self.map().values().cloned().collect()
    }

    fn leaving(&self) -> MutexGuard<'_, HashMap<String, Arc<FollowedJob>>> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a job once its predecessor with the same id has ended: both use the lease of this process.
    fn follow(self: &Arc<Self>, id: String, followed: Arc<FollowedJob>) {
        let before = self.leaving().get(&id).cloned();
        self.map().insert(id, followed.clone());
        tokio::spawn(followed.run(self.clone(), before));
    }

    fn unfollow(&self, id: &str) {
        if let Some(followed) = self.map().remove(id) {
            self.leaving().insert(id.to_owned(), followed.clone());
            followed.status.stop();
            self.left(&followed);
            let (progress, metrics) = (&followed.progress, &self.metrics);
            metrics.add(progress);
        }
    }

    /// Forgets a job that has ended, so that no successor waits for it.
    pub(crate) fn left(&self, followed: &Arc<FollowedJob>) {
        if followed.status.has_ended() {
            let mut leaving = self.leaving();
            let id = &followed.description.id;
            if leaving.get(id).is_some_and(|last| Arc::ptr_eq(last, followed)) {
                leaving.remove(id);
            }
        }
    }
}
