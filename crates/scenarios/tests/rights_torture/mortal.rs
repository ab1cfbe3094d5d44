//! A server that is killed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::{World, canary, lock, options};
use crate::support::{Running, Store};

/// The lifetime of a server that is killed.
const LIVES: Duration = Duration::from_millis(2_500);

pub struct Mortal(flatbed_testkit::Mortal<Running>);

impl Mortal {
    pub async fn start(store: &Arc<Store>) -> Mortal {
        let store = store.clone();
        Mortal(flatbed_testkit::Mortal::start(2, async move { store.serve(options()).await }).await)
    }

    /// Measures the timers of the server's runtime, whose lateness extends the time for its feeds to end.
    pub fn watch(&self, world: &Arc<World>) {
        self.0.spawn(canary::timers(world.clone()));
    }

    /// If `dies`, kills the server and starts another one at intervals until the torture is over. Returns the last
    /// server.
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
        self.0.process().address
    }
}
