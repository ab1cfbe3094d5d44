//! Mango queries: the json indexes to choose from, and the execution of plans page by page.

pub mod catalog;
pub mod documents;
pub mod page;
pub mod query;
pub mod ranges;
pub mod wait;

pub use catalog::JsonIndexes;
pub use query::{Find, FindOptions, QueryDocument, QueryRow};
