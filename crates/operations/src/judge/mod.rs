//! Judges writes before their transactions.

pub mod ask;
pub mod design;
pub mod judgement;
pub mod rights;
pub mod routes;
pub mod several;
