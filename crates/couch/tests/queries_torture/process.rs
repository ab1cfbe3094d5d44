//! Processes of the torture: servers, each with what it does in the background, and such as can be killed.

use std::sync::Arc;
use std::time::Duration;

use flatbed_layer::{Background, BackgroundOptions};
use flatbed_testkit::Torture;

use crate::support::{Layer, Running, ServerOptions, Store};

/// How often it is looked whether a process builds, before it is given something new to build.
const LOOKS: u64 = 1_000;

/// A server with what works in the background of its process.
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

/// A process that can be killed.
pub(crate) struct Mortal(flatbed_testkit::Mortal<Process>);

impl Mortal {
    pub(crate) async fn start(store: &Arc<Store>) -> Mortal {
        let store = store.clone();
        Mortal(flatbed_testkit::Mortal::start(2, async move { Process::start(&store).await }).await)
    }

    pub(crate) fn process(&self) -> &Process {
        self.0.process()
    }

    /// Groups that it follows or builds now, and documents that it has mapped for them.
    fn builds(&self) -> (u64, u64) {
        let families = self.process().layer.metrics();
        let value = |name: &str| flatbed_metrics::total(&families, name);
        (value("flatbed_view_updates_running"), value("flatbed_view_documents_mapped"))
    }

    /// Waits until it is in the middle of mapping documents for a group; false: it is not for long, or all is over before.
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
