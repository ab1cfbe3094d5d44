//! Addresses of clients: their networks, their blocks in settings, their reports by proxies, and rate limits by
//! address.
//!
//! Pure: no I/O, no waiting, and the caller passes the time.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod address;
mod blocks;
mod forwarded;
pub mod proxy_protocol;
mod rates;

pub use address::Network;
pub use blocks::{Block, Blocks, InvalidBlock};
pub use forwarded::{ForwardedClient, from_forwarded, from_x_forwarded, host_in_forwarded};
pub use rates::{Rate, Rates};
