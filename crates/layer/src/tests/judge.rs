//! Tests of `judge` with a whole layer.

mod ask;
mod several;
