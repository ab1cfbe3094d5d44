//! The words that every other folder uses: errors, keys, ranges, changes, what completes a call, the lock.

pub(crate) mod atomic;
pub(crate) mod error;
pub(crate) mod messages;
pub(crate) mod range_set;
pub(crate) mod tuple;
