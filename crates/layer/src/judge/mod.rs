//! Who says whether a write is allowed, asked before its transaction.

pub(crate) mod ask;
mod design;
pub(crate) mod judgement;
pub(crate) mod rights;
pub(crate) mod routes;
mod several;
