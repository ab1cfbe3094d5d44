//! Connections from within the process, such as those of local replications: in-memory pipes to the server's
//! handlers.
//!
//! The connector is created before the server, so that the surface can use it.

use std::any::Any;
use std::sync::{Arc, OnceLock, Weak};

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::DuplexStream;
use tokio::sync::mpsc;

use crate::answer::answer;
use crate::server::ServedSurface;
use crate::surface::Surface;

/// The capacity of a pipe in each direction, in bytes.
const PIPE_BYTES: usize = 256 * 1024;

const WAITING_MAX: usize = 1_024;

/// The server has ended, and the connection with it.
#[derive(Debug, thiserror::Error)]
#[error("the server has ended")]
struct ServerGone;

/// The principal of a connection from within the process. Opaque to this crate.
#[derive(Debug, Clone)]
pub struct InsidePrincipal(Arc<dyn Any + Send + Sync>);

impl InsidePrincipal {
    /// Wraps a principal.
    pub fn of(principal: impl Any + Send + Sync) -> InsidePrincipal {
        InsidePrincipal(Arc::new(principal))
    }

    /// Returns the principal if it has this type.
    pub fn downcast_ref<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

/// The server's end of [`inside`].
#[derive(Debug)]
pub struct InsideListener(mpsc::Receiver<(DuplexStream, InsidePrincipal)>);

/// Returns a connector, and its receiving end for [`Server::bind`](crate::Server::bind). The connector states the
/// principal, so the connection needs no authentication. A connection to a server that no longer runs ends at once.
pub fn inside() -> (impl Fn(InsidePrincipal) -> DuplexStream + Send + Sync + 'static, InsideListener) {
    let (arrive, arriving) = mpsc::channel(WAITING_MAX);
    let connect = move |on_behalf| {
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        // If the queue is full, the other end is dropped, which ends the connection.
        let _ = arrive.try_send((theirs, on_behalf));
        ours
    };
    (connect, InsideListener(arriving))
}

/// Serves connections until the connector is dropped.
pub(crate) async fn serve<S: Surface>(mut inside: InsideListener, served: Weak<ServedSurface<S>>) {
    while let Some((stream, on_behalf)) = inside.0.recv().await {
        serve_one(stream, on_behalf, served.clone());
    }
}

fn serve_one<S: Surface>(stream: DuplexStream, on_behalf: InsidePrincipal, served: Weak<ServedSurface<S>>) {
    let connection = OnceLock::new();
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        // Requests from the network never have this extension.
        request.extensions_mut().insert(on_behalf.clone());
        let served = served.upgrade();
        // Requests of such a connection are sequential, so the limit is never reached.
        let connect = |served: &Arc<ServedSurface<S>>| served.shell.outlets.connect(true);
        let outlet = served.as_ref().and_then(|served| connection.get_or_init(|| connect(served)).begin());
        async move {
            match (served, outlet) {
                (Some(served), Some(outlet)) => Ok(answer(served, request, None, outlet).await),
                _ => Err(ServerGone),
            }
        }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new());
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a replication's connection to this server ended with an error");
        }
    });
}
