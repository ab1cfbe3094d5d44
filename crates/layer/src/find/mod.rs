//! Mango queries: the json indexes to choose from, and the execution of plans page by page.

mod catalog;
mod documents;
mod page;
mod partition_tests;
mod query;
mod ranges;
mod tests;
mod wait;

pub use catalog::JsonIndexes;
pub use query::{Find, FindOptions, QueryDocument, QueryRow};
