//! Data derived from documents: its maintenance in the transactions that change documents, and builders that enter
//! older documents.

pub mod all_docs;
pub mod apart;
pub mod build;
pub mod by_seq;
pub mod channels;
pub mod compiled;
pub mod counters;
pub mod definitions;
pub mod groups;
pub mod json;
pub mod kinds;
pub mod maintainers;
#[cfg(feature = "test-hooks")]
pub mod member;
pub mod partitions;
pub mod prepare;
pub mod selector;
