//! The limits that many requesters share: budgets of bytes, and the share of each key.
//!
//! Without I/O and without a clock: callers bound their waits.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod budget;
mod shares;

pub use budget::{Budget, Grant, Waiter};
pub use shares::Shares;
