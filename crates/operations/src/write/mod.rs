//! Writes of documents, and the removal of old data.

pub mod batch;
pub mod compact;
pub mod document_write;
pub mod expire;
pub mod partition_limit;
pub mod plan;
pub mod purge;
pub mod retries;
pub mod winner;
pub mod work;
