//! The limits that many requesters share: budgets of bytes, and turns that are fair by client or database.
//!
//! Without I/O and without a clock: callers bound their waits.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod budget;
mod fair_queue;
mod shares;
mod turns;

pub use budget::{Budget, Grant, Waiter};
pub use fair_queue::{Bounds, FairQueue, Full};
pub use shares::Shares;
pub use turns::{Turn, Turns};
