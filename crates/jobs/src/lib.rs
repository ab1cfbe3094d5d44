//! Work in the background: that it goes on after failures and panics, that it ends when it must, that of several processes
//! one does it, and what came of it so far.
//!
//! What is to be done is a [`Job`]. [`supervise()`] runs one in this process; [`lead()`] runs one under a lease, so that whichever
//! process has it works, and another takes over when that one is gone. Where leases lie is behind the trait [`Leases`]: this
//! crate knows no storage and no server. A [`Status`] and a [`Claim`] are made with the clock that their job takes the time from.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod backoff;
mod job;
mod lead;
mod lease;
mod status;
mod supervise;
mod together;

pub use backoff::Backoff;
pub use job::{Failure, Fence, Job, Next, Room, Run};
pub use lead::{Claim, lead, try_lead};
pub use lease::{LEASE_STATE_BYTES_MAX, Lease, LeaseError, Leases, Owner, Sighting, TakenLease, valid_until};
pub use status::{Event, HISTORY_MAX, Standing, Status};
pub use supervise::{End, supervise};
pub use together::{HOLDS_BYTES_MAX, HOLDS_MAX, Hold, HoldMany, Together};
