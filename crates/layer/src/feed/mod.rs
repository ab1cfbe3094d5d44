//! Changes of databases in order, pushed to their followers.

mod armed;
pub(crate) mod changes;
pub(crate) mod hub;
pub(crate) mod place;
pub(crate) mod query;
pub(crate) mod row;
pub(crate) mod source;
pub(crate) mod tail;
pub(crate) mod updates;
pub(crate) mod watches;
