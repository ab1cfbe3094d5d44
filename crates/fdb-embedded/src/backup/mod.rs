//! Copies of a database, made beside the process that serves it, and put back.

pub(crate) mod copy;
pub(crate) mod create;
pub(crate) mod error;
pub(crate) mod restore;
pub(crate) mod target_dir;
