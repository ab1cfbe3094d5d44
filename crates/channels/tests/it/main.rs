//! The crate's tests, in one program.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::indexing_slicing)]

mod clients;
mod feeds;
mod merge;
mod model;
mod principals;
mod recorded;
