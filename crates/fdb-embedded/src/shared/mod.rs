//! The state that an engine's threads share with its transactions, from the commit queue to `Core`, which holds all of
//! it.

pub(crate) mod buggify;
pub(crate) mod checker;
pub(crate) mod connection;
pub(crate) mod core;
pub(crate) mod environment;
pub(crate) mod json;
pub(crate) mod observer;
pub(crate) mod open_options;
pub(crate) mod owner;
pub(crate) mod pending_reads;
pub(crate) mod queue;
pub(crate) mod rates;
pub(crate) mod registry;
pub(crate) mod simulation;
pub(crate) mod stats;
pub(crate) mod status;
pub(crate) mod timekeeper;
pub(crate) mod timer;
pub(crate) mod watch;
