//! Mango queries: the json indexes to choose from, and the execution of plans page by page.

pub(crate) mod catalog;
mod documents;
mod page;
pub(crate) mod query;
mod ranges;
mod wait;

pub use catalog::JsonIndexes;
pub use query::{Find, FindOptions, QueryDocument, QueryRow};
