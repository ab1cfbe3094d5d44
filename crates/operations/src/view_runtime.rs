//! The runtime of views' functions, set once for a server. It checks design documents and builds groups of views.

use std::sync::{Arc, OnceLock};

use flatbed_databases::server::Inner;
use flatbed_databases::slots::State;
use flatbed_store::view_functions::ViewFunctions;

struct ViewRuntime(OnceLock<Arc<dyn ViewFunctions>>);

impl State<Inner> for ViewRuntime {
    fn new_of(_: &Inner) -> ViewRuntime {
        ViewRuntime(OnceLock::new())
    }
}

/// Sets the runtime. The first one stays.
pub fn run_views_by(inner: &Inner, functions: Arc<dyn ViewFunctions>) {
    let _ = inner.state::<ViewRuntime>().0.set(functions);
}

/// Returns the runtime; `None`: this process builds no groups.
pub fn view_functions(inner: &Inner) -> Option<&Arc<dyn ViewFunctions>> {
    inner.state::<ViewRuntime>().0.get()
}
