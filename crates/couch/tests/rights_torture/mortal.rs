//! A server that is killed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::{World, canary, lock, options};
use crate::support::{Running, Store};

/// For how long a server lives that dies.
const LIVES: Duration = Duration::from_millis(2_500);

pub struct Mortal(flatbed_testkit::Mortal<Running>);

impl Mortal {
    pub async fn start(store: &Arc<Store>) -> Mortal {
        let store = store.clone();
        Mortal(flatbed_testkit::Mortal::start(2, async move { store.serve(options()).await }).await)
    }

    /// How late things happen on the server's runtime is how late its feeds may end.
    pub fn watch(&self, world: &Arc<World>) {
        self.0.spawn(canary::timers(world.clone()));
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
        self.0.process().address
    }
}
