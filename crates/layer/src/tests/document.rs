//! Tests of `document` with a whole layer.
#![cfg(test)]

mod fields;
mod release;
mod staging;
