//! Reads of documents and of their metadata.

pub mod all_docs;
pub mod attachment;
pub mod before;
pub mod get;
pub mod local;
pub mod merged_ids;
pub mod missing;
pub mod over;
pub mod partition;
pub mod purged_infos;
pub mod revision_records;
pub mod routings;
pub mod seen;
pub mod seen_info;
pub mod stored_keys;
pub mod viewer;
