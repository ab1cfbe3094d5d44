//! Tests Mango with documents, and with recorded answers of CouchDB.
#![allow(clippy::unwrap_used)]

mod covered;
mod plans;
mod recorded;
mod replay;
mod requests;
mod rows;
mod selectors;

use flatbed_flatten::json::{Limits, Value, parse};

fn json(text: &str) -> Value<'static> {
    parse(text.as_bytes(), &Limits::default()).unwrap_or_else(|error| panic!("{text}: {error}")).into_owned()
}
