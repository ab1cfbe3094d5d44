//! A pending answer of a read.

use std::time::Instant;

use crate::base::call::{Call, Completion};
use crate::base::error::Error;

/// A computed answer that is not delivered yet, as kept by the transaction.
pub(crate) struct LateAnswer {
    pub(crate) id: u64,
    pub(crate) due: Option<Instant>,
    pub(crate) deliver: Completion<()>,
}

impl LateAnswer {
    /// Returns a call that delivers an error instead.
    pub(crate) fn failing(self, error: Error) -> Call {
        Box::new(move || (self.deliver)(Err(error)))
    }
}
