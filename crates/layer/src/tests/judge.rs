//! Tests of `judge` with a whole layer.
#![cfg(test)]

mod ask;
mod several;
