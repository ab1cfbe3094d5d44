//! Processes of the torture: servers with their background work, some of which can be killed.

use std::sync::Arc;
use std::time::Duration;

use flatbed_layer::{Background, BackgroundOptions};
use flatbed_testkit::Torture;

use crate::support::{Layer, Running, ServerOptions, Store};

/// The number of checks of a process for a build before it gets a new definition to build.
const LOOKS: u64 = 1_000;

/// A server with its process's background work.
pub(crate) struct Process {
    pub(crate) server: Running,
    background: Background,
    pub(crate) layer: Layer,
}

impl Process {
    pub(crate) async fn start(store: &Store) -> Process {
        let layer = store.layer().await;
        let options = BackgroundOptions {
            look_every: Duration::from_millis(200),
            silence_max: Duration::from_secs(1),
            turn: Duration::from_secs(1),
            ..BackgroundOptions::default()
        };
        let background = Background::new(&layer, layer.actor.clone(), options).expect("randomness");
        background.start();
        Process { server: store.serve_on(layer.clone(), ServerOptions::default()).await, background, layer }
    }

    pub(crate) async fn stop(self) {
        self.background.stop().await;
        self.server.stop().await;
    }
}

pub(crate) struct Mortal(flatbed_testkit::Mortal<Process>);

impl Mortal {
    pub(crate) async fn start(store: &Arc<Store>) -> Mortal {
        let store = store.clone();
        Mortal(flatbed_testkit::Mortal::start(2, async move { Process::start(&store).await }).await)
    }

    pub(crate) fn process(&self) -> &Process {
        self.0.process()
    }

    /// Returns the groups that it follows or builds now, and the documents that it has mapped for them.
    fn builds(&self) -> (u64, u64) {
        let families = self.process().layer.metrics();
        let value = |name: &str| flatbed_metrics::total(&families, name);
        (value("flatbed_view_updates_running"), value("flatbed_view_documents_mapped"))
    }

    /// Waits until it maps documents for a group; false if that does not happen for long, or the run ends.
    pub(crate) async fn is_building(&self, torture: &Torture) -> bool {
        let mut before = self.builds().1;
        for _ in 0..LOOKS {
            if !torture.pass(Duration::from_millis(1)).await {
                return false;
            }
            let (running, mapped) = self.builds();
            if running > 0 && mapped > before {
                return true;
            }
            before = mapped;
        }
        false
    }
}
