//! Tests of the crates of the layer that need a whole layer: in a file by the path of the module that they test, or of
//! several.

mod channels;
mod document;
mod feed;
pub(crate) mod fenced;
mod find;
mod group;
pub(crate) mod index;
mod judge;
mod many_names;
mod read;
mod record_change;
mod record_log;
mod renew;
mod resync;
mod unknown_results;
mod view;
mod view_updates;
mod write;
