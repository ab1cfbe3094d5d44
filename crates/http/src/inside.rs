//! Connections from within this process, such as those of replications from and to this server's own databases: its
//! handlers, behind pipes in memory.
//!
//! What makes such connections is there before the server is, so that whoever needs it can be handed to the server.

use std::any::Any;
use std::sync::{Arc, OnceLock, Weak};

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::DuplexStream;
use tokio::sync::mpsc;

use crate::answer::answer;
use crate::server::Served;
use crate::surface::Surface;

/// Bytes in a pipe, each way.
const PIPE_BYTES: usize = 256 * 1024;

/// Connections that the server has not taken yet; each is taken at once while it serves.
const WAITING_MAX: usize = 1_024;

/// The server has ended: so does the connection.
#[derive(Debug, thiserror::Error)]
#[error("the server is gone")]
struct ServerGone;

/// On whose behalf a connection from within this process is made: what that is, is between who makes it and the surface.
#[derive(Debug, Clone)]
pub struct OnBehalf(Arc<dyn Any + Send + Sync>);

impl OnBehalf {
    /// Of whomever this says.
    pub fn of(whom: impl Any + Send + Sync) -> OnBehalf {
        OnBehalf(Arc::new(whom))
    }

    /// Who that is, where it is said so.
    pub fn whom<W: Any>(&self) -> Option<&W> {
        self.0.downcast_ref()
    }
}

/// Where connections from within this process arrive.
#[derive(Debug)]
pub struct Inside(mpsc::Receiver<(DuplexStream, OnBehalf)>);

/// What makes connections to a server, and where they arrive, which is for [`Server::bind`](crate::Server::bind). Nobody has to
/// show who they are on such a connection: it is said as it is made. A connection to a server that no longer serves ends at
/// once.
pub fn inside() -> (impl Fn(OnBehalf) -> DuplexStream + Send + Sync + 'static, Inside) {
    let (arrive, arriving) = mpsc::channel(WAITING_MAX);
    let connect = move |on_behalf| {
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        // Where it is not taken, their end is gone, and the connection with it.
        let _ = arrive.try_send((theirs, on_behalf));
        ours
    };
    (connect, Inside(arriving))
}

/// Serves connections until nobody can make another.
pub(crate) async fn serve<S: Surface>(mut inside: Inside, served: Weak<Served<S>>) {
    while let Some((stream, on_behalf)) = inside.0.recv().await {
        serve_one(stream, on_behalf, served.clone());
    }
}

fn serve_one<S: Surface>(stream: DuplexStream, on_behalf: OnBehalf, served: Weak<Served<S>>) {
    let connection = OnceLock::new();
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        // Nothing that comes over a network has one.
        request.extensions_mut().insert(on_behalf.clone());
        let served = served.upgrade();
        // One request follows the other here: there are never too many.
        let connect = |served: &Arc<Served<S>>| served.shell.outlets.connect(true);
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
