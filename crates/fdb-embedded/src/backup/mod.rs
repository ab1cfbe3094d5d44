//! Copies of a database, made while a server runs, and their restore.

pub(crate) mod copy;
pub(crate) mod create;
pub(crate) mod error;
pub(crate) mod restore;
pub(crate) mod target_dir;
pub(crate) mod verify;
