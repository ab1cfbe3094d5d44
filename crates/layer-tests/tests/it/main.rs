//! The layer's tests, one program, because linking it with the layer and the engine takes longer than compiling it. A
//! test that needs a process of its own is a program beside this one and says why.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "tests and their helpers")]

mod attachments;
mod background;
mod bounded;
mod compaction;
mod concurrent;
mod conflicts;
mod database_cache;
mod databases;
mod doc_ids;
mod documents;
mod due;
mod edges;
mod expiry;
mod fences;
mod followers;
mod heat;
mod lease;
mod live_channels;
mod local_documents;
mod many_leaves;
mod many_processes;
mod newer;
mod once;
mod partitions;
mod pending;
mod renew;
mod replicas;
mod restored;
mod resync;
mod room;
mod security;
mod shards;
mod size_limit;
mod stored_keys;
mod stored_settings;
mod support;
mod sync_functions;
mod together;
mod updates;
mod view_waits;
mod waits;
mod walks;
