//! Tests of `write` with a whole layer.

mod compact;
mod expire;
mod purge;
mod together;
