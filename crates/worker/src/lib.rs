//! The changes worker: it follows a database's changes and delivers each document's newest state to another system. What it
//! is and is to be: design/worker.md.
//!
//! Lowest first, without I/O:
//!
//! - [`path`], [`transform`], [`datum`]: values of a document, what is made of them, and the types of columns;
//! - [`mapping`]: which documents a job is about, and what their rows are; [`rows`]: the rows of one document;
//! - [`difference`]: what is to be done to a target that has what the document produced before;
//! - [`plan`]: which change is delivered next, and how far the [`checkpoint`] may go;
//! - [`failure`], [`retry`]: whom a failure is laid to, and when it is tried again; [`queue`]: what becomes of what failed;
//! - [`attachments`]: which of them are delivered, and as what;
//! - [`documents`]: jobs and what they name, by the schemas under `json_schema/`;
//! - [`secret`]: what nobody sees; [`import`]: what the Python worker has left.
//!
//! With it:
//!
//! - [`peer`]: HTTP, over connections that somebody else makes; [`source`], [`change`]: a feed behind it;
//! - [`memory`]: what all jobs of a process have in common;
//! - [`script`]: functions of mappings, that somebody else runs;
//! - [`output`]: JSON Lines, HTTP, stores of objects, SQLite; [`run`]: one run of a job, [`progress`]: how far it is; [`connect`]: what it is made of.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

pub mod attachments;
pub mod change;
pub mod checkpoint;
pub mod connect;
pub mod datum;
pub mod decimal;
pub mod difference;
pub mod documents;
pub mod failure;
pub mod file_claim;
pub mod import;
pub mod mapping;
pub mod memory;
pub mod output;
pub mod path;
pub mod peer;
pub mod plan;
pub mod progress;
pub mod queue;
pub mod retry;
pub mod rows;
pub mod run;
pub mod script;
pub mod secret;
pub mod source;
pub mod time;
pub mod transform;
