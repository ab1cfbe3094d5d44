//! A server that can be killed: all that it does is done by a runtime of its own.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::runtime::{Builder, Runtime};

use crate::options;
use crate::support::{Running, Store};

pub struct Mortal {
    server: Running,
    runtime: Option<Runtime>,
}

impl Mortal {
    pub async fn start(store: &Arc<Store>) -> Mortal {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
        let store = store.clone();
        let server = runtime.spawn(async move { store.serve(options()).await }).await.expect("it starts");
        Mortal { server, runtime: Some(runtime) }
    }

    pub fn address(&self) -> SocketAddr {
        self.server.address
    }
}

impl Drop for Mortal {
    /// As a process that is killed: nothing goes on, is given back or answered.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
