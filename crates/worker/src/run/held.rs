//! Whether a job is still this process's.

use std::fmt;
use std::sync::Arc;

/// Whether the job is this process's without doubt, by its clock alone. A process that was stopped for a while may not know yet
/// that another has the job; it is asked before anything is sent to a target.
#[derive(Clone)]
pub struct Held(Arc<dyn Fn() -> bool + Send + Sync>);

impl Held {
    /// As `is_held` says.
    pub fn new(is_held: impl Fn() -> bool + Send + Sync + 'static) -> Held {
        Held(Arc::new(is_held))
    }

    pub(super) fn is_held(&self) -> bool {
        (self.0)()
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Held")
    }
}
