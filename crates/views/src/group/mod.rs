//! Groups of views: found by their design documents, built, followed, and waited for.
//!
//! For each group in a database's record ([`flatbed_operations::index::groups`]) one process at a time follows by-seq,
//! in a task of its own ([`updater`]). The group's progress names that process. Safety does not depend on it: every
//! transaction reads the progress with a conflict, so that of two concurrent ones one fails. The rows of a first build
//! are shared: each process has leases of ids ([`leases`]), which its transactions read in the same way. A process
//! begins when a client writes into the database or reads a view, and when background work is due ([`attend`]); it
//! stops after a while without changes.
//!
//! The first build ([`build`]) maps all documents by concurrent ranges of ids. Then all processes build the nodes above
//! the rows by sections ([`sections`]), and one process the few nodes above those. From then on ([`follow`]) each transaction enters a run of changes and advances the group's position.
//! Changes during the mapping are not lost: writes behind the position are read later, and purges are in the log of
//! purges ([`purges`]); if the log lacks some, the group is compared with the documents ([`reconcile`]). Readers see a
//! document that is entered in several transactions at once ([`crate::view::undo`]), and a new process completes it
//! first ([`large`]).

pub mod attend;
pub mod build;
pub mod find;
pub mod follow;
pub mod holder;
pub mod info;
pub mod job;
pub mod large;
pub mod later;
pub mod leases;
pub mod mapper;
pub mod others;
pub mod purges;
pub mod recompute;
pub mod reconcile;
pub mod section_leases;
pub mod sections;
pub mod source;
pub mod steps;
pub mod updater;
