//! Judges writes before their transactions.

pub(crate) mod ask;
pub(crate) mod design;
pub(crate) mod judgement;
pub(crate) mod rights;
pub(crate) mod routes;
pub(crate) mod several;
