//! Runs of jobs, from test sources to targets with all kinds of failures.
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
mod outages;
mod replays;
mod run;
mod s3;
mod scripts;
mod server;
mod servers;
mod silent;
