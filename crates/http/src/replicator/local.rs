//! This server's own databases as one side of a replication: its handlers, behind a pipe in memory.

use std::sync::{Arc, OnceLock, Weak};

use flatbed_replicate::LocalConnect;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};

use crate::router;
use crate::server::State;
use flatbed_auth::Principal;

/// Bytes in the pipe, each way.
const PIPE_BYTES: usize = 256 * 1024;

/// The server has ended: so does the connection.
#[derive(Debug, thiserror::Error)]
#[error("the server is gone")]
struct ServerGone;

/// Makes connections to the server. Whoever may begin a replication is an administrator, and so is what speaks here.
pub(crate) fn connect(state: &Weak<State>) -> LocalConnect {
    let state = state.clone();
    Arc::new(move || {
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        let (state, connection) = (state.clone(), OnceLock::new());
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            let state = state.upgrade();
            request.extensions_mut().insert(Principal { name: None, is_admin: true });
            // One request follows the other here: there are never too many.
            let outlet =
                state.as_ref().and_then(|state| connection.get_or_init(|| state.outlets.connect(true)).begin());
            async move {
                match (state, outlet) {
                    (Some(state), Some(outlet)) => Ok(router::answer(state, request, None, outlet).await),
                    _ => Err(ServerGone),
                }
            }
        });
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.timer(TokioTimer::new());
        let connection = builder.serve_connection(TokioIo::new(theirs), service);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a replication's connection to this server ended with an error");
            }
        });
        ours
    })
}
