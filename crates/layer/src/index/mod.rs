//! Data derived from documents: its maintenance in the transactions that change documents, and builders that enter
//! older documents.

pub(crate) mod all_docs;
pub(crate) mod apart;
pub(crate) mod build;
pub(crate) mod by_seq;
pub(crate) mod channels;
pub(crate) mod compiled;
pub(crate) mod counters;
pub(crate) mod definitions;
pub(crate) mod groups;
pub(crate) mod json;
pub(crate) mod kinds;
pub(crate) mod maintainers;
pub(crate) mod member;
pub(crate) mod partitions;
pub(crate) mod prepare;
pub(crate) mod selector;
