//! Json indexes of Mango: documents by the values of some fields, maintained in the transactions that change documents.

pub(crate) mod check;
pub(crate) mod definition;
pub(crate) mod entry;
pub(crate) mod key;
pub(crate) mod kind;
pub(crate) mod maintainer;
mod pivots;
pub(crate) mod place;
