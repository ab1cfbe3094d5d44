//! Where the rows of a feed come from.

pub(crate) mod by_id;
pub(crate) mod by_seq;
