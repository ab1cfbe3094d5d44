//! Reads of documents and of their metadata.

pub(crate) mod all_docs;
pub(crate) mod attachment;
mod before;
pub(crate) mod get;
pub(crate) mod local;
pub(crate) mod merged_ids;
pub(crate) mod missing;
pub(crate) mod over;
pub(crate) mod partition;
pub(crate) mod purged_infos;
pub(crate) mod revision_records;
pub(crate) mod routings;
mod seen;
pub(crate) mod seen_info;
pub(crate) mod stored_keys;
pub(crate) mod viewer;
