//! Judges writes before their transactions.

pub(crate) mod ask;
mod design;
pub(crate) mod judgement;
pub(crate) mod rights;
pub(crate) mod routes;
mod several;
