//! Changes of one database in order, pushed to their followers.

pub mod armed;
pub mod changes;
pub mod hub;
pub mod place;
pub mod query;
pub mod row;
pub mod source;
pub mod tail;
pub mod watches;
