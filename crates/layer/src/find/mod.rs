//! Queries of Mango: which json indexes there are to choose from, and how a plan is carried out, page by page.

mod catalog;
mod documents;
mod page;
mod partition_tests;
mod query;
mod ranges;
mod tests;
mod wait;

pub use catalog::JsonIndexes;
pub use query::{Find, FindOptions, FoundDocument, FoundRow};
