//! A server that can be killed: all that it does is done by a runtime of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use super::{World, canary, lock, options};
use crate::support::{Running, Store};

/// For how long a server lives that dies.
const LIVES: Duration = Duration::from_millis(2_500);

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

    /// How late things happen on the server's runtime is how late its feeds may end.
    pub fn watch(&self, world: &Arc<World>) {
        self.runtime.as_ref().expect("it lives").spawn(canary::timers(world.clone()));
    }

    /// Kills the server from time to time, where it `dies`, each time with another one in its place, until the torture is over. Gives the
    /// last one.
    pub async fn killed_again_and_again(self, store: &Arc<Store>, world: &Arc<World>, dies: bool) -> Mortal {
        let mut lives = self;
        while dies && world.torture.pass(LIVES).await {
            lock(&world.servers).retain(|server| *server != lives.address());
            drop(lives);
            lives = Mortal::start(store).await;
            lives.watch(world);
            lock(&world.servers).push(lives.address());
            world.count("kills");
        }
        lives
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
