//! What is derived from documents, in the transaction that changes them.

pub(crate) mod maintainers;
