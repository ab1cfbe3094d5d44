//! Runs of jobs: from sources made for the test to targets that fail in every way.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod ahead;
mod attachments;
mod checkpoints;
mod connect;
mod dropped;
mod engines;
mod fake;
mod feeds;
mod http;
mod memory;
mod replays;
mod run;
mod s3;
mod scripts;
mod server;
mod servers;
mod silent;
