//! A read's answer that is still to be delivered.

use std::time::Instant;

use crate::base::call::{Call, Done};
use crate::base::error::Error;

/// An answer that was made and not delivered, as the transaction keeps it.
pub(crate) struct LateAnswer {
    pub(crate) id: u64,
    pub(crate) due: Option<Instant>,
    pub(crate) deliver: Done<()>,
}

impl LateAnswer {
    /// A call that delivers an error instead.
    pub(crate) fn failing(self, error: Error) -> Call {
        Box::new(move || (self.deliver)(Err(error)))
    }
}
