//! Shared vocabulary: errors, keys, ranges, mutations, callbacks, locks.

pub(crate) mod atomic;
pub(crate) mod call;
pub(crate) mod error;
pub(crate) mod key_space;
pub(crate) mod lock;
pub(crate) mod messages;
pub(crate) mod mutation;
pub(crate) mod range_set;
pub(crate) mod stripe;
pub(crate) mod tuple;
