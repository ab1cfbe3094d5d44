//! Addresses of clients: which of them are one client's, which are named in settings, what proxies say of them, and how much
//! each may ask for, and when.
//!
//! Nothing here does I/O, waits, or knows the time: the clock is passed in.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod address;
mod blocks;
pub mod fair_queue;
mod forwarded;
pub mod proxy_protocol;
mod rates;

pub use address::Network;
pub use blocks::{Block, Blocks, InvalidBlock};
pub use forwarded::{Forwarded, from_forwarded, from_x_forwarded, host_in_forwarded};
pub use rates::{Rate, Rates};
