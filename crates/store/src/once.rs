//! Marks of operations that take place once, under the layer's root: see [`Once`].

use flatbed_clock::Clock;

use crate::error::Result;
use crate::keys::RootKeys;

pub use flatbed_kit::{Once, removed_before};

/// Makes the mark of an operation that is about to begin.
pub fn new_mark(keys: &RootKeys, clock: &Clock) -> Result<Once> {
    Ok(Once::new(clock, |at_ms, id| keys.mark(at_ms, id), keys.marks_removed())?)
}

/// Draws an id: see [`flatbed_kit::random_id`].
pub fn random_id() -> Result<[u8; 16]> {
    Ok(flatbed_kit::random_id()?)
}
