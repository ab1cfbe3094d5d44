//! Ownership of a job by this process.

use std::fmt;
use std::sync::Arc;

/// Tells by the local clock alone whether the job certainly belongs to this process. A process that was stopped may not
/// know yet that another one runs the job, so this is checked before anything is sent to a target.
#[derive(Clone)]
pub struct OwnershipCheck(Arc<dyn Fn() -> bool + Send + Sync>);

impl OwnershipCheck {
    /// Wraps a function that returns whether the job is held.
    pub fn new(is_held: impl Fn() -> bool + Send + Sync + 'static) -> OwnershipCheck {
        OwnershipCheck(Arc::new(is_held))
    }

    pub(super) fn is_held(&self) -> bool {
        (self.0)()
    }
}

impl fmt::Debug for OwnershipCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnershipCheck")
    }
}
