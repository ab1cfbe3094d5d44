//! The handlers of all paths.

pub(crate) mod all_docs;
pub(crate) mod answering;
pub(crate) mod attachment;
pub(crate) mod bulk;
pub(crate) mod bulk_get;
pub(crate) mod changes;
pub(crate) mod console;
#[cfg_attr(not(feature = "console"), path = "without/console_files.rs")]
mod console_files;
pub(crate) mod database;
pub(crate) mod db_updates;
pub(crate) mod dbs_info;
pub(crate) mod document;
pub(crate) mod feed;
pub(crate) mod indexes;
pub(crate) mod list;
pub(crate) mod local;
pub(crate) mod local_docs;
pub(crate) mod maintenance;
pub(crate) mod mango;
pub(crate) mod node;
pub(crate) mod open_revs;
pub(crate) mod partition;
pub(crate) mod post_form;
pub(crate) mod purged_infos;
pub(crate) mod put_related;
pub(crate) mod raw_keys;
pub(crate) mod replicate;
pub(crate) mod revisions;
pub(crate) mod rewrite;
pub(crate) mod scheduler;
pub(crate) mod server;
pub(crate) mod session;
pub(crate) mod setup;
pub(crate) mod stats;
pub(crate) mod view;
#[cfg_attr(not(feature = "worker"), path = "without/worker.rs")]
pub(crate) mod worker;
