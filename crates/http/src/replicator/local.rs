//! This server's own databases as one side of a replication: its handlers, behind a pipe in memory.

use std::sync::{Arc, Weak};

use flatbed_replicate::LocalConnect;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};

use crate::auth::Principal;
use crate::router;
use crate::server::State;

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
        let state = state.clone();
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            let state = state.upgrade();
            request.extensions_mut().insert(Principal { name: None, is_admin: true });
            async move {
                match state {
                    Some(state) => Ok(router::answer(state, request, None).await),
                    None => Err(ServerGone),
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
