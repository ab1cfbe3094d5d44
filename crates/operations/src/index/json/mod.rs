//! Json indexes of Mango: documents by the values of some fields, maintained in the transactions that change documents.

pub mod check;
pub mod definition;
pub mod entry;
pub mod key;
pub mod kind;
pub mod maintainer;
pub mod pivots;
pub mod place;
