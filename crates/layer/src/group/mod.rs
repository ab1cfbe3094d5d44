//! Groups of views as they are kept up to date: found by their design documents, built, followed, waited for.
//!
//! Of each group that a database's record names ([`crate::index::groups`]) one process at a time follows by-seq, in a task of
//! its own ([`updater`]). Which one it is stands in the group's progress; what makes it safe is that every transaction
//! reads the progress with conflict, so that of two that work at once one fails. The rows of a first build are shared: each
//! process has leases of some ids ([`leases`]), which its transactions read likewise. A process begins where somebody writes into the database or asks for a view, and with work in the background that is due
//! ([`attend`]); it lets go after a while without changes.
//!
//! The first build ([`build`]) maps all documents by ranges of ids, some at once, and makes the nodes above the rows at the
//! end. From then on ([`follow`]) each transaction enters a run of changes and moves the group's place. Where documents
//! are mapped that change meanwhile nothing is lost: whatever is written behind the place comes again, and purges
//! are in the log of purges ([`purges`]); if the log lacks some, the group is compared with the documents ([`reconcile`]). A document that is entered in several transactions is one for readers
//! ([`crate::view::undo`]), and who takes over ends it first ([`large`]).

pub(crate) mod attend;
mod build;
mod find;
mod follow;
pub(crate) mod info;
mod job;
mod large;
mod later;
mod leases;
mod mapper;
mod others;
mod purges;
pub(crate) mod recompute;
mod reconcile;
pub(crate) mod source;
mod steps;
mod tests;
mod updater;
