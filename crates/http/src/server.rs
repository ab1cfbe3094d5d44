//! Listening, connections and their limits, and the end of it all.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use flatbed_metrics::{Family, Label};
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use socket2::TcpKeepalive;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::answer::{self, RequestIds};
use crate::body_memory::BodyMemory;
use crate::cors::Cors;
use crate::inside::{self, Inside};
use crate::metrics::{Requests, Traffic, Usage};
use crate::outlet::{ANSWERS_MAX, Outlets};
use crate::peer::Peer;
use crate::preface;
use crate::reply::STALL_MAX;
use crate::request_line::HeadsRead;
use crate::stall::StallGuard;
use crate::surface::Surface;
use crate::tracked::ContinueTrace;

/// For the head of a request.
const HEAD_MAX: Duration = Duration::from_secs(30);

/// When a connection is silent, and between the probes that find out whether its client is still there.
const KEEP_ALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(15));

/// What the system takes of a connection's answers before they are sent. With more, it says that it takes more only after
/// a third of megabytes has gone out: a client that reads slowly would look like one that does not read.
#[cfg(any(target_os = "linux", target_os = "android"))]
const UNSENT_BYTES_MAX: u32 = 128 * 1024;

/// Streams that a client of HTTP/2 has reset and whose request was not looked at yet; with more its connection ends.
const RESETS_MAX: usize = 20;

/// Streams that a client of HTTP/2 has broken the protocol on, likewise.
const BROKEN_MAX: usize = 100;

/// What a stream of HTTP/2 buffers of its answer.
const STREAM_BUFFER_BYTES: usize = 64 * 1024;

/// What a connection of HTTP/2 takes of requests' bodies before they are read.
const RECEIVED_BYTES_MAX: u32 = 256 * 1024;

/// Header lines of a request.
const HEADERS_MAX: usize = 100;

/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 64 * 1024;

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
    /// Connections at once; further ones wait to be accepted.
    pub connections_max: usize,
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
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Which one.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
}

/// What the requests of one server share, whatever it serves: bounds, and what is counted by the labels `L`.
#[derive(Debug)]
pub struct Shell<L> {
    pub(crate) cors: Cors,
    pub(crate) server_header: HeaderValue,
    pub(crate) memory: BodyMemory,
    pub(crate) outlets: Arc<Outlets>,
    pub(crate) requests: Requests<L>,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) request_ids: RequestIds,
    pub(crate) stall_max: Duration,
    pub(crate) continue_trace: Option<ContinueTrace>,
    connections_max: usize,
    drain: Duration,
}

impl<L: Label> Shell<L> {
    /// One that nothing is served in yet.
    pub fn new(options: ShellOptions) -> Arc<Shell<L>> {
        Arc::new(Shell {
            cors: options.cors,
            server_header: HeaderValue::from_str(&options.server).unwrap_or(HeaderValue::from_static("Flatbed")),
            memory: BodyMemory::new(options.body_memory_bytes, options.body_bytes_max),
            outlets: Outlets::new(options.body_memory_bytes / 4 * 3, options.document_bytes_max),
            requests: Requests::new(),
            traffic: Arc::default(),
            request_ids: RequestIds::default(),
            stall_max: options.stall_max,
            continue_trace: options.continue_trace,
            connections_max: options.connections_max,
            drain: options.drain,
        })
    }

    /// Which pages of other origins may call.
    pub fn cors(&self) -> &Cors {
        &self.cors
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

/// A surface in its shell.
pub(crate) struct Served<S: Surface> {
    pub(crate) shell: Arc<Shell<S::Label>>,
    pub(crate) surface: Arc<S>,
}

/// A server that listens already.
pub struct Server<S: Surface> {
    listeners: Vec<TcpListener>,
    inside: Inside,
    served: Arc<Served<S>>,
    connections: Arc<Semaphore>,
    connections_max: u32,
}

impl<S: Surface> Server<S> {
    /// Takes the addresses, port 0 for a free one. What connects from within this process arrives `inside`.
    ///
    /// # Errors
    /// [`BindError`].
    pub async fn bind(
        listen: &[SocketAddr],
        shell: Arc<Shell<S::Label>>,
        surface: S,
        inside: Inside,
    ) -> Result<Self, BindError> {
        let served = Arc::new(Served { shell, surface: Arc::new(surface) });
        if served.surface.is_open()
            && let Some(exposed) = listen.iter().find(|address| !address.ip().is_loopback())
        {
            return Err(BindError::Exposed(*exposed));
        }
        let mut listeners = Vec::new();
        for address in listen {
            let bound = TcpListener::bind(address).await;
            listeners.push(bound.map_err(|source| BindError::Listen { address: *address, source })?);
        }
        let connections_max = u32::try_from(served.shell.connections_max).unwrap_or(u32::MAX);
        let connections = Arc::new(Semaphore::new(connections_max as usize));
        Ok(Server { listeners, inside, served, connections, connections_max })
    }

    /// The addresses taken.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
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

async fn accept<S: Surface>(
    listener: TcpListener,
    served: Arc<Served<S>>,
    connections: Arc<Semaphore>,
    graceful: Arc<GracefulShutdown>,
    mut accepting: tokio::sync::watch::Receiver<bool>,
) {
    loop {
        let next = async {
            // The semaphore is never closed.
            let permit = connections.clone().acquire_owned().await.ok();
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            next = next => next,
            _ = accepting.wait_for(|accepting| !*accepting) => return,
        };
        let (mut stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, for one: others must end first.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        // A client that has vanished while nothing was to be sent is noticed all the same.
        let _ = socket2::SockRef::from(&stream).set_tcp_keepalive(&KEEP_ALIVE);
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let _ = socket2::SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_BYTES_MAX);
        let (stall_max, metrics) = (served.shell.stall_max, served.shell.traffic.clone());
        let served = served.clone();
        let answers = served.shell.outlets.connect(served.surface.is_open());
        let connection = answers.clone();
        let heads = Arc::new(HeadsRead::new());
        let heads_read = heads.clone();
        let peer = Peer::new(peer, false);
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            heads_read.saw(&request);
            let outlet = connection.begin();
            // Kept apart, and only while it runs: a connection has room for this function's state for as long as it lasts,
            // and the handlers' is many times larger than what a feed that waits needs.
            let answer = outlet.map(|outlet| Box::pin(answer::answer(served.clone(), request, Some(peer), outlet)));
            async move {
                match answer {
                    Some(answer) => Ok(answer.await),
                    // Nothing was done for it: the client may send it again. Only HTTP/2 has several at once.
                    None => Err(h2::Error::from(h2::Reason::REFUSED_STREAM)),
                }
            }
        });
        let (watcher, mut accepting) = (graceful.watcher(), accepting.clone());
        tokio::spawn(async move {
            let told = tokio::select! {
                told = tokio::time::timeout(HEAD_MAX, preface::beginning(&mut stream)) => told,
                _ = accepting.wait_for(|accepting| !*accepting) => return,
            };
            let Ok(Ok(beginning)) = told else { return };
            let is_http2 = beginning.is_http2;
            let stream = StallGuard::new(stream, beginning, heads, stall_max, metrics, answers.clone(), permit);
            let stream = TokioIo::new(stream);
            let serve = async {
                if is_http2 {
                    return watcher.watch(http2().serve_connection(stream, service)).await;
                }
                let connection = http1().serve_connection(stream, service).with_upgrades();
                let mut connection = std::pin::pin!(connection);
                let ended = tokio::select! {
                    ended = connection.as_mut() => Some(ended),
                    _ = accepting.wait_for(|accepting| !*accepting) => None,
                };
                match ended {
                    Some(ended) => ended,
                    None => {
                        connection.as_mut().graceful_shutdown();
                        connection.await
                    }
                }
                // The watcher, which is waited for, ends here.
            };
            let ended = tokio::select! {
                ended = serve => ended,
                () = answers.cut() => return,
            };
            if let Err(error) = ended {
                tracing::debug!(error = %error, "a connection ended with an error");
            }
        });
    }
}

fn http1() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX);
    builder
}

fn http2() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(ANSWERS_MAX as u32)
        .max_pending_accept_reset_streams(RESETS_MAX)
        .max_local_error_reset_streams(BROKEN_MAX)
        .max_send_buf_size(STREAM_BUFFER_BYTES)
        .initial_connection_window_size(RECEIVED_BYTES_MAX)
        .initial_stream_window_size(RECEIVED_BYTES_MAX)
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(20));
    builder
}
