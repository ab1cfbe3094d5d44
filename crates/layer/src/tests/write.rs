//! Tests of `write` with a whole layer.
#![cfg(test)]

mod compact;
mod expire;
mod purge;
mod together;
