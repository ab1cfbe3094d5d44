//! Listeners, connections and their limits, and shutdown.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use flatbed_metrics::{Family, Label};
use flatbed_network::Blocks;
use hyper::header::HeaderValue;
use hyper_util::server::graceful::GracefulShutdown;

use crate::answer::RequestIds;
use crate::body_memory::BodyMemory;
use crate::connection::{self, AcceptedConnection};
use crate::cors::Cors;
use crate::doorway::Doorway;
use crate::following::{AnonymousFeed, Followers};
use crate::inside::{self, InsideListener};
use crate::limits::{Admission, Limits, who};
use crate::listen::{Listen, Listener};
use crate::metrics::{Bound, Requests, Traffic, Usage};
use crate::mount::{Mount, MountPoint};
use crate::outlet::Outlets;
use crate::peer::Peer;
use crate::places::{PlaceGrant, Places};
use crate::proxied::Proxies;
use crate::rejection::Rejection;
use crate::reply::{ROOM_MAX, STALL_MAX};
use crate::surface::Surface;
use crate::tracked::{self, ContinueTrace};
use crate::turns::Turns;

/// The number of connections closed at once when the system has no resources for more, and the pause after it.
const ROOM_AT_ONCE: usize = 64;
const LACK_PAUSE: Duration = Duration::from_millis(5);

/// The options of a server, independent of its surface.
#[derive(Debug, Clone)]
pub struct ShellOptions {
    /// The CORS settings.
    pub cors: Cors,
    /// The header `server` of all answers, such as `Flatbed/1.0`.
    pub server: String,
    /// The largest body of a request, inflated, in bytes.
    pub body_bytes_max: usize,
    /// The memory for request bodies that are read or processed, in bytes; answers may use three quarters as much in
    /// addition.
    pub body_memory_bytes: usize,
    /// The largest document that a page of an answer may have, in bytes.
    pub document_bytes_max: usize,
    /// The most connections, a few of them reserved for unlimited clients. Beyond it unfinished and idle connections
    /// and those with slow request bodies are closed; if there are none, new ones wait for a place.
    pub connections_max: usize,
    /// The limits of clients at the start; [`Shell::set_limits`] changes them.
    pub limits: Limits,
    /// Clients without limits by address.
    pub unlimited: Blocks,
    /// The trusted proxies.
    pub proxies: Proxies,
    /// The longest time for running requests to end at shutdown.
    pub drain: Duration,
    /// A connection is closed if its client reads nothing for this long.
    pub stall_max: Duration,
    /// A request whose client has ended its side of the connection ends if nothing is sent for this long.
    pub half_closed_max: Duration,
    /// An answer is refused if it waits this long for memory.
    pub room_max: Duration,
    /// Connects a request's trace to its remote parent, for collectors of spans with the target
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
            half_closed_max: Duration::from_secs(2),
            room_max: ROOM_MAX,
            continue_trace: None,
        }
    }
}

/// The error of a server that cannot listen.
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
        /// The address.
        listen: Listen,
        /// The system's error.
        source: io::Error,
    },
}

/// The shared state of a server's requests: limits and metrics by the labels `L`.
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
    pub(crate) half_closed_max: Duration,
    pub(crate) continue_trace: Option<ContinueTrace>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) doorway: Arc<Doorway>,
    followers: Arc<Followers>,
    pub(crate) greetings: Arc<Turns>,
    pub(crate) proxies: Proxies,
    connections_max: usize,
    drain: Duration,
}

impl<L: Label> Shell<L> {
    /// Returns a shell without a surface.
    pub fn new(options: ShellOptions) -> Arc<Shell<L>> {
        let traffic: Arc<Traffic> = Arc::default();
        Arc::new(Shell {
            cors: RwLock::new(Arc::new(options.cors)),
            server_header: HeaderValue::from_str(&options.server).unwrap_or(HeaderValue::from_static("Flatbed")),
            memory: BodyMemory::new(options.body_memory_bytes, options.body_bytes_max),
            outlets: Outlets::new(
                options.body_memory_bytes / 4 * 3,
                options.document_bytes_max,
                options.room_max,
                traffic.clone(),
            ),
            requests: Requests::new(),
            admission: Admission::new(options.limits, options.unlimited, traffic.clone()),
            followers: Followers::new(traffic.clone()),
            doorway: Doorway::new(options.connections_max, traffic.clone()),
            // At most half of the processors.
            greetings: Turns::new(processors().div_ceil(2), options.connections_max),
            proxies: options.proxies,
            traffic,
            request_ids: RequestIds::default(),
            stall_max: options.stall_max,
            half_closed_max: options.half_closed_max,
            continue_trace: options.continue_trace,
            connections_max: options.connections_max,
            drain: options.drain,
        })
    }

    /// Returns the CORS settings.
    pub fn cors(&self) -> Arc<Cors> {
        self.cors.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the CORS settings.
    pub fn set_cors(&self, cors: Cors) {
        *self.cors.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(cors);
    }

    /// Replaces the limits. Open connections keep their timeouts.
    pub fn set_limits(&self, limits: Limits) {
        self.admission.set_limits(limits);
    }

    /// Bounds later request bodies, in bytes, at most to [`ShellOptions::body_bytes_max`].
    pub fn bound_bodies(&self, bytes: usize) {
        self.memory.bound_bodies(bytes);
    }

    /// Returns the current limits.
    pub fn limits(&self) -> Limits {
        self.admission.limits()
    }

    /// Returns true if limits by address apply to a connection: not to that of a proxy for many clients.
    pub(crate) fn bounds(&self, peer: &Peer) -> bool {
        self.admission.bounds(peer) && !self.is_proxy(peer)
    }

    pub(crate) fn is_reserved_for(&self, peer: &Peer) -> bool {
        !self.admission.bounds(peer) && !self.is_proxy(peer)
    }

    fn is_proxy(&self, peer: &Peer) -> bool {
        self.proxies.begins(peer) || self.proxies.forwards(peer)
    }

    /// Registers the current request as a feed, which may last as long as its client likes. Returns `None` if the
    /// feed is not limited, for example because its client is authenticated. Otherwise the feed must end when it
    /// [gives way](AnonymousFeed::gives_way).
    ///
    /// # Errors
    /// 429 if too many feeds are anonymous, most of them from the same address.
    pub fn follow(&self, client: Option<IpAddr>, has_name: bool) -> Result<Option<AnonymousFeed>, Rejection> {
        let peer = Peer { address: client.map(|client| SocketAddr::new(client, 0)), is_secure: false };
        if let Some(outlet) = tracked::outlet() {
            outlet.follows();
        }
        if has_name || !self.admission.bounds(&peer) {
            return Ok(None);
        }
        let percent = self.limits().anonymous_feeds_percent;
        self.followers.follow(who(&peer), self.connections_max * percent / 100).map(Some)
    }

    /// Returns the metrics.
    pub fn families(&self) -> Vec<Family> {
        let mut families = Vec::from(self.requests.families());
        families.extend(self.traffic.families());
        families
    }

    /// Returns the memory of request bodies and answers, by name in the metrics.
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

/// Returns loopback addresses and Unix sockets.
fn this_machine() -> Blocks {
    "127.0.0.0/8,::1,unix".parse().unwrap_or_default()
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

pub(crate) struct ServedSurface<S: Surface> {
    pub(crate) shell: Arc<Shell<S::Label>>,
    pub(crate) surface: Arc<S>,
    pub(crate) mounted: Option<MountPoint>,
}

/// A server with bound listeners.
pub struct Server<S: Surface> {
    listeners: Vec<Arc<Listener>>,
    inside: InsideListener,
    served: Arc<ServedSurface<S>>,
    places: Arc<Places>,
}

impl<S: Surface> Server<S> {
    /// Binds the addresses. Connections from within the process arrive at `inside`.
    pub async fn bind(
        listen: &[Listen],
        shell: Arc<Shell<S::Label>>,
        surface: S,
        inside: InsideListener,
    ) -> Result<Self, BindError> {
        let served = Arc::new(ServedSurface { shell, surface: Arc::new(surface), mounted: None });
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
        let places = Places::new(served.shell.connections_max);
        Ok(Server { listeners, inside, served, places })
    }

    /// Returns this surface as a mount for another server. This server must run too, with or without listeners. The
    /// other server waits for the mount's requests when it ends.
    pub fn as_mount(&self) -> Mount {
        Mount::of(self.served.clone())
    }

    /// Mounts another surface at a path such as `/sync` and below it, for requests on the listeners but not from
    /// within the process. A second call replaces the mount.
    #[must_use]
    pub fn mount(self, path: &str, mount: Mount) -> Self {
        let ServedSurface { shell, surface, .. } = &*self.served;
        let mounted = Some(MountPoint::new(path, mount));
        Server { served: Arc::new(ServedSurface { shell: shell.clone(), surface: surface.clone(), mounted }), ..self }
    }

    /// Returns the bound addresses.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.address()).collect()
    }

    /// Returns the listeners with their actual ports.
    pub fn listening(&self) -> Vec<Listen> {
        self.listeners.iter().map(|listener| listener.listen.clone()).collect()
    }

    /// Serves until `shutdown` resolves. Then it accepts no further connections, waits for `beside`, and lets running
    /// requests end. `beside` ends work that needs this server, such as replications, and endless answers, such as
    /// feeds; it is not polled before.
    pub async fn serve(self, shutdown: impl Future<Output = ()>, beside: impl Future<Output = ()>) {
        let shell = self.served.shell.clone();
        tokio::spawn(inside::serve(self.inside, Arc::downgrade(&self.served)));
        let (accepting, _) = tokio::sync::watch::channel(true);
        let graceful = Arc::new(GracefulShutdown::new());
        let mut tasks = Vec::new();
        // Dropped with this future.
        let mut beside_them = tokio::task::JoinSet::new();
        let doorway = shell.doorway.clone();
        beside_them.spawn(async move { doorway.watch().await });
        for tls in self.listeners.iter().filter_map(|listener| listener.tls().cloned()) {
            beside_them.spawn(async move { tls.follow().await });
        }
        for listener in self.listeners {
            let accept =
                accept(listener, self.served.clone(), self.places.clone(), graceful.clone(), accepting.subscribe());
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
            // The graceful shutdown does not wait for connections that switched their protocol.
            self.places.are_all_free().await;
        };
        let ended = tokio::time::timeout(shell.drain, async {
            tokio::select! {
                () = ended => {}
                () = shell.outlets.watch(shell.stall_max) => {}
            }
        });
        if ended.await.is_err() {
            tracing::warn!("connections were still busy at the end of the shutdown timeout");
        }
    }
}

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
    served: Arc<ServedSurface<S>>,
    places: Arc<Places>,
    graceful: Arc<GracefulShutdown>,
    mut accepting: tokio::sync::watch::Receiver<bool>,
) {
    let shell = &served.shell;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = accepting.wait_for(|accepting| !*accepting) => return,
        };
        let (transport, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) if is_lack(&error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                shell.doorway.make_room(ROOM_AT_ONCE, &shell.limits());
                tokio::time::sleep(LACK_PAUSE).await;
                continue;
            }
            Err(error) => {
                // The client has already left.
                tracing::debug!(%error, "a connection could not be accepted");
                tokio::task::yield_now().await;
                continue;
            }
        };
        let peer = address.map_or(Peer { address: None, is_secure: false }, |address| Peer::new(address, false));
        if shell.bounds(&peer) && shell.doorway.leaves_many(who(&peer)) {
            shell.traffic.refused.of(Bound::LeftUnfinished).add(1);
            continue;
        }
        let (listener, watcher) = (listener.clone(), graceful.watcher());
        let (served, mut accepting) = (served.clone(), accepting.clone());
        match places.take(shell.is_reserved_for(&peer)) {
            PlaceGrant::Place(permit) => {
                let accepted = AcceptedConnection { transport, address, listener, permit };
                tokio::spawn(connection::serve(served, accepted, watcher, accepting));
            }
            PlaceGrant::Waits(waits) => drop(tokio::spawn(async move {
                let permit = tokio::select! {
                    permit = waits.for_place(&served.shell.doorway, &served.shell.admission) => permit,
                    _ = accepting.wait_for(|accepting| !*accepting) => None,
                };
                if let Some(permit) = permit {
                    let accepted = AcceptedConnection { transport, address, listener, permit };
                    connection::serve(served, accepted, watcher, accepting).await;
                }
            })),
            PlaceGrant::Nothing => shell.traffic.refused.of(Bound::Connections).add(1),
        }
    }
}

/// Returns true if the system lacks resources for a connection, so others must end first.
fn is_lack(error: &io::Error) -> bool {
    // EMFILE and ENFILE are the same on all systems; the other errors have kinds.
    matches!(error.raw_os_error(), Some(23 | 24 | 105)) || error.kind() == io::ErrorKind::OutOfMemory
}
