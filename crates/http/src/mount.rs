//! Mounts another surface under a path of a server's listeners.

use std::pin::Pin;
use std::sync::Arc;

use hyper::Response;
use hyper::body::Incoming;

use crate::answer::answer;
use crate::outlet::Outlet;
use crate::peer::Peer;
use crate::server::ServedSurface;
use crate::surface::Surface;
use crate::tracked::TrackedBody;

/// A surface in its shell, for [`Server::mount`](crate::Server::mount) of another server. It keeps its own metrics,
/// memory for bodies, and limits. Connections and the memory for answers are the other server's.
#[derive(Clone)]
pub struct Mount(Arc<dyn Answers>);

impl std::fmt::Debug for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mount").finish_non_exhaustive()
    }
}

pub(crate) type AnswerFuture = Pin<Box<dyn Future<Output = Response<TrackedBody>> + Send>>;

trait Answers: Send + Sync {
    fn answer(self: Arc<Self>, request: hyper::Request<Incoming>, peer: Peer, outlet: Arc<Outlet>) -> AnswerFuture;
}

impl<S: Surface> Answers for ServedSurface<S> {
    fn answer(self: Arc<Self>, request: hyper::Request<Incoming>, peer: Peer, outlet: Arc<Outlet>) -> AnswerFuture {
        Box::pin(answer(self, request, Some(peer), outlet))
    }
}

impl Mount {
    pub(crate) fn of<S: Surface>(served: Arc<ServedSurface<S>>) -> Mount {
        Mount(served)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct MountPoint {
    path: String,
    mount: Mount,
}

impl MountPoint {
    pub(crate) fn new(path: &str, mount: Mount) -> MountPoint {
        MountPoint { path: path.to_owned(), mount }
    }

    pub(crate) fn has(&self, path: &str) -> bool {
        path.strip_prefix(&self.path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    pub(crate) fn answer(&self, request: hyper::Request<Incoming>, peer: Peer, outlet: Arc<Outlet>) -> AnswerFuture {
        self.mount.0.clone().answer(request, peer, outlet)
    }
}
