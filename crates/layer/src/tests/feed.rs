//! Tests of `feed` with a whole layer.

mod channels;
mod words;
