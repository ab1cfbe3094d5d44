//! The changes worker: follows a database's changes and delivers each document's newest state to another system. Its
//! design: design/worker.md.
//!
//! Modules without I/O, lowest first:
//!
//! - [`path`], [`transform`], [`datum`]: values of a document, functions on values, and column types;
//! - [`mapping`]: the documents that a job delivers and the rows that they produce; [`rows`]: the rows of one document;
//! - [`difference`]: the operations on a target that has the document's previous rows;
//! - [`plan`]: the order of delivery and the progress of the [`checkpoint`];
//! - [`failure`], [`retry`]: classes of failures and retries; [`queue`]: entries of failed documents;
//! - [`attachments`]: the selection and form of attachments;
//! - [`documents`]: jobs and the objects that they name, by the schemas under `json_schema/`;
//! - [`secret`]: references to secrets, and redaction; [`import`]: files of the Python worker.
//!
//! Modules with I/O:
//!
//! - [`peer`]: HTTP over connections that the embedding program makes; [`source`], [`change`]: a feed over HTTP;
//! - [`memory`]: the memory budget shared by all jobs of a process;
//! - [`script`]: functions of mappings, which the embedding program runs;
//! - [`output`]: JSON Lines, HTTP, object stores, databases; [`run`]: one run of a job; [`progress`]: its progress;
//!   [`connect`]: its parts.
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
