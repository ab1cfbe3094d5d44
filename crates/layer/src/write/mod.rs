//! Writes of documents, and the removal of old data.

pub(crate) mod batch;
pub(crate) mod compact;
pub(crate) mod document_write;
pub(crate) mod expire;
pub(crate) mod partition_limit;
pub(crate) mod plan;
pub(crate) mod purge;
pub(crate) mod retries;
pub(crate) mod winner;
pub(crate) mod work;
