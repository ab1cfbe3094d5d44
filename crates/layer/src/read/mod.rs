//! Reads of documents and of their metadata.

pub(crate) mod all_docs;
pub(crate) mod attachment;
mod before;
pub(crate) mod get;
pub(crate) mod local;
mod merged_ids;
pub(crate) mod missing;
pub(crate) mod over;
pub(crate) mod purged_infos;
pub(crate) mod revision_records;
pub(crate) mod routings;
mod seen;
pub(crate) mod seen_info;
pub(crate) mod stored_keys;
mod tests;
pub(crate) mod viewer;
