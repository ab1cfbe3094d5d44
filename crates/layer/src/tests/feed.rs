//! Tests of `feed` with a whole layer.
#![cfg(test)]

mod channels;
mod words;
