//! Background work: restarts after failures and panics, stops, leases between processes, and the history of each job.
//!
//! The work is a [`Job`]. [`supervise()`] runs a job in this process. [`lead()`] runs it under a lease: the process
//! that has the lease works, and another takes over when that process is gone. The trait [`Leases`] is the storage of
//! leases: this crate knows no storage and no server. A [`Status`] and a [`Claim`] get the clock that their job uses.
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
pub use job::{Failure, Fence, Job, Next, ResourceShare, Run};
pub use lead::{Claim, lead, try_lead};
pub use lease::{LEASE_STATE_BYTES_MAX, Lease, LeaseError, Leases, Owner, Sighting, TakenLease, valid_until};
pub use status::{HISTORY_MAX, JobEvent, JobState, Status};
pub use supervise::{JobEnd, supervise};
pub use together::{HOLDS_BYTES_MAX, HOLDS_MAX, HoldMany, LeaseBatch, LeaseRenewal};
