//! CouchDB's recorded answers, compared with the pure parts of indexes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod collation;
mod map;
mod views;

use std::fs;
use std::path::Path;

use flatbed_flatten::json::{Limits, Value, parse};

/// The lines of a file of recorded answers.
fn recorded(name: &str) -> Vec<Value<'static>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/couchdb-answers").join(name);
    let text = fs::read(path).expect("the recorded answers");
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| parse(line, &Limits::default()).expect("a recorded line").into_owned()).collect()
}
