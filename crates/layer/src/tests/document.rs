//! Tests of `document` with a whole layer.

mod fields;
mod release;
mod staging;
