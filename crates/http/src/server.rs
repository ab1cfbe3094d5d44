//! Listening, connections and their limits, and the end of it all.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use flatbed_metrics::{Family, Label};
use flatbed_network::Blocks;
use hyper::header::HeaderValue;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::answer::RequestIds;
use crate::body_memory::BodyMemory;
use crate::connection::{self, Accepted};
use crate::cors::Cors;
use crate::doorway::Doorway;
use crate::inside::{self, Inside};
use crate::limits::{Admission, Limits};
use crate::listen::{Listen, Listener};
use crate::metrics::{Requests, Traffic, Usage};
use crate::outlet::Outlets;
use crate::proxied::Proxies;
use crate::reply::STALL_MAX;
use crate::surface::Surface;
use crate::tracked::ContinueTrace;
use crate::turns::Turns;

/// How a server is set up, whatever it serves.
#[derive(Debug, Clone)]
pub struct ShellOptions {
    /// For browsers.
    pub cors: Cors,
    /// The header `server` of all answers, such as `Flatbed/1.0`.
    pub server: String,
    /// The largest body of a request, inflated, in bytes.
    pub body_bytes_max: usize,
    /// Memory for all requests' bodies that are being read and worked on, in bytes; answers may take three quarters as much
    /// again.
    pub body_memory_bytes: usize,
    /// The largest document that a page of an answer may have, in bytes.
    pub document_bytes_max: usize,
    /// Connections at once. For further ones some are closed on which nothing is asked for; where there are none, they wait
    /// to be accepted.
    pub connections_max: usize,
    /// What one client may have and ask for, to begin with: [`Shell::set_limits`] changes it.
    pub limits: Limits,
    /// Clients that are not bounded by address.
    pub unlimited: Blocks,
    /// Who says whom they speak for.
    pub proxies: Proxies,
    /// How long requests under way may take to end when the server stops.
    pub drain: Duration,
    /// A connection whose client takes nothing of what is sent for this long is closed.
    pub stall_max: Duration,
    /// How a request's trace is made part of one that began elsewhere, by whoever takes the spans with the target
    /// [`TRACE_TARGET`](crate::TRACE_TARGET).
    pub continue_trace: Option<ContinueTrace>,
}

impl Default for ShellOptions {
    fn default() -> Self {
        ShellOptions {
            cors: Cors::default(),
            server: "Flatbed".to_owned(),
            body_bytes_max: 64 * 1024 * 1024,
            body_memory_bytes: 512 * 1024 * 1024,
            document_bytes_max: 8_000_000,
            connections_max: 20_000,
            limits: Limits::default(),
            unlimited: this_machine(),
            proxies: Proxies::default(),
            drain: Duration::from_secs(10),
            stall_max: STALL_MAX,
            continue_trace: None,
        }
    }
}

/// Why a server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Without an administrator only this machine may connect.
    #[error(
        "no administrator is set, so everyone would be one: set [admins] in the configuration, or listen on 127.0.0.1 instead of {0}"
    )]
    Exposed(SocketAddr),
    /// The system refused the address.
    #[error("cannot listen on {listen}: {source}")]
    Listen {
        /// Which one.
        listen: Listen,
        /// Why.
        source: std::io::Error,
    },
}

/// What the requests of one server share, whatever it serves: bounds, and what is counted by the labels `L`.
#[derive(Debug)]
pub struct Shell<L> {
    cors: RwLock<Arc<Cors>>,
    pub(crate) server_header: HeaderValue,
    pub(crate) memory: BodyMemory,
    pub(crate) outlets: Arc<Outlets>,
    pub(crate) requests: Requests<L>,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) request_ids: RequestIds,
    pub(crate) stall_max: Duration,
    pub(crate) continue_trace: Option<ContinueTrace>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) doorway: Arc<Doorway>,
    pub(crate) greetings: Arc<Turns>,
    pub(crate) proxies: Proxies,
    connections_max: usize,
    drain: Duration,
}

impl<L: Label> Shell<L> {
    /// One that nothing is served in yet.
    pub fn new(options: ShellOptions) -> Arc<Shell<L>> {
        let traffic: Arc<Traffic> = Arc::default();
        Arc::new(Shell {
            cors: RwLock::new(Arc::new(options.cors)),
            server_header: HeaderValue::from_str(&options.server).unwrap_or(HeaderValue::from_static("Flatbed")),
            memory: BodyMemory::new(options.body_memory_bytes, options.body_bytes_max),
            outlets: Outlets::new(options.body_memory_bytes / 4 * 3, options.document_bytes_max),
            requests: Requests::new(),
            admission: Admission::new(options.limits, options.unlimited, traffic.clone()),
            doorway: Doorway::new(traffic.clone()),
            // Half of the processors at most.
            greetings: Turns::new(processors().div_ceil(2), options.connections_max),
            proxies: options.proxies,
            traffic,
            request_ids: RequestIds::default(),
            stall_max: options.stall_max,
            continue_trace: options.continue_trace,
            connections_max: options.connections_max,
            drain: options.drain,
        })
    }

    /// Which pages of other origins may call.
    pub fn cors(&self) -> Arc<Cors> {
        self.cors.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on pages of these origins may call.
    pub fn set_cors(&self, cors: Cors) {
        *self.cors.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(cors);
    }

    /// From now on clients are bounded like this; connections that are there keep the times that they have begun with.
    pub fn set_limits(&self, limits: Limits) {
        self.admission.set_limits(limits);
    }

    /// How clients are bounded now.
    pub fn limits(&self) -> Limits {
        self.admission.limits()
    }

    /// What it has counted.
    pub fn families(&self) -> Vec<Family> {
        let mut families = Vec::from(self.requests.families());
        families.extend(self.traffic.families());
        families
    }

    /// The memory that requests' bodies and answers hold, by its parts' names in metrics.
    pub fn memory(&self) -> [(&'static str, Usage); 5] {
        let [texts, trees, uploads] = self.memory.usage();
        [
            ("request_text", texts),
            ("request_tree", trees),
            ("request_upload", uploads),
            ("answer_page", self.outlets.page_usage()),
            ("answer_unsent", self.outlets.piece_usage()),
        ]
    }
}

/// Loopback addresses, and sockets of the file system.
fn this_machine() -> Blocks {
    "127.0.0.0/8,::1,unix".parse().unwrap_or_default()
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A surface in its shell.
pub(crate) struct Served<S: Surface> {
    pub(crate) shell: Arc<Shell<S::Label>>,
    pub(crate) surface: Arc<S>,
}

/// A server that listens already.
pub struct Server<S: Surface> {
    listeners: Vec<Arc<Listener>>,
    inside: Inside,
    served: Arc<Served<S>>,
    connections: Arc<Semaphore>,
    connections_max: u32,
}

impl<S: Surface> Server<S> {
    /// Takes the addresses. What connects from within this process arrives `inside`.
    ///
    /// # Errors
    /// [`BindError`].
    pub async fn bind(
        listen: &[Listen],
        shell: Arc<Shell<S::Label>>,
        surface: S,
        inside: Inside,
    ) -> Result<Self, BindError> {
        let served = Arc::new(Served { shell, surface: Arc::new(surface) });
        if served.surface.is_open()
            && let Some(exposed) = listen.iter().filter_map(exposed).next()
        {
            return Err(BindError::Exposed(exposed));
        }
        let mut listeners = Vec::new();
        for listen in listen {
            let bound = Listener::bind(listen).await;
            listeners.push(Arc::new(bound.map_err(|source| BindError::Listen { listen: listen.clone(), source })?));
        }
        let connections_max = u32::try_from(served.shell.connections_max).unwrap_or(u32::MAX);
        let connections = Arc::new(Semaphore::new(connections_max as usize));
        Ok(Server { listeners, inside, served, connections, connections_max })
    }

    /// The addresses taken.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.address()).collect()
    }

    /// Where it listens, with the ports that were found.
    pub fn listening(&self) -> Vec<Listen> {
        self.listeners.iter().map(|listener| listener.listen.clone()).collect()
    }

    /// Serves until `shutdown` resolves; then takes no further connection, waits for `beside`, and lets requests under way
    /// end. `beside` ends what works with this server on its own account and needs it for that, such as replications, and
    /// what answers wait for without an end, such as feeds; it is not polled before.
    pub async fn serve(self, shutdown: impl Future<Output = ()>, beside: impl Future<Output = ()>) {
        let shell = self.served.shell.clone();
        tokio::spawn(inside::serve(self.inside, Arc::downgrade(&self.served)));
        let (accepting, _) = tokio::sync::watch::channel(true);
        let graceful = Arc::new(GracefulShutdown::new());
        let mut tasks = Vec::new();
        // These are dropped with it.
        let mut beside_them = tokio::task::JoinSet::new();
        let doorway = shell.doorway.clone();
        beside_them.spawn(async move { doorway.watch().await });
        for tls in self.listeners.iter().filter_map(|listener| listener.tls().cloned()) {
            beside_them.spawn(async move { tls.follow().await });
        }
        for listener in self.listeners {
            let accept = accept(
                listener,
                self.served.clone(),
                self.connections.clone(),
                graceful.clone(),
                accepting.subscribe(),
            );
            tasks.push(tokio::spawn(accept));
        }
        tokio::select! {
            () = shutdown => {}
            () = shell.outlets.watch(shell.stall_max) => {}
        }
        accepting.send_replace(false);
        for task in tasks {
            let _ = task.await;
        }
        beside.await;
        let ended = async {
            if let Some(graceful) = Arc::into_inner(graceful) {
                graceful.shutdown().await;
            }
            // Connections that speak another protocol by now are no longer waited for above.
            let _ = self.connections.acquire_many(self.connections_max).await;
        };
        let ended = tokio::time::timeout(shell.drain, async {
            tokio::select! {
                () = ended => {}
                () = shell.outlets.watch(shell.stall_max) => {}
            }
        });
        if ended.await.is_err() {
            tracing::warn!("connections were still busy when the time to end was over");
        }
    }
}

/// The address, if others than this machine can connect to it.
fn exposed(listen: &Listen) -> Option<SocketAddr> {
    match listen {
        Listen::Http(address) | Listen::Https(address, _) => {
            Some(*address).filter(|address| !address.ip().is_loopback())
        }
        Listen::Unix(..) => None,
    }
}

async fn accept<S: Surface>(
    listener: Arc<Listener>,
    served: Arc<Served<S>>,
    connections: Arc<Semaphore>,
    graceful: Arc<GracefulShutdown>,
    mut accepting: tokio::sync::watch::Receiver<bool>,
) {
    loop {
        let next = async {
            let permit = match connections.clone().try_acquire_owned() {
                Ok(permit) => Some(permit),
                Err(_) => room(&served, &connections).await,
            };
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            next = next => next,
            _ = accepting.wait_for(|accepting| !*accepting) => return,
        };
        let (transport, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, for one: others must end first.
                tracing::warn!(%error, "a connection could not be accepted");
                served.shell.doorway.make_room();
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let accepted = Accepted { transport, address, listener: listener.clone(), permit };
        tokio::spawn(connection::serve(served.clone(), accepted, graceful.watcher(), accepting.clone()));
    }
}

/// Has connections closed that are of no use to anybody, until there is room for another one.
async fn room<S: Surface>(served: &Served<S>, connections: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    loop {
        served.shell.doorway.make_room();
        let permit = connections.clone().acquire_owned();
        if let Ok(permit) = tokio::time::timeout(Duration::from_millis(100), permit).await {
            // The semaphore is never closed.
            return permit.ok();
        }
    }
}
